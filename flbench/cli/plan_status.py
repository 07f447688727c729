"""How the plans of a store stand, in one pass over their runs' files; this machine's cores share large plans."""

from __future__ import annotations

import multiprocessing
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from flbench.cli.curves import Curves
from flbench.cli.ranking import Cell, Ranking, names
from flbench.errors import StoreUnusable
from flbench.halving import Halving
from flbench.launch.resources import usable_cores
from flbench.progress import RunSnapshot, Watch, share_done
from flbench.run_names import joined_common, label
from flbench.store import CancelMark, Entry, Lease, Store, parse_plan, plan_name, read_entries, read_search
from flbench.store.plans import read_content
from flbench.sweeps import collection_paused

#: The states a run can be in.
STATES = ("done", "diverged", "dropped", "running", "pending", "failed", "lost")

#: Bytes of a plan that one process reads at a time, a few thousand runs: they fit into the caches, and into any memory.
PART = 1 << 20


@dataclass(frozen=True)
class Running:
    """A run that a worker executes; ``heartbeat_age`` is the seconds since the worker's last sign of life."""

    seen: RunSnapshot
    attempt: int
    lease: Lease | None
    heartbeat_age: float | None

    @property
    def worker(self) -> str:
        """Where it runs."""
        if self.lease is None:
            return "somewhere"
        job = f" job {self.lease.slurm_job}" if self.lease.slurm_job else ""
        return f"{self.lease.host}:{self.lease.pid}{job}"

    def json(self) -> dict[str, Any]:
        """Return the run for ``--json``."""
        lease = self.lease
        return {
            **_seen_json(self.seen),
            "attempt": self.attempt,
            "host": lease.host if lease else None,
            "pid": lease.pid if lease else None,
            "slurm_job": lease.slurm_job if lease else None,
            "heartbeat_age": rounded(self.heartbeat_age),
        }


@dataclass(frozen=True)
class Failure:
    """A run that failed or was lost, and when that was recorded (empty if it was not)."""

    seen: RunSnapshot
    time: str

    def json(self) -> dict[str, Any]:
        """Return the failure for ``--json``."""
        return {**_seen_json(self.seen), "time": self.time or None}


@dataclass
class Tally:
    """How the runs of a plan, or of a part of it, stand.

    Attributes:
        rounds_given_up: rounds that failed and lost runs have not reached.
        seconds: recorded seconds of training, for ``seconds_rounds`` rounds.
        cells: cells of which a run has ended, by id.
        planned: number of runs of each cell.
        experiments: experiments of the running and failed runs, for their names.
        common: by kind, the fields in which the runs agree.
    """

    counts: Counter[str] = field(default_factory=Counter)
    rounds_done: int = 0
    rounds_total: int = 0
    rounds_given_up: int = 0
    seconds: float = 0.0
    seconds_rounds: int = 0
    cells: dict[str, Cell] = field(default_factory=dict)
    planned: Counter[str] = field(default_factory=Counter)
    running: list[Running] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    experiments: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    common: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def share(self) -> float:
        """The share of the rounds that are done; of the runs, if no run has any round."""
        done = self.counts["done"] + self.counts["diverged"] + self.counts["dropped"]
        return share_done(self.rounds_done, self.rounds_total, done, self.counts.total())

    @property
    def seconds_per_round(self) -> float | None:
        """Seconds that one worker trains for a round of one run; None if none are recorded."""
        return self.seconds / self.seconds_rounds if self.seconds_rounds and self.seconds else None

    @property
    def open(self) -> int:
        """Number of runs that have not ended."""
        return self.counts["running"] + self.counts["pending"]


def tally_plan(store: Store, plan: Path) -> Tally:
    """Count the runs of a plan file; raises StoreUnusable if the plan cannot be read."""
    data, search = read_content(plan), read_search(plan.parent)
    parts = list(_cut(data)) if search is None else [(0, len(data))]  # the runs of a race are read together
    processes = min(usable_cores(), len(parts))
    if processes <= 1:
        return _joined(_tally_part(store.root, plan, part, search) for part in parts)
    # Forked, so that nothing is imported again.
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        return _joined(pool.imap(partial(_tally_part, store.root, plan), parts))


def tally_entries(store: Store, entries: Sequence[Entry]) -> Tally:
    """Count runs that are in no plan file."""
    return _joined([_tally(store, entries, None)] if entries else [])


def _cut(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield the beginnings and ends of parts of whole lines."""
    begin = 0
    while begin < len(data):
        end = data.find(b"\n", begin + PART) + 1 or len(data)
        yield begin, end
        begin = end


def _tally_part(root: Path, plan: Path, part: tuple[int, int], search: Halving | None = None) -> Tally:
    with plan.open("rb") as file:
        file.seek(part[0])
        data = file.read(part[1] - part[0])
    with collection_paused():
        return _tally(Store(root, create=False), parse_plan(plan, data), search)


def _tally(store: Store, entries: Sequence[Entry], search: Halving | None) -> Tally:
    # With no attempts left, a run that failed counts as failed: whether it is retried is up to `flbench sweep`.
    watch = Watch(store, entries, 0, search)
    progress = watch.update()
    tally = Tally(rounds_done=progress.rounds_done, rounds_total=progress.rounds_total, common=watch.common)
    tally.rounds_given_up = progress.rounds_given_up
    tally.counts.update(running=len(progress.active), pending=progress.pending + progress.waiting)
    for seen in watch.ended.values():
        tally.counts["failed" if seen.state.status == "failed" else seen.outcome] += 1
        if seen.state.result is not None:
            tally.seconds += seen.state.result.seconds
            tally.seconds_rounds += seen.state.result.rounds
    ranking = Ranking([entry.cell_id for entry in entries], lambda index: entries[index].experiment)
    ranking.update(watch.ended)
    tally.cells, tally.planned = ranking.cells, ranking.planned
    for seen in progress.active:
        attempt = store.run(seen.run_id).attempts()[-1]
        lease = attempt.lease()
        age = None if lease is None else store.liveness.heartbeat_age(lease)
        tally.running.append(Running(seen, attempt.number, lease, age))
    for seen in watch.failures():
        end = None if seen.state.unreadable else store.run(seen.run_id).attempts()[-1].exit()
        tally.failures.append(Failure(seen, str((end or {}).get("time", ""))))
    shown = {seen.run_id for seen in (*progress.active, *watch.failures())}
    tally.experiments = {entry.run_id: entry.experiment for entry in entries if entry.run_id in shown}
    return tally


def _joined(parts: Iterable[Tally]) -> Tally:
    """Merge tallies, and name their runs: the whole plan decides which fields a name needs."""
    whole, commons = Tally(), []
    for part in parts:
        whole.counts += part.counts
        whole.rounds_done += part.rounds_done
        whole.rounds_total += part.rounds_total
        whole.rounds_given_up += part.rounds_given_up
        whole.seconds += part.seconds
        whole.seconds_rounds += part.seconds_rounds
        whole.planned += part.planned
        for cell_id, cell in part.cells.items():
            whole.cells.setdefault(cell_id, Cell(cell.problem, metric=cell.metric)).merge(cell)
        whole.running += part.running
        whole.failures += part.failures
        whole.experiments |= part.experiments
        commons.append(part.common)
    whole.common = joined_common(commons)
    for cell_id, cell in whole.cells.items():
        cell.planned = whole.planned[cell_id]
    whole.running = [replace(one, seen=_named(whole, one.seen)) for one in whole.running]
    whole.failures = [replace(one, seen=_named(whole, one.seen)) for one in whole.failures]
    return whole


def _named(tally: Tally, seen: RunSnapshot) -> RunSnapshot:
    return replace(seen, label=label(tally.experiments[seen.run_id], tally.common))


class SweepStatus:
    """One sweep of a store, read again and again."""

    def __init__(self, store: Store, directory: Path) -> None:
        self.directory, self.name = directory, plan_name(directory)
        self.problem = ""
        self.tally = Tally()
        self.curves = Curves(store)
        self._store = store
        self._reads: list[tuple[float, int]] = []
        self._workers = 0
        self._names: dict[str, tuple[str, str]] = {}

    def update(self, workers: int) -> None:
        """Bring the status up to date; ``workers`` are alive on this sweep."""
        self.tally = Tally()
        try:
            self.tally = self._read()
        except StoreUnusable as error:
            self.problem = str(error)
        self._reads.append((time.monotonic(), self.tally.rounds_done))
        self._workers = workers

    def _read(self) -> Tally:
        return tally_plan(self._store, self.directory / "plan.jsonl")

    @property
    def rounds_per_second(self) -> float | None:
        """The speed since the first read, else what the live workers reach on average; None without workers."""
        if not (self._workers or self.tally.counts["running"]):
            return None
        (began, first), (now, done) = self._reads[0], self._reads[-1]
        if done > first and now > began:
            return (done - first) / (now - began)
        seconds = self.tally.seconds_per_round
        return self._workers / seconds if self._workers and seconds else None

    @property
    def seconds_left(self) -> float | None:
        """Remaining seconds at that speed; None if that is unknown, or nothing is left."""
        tally, speed = self.tally, self.rounds_per_second
        left = tally.rounds_total - tally.rounds_done - tally.rounds_given_up
        return left / speed if speed and self.goes_on else None

    @property
    def cancelled(self) -> bool:
        """Whether the sweep was cancelled, and not started again since."""
        return self.tally.open > 0 and CancelMark(self._store.sweeps / self.name).is_set()

    @property
    def goes_on(self) -> bool:
        """Whether more runs will end."""
        return self.tally.counts["running"] > 0 if self.cancelled else self.tally.open > 0

    def names_of(self, run_id: str) -> tuple[str, str]:
        """Return the names of the problem and of the contender of a run of this sweep."""
        if run_id not in self._names:
            (entry,) = read_entries(self.directory / "plan.jsonl", run_id)
            self._names[run_id] = names(entry.experiment, self.tally.common)
        return self._names[run_id]

    def json(self) -> dict[str, Any]:
        """Return the sweep for ``--json``."""
        tally = self.tally
        errors = failures_by_kind(tally.failures).items()
        return {
            "sweep": self.directory.parent.name,
            "spec_hash": self.directory.name,
            "directory": str(self.directory),
            "problem": self.problem or None,
            "cancelled": self.cancelled,
            "runs": tally.counts.total(),
            **{state: tally.counts[state] for state in STATES},
            "rounds_done": tally.rounds_done,
            "rounds_total": tally.rounds_total,
            "rounds_per_second": rounded(self.rounds_per_second, 3),
            "seconds_left": rounded(self.seconds_left),
            "active": [running.json() for running in tally.running],
            "errors": [{"kind": kind, "runs": len(found), "last": found[0].json()} for kind, found in errors],
            "failures": [failure.json() for failure in tally.failures],
        }


def failures_by_kind(failures: Iterable[Failure]) -> dict[str, list[Failure]]:
    """Return the failures of each kind, the newest first; the most frequent kind first."""
    kinds = defaultdict(list)
    for failure in sorted(failures, key=lambda failure: failure.time, reverse=True):
        kinds[failure.seen.outcome].append(failure)
    return dict(sorted(kinds.items(), key=lambda item: -len(item[1])))


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


def rounded(number: float | None, digits: int = 1) -> float | None:
    """Round a number; None stays None."""
    return None if number is None else round(number, digits)
