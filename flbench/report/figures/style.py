"""One style for every figure: safe for the colour-blind, readable in grey, same runs, same bytes.

The last row axis (norm) has the colour and the marker, the one before it (method) the kind of line.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from flbench.metric_specs import METRICS
from flbench.report.board import Section
from flbench.report.cells import Cell, Tick, axis_label
from flbench.report.tables import Table
from flbench.report.wording import gap_text, row_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Okabe and Ito's palette without yellow, which vanishes on white; neighbours differ in lightness.
COLORS = ("#000000", "#D55E00", "#56B4E9", "#009E73", "#E69F00", "#0072B2", "#CC79A7")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LINES = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (5, 1.5, 1, 1.5)), (0, (8, 2)), (0, (3, 1, 1, 1, 1, 1)))
GREY = "#555555"

STYLE: Any = {
    "font.size": 9,
    "axes.titlesize": "medium",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "svg.hashsalt": "flbench",
}

#: Most panels side by side before a new row begins, and a panel's size in inches.
PANELS_ACROSS = 3
PANEL = (3.3, 2.6)

#: Shades the mean ± one sample standard deviation, where there are two seeds at least.
BAND = 0.15

Look = dict[str, Any]


def title_of(section: Section, table: Table | None = None) -> str:
    """A section, and a table in it."""
    return ", ".join(part for part in (section.title, table.title if table else "") if part)


def scale_of(metric: str) -> int:
    """What recorded numbers are multiplied with: percent are drawn as such."""
    return 100 if METRICS[metric].percent else 1


def metric_label(metric: str) -> str:
    """What stands beside an axis."""
    return f"{METRICS[metric].title}{' (%)' if METRICS[metric].percent else ''}"


def panels(count: int, *, panel: tuple[float, float] = PANEL, **options: Any) -> tuple[Figure, list[Axes]]:
    """A figure with room for a legend on its right, and its panels; those that are too many are hidden."""
    from matplotlib.figure import Figure

    down = math.ceil(count / PANELS_ACROSS)
    across = math.ceil(count / down)
    figure = Figure(figsize=(panel[0] * across + 1.6, panel[1] * down + 0.5), layout="constrained")
    axes = list(figure.subplots(down, across, squeeze=False, **options).ravel())
    for spare in axes[count:]:
        spare.set_axis_off()
    for lowest in axes[max(0, count - across) : count]:
        lowest.tick_params(labelbottom=True)
    return figure, axes[:count]


def is_lowest(index: int, count: int) -> bool:
    """Whether a panel has none below it."""
    down = math.ceil(count / PANELS_ACROSS)
    return index + math.ceil(count / down) >= count


def looks(rows: Sequence[Sequence[Tick]], among: Sequence[Sequence[Tick]] = ()) -> list[Look]:
    """Colour, marker and kind of line of each row: the same wherever rows stand ``among`` the same others."""
    everyone = [*among, *rows]
    places = [sorted({row[axis] for row in everyone}) for axis in range(len(rows[0]))]
    found: list[Look] = []
    for row in rows:
        hue = places[-1].index(row[-1])
        kind = places[-2].index(row[-2]) if len(row) > 1 else 0
        found.append(
            {
                "color": COLORS[hue % len(COLORS)],
                "marker": MARKERS[hue % len(MARKERS)],
                "linestyle": LINES[kind % len(LINES)],
                "linewidth": 1.3,
                "markersize": 3.5,
            }
        )
    return found


def entitle(figure: Figure, title: str, size: str = "large") -> None:
    """Put a title above all panels, in as many lines as the figure's width takes."""
    figure.suptitle(_broken(title, figure.get_figwidth() - 0.2, size), fontsize=size)


def name_panel(panel: Axes, name: str, inches: float) -> None:
    """Put a name above a panel that is about so wide, in as many lines as keep it off its neighbours."""
    panel.set_title(_broken(name, 0.75 * inches, "medium"))


def literal(text: str) -> str:
    """Return a label for matplotlib, which reads what stands between dollar signs as mathematics."""
    return text.replace("$", r"\$")


def _broken(text: str, inches: float, size: str) -> str:
    """Break a text into lines that are at most so wide, where it has spaces."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".lstrip()
        width = TextPath((0, 0), literal(longer), prop=FontProperties(size=size), usetex=False).get_extents().width
        if lines[-1] and width > 72 * inches:
            lines.append(word)
        else:
            lines[-1] = longer
    return literal("\n".join(lines))


def legend(figure: Figure, rows: Sequence[Sequence[Tick]], styles: Sequence[Look], axes: Sequence[str]) -> None:
    """What each row looks like, on the right of all panels."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], **look) for look in styles]
    names = [literal(row_name(row)) for row in rows]
    figure.legend(handles, names, loc="outside right center", title=", ".join(axes), handlelength=3.5)


def place_name(axes: Sequence[str], at: Sequence[Tick]) -> str:
    """What stands above a panel."""
    return ", ".join(axis_label(axis, tick) for axis, tick in zip(axes, at, strict=True))


def tell_gaps(panel: Axes, gaps: Sequence[tuple[str, Cell]], *, x: float = 0.98, y: float = 0.03) -> None:
    """Small lines in a corner that say which cells lack seeds, and why."""
    lines = "\n".join(f"{name}: {gap_text(cell)}" for name, cell in gaps)
    panel.text(
        x, y, lines, transform=panel.transAxes, ha="right" if x > 0.5 else "left", va="bottom", fontsize=6, color=GREY
    )
