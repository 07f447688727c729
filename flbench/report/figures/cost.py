"""The cost of the target: bytes sent and received until it is reached, row by row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from flbench.report.board import Details, Leaderboard, Section
from flbench.report.costs import Reached
from flbench.report.figures.drawing import Drawing, table_file_name, titles_of
from flbench.report.figures.style import GREY, no_math, panels, row_styles, set_panel_title, set_title
from flbench.report.ticks import place_label
from flbench.report.wording import bytes_text, reached_text, row_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Width of a panel in inches.
_PANEL = 3.0


def cost(board: Leaderboard) -> Iterator[Drawing]:
    """Draw one figure a table with a target that some row reaches: a panel a column, a line a row."""
    for section in board.sections:
        for details in section.details:
            known = [costs.reached.bytes for costs in details.costs.values() if costs.reached and costs.reached.bytes]
            if known:
                yield _draw(section, details, (min(known) / 1.6, max(known) * 4))


def _draw(section: Section, details: Details, limits: tuple[float, float]) -> Drawing:
    from matplotlib.ticker import LogLocator, NullLocator

    table, target = details.table, section.layout.target
    figure, axes = panels(len(table.cols), panel=(_PANEL, 0.22 * len(table.rows) + 0.8), sharex=True, sharey=True)
    for c, panel in enumerate(axes):
        set_panel_title(panel, place_label(table.col_axes, table.cols[c]), _PANEL)
        _draw_panel(panel, details, c)
    panel = axes[0]
    panel.set_yticks(range(len(table.rows)), [no_math(row_name(row)) for row in table.rows])
    panel.set_ylim(len(table.rows) - 0.5, -0.5)
    panel.set_xscale("log")
    panel.set_xlim(*limits)
    panel.xaxis.set_major_locator(LogLocator(subs=(1, 3)))
    panel.xaxis.set_minor_locator(NullLocator())
    panel.xaxis.set_major_formatter(lambda value, _: bytes_text(value).replace(".0\N{NO-BREAK SPACE}", " "))
    figure.supxlabel("bytes sent and received until the target", fontsize="medium")
    title = titles_of(section, table)
    set_title(figure, f"{title}: cost of the target")
    what = f"{target:g}" if target is not None else f"what {row_name(details.baseline or ())} ends with, seed by seed"
    caption = f"{title}: bytes sent and received by all clients until the target ({what}) is reached."
    return Drawing(table_file_name("cost", section, table), caption, figure, section.place)


def _draw_panel(panel: Axes, details: Details, c: int) -> None:
    table = details.table
    for r, style in enumerate(row_styles(table.rows, table.row_axes)):
        if (r, c) not in table.cells:
            continue
        reached = details.costs[r, c].reached
        if reached is None or not reached.bytes:
            why = _why_no_bytes(reached)
            panel.annotate(why, (0.02, r), xycoords=("axes fraction", "data"), va="center", fontsize=7, color=GREY)
            continue
        panel.plot([0, reached.bytes], [r, r], color=style["color"], linewidth=0.8, linestyle=":")
        panel.plot(reached.bytes, r, marker=style["marker"], color=style["color"], markersize=5)
        some = f" ({reached_text(reached)})" if reached.n < reached.requested else ""
        text = f"{bytes_text(reached.bytes)}{some}"
        panel.annotate(text, (reached.bytes, r), (6, 0), textcoords="offset points", va="center", fontsize=7)


def _why_no_bytes(reached: Reached | None) -> str:
    if reached is None:
        return "no target"
    if reached.rounds is None:
        return "never"
    return "bytes not recorded" if reached.bytes is None else "before training"
