"""What ``flbench status`` shows: tables of sweeps, running runs and leading cells, and the failures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.table import Table

from flbench.cli.best_cells import best_cells
from flbench.cli.curves import Curves, mixed_sparklines
from flbench.cli.live import headlines, news_line
from flbench.cli.numbers import duration, pace, percent
from flbench.cli.screen import LabelCells, fitting, plain_table
from flbench.cli.sweep_status import SweepStatus, failures_by_kind, short_name, shown_states
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
            of = f" of {short_name(one, watched)}" if len(watched) > 1 else ""
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
        progress, speed, left = one.progress, one.rounds_per_second, one.seconds_left
        rounds = f"{progress.rounds_done}/{progress.rounds_total}"
        table.add_row(
            fitting(short_name(one, watched) + (" (cancelled)" if one.cancelled else "")),
            str(progress.total),
            *(str(progress.states[state] or "–") for state in states),
            rounds if wide and progress.rounds_total else percent(progress.share),
            *([pace(speed) if speed and left else "–"] if has_speed else []),
            *([duration(left) if left else "–"] if has_left else []),
        )
    return table


def _running(watched: Sequence[SweepStatus], curves: Curves, *, wide: bool) -> Iterator[Table | str]:
    running = [one for sweep in watched for one in sweep.running]
    if not running:
        return
    shown = running[:MOST_ROWS]
    seens = [one.seen for one in shown]
    scale, lines = mixed_sparklines(
        [(seen.metric, curves.of_run(seen.run_id, seen.round, seen.metric)) for seen in seens]
    )
    number, values = headlines(seens)
    table = plain_table()
    for title in ("running", "", "round", number, scale, *(("attempt", "worker", "heartbeat") if wide else ())):
        right = title in ("round", number, "attempt")
        table.add_column(title, justify="right" if right else "left", no_wrap=bool(title))
    labels = LabelCells([seen.label for seen in seens])
    for one, drawn, text, line in zip(shown, labels, values, lines, strict=True):
        seen = one.seen
        age = "–" if one.heartbeat_age is None else f"{duration(one.heartbeat_age)} ago"
        where = (str(seen.state.attempts), one.worker, age) if wide else ()
        run_id = seen.run_id if wide else seen.run_id[:8]
        rounds = f"{seen.round}/{seen.rounds}"
        table.add_row(run_id, drawn, rounds, text, line, *map(visible, where))
    yield table
    if len(running) > MOST_ROWS:
        yield f"and {len(running) - MOST_ROWS} more running; --json lists all"


def _failures(watched: Sequence[SweepStatus]) -> Iterator[str]:
    for kind, failures in failures_by_kind(failure for one in watched for failure in one.failures).items():
        when = f", the last at {failures[0].time}" if failures[0].time else ""
        yield f"{len(failures)} {kind}{when}:"
        for failure in failures[:MOST_FAILURES]:
            yield f"  {failure.seen.run_id} {news_line(failure.seen)}"
        if len(failures) > MOST_FAILURES:
            yield f"  and {len(failures) - MOST_FAILURES} more; --json lists all"
