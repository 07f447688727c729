"""Small random changes of texts, bytes, JSON values and files."""

from __future__ import annotations

import json
import os
import shutil
import socket
from pathlib import Path
from random import Random
from typing import Any

#: Values of wrong types, out of range, or hard to print.
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 7, 2**31, 2**63, 10**19, 10**30, -(10**19), 0.5, -0.0, 1e-320, 1e308, 3.7),
    *(float("nan"), float("inf"), float("-inf")),
    *("", " ", "x", "0", "-1", "1e400", "nan", "ln", "fedavg", "../../etc/passwd", "/dev/zero", ".", "~", "=", ":"),
    *("a/b", "\0", "\x1b[31m", "\r\n", "\ud800", "\u202eabc", "\N{PILE OF POO}", "٣", "²", "é" * 300, "x" * 20_000),
    *("%s%n", "{}"),
    *([], {}, [[]], [None], {"name": "x"}, {"name": []}, {"": {}}, ["x", 1, None], [0] * 5000),
    {"x": {"y": {"z": [1]}}},
)  # fmt: skip

#: The same as texts, for options and YAML.
SCALARS = [
    *("", "\t", "\u2028", "\u202e", "9" * 5000, "x" * 3000, "[" * 300, "{a: " * 200),
    *r"""
~
null
true
yes
0
-1
1
0x1f
1_000
1e3
1e400
-1e400
.nan
.inf
-.inf
99999999999999999999
0.30000001
1e-320
'x'
"\u0000"
"\ud800"
"\x1b[31m"
[
]
{
}
[]
{}
[[[[]]]]
[1, [2, [3]]]
{a: {b: {c: 1}}}
&a
*a
&a [*a]
!!python/name:os.system
!x y
<<: x
{<<: [1]}
- x
a: b: c
# x
---
...
%YAML 9.9
@x
`x`
|
>
? x
2026-01-01
0o17
0b1
1:30
é
💩
../x
/dev/zero
/etc/passwd
classes:99999999999
classes:0
dirichlet:-1
dirichlet:1e999
shards:x
{range: [0, 1e12]}
{linspace: [0, 1, 1e9]}
{logspace: [0, 400, 3]}
{range: [1, 2, 0]}
{name: fedprox, mu: x}
{name: mlp, widths: []}
{name: mlp, widths: [0]}
{name: mlp, widths: [1e9, 1e9]}
{name: folder, path: /dev}
""".splitlines(),
]

#: Bytes that break texts, JSON and numbers.
BYTES = (
    b"\0", b"\xff", b"\n", b"\r", b"\x1b[2J", b"\xc3(", b"{", b"[", b'"', b"9" * 400, b"\xed\xa0\x80", b"\xef\xbb\xbf",
    b"1e400",
)  # fmt: skip


def mutate_text(random: Random, text: str) -> str:
    """Change a few lines or words of a text."""
    for _ in range(random.randint(1, 3)):
        lines = text.split("\n")
        at = random.randrange(len(lines))
        act = random.randrange(9)
        if act == 0:
            del lines[at]
        elif act == 1:
            lines.insert(at, lines[random.randrange(len(lines))])
        elif act == 2:
            lines[at] = " " * random.randrange(6) + lines[at].lstrip()
        elif act == 3:
            lines[at] += random.choice((" ", ": ", ", ")) + random.choice(SCALARS)
        elif act in (4, 5, 6):
            words = lines[at].split(" ")
            which = random.randrange(len(words))
            words[which] = random.choice(SCALARS)
            lines[at] = " ".join(words)
        elif act == 7:
            head, colon, _ = lines[at].partition(":")
            lines[at] = f"{head}{colon or ':'} {random.choice(SCALARS)}"
        else:
            cut = random.randrange(len(text) + 1)
            lines = (text[:cut] + random.choice(SCALARS) + text[cut + random.randrange(3) :]).split("\n")
        text = "\n".join(lines)
    return text


def mutate_word(random: Random, word: str) -> str:
    """Change an argument or an option of the command line."""
    name, equals, value = word.partition("=")
    act = random.randrange(6)
    if act == 0:
        return random.choice(SCALARS)
    if act == 1:
        return f"{name}={random.choice(SCALARS)}"
    if act == 2 and equals:
        return f"{random.choice(SCALARS)}={value}"
    if act == 3:
        cut = random.randrange(len(word) + 1)
        return word[:cut] + random.choice(SCALARS) + word[cut:]
    if act == 4:
        return word[: random.randrange(len(word) + 1)]
    return f"{name}.{random.choice(('x', '0', '-1', 'name', '[0]', '[99]'))}={random.choice(SCALARS)}"


def mutate_bytes(random: Random, data: bytes) -> bytes:
    """Truncate data, flip a bit, insert bytes, repeat a part, or replace everything."""
    act, at = random.randrange(5), random.randrange(len(data) + 1)
    if act == 0:
        return data[:at]
    if act == 1 and data:
        at = min(at, len(data) - 1)
        return data[:at] + bytes([data[at] ^ (1 << random.randrange(8))]) + data[at + 1 :]
    if act == 2:
        return data[:at] + random.choice(BYTES) + data[at:]
    if act == 3:
        return data + data[at:]
    return random.choice(BYTES) * random.choice((0, 1, 100))


def mutate_json(random: Random, value: Any) -> Any:
    """Return a copy with one value or key changed, at any depth."""
    value = json.loads(json.dumps(value))
    places: list[tuple[Any, Any]] = []
    _collect(value, places)
    if not places:
        return random.choice(VALUES)
    inside, key = random.choice(places)
    act = random.randrange(8)
    if act == 0:
        del inside[key]
    elif act == 1 and isinstance(inside, dict):
        inside[random.choice(("", "x", "\ud800", "schema", "rounds", "name", "probes"))] = inside.pop(key)
    elif act == 2 and isinstance(inside[key], int | float):
        inside[key] = random.choice(
            (-inside[key], inside[key] + 1, inside[key] * 10**6, str(inside[key]), [inside[key]])
        )
    elif act == 3:
        inside[key] = [inside[key]]
    else:
        inside[key] = random.choice(VALUES)
    return value


def _collect(value: Any, places: list[tuple[Any, Any]]) -> None:
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in pairs:
        places.append((value, key))
        _collect(item, places)


def replace_file(random: Random, path: Path) -> str:
    """Replace a file by something else; return by what."""
    kind = random.choice(
        ("directory", "FIFO", "socket", "loop", "dangling", "link to the root", "device", "absent", "empty", "no mode")
    )
    if kind not in ("empty", "no mode"):
        path.unlink()
    if kind == "directory":
        path.mkdir()
        (path / "x").touch()
    elif kind == "FIFO":
        os.mkfifo(path)
    elif kind == "socket":
        bind_socket(path)
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind == "dangling":
        path.symlink_to("nowhere")
    elif kind == "link to the root":
        path.symlink_to("/")
    elif kind == "device":
        path.symlink_to("/dev/full")
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "no mode":
        path.chmod(0)
    return kind


def replace_directory(random: Random, path: Path) -> str:
    """Replace a directory or add odd names to it; return which."""
    kind = random.choice(("file", "absent", "loop", "no mode", "odd names"))
    if kind in ("file", "absent", "loop"):
        shutil.rmtree(path)
    if kind == "file":
        path.write_bytes(b"x")
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind == "no mode":
        path.chmod(0)
    elif kind == "odd names":
        for name in ("²", "\udcff", "x" * 200, "-", "..x", " ", "\n", "0000", "9" * 20, "0001.json", ".tmp"):
            (path / name).mkdir()
    return kind


def bind_socket(path: Path) -> None:
    """Create a socket."""
    before = Path.cwd()
    os.chdir(path.parent)  # socket addresses are limited to about 100 bytes
    try:
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(path.name)
    finally:
        os.chdir(before)
