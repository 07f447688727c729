"""Method x norm as a map of colours that also reads in grey: light is better."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from flbench.metric_specs import METRICS
from flbench.report.board import Details, Leaderboard, Section
from flbench.report.cells import Cell, Tick
from flbench.report.figures.drawing import Drawing, file_name
from flbench.report.figures.style import (
    GREY,
    entitle,
    literal,
    metric_label,
    name_panel,
    place_name,
    scale_of,
    title_of,
)
from flbench.report.tables import Table
from flbench.report.wording import TIED, gap_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Normalize
    from matplotlib.patches import Rectangle

#: Its lightness rises steadily, for every kind of colour blindness and in grey.
_COLORS = "cividis"

#: Inches of a position, and most maps side by side.
_CELL, _ACROSS = (0.85, 0.5), 3

#: Inches that a map's name needs.
_NARROWEST = 1.5


def heatmap(board: Leaderboard) -> Iterator[Drawing]:
    """One figure a table whose rows have two axes with two values at least; a map a column."""
    for section in board.sections:
        for details in section.details:
            table = details.table
            outer, inner = (sorted({row[axis] for row in table.rows}) for axis in (0, -1))
            if len(table.row_axes) == 2 and min(len(outer), len(inner)) > 1 and _means(table):
                yield _draw(section, details, outer, inner)


def _means(table: Table) -> list[float]:
    return [scale_of(table.metric) * cell.summary.mean for cell in table.cells.values() if cell.summary]


def _draw(section: Section, details: Details, outer: Sequence[Tick], inner: Sequence[Tick]) -> Drawing:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

    table = details.table
    down = math.ceil(len(table.cols) / _ACROSS)
    across = math.ceil(len(table.cols) / down)
    wide, tall = max(_CELL[0] * len(inner) + 0.35, _NARROWEST), _CELL[1] * len(outer) + 0.7
    figure = Figure(figsize=(max(wide * across + 2.0, 4.0), tall * down + 0.7), layout="constrained")
    axes = list(figure.subplots(down, across, squeeze=False, sharex=True, sharey=True).ravel())
    shade = Normalize(min(_means(table)), max(_means(table)))
    for c, panel in enumerate(axes[: len(table.cols)]):
        _draw_map(panel, table, c, outer, inner, shade)
        name_panel(panel, place_name(table.col_axes, table.cols[c]), wide)
    for spare in axes[len(table.cols) :]:
        spare.set_axis_off()
    colors = f"{_COLORS}{'_r' if METRICS[table.metric].lower_is_better else ''}"
    figure.colorbar(ScalarMappable(shade, colors), ax=axes, label=metric_label(table.metric), fraction=0.05)
    entitle(figure, title_of(section, table))
    caption = f"{title_of(section, table)}: mean {metric_label(table.metric)}; bold the best, {TIED} tied with it."
    name = file_name(
        "heatmap", title_of(section, table), *(at.label for at in table.cols[0] if _is_part(section, table))
    )
    return Drawing("heatmap", name, caption, figure, section.place)


def _is_part(section: Section, table: Table) -> bool:
    """Whether several tables have this one's title."""
    return sum(details.table.title == table.title for details in section.details) > 1


def _draw_map(
    panel: Axes, table: Table, c: int, outer: Sequence[Tick], inner: Sequence[Tick], shade: Normalize
) -> None:
    from matplotlib import colormaps

    colors = colormaps[f"{_COLORS}{'_r' if METRICS[table.metric].lower_is_better else ''}"]
    for r, row in enumerate(table.rows):
        x, y = inner.index(row[-1]), outer.index(row[0])
        cell = table.cells.get((r, c))
        mean = scale_of(table.metric) * cell.summary.mean if cell and cell.summary else None
        face = "#FFFFFF" if mean is None else colors(shade(mean))
        panel.add_patch(_square(x, y, face, hatched=cell is not None and not cell.complete))
        if cell is not None:
            _write(panel, x, y, cell, table, (r, c), dark=mean is not None and shade(mean) < 0.5)
    panel.set_xlim(-0.5, len(inner) - 0.5)
    panel.set_ylim(len(outer) - 0.5, -0.5)
    panel.set_xticks(range(len(inner)), [literal(at.label) for at in inner])
    panel.set_yticks(range(len(outer)), [literal(at.label) for at in outer])
    panel.tick_params(length=0)
    panel.grid(visible=False)
    panel.spines[:].set_visible(False)


def _square(x: int, y: int, face: Any, *, hatched: bool) -> Rectangle:
    from matplotlib.patches import Rectangle

    hatch = "////" if hatched else None
    return Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=face, edgecolor="#FFFFFF", linewidth=1.5, hatch=hatch)


def _write(panel: Axes, x: int, y: int, cell: Cell, table: Table, at: tuple[int, int], *, dark: bool) -> None:
    """The mean, its mark, and below it what is missing."""
    ink = "#FFFFFF" if dark else "#000000"
    text = METRICS[cell.metric].text(cell.summary.mean) if cell.summary else ""
    mark = f" {TIED}" if at in table.tied else ""
    weight = "bold" if at in table.best else "normal"
    panel.text(x, y, text + mark, ha="center", va="center", color=ink, fontsize=8, fontweight=weight)
    if not cell.complete:
        color = ink if cell.summary else GREY
        panel.text(x, y + (0.3 if text else 0), gap_text(cell), ha="center", va="center", color=color, fontsize=5)
