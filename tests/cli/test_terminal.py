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

from flbench.cli.boundary import announce
from flbench.cli.commands import COMMANDS
from flbench.cli.screen import PIPE, plain_table, wide_console
from tests.start_up import HEAVY, SLOW, heavy_imports
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
    ("command", "line"),
    [
        ("report --store {}", "reading {}"),
        ("report quickstart --store {}", "reading quickstart"),
        ("--plugin none.py status", "reading the store runs"),
        ("export {}/out.parquet --store {}", "writing out.parquet"),
        ("show run 12 --store={}", "reading run 12"),
        ("sweep --workers 2 none", "reading the arguments"),
        ("help sweep", COMMANDS["sweep"][2]),
    ],
)
def test_a_terminal_says_at_once_what_a_command_does(command: str, line: str, tmp_path: Path) -> None:
    _, shown = in_terminal(*(word.format(tmp_path / "none") for word in command.split()), columns=300)
    assert shown.splitlines()[0] == line.format(tmp_path / "none")


@pytest.mark.slow
@pytest.mark.parametrize("command", ["status --json --store {}", "report", "--version", "none runs", "sweep"])
def test_no_line_is_before_json_or_the_message_of_a_mistake(command: str, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    _, shown = in_terminal(*command.format(tmp_path / "none").split(), columns=300, FLBENCH_STORE=str(tmp_path / "x"))
    assert shown.startswith("reading the store") is (command == "report")
    assert command == "report" or not re.match("reading|writing", shown)


def test_a_pipe_gets_no_line(capfd: pytest.CaptureFixture[str]) -> None:
    announce("reading quickstart")
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow  # a start of Python
def test_the_first_line_is_before_every_slow_import() -> None:
    program = "import sys; from flbench.cli import app, commands\ncommands.announce = sys.exit\nimport typer, os\n"
    program += "try: app(['runs'])\nexcept SystemExit as line: print(line)"
    assert heavy_imports(program, (*HEAVY, *SLOW)) == ([], "reading the store runs")


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
