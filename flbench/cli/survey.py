"""How a plan stands, in one pass over its runs' files; large plans are divided among this machine's cores."""

from __future__ import annotations

import dataclasses
import multiprocessing
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from flbench.cli.standings import Cell, Standings
from flbench.launch.local import usable_cores
from flbench.progress import Seen, Watch, share_done
from flbench.run_names import joined_common, label
from flbench.store import Entry, Lease, Store, parse_plan
from flbench.store.plans import read_content
from flbench.sweeps import collection_paused

#: The states a run can be in.
STATES = ("done", "diverged", "running", "pending", "failed", "lost")

#: Bytes of a plan that are looked at in one go, a few thousand runs: they fit into the caches, and into any memory.
PART = 1 << 20


@dataclass(frozen=True)
class Running:
    """A run somebody works on: who, in which attempt, and how many seconds ago that worker last gave a sign of life."""

    seen: Seen
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


@dataclass(frozen=True)
class Failure:
    """A run that failed or was lost, and when that was written down (empty where nobody did)."""

    seen: Seen
    time: str


@dataclass
class Tally:
    """How the runs of a plan, or of a part of it, stand."""

    counts: Counter[str] = field(default_factory=Counter)
    rounds_done: int = 0
    rounds_total: int = 0
    #: Rounds that runs which failed or were lost have not reached.
    rounds_given_up: int = 0
    #: Seconds of training that are written down, and how many rounds they were for.
    seconds: float = 0.0
    seconds_rounds: int = 0
    #: The cells of which a run has ended, by id, and how many runs there are of each cell.
    cells: dict[str, Cell] = field(default_factory=dict)
    planned: Counter[str] = field(default_factory=Counter)
    running: list[Running] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    #: Of the runs that are shown, what their names are made of.
    experiments: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    common: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def runs(self) -> int:
        """How many runs there are."""
        return self.counts.total()

    @property
    def rounds_left(self) -> int:
        """How many rounds are still to be computed."""
        return self.rounds_total - self.rounds_done - self.rounds_given_up

    @property
    def share(self) -> float:
        """The share of the rounds that are done; of the runs, where no run has any round."""
        return share_done(self.rounds_done, self.rounds_total, self.counts["done"] + self.counts["diverged"], self.runs)

    @property
    def seconds_a_round(self) -> float | None:
        """Seconds of one worker's training for a round of one run; None where none is written down."""
        return self.seconds / self.seconds_rounds if self.seconds_rounds and self.seconds else None

    @property
    def open(self) -> int:
        """How many runs are not done, nor failed."""
        return self.counts["running"] + self.counts["pending"]


def survey(store: Store, plan: Path) -> Tally:
    """Look at every run of a plan; raises StoreUnusable where the plan cannot be read."""
    parts = list(_cut(read_content(plan)))
    processes = min(usable_cores(), len(parts))
    if processes <= 1:
        return _joined(_tally_part(store.root, plan, part) for part in parts)
    # Forked, so that nothing is imported again.
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        return _joined(pool.imap(partial(_tally_part, store.root, plan), parts))


def _cut(data: bytes) -> Iterator[tuple[int, int]]:
    """The beginnings and ends of parts of whole lines."""
    begin = 0
    while begin < len(data):
        end = data.find(b"\n", begin + PART) + 1 or len(data)
        yield begin, end
        begin = end


def _tally_part(root: Path, plan: Path, part: tuple[int, int]) -> Tally:
    with plan.open("rb") as file:
        file.seek(part[0])
        data = file.read(part[1] - part[0])
    with collection_paused():
        return _tally(Store(root, create=False), parse_plan(plan, data))


def _tally(store: Store, entries: list[Entry]) -> Tally:
    # No attempt is left to a run that failed: whether there will be another is for `sweep` to say.
    watch = Watch(store, entries, max_attempts=0)
    progress = watch.update()
    tally = Tally(rounds_done=progress.rounds_done, rounds_total=progress.rounds_total, common=watch.common)
    tally.rounds_given_up = progress.rounds_given_up
    tally.counts.update(running=len(progress.active), pending=progress.pending)
    for seen in watch.ended.values():
        tally.counts["failed" if seen.state.status == "failed" else seen.outcome] += 1
        if seen.state.result is not None:
            tally.seconds += seen.state.result.seconds
            tally.seconds_rounds += seen.state.result.rounds
    standings = Standings([entry.cell_id for entry in entries], lambda index: entries[index].experiment)
    standings.update(watch.ended)
    tally.cells, tally.planned = standings.cells, standings.planned
    tally.running = [_running(store, seen) for seen in progress.active]
    tally.failures = [Failure(seen, _time_of(store, seen)) for seen in watch.failures()]
    shown = {seen.run_id for seen in (*progress.active, *watch.failures())}
    tally.experiments = {entry.run_id: entry.experiment for entry in entries if entry.run_id in shown}
    return tally


def _running(store: Store, seen: Seen) -> Running:
    attempt = store.run(seen.run_id).attempts()[-1]
    lease = attempt.lease()
    return Running(seen, attempt.number, lease, None if lease is None else store.liveness.heartbeat_age(lease))


def _time_of(store: Store, seen: Seen) -> str:
    if seen.state.unreadable:
        return ""
    end = store.run(seen.run_id).attempts()[-1].exit() or {}
    return str(end.get("time", ""))


def _joined(parts: Iterable[Tally]) -> Tally:
    """One tally from several, and the names of the runs in it, now that it is known what tells them apart."""
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
            whole.cells.setdefault(cell_id, Cell(cell.problem, metric=cell.metric)).join(cell)
        whole.running += part.running
        whole.failures += part.failures
        whole.experiments |= part.experiments
        commons.append(part.common)
    whole.common = joined_common(commons)
    for cell_id, cell in whole.cells.items():
        cell.planned = whole.planned[cell_id]
    whole.running = [dataclasses.replace(one, seen=_named(whole, one.seen)) for one in whole.running]
    whole.failures = [dataclasses.replace(one, seen=_named(whole, one.seen)) for one in whole.failures]
    return whole


def _named(tally: Tally, seen: Seen) -> Seen:
    return dataclasses.replace(seen, label=label(tally.experiments[seen.run_id], tally.common))
