"""The progress of a plan: its runs by state, its speed, and the remaining time."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from flbench.config import digest, headline_of
from flbench.halving import Halving
from flbench.run_names import common_fields, label
from flbench.slurm import SlurmPostMortem
from flbench.store import AttemptDir, Entry, Races, RunState, Store

#: Seconds of the past over which the speed is measured. If fewer than ``MIN_STEPS`` reads of the store found new rounds
#: in that window, the last ``MIN_STEPS`` such reads are used instead.
WINDOW = 120.0
MIN_STEPS = 8


@dataclass(frozen=True)
class RunSnapshot:
    """One run as it was last read from the store; ``value`` is its headline metric, named ``metric``.

    Of a plan that is searched, ``rounds`` is the rung to which it is trained now; at that rung it ``waits`` for the
    others of its race, or was ``dropped``.
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

    @property
    def outcome(self) -> str:
        """Return ``done``, ``diverged``, ``dropped``, ``running``, ``pending``, or the kind of its failure."""
        if self.dropped:
            return "dropped"
        if self.state.result is not None:
            return self.state.result.status
        return self.state.kind or self.state.status if self.state.status == "failed" else self.state.status


@dataclass(frozen=True)
class Progress:
    """The progress of a plan.

    Attributes:
        news: the runs that ended since the previous update.
        workers: live workers, as counted by the caller of ``Watch.update``.
        out_of_memory: how many of the pending runs ran out of memory.
        dropped: runs that the search has ended at a rung.
        waiting: runs that wait at a rung until the search decides it; no worker can claim them.
        rounds_given_up: rounds that the failed runs have not executed.
        runs_per_second: the speed of a plan whose runs have no rounds; None for other plans, or if unknown.
        ended: the runs that have ended, by index in the plan, in the order in which they were found; it only grows.
        stopping: whether the workers were asked to stop at the end of their round.
        seconds_per_round: the time of a round in the finished runs; None if none is finished, or they have no rounds.
        delayed: why no worker can start for now; empty if one can.
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
    seconds_per_round: float | None = None
    delayed: str = ""

    @property
    def share(self) -> float:
        """Return the share of the rounds that are done; if the runs have no rounds, the share of the runs."""
        return share_done(self.rounds_done, self.rounds_total, self.done, self.total)

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
        self._store, self._entries, self._max_attempts, self._search = store, entries, max_attempts, search
        self._post_mortem = SlurmPostMortem(store)
        self._ids, self._requests = [], []
        for entry in entries:
            self._ids.append(entry.run_id)
            self._requests.append(entry.request())
        self.reset()

    def reset(self) -> None:
        """Forget all states, so that the next update reads every run."""
        search = self._search
        self._races = None if search is None else Races(self._store, self._entries, search, self._max_attempts)
        self._open = dict.fromkeys(range(len(self._entries)))
        self._rounds: dict[int, int] = {}
        self._speed: deque[tuple[float, int]] = deque()
        self._first = True
        self.ended: dict[int, RunSnapshot] = {}

    def update(self, workers: int = 0) -> Progress:
        """Read the runs that have not ended yet; return the progress."""
        active, news, pending, waiting, out_of_memory = [], [], 0, 0, 0
        if self._races is not None:
            self._races.refresh()
        for index in list(self._open):
            seen = self._read(index)
            given_up = seen.state.status in ("failed", "lost") and not seen.state.claimable(self._max_attempts)
            if seen.waits:
                waiting += 1
            elif seen.state.status == "done" or given_up:
                del self._open[index]
                self.ended[index] = seen
                news += [] if self._first else [seen]
            elif seen.state.status == "running":
                active.append(seen)
            else:
                pending += 1
                out_of_memory += seen.state.kind == "oom"
        self._first = False
        rounds_done = sum(self._rounds.values())
        rounds_total = (
            sum(request.rounds for request in self._requests) if self._races is None else self._races.expected_rounds()
        )
        speed = self._measure_speed(rounds_done if rounds_total else len(self.ended))
        dropped = sum(seen.dropped for seen in self.ended.values())
        done = [seen for seen in self.ended.values() if seen.state.status == "done" and not seen.dropped]
        failed = [seen for seen in self.ended.values() if seen.state.status != "done"]
        return Progress(
            total=len(self._entries),
            done=len(done),
            diverged=sum(seen.outcome == "diverged" for seen in done),
            failed=len(failed),
            pending=pending,
            rounds_done=rounds_done,
            rounds_total=rounds_total,
            rounds_per_second=speed if rounds_total else None,
            runs_per_second=None if rounds_total else speed,
            active=tuple(active),
            news=tuple(news),
            workers=workers,
            out_of_memory=out_of_memory,
            rounds_given_up=sum(seen.rounds - seen.round for seen in failed),
            ended=self.ended,
            dropped=dropped,
            waiting=waiting,
            seconds_per_round=_seconds_per_round(done),
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

    @cached_property
    def common(self) -> Mapping[str, Mapping[str, Any]]:
        """By kind, the fields that all runs of the kind share."""
        return common_fields(self._entries)

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
        metric = headline_of(self._entries[index].experiment)
        if state.unreadable:
            return RunSnapshot(run.run_id, self._label(index), request.rounds, state, metric=metric)
        if state.status == "done":
            self._rounds[index] = request.rounds
            # Runs that were done before the first update are not shown one by one and need no label.
            label = "" if self._first else self._label(index)
            result = state.result
            value = result.final.get(metric) if result else None
            kept = replace(state, result=replace(result, final={}, numerics={}, environment={}) if result else None)
            seen = RunSnapshot(run.run_id, label, request.rounds, kept, request.rounds, value, None, metric)
            return self._in_race(index, seen)
        attempt = run.attempts()[-1]
        record = attempt.last_record() or {}
        # The count never decreases: a new attempt has no records until it has copied those of the previous one.
        begins_again = state.status == "pending" and not attempt.may_continue(request.plugins)
        round = 0 if begins_again else max(record.get("round", 0), attempt.shown_round())
        self._rounds[index] = max(self._rounds.get(index, 0), min(round, request.rounds))
        log = attempt.log_path if attempt.log_path.exists() else self._worker_log(attempt)
        reached, value = self._rounds[index], record.get(metric)
        return RunSnapshot(run.run_id, self._label(index), request.rounds, state, reached, value, log, metric)

    def _in_race(self, index: int, seen: RunSnapshot) -> RunSnapshot:
        """Return a run that has reached its rung with what the search has decided about it."""
        if self._races is None or seen.outcome == "diverged":
            return seen
        return replace(seen, waits=self._races.may_go_on(index), dropped=self._races.standing(index).dropped)

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


def _seconds_per_round(done: Sequence[RunSnapshot]) -> float | None:
    results = [seen.state.result for seen in done if seen.state.result is not None]
    rounds = sum(result.rounds for result in results)
    return sum(result.seconds for result in results) / rounds if rounds else None


def share_done(rounds_done: int, rounds_total: int, runs_done: int, runs_total: int) -> float:
    """Return the share of a plan that is done: of its rounds, or of its runs if they have no rounds."""
    return rounds_done / rounds_total if rounds_total else runs_done / max(1, runs_total)
