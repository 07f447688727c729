"""The progress of a plan: its runs by state, its cells, its speed, and the remaining time.

Every display is made of it: that of ``flbench sweep`` and ``run``, ``flbench status`` with its page, and notebooks.
"""

from __future__ import annotations

import sys
import time
from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from flbench.config import canonical_json, digest, headline_of, problem_of
from flbench.halving import Halving
from flbench.messages import counted
from flbench.metric_specs import METRICS
from flbench.run_names import Common, common_fields, differ_in_seed, label
from flbench.slurm import SlurmPostMortem
from flbench.store import AttemptDir, Entry, Plan, Races, RunRequest, RunState, Store
from flbench.sums import sum_in_order

#: The states of a run, in the order in which they are shown.
STATES = ("done", "diverged", "dropped", "running", "pending", "failed", "lost")

#: Seconds of the past over which the speed is measured. If fewer than ``MIN_STEPS`` reads of the store found new rounds
#: in that window, the last ``MIN_STEPS`` such reads are used instead.
WINDOW = 120.0
MIN_STEPS = 8


@dataclass(frozen=True)
class RunSnapshot:
    """One run as it was last read from the store; ``value`` is its headline metric, named ``metric``.

    Of a plan that is searched, ``rounds`` is the rung to which it is trained now; at that rung it ``waits`` for the
    others of its race, or was ``dropped``. ``failed_at`` is when its failure was recorded; empty if it was not.
    """

    run_id: str
    label: str
    rounds: int
    state: RunState
    round: int = 0
    value: float | None = None
    log: Path | None = None
    metric: str = "acc"
    waits: bool = False
    dropped: bool = False
    failed_at: str = ""

    @property
    def outcome(self) -> str:
        """Return ``done``, ``diverged``, ``dropped``, ``running``, ``pending``, or the kind of its failure."""
        if self.dropped:
            return "dropped"
        if self.state.result is not None:
            return self.state.result.status
        return self.state.kind or self.state.status if self.state.status == "failed" else self.state.status


@dataclass
class Cell:
    """The runs of one cell that have ended.

    It is for people who watch a plan, not for the leaderboard: its mean counts before all of its seeds have finished.

    Attributes:
        first: the index of its first run in the plan.
        problem: what it solves (``problem_of``) and its metric, as canonical JSON.
        metric: the number that is compared.
        planned: how many runs the plan has.
        values: of the runs that neither failed nor diverged, with their ids in ``run_ids``.
    """

    first: int
    problem: str
    metric: str = "acc"
    planned: int = 0
    values: list[float] = field(default_factory=list)
    run_ids: list[str] = field(default_factory=list)
    diverged: int = 0
    failed: int = 0

    @property
    def mean(self) -> float:
        """The mean of its finished runs, of which there must be one."""
        return sum_in_order(self.values) / len(self.values)

    @property
    def rank(self) -> float:
        """A key to sort by: the best cell has the least."""
        return self.mean if METRICS[self.metric].lower_is_better else -self.mean

    @property
    def progress(self) -> str:
        """How many runs the mean is of: ``2/3``, ``2/3, 1 diverged``."""
        bad = {"diverged": self.diverged, "failed": self.failed}
        return ", ".join([f"{len(self.values)}/{self.planned}", *(f"{n} {how}" for how, n in bad.items() if n)])

    def add(self, seen: RunSnapshot) -> None:
        """Count a run that has ended; one that was dropped has too few rounds to be compared."""
        if seen.outcome == "diverged":
            self.diverged += 1
        elif seen.state.status != "done":
            self.failed += 1
        elif seen.value is not None and not seen.dropped:
            self.values.append(seen.value)
            self.run_ids.append(seen.run_id)


@dataclass(frozen=True)
class Progress:
    """The progress of a plan.

    Attributes:
        done: runs that are done, those that diverged among them; the search has dropped none of them.
        failed: runs that were given up, those whose worker was ``lost`` among them.
        news: the runs that ended since the previous update.
        workers: live workers, as counted by the caller of ``Watch.update``.
        out_of_memory: how many of the pending runs ran out of memory.
        dropped: runs that the search has ended at a rung.
        waiting: runs that wait at a rung until the search decides it; no worker can claim them.
        to_come: how many runs a refinement may add at most; they are not counted before.
        rounds_given_up: rounds that the failed runs have not executed.
        runs_per_second: the speed of a plan whose runs have no rounds; None for other plans, or if unknown.
        ended: the runs that have ended, by index in the plan, in the order in which they were found; it only grows.
        stopping: whether the workers were asked to stop at the end of their round.
        seconds_per_round: the time of a round in the runs that have ended; None if it is unknown.
        delayed: why no worker can start for now; empty if one can.
        plan: the runs, in the order of the plan.
        cells: its cells, in the same order; they grow as runs end.
        common: by kind, the fields in which the runs agree, which no name of a run shows.
    """

    total: int
    done: int
    diverged: int
    failed: int
    pending: int
    rounds_done: int
    rounds_total: int
    rounds_per_second: float | None
    active: tuple[RunSnapshot, ...]
    news: tuple[RunSnapshot, ...]
    workers: int = 0
    out_of_memory: int = 0
    rounds_given_up: int = 0
    ended: Mapping[int, RunSnapshot] = field(default_factory=dict)
    stopping: bool = False
    runs_per_second: float | None = None
    dropped: int = 0
    waiting: int = 0
    to_come: int = 0
    seconds_per_round: float | None = None
    delayed: str = ""
    lost: int = 0
    plan: Sequence[Entry] = ()
    cells: Collection[Cell] = ()
    common: Common = field(default_factory=dict)

    @property
    def states(self) -> dict[str, int]:
        """Return the number of runs in each of ``STATES``; those that wait at a rung are pending."""
        ended = self.done - self.diverged, self.diverged, self.dropped
        left = len(self.active), self.pending + self.waiting
        return dict(zip(STATES, (*ended, *left, self.failed - self.lost, self.lost), strict=True))

    @property
    def more(self) -> str:
        """Return how many runs a refinement may add, in words; empty if none."""
        return f"at most {counted(self.to_come, 'more run')}" if self.to_come else ""

    @property
    def share(self) -> float:
        """Return the share of the rounds that are done; if the runs have no rounds, the share of the runs."""
        return self.rounds_done / self.rounds_total if self.rounds_total else self.done / max(1, self.total)

    @property
    def finished(self) -> bool:
        """Return whether every run is done, was dropped or has failed."""
        return self.done + self.failed + self.dropped == self.total

    @property
    def eta(self) -> float | None:
        """Return the remaining seconds at the current speed; None if it is unknown."""
        if self.runs_per_second:
            return (self.total - self.done - self.failed) / self.runs_per_second
        speed = self.rounds_per_second
        return (self.rounds_total - self.rounds_done - self.rounds_given_up) / speed if speed else None

    @property
    def runs_per_hour(self) -> float | None:
        """Return the runs per hour at the current speed, for runs of mean length; None if it is unknown."""
        if self.runs_per_second:
            return 3600 * self.runs_per_second
        speed = self.rounds_per_second
        return 3600 * speed * self.total / self.rounds_total if speed else None


class Watch:
    """Read the states of a plan's runs repeatedly; a run that has ended is not read again."""

    def __init__(
        self, store: Store, entries: Sequence[Entry], max_attempts: int, search: Halving | None = None
    ) -> None:
        self._store, self._given, self._max_attempts, self._search = store, entries, max_attempts, search
        self._post_mortem = SlurmPostMortem(store)
        self._noted: Entry | None = None
        self.reset()

    def _note(self, entry: Entry) -> Entry:
        """Return the next entry of the plan after taking from it what every update needs."""
        cell_id = sys.intern(entry.cell_id)
        if cell_id not in self._cells:
            metric = headline_of(entry.experiment)
            problem = canonical_json({**problem_of(entry.experiment), "metric": metric})
            self._cells[cell_id] = Cell(len(self._ids), sys.intern(problem), metric)
        self._cells[cell_id].planned += 1
        self._ids.append(entry.run_id)
        # The seeds of a cell share one request; a difference of two experiments is found in a tenth of its time.
        if not (self._noted and differ_in_seed(self._noted.experiment, entry.experiment)):
            self._request = entry.request()
        self._noted = entry
        self._requests.append(self._request)
        self._cell_ids.append(cell_id)
        return entry

    def reset(self) -> None:
        """Forget all states, so that the next update reads every run."""
        self._entries, self._races = self._given, None
        if self._search is not None:
            assert isinstance(self._given, Plan)
            self._races = Races(self._store, self._given, self._search, self._max_attempts)
            self._entries = self._races.plan
        self._ids: list[str] = []
        self._noted = None
        self._requests: list[RunRequest] = []
        self._cell_ids: list[str] = []
        self._cells: dict[str, Cell] = {}
        self.common = common_fields(map(self._note, self._entries))  # in one pass: a plan parses a run at each access
        self._open = dict.fromkeys(range(len(self._entries)))
        self._rounds: dict[int, int] = {}
        self._speed: deque[tuple[float, int]] = deque()
        self._first = True
        self.ended: dict[int, RunSnapshot] = {}

    def _decide(self) -> list[int]:
        """Let the results decide what the search trains; return the runs that it has added."""
        if self._races is None:
            return []
        self._races.refresh()
        added = list(range(len(self._ids), len(self._entries)))
        for index in added:
            self._note(self._entries[index])
        self._open |= dict.fromkeys(added)
        return added

    def update(self, workers: int = 0) -> Progress:
        """Read the runs that have not ended yet; return the progress."""
        active, news, pending, waiting, out_of_memory = [], [], 0, 0, 0
        self._decide()
        unread = list(self._open)
        while unread:
            for index in unread:
                seen = self._read(index)
                given_up = seen.state.status in ("failed", "lost") and not seen.state.claimable(self._max_attempts)
                if seen.waits:
                    waiting += 1
                elif seen.state.status == "done" or given_up:
                    del self._open[index]
                    self.ended[index] = seen
                    self._cells[self._cell_ids[index]].add(seen)
                    news += [] if self._first else [seen]
                elif seen.state.status == "running":
                    active.append(seen)
                else:
                    pending += 1
                    out_of_memory += seen.state.kind == "oom"
            unread = [] if self._open else self._decide()  # a plan has ended only if its last results ask for no more
        self._first = False
        rounds_done = sum(self._rounds.values())
        races, requests = self._races, self._requests
        rounds_total = sum(request.rounds for request in requests) if races is None else races.expected_rounds()
        speed = self._measure_speed(rounds_done if rounds_total else len(self.ended))
        failed = self.failures()
        results = [seen.state.result for seen in self.ended.values() if seen.state.result is not None]
        seconds, rounds = sum(result.seconds for result in results), sum(result.rounds for result in results)
        counts = Counter("failed" if seen.state.status == "failed" else seen.outcome for seen in self.ended.values())
        return Progress(
            total=len(self._entries),
            done=counts["done"] + counts["diverged"],
            diverged=counts["diverged"],
            dropped=counts["dropped"],
            failed=len(failed),
            lost=counts["lost"],
            pending=pending,
            waiting=waiting,
            to_come=0 if races is None else races.to_come,
            out_of_memory=out_of_memory,
            rounds_done=rounds_done,
            rounds_total=rounds_total,
            rounds_given_up=sum(seen.rounds - seen.round for seen in failed),
            rounds_per_second=speed if rounds_total else None,
            runs_per_second=None if rounds_total else speed,
            seconds_per_round=seconds / rounds if rounds and seconds else None,
            active=tuple(active),
            news=tuple(news),
            ended=self.ended,
            workers=workers,
            plan=self._entries,
            cells=self._cells.values(),
            common=self.common,
        )

    def failures(self) -> list[RunSnapshot]:
        """Return the runs that were given up, in the order of the plan."""
        return [seen for _, seen in sorted(self.ended.items()) if seen.state.status != "done"]

    def fingerprint(self) -> str:
        """Return a digest of the ended runs' results; a report changes only if it changes."""
        facts = []
        for index, seen in sorted(self.ended.items()):
            result = seen.state.result
            shown: list[Any] = [result.path.name, result.metrics_sha256] if result else [seen.outcome]
            facts.append([self._ids[index], seen.rounds, *shown])
        return digest([len(self._entries), facts])

    def _label(self, index: int) -> str:
        return label(self._entries[index].experiment, self.common)

    def _read(self, index: int) -> RunSnapshot:
        run, request = self._store.run(self._ids[index]), self._requests[index]
        if self._races is not None:
            request = self._entries[index].until(self._races.standing(index).rung).request()
        state = run.state(request)
        if state.status == "lost" and self._post_mortem.explain(run):
            state = run.state(request)
        if state.status == "pending" and not state.attempts:
            return RunSnapshot(run.run_id, "", request.rounds, state)
        metric = self._cells[self._cell_ids[index]].metric
        if state.unreadable:
            return RunSnapshot(run.run_id, self._label(index), request.rounds, state, metric=metric)
        if state.status == "done":
            self._rounds[index] = request.rounds
            # Runs that were done before the first update are not shown one by one and need no label.
            label = "" if self._first else self._label(index)
            result = state.result
            value = result.final.get(metric) if result else None
            kept = RunState("done", attempts=state.attempts, result=result.without_details() if result else None)
            seen = RunSnapshot(run.run_id, label, request.rounds, kept, request.rounds, value, None, metric)
            if self._races is None or seen.outcome == "diverged":
                return seen
            return replace(seen, waits=self._races.may_go_on(index), dropped=self._races.standing(index).dropped)
        attempt = run.last_attempt()
        record = attempt.last_record() or {}
        # The count never decreases: a new attempt has no records until it has copied those of the previous one.
        begins_again = state.status == "pending" and not attempt.may_continue(request.plugins)
        round = 0 if begins_again else max(record.get("round", 0), attempt.shown_round())
        self._rounds[index] = max(self._rounds.get(index, 0), min(round, request.rounds))
        log = attempt.log_path if attempt.log_path.exists() else self._worker_log(attempt)
        reached, value = self._rounds[index], record.get(metric)
        seen = RunSnapshot(run.run_id, self._label(index), request.rounds, state, reached, value, log, metric)
        failed = state.status in ("failed", "lost")
        return replace(seen, failed_at=str((attempt.exit() or {}).get("time", ""))) if failed else seen

    def _worker_log(self, attempt: AttemptDir) -> Path | None:
        try:
            lease = attempt.lease()
        except OSError:
            return None
        log = None if lease is None else self._store.workers / lease.token / "log.txt"
        return log if log and log.exists() else None

    def _measure_speed(self, done: int) -> float | None:
        """Return the rounds (or runs) per second, from the times at which their number has grown, until now."""
        now, steps = time.monotonic(), self._speed
        if not steps or done > steps[-1][1]:
            steps.append((now, done))
        while len(steps) > MIN_STEPS and steps[0][0] < now - WINDOW:
            steps.popleft()
        # The first step includes the start-up of the workers: skip it once there are others.
        began, first = steps[1] if len(steps) > 3 else steps[0]
        return (done - first) / (now - began) if now - began > 1 and done > first else None
