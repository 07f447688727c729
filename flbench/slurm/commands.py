"""SLURM's commands: what they are asked, and how their answers are read."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

#: States in which a job does not, and will not, run.
ENDED = frozenset(
    {
        "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED",
        "REVOKED", "TIMEOUT",
    }
)  # fmt: skip

#: Seconds that a command gets; a busy controller takes its time.
TIMEOUT = 60.0

#: The array's job id, the task, state, nodes, name.
_FORMAT = "%F|%K|%T|%N|%j"


@dataclass(frozen=True)
class Row:
    """One job, or one task of an array, as squeue shows it."""

    job: str
    task: str
    state: str
    nodes: str
    name: str

    @property
    def alive(self) -> bool:
        """Whether it runs or will run."""
        return self.state not in ENDED


def squeue(names: Iterable[str]) -> list[Row] | None:
    """Every job of these names that the controller remembers, ended ones too; None where it does not answer."""
    answer = ask("squeue", "--noheader", "--array", "--states=all", f"--name={','.join(names)}", f"--format={_FORMAT}")
    return None if answer is None else read_rows(answer)


def read_rows(answer: str) -> list[Row]:
    """The rows of squeue's answer."""
    parts = (line.split("|") for line in answer.splitlines())
    return [Row(*row) for row in parts if len(row) == 5]


def state_of(job: str, restart: int) -> str | None:
    """Return the state in which a job's run number ``restart`` ended; None while it runs, and where that is unknown.

    A run that was followed by another is ``REQUEUED`` where accounting does not know better.
    """
    answer = ask("scontrol", "show", "job", "--oneliner", job)
    if answer is not None:
        shown = read_pairs(answer)
        if restart >= int(shown.get("Restarts", "0")):
            state = shown.get("JobState")
            return state if state in ENDED else None
        return state_by_accounting(job, restart) or "REQUEUED"
    return state_by_accounting(job, restart)


def state_by_accounting(job: str, restart: int) -> str | None:
    """The same from accounting alone: it keeps a record of each time that a job ran."""
    options = ("--noheader", "--parsable2", "--allocations", "--duplicates", "--format=State")
    answer = ask("sacct", *options, f"--jobs={job}")
    # `CANCELLED by 1000`
    states = [line.split()[0] for line in (answer or "").splitlines() if line.strip()]
    if restart >= len(states):
        return None
    return states[restart] if states[restart] in ENDED | {"REQUEUED"} else None


def read_pairs(answer: str) -> dict[str, str]:
    """The ``Key=Value`` pairs of ``scontrol show --oneliner``."""
    return dict(re.findall(r"(\S+?)=(\S*)", answer))


def config_value(key: str) -> str | None:
    """One value of the cluster's configuration; None where the controller does not answer."""
    for line in (ask("scontrol", "show", "config") or "").splitlines():
        name, _, value = line.partition("=")
        if name.strip() == key:
            return value.strip()
    return None


def scancel(*arguments: str) -> bool:
    """Cancel, or signal, jobs; say whether SLURM took it."""
    return ask("scancel", *arguments) is not None


def ask(*command: str) -> str | None:
    """A command's answer; None where it fails, hangs, or is not there."""
    done = attempt(command)
    return done.stdout if done is not None and done.returncode == 0 else None


def attempt(command: Sequence[str]) -> subprocess.CompletedProcess[str] | None:
    """A command, run to its end; None where it hangs or is not there."""
    environment = {**os.environ, "SLURM_TIME_FORMAT": "standard"}  # a user's own would show times in another way
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, env=environment)
    except (OSError, subprocess.SubprocessError):
        return None
