"""What stands below a section's tables: differences, costs, clients and classes, ranges of learning rates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flbench.metric_specs import METRICS
from flbench.report.blocks import Block, Entry, Fold, Grid, Heading, Paragraph, words
from flbench.report.board import KIND_TITLES, Details, Section
from flbench.report.cells import Cell
from flbench.report.costs import Costs, Reached
from flbench.report.literal import literal
from flbench.report.lr_range import WITHIN, Ranges, Robustness
from flbench.report.paired_tests import Contrast
from flbench.report.tables import Position, Table
from flbench.report.wording import TIED, bytes_text, contrast_text, row_labels, row_name

#: With more classes than this, recall is told of the worst class alone.
MOST_CLASSES = 20

_ACC = METRICS["acc"]


def blocks(section: Section, most_lines: int) -> list[Block]:
    """The blocks of a section; tables with more than ``most_lines`` lines are folded."""
    found: list[Block] = []
    for details in section.details:
        found += _titled(f"Differences{_where(details.table)}", _differences(details), most_lines)
    for details in section.details:
        title = _where(details.table)
        found += _titled(f"Cost, clients and classes{title}", _costs(details, section.layout.target), most_lines)
        found += [Fold(f"Recall of each class{title}", (grid,)) for grid in _recall(details)]
    for ranges in section.ranges:
        kind = "" if ranges.kind == "federated" else f": {ranges.kind}"
        found += _titled(f"Range of learning rates{kind}", _ranges(ranges), most_lines)
    return found


def _where(table: Table) -> str:
    """A table's title behind a colon, with the kind in one word."""
    title = table.title.replace(KIND_TITLES.get(table.kind) or table.kind, table.kind)
    return f": {title}" if title else ""


def _titled(title: str, body: Sequence[Block], most_lines: int) -> list[Block]:
    """A heading and its blocks, long tables folded; nothing where there is nothing to say."""
    if not body:
        return []
    folded = [
        Fold(f"{len(block.rows)} lines", (block,))
        if isinstance(block, Grid) and len(block.rows) > most_lines
        else block
        for block in body
    ]
    return [Heading(3, title), *folded]


def _lines(details: Details) -> Iterator[tuple[tuple[Entry, ...], Position, Cell]]:
    """The cells column by column, each with the names of its row and its column."""
    table = details.table
    for c, col in enumerate(table.cols):
        for r in range(len(table.rows)):
            if (cell := table.cells.get((r, c))) is not None:
                yield words(*row_labels(table, r), *(at.label for at in col)), (r, c), cell


def _axes(details: Details) -> tuple[str, ...]:
    return (*details.table.row_axes, *("E" if axis == "local_steps" else axis for axis in details.table.col_axes))


def _differences(details: Details) -> list[Block]:
    """Every cell of a contest less the baseline, and less the best; nothing for single seeds, which allow no test."""
    table, baseline = details.table, details.baseline
    tested = [one for one in table.to_best.values() if one.p is not None]
    if not tested:
        return []
    heads = [f"to {row_name(baseline)}"] if details.to_baseline and baseline is not None else []
    rows = []
    for names, at, _ in _lines(details):
        if any(at in contest for contest in table.contests):
            contrasts = [_contrast(details.to_baseline.get(at), table.metric)] if heads else []
            best = Entry("best" if at in table.best else "–", bold=True) if at not in table.to_best else None
            contrasts.append(best or _contrast(table.to_best[at], table.metric, TIED if at in table.tied else ""))
            rows.append((*names, *contrasts))
    text = (
        f"Difference of the means{' in points' if METRICS[table.metric].percent else ''}, paired by seed, ± half-width "
        "of its 95 % interval; p: paired t-test, corrected for the number of cells in the column (Holm)."
    )
    axes = _axes(details)
    return [Paragraph(text), Grid((*axes, *heads, "to the best"), tuple(rows), len(axes))]


def _contrast(contrast: Contrast | None, metric: str, mark: str = "") -> Entry:
    if contrast is None:
        return Entry("–")
    text, below = contrast_text(contrast, metric)
    return Entry(text, (below,), mark=mark, order=contrast.difference.mean)


def _costs(details: Details, target: float | None) -> list[Block]:
    """Bytes, rounds and bytes to the target, worst client, spread and worst class, of every cell with a value."""
    lines = [(names, details.costs[at]) for names, at, cell in _lines(details) if cell.values]
    known = {
        name: any(getattr(costs, name) is not None for _, costs in lines)
        for name in ("worst", "spread", "bytes", "reached")
    }
    recalled = any(costs.recall for _, costs in lines)
    if not recalled and not any(known.values()):
        return []
    metric = METRICS[details.table.metric]
    heads = ["worst client"] * known["worst"] + ["sd over clients"] * known["spread"] + ["worst class"] * recalled
    heads += ["bytes"] * known["bytes"] + ["rounds to target", "bytes to target"] * known["reached"]
    rows = []
    for names, costs in lines:
        entries = [_percent(costs.worst)] * known["worst"] + [_percent(costs.spread)] * known["spread"]
        entries += [_worst_class(costs)] * recalled + [_bytes(costs.bytes)] * known["bytes"]
        rows.append((*names, *entries, *(_reached(costs.reached) if known["reached"] else ())))
    text = "Means over seeds. Worst client and worst class: accuracy; bytes: sent and received by all clients."
    if known["reached"] and target is not None:
        text += f" Target: {metric.text(target)}, at the first evaluation that reaches it."
    elif known["reached"] and details.baseline is not None:
        text += (
            f" Target: what {literal(row_name(details.baseline))} ends with in the same column with the same seed, at "
            "the first evaluation that reaches it."
        )
    axes = _axes(details)
    return [Paragraph(text), Grid((*axes, *heads), tuple(rows), len(axes))]


def _percent(value: float | None) -> Entry:
    return Entry("–") if value is None else Entry(_ACC.text(value), order=value)


def _bytes(value: float | None) -> Entry:
    return Entry("–") if value is None else Entry(bytes_text(value), order=value)


def _worst_class(costs: Costs) -> Entry:
    known = [(recall, number) for number, recall in enumerate(costs.recall) if recall is not None]
    if not known:
        return Entry("–")
    recall, number = min(known)
    return Entry(_ACC.text(recall), (f"class {number}",), order=recall)


def _reached(reached: Reached | None) -> tuple[Entry, Entry]:
    if reached is None:
        return Entry("–"), Entry("–")
    if reached.rounds is None:
        return Entry("never"), Entry("never")
    some = (f"{reached.n}/{reached.wished} seeds",) if reached.n < reached.wished else ()
    return Entry(f"{reached.rounds:,.0f}", some, order=reached.rounds), _bytes(reached.bytes)


def _recall(details: Details) -> list[Grid]:
    """Recall of each class, where there are few enough to be read."""
    lines = [(names, details.costs[at].recall) for names, at, _ in _lines(details)]
    classes = max((len(recall) for _, recall in lines), default=0)
    if not 0 < classes <= MOST_CLASSES:
        return []
    rows = [(*names, *map(_percent, recall)) for names, recall in lines if len(recall) == classes]
    axes = _axes(details)
    return [Grid((*axes, *(f"class {number}" for number in range(classes))), tuple(rows), len(axes))]


def _ranges(ranges: Ranges) -> list[Block]:
    text = (
        f"The unbroken range of learning rates around the best one in which the mean stays within {100 * WITHIN:g} "
        "points of the best, and its width in decades; ≥: it ends where the tried rates end. Diverged: of all finished "
        "runs at any rate."
    )
    somewhere = any(one.where for one in ranges.rows)
    heads = (*ranges.row_axes, *(["where"] if somewhere else []), "best", "range", "decades", "diverged")
    rows = [
        (*words(*(at.label for at in one.row), *([one.where] if somewhere else [])), *_range(one))
        for one in ranges.rows
    ]
    return [Paragraph(text), Grid(heads, tuple(rows), len(ranges.row_axes) + somewhere)]


def _range(one: Robustness) -> Sequence[Entry]:
    share = 100 * one.diverged / one.finished if one.finished else 0.0
    diverged = Entry(f"{one.diverged}/{one.finished}", (f"{share:.0f} %",) if one.diverged else (), order=share)
    if one.best is None:
        return (Entry("–"), Entry("no complete cell"), Entry("–"), diverged)
    bound = "≥ " if one.open_low or one.open_high else ""
    return (
        Entry(_ACC.text(one.best), order=one.best),
        Entry(f"{one.low:.4g} to {one.high:.4g}", order=one.high),
        Entry(f"{bound}{one.decades:.1f}", order=one.decades),
        diverged,
    )
