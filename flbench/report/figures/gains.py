"""Forest plots of planned comparisons with their intervals: those of a section, and those of the first page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from flbench.config import registry_of
from flbench.metric_specs import METRICS
from flbench.report.board import Leaderboard, Section
from flbench.report.cells import grouped, tick_of
from flbench.report.figures.drawing import FIGURES, Drawing, file_name
from flbench.report.figures.maps import mapped
from flbench.report.figures.style import (
    GREY,
    SMALL,
    WIDTH,
    LineStyle,
    color_numbers,
    legend,
    line_style,
    no_math,
    panels,
    scale_of,
    set_title,
    spelled,
    wrapped,
)
from flbench.report.headline import answers, headline
from flbench.report.planned import Planned
from flbench.report.wording import in_words, margin_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Height of a line, of a gap between columns and of what is around a panel, in inches.
_LINE, _GAP, _AROUND = 0.14, 0.1, 0.5

#: The colour of differences within the margin.
_WITHIN = "#E4E4E4"

#: Fewest sections of an overview: the comparisons of one are drawn as ``gains``.
FEWEST = 2


@FIGURES.register(
    "gains",
    "planned comparisons with their intervals and verdicts, a figure for each reference, interactions below",
    requires="`report.contrasts`",
    order=4,
    on_first_page=True,
)
def gains(board: Leaderboard) -> Iterator[Drawing]:
    """Draw one figure for each value that others are compared with.

    Yields:
        A panel of gains, without those that a phase diagram shows, and one for each interaction.
    """
    for section in board.sections:
        elsewhere = {one for some in mapped(section) for one in some}
        plotted = [one for one in section.gains if one not in elsewhere]
        for reference in dict.fromkeys((one.pair.field, one.reference) for one in plotted):
            yield _draw(section, [one for one in plotted if (one.pair.field, one.reference) == reference])


def _draw(section: Section, some: Sequence[Planned]) -> Drawing:
    groups, against = grouped(some, lambda one: one.between), _reference_in_words(some[0])
    styles = _styles_of(some)
    heights = [_height_of(group, styles) for group in groups]
    figure, axes = panels(len(groups), across=1, height=heights, sharex=True)
    for panel, group in zip(axes, groups, strict=True):
        _draw_panel(panel, section, group, styles)
        columns = "in each column" if any(one.column for one in group) else ", ".join(_shared(section))
        panel.set_title(no_math(in_words(group[0].between) or columns), loc="left")
    metric = METRICS[section.layout.metric]
    axes[-1].set_xlabel(f"difference in {metric.title}{' (points)' if metric.percent else ''}")
    legend(figure, _legend_styles(section, styles, some))
    title = f"{section.words}: planned comparisons against {against}"
    set_title(figure, title)
    return Drawing(
        file_name("gains", section.title, f"against {some[0].reference}"),
        f"{title}, {_legend_text(section)}",
        figure,
        section.place,
    )


@FIGURES.register(
    "overview",
    "planned comparisons of the first page, of all data sets",
    requires="`report.contrasts` in two sections, against the same values",
    order=3,
    on_first_page=True,
)
def overview(board: Leaderboard) -> Iterator[Drawing]:
    """Draw the first compared field against each reference value that two or more sections share.

    Yields:
        One figure: a section's panels in a row, a reference's in a column; none where metrics differ.
    """
    every = answers(board.sections, headline(board.sections))
    found = [answer for answer in every if answer.measure == "far"]
    shown: dict[str, list[Planned]] = {}
    for answer in found:
        shown.setdefault(answer.section.title, []).extend(answer.shown)
    if len(shown) < FEWEST or len({answer.section.layout.metric for answer in found}) > 1:
        return
    field = found[0].planned[0].pair.field
    references = [dict.fromkeys(one.against for one in some if one.pair.field == field) for some in shown.values()]
    counts = Counter(name for one in references for name in one)
    shared = [name for name, count in counts.items() if count >= FEWEST]
    drawn = [
        (answer.section, [one for one in answer.shown if one.pair.field == field and one.against in shared])
        for answer in found
    ]
    if shared:
        rows = [(section, same) for section, some in drawn for same in grouped(some, lambda one: one.among)]
        yield _draw_overview(rows, shared)


def _draw_overview(rows: Sequence[tuple[Section, Sequence[Planned]]], references: Sequence[str]) -> Drawing:
    styles = _styles_of([one for _, some in rows for one in some])
    heights = [_height_of(some, styles) for _, some in rows]
    across = len(references)
    figure, axes = panels(len(rows) * across, across=across, height=heights, sharex="col", sharey="row")
    lines = [axes[first : first + across] for first in range(0, len(axes), across)]
    for row, (section, some) in zip(lines, rows, strict=True):
        for panel, name in zip(row, references, strict=True):
            if group := [one for one in some if one.against == name]:
                _draw_panel(panel, section, group, styles)
            else:
                panel.set_axis_off()
                panel.text(0.5, 0.5, "not planned", transform=panel.transAxes, ha="center", va="center", color=GREY)
        names = filter(None, [section.words, *_shared(section), _among_in_words(some[0]), in_words(some[0].between)])
        row[0].set_title(wrapped(", ".join(names), WIDTH - 1.5, "medium"), loc="left")
    first, every = rows[0][0], [one for _, some in rows for one in some]
    metric = METRICS[first.layout.metric]
    unit = " (points)" if metric.percent else ""
    for column, name in zip(zip(*lines, strict=True), references, strict=True):
        # On a line of its own, above the title of the first row, which may be as wide as the figure.
        above = "\n" * (1 + lines[0][0].get_title(loc="left").count("\n"))
        column[0].set_title(f"{no_math(f'against {spelled(name)}')}{above}", loc="right", fontweight="bold")
        lowest = [panel for panel in column if panel.axison][-1]
        lowest.tick_params(labelbottom=True)
        lowest.set_xlabel(f"difference{unit}")
    legend(figure, _legend_styles(first, styles, every))
    set_title(figure, f"Planned comparisons: differences in {metric.title}{unit}")
    title = f"Planned comparisons against {' and '.join(map(spelled, references))}"
    return Drawing("overview", f"{title}, {_legend_text(first)}", figure)


def _shared(section: Section) -> Iterator[str]:
    """Yield the partition, unless columns name it, and the rounds that all cells of a section have, in words."""
    cells = [cell for table in section.details for cell in table.cells.values()]
    partitions = {in_words(tick_of(cell, "partition").label) for cell in cells if hasattr(cell.experiment, "partition")}
    if len(partitions) == 1 and "partition" not in section.layout.cols:
        yield from partitions
    rounds = {f"{cell.experiment.rounds:,} rounds" for cell in cells}
    if len(rounds) == 1:
        yield from rounds


def _among_in_words(one: Planned) -> str:
    """Return the cells among which a comparison is made: ``with one class or Dirichlet(0.1), fedavg``."""
    names = []
    for condition in one.pair.among:
        labels = [in_words(name) for name in condition.labels]
        words = [spelled(label) for label in labels] if condition.field == "norm" else labels
        named = condition.name.removesuffix(condition.label) if registry_of(condition.field) is None else ""
        names.append(named + " or ".join(filter(None, [", ".join(words[:-1]), words[-1]])))
    return f"with {', '.join(names)}" if names else ""


def _reference_in_words(one: Planned) -> str:
    """Return what a comparison is against: ``no norm``, or ``no norm with fedavg``."""
    name = one.pair.against.name
    return f"{spelled(name) if one.pair.field == 'norm' else name} {_among_in_words(one)}".rstrip()


def _styles_of(some: Sequence[Planned]) -> dict[str, LineStyle]:
    """Return the style of each compared value."""
    numbers = color_numbers((one.value for one in some), first=1)  # black is what others are compared with
    return {value: line_style(number) for value, number in numbers.items()}


def _height_of(group: Sequence[Planned], styles: Mapping[str, LineStyle]) -> float:
    """Return the height of a panel in inches: a line for each style in each column."""
    columns = len({one.column for one in group})
    return _LINE * (len(styles) * columns) + _GAP * columns + _AROUND


def _legend_styles(section: Section, styles: Mapping[str, LineStyle], some: Sequence[Planned]) -> dict[str, LineStyle]:
    """Return the styles of intervals by the names of the compared values, then those of the verdicts and the margin."""
    mark: LineStyle = {"color": GREY, "marker": "o", "linestyle": "none", "markersize": 4.5}
    found = {spelled(value): {**style, "linestyle": "-"} for value, style in styles.items()} | {
        "filled: shown": mark,
        "hollow: not shown": {**mark, "markerfacecolor": "#FFFFFF"},
        "shown to be equivalent": {**mark, "marker": "$≈$", "markersize": 7, "markeredgewidth": 0},
    }
    if any(one.contrast.difference.half_width is None for one in some):
        found["without a line: one seed, no interval"] = {**mark, "markerfacecolor": "#FFFFFF"}
    if margin := section.layout.tie_margin:
        band = {"color": _WITHIN, "linewidth": 8, "marker": "none"}
        found[f"within {margin_text(margin, METRICS[section.layout.metric])}"] = band
    return found


def _legend_text(section: Section) -> str:
    """Return what the marks of a panel mean, as the end of a caption."""
    metric, margin = METRICS[section.layout.metric], section.layout.tie_margin
    within = f"; grey: within {margin_text(margin, metric)}" if margin else ""
    return (
        "paired by seed, with 95 % intervals; filled: shown by the corrected test and the checks, hollow: "
        f"not{within}, ≈: shown to be so."
    )


def _draw_panel(panel: Axes, section: Section, group: Sequence[Planned], styles: Mapping[str, LineStyle]) -> None:
    """Draw the comparisons of a panel from the top to the bottom, with a gap between columns."""
    scale, margin = scale_of(section.layout.metric), section.layout.tie_margin
    if margin:
        panel.axvspan(-scale * margin, scale * margin, color=_WITHIN, linewidth=0)
    panel.axvline(0, color="#000000", linewidth=0.8)
    order = {value: index for index, value in enumerate(styles)}
    y, middles = 0.0, {}
    for column in dict.fromkeys(one.column for one in group):
        for one in (one for one in group if one.column == column):
            _draw_gain(panel, one, y + order[one.value] * _LINE, scale, styles[one.value])
        middles[column] = y + _LINE * (len(styles) - 1) / 2
        y += _LINE * len(styles) + _GAP
    panel.set_yticks(list(middles.values()), [no_math(in_words(column)) for column in middles])
    panel.set_ylim(y - _GAP - _LINE / 2 + 0.05, -_LINE / 2 - 0.05)
    panel.tick_params(axis="y", length=0)
    panel.grid(visible=False, axis="y")


def _draw_gain(panel: Axes, one: Planned, y: float, scale: int, style: LineStyle) -> None:
    found, color = one.contrast.difference, style["color"]
    width = scale * (found.half_width or 0.0)
    face = color if one.is_different else "#FFFFFF"
    panel.plot([scale * found.mean - width, scale * found.mean + width], [y, y], color=color, linewidth=1.2)
    panel.plot(scale * found.mean, y, marker=style["marker"], markersize=4.5, color=color, markerfacecolor=face)
    if one.is_equivalent:
        panel.annotate(
            "≈", (scale * found.mean + width, y), (3, 0), textcoords="offset points", va="center", fontsize=SMALL
        )
