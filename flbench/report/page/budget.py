"""The table of tuning budgets: what fewer tried settings give."""

from __future__ import annotations

from collections.abc import Iterator

from flbench.metric_specs import METRICS
from flbench.report.blocks import Block, Entry, Grid, Paragraph, words
from flbench.report.budget import Budgets
from flbench.report.stats import Summary
from flbench.report.ticks import axis_names
from flbench.report.wording import NONE

#: The numbers of settings that the table shows, beside all of them.
SHOWN = (1, 2, 3, 5)


def budget_blocks(budgets: Budgets, metric: str) -> Iterator[Block]:
    """Yield the table, a row a row and column of the section."""
    yield Paragraph(
        "Expected value if only this many of a row's settings, drawn at random, are tried and the best of them by the "
        "rule is reported, ± half-width of its 95 % interval over seeds (`docs/statistics.md`). Runs that diverged "
        "count with the accuracy of guessing."
    )
    several = any(one.column for one in budgets.rows)
    most = max(len(one.curve) for one in budgets.rows)
    numbers = [k for k in SHOWN if k < most]
    rows = []
    for one in budgets.rows:
        names = words(*(at.label for at in one.row), *([one.column] if several else []))
        entries = (_entry(one.curve[k - 1], metric) if k < len(one.curve) else Entry(NONE) for k in numbers)
        rows.append((*names, *entries, _entry(one.curve[-1], metric)))
    heads = (
        *axis_names(budgets.row_axes),
        *(["where"] if several else []),
        *(f"{k} tried" for k in numbers),
        "all tried",
    )
    yield Grid(heads, tuple(rows), len(budgets.row_axes) + several)


def _entry(found: Summary, metric: str) -> Entry:
    text = METRICS[metric].text
    half_width = "" if found.half_width is None else f" ± {text(found.half_width)}"
    return Entry(f"{text(found.mean)}{half_width}", order=found.mean)
