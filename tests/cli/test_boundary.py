"""Outputs, encodings, arguments and working directories that are not as they should be, each in its own process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

import pytest

from flbench.cli import main
from flbench.store import Store
from tests.faults.stub import write_toy_plan
from tests.report.stores import experiment, finish
from tests.warm import warm_python

FLBENCH = ("-c", "from flbench.cli import main; main()")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a finished store."""
    store = Store(tmp_path / "runs")
    write_toy_plan(store, [experiment()])
    finish(store, experiment(), 0.9)
    return tmp_path


def flbench(
    folder: Path,
    *arguments: str | bytes,
    stdout: int | IO[Any] = subprocess.PIPE,
    python: str | None = None,
    **variables: str,
) -> tuple[int, str, str]:
    """The exit code and the outputs of a command, of a warm Python by default; a traceback is always wrong."""
    environ = {**os.environ, **variables}
    command = [python or warm_python(), *FLBENCH, *arguments]
    ended = subprocess.run(command, cwd=folder, env=environ, stdout=stdout, stderr=subprocess.PIPE, timeout=120)
    errors = ended.stderr.decode(errors="replace")
    assert "Traceback" not in errors
    return ended.returncode, (ended.stdout or b"").decode("ascii", errors="replace"), errors


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8:strict"])
def test_what_the_output_cannot_encode_is_replaced(folder: Path, encoding: str) -> None:
    for command, expected in ((["show", "methods"], 0), (["status", "ø–\N{GREEK SMALL LETTER MU}"], 2)):
        code, text, _ = flbench(folder, *command, python=sys.executable, PYTHONIOENCODING=encoding)
        assert (code, bool(text)) == (expected, expected == 0)


@pytest.mark.slow
def test_a_full_disk_of_the_output_is_reported_as_such(folder: Path) -> None:
    for command in (["status"], ["show", "methods"]):
        with Path("/dev/full").open("wb") as full:
            code, _, errors = flbench(folder, *command, stdout=full)
        assert (code, errors) == (2, "error: standard output cannot be written: No space left on device\n")


def test_a_closed_pipe_is_no_error_of_the_store(folder: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        code, _, errors = flbench(folder, "run", "rounds=20", "eval_every=10", stdout=writer)
    finally:
        os.close(writer)
    assert (code, errors) == (1, "")


@pytest.mark.slow
@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&- <&-", "2>/dev/full"])
def test_closed_outputs_change_no_exit_code(folder: Path, closed: str) -> None:
    shell = f'"$0" -c "from flbench.cli import main; main()" "$@" {closed}'
    for arguments, expected in ((["status"], 0), (["status", "nothing"], 2)):
        ended = subprocess.run(["sh", "-c", shell, sys.executable, *arguments], cwd=folder, capture_output=True)
        assert ended.returncode == expected
        assert b"Traceback" not in ended.stderr


def test_a_deleted_working_directory_is_one_message(folder: Path, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    for command in (["status"], ["run", "rounds=1"], ["sweep", "x.yaml"]):
        gone.mkdir()
        removed = f"import os, shutil; shutil.rmtree({str(gone)!r}); from flbench.cli import main; main()"
        ended = subprocess.run([warm_python(), "-c", removed, *command], cwd=gone, capture_output=True, text=True)
        assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
        assert "the working directory cannot be used" in ended.stderr
        shutil.rmtree(gone, ignore_errors=True)


def test_undecodable_arguments_and_variables_are_refused(folder: Path) -> None:
    code, _, errors = flbench(folder, "status", "--store", b"a\xff")
    assert code == 2
    assert "expected text in UTF-8" in errors
    code, _, errors = flbench(folder, "status", FLBENCH_STORE=os.fsdecode(b"a\xff"))
    assert code == 2
    assert "FLBENCH_STORE=" in errors


ENDLESS = "9" * 5000
HUGE = "99999999999999999999"


@pytest.mark.parametrize(
    "arguments",
    [
        *((command, ENDLESS) for command in ("status", "verify", "logs", "sweep", "report", "import")),
        ("sweep", "x.yaml", "--limit", HUGE),
        ("sweep", "x.yaml", "--workers", HUGE),
        ("report", "x.yaml", "--limit", HUGE),
        ("verify", "--recompute", HUGE),
        ("run", "--threads", HUGE),
        ("bench", "--repeats", HUGE),
    ],
    ids=lambda arguments: " ".join(arguments)[:30],
)
def test_names_and_numbers_beyond_the_limits_are_one_message(
    folder: Path, arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "x.yaml").write_text("version: 1\nname: x\naxes: {lr: [0.1]}\n")
    monkeypatch.chdir(folder)
    monkeypatch.setattr("sys.argv", ["flbench", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    errors = capsys.readouterr().err
    assert ended.value.code == 2
    if HUGE in arguments:
        assert "Input should be less than or equal to 10000" in errors
    else:
        assert errors.count("\n") == 1


#: The beginning of a program as if on Windows, where the modules of POSIX are missing; click is the real platform's.
ON_WINDOWS = "import sys, typer; sys.platform = 'win32'; sys.modules['fcntl'] = sys.modules['resource'] = None\n"


@pytest.mark.parametrize(
    ("program", "code"),
    [("import flbench.cli; flbench.cli.main()", 2), ("import flbench; flbench.run(norm='ln')", 1)],
)
def test_windows_is_one_clear_error(program: str, code: int) -> None:
    command = [sys.executable, "-c", ON_WINDOWS + program, "doctor"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == code
    assert "flbench does not run on Windows: use WSL 2" in ended.stderr.splitlines()[-1]
    assert ("Traceback" in ended.stderr) == (code == 1), "a function raises UserError, a command prints it"


@pytest.mark.slow
def test_no_setting_of_matplotlib_and_no_variable_of_a_library_changes_a_figure(folder: Path) -> None:
    """A notebook names its backend, which need not be installed; numpy and PDF files fail on the last variable."""
    settings = folder / "elsewhere"
    settings.write_text("font.size: 22\ntext.usetex: True\naxes.facecolor: red\nbackend: qtagg\nsvg.fonttype: none\n")
    hostile = {
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
        "MATPLOTLIBRC": str(settings),
        "SOURCE_DATE_EPOCH": "abc",
    }

    def drawn(into: str, python: str, **variables: str) -> dict[str, bytes]:
        commands = [
            *(["plot", "curves", "--store", "runs", "--out", f"{into}/curves.{suffix}"] for suffix in ("pdf", "svg")),
            ["report", "--store", "runs", "--figures", f"{into}/all", "--out", f"{into}.md"],
            ["show", "partition", "partition=iid", "--out", f"{into}/labels.pdf"],
        ]
        called = [python, "-c", IN_TURN.format(commands)]
        done = subprocess.run(called, cwd=folder, env={**os.environ, **variables}, capture_output=True, timeout=240)
        assert done.returncode == 0, done.stderr
        return {str(path.relative_to(folder / into)): path.read_bytes() for path in (folder / into).rglob("*.*")}

    expected = drawn("plain", warm_python())
    assert len(expected) >= 5
    shutil.copy(settings, folder / "matplotlibrc")
    assert drawn("hostile", sys.executable, **hostile) == expected


#: Calls several commands, as far as they succeed.
IN_TURN = """
import sys
from flbench.cli import main
for command in {}:
    sys.argv = ["flbench", *command]
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise
"""


def test_a_matplotlibrc_that_cannot_be_read_is_named(folder: Path) -> None:
    (folder / "matplotlibrc").write_bytes(b"font.size: \xff")
    code, _, errors = flbench(folder, "show", "partition", "--out", "labels.svg")
    assert code == 2
    assert f"matplotlib cannot read a file named matplotlibrc, in {folder} or " in errors
    assert not (folder / "labels.svg").exists()


@pytest.mark.parametrize("module", ["typer", "flbench.cli", "flbench.cli.runs", "flbench.store"])
def test_ctrl_c_during_an_import_ends_quietly(module: str, tmp_path: Path) -> None:
    """As Ctrl-C in the first second of a command; Python's own start cannot be guarded."""
    program = f"""
import sys

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupts())
from flbench.__main__ import main
main()
"""
    command = [sys.executable, "-c", program, "runs"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (done.returncode, done.stdout) == (130, "")
    assert "Traceback" not in done.stderr
