"""The SLURM job around this process: when it ends, whether it is preempted, and how it is requeued."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Literal

from flbench.slurm.commands import run_command, show_job
from flbench.store.leases import slurm_job

#: Variable that the job's script sets: when SLURM ends the job, in seconds since 1970, by the clock of the job's node.
JOB_END = "FLBENCH_JOB_END"

#: Variable that the job's script sets: how many seconds before that time the worker stops.
GRACE = "FLBENCH_JOB_GRACE"

#: Variable that the job's script sets: the file with the job's output.
LOG = "FLBENCH_JOB_LOG"


@dataclass(frozen=True)
class Job:
    """The job around this process, submitted by flbench.

    Attributes:
        job_id: SLURM's name of the array's task, as ARRAY_TASK.
        restart: how often SLURM has requeued it.
        ends_at: when SLURM ends it, on the monotonic clock.
        grace: how many seconds before that the worker stops.
        log: the file with its output.
        preempted: whether SLURM has announced a preemption.
    """

    job_id: str
    restart: int
    ends_at: float
    grace: float
    log: Path
    preempted: bool = False

    @classmethod
    def here(cls, environment: Mapping[str, str] = os.environ) -> Job | None:
        """Return the job around this process; None outside SLURM and in a job that flbench did not submit."""
        try:
            ends_at, grace = to_monotonic(float(environment[JOB_END])), float(environment[GRACE])
            log = Path(environment[LOG])
        except KeyError:
            return None
        restart = int(environment.get("SLURM_RESTART_COUNT", "0"))
        return None if (job_id := slurm_job(environment)) is None else cls(job_id, restart, ends_at, grace, log)

    def stop_reason(self) -> Literal["timeout", "preempted"] | None:
        """Return why the worker must stop now: the wall time is nearly over, or a preemption; None to continue."""
        if self.preempted:
            return "preempted"
        return "timeout" if time.monotonic() >= self.ends_at - self.grace else None

    def after_warning(self) -> Job:
        """Return the job with the reason for SLURM's warning signal: a preemption, or the end of the wall time.

        One signal announces both, so ask the controller. The warning of the wall time's end comes up to a minute early,
        and the controller's clock may have started before that of the job's script: the earlier end counts. If the
        controller does not answer, the job ends now.
        """
        shown = show_job(self.job_id) or {}
        if shown.get("PreemptTime", "None") not in ("None", "N/A"):
            return replace(self, preempted=True)
        try:
            end = to_monotonic(datetime.fromisoformat(shown["EndTime"]).timestamp())
        except (KeyError, ValueError):
            end = time.monotonic()
        return replace(self, ends_at=min(self.ends_at, end))

    def requeue(self) -> str:
        """Ask SLURM to requeue this job; return the error message, '' if there is none."""
        done = run_command(["scontrol", "requeue", self.job_id])
        if done is None:
            return "scontrol does not answer"
        return done.stderr.strip() if done.returncode else ""


def to_monotonic(moment: float) -> float:
    """Convert seconds since 1970 to the monotonic clock, which no change of the system's time affects."""
    return time.monotonic() + moment - time.time()
