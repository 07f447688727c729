"""Cells, numbers and gaps as text, the same in every format."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from flbench.metric_specs import METRICS, Metric
from flbench.report.costs import Reached
from flbench.report.planned import Judged
from flbench.report.stats import Contrast, Difference
from flbench.report.tables import POINT, Layout, Table
from flbench.report.ticks import Tick, axis_label, place_label

#: Mark of a cell that is not significantly worse than the best.
TIED = "≈"

#: What is shown where there is no value.
NONE = "–"


def column_head(table: Table, col: Sequence[Tick]) -> str:
    """Return the lines above a column: its position on every axis, or the metric where it is the only column."""
    labels = [axis_label(axis, at) for axis, at in zip(table.col_axes, col, strict=True)]
    return "\n".join(labels or [METRICS[table.metric].title])


def column_name(table: Table, col: Sequence[Tick]) -> str:
    """Return the position of a column on every axis on one line; a wide table is split, and its title has a part."""
    return ", ".join(filter(None, [table.short_title, place_label(table.col_axes, col)]))


def row_labels(table: Table, r: int) -> list[str]:
    """Return the labels of a row; the first has the mark of methods without a shared model."""
    personal = any(cell.personal for (row, _), cell in table.cells.items() if row == r)
    return marked([at.label for at in table.rows[r]], personal=personal and table.ranked)


def marked(labels: Sequence[str], *, personal: bool) -> list[str]:
    """Return the labels of a row, the first one with a footnote mark where there is no shared model."""
    return [f"{label} ¹" if personal and i == 0 else label for i, label in enumerate(labels)]


def row_name(row: Sequence[Tick]) -> str:
    """Return the labels of a row as one name: ``fedavg none``."""
    return " ".join(at.label for at in row)


def contrast_text(contrast: Contrast, metric: str) -> tuple[str, str]:
    """Return ``+20.66 ± 3.10``, and the line below it, ``p 0.012, n=3``."""
    text, n = difference_text(contrast.difference, metric), contrast.difference.n
    if contrast.p is None:
        return text, f"n={n}, no test"
    return text, f"p {'<0.001' if contrast.p < 0.001 else f'{contrast.p:.2g}'}, n={n}"


def difference_text(found: Difference, metric: str) -> str:
    """Return ``+20.66 ± 3.10``."""
    known = METRICS[metric]
    half_width = "" if found.half_width is None else f" ± {known.text(found.half_width)}"
    return f"{known.change(found.mean)}{half_width}"


def last_text(last: Difference | None, metric: str) -> list[str]:
    """Return ``last +15.20 ± 2.90`` beside a difference of means over several evaluations."""
    return [] if last is None else [f"last {difference_text(last, metric)}"]


def margin_text(margin: float, metric: Metric) -> str:
    """Return ``1 point``, ``0.5 points``, or the number alone for a metric that is no percentage."""
    if not metric.percent:
        return f"{margin:g}"
    return f"{100 * margin:g} {'point' if margin == POINT else 'points'}"


def margins_text(layouts: Iterable[Layout]) -> str:
    """Return ``1 point``, or the margins of several layouts."""
    return " or ".join(dict.fromkeys(margin_text(one.tie_margin, METRICS[one.metric]) for one in layouts))


def verdict_text(judged: Judged, layout: Layout) -> str:
    """Return ``more``, ``less``, ``equivalent within 1 point``, both, or ``open``."""
    within = f"equivalent within {margin_text(layout.tie_margin, METRICS[layout.metric])}"
    return judged.verdict.replace("equivalent", within)


def reached_text(reached: Reached) -> str:
    """Return ``2/3 seeds``: how many reach the target."""
    return f"{reached.n}/{reached.requested} seeds"


def bytes_text(count: float) -> str:
    """Return ``141.3 MB``, in powers of 1000, with a no-break space."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 1000 or unit == "TB":
            return f"{count:.{0 if unit == 'B' else 1}f}\N{NO-BREAK SPACE}{unit}"
        count /= 1000
    raise AssertionError
