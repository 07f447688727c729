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
    answer = output_of("scontrol", "show", "job", "--oneliner", job)
    if answer is not None:
        shown = read_pairs(answer)
        if restart >= int(shown.get("Restarts", "0")):
            state = shown.get("JobState")
            return state if state in ENDED else None
        return _state_in_accounting(job, restart) or "REQUEUED"
    return _state_in_accounting(job, restart)


def _state_in_accounting(job: str, restart: int) -> str | None:
    """Return the same from accounting, which has one record for each start of the job."""
    options = ("--noheader", "--parsable2", "--allocations", "--duplicates", "--format=State")
    answer = output_of("sacct", *options, f"--jobs={job}")
    # `CANCELLED by 1000`
    states = [line.split()[0] for line in (answer or "").splitlines() if line.strip()]
    if restart >= len(states):
        return None
    return states[restart] if states[restart] in ENDED | {"REQUEUED"} else None


def read_pairs(answer: str) -> dict[str, str]:
    """Return the ``Key=Value`` pairs of ``scontrol show --oneliner``."""
    return dict(re.findall(r"(\S+?)=(\S*)", answer))


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
    environment = {**os.environ, "SLURM_TIME_FORMAT": "standard"}  # the user's format may not be ISO 8601
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, env=environment)
    except (OSError, subprocess.SubprocessError):
        return None
