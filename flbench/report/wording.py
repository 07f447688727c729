"""How cells, numbers and their gaps are put into words, wherever they are shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flbench.metric_specs import METRICS
from flbench.report.cells import Cell, Tick, axis_label
from flbench.report.paired_tests import Contrast
from flbench.report.tables import Table

#: Stands after what is not shown to be worse than the best.
TIED = "≈"


def head(table: Table, col: Sequence[Tick]) -> list[str]:
    """The lines above a column: its place on every axis, or the metric where there is only one column."""
    return [axis_label(axis, at) for axis, at in zip(table.col_axes, col, strict=True)] or [METRICS[table.metric].title]


def row_labels(table: Table, r: int) -> list[str]:
    """The row's names; the first carries the mark of methods without a shared model."""
    labels = [at.label for at in table.rows[r]]
    personal = any(cell.personal for (row, _), cell in table.cells.items() if row == r)
    return [f"{label} ¹" if personal and i == 0 and table.ranked else label for i, label in enumerate(labels)]


def row_name(row: Sequence[Tick]) -> str:
    """A row in one word or two: ``fedavg none``."""
    return " ".join(at.label for at in row)


def parts(cell: Cell) -> tuple[str, list[str]]:
    """A cell's value with the half-width of its interval (empty if it has none), and the lines below it."""
    metric = METRICS[cell.metric]
    summary = cell.summary
    below = []
    value = ""
    if summary:
        value = mean_text(cell)
        spread = "" if summary.sd is None else f"sd {metric.text(summary.sd)}, "
        below.append(f"{spread}n={summary.n}{', no interval' if summary.half_width is None else ''}")
    if not cell.complete:
        below.append(gap_text(cell))
    if cell.chosen:
        below.append(cell.chosen)
    return value, below


def mean_text(cell: Cell) -> str:
    """``97.26 ± 1.05``: mean and half-width of its interval; empty where there is no value."""
    if cell.summary is None:
        return ""
    metric, half_width = METRICS[cell.metric], cell.summary.half_width
    return metric.text(cell.summary.mean) + ("" if half_width is None else f" ± {metric.text(half_width)}")


def gap_text(cell: Cell) -> str:
    """``not run``, ``2/3 diverged`` or ``2/3: 1 failed (oom)``."""
    if cell.gaps == {"pending": cell.wished}:
        return "not run"
    if cell.gaps.keys() == {"diverged"}:
        return f"{cell.gaps['diverged']}/{cell.wished} diverged"
    return f"{len(cell.values)}/{cell.wished}: {listing(cell.gaps)}"


def listing(counts: Mapping[str, int]) -> str:
    """``1 diverged, 2 pending``."""
    return ", ".join(f"{count} {what}" for what, count in counts.items())


def contrast_text(contrast: Contrast, metric: str) -> tuple[str, str]:
    """``+20.66 ± 3.10``, and ``p 0.012, n=3`` to stand below it."""
    found, known = contrast.difference, METRICS[metric]
    half_width = "" if found.half_width is None else f" ± {known.text(found.half_width)}"
    test = f"n={found.n}, no test" if contrast.p is None else f"p {p_text(contrast.p)}, n={found.n}"
    return f"{known.change(found.mean)}{half_width}", test


def p_text(p: float) -> str:
    """A p-value with two digits, or its bound."""
    return "<0.001" if p < 0.001 else f"{p:.2g}"


def bytes_text(count: float) -> str:
    """``141.3 MB``, in powers of 1000, with a space at which no line breaks."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 1000 or unit == "TB":
            return f"{count:.{0 if unit == 'B' else 1}f}\N{NO-BREAK SPACE}{unit}"
        count /= 1000
    raise AssertionError


def numbers_text(numbers: Sequence[int]) -> str:
    """``0, 1, 2`` or, for many in a row, ``0 to 19``."""
    if len(numbers) > 3 and list(numbers) == list(range(numbers[0], numbers[0] + len(numbers))):
        return f"{numbers[0]} to {numbers[-1]}"
    return ", ".join(map(str, numbers))
