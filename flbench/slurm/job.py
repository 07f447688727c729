"""The SLURM job that this process runs in: when it ends, why it was asked to stop, and how it gets another turn."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
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
        stop_at: when to come to an end, on the monotonic clock.
        log: the file that holds its output.
    """

    job_id: str
    restart: int
    stop_at: float
    log: Path

    @classmethod
    def here(cls, environment: Mapping[str, str] = os.environ) -> Job | None:
        """The job around this process; None outside of SLURM, and in jobs of the user's own, which are left alone."""
        try:
            seconds = float(environment[JOB_END]) - float(environment[GRACE]) - time.time()
            job_id, log = environment["SLURM_JOB_ID"], Path(environment[LOG])
        except KeyError:
            return None
        restart = int(environment.get("SLURM_RESTART_COUNT", "0"))
        return cls(job_id, restart, time.monotonic() + seconds, log)

    def runs_short(self) -> bool:
        """Whether the walltime is nearly over."""
        return time.monotonic() >= self.stop_at

    def why_warned(self) -> Literal["timeout", "preempted"]:
        """Why SLURM sent the warning signal: the same one announces the walltime's end and a preemption."""
        if self.runs_short():
            return "timeout"
        preempted_at = read_pairs(ask("scontrol", "show", "job", "--oneliner", self.job_id) or "").get("PreemptTime")
        return "timeout" if preempted_at in (None, "None", "N/A") else "preempted"

    def requeue(self) -> str:
        """Ask SLURM for another turn of this job; return what went wrong, or nothing."""
        done = attempt(["scontrol", "requeue", self.job_id])
        if done is None:
            return "scontrol does not answer"
        return done.stderr.strip() if done.returncode else ""
