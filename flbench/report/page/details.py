"""The blocks below a section's tables: measures, differences, costs, clients and classes, ranges of learning rates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from flbench.metric_specs import METRICS
from flbench.report.blocks import BOLD, Block, Entry, Fold, Grid, Heading, Paragraph, words
from flbench.report.board import Section
from flbench.report.cells import Cell
from flbench.report.costs import Costs
from flbench.report.page.measures import decades_text, measure_blocks
from flbench.report.stats import Contrast, Summary
from flbench.report.tables import Table, kind_name
from flbench.report.ticks import axis_names
from flbench.report.tuning import WITHIN, Budget, Range, Rows
from flbench.report.wording import (
    NONE,
    TIED,
    bytes_text,
    contrast_text,
    row_labels,
    row_name,
    tied_text,
    width_text,
)

#: With more classes than this, only the recall of the worst class is shown.
MOST_CLASSES = 20

#: The numbers of settings that the table of tuning budgets shows, beside all of them.
TRIED = (1, 2, 3, 5)


def detail_blocks(section: Section, most_lines: int) -> Iterator[Block]:
    """Yield the blocks of a section; tables with more than ``most_lines`` lines are folded."""
    for table in section.details:
        title = f"How far, how fast, how easy{_suffix(table.short_title)}"
        yield from _titled(title, measure_blocks(section, table), most_lines)
    for table in section.details:
        yield from _titled(f"Differences{_suffix(table.short_title)}", _differences(table), most_lines)
    for table in section.details:
        title, costs = _suffix(table.short_title), _costs(table)
        yield from _titled(f"Cost, clients and classes{title}", costs, most_lines)
        if recall := _recall(table):
            yield Fold(f"Recall of each class{title}", (recall,))
    for budgets in section.budgets:
        yield from _titled(
            f"Tuning budget{_suffix(kind_name(budgets.kind))}", _budgets(budgets, section.layout.metric), most_lines
        )
    for ranges in section.ranges:
        yield from _titled(f"Range of learning rates{_suffix(kind_name(ranges.kind))}", _ranges(ranges), most_lines)


def _suffix(title: str) -> str:
    return f": {title}" if title else ""


def _titled(title: str, body: Sequence[Block], most_lines: int) -> Iterator[Block]:
    """Yield a heading and its blocks, folded if they have a long table; nothing without blocks."""
    if any(isinstance(block, Grid) and len(block.rows) > most_lines for block in body):
        yield Fold(title, tuple(body))
    elif body:
        yield from (Heading(3, title), *body)


def _lines(table: Table) -> Iterator[tuple[tuple[Entry, ...], Cell]]:
    """Yield the cells column by column, each with the labels of its row and column."""
    for c, col in enumerate(table.cols):
        for r in range(len(table.rows)):
            if (cell := table.cells.get((r, c))) is not None:
                yield words(*row_labels(table, r), *(at.label for at in col)), cell


def _axes(table: Table) -> tuple[str, ...]:
    return axis_names((*table.row_axes, *table.col_axes))


def _differences(table: Table) -> list[Block]:
    """Return every compared cell minus the baseline and minus the best; nothing for single seeds, without a test."""
    cells = table.cells.values()
    if all(cell.to_best is None or cell.to_best.p is None for cell in cells):
        return []
    has_baseline = table.baseline is not None and any(cell.to_baseline for cell in cells)
    heads = [f"to {row_name(table.baseline)}"] if has_baseline and table.baseline is not None else []
    rows = []
    for names, cell in _lines(table):
        if cell.contest is not None:
            contrasts = [_contrast(cell.to_baseline, table.metric)] if heads else []
            if cell.to_best is not None:
                contrasts.append(_contrast(cell.to_best, table.metric, TIED if cell.is_tied else ""))
            else:
                contrasts.append(Entry("best" if cell.is_best else NONE, bold=True))
            rows.append((*names, *contrasts))
    text = (
        f"Difference of the means{' in points' if METRICS[table.metric].percent else ''}, paired by seed, ± half-width "
        "of its 95 % interval; p: paired t-test, corrected for the different cells of this column alone (Holm); "
        "exploratory: where a planned comparison is of the same cells, its verdict counts."
    )
    axes = _axes(table)
    marks = {
        "±": "half-width of the 95 % interval of the difference, over seeds",
        TIED: tied_text(table.margin, METRICS[table.metric]),
        BOLD: "the best of its column",
    }
    return [Paragraph(text), Grid((*axes, *heads, "to the best"), tuple(rows), len(axes), marks=marks)]


def _contrast(contrast: Contrast | None, metric: str, mark: str = "") -> Entry:
    if contrast is None:
        return Entry(NONE)
    text, below = contrast_text(contrast, metric)
    return Entry(text, (below,), mark=mark, order=contrast.difference.mean)


def _costs(table: Table) -> list[Block]:
    """Return worst client, spread, worst class, bytes and grid of every cell with a value."""
    lines = [(names, cell) for names, cell in _lines(table) if cell.values]
    columns: dict[str, Callable[[Cell], Entry | None]] = {
        "worst client": lambda cell: _percent(cell.costs.worst),
        "sd over clients": lambda cell: _percent(cell.costs.spread),
        "worst class": lambda cell: _worst_class(cell.costs),
        "bytes": lambda cell: _bytes(cell.costs.bytes),
        "rounds of the search": lambda cell: _rounds(cell.costs.budget),
        "grid may cost": _grid_cost,
    }
    shown = {head: entry for head, entry in columns.items() if any(entry(cell) for _, cell in lines)}
    if not shown:
        return []
    text = "Means over seeds. Worst client and worst class: accuracy; bytes: sent and received by all clients."
    if "grid may cost" in shown:
        text += " Grid may cost: by how much a setting between those that were tried may be better."
    if "rounds of the search" in shown:
        text += " Rounds of the search: of all settings and seeds of the row and column."
    axes = _axes(table)
    rows = tuple((*names, *(entry(cell) or Entry(NONE) for entry in shown.values())) for names, cell in lines)
    return [Paragraph(text), Grid((*axes, *shown), rows, len(axes))]


def _grid_cost(cell: Cell) -> Entry | None:
    """Return by how much a setting between those that were tried may be better."""
    if not cell.grid.is_tuned:
        return None
    if cell.grid.at_edge or cell.grid.cost is None:
        return Entry("edge of the grid" if cell.grid.at_edge else "not known")
    return Entry(METRICS[cell.metric].text(cell.grid.cost), order=cell.grid.cost)


def _percent(value: float | None) -> Entry | None:
    return None if value is None else Entry(METRICS["acc"].text(value), order=value)


def _bytes(value: float | None) -> Entry | None:
    return None if value is None else Entry(bytes_text(value), order=value)


def _rounds(value: int | None) -> Entry | None:
    return None if value is None else Entry(f"{value:,}", order=value)


def _worst_class(costs: Costs) -> Entry | None:
    known = [(recall, number) for number, recall in enumerate(costs.recall) if recall is not None]
    if not known:
        return Entry(NONE) if costs.recall else None
    recall, number = min(known)
    return Entry(METRICS["acc"].text(recall), (f"class {number}",), order=recall)


def _recall(table: Table) -> Grid | None:
    """Return the recall of each class; None without recall, or with too many classes."""
    lines = [(names, cell.costs.recall) for names, cell in _lines(table)]
    classes = max((len(recall) for _, recall in lines), default=0)
    if not 0 < classes <= MOST_CLASSES:
        return None
    axes = _axes(table)
    rows = tuple(
        (*names, *(_percent(value) or Entry(NONE) for value in recall))
        for names, recall in lines
        if len(recall) == classes
    )
    return Grid((*axes, *(f"class {number}" for number in range(classes))), rows, len(axes))


def _grid(found: Rows[Any], heads: Sequence[str], entries: Callable[[Any], Iterable[Entry]]) -> Grid:
    """Return a line for each row and column; the column is named where there are several."""
    several = any(one.column for one in found.rows)
    names = (words(*(at.label for at in one.row), *([one.column] if several else [])) for one in found.rows)
    lines = tuple((*own, *entries(one)) for own, one in zip(names, found.rows, strict=True))
    where = ("where",) if several else ()
    return Grid((*axis_names(found.row_axes), *where, *heads), lines, len(found.row_axes) + several)


def _budgets(budgets: Rows[Budget], metric: str) -> list[Block]:
    most = max(len(one.curve) for one in budgets.rows)
    numbers = [k for k in TRIED if k < most]

    def entry(found: Summary) -> Entry:
        return Entry(METRICS[metric].text(found.mean) + width_text(found.half_width, metric), order=found.mean)

    def entries(one: Budget) -> Iterator[Entry]:
        yield from (entry(one.curve[k - 1]) if k < len(one.curve) else Entry(NONE) for k in numbers)
        yield entry(one.curve[-1])

    text = (
        "Expected value if only this many of a row's settings, drawn at random, are tried and the best of them by the "
        "rule is reported, ± half-width of its 95 % interval over seeds (`docs/statistics.md`). Runs that diverged "
        "count with the accuracy of guessing."
    )
    return [Paragraph(text), _grid(budgets, [*(f"{k} tried" for k in numbers), "all tried"], entries)]


def _ranges(ranges: Rows[Range]) -> list[Block]:
    text = (
        f"The unbroken range of learning rates around the best one in which the mean stays within {100 * WITHIN:g} "
        "points of the best, and its width in decades; ≥: it ends where the tried rates end. Diverged: of all finished "
        "runs at any rate."
    )
    return [Paragraph(text), _grid(ranges, ["best", "range", "decades", "diverged"], _range)]


def _range(one: Range) -> Sequence[Entry]:
    share = 100 * one.diverged / one.finished if one.finished else 0.0
    diverged = Entry(f"{one.diverged}/{one.finished}", (f"{share:.0f} %",) if one.diverged else (), order=share)
    if one.best is None:
        return (Entry(NONE), Entry("no complete cell"), Entry(NONE), diverged)
    return (
        Entry(METRICS["acc"].text(one.best), order=one.best),
        Entry(f"{one.low:.4g} to {one.high:.4g}", order=one.high),
        Entry(decades_text(one), order=one.decades),
        diverged,
    )
