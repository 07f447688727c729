"""The tuning-budget curve: the expected value over the number of tried settings, row by row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flbench.metric_specs import METRICS
from flbench.report.board import Leaderboard, Section
from flbench.report.cells import grouped
from flbench.report.figures.drawing import FIGURES, Drawing, file_name
from flbench.report.figures.rows import lacking_text, leading, shown_text
from flbench.report.figures.style import (
    is_lowest,
    legend,
    metric_label,
    named,
    panels,
    plot_mean,
    row_styles,
    scale_of,
    set_panel_title,
    set_title,
)
from flbench.report.tables import kind_name
from flbench.report.tuning import Budget, Rows
from flbench.report.wording import in_words

#: Most panels, and panels side by side.
MOST_PANELS, _ACROSS = 8, 4


@FIGURES.register(
    "budget",
    "the expected value over the number of tried settings, of at most eight rows and eight columns",
    requires="tuned settings",
    order=6,
    on_first_page=True,
)
def budget(board: Leaderboard) -> Iterator[Drawing]:
    """Draw one figure a section: a panel a column, a line a row."""
    for section in board.sections:
        for budgets in section.budgets:
            yield _draw(section, budgets)


def _draw(section: Section, budgets: Rows[Budget]) -> Drawing:
    columns = _columns(budgets.rows)
    lines = [(one.row, one.cell, one.curve[-1].mean) for column in columns for one in column]
    rows = leading(lines, section.layout)
    styles = row_styles(rows, budgets.row_axes)
    metric = section.layout.metric
    figure, axes = panels(len(columns), across=_ACROSS, height=1.9, sharex=True, sharey=True)
    for panel, column in zip(axes, columns, strict=True):
        set_panel_title(panel, in_words(column[0].column))
        if is_lowest(panel):
            panel.set_xlabel("tried settings")
        for one in column:
            if one.row in styles:
                known = [(summary.mean, summary.half_width) for summary in one.curve]
                means, widths = zip(*known, strict=True)
                numbers = range(1, len(known) + 1)
                plot_mean(panel, numbers, means, widths, styles[one.row], scale=scale_of(metric))
    most = max(len(one.curve) for column in columns for one in column)
    axes[0].set_xticks(range(1, most + 1, 1 if most < 10 else 2))
    figure.supylabel(f"expected {metric_label(metric)}", fontsize="medium")
    if METRICS[metric].percent:
        low, high = axes[0].get_ylim()
        axes[0].set_ylim(max(low, 0), min(high, 101))
    what = f"{section.words}: expected {metric_label(metric)} over the number of tried settings"
    set_title(figure, what + lacking_text(rows, [{one.row for one in column} for column in columns]))
    legend(figure, named(styles, budgets.row_axes))
    caption = f"{what}, of which the best by the rule is reported; bands: 95 % intervals over seeds."
    caption += shown_text(len(rows), len({row for row, *_ in lines}))
    return Drawing(
        file_name("budget", section.title, kind_name(budgets.kind)),
        caption,
        figure,
        section.place,
    )


def _columns(found: Sequence[Budget]) -> list[list[Budget]]:
    """Return the curves by column; of many columns only those at the ends of every axis."""
    columns = grouped(found, lambda one: one.col)
    if len(columns) <= MOST_PANELS:
        return columns
    ends = [{min(ticks), max(ticks)} for ticks in zip(*(column[0].col for column in columns), strict=True)]
    return [column for column in columns if all(tick in of for tick, of in zip(column[0].col, ends, strict=True))]
