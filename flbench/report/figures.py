"""Figures of a leaderboard in one style: safe for the colour-blind, readable in grey, same runs, same bytes.

The last row axis (norm) has the colour and the marker, the one before it (method) the kind of line.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flbench.report.cells import Cell, axis_label
from flbench.report.frames import Source
from flbench.report.leaderboard import KIND_TITLES, Leaderboard, Section
from flbench.report.numbers import METRICS, value_of
from flbench.report.stats import summarize
from flbench.report.tables import Table
from flbench.report.wording import gap_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Okabe and Ito's palette without yellow, which vanishes on white; neighbours differ in lightness.
COLORS = ("#000000", "#D55E00", "#56B4E9", "#009E73", "#E69F00", "#0072B2", "#CC79A7")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LINES = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (5, 1.5, 1, 1.5)), (0, (8, 2)), (0, (3, 1, 1, 1, 1, 1)))

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
_BAND = 0.15

#: Markers along a line, so that they tell lines apart without hiding them.
_MARKS = 8

Look = dict[str, Any]
Points = list[tuple[int, float, float]]  # round, mean, sd


def write_curves(board: Leaderboard, source: Source, directory: Path) -> list[Path]:
    """Draw the headline metric over rounds, one figure a table, as SVG and PNG; return the files."""
    from matplotlib import rc_context

    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for section in board.sections:
        names = _names(section)
        for table, name in zip(section.tables, names, strict=True):
            with rc_context(STYLE):
                figure = draw_curves(section, table, source)
                written += _save(figure, directory / name)
    return written


def draw_curves(section: Section, table: Table, source: Source) -> Figure:
    """One panel a column, one line a row, with a band of one standard deviation over seeds."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.ticker import MaxNLocator

    looks = _looks(section, table)
    down = math.ceil(len(table.cols) / PANELS_ACROSS)
    across = math.ceil(len(table.cols) / down)
    figure = Figure(figsize=(PANEL[0] * across + 1.6, PANEL[1] * down + 0.5), layout="constrained")
    panels = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False).ravel()
    for c, col in enumerate(table.cols):
        _draw_panel(panels[c], table, c, looks, source)
        panels[c].set_title(", ".join(axis_label(axis, at) for axis, at in zip(table.col_axes, col, strict=True)))
        if c + across >= len(table.cols):
            panels[c].tick_params(labelbottom=True)
            panels[c].set_xlabel("round")
            panels[c].xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    for panel in panels[len(table.cols) :]:
        panel.set_axis_off()
    metric = METRICS[table.metric]
    figure.supylabel(f"{metric.title}{' (%)' if metric.percent else ''}", fontsize="medium")
    where = ", ".join(part for part in (section.title, table.title) if part)
    figure.suptitle(f"{where}: mean ± sd over seeds", fontsize="large")
    handles = [Line2D([], [], **look) for look in looks]
    labels = [" ".join(at.label for at in row) for row in table.rows]
    figure.legend(handles, labels, loc="outside right center", title=", ".join(table.row_axes), handlelength=3.5)
    return figure


def _draw_panel(panel: Axes, table: Table, c: int, looks: Sequence[Look], source: Source) -> None:
    gaps = []
    scale = 100 if METRICS[table.metric].percent else 1
    for r in range(len(table.rows)):
        cell = table.cells.get((r, c))
        if cell is None:
            continue
        if not cell.complete:
            gaps.append(f"{' '.join(at.label for at in table.rows[r])}: {gap_text(cell)}")
        if points := _points(cell, source):
            _draw_line(panel, points, looks[r], r, scale)
    if scale == 100:
        panel.set_ylim(0, 101)
    panel.text(
        0.98, 0.03, "\n".join(gaps), transform=panel.transAxes, ha="right", va="bottom", fontsize=6, color="#555555"
    )


def _draw_line(panel: Axes, points: Points, look: Look, r: int, scale: int) -> None:
    rounds = [at for at, _, _ in points]
    # Marks of different lines stand at different rounds, so that none hides another.
    every = max(1, len(points) // _MARKS)
    panel.plot(rounds, [scale * mean for _, mean, _ in points], **look, markevery=(r % every, every))
    low, high = ([scale * (mean + sign * sd) for _, mean, sd in points] for sign in (-1, 1))
    panel.fill_between(rounds, low, high, color=look["color"], alpha=_BAND, linewidth=0)


def _points(cell: Cell, source: Source) -> Points:
    """Mean and sd over the seeds that are in the cell's mean, at the rounds that all of them recorded."""
    seeds = []
    for run in cell.runs:
        if run.result is not None and run.state == "done":
            records = source.metrics(run.run_id, run.result)
            values = {
                record["round"]: value_of(record, cell.metric) for record in records if record["round"] <= run.rounds
            }
            seeds.append({at: value for at, value in values.items() if value is not None})
    common = sorted(set.intersection(*(set(values) for values in seeds))) if seeds else []
    summaries = [(at, summarize([values[at] for values in seeds])) for at in common]
    return [(at, summary.mean, summary.sd or 0.0) for at, summary in summaries if summary]


def _looks(section: Section, table: Table) -> list[Look]:
    """Colour, marker and kind of line of each row: the same in every figure of a section."""
    alike = [other.rows for other in section.tables if other.row_axes == table.row_axes]
    places = [sorted({row[axis] for rows in alike for row in rows}) for axis in range(len(table.row_axes))]
    looks: list[Look] = []
    for row in table.rows:
        hue = places[-1].index(row[-1])
        kind = places[-2].index(row[-2]) if len(row) > 1 else 0
        looks.append(
            {
                "color": COLORS[hue % len(COLORS)],
                "marker": MARKERS[hue % len(MARKERS)],
                "linestyle": LINES[kind % len(LINES)],
                "linewidth": 1.3,
                "markersize": 3.5,
            }
        )
    return looks


def _names(section: Section) -> Iterator[str]:
    """File names that tell the tables of a section apart."""
    seen: Counter[str] = Counter()
    for table in section.tables:
        title = table.title
        for kind, heading in KIND_TITLES.items():
            title = title.replace(heading, kind) if heading else title
        name = "-".join(re.findall(r"[A-Za-z0-9.]+", f"curves {section.title} {title}"))
        seen[name] += 1
        yield name if seen[name] == 1 else f"{name}-part{seen[name]}"


def _save(figure: Figure, stem: Path) -> list[Path]:
    # with_suffix would take the digits of "lr-0.1" for a suffix.
    svg, png = (stem.with_name(f"{stem.name}.{kind}") for kind in ("svg", "png"))
    figure.savefig(svg, metadata={"Date": None})
    figure.savefig(png, dpi=160, metadata={"Software": None})
    return [svg, png]
