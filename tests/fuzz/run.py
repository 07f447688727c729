"""Runs cases in this process, each in its own folder and with a time limit."""

from __future__ import annotations

import io
import os
import shlex
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from tests.faults.stub import OneByOne
from tests.fuzz import cases, world
from tests.limits import Hangs, time_limit

#: Time limit of a command in seconds, many times what it needs; ``tests.limits`` defines how it is measured.
LIMIT = 120

#: The documented exit codes, without that of an interrupt.
CODES = range(5)

#: A file outside of the case's folder that no command may change.
SENTINEL = "outside"


@dataclass(frozen=True)
class Finding:
    """A case that ended in an undocumented way: the command, and what happened."""

    case: cases.Case
    command: list[str]
    what: str

    def text(self, seed: int) -> str:
        """Return the finding with the command that reproduces it."""
        again = f"python -m tests.fuzz --seed {seed} --only {self.case.number}"
        changes = "\n".join(self.case.changes)
        command = " ".join(shlex.quote(f"{word:.300}") for word in self.command)
        return f"case {self.case.number} ({self.case.kind}): {again}\n{changes}\nflbench {command}\n{self.what}"


def fuzz(
    seed: int, numbers: Iterable[int], seconds: float = float("inf"), kind: str | None = None
) -> Iterator[tuple[int, Finding | None]]:
    """Run cases (of one kind) for at most ``seconds``; yield each number with its finding, or None."""
    end = time.monotonic() + seconds
    with tempfile.TemporaryDirectory(prefix="flbench-fuzz-") as scratch:
        original, copy = Path(scratch, "world"), Path(scratch, "case")
        original.mkdir()
        world.build(original)
        (Path(scratch) / SENTINEL).write_text("kept")
        with _environment(Path(scratch)):
            for number in numbers:
                if time.monotonic() > end:
                    return
                if kind not in (None, cases.kind_of(seed, number)):
                    continue
                shutil.copytree(original, copy, symlinks=True)
                os.chdir(copy)
                case = cases.make(seed, number, copy)
                findings = (Finding(case, command, what) for command in case.commands if (what := _problem(command)))
                yield number, next(findings, None)
                os.chdir(scratch)
                _remove(copy)
                there = sorted(path.name for path in Path(scratch).iterdir())
                assert there == ["cache", "home", SENTINEL, "world"], f"case {number} wrote outside of its folder"


def _problem(command: list[str]) -> str | None:
    """Return how a command broke the rules, or None if it ended in a documented way."""
    from flbench.cli import main

    output = io.StringIO()
    code: object = 0
    try:
        with (
            mock.patch.object(sys, "argv", ["flbench", *command]),
            redirect_stdout(output),
            redirect_stderr(output),
            time_limit(LIMIT),
        ):
            main()
    except SystemExit as ended:
        code = 0 if ended.code is None else ended.code
    except Hangs as hangs:
        return f"{hangs}\n{_cut(traceback.format_exc())}"
    except BaseException:
        return _cut(traceback.format_exc())
    if "Traceback (most recent call last)" in output.getvalue():
        return f"a traceback in its output:\n{_cut(output.getvalue())}"
    return None if code in CODES else f"exit code {code}:\n{_cut(output.getvalue())}"


def _cut(text: str) -> str:
    """Return the last 60 lines, each cut to 300 characters."""
    return "\n".join(f"{line:.300}" for line in text.splitlines()[-60:])


@contextmanager
def _environment(scratch: Path) -> Iterator[None]:
    """Replace training by a stub, and keep all files that commands write inside ``scratch``."""
    for name in ("home", "cache"):
        (scratch / name).mkdir()
    variables = {
        "FLBENCH_STORE": "store",
        "FLBENCH_CACHE": str(scratch / "cache"),
        "FLBENCH_DATA": str(scratch / "home"),
        "HOME": str(scratch / "home"),
        "MPLCONFIGDIR": os.environ.get("MPLCONFIGDIR", str(Path.home() / ".cache/matplotlib")),  # listing fonts is slow
        "WANDB_MODE": "disabled",
        "COLUMNS": "120",
    }
    before = Path.cwd()
    with (
        mock.patch.dict(os.environ, variables),
        mock.patch("flbench.execution.Runner", lambda settings: OneByOne(world.publish_at_once)),
    ):
        try:
            yield
        finally:
            os.chdir(before)


def _remove(folder: Path) -> None:
    for path, names, _ in os.walk(folder):
        for name in names:
            if not Path(path, name).is_symlink():
                Path(path, name).chmod(0o700)
    shutil.rmtree(folder)
