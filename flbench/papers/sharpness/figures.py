"""Figures of studies of kind ``sharpness``: figures 1 and 2 of Karakida et al. 2019, and spectra."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from flbench.papers.evidence import by, fit_exponent, range_text, two_decimals
from flbench.papers.sharpness.chapter import median_theory
from flbench.papers.sharpness.frames import (
    EXPLODED,
    NORMALIZATIONS,
    Family,
    descents,
    draws,
    experiment_of,
    theory,
)
from flbench.report.board import Leaderboard
from flbench.report.cells import grouped
from flbench.report.figures.drawing import Drawing, file_name
from flbench.report.figures.style import (
    BAND,
    COLOR_MAP,
    GREY,
    LINES,
    is_lowest,
    legend_of,
    line_style,
    panels,
    set_log_ticks,
    set_panel_title,
    set_plain_numbers,
    set_title,
    spelled,
)
from flbench.report.runs import Run
from flbench.sums import sum_in_order

if TYPE_CHECKING:
    import pandas as pd
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

#: The cells of exploded runs.
_EXPLODED: dict[str, Any] = {"facecolor": "#BDBDBD", "edgecolor": "#FFFFFF", "hatch": "////"}

#: 2 / lambda_max: theory's line, and the points measured at the start.
_RATE_LINE: dict[str, Any] = {"color": "#D55E00", "linestyle": "--", "linewidth": 1.8}
_RATE_POINTS: dict[str, Any] = {"marker": "o", "markerfacecolor": "#FFFFFF", "markeredgecolor": "#000000"}

#: Bars a decade of a spectrum; eigenvalues below the first share of the largest are rounding errors, those below the
#: second are not drawn.
_BARS, _ROUNDING, _DRAWN = 8, 1e-10, 1e-5


def _in_words(normalized: str) -> str:
    """Return a normalization and its layers: ``batch norm, last layer``."""
    name, _, layers = normalized.partition("-")
    where = f", {layers} layer{'' if layers == 'last' else 's'}" if layers else ""
    return f"{spelled(name)}{where}"


def sharpness(board: Leaderboard) -> Iterator[Drawing]:
    """Draw what the runs support."""
    runs = [run for run in board.collection.runs if run.experiment.kind == "sharpness"]
    drawn = draws(runs)
    yield from _over_width(drawn[drawn.groupby("family").width.transform("nunique") > 1])
    trained = descents(runs, board.collection)
    unnormalized = trained.family.map(lambda family: family.unnormalized)
    for _, same in trained.groupby([unnormalized, "steps"]):
        if same.lr.nunique() > 1:
            yield _losses(same)
    spectra = [run for run in runs if run.record and "spectrum" in run.record and experiment_of(run).lr is None]
    for alike in grouped(spectra, lambda run: (Family.of(experiment_of(run)).unnormalized, experiment_of(run).width)):
        yield _spectra(grouped(alike, lambda run: Family.of(experiment_of(run))))


def _over_width(drawn: pd.DataFrame) -> Iterator[Drawing]:
    """Figure 1: a panel for each activation and number of outputs, few outputs first; a line for each normalization."""
    from matplotlib.lines import Line2D

    if drawn.empty:
        return
    unnormalized = drawn.family.map(lambda family: family.unnormalized)
    groups = [own for _, own in drawn.groupby(["outputs", unnormalized])]
    figure, axes = panels(len(groups), height=2.9, sharey=True)
    for panel, group in zip(axes, groups, strict=True):
        _draw_curves(panel, group)
    for panel, group in zip(axes, groups, strict=True):  # once the shared axis has its limits
        _label_exponents(panel, group)
    for panel in axes:
        panel.set_xlabel("width M" if is_lowest(panel) else "")
    figure.supylabel("largest eigenvalue of the Fisher information", fontsize="medium")
    set_title(figure, "Sharpness of random networks over their width")
    names = sorted(drawn.normalized.unique(), key=NORMALIZATIONS.index)
    handles = [Line2D([], [], **line_style(NORMALIZATIONS.index(name))) for name in names]
    handles += [Line2D([], [], color=GREY, linestyle=dashes, linewidth=1.1) for dashes in (_VALUE, _BOUND)]
    legend_of(figure, handles, [*map(_in_words, names), "theory", "lower bound"])
    caption = (
        "lambda_max of the Fisher information of random networks over their width M, mean ± sd over "
        f"{range_text(drawn.groupby(['family', 'width']).size().tolist())} "
        "draws, with C outputs on T samples; dashed: theory, dotted: its lower bounds (theorems 2.2, 3.3, 3.4 and 4.1 "
        "of Karakida et al. 2019; dashed for layer normalization: a mean-field value that is not the paper's). At the "
        "right, the fitted exponent of M."
    )
    yield Drawing(file_name("sharpness", "width"), caption, figure, _PLACE)


def _draw_curves(panel: Axes, drawn: pd.DataFrame) -> None:
    panel.set_yscale("log")
    for family, own in by(drawn, "family"):
        style = line_style(NORMALIZATIONS.index(family.normalized))
        over_width = own.groupby("width")
        means, spreads = over_width.lambda_max.mean(), over_width.lambda_max.std().fillna(0.0)
        panel.plot(means.index, means, **style)
        # A band that would reach below zero ends at a tenth of the mean, which a logarithmic axis can show.
        low = (means - spreads).clip(lower=0.1 * means)
        panel.fill_between(means.index, low, means + spreads, color=style["color"], alpha=BAND, linewidth=0)
        known = {width: found for width, draws in over_width if (found := median_theory(draws))}
        for name, dashes in (("value", _VALUE), ("lower", _BOUND)):
            line = {width: number for width, one in known.items() if (number := getattr(one, name)) is not None}
            # The bound of eq. 19 scatters around that of theorem 3.3.
            if line and family.normalized != "bn-last":
                panel.plot(*zip(*line.items(), strict=True), color=style["color"], linestyle=dashes, linewidth=1.1)
    widths = sorted(drawn.width.unique())
    set_log_ticks(panel, widths)
    panel.set_xlim(widths[0] / 1.1, widths[-1] * (widths[-1] / widths[0]) ** 0.24)
    panel.set_title(drawn.family.iloc[0].title)
    panel.yaxis.set_major_formatter("{x:g}")


def _label_exponents(panel: Axes, drawn: pd.DataFrame) -> None:
    """Write the exponents at the ends of their curves, moved apart where they would overlap."""
    ends = []
    for family, own in by(drawn, "family"):
        by_width = {width: values.lambda_max.tolist() for width, values in by(own, "width")}
        if found := fit_exponent(by_width):
            ends.append((math.log10(statistics.fmean(by_width[max(by_width)])), family, found))
    ends.sort(key=lambda end: end[0])
    low, high = (math.log10(limit) for limit in panel.get_ylim())
    heights = apart([(y - low) / (high - low) for y, *_ in ends], _LABEL_GAP)
    for height, (_, family, found) in zip(heights, ends, strict=True):
        panel.text(
            0.985,
            height,
            f"$M^{{{two_decimals(found.value)}}}$",
            transform=panel.transAxes,
            ha="right",
            va="center",
            fontsize=8,
            color=line_style(NORMALIZATIONS.index(family.normalized))["color"],
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


def _losses(trained: pd.DataFrame) -> Drawing:
    """Figure 2 for one kind of network: a column for each normalization, final losses above highest ones."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LogNorm
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    columns: list[tuple[Family, pd.DataFrame]] = list(by(trained, "family"))
    across = len(columns)
    figure, axes = panels(2 * across, across=across, height=2.8, sharex=True, sharey=True)
    shade, widths = LogNorm(_LOWEST_LOSS, EXPLODED), sorted(trained.width.unique())
    for column, (family, own) in enumerate(columns):
        for row, (loss, when) in enumerate((("final", "after the last step"), ("peak", "at its highest"))):
            _draw_losses(axes[row * across + column], own, loss, shade, widths)
            set_panel_title(axes[row * across + column], f"{_in_words(family.normalized)}: loss {when}")
        axes[across + column].set_xlabel("width M")
    figure.supylabel("learning rate", fontsize="medium")
    figure.colorbar(ScalarMappable(shade, _LOSS_COLORS), ax=axes, label="training loss", fraction=0.05, extend="min")
    title = f"{columns[0][0].title}, {trained.steps.iloc[0]} steps"
    set_title(figure, f"Gradient descent on random networks: {title}")
    handles = [
        Line2D([], [], **_RATE_LINE, label="2 / λ_max, theory"),
        Line2D([], [], linestyle="", **_RATE_POINTS, label="measured at the start"),
        Patch(label=f"exploded (above {EXPLODED:g})", linewidth=0, **_EXPLODED),
    ]
    rates = trained.lr.nunique()
    if any(len(own.drop_duplicates(["width", "lr"])) < own.width.nunique() * rates for _, own in columns):
        handles.append(Patch(label="white: not run", facecolor="#FFFFFF", edgecolor=GREY, linewidth=0.8))
    legend_of(figure, handles, [str(handle.get_label()) for handle in handles])
    caption = (
        "Training loss of full-batch gradient descent over width and learning rate, after the last step (above) and "
        f"at its highest (below), median over {trained.seed.nunique()} draws; hatched: half of them or "
        f"more above {EXPLODED:g} or not finite. Line: 2 / lambda_max of theory (with subtracted means, of its lower "
        "bound); points: of each network as measured before its first step."
    )
    return Drawing(file_name("sharpness", "losses", title.replace("=", "")), caption, figure, _PLACE)


def _draw_losses(panel: Axes, trained: pd.DataFrame, loss: str, shade: LogNorm, widths: Sequence[int]) -> None:
    from matplotlib import colormaps
    from matplotlib.patches import Rectangle

    rates = sorted(trained.lr.unique())
    x, y = cell_edges(widths), cell_edges(rates)
    for (width, lr), own in by(trained, "width", "lr"):
        i, j = widths.index(width), rates.index(lr)
        median = statistics.median(own[loss])
        fill = {"facecolor": colormaps[_LOSS_COLORS](shade(max(median, _LOWEST_LOSS)))}
        corner, size = (x[i], y[j]), (x[i + 1] - x[i], y[j + 1] - y[j])
        panel.add_patch(Rectangle(corner, *size, linewidth=0, **(_EXPLODED if median > EXPLODED else fill)))
    lines = trained.groupby("width").line.first().dropna()
    if len(lines):
        panel.plot(lines.index, lines, **_RATE_LINE)
    networks = trained.drop_duplicates(["width", "seed"])
    panel.plot(networks.width, 2 / networks.lambda_max, linestyle="", markersize=5, **_RATE_POINTS)
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
    from matplotlib.lines import Line2D

    experiment = experiment_of(groups[0][0])
    family, width = Family.of(experiment), experiment.width
    title = f"{family.network}, M = {width}, T = {family.samples or width}, C = {family.outputs}"
    figure, axes = panels(len(groups), height=2.2, sharex=True, sharey=True)
    highest = max(max(_eigenvalues(run)) for group in groups for run in group)
    for panel, group in zip(axes, groups, strict=True):
        _draw_spectrum(panel, group, highest)
        panel.set_xlabel("eigenvalue of the Fisher information" if is_lowest(panel) else "")
    figure.supylabel("eigenvalues of a draw", fontsize="medium")
    set_title(figure, f"Spectra of random networks: {title}")
    handles = [Line2D([], [], color="#000000", linestyle=dashes, linewidth=1.3) for dashes in ("--", ":")]
    legend_of(figure, handles, ["largest eigenvalue by theory", "its lower bound"])
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
    predicted = theory(family, experiment.width, {})
    if predicted is not None:
        value, style = (predicted.lower, ":") if predicted.value is None else (predicted.value, "--")
        if value is not None:
            panel.axvline(value, color="#000000", linestyle=style, linewidth=1.3)
    panel.set_xscale("log")
    panel.set_yscale("log")
    set_panel_title(panel, _in_words(family.normalized))
