"""Why a run's worker died without a word, as far as SLURM knows: told apart, so that each is handled in its way."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from flbench.slurm.commands import state_of
from flbench.store import RunDir, Store, files, strict_json

#: What SLURM writes into a job's output when it kills a step for its memory, whatever it calls the job's end.
_MEMORY = ("exceeded memory limit", "oom-kill", "oom_kill")

#: Bytes at the end of a job's output that are searched.
_TAIL = 1 << 13

#: Seconds before a question that nobody could answer is asked again.
PATIENCE = 5.0


@dataclass(frozen=True)
class Verdict:
    """How an attempt ended, in the words of exit.json."""

    kind: str
    message: str


#: By the job's state. A job that failed or completed says nothing about the run that it held: that stays lost.
_VERDICTS = {
    "TIMEOUT": Verdict("timeout", "SLURM ended its job at the walltime"),
    "DEADLINE": Verdict("timeout", "SLURM ended its job at the deadline"),
    "PREEMPTED": Verdict("preempted", "SLURM preempted its job"),
    "REQUEUED": Verdict("preempted", "SLURM requeued its job"),
    "CANCELLED": Verdict("interrupted", "its job was cancelled"),
    "NODE_FAIL": Verdict("node_fail", "the node of its job failed"),
    "BOOT_FAIL": Verdict("node_fail", "the node of its job did not boot"),
    "OUT_OF_MEMORY": Verdict("oom", "its job used more memory than it asked for; raise mem in the profile"),
}


def verdict_on(job: str, restart: int, log: Path) -> Verdict | None:
    """Why the worker in a job died; None where SLURM does not know, or does not answer."""
    state = state_of(job, restart)
    if state == "FAILED" and any(words in _end_of(log) for words in _MEMORY):
        state = "OUT_OF_MEMORY"
    return _VERDICTS.get(state or "")


def _end_of(log: Path) -> str:
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def explain(store: Store, run: RunDir) -> bool:
    """Return whether it is known why a lost run's worker died, where that was in a SLURM job.

    The reason is written to the worker's exit.json, as a launcher does that sees its worker die.
    """
    attempts = run.attempts()
    lease = attempts[-1].lease() if attempts else None
    # It becomes an argument of SLURM's commands; a store may come from somebody else.
    if lease is None or not str(lease.slurm_job).isdecimal() or not isinstance(lease.slurm_restart, int):
        return False
    worker = store.workers / lease.token
    verdict = verdict_on(str(lease.slurm_job), lease.slurm_restart, worker / "log.txt")
    if verdict is None:
        return False
    # Where no worker can have more memory, to try again would be of no use. How much a worker had is unknown where it
    # was killed before it described its environment.
    environment = attempts[-1].environment()
    final = verdict.kind == "oom" and bool(environment) and environment.get("memory") != "usual"
    words = {"schema": strict_json.SCHEMA, "kind": verdict.kind, "message": verdict.message, "mendable": final}
    files.make_directory(worker, store.workers)
    files.publish(worker / "exit.json", strict_json.sealed(words))
    return True


class SlurmPostMortem:
    """Explains lost runs to somebody who looks at them again and again."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._next: dict[str, float] = {}

    def explains(self, run: RunDir) -> bool:
        """Whether it is known now why the run was lost; asks SLURM now and then only."""
        if time.monotonic() < self._next.get(run.run_id, 0.0):
            return False
        self._next[run.run_id] = time.monotonic() + PATIENCE
        return explain(self._store, run)
