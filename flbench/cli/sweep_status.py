"""The status of each plan of a store, and of the runs that belong to none, read from the files of the runs."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flbench.cli.numbers import duration, pace
from flbench.errors import StoreUnusable
from flbench.progress import STATES, Progress, RunSnapshot, Watch
from flbench.run_sources import Reason, StoredRun, notes_of, readable
from flbench.store import CancelMark, Entry, Lease, Store, plan_name, read_plan, read_search
from flbench.sweeps import collection_paused


@dataclass(frozen=True)
class Running:
    """A run that a worker executes; ``heartbeat_age`` is the seconds since the worker's last sign of life."""

    seen: RunSnapshot
    lease: Lease | None
    heartbeat_age: float | None

    @property
    def worker(self) -> str:
        """Where it runs."""
        if self.lease is None:
            return "somewhere"
        job = f" job {self.lease.slurm_job}" if self.lease.slurm_job else ""
        return f"{self.lease.host}:{self.lease.pid}{job}"

    @property
    def age(self) -> str:
        """The time since the worker's last sign of life."""
        return "–" if self.heartbeat_age is None else f"{duration(self.heartbeat_age)} ago"

    def json(self) -> dict[str, Any]:
        """Return the run for ``--json``."""
        lease = self.lease
        return {
            **_seen_json(self.seen),
            "attempt": self.seen.state.attempts,
            "host": lease.host if lease else None,
            "pid": lease.pid if lease else None,
            "slurm_job": lease.slurm_job if lease else None,
            "heartbeat_age": rounded(self.heartbeat_age),
        }


class SweepStatus:
    """One sweep of a store, read again and again."""

    def __init__(self, store: Store, directory: Path) -> None:
        self.directory, self.name = directory, plan_name(directory)
        self.problem = ""
        self._store = store
        self._reads: list[tuple[float, int]] = []
        self._take(Watch(store, (), 0))

    def update(self, workers: int) -> None:
        """Read the plan and its runs; ``workers`` are alive on this sweep."""
        self.problem = ""
        try:
            with collection_paused():
                self._take(self._watch(), workers)
        except StoreUnusable as error:
            self.problem = str(error)
            self._take(Watch(self._store, (), 0), workers)
        self._reads.append((time.monotonic(), self.progress.rounds_done))

    def _watch(self) -> Watch:
        # With no attempts left, a run that failed counts as failed: whether it is retried is up to `flbench sweep`.
        return Watch(self._store, read_plan(self.directory / "plan.jsonl"), 0, read_search(self.directory))

    def _take(self, watch: Watch, workers: int = 0) -> None:
        store = self._store
        self.progress: Progress = watch.update(workers)
        self.running: list[Running] = []
        for seen in self.progress.active:
            lease = store.run(seen.run_id).last_attempt().lease()
            age = None if lease is None else store.liveness.heartbeat_age(lease)
            self.running.append(Running(seen, lease, age))
        self.failures = watch.failures()

    @property
    def rounds_per_second(self) -> float | None:
        """The speed since the first read, else what the live workers reach on average; None without workers."""
        progress = self.progress
        if not (progress.workers or progress.active):
            return None
        (began, first), (now, done) = self._reads[0], self._reads[-1]
        if done > first and now > began:
            return (done - first) / (now - began)
        seconds = progress.seconds_per_round
        return progress.workers / seconds if progress.workers and seconds else None

    @property
    def seconds_left(self) -> float | None:
        """Remaining seconds at that speed; None if that is unknown, or nothing is left."""
        progress, speed = self.progress, self.rounds_per_second
        left = progress.rounds_total - progress.rounds_done - progress.rounds_given_up
        return left / speed if speed and self.goes_on else None

    @property
    def is_open(self) -> bool:
        """Whether runs have not ended."""
        return self.progress.states["running"] + self.progress.states["pending"] > 0

    @property
    def cancelled(self) -> bool:
        """Whether the sweep was cancelled, and not started again since."""
        return self.is_open and CancelMark(self._store.sweeps / self.name).is_set()

    @property
    def goes_on(self) -> bool:
        """Whether more runs will end."""
        return bool(self.progress.active) if self.cancelled else self.is_open

    @property
    def speed(self) -> str:
        """The speed of a sweep that goes on."""
        return pace(self.rounds_per_second) if self.rounds_per_second and self.seconds_left else "–"

    @property
    def left(self) -> str:
        """The remaining time."""
        return duration(self.seconds_left) if self.seconds_left else "–"

    def short_name(self, watched: Iterable[SweepStatus]) -> str:
        """Return the sweep's name, with as many digits of the hash as make it unique."""
        name, _, digits = self.name.partition("/")
        others = [other.name for other in watched if other is not self]
        shortest = next((n for n in (0, 4, 8) if not any(o.startswith(f"{name}/{digits[:n]}") for o in others)), 16)
        return f"{name}/{digits[:shortest]}" if shortest else name

    def title(self, watched: Iterable[SweepStatus]) -> str:
        """Return the short name, and whether it was cancelled."""
        return self.short_name(watched) + (" (cancelled)" if self.cancelled else "")

    def json(self) -> dict[str, Any]:
        """Return the sweep for ``--json``."""
        progress = self.progress
        errors = failures_by_kind(self.failures).items()
        return {
            "sweep": self.directory.parent.name,
            "spec_hash": self.directory.name,
            "directory": str(self.directory),
            "problem": self.problem or None,
            "cancelled": self.cancelled,
            "runs": progress.total,
            "to_come": progress.to_come,
            **progress.states,
            "rounds_done": progress.rounds_done,
            "rounds_total": progress.rounds_total,
            "rounds_per_second": rounded(self.rounds_per_second, 3),
            "seconds_left": rounded(self.seconds_left),
            "active": [running.json() for running in self.running],
            "errors": [{"kind": kind, "runs": len(found), "last": _failure_json(found[0])} for kind, found in errors],
            "failures": list(map(_failure_json, self.failures)),
        }


class SingleRuns(SweepStatus):
    """The runs of ``flbench run``, shown like one sweep; one that has stopped waits until its user starts it again."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, Path("single runs"))

    def _watch(self) -> Watch:
        store, reasons, planned = self._store, Counter[Reason](), self._store.planned_ids()
        single = (run_id for run_id in store.run_ids() if run_id not in planned)
        stored = (StoredRun.read(run_id, store.run(run_id).experiment) for run_id in single)
        entries = list(map(Entry.of, readable(stored, reasons)))
        self.problem = "\n".join(f"left out: {note}" for note in notes_of(reasons))
        return Watch(store, entries, 0)

    @property
    def cancelled(self) -> bool:
        """Never: each run is cancelled by itself."""
        return False

    @property
    def goes_on(self) -> bool:
        """Whether a worker executes one of them."""
        return bool(self.progress.active)

    def json(self) -> dict[str, Any]:
        """Return the single runs for ``--json``."""
        whole = super().json()
        return {name: value for name, value in whole.items() if name not in ("sweep", "spec_hash", "directory")}


def failures_by_kind(failures: Iterable[RunSnapshot]) -> dict[str, list[RunSnapshot]]:
    """Return the failures of each kind, the newest first; the most frequent kind first."""
    kinds = defaultdict(list)
    for failure in sorted(failures, key=lambda failure: failure.failed_at, reverse=True):
        kinds[failure.outcome].append(failure)
    return dict(sorted(kinds.items(), key=lambda item: -len(item[1])))


def shown_states(watched: Sequence[SweepStatus]) -> list[str]:
    """Return the states that tables show: done, and those that some run has."""
    return [state for state in STATES if state == "done" or any(one.progress.states[state] for one in watched)]


def _seen_json(seen: RunSnapshot) -> dict[str, Any]:
    return {
        "run_id": seen.run_id,
        "label": seen.label,
        "state": seen.outcome,
        "round": seen.round,
        "rounds": seen.rounds,
        "acc": seen.value if seen.metric == "acc" else None,
        "metric": seen.metric,
        "value": seen.value,
        "message": seen.state.message,
        "log": str(seen.log) if seen.log else None,
    }


def _failure_json(seen: RunSnapshot) -> dict[str, Any]:
    return {**_seen_json(seen), "time": seen.failed_at or None}


def rounded(number: float | None, digits: int = 1) -> float | None:
    """Round a number; None stays None."""
    return None if number is None else round(number, digits)
