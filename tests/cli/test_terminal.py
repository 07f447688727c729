"""Whole commands in a terminal of their own: what they draw, and what stays on the screen."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
from pathlib import Path

import pytest
from rich.table import Table

from flbench.cli.screen import PIPE, plain_table, wide_console
from tests.warm import warm_python

SPEC = """
version: 1
name: tiny
base: {dataset: digits, model: {name: mlp, widths: [16]}, partition: "classes:1", rounds: 4000, E: 5, eval_every: 200}
axes: {norm: [none, ln]}
seeds: [0, 1]
resources: {fuse: 1}
"""


def in_terminal(*arguments: str, columns: int, **environment: str) -> tuple[int, str]:
    """The exit code of a command, and everything that it wrote to its terminal."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "LINES")}
    process = subprocess.Popen(
        [warm_python(), "-c", "from flbench.cli import main; main()", *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**kept, "TERM": "xterm-256color", **environment},
    )
    os.close(theirs)
    written = b""
    try:
        while chunk := os.read(ours, 65536):
            written += chunk
    except OSError:  # on Linux, no process has the other end open any more
        pass
    finally:
        os.close(ours)
    return process.wait(), written.decode().replace("\r\n", "\n")


def without_codes(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    ["report --store {}", "diff {} b", "export out.parquet --store {}", "logs a --store {}", "sync --store {}"],
)
def test_what_takes_seconds_says_on_a_terminal_what_it_reads(command: str, tmp_path: Path) -> None:
    code, shown = in_terminal(*command.format(tmp_path / "none").split(), columns=300)
    first, second = shown.splitlines()
    assert code != 0 and first.startswith(f"reading {tmp_path / 'none'}") and second.startswith("error: ")


@pytest.mark.slow
@pytest.mark.parametrize(("columns", "no_color"), [(80, ""), pytest.param(200, "1", marks=pytest.mark.nightly)])
def test_sweep_in_a_terminal(tmp_path: Path, columns: int, no_color: str) -> None:
    (spec := tmp_path / "tiny.yaml").write_text(SPEC)
    store = str(tmp_path / "store")
    arguments = ("sweep", str(spec), "--store", store, "--workers", "1")
    code, written = in_terminal(*arguments, columns=columns, **({"NO_COLOR": no_color} if no_color else {}))
    assert code == 0, written
    text = without_codes(written)
    # While it ran: runs with their curves, the speed, and which cell led before all was done.
    assert re.search(r"[1-3]/4 done, 1 running, 1 worker, [\d.,]+ rounds/s, [\d.,]+ runs/h, ETA \d", text)
    assert re.search(r"fedavg (?:none|ln) s\d +\d+/4000 +\d+\.\d % +[▁▂▃▄▅▆▇█]+", text)
    assert re.search(r"fedavg (?:none|ln) +[12]/2 +\d+\.\d % +[▁▂▃▄▅▆▇█]+", text)
    lines = text[: text.index("digits, mlp")].splitlines()
    assert max(len(line) for line in lines) <= columns and lines[0] == "reading tiny.yaml"
    # Foreground colours are 3x and 9x; 39 takes them back.
    colours = re.findall(r"\x1b\[(?:[0-9;]*;)?((?:3[0-8]|9[0-7])(?:;[0-9;]*)?)m", written)
    assert bool(colours) is not bool(no_color)
    # The last drawing is removed; the table and the paths stay.
    assert written.count("\x1b[?25l") == written.count("\x1b[?25h") == 1, "the cursor comes back"
    last = text[text.index("digits, mlp") :]
    assert "│ fedavg │ ln" in last
    assert re.search(r"tiny: 4 of 4 runs done in (?:\d+\.\d s|\d+:\d\d); 1 worker started\.\nLeaderboard: ", last)
    assert "best cells" not in last and "running" not in last
    code, again = in_terminal("status", "--watch", "--store", store, columns=columns)
    assert (code, "best cells" in again) == (0, True)


def test_no_table_is_too_wide_for_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    console, words = wide_console(), [f"column{number}" for number in range(60)]
    for table in (plain_table(words), Table(*words)):
        table.add_row(*(f"{word} value" for word in words))
        console.print(table)
        printed = capsys.readouterr().out
        assert "…" not in printed and all(word in printed for word in words)
    console.print(Table("short"))
    assert console.width == PIPE
