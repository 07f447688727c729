"""``flbench status``: how the sweeps of a store stand, from its files alone."""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flbench.cli.completion import sweeps
from flbench.cli.ending import ends_quietly
from flbench.cli.options import DEFAULT_STORE, JsonOption, StoreOption
from flbench.cli.targets import expect_plans, plan_name
from flbench.errors import StoreUnusable
from flbench.report.literal import visible

if TYPE_CHECKING:
    from rich.table import Table

    from flbench.cli.survey import Failure, Running
    from flbench.progress import Seen
    from flbench.store import Store

#: Active runs shown, and failures told of each kind; the rest is counted.
MOST_ROWS = 16
MOST_FAILURES = 3

#: Columns from which on there is room for everything, and states beside which there is room for the speed on less.
WIDE = 120
MOST_STATES = 4

#: Seconds between two looks of ``--watch``.
PERIOD = 2.0


def status(
    spec: Annotated[
        str | None,
        typer.Argument(
            help="A sweep file, or the name of a sweep in the store; default: all of them.", autocompletion=sweeps
        ),
    ] = None,
    store: StoreOption = DEFAULT_STORE,
    watch: Annotated[bool, typer.Option("--watch", help="Look again every two seconds, until all is done.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show how sweeps stand: states, rounds, who works on what, and the last failures of each kind.

    It reads the store and nothing else, so it works while a sweep runs, after it, and from any machine that sees the
    store. With --json, each sweep has: sweep, spec_hash, directory, problem, cancelled, runs, the number of runs in
    each state, rounds_done, rounds_total, rounds_per_second and seconds_left (null where nobody works), active, errors
    (by kind) and failures (each with run_id, label, state, metric and its value, message, log). Exit code 4 where a
    plan cannot be read.

    Example: flbench status sweeps/quickstart.yaml --watch

    Example: flbench status lr_robustness --json
    """
    from flbench.cli.screen import Screen
    from flbench.store import Store

    opened = Store(store, create=False)
    directories = opened.sweep_dirs() if spec is None else expect_plans(opened, spec)
    watched = [SweepStatus(opened, directory) for directory in directories]
    with ends_quietly(), Screen(redraws=watch and not as_json) as screen:
        while True:
            began = time.monotonic()
            workers = Counter(worker.plan for worker in opened.live_workers())
            for one in watched:
                one.look(workers[one.name])
            if as_json:
                print(json.dumps(_plain(opened, watched), indent=1), flush=True)
            else:
                screen.show(_parts(opened, watched, everything=spec is None, wide=screen.width >= WIDE))
            if not watch or not any(one.goes_on for one in watched):
                break
            # A store so large that a look takes long is not looked at all the time.
            time.sleep(max(PERIOD, 5 * (time.monotonic() - began)))
    if any(one.problem for one in watched):
        raise typer.Exit(StoreUnusable.exit_code)


class SweepStatus:
    """One sweep, looked at again and again."""

    def __init__(self, store: Store, directory: Path) -> None:
        from flbench.cli.sparkline import Curves

        self.directory = directory
        self.problem = ""
        self.curves = Curves(store)
        self._store = store
        self._looks: list[tuple[float, int]] = []
        self._workers = 0
        self._names: dict[str, tuple[str, str]] = {}

    def look(self, workers: int) -> None:
        """Bring the status up to date; ``workers`` are alive on this sweep."""
        from flbench.cli.survey import Tally, survey

        self.tally: Tally = Tally()
        try:
            self.tally = survey(self._store, self.directory / "plan.jsonl")
        except StoreUnusable as error:
            self.problem = str(error)
        self._looks.append((time.monotonic(), self.tally.rounds_done))
        self._workers = workers

    @property
    def name(self) -> str:
        """The sweep's name and the hash of its plan."""
        return plan_name(self.directory)

    @property
    def rounds_per_second(self) -> float | None:
        """The speed since the first look, else what the workers alive reach on average; None where nobody works."""
        if not (self._workers or self.tally.counts["running"]):
            return None
        (began, first), (now, done) = self._looks[0], self._looks[-1]
        if done > first and now > began:
            return (done - first) / (now - began)
        seconds = self.tally.seconds_a_round
        return self._workers / seconds if self._workers and seconds else None

    @property
    def seconds_left(self) -> float | None:
        """Seconds left at that speed; None where that is unknown, or nothing is left."""
        speed = self.rounds_per_second
        return self.tally.rounds_left / speed if speed and self.goes_on else None

    @property
    def cancelled(self) -> bool:
        """Whether somebody asked for its end, and nobody for going on since."""
        return self.tally.open > 0 and self._store.mark(self.name).is_set()

    @property
    def goes_on(self) -> bool:
        """Whether there is something to wait for."""
        return self.tally.counts["running"] > 0 if self.cancelled else self.tally.open > 0

    def names_of(self, run_id: str) -> tuple[str, str]:
        """What the problem and the contender of a run of this sweep are called."""
        from flbench.cli.standings import names
        from flbench.store import read_plan

        if run_id not in self._names:
            (entry,) = read_plan(self.directory / "plan.jsonl", about=run_id)
            self._names[run_id] = names(entry.experiment, self.tally.common)
        return self._names[run_id]


def _parts(store: Store, watched: list[SweepStatus], *, everything: bool, wide: bool) -> Iterator[Table | str]:
    """What is shown, from the top."""
    yield _table(watched, wide=wide)
    yield from _running(watched, wide=wide)
    for one in watched:
        if one.tally.open or len(watched) == 1:
            yield from _leaders(one, watched)
    yield from _failures(watched)
    yield from (one.problem for one in watched if one.problem)
    yield _foot(store, watched, everything=everything)


def _table(watched: list[SweepStatus], *, wide: bool) -> Table:
    """A row for each sweep; a state that no run is in has no column."""
    from flbench.cli.drawing import fitting, plain_table
    from flbench.cli.numbers import duration, pace, percent
    from flbench.cli.survey import STATES

    states = [state for state in STATES if state == "done" or any(one.tally.counts[state] for one in watched)]
    has_left = any(one.seconds_left for one in watched)
    has_speed = has_left and (wide or len(states) <= MOST_STATES)
    table = plain_table(2 if wide else 1)
    table.add_column("sweep", min_width=12)
    for title in ("runs", *states, "rounds", *(["speed"] if has_speed else []), *(["left"] if has_left else [])):
        table.add_column(title, justify="right", no_wrap=True)
    for one in watched:
        tally, speed, left = one.tally, one.rounds_per_second, one.seconds_left
        rounds = f"{tally.rounds_done}/{tally.rounds_total}"
        table.add_row(
            fitting(_short_name(one, watched) + (" (cancelled)" if one.cancelled else "")),
            str(tally.runs),
            *(str(tally.counts[state] or "–") for state in states),
            rounds if wide and tally.rounds_total else percent(tally.share),
            *([pace(speed) if speed and left else "–"] if has_speed else []),
            *([duration(left) if left else "–"] if has_left else []),
        )
    return table


def _short_name(one: SweepStatus, watched: list[SweepStatus]) -> str:
    """The sweep's name, with as much of the hash as tells it from others of that name."""
    name, _, digits = one.name.partition("/")
    others = [other.name for other in watched if other is not one]
    shortest = next((n for n in (0, 4, 8) if not any(o.startswith(f"{name}/{digits[:n]}") for o in others)), 16)
    return f"{name}/{digits[:shortest]}" if shortest else name


def _running(watched: list[SweepStatus], *, wide: bool) -> Iterator[Table | str]:
    from flbench.cli.drawing import fitting, plain_table
    from flbench.cli.live import headlines
    from flbench.cli.sparkline import mixed_sparklines

    running = [(sweep, one) for sweep in watched for one in sweep.tally.running]
    if not running:
        return
    shown = running[:MOST_ROWS]
    seens = [one.seen for _, one in shown]
    curves = [
        (one.metric, sweep.curves.of_run(one.run_id, one.round, one.metric))
        for (sweep, _), one in zip(shown, seens, strict=True)
    ]
    scale, lines = mixed_sparklines(curves)
    number, values = headlines(seens)
    table = plain_table(2)
    more = ("attempt", "worker", "heartbeat") if wide else ()
    for title in ("running", "", "round", number, scale, *more):
        right = title in ("round", number, "attempt")
        table.add_column(title, justify="right" if right else "left", no_wrap=bool(title))
    for (_, one), text, line in zip(shown, values, lines, strict=True):
        seen = one.seen
        cells = (f"{seen.round}/{seen.rounds}", text, line)
        where = (str(one.attempt), one.worker, _age(one)) if wide else ()
        run_id = seen.run_id if wide else seen.run_id[:8]
        table.add_row(run_id, fitting(seen.label), *cells, *map(visible, where))
    yield table
    if len(running) > MOST_ROWS:
        yield f"and {len(running) - MOST_ROWS} more running; --json lists all"


def _leaders(one: SweepStatus, watched: list[SweepStatus]) -> Iterator[Table]:
    from flbench.cli.overview import MOST_CELLS, cells_table
    from flbench.cli.standings import best

    found = best(one.tally.cells.values(), MOST_CELLS)
    of = f" of {_short_name(one, watched)}" if len(watched) > 1 else ""
    title = f"best cells{of}{' so far' if one.tally.open else ''}"
    yield from cells_table(found, one.curves, one.names_of, title)


def _age(running: Running) -> str:
    from flbench.cli.numbers import duration

    age = running.heartbeat_age
    return "–" if age is None else f"{duration(age)} ago"


def _failures(watched: list[SweepStatus]) -> Iterator[str]:
    from flbench.cli.live import news_line

    for kind, failures in _by_kind([failure for one in watched for failure in one.tally.failures]).items():
        when = f", the last at {failures[0].time}" if failures[0].time else ""
        yield f"{len(failures)} {kind}{when}:"
        for failure in failures[:MOST_FAILURES]:
            yield f"  {failure.seen.run_id} {news_line(failure.seen)}"
        if len(failures) > MOST_FAILURES:
            yield f"  and {len(failures) - MOST_FAILURES} more; --json lists all"


def _by_kind(failures: list[Failure]) -> dict[str, list[Failure]]:
    """Failures of each kind, the newest first; the most frequent kind first."""
    kinds = defaultdict(list)
    for failure in sorted(failures, key=lambda failure: failure.time, reverse=True):
        kinds[failure.seen.outcome].append(failure)
    return dict(sorted(kinds.items(), key=lambda item: -len(item[1])))


def _foot(store: Store, watched: list[SweepStatus], *, everything: bool) -> str:
    """Workers, the store, and what it holds besides sweeps."""
    parts = [f"{len(store.live_workers())} workers alive"]
    if everything:
        single = _number_of_single_runs(store)
        parts += [f"{single} runs belong to no sweep"] if single else []
    return ", ".join([*parts, f"store: {store.root}"])


def _number_of_single_runs(store: Store) -> int:
    planned = store.planned_ids()
    return sum(run_id not in planned for run_id in store.run_ids())


def _plain(store: Store, watched: list[SweepStatus]) -> dict[str, Any]:
    return {
        "schema": 1,
        "store": str(store.root),
        "workers": [
            {
                "token": worker.lease.token,
                "host": worker.lease.host,
                "pid": worker.lease.pid,
                "slurm_job": worker.lease.slurm_job,
                "plan": worker.plan,
                "heartbeat_age": _rounded(store.liveness.heartbeat_age(worker.lease)),
            }
            for worker in store.live_workers()
        ],
        "sweeps": [_plain_sweep(one) for one in watched],
    }


def _plain_sweep(one: SweepStatus) -> dict[str, Any]:
    from flbench.cli.survey import STATES

    tally = one.tally
    errors = _by_kind(tally.failures).items()
    return {
        "sweep": one.directory.parent.name,
        "spec_hash": one.directory.name,
        "directory": str(one.directory),
        "problem": one.problem or None,
        "cancelled": one.cancelled,
        "runs": tally.runs,
        **{state: tally.counts[state] for state in STATES},
        "rounds_done": tally.rounds_done,
        "rounds_total": tally.rounds_total,
        "rounds_per_second": _rounded(one.rounds_per_second, 3),
        "seconds_left": _rounded(one.seconds_left),
        "active": [_plain_running(running) for running in tally.running],
        "errors": [{"kind": kind, "runs": len(found), "last": _plain_failure(found[0])} for kind, found in errors],
        "failures": [_plain_failure(failure) for failure in tally.failures],
    }


def _plain_running(running: Running) -> dict[str, Any]:
    lease = running.lease
    return {
        **_plain_seen(running.seen),
        "attempt": running.attempt,
        "host": lease.host if lease else None,
        "pid": lease.pid if lease else None,
        "slurm_job": lease.slurm_job if lease else None,
        "heartbeat_age": _rounded(running.heartbeat_age),
    }


def _plain_failure(failure: Failure) -> dict[str, Any]:
    return {**_plain_seen(failure.seen), "time": failure.time or None}


def _plain_seen(seen: Seen) -> dict[str, Any]:
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


def _rounded(number: float | None, digits: int = 1) -> float | None:
    return None if number is None else round(number, digits)
