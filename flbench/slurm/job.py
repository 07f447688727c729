"""The SLURM job that this process runs in: when it ends, why it was asked to stop, and how it gets another turn."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Literal

from flbench.slurm.commands import ask, attempt, read_pairs

#: Set by the job's script, by the clock of the node that runs it: when SLURM ends the job, in seconds since 1970.
JOB_END = "FLBENCH_JOB_END"

#: Set by the job's script: how many seconds before that end a worker comes to its own.
GRACE = "FLBENCH_JOB_GRACE"

#: Set by the job's script: the file that holds the job's output.
LOG = "FLBENCH_JOB_LOG"


@dataclass(frozen=True)
class Job:
    """The job around this process, which flbench has submitted.

    Attributes:
        job_id: SLURM's own number; an array's task has one, too.
        restart: how often it was requeued.
        ends_at: when SLURM ends it, on the monotonic clock.
        grace: how many seconds before that a worker comes to its own end.
        log: the file that holds its output.
        preempted: whether SLURM has announced that it makes room for another.
    """

    job_id: str
    restart: int
    ends_at: float
    grace: float
    log: Path
    preempted: bool = False

    @classmethod
    def here(cls, environment: Mapping[str, str] = os.environ) -> Job | None:
        """The job around this process; None outside of SLURM, and in jobs of the user's own, which are left alone."""
        try:
            ends_at, grace = on_monotonic_clock(float(environment[JOB_END])), float(environment[GRACE])
            job_id, log = environment["SLURM_JOB_ID"], Path(environment[LOG])
        except KeyError:
            return None
        return cls(job_id, int(environment.get("SLURM_RESTART_COUNT", "0")), ends_at, grace, log)

    def why_stop(self) -> Literal["timeout", "preempted"] | None:
        """Why to come to an end now, if so: the walltime is nearly over, or another job is to have the node."""
        if self.preempted:
            return "preempted"
        return "timeout" if time.monotonic() >= self.ends_at - self.grace else None

    def warned(self) -> Job:
        """Return the same job after SLURM's warning: it is preempted, or ends when SLURM says.

        One signal announces both. That of a walltime's end comes up to a minute early, by a clock that has run for
        longer than that of the job's script. Where SLURM does not answer, the end is now.
        """
        shown = read_pairs(ask("scontrol", "show", "job", "--oneliner", self.job_id) or "")
        if shown.get("PreemptTime", "None") not in ("None", "N/A"):
            return replace(self, preempted=True)
        try:
            end = on_monotonic_clock(datetime.fromisoformat(shown["EndTime"]).timestamp())
        except (KeyError, ValueError):
            end = time.monotonic()
        return replace(self, ends_at=min(self.ends_at, end))

    def requeue(self) -> str:
        """Ask SLURM for another turn of this job; return what went wrong, or nothing."""
        done = attempt(["scontrol", "requeue", self.job_id])
        if done is None:
            return "scontrol does not answer"
        return done.stderr.strip() if done.returncode else ""


def on_monotonic_clock(moment: float) -> float:
    """A time in seconds since 1970 on the clock that nobody sets."""
    return time.monotonic() + moment - time.time()
