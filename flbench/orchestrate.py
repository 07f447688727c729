"""Plan -> launch -> watch -> adopt: what ``flbench sweep`` does.

The orchestrator holds nothing that would be lost with it: workers claim runs from the store by themselves, and this
process only sees to it that there are workers while there is something to claim. Killed and started again, it finds the
workers of its predecessor by their leases, and carries on.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, reduce
from importlib.metadata import version
from io import StringIO
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from flbench.config import WISHES, Experiment, canonical_json, digest, fields_of_all_kinds, headline_of, registry_of
from flbench.errors import StoreUnusable
from flbench.launch import Launcher, WorkersCrash
from flbench.messages import format_scalar
from flbench.slurm import Inquest
from flbench.store import Entry, Lease, LiveWorker, Plan, RunDir, RunState, Store, Wish, encode_plan, files, strict_json
from flbench.store.attempts import ending
from flbench.store.leases import HANGING
from flbench.store.plans import refuse_newer

if TYPE_CHECKING:
    from flbench.sweeps import Sweep

#: Seconds between two looks at the store, at least.
PERIOD = 0.25

#: Seconds of the past from which speed and remaining time are judged; where rounds are so long that hardly any has
#: ended in that time, the last few times that some had.
WINDOW = 120.0
FEWEST_STEPS = 8

#: What stands before a value in a run's short name, where it is not the field's name.
_SHORT = {"kind": "", "normalized": "", "activation": "", "seed": "s", "local_steps": "E="}

#: By kind, the fields in which the runs of a plan agree; ``kind`` is among them where there is only one.
Common = Mapping[str, Container[str]]


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
        starved: how many of the pending runs ran out of memory.
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
    starved: int = 0
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
        self._inquest = Inquest(store)
        self._ids, self._wishes = [], []
        for entry in entries:
            self._ids.append(entry.run_id)
            self._wishes.append(entry.wish())
        self.start_over()

    def start_over(self) -> None:
        """Forget all that was seen."""
        self._open = dict.fromkeys(range(len(self._entries)))
        self._rounds: dict[int, int] = {}
        self._speed: deque[tuple[float, int]] = deque()
        self._first = True
        self.ended: dict[int, Seen] = {}

    def look(self, workers: int = 0) -> Progress:
        """Bring everything up to date."""
        active, news, pending, starved = [], [], 0, 0
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
                starved += seen.state.kind == "oom"
        self._first = False
        rounds_done = sum(self._rounds.values())
        rounds_total = sum(wish.rounds for wish in self._wishes)
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
            starved=starved,
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
            facts.append([self._ids[index], self._wishes[index].rounds, *shown])
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
        run, wish = self._store.run(self._ids[index]), self._wishes[index]
        state = run.state(wish)
        if state.status == "lost" and self._inquest.finds_out(run):
            state = run.state(wish)
        if state.unreadable:
            return Seen(run.run_id, self._label(index), wish.rounds, state, metric=self._metric(index))
        if state.status == "pending" and not state.attempts:
            return Seen(run.run_id, "", wish.rounds, state)
        if state.status == "done":
            self._rounds[index] = wish.rounds
            # Names are for people; a sweep that is complete at the first look needs none.
            label = "" if self._first else self._label(index)
            result = state.result
            metric = self._metric(index)
            value = result.final.get(metric) if result else None
            kept = replace(state, result=result.without_numbers() if result else None)
            return Seen(run.run_id, label, wish.rounds, kept, wish.rounds, value, None, metric)
        return self._see_attempt(index, run, wish, state)

    def _see_attempt(self, index: int, run: RunDir, wish: Wish, state: RunState) -> Seen:
        attempt = run.attempts()[-1]
        record = attempt.last_record() or {}
        # A new attempt has no records until it has taken over those of the one before.
        self._rounds[index] = max(self._rounds.get(index, 0), min(record.get("round", 0), wish.rounds))
        log = attempt.log_path if attempt.log_path.exists() else self._worker_log(attempt.path)
        metric, label = self._metric(index), self._label(index)
        return Seen(run.run_id, label, wish.rounds, state, self._rounds[index], record.get(metric), log, metric)

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


@dataclass
class Outcome:
    """How an orchestration ended."""

    progress: Progress
    launched: int = 0
    adopted: int = 0
    interrupted: bool = False
    failures: list[Seen] = field(default_factory=list)
    fingerprint: str = ""

    @property
    def exit_code(self) -> Literal[0, 1, 3, 130]:
        """0 all done, 1 some failed, 3 something is left to do, 130 interrupted."""
        if self.interrupted:
            return 130
        if not self.progress.finished:
            return 3
        return 1 if self.progress.failed else 0


class Orchestrator:
    """Sees a plan through to its end, with the workers of one launcher and whoever else works on it."""

    def __init__(
        self,
        store: Store,
        plan: str,
        experiments: Sequence[Experiment],
        launcher: Callable[[], Launcher],
        *,
        max_attempts: int = 3,
        show: Callable[[Progress], None] = lambda progress: None,
    ) -> None:
        self._store, self._plan, self._max_attempts, self._show = store, plan, max_attempts, show
        self._make_launcher = launcher
        self._watch = Watch(store, Plan.of(experiments), max_attempts)
        self._launched, self._cost = 0, 0.0
        self._adopted: dict[str, LiveWorker] = {}
        self._barren, self._signature = 0, (-1, -1, -1)

    def run(self, *, detach: bool = False) -> Outcome:
        """Start what is missing, adopt what runs, and watch until the end (``detach``: only start).

        Raises:
            WorkersCrash: workers end as soon as they begin.
            StoreUnusable: the disk is full, or cannot be read or written.
        """
        with self._store.usable():
            return self._run(detach)

    def failures(self) -> list[Seen]:
        """The runs that were given up, as far as is known: also where ``run`` has raised."""
        return self._watch.failures()

    def _run(self, detach: bool) -> Outcome:
        self._store.mark(self._plan).take_away()
        progress = self._watch.look()
        if progress.failed and self._forgive():
            self._watch.start_over()
            progress = self._watch.look()
        if progress.finished:
            return self._outcome(progress)
        launcher = None
        with Interrupts() as interrupts:
            try:
                launcher = self._make_launcher()
                while not progress.finished:
                    self._show(progress)
                    if self._store.mark(self._plan).is_put():
                        self._drain(launcher, interrupts)
                        return self._outcome(self._watch.look())
                    self._see_to_workers(launcher, progress)
                    if detach:
                        return self._outcome(progress)
                    progress = self._wait_and_look(launcher)
                self._show(progress)
                self._settle(launcher)
            except KeyboardInterrupt:
                return self._interrupted(launcher, interrupts)
        return self._outcome(progress)

    def _see_to_workers(self, launcher: Launcher, progress: Progress) -> None:
        """Start workers for what nobody has claimed, as far as there is room on this machine."""
        self._end_hanging()
        here = self._adopt(launcher)
        alive = launcher.alive()
        # A worker that ended after the count may have ended its run as well: what looked pending need not be.
        on_plan = max(progress.workers, alive + len(self._living_adopted()))
        room = launcher.slots - alive - len(here)
        if not on_plan:
            room = max(room, 1)  # workers of another plan shall not keep this one waiting for ever
        idle = max(0, on_plan - len(progress.active))
        missing = min(room, progress.pending - idle)
        if missing > 0 and self._has_room(on_plan):
            self._guard(launcher, progress, missing)
            launcher.start(missing, min(missing, progress.starved))
            self._launched += missing

    def _end_hanging(self) -> None:
        """Kill workers of this plan that are processes here and give no sign of life: what they hold is freed."""
        for worker in self._store.hanging_workers():
            if worker.plan == self._plan:
                message = f"its worker gave no sign of life for {HANGING:.0f} s and was killed"
                self._store.bury(worker.lease.token, ending("signal", message))
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(worker.lease.pid, signal.SIGKILL)

    def _has_room(self, on_plan: int) -> bool:
        """Whether the disk lets further workers begin; raises StoreUnusable where it does not and nobody is left."""
        try:
            if any(seen.outcome == "disk_full" for seen in self._watch.failures()):
                raise StoreUnusable(
                    f"the disk is full where the store {self._store.root} lies; `flbench gc` prunes checkpoints. "
                    "Then call the same command again: it goes on with what had to end"
                )
            self._store.check_room()
        except StoreUnusable:
            if on_plan:  # they may still come to their end, and are not kept from it
                return False
            raise
        return True

    def _adopt(self, launcher: Launcher) -> list[LiveWorker]:
        """Workers on this machine that somebody else started; those on this plan are adopted."""
        own = launcher.tokens()
        others = (worker for worker in self._store.live_workers() if worker.lease.token not in own)
        here = [worker for worker in others if worker.lease.is_local()]
        self._adopted.update((worker.lease.token, worker) for worker in here if worker.plan == self._plan)
        return here

    def _guard(self, launcher: Launcher, progress: Progress, starting: int) -> None:
        """Stop where workers are started over and over and nothing comes of it."""
        signature = (progress.done, progress.failed, progress.rounds_done)
        self._barren = starting if signature != self._signature else self._barren + starting
        self._signature = signature
        if self._barren > launcher.slots * self._max_attempts + 2:
            raise WorkersCrash(f"workers end as soon as they begin; {launcher.last_words() or 'they left no log'}")

    def _wait_and_look(self, launcher: Launcher) -> Progress:
        time.sleep(max(PERIOD, 10 * self._cost))
        # Workers are counted before runs: one that ended meanwhile has left its mark on a run.
        workers = launcher.alive() + len(self._living_adopted())
        began = time.monotonic()
        progress = self._watch.look(workers)
        self._cost = time.monotonic() - began
        return progress

    def _living_adopted(self) -> list[LiveWorker]:
        alive = self._store.judge.alive
        paths = ((worker, self._store.workers / token / "lease.json") for token, worker in self._adopted.items())
        return [worker for worker, path in paths if path.exists() and alive(worker.lease, path)]

    def _settle(self, launcher: Launcher) -> None:
        """Give workers that find nothing left the moment they need to go."""
        deadline = time.monotonic() + 5
        while launcher.alive() and time.monotonic() < deadline:
            time.sleep(0.02)

    def _interrupted(self, launcher: Launcher | None, interrupts: Interrupts) -> Outcome:
        """Let every worker of this plan finish its round; a second Ctrl-C does not wait."""
        if launcher is not None:
            self._drain(launcher, interrupts)
        outcome = self._outcome(self._watch.look())
        outcome.interrupted = not outcome.progress.finished
        return outcome

    def _drain(self, launcher: Launcher, interrupts: Interrupts) -> None:
        """Ask the workers of this plan to stop, and wait for them unless the user interrupts a second time."""
        launcher.drain()
        self._adopt(launcher)
        for worker in self._living_adopted():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(worker.lease.pid, signal.SIGTERM)
        while launcher.alive() or self._living_adopted():
            if interrupts.count > 1:
                launcher.kill()
                return
            progress = self._watch.look(launcher.alive() + len(self._living_adopted()))
            self._show(replace(progress, stopping=True))
            time.sleep(PERIOD)

    def _forgive(self) -> bool:
        """Try again what failed for a reason that the user has had the occasion to mend."""
        failures = self._watch.failures()
        mendable = [seen for seen in failures if seen.state.mendable and not seen.state.unreadable]
        for seen in mendable:
            self._store.run(seen.run_id).forgive()
        return bool(mendable)

    def _outcome(self, progress: Progress) -> Outcome:
        return Outcome(
            progress=progress,
            launched=self._launched,
            adopted=len(self._adopted),
            failures=self._watch.failures(),
            fingerprint=self._watch.fingerprint(),
        )


def write_plan(store: Store, sweep: Sweep) -> Path:
    """Put a sweep's spec and plan into the store; what is there already and equal stays untouched."""
    directory = store.sweep_dir(sweep.name, sweep.spec_hash)
    spec = "".join(f"# {option}\n" for option in sweep.options) + sweep.source
    with store.usable():
        files.make_directory(directory, store.root)
        for name, content in (("spec.yaml", spec.encode()), ("plan.jsonl", encode_plan(sweep.experiments))):
            path = directory / name
            there = files.read_bytes(path)
            if there != content:
                refuse_newer(path, there or b"")
                files.replace(path, content)
    return directory


def leaderboard(store: Store, sweep: Sweep, directory: Path, fingerprint: str, width: int) -> tuple[Path, str]:
    """The leaderboard beside the plan, and its tables as text ``width`` columns wide.

    Both are made anew only where what they show has changed: a finished sweep is told in no time.
    """
    path, cache = directory / "leaderboard.md", directory / "leaderboard.cache.json"
    key = digest([fingerprint, version("flbench"), sweep.spec.report.model_dump(mode="json"), width])
    kept = strict_json.read_json(cache)
    if kept is not None and kept.get("key") == key and path.exists():
        return path, str(kept["text"])
    from rich.console import Console

    from flbench.report import write_leaderboard

    board = write_leaderboard(store, [sweep], path)
    drawn = StringIO()
    console = Console(width=width, file=drawn, color_system=None)
    for table in board.tables(width):
        console.print(table)
    files.replace(cache, strict_json.pretty({"key": key, "text": drawn.getvalue()}), sync=False)
    return path, drawn.getvalue()


def share_done(rounds_done: int, rounds_total: int, runs_done: int, runs_total: int) -> float:
    """How far a plan is: in rounds, or in runs where they have none."""
    return rounds_done / rounds_total if rounds_total else runs_done / max(1, runs_total)


def common_fields(entries: Iterable[Entry]) -> dict[str, dict[str, Any]]:
    """By kind, the fields, as plain JSON, in which its runs agree (see ``Common``)."""
    names = {name for name in fields_of_all_kinds() if name not in WISHES}
    common: dict[str, dict[str, Any]] = {}
    for entry in entries:
        raw = entry.experiment
        known = common.get(kind := str(raw.get("kind")))
        if known is None:
            common[kind] = {name: raw.get(name) for name in names}
        elif differing := [name for name, value in known.items() if raw.get(name) != value]:
            for name in differing:
                del known[name]
    return _telling_kinds(common)


def joined_common(parts: Iterable[Mapping[str, Mapping[str, Any]]]) -> dict[str, dict[str, Any]]:
    """What is common to the runs of all parts of a plan, from what is to those of each."""
    return _telling_kinds(reduce(_agreed, parts, {}))


def _agreed(left: Mapping[str, Mapping[str, Any]], right: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    joined = {kind: dict(fields) for kind, fields in (*left.items(), *right.items())}
    for kind in left.keys() & right.keys():
        joined[kind] = {name: value for name, value in left[kind].items() if right[kind].get(name, ...) == value}
    return joined


def _telling_kinds(common: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The kind is no field that all agree in where there are several."""
    for fields in common.values() if len(common) > 1 else ():
        fields.pop("kind", None)
    return common


def label(experiment: Mapping[str, Any], common: Common, fields: Container[str] | None = None) -> str:
    """A short name that tells a run apart from others: method, norm, what its kind has not in common, and the seed.

    Args:
        experiment: as plain JSON.
        common: what needs no name.
        fields: those that may be named; None: all.
    """
    always, shared = ("method", "norm", "normalized", "seed"), common.get(str(experiment.get("kind")), ())
    names = (name for name in _label_order() if name in always or name not in shared)
    shown = (name for name in names if fields is None or name in fields)
    return " ".join(filter(None, (_text(name, experiment.get(name)) for name in shown)))


@cache
def _label_order() -> tuple[str, ...]:
    return tuple(sorted((name for name in fields_of_all_kinds() if name not in WISHES), key=_rank))


def _rank(field: str) -> int:
    order = ("kind", "method", "norm", "normalized", "activation", "partition", "dataset", "model", "lr", "local_steps")
    return order.index(field) if field in order else len(order) + (field == "seed")


def _text(field: str, value: Any) -> str:
    if value is None:
        return ""
    registry = registry_of(field)
    if registry is None:
        return f"{_SHORT.get(field, field + '=')}{format_scalar(value)}"
    return _component_label(field, canonical_json(value))


@cache
def _component_label(field: str, raw: str) -> str:
    registry: Any = registry_of(field)
    try:
        return str(registry.parse(json.loads(raw)).label())
    except (KeyError, ValueError):  # a plan may outlive a component
        return raw


class Interrupts:
    """While entered, the first SIGINT or SIGTERM raises KeyboardInterrupt, and further ones are only counted.

    An exception for each signal could strike in the middle of the reaction to the one before. A signal that the caller
    ignores stays ignored: a script's background job shall not end when the user interrupts the script.
    """

    def __init__(self) -> None:
        self.count = 0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # no other thread may set handlers
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._interrupt)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, self._before)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _interrupt(self, *_: object) -> None:
        self.count += 1
        if self.count == 1:
            raise KeyboardInterrupt
