"""Losses of gradient descent over width and learning rate (figure 2 of Karakida et al. 2019)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from flbench.papers.sharpness.descents import EXPLODED, Descent, Network, descents_of, line_of_theory, networks_of
from flbench.papers.sharpness.draws import Family
from flbench.report.cells import grouped
from flbench.report.figures.drawing import Drawing, file_name
from flbench.report.runs import Collection, Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import LogNorm
    from matplotlib.figure import Figure

#: Its lightness rises steadily, for every kind of colour blindness and in grey; light is better.
_COLORS = "cividis_r"

#: What an exploded cell looks like, and the lines over the cells.
_EXPLODED: dict[str, Any] = {"facecolor": "#BDBDBD", "edgecolor": "#FFFFFF", "hatch": "////"}
_LINE, _POINTS = "#D55E00", "#FFFFFF"

#: Losses below this share one colour.
_LOWEST = 1e-3

#: What is drawn in each row of panels.
_ROWS: Sequence[tuple[str, Callable[[Descent], float]]] = (
    ("after the last step", lambda one: one.final),
    ("at its highest", lambda one: one.peak),
)


def losses(runs: Sequence[Run], collection: Collection) -> Iterator[Drawing]:
    """One figure for each kind of network: panels for each normalization, final losses above highest ones."""
    descents = descents_of(runs, collection)
    for same in grouped(descents, lambda one: Family(**{**vars(one.family), "normalized": "none"})):
        if len({one.lr for one in same}) > 1:
            yield _figure(same)


def _figure(descents: Sequence[Descent]) -> Drawing:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LogNorm
    from matplotlib.figure import Figure

    columns = grouped(descents, lambda one: one.family)
    figure = Figure(figsize=(3.2 * len(columns) + 1.3, 6.4), layout="constrained")
    axes = figure.subplots(len(_ROWS), len(columns), squeeze=False, sharex=True, sharey=True)
    shade, widths = LogNorm(_LOWEST, EXPLODED), sorted({one.width for one in descents})
    for row, (what, loss) in enumerate(_ROWS):
        for column, same in enumerate(columns):
            _draw(axes[row][column], same, loss, shade, widths)
            axes[row][column].set_title(f"{same[0].family.normalized}: loss {what}")
    for lowest in axes[-1]:
        lowest.set_xlabel("width M")
    figure.supylabel("learning rate", fontsize="medium")
    figure.colorbar(ScalarMappable(shade, _COLORS), ax=axes, label="training loss", fraction=0.05, extend="min")
    family = descents[0].family
    samples = "M" if family.samples is None else family.samples
    title = f"{family.network}, L = {family.layers}, C = {family.outputs}, T = {samples}"
    figure.suptitle(f"Gradient descent on random networks: {title}", fontsize="medium")
    _legend(figure)
    name = file_name("sharpness", "losses", title.replace("=", ""))
    return Drawing("sharpness", name, _caption(descents), figure, ("study", "sharpness"))


def _caption(descents: Sequence[Descent]) -> str:
    draws = len({one.seed for one in descents})
    return (
        "Training loss of full-batch gradient descent over width and learning rate, after the last step (above) and "
        f"at its highest (below), median over {draws} draws; hatched: half of them or more above {EXPLODED:g} or not "
        "finite. Line: 2 / lambda_max of theory (with subtracted means, of its lower bound); points: of each network "
        "as measured before its first step."
    )


def _draw(
    panel: Axes,
    descents: Sequence[Descent],
    loss: Callable[[Descent], float],
    shade: LogNorm,
    widths: Sequence[int],
) -> None:
    from matplotlib import colormaps
    from matplotlib.patches import Rectangle

    rates = sorted({one.lr for one in descents})
    x, y = _edges(widths), _edges(rates)
    for cell in grouped(descents, lambda one: (one.width, one.lr)):
        i, j = widths.index(cell[0].width), rates.index(cell[0].lr)
        median = statistics.median(map(loss, cell))
        face = {"facecolor": colormaps[_COLORS](shade(max(median, _LOWEST)))}
        corner, size = (x[i], y[j]), (x[i + 1] - x[i], y[j + 1] - y[j])
        panel.add_patch(Rectangle(corner, *size, linewidth=0, **(_EXPLODED if median > EXPLODED else face)))
    _draw_lines(panel, descents, widths)
    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.set_xlim(x[0], x[-1])
    panel.set_xticks(widths, [str(width) for width in widths])
    panel.minorticks_off()
    panel.grid(visible=False)


def _draw_lines(panel: Axes, descents: Sequence[Descent], widths: Sequence[int]) -> None:
    """Theory's line, and what was measured."""
    family = descents[0].family
    known = [(width, line) for width in widths if (line := line_of_theory(family, width)) is not None]
    if known:
        panel.plot(*zip(*known, strict=True), color=_LINE, linestyle="--", linewidth=1.8)
    networks: Sequence[Network] = networks_of(descents)
    panel.plot(
        [one.width for one in networks],
        [2 / one.lambda_max for one in networks],
        "o",
        markerfacecolor=_POINTS,
        markeredgecolor="#000000",
        markersize=5,
    )


def _edges(values: Sequence[float]) -> list[float]:
    """Around each value, halfway to its neighbours on a logarithmic axis."""
    logs = [math.log(value) for value in values]
    inner = [(a + b) / 2 for a, b in pairwise(logs)]
    first, last = (inner[0] - logs[0], logs[-1] - inner[-1]) if inner else (0.35, 0.35)
    return [math.exp(edge) for edge in (logs[0] - first, *inner, logs[-1] + last)]


def _legend(figure: Figure) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles = [
        Line2D([], [], color=_LINE, linestyle="--", linewidth=1.8, label=r"$2/\lambda_\mathrm{max}$, theory"),
        Line2D(
            [],
            [],
            linestyle="",
            marker="o",
            markerfacecolor=_POINTS,
            markeredgecolor="#000000",
            label="measured at the start",
        ),
        Patch(label=f"exploded (above {EXPLODED:g})", linewidth=0, **_EXPLODED),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
