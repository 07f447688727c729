"""Call SLURM's commands and parse their output."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

#: States of a job that does not run and will not run again.
ENDED = frozenset(
    {
        "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED",
        "REVOKED", "TIMEOUT",
    }
)  # fmt: skip

#: Seconds until a command is given up; a busy controller answers slowly.
TIMEOUT = 60.0

#: Beginnings of the variables with a user's defaults for the commands: SQUEUE_USERS, SCANCEL_STATE.
_DEFAULTS = ("SQUEUE_", "SCANCEL_", "SCONTROL_", "SACCT_")

#: The columns of squeue's output: the array's job id, the task, state, nodes, name.
_FORMAT = "%F|%K|%T|%N|%j"


@dataclass(frozen=True)
class Row:
    """One line of squeue: a job, or one task of an array."""

    job: str
    task: str
    state: str
    nodes: str
    name: str

    @property
    def alive(self) -> bool:
        """Return whether the job runs or will run."""
        return self.state not in ENDED


def squeue(names: Iterable[str]) -> list[Row] | None:
    """Return all jobs with these names, ended ones too; None if the controller does not answer."""
    answer = output_of(
        "squeue", "--noheader", "--array", "--states=all", f"--name={','.join(names)}", f"--format={_FORMAT}"
    )
    if answer is None:
        return None
    parts = (line.split("|") for line in answer.splitlines())
    return [Row(*row) for row in parts if len(row) == 5]


def state_of(job: str, restart: int) -> str | None:
    """Return the state in which a job ended after ``restart`` requeues; None while it is alive, or if it is unknown.

    If the job has been requeued since, this is the state in accounting, or ``REQUEUED``.
    """
    shown = show_job(job)
    if shown is not None:
        if restart >= int(shown.get("Restarts", "0")):
            state = shown.get("JobState")
            return state if state in ENDED else None
        return _state_in_accounting(job, restart) or "REQUEUED"
    return _state_in_accounting(job, restart)


def _state_in_accounting(job: str, restart: int) -> str | None:
    """Return the same from accounting, which has one record for each start of the job."""
    options = ("--noheader", "--parsable2", "--allocations", "--duplicates", "--format=JobID,JobIDRaw,State")
    rows = [line.split("|") for line in (output_of("sacct", *options, f"--jobs={job}") or "").splitlines()]
    # The id of an array's last task names all tasks. A state has a user: `CANCELLED by 1000`.
    states = [row[2].split()[0] for row in rows if len(row) == 3 and job in row[:2] and row[2].strip()]
    if restart >= len(states):
        return None
    return states[restart] if states[restart] in ENDED | {"REQUEUED"} else None


def show_job(job: str) -> dict[str, str] | None:
    """Return the controller's ``Key=Value`` pairs of a job, or of an array's task (ARRAY_TASK); None if it knows none.

    SLURM prints a line for each task if the id is the array's, which is also that of its last task.
    """
    for line in (output_of("scontrol", "show", "job", "--oneliner", job) or "").splitlines():
        # The first value of a key counts: paths, which may contain blanks and anything else, come last.
        shown = dict(reversed(re.findall(r"(\S+?)=(\S*)", line)))
        if job in (shown.get("JobId"), f"{shown.get('ArrayJobId')}_{shown.get('ArrayTaskId')}"):
            return shown
    return None


def config_value(key: str) -> str | None:
    """Return a value of the cluster's configuration; None if it is not set or the controller does not answer."""
    for line in (output_of("scontrol", "show", "config") or "").splitlines():
        name, _, value = line.partition("=")
        if name.strip() == key:
            return value.strip()
    return None


def scancel(*arguments: str) -> bool:
    """Cancel or signal jobs; return whether SLURM accepted the request."""
    return output_of("scancel", *arguments) is not None


def output_of(*command: str) -> str | None:
    """Return a command's standard output; None if it fails, hangs, or is not installed."""
    done = run_command(command)
    return done.stdout if done is not None and done.returncode == 0 else None


def run_command(command: Sequence[str]) -> subprocess.CompletedProcess[str] | None:
    """Run a command; return None if it hangs or is not installed."""
    # The user's defaults for these commands may hide jobs or ask questions; their format of times may not be ISO 8601.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(_DEFAULTS)}
    environment["SLURM_TIME_FORMAT"] = "standard"
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, env=environment)
    except (OSError, subprocess.SubprocessError):
        return None
