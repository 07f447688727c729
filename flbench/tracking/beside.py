"""The mirror as a process beside a sweep: started and then left alone.

It follows its standard input: when that ends, by whatever end of the sweep, it tells the rest and goes.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from flbench.tracking.modes import Mode, choose

#: The command line, in the interpreter that runs this.
FLBENCH = (sys.executable, "-c", "from flbench.cli import main; main()")

#: What the mirror logs, in the plan's directory; its last line says how it ended.
LOG = "wandb.log"

#: Seconds that a sweep whose runs are all done leaves the mirror to come to its end; then it goes on alone.
GRACE = 2.0


class Beside:
    """A mirror that was started, or a note on why none was; whatever becomes of it, nothing is raised here."""

    def __init__(self, process: subprocess.Popen[bytes] | None, log: Path, note: str = "") -> None:
        self._process, self._log, self._note = process, log, note

    @classmethod
    def start(cls, wanted: Mode, store: Path, plan: Path, *, detach: bool = False) -> Beside:
        """Start the mirror of a plan (its directory in the store), if that is wanted and possible.

        A sweep that does not wait for its runs (``detach``) has none: it would end with it.
        """
        log = plan / LOG
        choice = choose(wanted)
        if choice.mode == "off":
            return cls(None, log, choice.note)
        if detach:
            return cls(None, log, "`flbench sync` mirrors what has finished")
        name = "/".join(plan.parts[-2:])
        argv = [*FLBENCH, "sync", name, "--store", str(store), "--mode", choice.mode, "--beside"]
        try:
            with log.open("ab") as output:
                process = subprocess.Popen(
                    argv, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
                )
        except OSError as error:
            return cls(None, log, f"warning: nothing is mirrored: {error.strerror or error}")
        return cls(process, log)

    def end(self, *, grace: float = GRACE) -> str:
        """Tell the mirror that the sweep is over, and wait a moment for it; return what is to be said, if anything."""
        if self._process is None:
            return self._note
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        try:
            code = self._process.wait(grace)
        except subprocess.TimeoutExpired:
            return f"process {self._process.pid} mirrors the rest (log: {self._log}); so does `flbench sync`"
        last = _last_line(self._log)
        if code == 0:
            return last
        warning = last if last.startswith("warning: ") else f"warning: the mirror ended with code {code}"
        return f"{warning} (log: {self._log})"


def _last_line(path: Path) -> str:
    with suppress(OSError, IndexError):
        return path.read_text(errors="replace").rstrip().splitlines()[-1]
    return ""
