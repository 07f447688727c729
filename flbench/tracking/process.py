"""Run the mirror as a process next to a sweep, one for each tracker.

When its standard input closes, because the sweep has ended in any way, the process mirrors the rest and exits.
"""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from flbench.tracking.sink import Tracker

#: The flbench command in this Python interpreter.
FLBENCH = (sys.executable, "-c", "from flbench.cli import main; main()")

#: Seconds for which a finished sweep waits for its mirror to exit; the mirror may continue after that.
GRACE = 2.0


class MirrorProcess:
    """The process of a mirror, or a note on why there is none. No method raises: a sweep never fails because of it.

    Its output is ``TRACKER.log`` in the plan's directory; the last line says how it ended.
    """

    def __init__(self, process: subprocess.Popen[bytes] | None, log: Path, note: str = "") -> None:
        self._process, self._log, self._note = process, log, note

    @classmethod
    def start(cls, tracker: Tracker, store: Path, plan: Path, *, detach: bool = False) -> MirrorProcess:
        """Return the mirror of a plan (its directory in the store), started unless the tracker is turned off.

        With ``detach`` none is started, since it would end with the command, before the runs.
        """
        log = plan / f"{tracker.name}.log"
        if tracker.is_off():
            return cls(None, log)
        if detach:
            return cls(None, log, "nothing is mirrored with --detach; run `flbench sync` when runs have finished")
        name = "/".join(plan.parts[-2:])
        settings = json.dumps({"name": tracker.name, **tracker.settings()})
        command = [*FLBENCH, "sync", name, "--store", str(store), "--to", settings, "--beside"]
        try:
            with log.open("ab") as output:
                process = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
                )
        except OSError as error:
            return cls(None, log, f"warning: nothing is mirrored: {error.strerror or error}")
        return cls(process, log)

    def end(self) -> str:
        """Close the mirror's standard input and wait up to ``GRACE`` seconds; return a line for the user, or ''."""
        if self._process is None:
            return self._note
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        try:
            code = self._process.wait(GRACE)
        except subprocess.TimeoutExpired:
            return f"process {self._process.pid} mirrors the rest (log: {self._log}); so does `flbench sync`"
        last = ""
        with suppress(OSError, IndexError):
            last = self._log.read_text(errors="replace").rstrip().splitlines()[-1]
        if code == 0:
            return last
        warning = last if last.startswith("warning: ") else f"warning: the mirror ended with exit code {code}"
        return f"{warning} (log: {self._log})"
