"""How a plan stands: its runs by state, its speed, and the time that is left."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from flbench.config import digest, headline_of
from flbench.run_names import common_fields, label
from flbench.slurm import SlurmPostMortem
from flbench.store import Entry, Lease, RunDir, RunRequest, RunState, Store

#: Seconds of the past from which speed and remaining time are judged; where rounds are so long that hardly any has
#: ended in that time, the last few times that some had.
WINDOW = 120.0
FEWEST_STEPS = 8


@dataclass(frozen=True)
class Seen:
    """One run as it was seen last; ``value`` is its headline number, recorded as ``metric``."""

    run_id: str
    label: str
    rounds: int
    state: RunState
    round: int = 0
    value: float | None = None
    log: Path | None = None
    metric: str = "acc"

    @property
    def outcome(self) -> str:
        """``done``, ``diverged``, ``running``, ``pending``, or why it failed."""
        if self.state.result is not None:
            return self.state.result.status
        return self.state.kind or self.state.status if self.state.status == "failed" else self.state.status


@dataclass(frozen=True)
class Progress:
    """How a plan stands.

    Attributes:
        news: the runs that came to their end since the last look.
        out_of_memory: how many of the pending runs ran out of memory.
        rounds_given_up: what the runs that failed have not reached.
        runs_per_second: where no run has any round; None elsewhere, or unknown.
        ended: every run at its end, by its place in the plan, in the order in which they were seen; it only grows.
        stopping: the workers have been asked to end after their round.
    """

    total: int
    done: int
    diverged: int
    failed: int
    pending: int
    rounds_done: int
    rounds_total: int
    rounds_per_second: float | None
    active: tuple[Seen, ...]
    news: tuple[Seen, ...]
    workers: int = 0
    out_of_memory: int = 0
    rounds_given_up: int = 0
    ended: Mapping[int, Seen] = field(default_factory=dict)
    stopping: bool = False
    runs_per_second: float | None = None

    @property
    def share(self) -> float:
        """The share of the rounds that are done; of the runs, where no run has any round."""
        return share_done(self.rounds_done, self.rounds_total, self.done, self.total)

    @property
    def finished(self) -> bool:
        """Whether nothing is left to do or to wait for."""
        return self.done + self.failed == self.total

    @property
    def eta(self) -> float | None:
        """Seconds left at the present speed; None where that is unknown."""
        if self.runs_per_second:
            return (self.total - self.done - self.failed) / self.runs_per_second
        speed = self.rounds_per_second
        return (self.rounds_total - self.rounds_done - self.rounds_given_up) / speed if speed else None

    @property
    def runs_per_hour(self) -> float | None:
        """Runs of this plan's mean length in an hour at the present speed; None where that is unknown."""
        if self.runs_per_second:
            return 3600 * self.runs_per_second
        speed = self.rounds_per_second
        return 3600 * speed * self.total / self.rounds_total if speed else None


class Watch:
    """Looks at the runs of a plan, again and again; those at their end are not looked at twice."""

    def __init__(self, store: Store, entries: Sequence[Entry], max_attempts: int) -> None:
        self._store, self._entries, self._max_attempts = store, entries, max_attempts
        self._post_mortem = SlurmPostMortem(store)
        self._ids, self._requests = [], []
        for entry in entries:
            self._ids.append(entry.run_id)
            self._requests.append(entry.request())
        self.reset()

    def reset(self) -> None:
        """Forget all that was seen."""
        self._open = dict.fromkeys(range(len(self._entries)))
        self._rounds: dict[int, int] = {}
        self._speed: deque[tuple[float, int]] = deque()
        self._first = True
        self.ended: dict[int, Seen] = {}

    def update(self, workers: int = 0) -> Progress:
        """Bring everything up to date."""
        active, news, pending, out_of_memory = [], [], 0, 0
        for index in list(self._open):
            seen = self._see(index)
            if self._is_at_its_end(seen.state):
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
        rounds_total = sum(request.rounds for request in self._requests)
        speed = self._measure(rounds_done if rounds_total else len(self.ended))
        done = [seen for seen in self.ended.values() if seen.state.status == "done"]
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
        )

    def failures(self) -> list[Seen]:
        """The runs that were given up."""
        return [seen for _, seen in sorted(self.ended.items()) if seen.state.status != "done"]

    def run_ids(self) -> list[str]:
        """The ids of all runs of the plan."""
        return self._ids

    def fingerprint(self) -> str:
        """Names what a report on the runs at their end would show."""
        facts = []
        for index, seen in sorted(self.ended.items()):
            result = seen.state.result
            shown: list[Any] = [result.path.name, result.metrics_sha256] if result else [seen.outcome]
            facts.append([self._ids[index], self._requests[index].rounds, *shown])
        return digest([len(self._entries), facts])

    @cached_property
    def common(self) -> Mapping[str, Mapping[str, Any]]:
        """By kind, the fields in which its runs agree."""
        return common_fields(self._entries)

    def _label(self, index: int) -> str:
        return label(self._entries[index].experiment, self.common)

    def _metric(self, index: int) -> str:
        return headline_of(self._entries[index].experiment)

    def _is_at_its_end(self, state: RunState) -> bool:
        return state.status == "done" or (
            state.status in ("failed", "lost") and not state.claimable(self._max_attempts)
        )

    def _see(self, index: int) -> Seen:
        run, request = self._store.run(self._ids[index]), self._requests[index]
        state = run.state(request)
        if state.status == "lost" and self._post_mortem.explains(run):
            state = run.state(request)
        if state.unreadable:
            return Seen(run.run_id, self._label(index), request.rounds, state, metric=self._metric(index))
        if state.status == "pending" and not state.attempts:
            return Seen(run.run_id, "", request.rounds, state)
        if state.status == "done":
            self._rounds[index] = request.rounds
            # Names are for people; a sweep that is complete at the first look needs none.
            label = "" if self._first else self._label(index)
            result = state.result
            metric = self._metric(index)
            value = result.final.get(metric) if result else None
            kept = replace(state, result=result.without_numbers() if result else None)
            return Seen(run.run_id, label, request.rounds, kept, request.rounds, value, None, metric)
        return self._see_attempt(index, run, request, state)

    def _see_attempt(self, index: int, run: RunDir, request: RunRequest, state: RunState) -> Seen:
        attempt = run.attempts()[-1]
        record = attempt.last_record() or {}
        # A new attempt has no records until it has taken over those of the one before.
        self._rounds[index] = max(self._rounds.get(index, 0), min(record.get("round", 0), request.rounds))
        log = attempt.log_path if attempt.log_path.exists() else self._worker_log(attempt.path)
        metric, label = self._metric(index), self._label(index)
        return Seen(run.run_id, label, request.rounds, state, self._rounds[index], record.get(metric), log, metric)

    def _worker_log(self, attempt: Path) -> Path | None:
        try:
            lease = Lease.read(attempt / "lease.json")
        except OSError:
            return None
        log = None if lease is None else self._store.workers / lease.token / "log.txt"
        return log if log and log.exists() else None

    def _measure(self, done: int) -> float | None:
        """Rounds (or runs) in a second, from the moments at which some had ended; each step counts until now."""
        now, steps = time.monotonic(), self._speed
        if not steps or done > steps[-1][1]:
            steps.append((now, done))
        while len(steps) > FEWEST_STEPS and steps[0][0] < now - WINDOW:
            steps.popleft()
        # The first step includes the time in which workers begin: it counts for want of others only.
        began, first = steps[1] if len(steps) > 3 else steps[0]
        return (done - first) / (now - began) if now - began > 1 and done > first else None


def share_done(rounds_done: int, rounds_total: int, runs_done: int, runs_total: int) -> float:
    """How far a plan is: in rounds, or in runs where they have none."""
    return rounds_done / rounds_total if rounds_total else runs_done / max(1, runs_total)
