"""The phase diagram: a planned comparison's gain over two axes of columns, as a map that is readable in grey."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from flbench.metric_specs import METRICS
from flbench.report.board import Leaderboard, Section
from flbench.report.cells import grouped
from flbench.report.figures.drawing import FIGURES, Drawing, file_name
from flbench.report.figures.style import COLOR_MAP, WIDTH, no_math, panels, scale_of, set_title, spelled
from flbench.report.planned import Planned
from flbench.report.ticks import Tick

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap, Normalize

#: Fewer places than this on an axis make no diagram.
FEWEST = 3

#: Least width and height of a place in inches.
_PLACE = 0.42, 0.34


@FIGURES.register(
    "phase",
    "gains over two axes of columns, such as classes and E; bold with * where the corrected test shows one",
    requires="three places on both axes",
    order=5,
    on_first_page=True,
)
def phase(board: Leaderboard) -> Iterator[Drawing]:
    """Draw one figure for each value that others are compared with, a map for each of them; no interactions.

    Yields:
        A figure where columns have two axes with ``FEWEST`` places or more.
    """
    for section in board.sections:
        for some in mapped(section):
            yield _draw(section, some)


def mapped(section: Section) -> Iterator[list[Planned]]:
    """Yield the planned comparisons of each figure."""
    plain = [one for one in section.planned if not one.between and len(one.place.axes) == 2]
    for some in grouped(plain, lambda one: (one.pair.field, one.pair.against.form)):
        if min(map(len, _ticks(some))) >= FEWEST:
            yield some


def _ticks(some: Sequence[Planned]) -> list[list[Tick]]:
    """Return the places on both axes."""
    return [sorted({one.place.ticks[axis] for one in some}) for axis in (0, 1)]


def _draw(section: Section, some: Sequence[Planned]) -> Drawing:
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    ticks, values = _ticks(some), list(dict.fromkeys(one.value for one in some))
    across = max(1, min(2, int(WIDTH / (_PLACE[0] * len(ticks[1])))))
    height = _PLACE[1] * len(ticks[0]) + 0.45
    figure, axes = panels(len(values), across=across, height=height, sharex=True, sharey=True)
    metric, scale, against = METRICS[section.layout.metric], scale_of(section.layout.metric), some[0].reference
    means = [scale * one.contrast.difference.mean for one in some]
    shade = Normalize(min(means), max(means))
    colors = colormaps[f"{COLOR_MAP}{'_r' if metric.lower_is_better else ''}"]
    for panel, value in zip(axes, values, strict=True):
        _draw_map(panel, [one for one in some if one.value == value], ticks, scale, shade, colors)
        panel.set_title(no_math(f"{spelled(value)} against {spelled(against)}"))
    unit = " (points)" if metric.percent else ""
    figure.colorbar(ScalarMappable(shade, colors), ax=axes, label=f"gain in {metric.title}{unit}", fraction=0.05)
    names = ["E (local steps)" if axis == "local_steps" else axis for axis in some[0].place.axes]
    figure.supylabel(names[0], fontsize="medium")
    figure.supxlabel(names[1], fontsize="medium")
    set_title(figure, f"{section.title}: gain against {against}")
    caption = (
        f"{section.title}: gain in {metric.title}{unit} against {against}, paired by seed; bold with *: shown, by a "
        f"t-test with Holm's correction over the {len(section.planned)} planned comparisons."
    )
    return Drawing(file_name("phase", section.title, f"against {against}"), caption, figure, section.place)


def _draw_map(
    panel: Axes,
    some: Sequence[Planned],
    ticks: Sequence[Sequence[Tick]],
    scale: int,
    shade: Normalize,
    colors: Colormap,
) -> None:
    from matplotlib.patches import Rectangle

    for one in some:
        y, x = (at.index(tick) for at, tick in zip(ticks, one.place.ticks, strict=True))
        gain = scale * one.contrast.difference.mean
        panel.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=colors(shade(gain)), edgecolor="#FFFFFF"))
        ink = "#FFFFFF" if shade(gain) < 0.5 else "#000000"
        text, weight = (f"{gain:+z.1f}*", "bold") if one.contrast.is_different else (f"{gain:+z.1f}", "normal")
        panel.text(x, y, text, ha="center", va="center", color=ink, fontsize=7.5, fontweight=weight)
    panel.set_xlim(-0.5, len(ticks[1]) - 0.5)
    panel.set_ylim(len(ticks[0]) - 0.5, -0.5)
    panel.set_xticks(range(len(ticks[1])), [no_math(at.label) for at in ticks[1]])
    panel.set_yticks(range(len(ticks[0])), [no_math(at.label) for at in ticks[0]])
    panel.tick_params(length=0)
    panel.grid(visible=False)
    panel.spines[:].set_visible(False)
