"""The figure of accuracy against the published numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flbench.papers.label_skew.published import PublishedRow
from flbench.papers.label_skew.supplement import LabelSkewSupplement
from flbench.papers.published_numbers import Comparison, tally
from flbench.report.board import Leaderboard
from flbench.report.figures.drawing import Drawing, file_name
from flbench.report.figures.style import (
    GREY,
    color_numbers,
    legend_of,
    line_style,
    panels,
    set_title,
    spelled,
)
from flbench.report.stats import Summary
from flbench.report.wording import in_words


def published(board: Leaderboard) -> Iterator[Drawing]:
    """Draw a figure for each data set and model: a point for each published number and ours, with its prediction."""
    supplement = board.supplement(LabelSkewSupplement)
    if supplement is None or supplement.published is None:
        return
    found = supplement.published
    places = dict.fromkeys(one.row.configuration.place for one in found.comparisons)
    for place in places:
        pairs = [
            (one, ours)
            for one in found.comparisons
            if one.row.configuration.place == place and (ours := one.ours) is not None
        ]
        if pairs:
            yield _published(place, pairs)


def _published(place: tuple[str, str], pairs: Sequence[tuple[Comparison[PublishedRow], Summary]]) -> Drawing:
    figure, (panel,) = panels(1, height=4.4)
    values = [value for one, ours in pairs for value in (one.row.value, 100 * ours.mean)]
    low, high = max(0.0, min(values) - 5), min(100.0, max(values) + 5)
    panel.plot([low, high], [low, high], color=GREY, linewidth=1, zorder=1)
    norms = sorted({one.row.configuration.norm for one, _ in pairs}, key=lambda norm: (norm != "none", norm))
    for norm, number in color_numbers(norms).items():
        style = line_style(number)
        same = [pair for pair in pairs if pair[0].row.configuration.norm == norm]
        for nth, (one, ours) in enumerate(same):
            found = one.judgement.prediction
            panel.errorbar(
                one.row.value,
                100 * ours.mean,
                yerr=[[100 * (ours.mean - found.low)], [100 * (found.high - ours.mean)]] if found else None,
                color=style["color"],
                marker=style["marker"],
                markersize=5,
                markerfacecolor="none" if one.judgement.obstacle else style["color"],
                linestyle="none",
                elinewidth=0.8,
                label=spelled(norm) if nth == 0 else None,
            )
    panel.set(xlim=(low, high), ylim=(low, high), xlabel="published accuracy (%)", ylabel="ours (%)", aspect="equal")
    set_title(figure, f"{in_words(', '.join(place))}: ours against published")
    handles, names = panel.get_legend_handles_labels()
    filled = panel.plot([], [], "o", color=GREY, markersize=5)
    hollow = panel.plot([], [], "o", color=GREY, markerfacecolor="none", markersize=5)
    equal = panel.plot([], [], "-", color=GREY, linewidth=1)
    marks = ["filled: rounds and data as published", "hollow: fewer rounds or other data", "line: equal"]
    legend_of(figure, [*handles, *filled, *hollow, *equal], [*names, *marks])
    rounds = sorted({one.cell.runs[0].rounds for one, _ in pairs if one.cell})
    caption = (
        f"{in_words(', '.join(place))}: our accuracy (after {' and '.join(f'{number:,}' for number in rounds)} rounds) "
        "against the published one, and the line of equality. Bars: the 95 % interval that our runs predict for the "
        "published number. Hollow: fewer rounds or other data. "
        f"{tally(one.judgement for one, _ in pairs)}."
    )
    return Drawing(file_name("published", *place), caption, figure, place)
