"""What ``flbench status`` shows: tables of sweeps, running runs and leading cells, and the failures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.table import Table

from flbench.cli.curves import mixed_sparklines
from flbench.cli.live import headlines, news_line
from flbench.cli.numbers import duration, pace, percent
from flbench.cli.plan_status import STATES, SweepStatus, failures_by_kind
from flbench.cli.ranking import MOST_CELLS, best, cells_tables
from flbench.cli.screen import LabelCells, fitting, plain_table
from flbench.literal import visible
from flbench.messages import counted
from flbench.store import Store

#: Active runs, and failures of each kind, shown at most; the rest is counted.
MOST_ROWS = 16
MOST_FAILURES = 3

#: Terminal width from which all columns are shown, and the most states beside which a narrower one shows the speed.
WIDE = 120
MOST_STATES = 4


def status_parts(store: Store, watched: Sequence[SweepStatus], *, width: int) -> Iterator[Table | str]:
    """Yield what is shown, from the top."""
    wide = width >= WIDE
    yield _sweeps_table(watched, wide=wide)
    yield from _running(watched, wide=wide)
    for one in watched:
        if one.tally.open or len(watched) == 1:
            of = f" of {short_name(one, watched)}" if len(watched) > 1 else ""
            title = f"best cells{of}{' so far' if one.tally.open else ''}"
            yield from cells_tables(best(one.tally.cells.values(), MOST_CELLS), one.curves, one.names_of, title)
    yield from _failures(watched)
    yield from (one.problem for one in watched if one.problem)
    yield f"{counted(len(store.live_workers()), 'worker')} alive, store: {store.root}"


def _sweeps_table(watched: Sequence[SweepStatus], *, wide: bool) -> Table:
    """A row for each sweep; a state without runs has no column."""
    states = [state for state in STATES if state == "done" or any(one.tally.counts[state] for one in watched)]
    has_left = any(one.seconds_left for one in watched)
    has_speed = has_left and (wide or len(states) <= MOST_STATES)
    table = plain_table(gap=2 if wide else 1)
    table.add_column("sweep", min_width=12)
    for title in ("runs", *states, "rounds", *(["speed"] if has_speed else []), *(["left"] if has_left else [])):
        table.add_column(title, justify="right", no_wrap=True)
    for one in watched:
        tally, speed, left = one.tally, one.rounds_per_second, one.seconds_left
        rounds = f"{tally.rounds_done}/{tally.rounds_total}"
        table.add_row(
            fitting(short_name(one, watched) + (" (cancelled)" if one.cancelled else "")),
            str(tally.counts.total()),
            *(str(tally.counts[state] or "–") for state in states),
            rounds if wide and tally.rounds_total else percent(tally.share),
            *([pace(speed) if speed and left else "–"] if has_speed else []),
            *([duration(left) if left else "–"] if has_left else []),
        )
    return table


def short_name(one: SweepStatus, watched: Sequence[SweepStatus]) -> str:
    """Return the sweep's name, with as many digits of the hash as make it unique."""
    name, _, digits = one.name.partition("/")
    others = [other.name for other in watched if other is not one]
    shortest = next((n for n in (0, 4, 8) if not any(o.startswith(f"{name}/{digits[:n]}") for o in others)), 16)
    return f"{name}/{digits[:shortest]}" if shortest else name


def _running(watched: Sequence[SweepStatus], *, wide: bool) -> Iterator[Table | str]:
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
    table = plain_table()
    for title in ("running", "", "round", number, scale, *(("attempt", "worker", "heartbeat") if wide else ())):
        right = title in ("round", number, "attempt")
        table.add_column(title, justify="right" if right else "left", no_wrap=bool(title))
    labels = LabelCells([seen.label for seen in seens])
    for (_, one), drawn, text, line in zip(shown, labels, values, lines, strict=True):
        seen = one.seen
        age = "–" if one.heartbeat_age is None else f"{duration(one.heartbeat_age)} ago"
        where = (str(one.attempt), one.worker, age) if wide else ()
        run_id = seen.run_id if wide else seen.run_id[:8]
        rounds = f"{seen.round}/{seen.rounds}"
        table.add_row(run_id, drawn, rounds, text, line, *map(visible, where))
    yield table
    if len(running) > MOST_ROWS:
        yield f"and {len(running) - MOST_ROWS} more running; --json lists all"


def _failures(watched: Sequence[SweepStatus]) -> Iterator[str]:
    for kind, failures in failures_by_kind(failure for one in watched for failure in one.tally.failures).items():
        when = f", the last at {failures[0].time}" if failures[0].time else ""
        yield f"{len(failures)} {kind}{when}:"
        for failure in failures[:MOST_FAILURES]:
            yield f"  {failure.seen.run_id} {news_line(failure.seen)}"
        if len(failures) > MOST_FAILURES:
            yield f"  and {len(failures) - MOST_FAILURES} more; --json lists all"
