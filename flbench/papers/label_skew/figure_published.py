"""Ours against the published numbers, with the line on which they would be equal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flbench.papers.label_skew.supplement import LabelSkewSupplement
from flbench.papers.label_skew.verdicts import VERDICTS, Comparison
from flbench.report.board import Leaderboard
from flbench.report.figures.drawing import Drawing, file_name
from flbench.report.figures.style import COLORS, GREY, MARKERS, panels

#: Full for what was trained as long and on the same data, hollow for the others.
_HOLLOW = frozenset({"shorter", "not comparable", "not run"})


def published(board: Leaderboard) -> Iterator[Drawing]:
    """One figure a data set and model with published numbers and ours: a point a number, with our interval."""
    supplement = board.supplement(LabelSkewSupplement)
    if supplement is None or supplement.published is None:
        return
    found = supplement.published
    places = dict.fromkeys(one.row.configuration.place for one in found.comparisons)
    for place in places:
        pairs = [
            one
            for one in found.comparisons
            if one.row.configuration.place == place and one.cell is not None and one.cell.summary is not None
        ]
        if pairs:
            yield _draw(place, pairs, found.tolerance)


def _draw(place: tuple[str, str], pairs: Sequence[Comparison], tolerance: float) -> Drawing:
    figure, (panel,) = panels(1, panel=(4.0, 3.8))
    values = [one.row.value for one in pairs] + [_ours(one) for one in pairs]
    low, high = max(0.0, min(values) - 5), min(100.0, max(values) + 5)
    panel.plot([low, high], [low, high], color=GREY, linewidth=1, zorder=1)
    within = ([low - tolerance, high - tolerance], [low + tolerance, high + tolerance])
    panel.fill_between([low, high], *within, color=GREY, alpha=0.15, linewidth=0, zorder=0)
    norms = sorted({one.row.configuration.norm for one in pairs}, key=lambda norm: (norm != "none", norm))
    for index, norm in enumerate(norms):
        _draw_points(panel, [one for one in pairs if one.row.configuration.norm == norm], index, norm)
    panel.set(xlim=(low, high), ylim=(low, high), xlabel="published accuracy (%)", ylabel="ours (%)", aspect="equal")
    panel.set_title(f"{', '.join(place)}: ours against published")
    figure.legend(loc="outside right center", title="norm")
    rounds = sorted({one.cell.runs[0].rounds for one in pairs if one.cell})
    counts = {verdict: sum(one.verdict == verdict for one in pairs) for verdict in VERDICTS}
    told = ", ".join(f"{verdict} {count}" for verdict, count in counts.items() if count)
    caption = (
        f"{', '.join(place)}: our accuracy (after {' and '.join(f'{number:,}' for number in rounds)} rounds, with 95 % "
        f"intervals) against the published one; the line of equality within {tolerance:g} "
        f"{'point' if tolerance == 1 else 'points'}. Hollow: fewer rounds or other data. {told}."
    )
    return Drawing(file_name("published", *place), caption, figure, place)


def _ours(one: Comparison) -> float:
    assert one.cell is not None and one.cell.summary is not None
    return 100 * one.cell.summary.mean


def _draw_points(panel: object, pairs: Sequence[Comparison], index: int, norm: str) -> None:
    color, marker = COLORS[index % len(COLORS)], MARKERS[index % len(MARKERS)]
    for number, one in enumerate(pairs):
        assert one.cell is not None and one.cell.summary is not None
        half_width = 100 * (one.cell.summary.half_width or 0.0)
        panel.errorbar(  # type: ignore[attr-defined]
            one.row.value,
            _ours(one),
            yerr=half_width or None,
            color=color,
            marker=marker,
            markersize=5,
            markerfacecolor="none" if one.verdict in _HOLLOW else color,
            linestyle="none",
            elinewidth=0.8,
            label=norm if number == 0 else None,
        )
