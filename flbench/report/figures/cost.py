"""The cost of a column's level: bytes sent and received until it is reached, row by row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from flbench.report.board import Leaderboard, Section
from flbench.report.figures.drawing import FIGURES, Drawing, table_file_name, titles_of
from flbench.report.figures.rows import leading, shown_text
from flbench.report.figures.style import (
    GREY,
    SMALL,
    LineStyle,
    named,
    no_math,
    panels,
    row_styles,
    set_panel_title,
    set_title,
)
from flbench.report.measures import SHARE, Speed
from flbench.report.tables import Table
from flbench.report.ticks import Tick, place_label
from flbench.report.wording import bytes_text, in_words, reached_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@FIGURES.register("cost", "bytes until the level of a column", requires="a run that reaches it", order=70)
def cost(board: Leaderboard) -> Iterator[Drawing]:
    """Draw one figure a table with curves: a panel for each column in which a row reaches its level, a line a row."""
    for section in board.sections:
        for table in section.details:
            speeds = {at: cell.speed for at, cell in table.cells.items()}
            known = {at: one.bytes for at, one in speeds.items() if one and one.bytes}
            if known:
                limits = min(known.values()) / 1.6, max(known.values()) * 4
                yield _draw(section, table, sorted({c for _, c in known}), limits)


def _draw(section: Section, table: Table, columns: Sequence[int], limits: tuple[float, float]) -> Drawing:
    from matplotlib.ticker import LogLocator, NullLocator

    shown = {at: cell for at, cell in table.cells.items() if at[1] in columns}
    lines = [(table.rows[r], cell, cell.summary.mean if cell.summary else None) for (r, _), cell in shown.items()]
    rows = leading(lines, section.layout)
    styles = row_styles(rows, table.row_axes)
    figure, axes = panels(len(columns), height=0.22 * len(rows) + 0.7, sharex=True, sharey=True)
    for panel, c in zip(axes, columns, strict=True):
        set_panel_title(panel, in_words(place_label(table.col_axes, table.cols[c])))
        _draw_panel(panel, table, c, styles)
    panel = axes[0]
    panel.set_yticks(range(len(rows)), [*map(no_math, named(styles, table.row_axes))])
    panel.set_ylim(len(rows) - 0.5, -0.5)
    panel.set_xscale("log")
    panel.set_xlim(*limits)
    panel.xaxis.set_major_locator(LogLocator(subs=(1, 3)))
    panel.xaxis.set_minor_locator(NullLocator())
    panel.xaxis.set_major_formatter(lambda value, _: bytes_text(value).replace(".0\N{NO-BREAK SPACE}", " "))
    figure.supxlabel("bytes sent and received by all clients", fontsize="medium")
    title = titles_of(section, table)
    target = section.layout.target
    what = f"{100 * SHARE:g} % of the lowest plateau of the column" if target is None else f"{target:g}"
    set_title(figure, f"{title}: communication to reach {what}")
    caption = f"{title}: bytes sent and received by all clients until {what} is reached, median over seeds."
    caption += shown_text(len(rows), len({row for row, _, _ in lines}))
    return Drawing(table_file_name("cost", section, table), caption, figure, section.place)


def _draw_panel(panel: Axes, table: Table, c: int, styles: Mapping[tuple[Tick, ...], LineStyle]) -> None:
    for y, (row, style) in enumerate(styles.items()):
        cell = table.cells.get((table.rows.index(row), c))
        speed = cell.speed if cell else None
        if speed is None or not speed.bytes:
            why = _why_no_bytes(speed) if cell else "not run"
            panel.annotate(why, (0.02, y), xycoords=("axes fraction", "data"), va="center", fontsize=SMALL, color=GREY)
            continue
        panel.plot([0, speed.bytes], [y, y], color=style["color"], linewidth=0.8, linestyle=":")
        panel.plot(speed.bytes, y, marker=style["marker"], color=style["color"], markersize=5)
        some = f" ({reached_text(speed)})" if speed.n < speed.requested else ""
        text = f"{bytes_text(speed.bytes)}{some}"
        panel.annotate(text, (speed.bytes, y), (6, 0), textcoords="offset points", va="center", fontsize=SMALL)


def _why_no_bytes(speed: Speed | None) -> str:
    if speed is None:
        return "no curve"
    if speed.rounds is None:
        return f"more than {speed.last:,} rounds"
    return "bytes not recorded" if speed.bytes is None else "before training"
