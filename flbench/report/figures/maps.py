"""Maps of colours: means by method and norm, light is better; gains over two axes of columns, zero is white."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from flbench.metric_specs import METRICS
from flbench.report.board import Leaderboard, Section
from flbench.report.cells import Cell, Position, grouped
from flbench.report.figures.drawing import FIGURES, Drawing, file_name, table_file_name, titles_of
from flbench.report.figures.style import (
    COLOR_MAP,
    GAIN_COLORS,
    GREY,
    SMALL,
    WIDTH,
    metric_label,
    no_math,
    panels,
    row_label,
    scale_of,
    set_panel_title,
    set_title,
    spelled,
    wrapped,
)
from flbench.report.planned import Planned
from flbench.report.tables import Table
from flbench.report.ticks import Tick, place_label
from flbench.report.wording import TIED, gap_text, in_words

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: The least share of cells of a heatmap that are not empty.
_FULL = 0.8

#: Fewer places than this on an axis make no phase diagram.
FEWEST = 3

#: Least width and height in inches of a cell, and of a place in a phase diagram.
_CELL, _PLACE = (0.62, 0.5), (0.42, 0.34)


class _Colors:
    """The colours of all maps of a figure."""

    def __init__(self, values: Sequence[float], metric: str, *, around_zero: bool = False) -> None:
        from matplotlib import colormaps
        from matplotlib.cm import ScalarMappable
        from matplotlib.colors import CenteredNorm, Colormap, LinearSegmentedColormap, Normalize

        is_reversed = METRICS[metric].lower_is_better
        if around_zero:
            self._shade: Normalize = CenteredNorm(0, max(map(abs, values)) or 1.0)
            colors: Colormap = LinearSegmentedColormap.from_list("gains", GAIN_COLORS)
        else:
            # The worst tenth has one colour, so that a few failures leave the others their differences.
            worst, best = np.quantile(values, [0.9, 0.0] if is_reversed else [0.1, 1.0])
            self._shade, colors = Normalize(min(worst, best), max(worst, best)), colormaps[COLOR_MAP]
        self._colors = colors.reversed() if is_reversed else colors
        self.bar = ScalarMappable(self._shade, self._colors)
        self.extend: Literal["neither", "min", "max"] = "neither" if around_zero else "max" if is_reversed else "min"

    def draw(
        self,
        panel: Axes,
        at: tuple[int, int],
        value: float | None,
        text: str,
        *,
        size: float,
        bold: bool,
        linewidth: float | None = None,
        hatch: str | None = None,
    ) -> str:
        """Draw the square of a value with its text; return the colour of the text."""
        from matplotlib.patches import Rectangle

        x, y = at
        face: Any = "#FFFFFF" if value is None else self._colors(self._shade(value))
        panel.add_patch(
            Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=face, edgecolor="#FFFFFF", linewidth=linewidth, hatch=hatch)
        )
        red, green, blue = (1, 1, 1) if value is None else self._colors(self._shade(value))[:3]
        ink = "#FFFFFF" if 0.299 * red + 0.587 * green + 0.114 * blue < 0.5 else "#000000"
        weight = "bold" if bold else "normal"
        panel.text(x, y, text, ha="center", va="center", color=ink, fontsize=size, fontweight=weight)
        return ink


def _frame(panel: Axes, columns: Sequence[str], rows: Sequence[str]) -> None:
    """Set the axes of a map, whose first row is at the top."""
    panel.set_xlim(-0.5, len(columns) - 0.5)
    panel.set_ylim(len(rows) - 0.5, -0.5)
    panel.set_xticks(range(len(columns)), list(map(no_math, columns)))
    panel.set_yticks(range(len(rows)), list(map(no_math, rows)))
    panel.tick_params(length=0)
    panel.grid(visible=False)
    panel.spines[:].set_visible(False)


@FIGURES.register(
    "heatmap",
    "method x norm as colours, without rows and columns that are mostly empty",
    requires="at least two of each",
    order=50,
)
def heatmap(board: Leaderboard) -> Iterator[Drawing]:
    """Draw one figure a table whose rows have two axes with two values or more; a map a column.

    Yields:
        A figure without the values and columns that are mostly empty.
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
                    yield _draw_heatmap(section, table, outer, inner, cells)


def _well_filled(table: Table) -> tuple[list[Tick], list[Tick], list[int]]:
    """Return the values on both row axes and the columns without those that are mostly empty."""
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


def _draw_heatmap(
    section: Section, table: Table, outer: Sequence[Tick], inner: Sequence[Tick], cells: Mapping[Position, Cell]
) -> Drawing:
    cols = sorted({c for _, c in cells})
    across = max(1, min(3, int((WIDTH - 2) / (_CELL[0] * len(inner)))))
    wide = max(_CELL[0], (WIDTH - 2) / (min(across, len(cols)) * len(inner)))
    height = _CELL[1] * len(outer) + 0.7
    figure, axes = panels(len(cols), across=across, height=height, sharex=True, sharey=True)
    scale, text = scale_of(table.metric), METRICS[table.metric].text
    means = {at: scale * cell.summary.mean for at, cell in cells.items() if cell.summary}
    colors = _Colors([*means.values()], table.metric)
    for column, panel in zip(cols, axes, strict=True):
        for (r, c), cell in cells.items():
            if c == column:
                row, mark = table.rows[r], f" {TIED}" if cell.is_tied else ""
                x, y = inner.index(row[-1]), outer.index(row[0])
                shown = text(cell.summary.mean) if cell.summary else ""
                ink = colors.draw(
                    panel,
                    (x, y),
                    means.get((r, c)),
                    shown + mark,
                    size=8,
                    bold=cell.is_best,
                    linewidth=1.5,
                    hatch=None if cell.complete else "////",
                )
                if not cell.complete:
                    color, y_of_gap = (ink, y + 0.3) if cell.summary else (GREY, y)
                    gap = wrapped(gap_text(cell), wide, SMALL)
                    panel.text(x, y_of_gap, gap, ha="center", va="center", color=color, fontsize=SMALL)
        for x, y in product(range(len(inner)), range(len(outer))):
            if not any(c == column and (table.rows[r][-1], table.rows[r][0]) == (inner[x], outer[y]) for r, c in cells):
                panel.text(x, y, "not run", ha="center", va="center", color=GREY, fontsize=SMALL)
        names = (
            [row_label((at,), table.row_axes[axis:][:1]) for at in some] for axis, some in ((-1, inner), (0, outer))
        )
        _frame(panel, *names)
        set_panel_title(panel, in_words(place_label(table.col_axes, table.cols[column])))
    figure.colorbar(colors.bar, ax=axes, label=metric_label(table.metric), fraction=0.05, extend=colors.extend)
    title = titles_of(section, table)
    marks = f"bold: the best, {TIED}: tied with it"
    set_title(figure, f"{title}; {marks}")
    caption = f"{title}: mean {metric_label(table.metric)}; {marks}; the worst tenth has one colour."
    if len(cells) < len(table.cells):
        caption += f" {len(cells)} of {len(table.cells)} cells: without rows and columns that are mostly empty."
    return Drawing(table_file_name("heatmap", section, table), caption, figure, section.place)


@FIGURES.register(
    "phase",
    "gains over two axes of columns, such as classes and E; bold with *: shown by the corrected test and the checks",
    requires="three places on both axes",
    order=5,
    on_first_page=True,
)
def phase(board: Leaderboard) -> Iterator[Drawing]:
    """Draw one figure for each reference value, with a map for each value that is compared with it; no interactions.

    Yields:
        A figure where columns have two axes with ``FEWEST`` places or more.
    """
    for section in board.sections:
        for some in mapped(section):
            yield _draw_phase(section, some)


def mapped(section: Section) -> Iterator[list[Planned]]:
    """Yield the planned comparisons of each figure."""
    plain = [one for one in section.gains if not one.between and len(one.place.axes) == 2]
    for some in grouped(plain, lambda one: (one.pair.field, one.pair.against.form)):
        if min(map(len, _places(some))) >= FEWEST:
            yield some


def _places(some: Sequence[Planned]) -> list[list[Tick]]:
    """Return the places on both axes."""
    return [sorted({one.place.ticks[axis] for one in some}) for axis in (0, 1)]


def _draw_phase(section: Section, some: Sequence[Planned]) -> Drawing:
    rows, columns = _places(some)
    values = list(dict.fromkeys(one.value for one in some))
    across = max(1, min(2, int(WIDTH / (_PLACE[0] * len(columns)))))
    height = _PLACE[1] * len(rows) + 0.45
    figure, axes = panels(len(values), across=across, height=height, sharex=True, sharey=True)
    metric, scale, against = METRICS[section.layout.metric], scale_of(section.layout.metric), some[0].reference
    colors = _Colors([scale * one.contrast.difference.mean for one in some], section.layout.metric, around_zero=True)
    for panel, value in zip(axes, values, strict=True):
        for one in (one for one in some if one.value == value):
            y, x = rows.index(one.place.ticks[0]), columns.index(one.place.ticks[1])
            gain, is_shown = scale * one.contrast.difference.mean, one.is_different
            colors.draw(panel, (x, y), gain, f"{gain:+z.1f}{'*' if is_shown else ''}", size=7.5, bold=is_shown)
        _frame(panel, [in_words(at.label) for at in columns], [in_words(at.label) for at in rows])
        panel.spines[:].set_visible(True)
        panel.set_title(no_math(f"{spelled(value)} against {spelled(against)}"))
    unit = " (points)" if metric.percent else ""
    figure.colorbar(colors.bar, ax=axes, label=f"gain in {metric.title}{unit}", fraction=0.05)
    of_classes = all(tick.label.startswith("classes:") for one in some for tick in one.place.ticks if ":" in tick.label)
    known = {"local_steps": "E (local steps)", "partition": "classes a client" if of_classes else "partition"}
    names = [known.get(axis, axis) for axis in some[0].place.axes]
    figure.supylabel(names[0], fontsize="medium")
    figure.supxlabel(names[1], fontsize="medium")
    set_title(figure, f"{section.words}: gain against {spelled(against)}; bold with *: shown")
    caption = (
        f"{section.words}: gain in {metric.title}{unit} against {spelled(against)}, paired by seed; bold with *: "
        f"shown, by a t-test with Holm's correction over the {len(section.planned)} planned comparisons and the checks."
    )
    return Drawing(file_name("phase", section.title, f"against {against}"), caption, figure, section.place)
