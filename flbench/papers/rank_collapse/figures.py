"""Figures of studies of kind ``rank``: r over depth (Daneshmand et al. 2020, figure 2), and over width (theorem 2)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from flbench.papers.rank_collapse.depth import NORMS, Net, nets_of, path_name
from flbench.papers.rank_collapse.width import Growth, growths
from flbench.report.board import Leaderboard
from flbench.report.figures.drawing import Drawing
from flbench.report.figures.style import BAND, COLORS, GREY, LINES, MARKERS, Look
from flbench.report.stats import summarize

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Recorded layers that a line needs at least.
FEWEST_LAYERS = 3

#: Layers that are drawn in every decade, and after how many there is a marker.
_A_DECADE, _MARK_EVERY = 25, 8

_PLACE = ("study", "rank")

_NAMES = {"none": "no normalization", "bn-rms": "BN, not centred (the paper's)", "bn": "BN, centred"}


def rank(board: Leaderboard) -> Iterator[Drawing]:
    """What the runs support: r over depth at one width, and r over the width."""
    nets = nets_of([run for run in board.collection.runs if run.experiment.kind == "rank"], board.collection)
    deep = [net for net in nets if any(len(one) >= FEWEST_LAYERS for one in net.records)]
    if deep:
        # At the width of most networks; of equals the largest.
        counts = Counter(net.experiment.width for net in deep)
        width = max(counts, key=lambda width: (counts[width], width))
        yield _over_depth([net for net in deep if net.experiment.width == width], width)
    if wide := [one for one in growths(nets) if one.exponent]:
        yield _over_width(wide)


def _over_depth(nets: Sequence[Net], width: int) -> Drawing:
    figure, panels = _panels([net.family for net in nets], "layer")
    for net in nets:
        _draw_net(panels[net.family], net)
    for panel in panels.values():
        panel.axhline(math.sqrt(width), color=GREY, linewidth=0.9, linestyle=(0, (1, 1)))
        panel.set_xscale("log")
        panel.set_yscale("log")
        _plain_ticks(panel, [1, 2, 5, 10, 20, 50, 100], most=width)
    figure.supylabel("r(H)", fontsize="medium")
    draws = max(len(net.records) for net in nets)
    figure.suptitle(f"Rank over depth, d = {width}: mean over draws, least to greatest shaded", fontsize="large")
    _legend(figure, {net.experiment.normalized for net in nets}, f"√d = {math.sqrt(width):.2f}")
    caption = (
        f"Effective rank r(H) of the representation over the layers of random networks of width d = {width} on "
        f"Gaussian inputs, before the activation; plain: without a residual path, γ: the strength of the layers beside "
        f"one. Mean over up to {draws} draws; shaded from the least to the greatest; dotted: √d."
    )
    return Drawing("rank", "rank-depth", caption, figure, _PLACE)


def _draw_net(panel: Axes, net: Net) -> None:
    layers: dict[int, list[float]] = {}
    for record in (record for one in net.records for record in one):
        if record["round"] > 0 and record["rank"] is not None:
            layers.setdefault(record["round"], []).append(record["rank"])
    if not layers:
        return
    at = _spread_out(sorted(layers))
    look = _look(net.experiment.normalized)
    means = [sum(layers[layer]) / len(layers[layer]) for layer in at]
    panel.plot(at, means, **look, markevery=(NORMS.index(net.experiment.normalized), _MARK_EVERY))
    low, high = ([pick(layers[layer]) for layer in at] for pick in (min, max))
    panel.fill_between(at, low, high, color=look["color"], alpha=BAND, linewidth=0)


def _spread_out(layers: Sequence[int]) -> list[int]:
    """As many on every stretch of a logarithmic axis: all of them would be noise at its end."""
    steps = {round(_A_DECADE * math.log10(layer)): layer for layer in layers}
    return sorted({*steps.values(), layers[-1]})


def _over_width(grown: Sequence[Growth]) -> Drawing:
    figure, panels = _panels([one.family for one in grown], "width d")
    widths = sorted({width for one in grown for width in one.ranks})
    for one in grown:
        _draw_growth(panels[one.family], one)
    for family, panel in panels.items():
        panel.plot(widths, [math.sqrt(width) for width in widths], color=GREY, linewidth=0.9, linestyle=(0, (1, 1)))
        panel.set_xscale("log")
        panel.set_yscale("log")
        panel.set_xticks(widths, [str(width) for width in widths])
        panel.minorticks_off()
        _plain_ticks(panel, [1, 2, 5, 10, 20, 50, 100], most=2 * math.sqrt(widths[-1]))
        same = [one for one in grown if one.family == family]
        lines = "\n".join(f"{one.norm}: exponent {one.exponent_text}" for one in same if one.norm != "none")
        panel.text(0.03, 0.97, lines, transform=panel.transAxes, ha="left", va="top", fontsize=6.5)
    figure.supylabel("r(H), mean over the second half of the layers", fontsize="medium")
    figure.suptitle("Rank that is left at large depth, over the width: mean ± sd over draws", fontsize="large")
    _legend(figure, {one.norm for one in grown}, "√d")
    caption = (
        "Effective rank r(H), mean over the second half of the layers of random networks on Gaussian inputs, over "
        "their width d, before the activation; plain: without a residual path, γ: the strength of the layers beside "
        "one. Mean ± sd over draws; dotted: √d. In the panels: fitted exponents, their 95 % intervals; by theorem 2 "
        "that of linear residual networks is ½ at least."
    )
    return Drawing("rank", "rank-width", caption, figure, _PLACE)


def _draw_growth(panel: Axes, one: Growth) -> None:
    summaries = [(width, found) for width, values in one.ranks.items() if (found := summarize(values))]
    panel.errorbar(
        [width for width, _ in summaries],
        [found.mean for _, found in summaries],
        yerr=[found.sd or 0.0 for _, found in summaries],
        capsize=2,
        **_look(one.norm),
    )


def _panels(families: Sequence[tuple[str, float]], below: str) -> tuple[Figure, dict[tuple[str, float], Axes]]:
    """A row an activation, a column a residual path; combinations that nobody ran are hidden."""
    from matplotlib.figure import Figure

    activations = sorted({activation for activation, _ in families})
    gammas = sorted({gamma for _, gamma in families})
    size = (2.05 * len(gammas) + 0.8, 2.1 * len(activations) + 1.2)
    figure = Figure(figsize=(max(6.5, size[0]), size[1]), layout="constrained")
    grid = figure.subplots(len(activations), len(gammas), squeeze=False, sharex=True, sharey=True)
    panels = {}
    for row, activation in enumerate(activations):
        for column, gamma in enumerate(gammas):
            panel = grid[row][column]
            if (activation, gamma) in families:
                panel.set_title(f"{_title(activation)}, {path_name(gamma)}")
                panel.set_xlabel(below if activation == activations[-1] else "")
                panels[activation, gamma] = panel
            else:
                panel.set_axis_off()
    return figure, panels


def _title(activation: str) -> str:
    return {"relu": "ReLU"}.get(activation, activation)


def _look(norm: str) -> Look:
    place = NORMS.index(norm)
    return {
        "color": COLORS[place],
        "marker": MARKERS[place],
        "linestyle": LINES[place],
        "linewidth": 1.3,
        "markersize": 3.5,
    }


def _plain_ticks(panel: Axes, ticks: Sequence[float], *, most: float) -> None:
    shown = [tick for tick in ticks if tick <= most]
    panel.set_yticks(shown, [f"{tick:g}" for tick in shown])
    panel.set_yticks([], minor=True)
    panel.set_ylim(bottom=0.9)


def _legend(figure: Figure, norms: set[str], root: str) -> None:
    from matplotlib.lines import Line2D

    shown = [norm for norm in NORMS if norm in norms]
    handles = [Line2D([], [], **_look(norm)) for norm in shown]
    handles.append(Line2D([], [], color=GREY, linewidth=0.9, linestyle=(0, (1, 1))))
    figure.legend(
        handles, [*(_NAMES[norm] for norm in shown), root], loc="outside lower center", ncols=4, handlelength=3
    )
