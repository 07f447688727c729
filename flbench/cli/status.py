"""``flbench status``: how the sweeps of a store stand, from its files alone."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flbench.cli.ending import ends_quietly
from flbench.cli.options import DEFAULT_STORE, JsonOption, StoreOption
from flbench.cli.targets import expect_plans, plan_name
from flbench.cli.visible import visible
from flbench.errors import StoreUnusable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from flbench.cli.survey import Failure, Running, Tally
    from flbench.orchestrate import Seen
    from flbench.store import Store

#: Active runs shown, and failures told of each kind; the rest is counted.
MOST_ROWS = 16
MOST_FAILURES = 3

#: Seconds between two looks of ``--watch``.
PERIOD = 2.0


def status(
    spec: Annotated[
        str | None, typer.Argument(help="A sweep file, or the name of a sweep in the store; default: all of them.")
    ] = None,
    store: StoreOption = DEFAULT_STORE,
    watch: Annotated[bool, typer.Option("--watch", help="Look again every two seconds, until all is done.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show how sweeps stand: states, rounds, who works on what, and the last failures of each kind.

    It reads the store and nothing else, so it works while a sweep runs, after it, and from any machine that sees the
    store. With --json, each sweep has: sweep, spec_hash, directory, problem, cancelled, runs, the number of runs in
    each state, rounds_done, rounds_total, active, errors (by kind) and failures (each with run_id, label, state,
    message, log). Exit code 4 where a plan cannot be read.

    Example: flbench status sweeps/quickstart.yaml --watch

    Example: flbench status lr_robustness --json
    """
    from flbench.cli.live import say, wide_console
    from flbench.store import Store

    opened = Store(store, create=False)
    console = wide_console()
    directories = opened.sweep_dirs() if spec is None else expect_plans(opened, spec)
    watched = [SweepStatus(opened, directory) for directory in directories]
    with ends_quietly():
        while True:
            began = time.monotonic()
            for one in watched:
                one.look()
            if as_json:
                print(json.dumps(_plain(opened, watched), indent=1), flush=True)
            else:
                console.print(_table(watched))
                _tell_running(console, watched)
                _tell_failures(console, watched)
                for one in watched:
                    if one.problem:
                        say(console, one.problem)
                say(console, _foot(opened, watched, everything=spec is None))
            if not watch or not any(one.tally.open for one in watched):
                break
            # A store so large that a look takes long is not looked at all the time.
            time.sleep(max(PERIOD, 5 * (time.monotonic() - began)))
    if any(one.problem for one in watched):
        raise typer.Exit(StoreUnusable.exit_code)


@dataclass
class SweepStatus:
    """One sweep, looked at again and again."""

    store: Store
    directory: Path
    looks: list[tuple[float, int]] = field(default_factory=list)
    problem: str = ""

    def look(self) -> None:
        """Bring the status up to date."""
        from flbench.cli.survey import Tally, survey

        self.tally: Tally = Tally()
        try:
            self.tally = survey(self.store, self.directory / "plan.jsonl")
        except StoreUnusable as error:
            self.problem = str(error)
        self.looks.append((time.monotonic(), self.tally.rounds_done))

    @property
    def name(self) -> str:
        """The sweep's name and the hash of its plan."""
        return plan_name(self.directory)

    @property
    def seconds_left(self) -> float | None:
        """Seconds left at the speed since the first look; None where that is unknown."""
        (began, first), (now, done) = self.looks[0], self.looks[-1]
        return (self.tally.rounds_total - done) / (done - first) * (now - began) if done > first else None

    @property
    def cancelled(self) -> bool:
        """Whether somebody asked for its end, and nobody for going on since."""
        return self.tally.open > 0 and self.store.mark(self.name).is_put()


def _table(watched: list[SweepStatus]) -> RenderableType:
    from rich.table import Table

    from flbench.cli.live import duration
    from flbench.cli.survey import STATES

    table = Table(box=None, pad_edge=False, padding=(0, 2), header_style="bold")
    table.add_column("sweep", overflow="fold")
    for title in ("runs", *STATES, "rounds", "left"):
        table.add_column(title, justify="right")
    for one in watched:
        tally, left = one.tally, one.seconds_left
        table.add_row(
            f"{one.name} (cancelled)" if one.cancelled else one.name,
            str(tally.runs),
            *(str(tally.counts[state] or "–") for state in STATES),
            f"{tally.rounds_done}/{tally.rounds_total}",
            duration(left) if left else "–",
        )
    return table


def _tell_running(console: Console, watched: list[SweepStatus]) -> None:
    from rich.table import Table
    from rich.text import Text

    from flbench.cli.live import percent, say

    running = [one for sweep in watched for one in sweep.tally.running]
    if not running:
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2), header_style="bold")
    for title in ("running", "", "round", "accuracy", "attempt", "worker", "heartbeat"):
        table.add_column(title, justify="right" if title in ("round", "accuracy", "attempt") else "left", no_wrap=True)
    for one in running[:MOST_ROWS]:
        seen = one.seen
        cells = (f"{seen.round}/{seen.rounds}", percent(seen.acc), str(one.attempt), one.worker, _age(one))
        table.add_row(seen.run_id, *(Text(visible(cell)) for cell in (seen.label, *cells)))
    console.print(table)
    if len(running) > MOST_ROWS:
        say(console, f"and {len(running) - MOST_ROWS} more running; --json lists all")


def _age(running: Running) -> str:
    from flbench.cli.live import duration

    age = running.heartbeat_age
    return "–" if age is None else f"{duration(age)} ago"


def _tell_failures(console: Console, watched: list[SweepStatus]) -> None:
    from flbench.cli.live import news_line, say

    for kind, failures in _by_kind([failure for one in watched for failure in one.tally.failures]).items():
        when = f", the last at {failures[0].time}" if failures[0].time else ""
        say(console, f"{len(failures)} {kind}{when}:")
        for failure in failures[:MOST_FAILURES]:
            say(console, f"  {failure.seen.run_id} {news_line(failure.seen)}")
        if len(failures) > MOST_FAILURES:
            say(console, f"  and {len(failures) - MOST_FAILURES} more; --json lists all")


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
        single = _number_of_single_runs(store, watched)
        parts += [f"{single} runs belong to no sweep"] if single else []
    return ", ".join([*parts, f"store: {store.root}"])


def _number_of_single_runs(store: Store, watched: list[SweepStatus]) -> int:
    planned: set[str] = set()
    for one in watched:
        planned |= store.planned_ids(one.directory)
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
                "heartbeat_age": _rounded(store.judge.heartbeat_age(worker.lease)),
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
        "acc": seen.acc,
        "message": seen.state.message,
        "log": str(seen.log) if seen.log else None,
    }


def _rounded(age: float | None) -> float | None:
    return None if age is None else round(age, 1)
