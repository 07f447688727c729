"""The figure of sharpness along training: lr x lambda_max / 2 of the global model over rounds."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from flbench.papers.label_skew.claims_by_seed import is_followed, ratios
from flbench.report.board import Leaderboard, Section
from flbench.report.cells import Position
from flbench.report.figures.drawing import Drawing, table_file_name, titles_of
from flbench.report.figures.rows import leading, shown_text
from flbench.report.figures.style import (
    BAND,
    GREY,
    SMALL,
    LineStyle,
    is_lowest,
    legend,
    named,
    panel_width,
    panels,
    row_label,
    row_styles,
    set_panel_title,
    set_title,
    wrapped,
)
from flbench.report.tables import Table
from flbench.report.ticks import place_label
from flbench.report.wording import in_words

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: The line of the ratio 1.
_LIMIT: LineStyle = {"color": GREY, "linewidth": 1, "linestyle": (0, (4, 2))}

#: The ratio of each seed by round.
Seeds = Mapping[int, Mapping[int, float]]


def sharpening(board: Leaderboard) -> Iterator[Drawing]:
    """Draw a figure for each table whose runs were probed along training: a panel a column, a line a row."""
    for section in board.sections:
        for table in section.details:
            paths = {
                at: ratios(cell, board.collection)
                for at, cell in table.cells.items()
                if is_followed(cell) and cell.values and not cell.personal
            }
            if paths:
                yield _draw(section, table, paths)


def _draw(section: Section, table: Table, paths: Mapping[Position, Seeds]) -> Drawing:
    from matplotlib.ticker import StrMethodFormatter

    lines = [(table.rows[r], cell := table.cells[r, c], cell.summary.mean if cell.summary else None) for r, c in paths]
    rows = leading(lines, section.layout)
    styles = row_styles(rows, table.row_axes)
    figure, axes = panels(len(table.cols), sharex=True, sharey=True)
    for c, (panel, col) in enumerate(zip(axes, table.cols, strict=True)):
        rates = []
        for number, (row, style) in enumerate(styles.items()):
            at = (table.rows.index(row), c)
            if at in paths:
                _draw_line(panel, paths[at], style, number)
                rates.append(f"{row_label(row, table.row_axes)} {table.cells[at].experiment.lr:.3g}")
        panel.axhline(1, **_LIMIT, zorder=1)
        panel.set_yscale("log")
        panel.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        set_panel_title(panel, in_words(place_label(table.col_axes, col)))
        text = wrapped(f"lr: {', '.join(rates)}", 0.7 * panel_width(panel), SMALL)
        panel.text(0.98, 0.03, text, transform=panel.transAxes, ha="right", va="bottom", fontsize=SMALL, color=GREY)
        if is_lowest(panel):
            panel.set_xlabel("round")
    figure.supylabel("lr × λ_max / 2 of the global model", fontsize="medium")
    title = titles_of(section, table)
    set_title(figure, f"{title}: mean and range over seeds")
    legend(figure, named(styles, table.row_axes) | {"1: gradient descent is stable below": _LIMIT})
    caption = (
        f"{title}: lr x lambda_max / 2 of the global model over rounds, geometric mean and range over seeds; "
        f"dashed: 1, below which gradient descent is stable.{shown_text(len(rows), len({row for row, *_ in lines}))}"
    )
    return Drawing(table_file_name("sharpening", section, table), caption, figure, section.place)


def _draw_line(panel: Axes, seeds: Seeds, style: LineStyle, number: int) -> None:
    """Draw the rounds that all seeds have; markers of different lines are at different rounds."""
    rounds = sorted(set.intersection(*(set(values) for values in seeds.values())))
    values = [[seed[at] for seed in seeds.values()] for at in rounds]
    panel.plot(rounds, [statistics.geometric_mean(some) for some in values], **style, markevery=(number % 3, 3))
    panel.fill_between(
        rounds, list(map(min, values)), list(map(max, values)), color=style["color"], alpha=BAND, linewidth=0
    )
