"""Panels with the ranks and accuracies of deep networks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from flbench.papers.rank_collapse.arms import Setting
from flbench.report.figures.drawing import Drawing, file_name
from flbench.report.figures.style import BAND, COLORS, LINES, MARKERS, Look
from flbench.report.stats import summarize

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: What stands at the end of every caption.
SHADED = "Mean ± sd over seeds; accuracy at the best of the learning rates, the same for all."

#: x to the values of all seeds.
Series = Mapping[int, Sequence[float]]


def panels(down: int) -> tuple[Figure, list[Axes]]:
    """Two panels in each of ``down`` rows, and room for a legend on their right."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.6, 2.6 * down + 0.4), layout="constrained")
    return figure, list(figure.subplots(down, 2, squeeze=False).ravel())


def look(place: int) -> Look:
    """The colour, marker and kind of line of an arm."""
    return {
        "color": COLORS[place % len(COLORS)],
        "marker": MARKERS[place % len(MARKERS)],
        "linestyle": LINES[place % len(LINES)],
        "linewidth": 1.3,
        "markersize": 3.5,
    }


def draw(panel: Axes, series: Series, place: int, name: str, *, every: int = 1) -> None:
    """A line with a band, a marker after ``every`` points, at other points for other places."""
    found = [(x, summary) for x, values in sorted(series.items()) if (summary := summarize(values))]
    at, style = [x for x, _ in found], look(place)
    panel.plot(at, [one.mean for _, one in found], label=name, markevery=(place % every, every), **style)
    low, high = ([one.mean + sign * (one.sd or 0.0) for _, one in found] for sign in (-1, 1))
    panel.fill_between(at, low, high, color=style["color"], alpha=BAND, linewidth=0)


def percent(values: Iterable[float]) -> list[float]:
    """Accuracies in percent."""
    return [100 * value for value in values]


def rank_axis(panel: Axes, title: str) -> None:
    """A logarithmic axis from 1, whose ticks are written out."""
    panel.set_title(title)
    panel.set_ylabel("r(H)")
    panel.set_yscale("log")
    ticks = [1, 2, 5, 10, 20, 50, 100]
    panel.set_yticks(ticks, [str(tick) for tick in ticks])
    panel.set_yticks([], minor=True)
    panel.set_ylim(bottom=0.9, top=max(12.0, panel.get_ylim()[1]))


def accuracy_axis(panel: Axes, title: str) -> None:
    """From 0 to 100 percent."""
    panel.set_title(title)
    panel.set_ylabel("accuracy (%)")
    panel.set_ylim(0, 102)


def finished(figure: Figure, setting: Setting, what: str, title: str, caption: str, key: Axes | None) -> Drawing:
    """A title above, and the names in a panel on the right of all."""
    figure.suptitle(f"{title}\n{setting.title}", fontsize="medium")
    if key is not None:
        figure.legend(*key.get_legend_handles_labels(), loc="outside right center", handlelength=3.5)
    return Drawing("deep", file_name(f"deep-{what}", setting.title), f"{caption} {SHADED}", figure, ("study", "deep"))
