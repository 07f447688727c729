"""What ``flbench status`` shows: tables of sweeps, running runs and leading cells, and the failures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.table import Table

from flbench.cli.curves import Curves
from flbench.cli.live import news_line
from flbench.cli.numbers import percent
from flbench.cli.progress_tables import best_cells, running_table
from flbench.cli.screen import fitting, plain_table
from flbench.cli.sweep_status import SweepStatus, failures_by_kind, shown_states
from flbench.messages import counted
from flbench.store import Store

#: Active runs, and failures of each kind, shown at most; the rest is counted.
MOST_ROWS = 16
MOST_FAILURES = 3

#: Terminal width from which all columns are shown, and the most states beside which a narrower one shows the speed.
WIDE = 120
MOST_STATES = 4


def status_parts(store: Store, watched: Sequence[SweepStatus], curves: Curves, *, width: int) -> Iterator[Table | str]:
    """Yield what is shown, from the top."""
    wide = width >= WIDE
    yield _sweeps_table(watched, wide=wide)
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
