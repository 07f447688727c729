"""The table of a section's three measures: how far, how fast, how easy."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from flbench.literal import literal
from flbench.metric_specs import METRICS
from flbench.report.blocks import Block, Entry, Grid, Paragraph, words
from flbench.report.board import Section
from flbench.report.cells import Cell, Unit
from flbench.report.measures import SHARE, Speed, is_flat
from flbench.report.tables import Table
from flbench.report.ticks import axis_names
from flbench.report.tuning import WITHIN, Budget, Range
from flbench.report.wording import (
    NONE,
    bytes_text,
    column_name,
    margin_text,
    mean_text,
    reached_text,
    rising_text,
    row_labels,
    slope_text,
    width_text,
)

#: The numbers of random tries whose expected value is shown.
TRIES = (1, 3)


def measure_blocks(section: Section, table: Table) -> list[Block]:
    """Return the table of the cells of a section's table, column by column; nothing without slopes and curves."""
    cells = [(at, cell) for at, cell in sorted(table.cells.items(), key=lambda one: one[0][::-1]) if cell.values]
    levels = {c: cell.speed.level for (_, c), cell in cells if cell.speed is not None}
    if not levels and all(cell.rise is None or cell.rise.half_width is None for _, cell in cells):
        return []
    metric, margin = METRICS[table.metric], section.layout.tie_margin
    texts = [f"Plateau: the slope is within {margin_text(margin, metric)} per doubling of rounds, by its interval."]
    columns: dict[str, Callable[[Cell], Entry]] = {"how far": lambda cell: _far(cell, margin)}
    if levels:
        listed = "; ".join(
            f"{literal(column_name(table, table.cols[c]))}: {metric.text(level.value)}, {_ORIGINS[level.of]}"
            for c, level in levels.items()
        )
        texts.append(
            "How fast: rounds to the first evaluation at the level of the column, local steps, and bytes of all "
            f"clients, as medians over seeds ({listed}). Area: mean over the rounds."
        )
        columns |= {"how fast": _fast, "area": _area}
    if easy := _easy(section):
        texts.append(
            f"How easy: width of the learning rates within {100 * WITHIN:g} points of the best; expected value of "
            "random tries."
        )
        columns["how easy"] = lambda cell: easy.get(cell.key, Entry(NONE))
    axes = axis_names((*table.row_axes, *table.col_axes))
    rows = tuple(
        (
            *words(*row_labels(table, r), *(at.label for at in table.cols[c])),
            *(entry(cell) for entry in columns.values()),
        )
        for (r, c), cell in cells
    )
    return [Paragraph(" ".join(texts)), Grid((*axes, *columns), rows, len(axes))]


_ORIGINS: Mapping[str, str] = {
    "given": "given",
    "plateau": f"{100 * SHARE:g} % of the lowest plateau",
    "final value": f"{100 * SHARE:g} % of the lowest final value, since no row is shown to be at a plateau",
}


def _far(cell: Cell, margin: float) -> Entry:
    """Return the mean, and whether it is that of a plateau."""
    slope = slope_text(cell.rise, cell.metric)
    state = ["plateau"] if is_flat(cell.rise, margin) else rising_text(cell) or [f"after {cell.rounds:,} rounds"]
    below = (*state, *([f"slope {slope}"] if slope else []))
    return Entry(mean_text(cell), below, order=cell.summary.mean if cell.summary else None)


def _fast(cell: Cell) -> Entry:
    """Return the rounds, steps and bytes to the level."""
    speed: Speed | None = cell.speed
    if speed is None:
        return Entry(NONE)
    below = [f"{speed.steps:,.0f} steps"] if speed.steps is not None else []
    below += [bytes_text(speed.bytes)] if speed.bytes is not None else []
    below += [reached_text(speed)] if speed.n < speed.requested else []
    return Entry(rounds_text(speed), tuple(below), order=speed.last + 1 if speed.rounds is None else speed.rounds)


def _area(cell: Cell) -> Entry:
    """Return the area under the curve."""
    if cell.speed is None or (found := cell.speed.area) is None:
        return Entry(NONE)
    return Entry(METRICS[cell.metric].text(found.mean) + width_text(found.half_width, cell.metric), order=found.mean)


def rounds_text(speed: Speed) -> str:
    """Return ``230 rounds``, or ``> 1,000 rounds`` where at least half of the seeds do not reach the level."""
    return f"> {speed.last:,} rounds" if speed.rounds is None else f"{speed.rounds:,.0f} rounds"


def _easy(section: Section) -> dict[Unit, Entry]:
    """Return the width of the rates that work and the expected value of few tries, by the key of the chosen cell."""
    tries: dict[Unit, Budget] = {one.cell.key: one for rows in section.budgets for one in rows.rows}
    found = {}
    for rows in section.ranges:
        for one in rows.rows:
            for cell in one.cells:
                if (budget := tries.get(cell.key)) is not None:
                    found[cell.key] = _width(one, budget, cell.metric)
    return found


def _width(found: Range, budget: Budget, metric: str) -> Entry:
    below = [
        f"{k} {'try' if k == 1 else 'tries'} {METRICS[metric].text(budget.curve[k - 1].mean)}"
        for k in TRIES
        if k <= len(budget.curve)
    ]
    return Entry(
        f"{decades_text(found)} decades", tuple(below), order=found.decades if found.best is not None else None
    )


def decades_text(found: Range) -> str:
    """Return ``1.5``, or ``≥ 1.5`` where the range ends with the rates that were tried."""
    if found.best is None:
        return NONE
    return f"{'≥ ' if found.is_open else ''}{found.decades:.1f}"
