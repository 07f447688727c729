"""Figures of studies of kind ``sharpness``: figures 1 and 2 of Karakida et al. 2019, and spectra."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from flbench.papers.evidence import range_text, two_decimals
from flbench.papers.sharpness.networks import NORMALIZATIONS, Curve, Family, curves_of, experiment_of, predict
from flbench.papers.sharpness.training import EXPLODED, Descent, descents_of, networks_of, predicted_rate
from flbench.report.board import Leaderboard
from flbench.report.cells import grouped
from flbench.report.figures.drawing import Drawing, file_name
from flbench.report.figures.style import (
    BAND,
    COLOR_MAP,
    GREY,
    LINES,
    line_style,
    panels,
    set_log_ticks,
    set_plain_numbers,
)
from flbench.report.runs import Run
from flbench.sums import sum_in_order

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import LogNorm

_PLACE = ("study", "sharpness")

#: Lines of a predicted value and of a predicted lower bound.
_VALUE, _BOUND = LINES[1], LINES[2]

#: Least distance of the exponents beside the curves, as a share of the panel's height.
_LABEL_GAP = 0.075

#: Light is better.
_LOSS_COLORS = f"{COLOR_MAP}_r"

#: Losses below this share one colour.
_LOWEST_LOSS = 1e-3

#: Least width of the figure of losses, in inches, so that its title and legend fit.
_LEAST_WIDTH = 5.8

#: The cells of exploded runs.
_EXPLODED: dict[str, Any] = {"facecolor": "#BDBDBD", "edgecolor": "#FFFFFF", "hatch": "////"}

#: 2 / lambda_max: theory's line, and the points measured at the start.
_RATE_LINE: dict[str, Any] = {"color": "#D55E00", "linestyle": "--", "linewidth": 1.8}
_RATE_POINTS: dict[str, Any] = {"marker": "o", "markerfacecolor": "#FFFFFF", "markeredgecolor": "#000000"}

#: Bars a decade of a spectrum; eigenvalues below the first share of the largest are rounding errors, those below the
#: second are not drawn.
_BARS, _ROUNDING, _DRAWN = 8, 1e-10, 1e-5


def sharpness(board: Leaderboard) -> Iterator[Drawing]:
    """Draw what the runs support."""
    runs = [run for run in board.collection.runs if run.experiment.kind == "sharpness"]
    yield from _over_width([curve for curve in curves_of(runs) if len(curve.points) > 1])
    for same in grouped(descents_of(runs, board.collection), lambda one: (one.family.unnormalized, one.steps)):
        if len({one.lr for one in same}) > 1:
            yield _losses(same)
    spectra = [run for run in runs if run.record and "spectrum" in run.record and experiment_of(run).lr is None]
    for some in grouped(spectra, lambda run: (Family.of(experiment_of(run)).unnormalized, experiment_of(run).width)):
        yield _spectra(grouped(some, lambda run: Family.of(experiment_of(run))))


def _over_width(curves: Sequence[Curve]) -> Iterator[Drawing]:
    """Figure 1: a panel for each activation and number of outputs, few outputs first; a line for each normalization."""
    from matplotlib.lines import Line2D

    if not curves:
        return
    groups = grouped(curves, lambda curve: (curve.family.outputs, curve.family.unnormalized))
    figure, axes = panels(len(groups), panel=(3.5, 2.9), sharey=True)
    for panel, group in zip(axes, groups, strict=True):
        _draw_curves(panel, group)
    for panel, group in zip(axes, groups, strict=True):  # once the shared axis has its limits
        _label_exponents(panel, group)
    figure.supxlabel("width M", fontsize="medium")
    figure.supylabel("largest eigenvalue of the Fisher information", fontsize="medium")
    figure.suptitle("Sharpness of random networks over their width", fontsize="large")
    names = sorted({curve.family.normalized for curve in curves}, key=NORMALIZATIONS.index)
    handles = [Line2D([], [], **line_style(NORMALIZATIONS.index(name))) for name in names]
    handles += [Line2D([], [], color=GREY, linestyle=dashes, linewidth=1.1) for dashes in (_VALUE, _BOUND)]
    figure.legend(
        handles, [*names, "theory", "lower bound"], loc="outside right center", title="normalized", handlelength=3.0
    )
    draws = range_text([len(point.values) for curve in curves for point in curve.points])
    caption = (
        f"lambda_max of the Fisher information of random networks over their width M, mean ± sd over {draws} "
        "draws, with C outputs on T samples; dashed: theory, dotted: its lower bounds (theorems 2.2, 3.3, 3.4 and 4.1 "
        "of Karakida et al. 2019; dashed for layer normalization: a mean-field value that is not the paper's). At the "
        "right, the fitted exponent of M."
    )
    yield Drawing(file_name("sharpness", "width"), caption, figure, _PLACE)


def _draw_curves(panel: Axes, curves: Sequence[Curve]) -> None:
    panel.set_yscale("log")
    for curve in curves:
        style = line_style(NORMALIZATIONS.index(curve.family.normalized))
        at, means = [point.width for point in curve.points], [point.summary.mean for point in curve.points]
        panel.plot(at, means, **style)
        spreads = [point.summary.sd or 0.0 for point in curve.points]
        # A band that would reach below zero ends at a tenth of the mean, which a logarithmic axis can show.
        low = [max(mean - sd, 0.1 * mean) for mean, sd in zip(means, spreads, strict=True)]
        high = [mean + sd for mean, sd in zip(means, spreads, strict=True)]
        panel.fill_between(at, low, high, color=style["color"], alpha=BAND, linewidth=0)
        for name, dashes in (("value", _VALUE), ("lower", _BOUND)):
            known = [(point.width, getattr(point.predicted, name)) for point in curve.points if point.predicted]
            drawn = [(width, number) for width, number in known if number is not None]
            # The bound of eq. 19 scatters around that of theorem 3.3.
            if drawn and curve.family.normalized != "bn-last":
                panel.plot(*zip(*drawn, strict=True), color=style["color"], linestyle=dashes, linewidth=1.1)
    widths = sorted({point.width for curve in curves for point in curve.points})
    set_log_ticks(panel, widths)
    panel.set_xlim(widths[0] / 1.1, widths[-1] * (widths[-1] / widths[0]) ** 0.24)
    panel.set_title(curves[0].family.title)
    panel.yaxis.set_major_formatter("{x:g}")


def _label_exponents(panel: Axes, curves: Sequence[Curve]) -> None:
    """Write the exponents at the ends of their curves, moved apart where they would overlap."""
    ends = [(math.log10(curve.points[-1].summary.mean), curve) for curve in curves if curve.exponent]
    ends.sort(key=lambda end: end[0])
    low, high = (math.log10(limit) for limit in panel.get_ylim())
    heights = apart([(y - low) / (high - low) for y, _ in ends], _LABEL_GAP)
    for height, (_, curve) in zip(heights, ends, strict=True):
        assert curve.exponent is not None
        panel.text(
            0.985,
            height,
            f"$M^{{{two_decimals(curve.exponent.value)}}}$",
            transform=panel.transAxes,
            ha="right",
            va="center",
            fontsize=8,
            color=line_style(NORMALIZATIONS.index(curve.family.normalized))["color"],
        )


def apart(heights: Sequence[float], gap: float) -> list[float]:
    """Return rising heights moved so that neighbours are ``gap`` apart; clusters keep their middle."""
    clusters: list[list[float]] = []

    def end(cluster: Sequence[float], side: int) -> float:
        return sum_in_order(cluster) / len(cluster) + side * (gap * (len(cluster) - 1) / 2)

    for height in heights:
        clusters.append([height])
        while len(clusters) > 1 and end(clusters[-1], -1) < end(clusters[-2], 1) + gap:
            last = clusters.pop()
            clusters[-1] += last
    return [end(cluster, -1) + index * gap for cluster in clusters for index in range(len(cluster))]


def _losses(descents: Sequence[Descent]) -> Drawing:
    """Figure 2 for one kind of network: a column for each normalization, final losses above highest ones."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LogNorm
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    columns = grouped(descents, lambda one: one.family)
    figure = Figure(figsize=(max(3.2 * len(columns) + 1.3, _LEAST_WIDTH), 6.4), layout="constrained")
    axes = figure.subplots(2, len(columns), squeeze=False, sharex=True, sharey=True)
    shade, widths = LogNorm(_LOWEST_LOSS, EXPLODED), sorted({one.width for one in descents})
    for column, same in enumerate(columns):
        _draw_losses(axes[0][column], same, lambda one: one.final, shade, widths)
        axes[0][column].set_title(f"{same[0].family.normalized}: loss after the last step")
        _draw_losses(axes[1][column], same, lambda one: one.peak, shade, widths)
        axes[1][column].set_title(f"{same[0].family.normalized}: loss at its highest")
        axes[1][column].set_xlabel("width M")
    figure.supylabel("learning rate", fontsize="medium")
    figure.colorbar(ScalarMappable(shade, _LOSS_COLORS), ax=axes, label="training loss", fraction=0.05, extend="min")
    title = f"{descents[0].family.title}, {descents[0].steps} steps"
    figure.suptitle(f"Gradient descent on random networks: {title}", fontsize="medium")
    handles = [
        Line2D([], [], **_RATE_LINE, label=r"$2/\lambda_\mathrm{max}$, theory"),
        Line2D([], [], linestyle="", **_RATE_POINTS, label="measured at the start"),
        Patch(label=f"exploded (above {EXPLODED:g})", linewidth=0, **_EXPLODED),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
    caption = (
        "Training loss of full-batch gradient descent over width and learning rate, after the last step (above) and "
        f"at its highest (below), median over {len({one.seed for one in descents})} draws; hatched: half of them or "
        f"more above {EXPLODED:g} or not finite. Line: 2 / lambda_max of theory (with subtracted means, of its lower "
        "bound); points: of each network as measured before its first step."
    )
    return Drawing(file_name("sharpness", "losses", title.replace("=", "")), caption, figure, _PLACE)


def _draw_losses(
    panel: Axes, descents: Sequence[Descent], loss: Callable[[Descent], float], shade: LogNorm, widths: Sequence[int]
) -> None:
    from matplotlib import colormaps
    from matplotlib.patches import Rectangle

    rates = sorted({one.lr for one in descents})
    x, y = cell_edges(widths), cell_edges(rates)
    for cell in grouped(descents, lambda one: (one.width, one.lr)):
        i, j = widths.index(cell[0].width), rates.index(cell[0].lr)
        median = statistics.median(map(loss, cell))
        fill = {"facecolor": colormaps[_LOSS_COLORS](shade(max(median, _LOWEST_LOSS)))}
        corner, size = (x[i], y[j]), (x[i + 1] - x[i], y[j + 1] - y[j])
        panel.add_patch(Rectangle(corner, *size, linewidth=0, **(_EXPLODED if median > EXPLODED else fill)))
    family, networks = descents[0].family, networks_of(descents)
    known = [(width, rate) for width in widths if (rate := predicted_rate(family, width)) is not None]
    if known:
        panel.plot(*zip(*known, strict=True), **_RATE_LINE)
    measured = [2 / one.lambda_max for one in networks]
    panel.plot([one.width for one in networks], measured, linestyle="", markersize=5, **_RATE_POINTS)
    panel.set_yscale("log")
    set_plain_numbers(panel.yaxis)
    set_log_ticks(panel, widths)
    panel.set_xlim(x[0], x[-1])
    panel.grid(visible=False)


def cell_edges(values: Sequence[float]) -> list[float]:
    """Return the edges of cells around values: halfway to the neighbours on a logarithmic axis."""
    logs = [math.log(value) for value in values]
    inner = [(a + b) / 2 for a, b in pairwise(logs)]
    first, last = (inner[0] - logs[0], logs[-1] - inner[-1]) if inner else (0.35, 0.35)
    return [math.exp(edge) for edge in (logs[0] - first, *inner, logs[-1] + last)]


def _spectra(groups: Sequence[Sequence[Run]]) -> Drawing:
    """All eigenvalues at one width: a histogram for each normalization."""
    experiment = experiment_of(groups[0][0])
    family, width = Family.of(experiment), experiment.width
    title = f"{family.network}, M = {width}, T = {family.samples or width}, C = {family.outputs}"
    figure, axes = panels(len(groups), panel=(3.0, 2.2), sharex=True, sharey=True)
    highest = max(max(_eigenvalues(run)) for group in groups for run in group)
    for panel, group in zip(axes, groups, strict=True):
        _draw_spectrum(panel, group, highest)
    figure.supxlabel("eigenvalue of the Fisher information", fontsize="medium")
    figure.supylabel("eigenvalues of a draw", fontsize="medium")
    figure.suptitle(f"Spectra of random networks: {title}", fontsize="medium")
    caption = (
        f"Nonzero eigenvalues of the Fisher information of {title}: number in each bar, mean over "
        f"{range_text(list(map(len, groups)))} draws; dashed: lambda_max of theory (theorem 2.2), dotted: its "
        "lower bound (theorems 3.3 and 3.4)."
    )
    return Drawing(file_name("sharpness spectrum", title), caption, figure, _PLACE)


def _eigenvalues(run: Run) -> list[float]:
    assert run.record is not None
    found: list[float] = run.record["spectrum"]
    return found


def _draw_spectrum(panel: Axes, group: Sequence[Run], highest: float) -> None:
    experiment = experiment_of(group[0])
    family, values = Family.of(experiment), np.concatenate([_eigenvalues(run) for run in group])
    kept = values[values > _ROUNDING * highest]
    low, high = np.log10(max(kept.min(), _DRAWN * highest)), np.log10(2 * highest)
    edges = np.logspace(low, high, int((high - low) * _BARS) + 2).tolist()
    panel.hist(kept, bins=edges, weights=np.full(len(kept), 1 / len(group)), color="#56B4E9", edgecolor="#0072B2")
    predicted = predict(family, experiment.width, {})
    if predicted is not None:
        value, style = (predicted.lower, ":") if predicted.value is None else (predicted.value, "--")
        if value is not None:
            panel.axvline(value, color="#000000", linestyle=style, linewidth=1.3)
    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.set_title(family.normalized)
