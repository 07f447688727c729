"""Ask SLURM why a job ended whose worker died without recording it."""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from pathlib import Path

from flbench.regular import open_regular
from flbench.slurm.commands import state_of
from flbench.store import RunDir, Store, files, strict_json

#: What SLURM, the system or Python writes into a job's output if its memory does not suffice: it may end as FAILED.
_MEMORY = (b"exceeded memory limit", b"oom-kill", b"oom_kill", b"Cannot allocate memory", b"MemoryError")

#: Bytes at the end of a job's output that are searched for these words.
_TAIL = 1 << 13

#: Seconds between two questions to SLURM about the same run.
RETRY_SECONDS = 5.0

#: A job id, or ARRAY_TASK for an array's task.
_JOB_ID = re.compile(r"[0-9]+(_[0-9]+)?")

#: The ``kind`` and ``message`` of an exit.json, by the job's state. COMPLETED and FAILED do not explain a lost run.
_ENDS = {
    "TIMEOUT": ("timeout", "SLURM ended its job at the wall time"),
    "DEADLINE": ("timeout", "SLURM ended its job at the deadline"),
    "PREEMPTED": ("preempted", "SLURM preempted its job"),
    "REQUEUED": ("preempted", "SLURM requeued its job"),
    "CANCELLED": ("interrupted", "its job was cancelled"),
    "NODE_FAIL": ("node_fail", "the node of its job failed"),
    "BOOT_FAIL": ("node_fail", "the node of its job did not boot"),
    "OUT_OF_MEMORY": ("oom", "its job used more memory than it requested; raise mem in the profile"),
}


def record_end(store: Store, run: RunDir) -> bool:
    """Return whether SLURM knows why a lost run's worker died; if so, record it.

    The record is the exit.json of the worker's folder, where launchers record the deaths that they see.
    """
    attempts = run.attempts()
    lease = attempts[-1].lease() if attempts else None
    # The job id becomes an argument of SLURM's commands, and the store may come from another user.
    if lease is None or not _JOB_ID.fullmatch(str(lease.slurm_job)):
        return False
    state, worker = state_of(str(lease.slurm_job), lease.slurm_restart), store.workers / lease.token
    if state == "FAILED" and shows_lack_of_memory(worker / "log.txt"):
        state = "OUT_OF_MEMORY"
    if state not in _ENDS:
        return False
    kind, message = _ENDS[state]
    # Do not retry if no worker can have more memory. The worker's memory is unknown if it was killed before it wrote
    # environment.json.
    environment = attempts[-1].environment()
    final = kind == "oom" and bool(environment) and environment.get("memory") != "usual"
    record = {"schema": strict_json.SCHEMA, "kind": kind, "message": message, "mendable": final}
    files.make_directory(worker, store.workers)
    files.publish(worker / "exit.json", strict_json.sealed(record))
    return True


def shows_lack_of_memory(log: Path) -> bool:
    """Return whether the end of a job's output says that its memory did not suffice."""
    with suppress(OSError), open_regular(log) as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
        tail = file.read()
        return any(words in tail for words in _MEMORY)
    return False


class SlurmPostMortem:
    """Calls ``record_end`` at most once per run and ``RETRY_SECONDS``, for callers that read states in a loop."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._next: dict[str, float] = {}

    def explain(self, run: RunDir) -> bool:
        """Return whether this call has recorded why the run was lost."""
        if time.monotonic() < self._next.get(run.run_id, 0.0):
            return False
        self._next[run.run_id] = time.monotonic() + RETRY_SECONDS
        return record_end(self._store, run)
