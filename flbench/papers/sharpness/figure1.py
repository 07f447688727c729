"""lambda_max over the width, with the lines of theory (figure 1 of Karakida et al. 2019)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, get_args

from flbench.papers.sharpness.claims_figure1 import two
from flbench.papers.sharpness.draws import Family, Line, lines_of
from flbench.report.cells import grouped
from flbench.report.figures.drawing import Drawing, file_name
from flbench.report.figures.style import BAND, COLORS, GREY, LINES, MARKERS, Look, panels
from flbench.report.runs import Run
from flbench.studies.sharpness import Sharpness

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Fewer widths than this make no line.
FEWEST = 2

#: What stands beside a line is kept this far apart, as a share of the panel's height.
GAP = 0.075

_VALUE, _BOUND = LINES[1], LINES[2]
_ORDER = get_args(Sharpness.model_fields["normalized"].annotation)


def over_width(runs: Sequence[Run]) -> Iterator[Drawing]:
    """One figure: a panel for each activation and number of outputs, a line for each normalization."""
    lines = [line for line in lines_of(runs) if len(line.points) >= FEWEST]
    if not lines:
        return
    groups = grouped(lines, lambda line: _panel_of(line.family))
    figure, axes = panels(len(groups), panel=(3.5, 2.9), sharey=True)
    for panel, group in zip(axes, groups, strict=True):
        _draw(panel, group)
    for panel, group in zip(axes, groups, strict=True):  # once the shared axis has its ends
        _label_slopes(panel, group)
    figure.supxlabel("width M", fontsize="medium")
    figure.supylabel("largest eigenvalue of the Fisher information", fontsize="medium")
    figure.suptitle("Sharpness of random networks over their width", fontsize="large")
    _legend(figure, sorted({line.family.normalized for line in lines}, key=_ORDER.index))
    yield Drawing("sharpness", file_name("sharpness", "width"), _caption(lines), figure, ("study", "sharpness"))


def _panel_of(family: Family) -> tuple[int, Family]:
    """What the families of one panel share; few outputs first."""
    return family.outputs, Family(**{**vars(family), "normalized": "none"})


def _caption(lines: Sequence[Line]) -> str:
    counts = [len(point.values) for line in lines for point in line.points]
    draws = f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
    return (
        f"lambda_max of the Fisher information of random networks over their width M, mean ± sd over {draws} draws, "
        "with C outputs on T samples; dashed: theory, dotted: its lower bounds (theorems 2.2, 3.3, 3.4 and 4.1 of "
        "Karakida et al. 2019; dashed for layer normalization: a mean-field value that is not the paper's). At the "
        "right, the fitted exponent of M."
    )


def _draw(panel: Axes, lines: Sequence[Line]) -> None:
    family = lines[0].family
    panel.set_xscale("log")
    panel.set_yscale("log")
    for line in lines:
        _draw_line(panel, line)
    widths = sorted({point.width for line in lines for point in line.points})
    panel.set_xticks(widths, [str(width) for width in widths])
    panel.minorticks_off()
    panel.set_xlim(widths[0] / 1.1, widths[-1] * (widths[-1] / widths[0]) ** 0.24)
    samples = "M" if family.samples is None else family.samples
    panel.set_title(f"{family.network}, L = {family.layers}, C = {family.outputs}, T = {samples}")
    panel.yaxis.set_major_formatter("{x:g}")


def _draw_line(panel: Axes, line: Line) -> None:
    look = _look(line.family.normalized)
    at, means = [point.width for point in line.points], [point.summary.mean for point in line.points]
    panel.plot(at, means, **look)
    spreads = [point.summary.sd or 0.0 for point in line.points]
    # A band that would reach below zero ends a tenth above it, which a logarithmic axis can show.
    low = [max(mean - sd, 0.1 * mean) for mean, sd in zip(means, spreads, strict=True)]
    high = [mean + sd for mean, sd in zip(means, spreads, strict=True)]
    panel.fill_between(at, low, high, color=look["color"], alpha=BAND, linewidth=0)
    for name, dashes in (("value", _VALUE), ("lower", _BOUND)):
        known = [(point.width, getattr(point.predicted, name)) for point in line.points if point.predicted]
        drawn = [(width, number) for width, number in known if number is not None]
        # The bound of eq. 19 scatters around that of theorem 3.3.
        if drawn and line.family.normalized != "bn-last":
            panel.plot(*zip(*drawn, strict=True), color=look["color"], linestyle=dashes, linewidth=1.1)


def _label_slopes(panel: Axes, lines: Sequence[Line]) -> None:
    """The exponents, at the ends of their lines, moved apart where they would cover each other."""
    import math

    ends = sorted((math.log10(line.points[-1].summary.mean), line) for line in lines if line.exponent)
    low, high = (math.log10(edge) for edge in panel.get_ylim())
    places = apart([(y - low) / (high - low) for y, _ in ends], GAP)
    for place, (_, line) in zip(places, ends, strict=True):
        assert line.exponent is not None
        panel.text(
            0.985,
            place,
            f"$M^{{{two(line.exponent.value)}}}$",
            transform=panel.transAxes,
            ha="right",
            va="center",
            fontsize=8,
            color=_look(line.family.normalized)["color"],
        )


def apart(places: Sequence[float], gap: float) -> list[float]:
    """Rising places moved so that neighbours are ``gap`` apart: clusters keep their middle."""
    clusters: list[list[float]] = []
    for place in places:
        clusters.append([place])
        while len(clusters) > 1 and _low(clusters[-1], gap) < _high(clusters[-2], gap) + gap:
            last = clusters.pop()
            clusters[-1] += last
    return [_low(one, gap) + index * gap for one in clusters for index in range(len(one))]


def _low(cluster: Sequence[float], gap: float) -> float:
    return sum(cluster) / len(cluster) - gap * (len(cluster) - 1) / 2


def _high(cluster: Sequence[float], gap: float) -> float:
    return sum(cluster) / len(cluster) + gap * (len(cluster) - 1) / 2


def _look(normalized: str) -> Look:
    place = _ORDER.index(normalized)
    look = {"color": COLORS[place % len(COLORS)], "marker": MARKERS[place % len(MARKERS)]}
    return {**look, "linewidth": 1.3, "markersize": 3.5}


def _legend(figure: Figure, names: Sequence[str]) -> None:
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], **_look(name)) for name in names]
    handles += [Line2D([], [], color=GREY, linestyle=dashes, linewidth=1.1) for dashes in (_VALUE, _BOUND)]
    figure.legend(
        handles, [*names, "theory", "lower bound"], loc="outside right center", title="normalized", handlelength=3.0
    )
