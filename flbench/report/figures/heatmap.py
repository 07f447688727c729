"""Method x norm as a map of colours that is readable in grey: light is better."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from flbench.metric_specs import METRICS
from flbench.report.board import Leaderboard, Section
from flbench.report.cells import Cell, Position
from flbench.report.figures.drawing import FIGURES, Drawing, table_file_name, titles_of
from flbench.report.figures.style import (
    COLOR_MAP,
    GREY,
    WIDTH,
    metric_label,
    no_math,
    panels,
    row_label,
    scale_of,
    set_panel_title,
    set_title,
)
from flbench.report.tables import Table
from flbench.report.ticks import Tick, place_label
from flbench.report.wording import TIED, gap_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap, Normalize

#: The least share of cells that are not empty.
_FULL = 0.8

#: Least width and height of a cell in inches.
_CELL = 0.62, 0.5


@FIGURES.register(
    "heatmap",
    "method x norm as colours, without rows and columns that are mostly empty",
    requires="at least two of each",
    order=50,
)
def heatmap(board: Leaderboard) -> Iterator[Drawing]:
    """Draw one figure a table whose rows have two axes with two values or more; a map a column.

    Yields:
        A figure without the values and columns that have the most empty cells, so that few cells are empty.
    """
    for section in board.sections:
        for table in section.details:
            if len(table.row_axes) == 2:
                outer, inner, cols = _well_filled(table)
                cells = {
                    (r, c): cell
                    for (r, c), cell in table.cells.items()
                    if c in cols and table.rows[r][0] in outer and table.rows[r][-1] in inner
                }
                if min(len(outer), len(inner)) > 1 and any(cell.summary for cell in cells.values()):
                    yield _draw(section, table, outer, inner, cells)


def _well_filled(table: Table) -> tuple[list[Tick], list[Tick], list[int]]:
    """Return the values on both axes of rows, and the columns, of which few cells are empty."""
    outer, inner = (sorted({row[axis] for row in table.rows}) for axis in (0, -1))
    filled = np.zeros((len(outer), len(inner), len(table.cols)), dtype=bool)
    for r, c in table.cells:
        filled[outer.index(table.rows[r][0]), inner.index(table.rows[r][-1]), c] = True
    kept = [list(range(length)) for length in filled.shape]
    while (part := filled[np.ix_(*kept)]).size and part.mean() < _FULL:
        shares = [
            (share, axis, at)
            for axis, others in enumerate([(1, 2), (0, 2), (0, 1)])
            for at, share in enumerate(part.mean(axis=others))
        ]
        _, axis, at = min(shares)
        del kept[axis][at]
    return [outer[o] for o in kept[0]], [inner[i] for i in kept[1]], kept[2]


def _draw(
    section: Section, table: Table, outer: Sequence[Tick], inner: Sequence[Tick], cells: Mapping[Position, Cell]
) -> Drawing:
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    cols = sorted({c for _, c in cells})
    across = max(1, min(3, int((WIDTH - 2) / (_CELL[0] * len(inner)))))
    height = _CELL[1] * len(outer) + 0.7
    figure, axes = panels(len(cols), across=across, height=height, sharex=True, sharey=True)
    means = [scale_of(table.metric) * cell.summary.mean for cell in cells.values() if cell.summary]
    shade = Normalize(min(means), max(means))
    colors = colormaps[f"{COLOR_MAP}{'_r' if METRICS[table.metric].lower_is_better else ''}"]
    for c, panel in zip(cols, axes, strict=True):
        _draw_map(panel, table, {at: cell for at, cell in cells.items() if at[1] == c}, outer, inner, shade, colors)
        set_panel_title(panel, place_label(table.col_axes, table.cols[c]))
    figure.colorbar(ScalarMappable(shade, colors), ax=axes, label=metric_label(table.metric), fraction=0.05)
    title = titles_of(section, table)
    set_title(figure, title)
    caption = f"{title}: mean {metric_label(table.metric)}; bold the best, {TIED} tied with it."
    if len(cells) < len(table.cells):
        caption += f" {len(cells)} of {len(table.cells)} cells: without rows and columns that are mostly empty."
    return Drawing(table_file_name("heatmap", section, table), caption, figure, section.place)


def _draw_map(
    panel: Axes,
    table: Table,
    cells: Mapping[Position, Cell],
    outer: Sequence[Tick],
    inner: Sequence[Tick],
    shade: Normalize,
    colors: Colormap,
) -> None:
    from matplotlib.patches import Rectangle

    for at, cell in cells.items():
        row = table.rows[at[0]]
        x, y = inner.index(row[-1]), outer.index(row[0])
        mean = scale_of(table.metric) * cell.summary.mean if cell.summary else None
        face: Any = "#FFFFFF" if mean is None else colors(shade(mean))
        hatch = None if cell.complete else "////"
        panel.add_patch(
            Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=face, edgecolor="#FFFFFF", linewidth=1.5, hatch=hatch)
        )
        ink = "#FFFFFF" if mean is not None and shade(mean) < 0.5 else "#000000"
        text = METRICS[cell.metric].text(cell.summary.mean) if cell.summary else ""
        mark = f" {TIED}" if cell.is_tied else ""
        weight = "bold" if cell.is_best else "normal"
        panel.text(x, y, text + mark, ha="center", va="center", color=ink, fontsize=8, fontweight=weight)
        if not cell.complete:
            color = ink if cell.summary else GREY
            panel.text(x, y + (0.3 if text else 0), gap_text(cell), ha="center", va="center", color=color, fontsize=5)
    panel.set_xlim(-0.5, len(inner) - 0.5)
    panel.set_ylim(len(outer) - 0.5, -0.5)
    panel.set_xticks(range(len(inner)), [no_math(row_label((at,), table.row_axes[-1:])) for at in inner])
    panel.set_yticks(range(len(outer)), [no_math(at.label) for at in outer])
    panel.tick_params(length=0)
    panel.grid(visible=False)
    panel.spines[:].set_visible(False)
