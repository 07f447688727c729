"""The mirror as a process beside a sweep: started and then left alone.

It follows its standard input: when that ends, by whatever end of the sweep, it tells the rest and goes.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Literal

#: The command line, in the interpreter that runs this.
FLBENCH = (sys.executable, "-c", "from flbench.cli import main; main()")

#: What the mirror logs, in the plan's directory; its last line says how it ended.
LOG = "wandb.log"

#: Seconds that a sweep whose runs are all done leaves the mirror to come to its end; then it goes on alone.
GRACE = 2.0


class Beside:
    """A mirror that was started; whatever becomes of it, nothing is raised here."""

    def __init__(self, process: subprocess.Popen[bytes] | None, log: Path, note: str = "") -> None:
        self._process, self._log, self._note = process, log, note

    @classmethod
    def start(cls, store: Path, plan: Path, mode: Literal["online", "offline"]) -> Beside:
        """Start the mirror of a plan (its directory in the store)."""
        log = plan / LOG
        name = "/".join(plan.parts[-2:])
        argv = [*FLBENCH, "sync", name, "--store", str(store), "--mode", mode, "--beside"]
        try:
            with log.open("wb") as output:
                process = subprocess.Popen(
                    argv, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
                )
        except OSError as error:
            return cls(None, log, f"warning: nothing is mirrored: {error.strerror or error}")
        return cls(process, log)

    def end(self, *, grace: float = GRACE) -> str:
        """Tell the mirror that the sweep is over; return what is to be said about it."""
        if self._process is None:
            return self._note
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        try:
            code = self._process.wait(grace)
        except subprocess.TimeoutExpired:
            return (
                f"still being mirrored by process {self._process.pid} (log: {self._log}); "
                "`flbench sync` does what it leaves undone"
            )
        last = _last_line(self._log)
        return last if code == 0 else f"warning: {last or f'the mirror ended with code {code}'} (log: {self._log})"


def _last_line(path: Path) -> str:
    with suppress(OSError, IndexError):
        return path.read_text(errors="replace").rstrip().splitlines()[-1]
    return ""
