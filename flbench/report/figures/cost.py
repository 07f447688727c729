"""What it costs to reach the target: bytes sent and received, row by row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from flbench.report.board import Details, Leaderboard, Section
from flbench.report.costs import Reached
from flbench.report.figures.drawing import Drawing, file_name
from flbench.report.figures.style import GREY, entitle, literal, looks, name_panel, panels, place_name, title_of
from flbench.report.wording import bytes_text, row_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes


#: Inches of a panel's width.
_PANEL = 3.0


def cost(board: Leaderboard) -> Iterator[Drawing]:
    """One figure a table with a target that somebody reaches: a panel a column, a line a row."""
    for section in board.sections:
        for details in section.details:
            if any(costs.reached and costs.reached.bytes for costs in details.costs.values()):
                yield _draw(section, details)


def _draw(section: Section, details: Details) -> Drawing:
    from matplotlib.ticker import LogLocator, NullLocator

    table, target = details.table, section.layout.target
    figure, axes = panels(len(table.cols), panel=(_PANEL, 0.22 * len(table.rows) + 0.8), sharex=True, sharey=True)
    for c, panel in enumerate(axes):
        name_panel(panel, place_name(table.col_axes, table.cols[c]), _PANEL)
        _draw_panel(panel, details, c)
    panel = axes[0]
    panel.set_yticks(range(len(table.rows)), [literal(row_name(row)) for row in table.rows])
    panel.set_ylim(len(table.rows) - 0.5, -0.5)
    known = [costs.reached.bytes for costs in details.costs.values() if costs.reached and costs.reached.bytes]
    panel.set_xscale("log")
    panel.set_xlim(min(known) / 1.6, max(known) * 4)
    panel.xaxis.set_major_locator(LogLocator(subs=(1, 3)))
    panel.xaxis.set_minor_locator(NullLocator())
    panel.xaxis.set_major_formatter(lambda value, _: bytes_text(value).replace(".0\N{NO-BREAK SPACE}", " "))
    figure.supxlabel("bytes sent and received until the target", fontsize="medium")
    entitle(figure, f"{title_of(section, table)}: cost of the target")
    what = f"{target:g}" if target is not None else f"what {row_name(details.baseline or ())} ends with, seed by seed"
    caption = (
        f"{title_of(section, table)}: bytes sent and received by all clients until the target ({what}) is reached."
    )
    name = file_name(
        "cost", title_of(section, table), *(at.label for at in table.cols[0] if _is_part(section, details))
    )
    return Drawing("cost", name, caption, figure, section.place)


def _is_part(section: Section, details: Details) -> bool:
    """Whether several tables have this one's title."""
    return sum(other.table.title == details.table.title for other in section.details) > 1


def _draw_panel(panel: Axes, details: Details, c: int) -> None:
    table = details.table
    for r, look in enumerate(looks(table.rows)):
        if (r, c) not in table.cells:
            continue
        reached = details.costs[r, c].reached
        if reached is None or not reached.bytes:
            why = _why_not(reached)
            panel.annotate(why, (0.02, r), xycoords=("axes fraction", "data"), va="center", fontsize=7, color=GREY)
            continue
        panel.plot([0, reached.bytes], [r, r], color=look["color"], linewidth=0.8, linestyle=":")
        panel.plot(reached.bytes, r, marker=look["marker"], color=look["color"], markersize=5)
        some = f" ({reached.n}/{reached.wished} seeds)" if reached.n < reached.wished else ""
        text = f"{bytes_text(reached.bytes)}{some}"
        panel.annotate(text, (reached.bytes, r), (6, 0), textcoords="offset points", va="center", fontsize=7)


def _why_not(reached: Reached | None) -> str:
    """Why there is no point on an axis of bytes."""
    if reached is None:
        return "no target"
    if reached.rounds is None:
        return "never"
    return "bytes not recorded" if reached.bytes is None else "before training"
