"""``flbench status``: how the sweeps of a store stand, from its files alone."""

from __future__ import annotations

import shlex
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from flbench.choices import DEFAULT_STORE
from flbench.cli.boundary import ends_quietly, print_json
from flbench.cli.completion import sweeps
from flbench.cli.curves import Curves
from flbench.cli.live import news_line
from flbench.cli.numbers import percent
from flbench.cli.options import JsonOption, StoreOption, public_path
from flbench.cli.progress_tables import best_cells, running_table
from flbench.cli.screen import fitting, plain_table, screen
from flbench.cli.sweep_status import SingleRuns, SweepStatus, failures_by_kind, rounded, shown_states
from flbench.cli.targets import expect_plans
from flbench.errors import StoreUnusable
from flbench.messages import counted
from flbench.run_names import SINGLE
from flbench.store import Store

if TYPE_CHECKING:
    from flbench.cli.status_page import StatusPage

#: Seconds between two reads of ``--watch``.
PERIOD = 2.0

#: Active runs, and failures of each kind, shown at most; the rest is counted.
MOST_ROWS = 16
MOST_FAILURES = 3

#: Terminals of this width show all columns; narrower ones leave out the speed if there are more states than these.
WIDE = 120
MOST_STATES = 4


def status(
    spec: Annotated[
        str | None,
        typer.Argument(
            metavar="SWEEP",
            help="A sweep file, or the name of a sweep in the store; default: all of them.",
            autocompletion=sweeps,
        ),
    ] = None,
    store: StoreOption = DEFAULT_STORE,
    watch: Annotated[bool, typer.Option("--watch", help="Repeat every two seconds until all runs have ended.")] = False,
    html: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.html",
            help="Also write a page with curves, a map of the leaderboard, settings against results and links to logs; "
            "with --watch the page in the browser follows the runs.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show sweep progress and active workers: states, rounds, leading cells, and the last failures of each kind.

    It only reads the store, so it works while a sweep runs, after it, and from any machine that sees the store. With
    --json, each sweep has: sweep, spec_hash, directory, problem, cancelled, runs, to_come (how many its search may
    add at most), the number of runs in each state, rounds_done, rounds_total, rounds_per_second and seconds_left (null
    without workers), active, errors (by kind) and failures (each with run_id, label, state, metric and its value,
    message, log). The runs of `flbench run` are counted
    together, under single; its problem names those that cannot be read. Exit code 4 if a plan cannot be read.

    Example: flbench status quickstart --watch

    Example: flbench status quickstart --watch --html live.html

    Example: flbench status lr_robustness --json
    """
    opened = Store(store, create=False)
    directories = opened.sweep_dirs() if spec is None else expect_plans(opened, spec)
    watched = [SweepStatus(opened, directory) for directory in directories]
    single, curves = SingleRuns(opened), Curves(opened)
    with (
        ends_quietly(),
        screen(redraws=watch and not as_json) as (console, show),
        _page(opened, watched, html, spec) as page,
    ):
        while True:
            began = time.monotonic()
            live = opened.live_workers()
            workers = Counter(worker.plan for worker in live)
            for one in watched:
                one.update(workers[one.name])
            if spec is None:
                single.update(sum(worker.plan.startswith(SINGLE) for worker in live))
            shown = [*watched, single] if single.progress.total or single.problem else watched
            if as_json:
                leases = [
                    {
                        "token": worker.lease.token,
                        "host": worker.lease.host,
                        "pid": worker.lease.pid,
                        "slurm_job": worker.lease.slurm_job,
                        "plan": worker.plan,
                        "heartbeat_age": rounded(opened.liveness.heartbeat_age(worker.lease)),
                    }
                    for worker in live
                ]
                facts = {"schema": 1, "store": str(opened.root), "workers": leases}
                facts |= {"sweeps": [one.json() for one in watched]}
                print_json(facts | ({"single": single.json()} if spec is None else {}))
            else:
                parts = status_parts(opened, shown, curves, width=console.width)
                show(parts if page is None else [*parts, page.line])
            if page is not None:
                page.read(shown)
            if not watch or not any(one.goes_on for one in shown):
                break
            # Reading a large store takes long: leave the disk to the workers for most of the time.
            pause = max(PERIOD, 5 * (time.monotonic() - began))
            if page is not None:
                page.write(pause)
            time.sleep(pause)
    if any(one.problem for one in watched):
        raise typer.Exit(StoreUnusable.exit_code)


@contextmanager
def _page(store: Store, watched: list[SweepStatus], path: Path | None, spec: str | None) -> Iterator[StatusPage | None]:
    """Yield the page, if one is requested; however the command ends, its last page does not load itself again."""
    if path is None:
        yield None
        return
    from flbench.cli.status_page import StatusPage  # imports the report

    words = ["flbench", "status", *([] if spec is None else [public_path(Path(spec))]), "--html", public_path(path)]
    page = StatusPage(store, watched, path, shlex.join(words))
    try:
        yield page
    finally:
        page.write(None)


def status_parts(store: Store, watched: Sequence[SweepStatus], curves: Curves, *, width: int) -> Iterator[Table | str]:
    """Yield what is shown, from the top."""
    wide = width >= WIDE
    yield _sweeps_table(watched, wide=wide)
    growing = [one for one in watched if one.progress.more]
    yield from (f"{one.short_name(watched)}: its search may add {one.progress.more}" for one in growing)
    yield from _running(watched, curves, wide=wide)
    for one in watched:
        if one.is_open or len(watched) == 1:
            of = f" of {one.short_name(watched)}" if len(watched) > 1 else ""
            yield from best_cells(one.progress, curves, title=f"best cells{of}{' so far' if one.is_open else ''}")
    yield from _failures(watched)
    yield from (one.problem for one in watched if one.problem)
    yield f"{counted(len(store.live_workers()), 'worker')} alive, store: {store.root}"


def _sweeps_table(watched: Sequence[SweepStatus], *, wide: bool) -> Table:
    """A row for each sweep; a state without runs has no column."""
    states = shown_states(watched)
    has_left = any(one.seconds_left for one in watched)
    has_speed = has_left and (wide or len(states) <= MOST_STATES)
    table = plain_table(gap=2 if wide else 1)
    table.add_column("sweep", min_width=12)
    for title in ("runs", *states, "rounds", *(["speed"] if has_speed else []), *(["left"] if has_left else [])):
        table.add_column(title, justify="right", no_wrap=True)
    for one in watched:
        progress = one.progress
        rounds = f"{progress.rounds_done}/{progress.rounds_total}"
        table.add_row(
            fitting(one.title(watched)),
            str(progress.total),
            *(str(progress.states[state] or "–") for state in states),
            rounds if wide and progress.rounds_total else percent(progress.share),
            *([one.speed] if has_speed else []),
            *([one.left] if has_left else []),
        )
    return table


def _running(watched: Sequence[SweepStatus], curves: Curves, *, wide: bool) -> Iterator[Table | str]:
    running = [one for sweep in watched for one in sweep.running]
    if not running:
        return
    shown = running[:MOST_ROWS]
    runs = [one.seen for one in shown]
    if wide:
        where = {
            "attempt": [str(run.state.attempts) for run in runs],
            "worker": [one.worker for one in shown],
            "heartbeat": [one.age for one in shown],
        }
        yield running_table(runs, curves, [run.run_id for run in runs], where)
    else:
        yield running_table(runs, curves, [run.run_id[:8] for run in runs])
    if len(running) > MOST_ROWS:
        yield f"and {len(running) - MOST_ROWS} more running; --json lists all"


def _failures(watched: Sequence[SweepStatus]) -> Iterator[str]:
    for kind, failures in failures_by_kind(failure for one in watched for failure in one.failures).items():
        when = f", the last at {failures[0].failed_at}" if failures[0].failed_at else ""
        yield f"{len(failures)} {kind}{when}:"
        yield from (f"  {seen.run_id} {news_line(seen)}" for seen in failures[:MOST_FAILURES])
        if len(failures) > MOST_FAILURES:
            yield f"  and {len(failures) - MOST_FAILURES} more; --json lists all"
