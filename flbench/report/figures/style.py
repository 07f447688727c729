"""One style for every figure: safe for the colour-blind, readable in grey; the same runs give the same bytes.

The norm of a row sets colour and marker, its place on the other axes (method, head) the dashes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flbench.errors import UserError
from flbench.metric_specs import METRICS
from flbench.report.cells import Cell
from flbench.report.ticks import Tick, axis_label
from flbench.report.wording import gap_text
from flbench.sums import sum_in_order

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

#: Okabe and Ito's palette without yellow, which is invisible on white; neighbours differ in lightness.
COLORS = ("#000000", "#D55E00", "#56B4E9", "#009E73", "#E69F00", "#0072B2", "#CC79A7")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LINES = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (5, 1.5, 1, 1.5)), (0, (8, 2)), (0, (3, 1, 1, 1, 1, 1)))
GREY = "#555555"

#: The places in ``COLORS`` of the values that are compared most: they look the same in every figure.
KNOWN = {"none": 0, "ln": 1, "fn": 2, "gn": 3, "scale": 4, "bn": 5}

#: A colour map whose lightness rises steadily, for every kind of colour blindness and in grey.
COLOR_MAP = "cividis"

#: The colours of gains, from the greatest loss to the greatest gain, evenly spaced: zero is white.
GAIN_COLORS = ("#7F3B08", "#D9801A", "#FDC37D", "#FFFFFF", "#BFB8DA", "#7B6CA8", "#2D004B")

#: Settings of matplotlib.
STYLE: Any = {
    "font.size": 9,
    "axes.titlesize": "medium",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "svg.hashsalt": "flbench",
    "pdf.fonttype": 42,  # TrueType, which publishers accept; Type 3 they do not
}

#: What becomes of text, and of the heights of figures, in a paper.
SHRINK = 7 / 9

#: The same for a paper.
PAPER: Any = {**STYLE, "font.size": SHRINK * STYLE["font.size"], "lines.markersize": 3, "axes.linewidth": 0.6}

#: Width of every figure and height of a panel in inches; most panels side by side before a new row begins.
WIDTH, HEIGHT, ACROSS = 8.6, 2.4, 3

#: Names of norms in figures, by the first word of their label.
SPELLED = {
    "none": "no norm",
    "ln": "layer norm",
    "gn": "group norm",
    "in": "instance norm",
    "rms": "RMS norm",
    "bn": "batch norm",
    "fn": "feature norm",
    "mean": "mean subtraction",
    "scale": "constant",
    "ws": "weight standardization",
}

#: Size of notes in panels, the smallest text: 9 px high where a figure is 800 px wide.
SMALL = 7

#: Opacity of the band of mean ± one sample standard deviation.
BAND = 0.15

#: Keyword arguments of a line: colour, marker, dashes, sizes.
LineStyle = dict[str, Any]


@contextmanager
def matplotlib_style(style: Any) -> Iterator[None]:
    """Apply a style to matplotlib's own defaults: no ``matplotlibrc`` of the user changes a figure.

    Raises:
        UserError: matplotlib, which reads the user's ``matplotlibrc`` as it is imported, cannot read it.
    """
    try:
        import matplotlib as mpl
    except (OSError, UnicodeError) as error:
        raise UserError(
            f"matplotlib cannot read a file named matplotlibrc, in {Path.cwd()} or in its folder of settings: {error}; "
            "rename or remove the file"
        ) from None
    # The backend is for windows and stays as it is: reading it would choose one.
    defaults: Any = {name: mpl.rcParamsDefault[name] for name in mpl.rcParamsDefault if name != "backend"}
    with mpl.rc_context(defaults | style):
        yield


def line_style(color: int, dashes: int = 0) -> LineStyle:
    """Return the style with a colour and marker, and dashes, by their numbers; colours used again have other dashes."""
    return {
        "color": COLORS[color % len(COLORS)],
        "marker": MARKERS[color % len(MARKERS)],
        "linestyle": LINES[(dashes + color // len(COLORS)) % len(LINES)],
        "linewidth": 1.3,
        "markersize": 3.5,
    }


def color_numbers(names: Iterable[str], first: int = 0) -> dict[str, int]:
    """Return the number of each name's colour: its own if it has one, else the first that is left from ``first`` on.

    >>> color_numbers(["none", "ln", "gn-static", "fn"])
    {'none': 0, 'ln': 1, 'gn-static': 6, 'fn': 2}
    """
    distinct = dict.fromkeys(names)
    own = {name: KNOWN[name] for name in distinct if name in KNOWN}
    left = [number for number in range(first, len(COLORS)) if number not in own.values()]
    left.sort(key=lambda number: number > 0 and number in KNOWN.values())
    others = chain(left, count(len(COLORS)))
    return {name: own[name] if name in own else next(others) for name in distinct}


def row_styles(rows: Sequence[tuple[Tick, ...]], axes: Sequence[str]) -> dict[tuple[Tick, ...], LineStyle]:
    """Return the style of each row: its colour shows its place on ``norm``, or on the last axis where there is none."""
    of_color = axes.index("norm") if "norm" in axes else len(axes) - 1
    others = [tuple(place for axis, place in enumerate(row) if axis != of_color) for row in rows]
    dashes = sorted(set(others))
    colors = color_numbers(value.label for value in sorted({row[of_color] for row in rows}))
    return {
        row: line_style(colors[row[of_color].label], dashes.index(other))
        for row, other in zip(rows, others, strict=True)
    }


def plot_mean(
    panel: Axes,
    x: Sequence[float],
    means: Sequence[float],
    sds: Sequence[float | None],
    style: LineStyle,
    *,
    scale: int = 1,
    **options: Any,
) -> None:
    """Draw means as a line and mean ± sd as a band; NaN breaks both, an sd of None has no width."""
    panel.plot(x, [scale * mean for mean in means], **style, **options)
    low, high = ([scale * (mean + sign * (sd or 0.0)) for mean, sd in zip(means, sds, strict=True)] for sign in (-1, 1))
    panel.fill_between(x, low, high, color=style["color"], alpha=BAND, linewidth=0)


def scale_of(metric: str) -> int:
    """Return the factor of recorded numbers on an axis: 100 for percentages."""
    return 100 if METRICS[metric].percent else 1


def limit_values(panel: Axes, metric: str) -> None:
    """End the axis of a percentage at 0 and 100, also where bands reach further."""
    if METRICS[metric].percent:
        panel.set_ylim(0, 101)


def metric_label(metric: str) -> str:
    """Return the label of an axis."""
    return f"{METRICS[metric].title}{' (%)' if METRICS[metric].percent else ''}"


def panels(
    count: int, *, across: int = ACROSS, height: float | Sequence[float] = HEIGHT, **options: Any
) -> tuple[Figure, list[Axes]]:
    """Return a figure with ``count`` panels, of a height in inches or of one for each row of panels.

    At most ``across`` are side by side, all rows equally many; the lowest ones have the labels of their axes.
    """
    from matplotlib.figure import Figure

    down = math.ceil(count / across)
    across = math.ceil(count / down)
    heights = height if isinstance(height, Sequence) else [height] * down
    figure = Figure(figsize=(WIDTH, sum_in_order(heights) + 0.5), layout="constrained")
    axes = list(figure.subplots(down, across, squeeze=False, height_ratios=heights, **options).ravel())
    for spare in axes[count:]:
        spare.set_axis_off()
    for lowest in axes[max(0, count - across) : count]:
        lowest.tick_params(labelbottom=True)
    return figure, axes[:count]


def is_lowest(panel: Axes) -> bool:
    """Return whether a panel of ``panels`` has none below it."""
    place = panel.get_subplotspec()
    assert place is not None
    below = (one.get_subplotspec() for one in panel.figure.axes if one.axison)
    return not any(one and one.colspan == place.colspan and one.rowspan.start > place.rowspan.start for one in below)


def set_log_ticks(panel: Axes, values: Sequence[float]) -> None:
    """Give a panel a logarithmic x axis with ticks at the values alone."""
    panel.set_xscale("log")
    panel.set_xticks(values, [str(value) for value in values])
    panel.minorticks_off()


def set_plain_numbers(axis: Axis) -> None:
    """Give a logarithmic axis that spans less than two powers of ten plain numbers, two or three a power."""
    from matplotlib.ticker import LogLocator, NullFormatter

    low, high = axis.get_view_interval()
    if high < 100 * low:
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 20 * low else (1.0, 3.0)))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter(NullFormatter())


def set_title(figure: Figure, title: str) -> None:
    """Put a title above all panels, in as many lines as the figure's width requires."""
    figure.suptitle(wrapped(title, WIDTH - 0.2, "large"), fontsize="large")


def set_panel_title(panel: Axes, title: str) -> None:
    """Put a title above a panel, in as many lines as keep it off the neighbours' titles."""
    panel.set_title(wrapped(title, 0.66 * panel_width(panel), "medium"))


def panel_width(panel: Axes) -> float:
    """Return the width in inches that a panel has with its labels."""
    place = panel.get_subplotspec()
    assert place is not None
    return WIDTH / place.get_gridspec().ncols


def spelled(norm: str) -> str:
    """Return the label of a normalization in words.

    >>> spelled("ln"), spelled("gn(groups=4)"), spelled("fn-layerwise"), spelled("silobn")
    ('layer norm', 'group norm (groups=4)', 'feature norm layerwise', 'silobn')
    """
    name, rest = re.fullmatch(r"([a-z]*)(.*)", norm, re.DOTALL).groups()  # type: ignore[union-attr]
    return f"{SPELLED.get(name, name)} {rest.removeprefix('-')}".strip() if name in SPELLED else norm


def named(styles: Mapping[tuple[Tick, ...], LineStyle], axes: Sequence[str]) -> dict[str, LineStyle]:
    """Return the styles of rows by the names that legends have: their places on the axes on which they differ."""
    differ = [axis for axis in range(len(axes)) if len({row[axis] for row in styles}) > 1] or [*range(len(axes))]
    shown = [axes[axis] for axis in differ]
    return {row_label([row[axis] for axis in differ], shown): style for row, style in styles.items()}


def row_label(row: Sequence[Tick], axes: Sequence[str]) -> str:
    """Return the name of a row in a figure: ``fedavg, layer norm``, or ``coefficient 0.3, no norm``."""
    fields = [axis.rpartition(".")[2] for axis in axes]
    return ", ".join(
        spelled(at.label) if axis == "norm" else axis_label(field, at)
        for axis, field, at in zip(axes, fields, row, strict=True)
    )


def no_math(text: str) -> str:
    """Escape the dollar signs of a label, between which matplotlib would typeset mathematics."""
    return text.replace("$", r"\$")


def text_width(text: str, size: str | float) -> float:
    """Return the width of a line of text in inches."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    return float(TextPath((0, 0), no_math(text), prop=FontProperties(size=size), usetex=False).get_extents().width) / 72


def wrapped(text: str, inches: float, size: str | float) -> str:
    """Break a text at spaces into lines of at most a width."""
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".lstrip()
        if lines[-1] and text_width(longer, size) > inches:
            lines.append(word)
        else:
            lines[-1] = longer
    return no_math("\n".join(lines))


def legend(figure: Figure, styles: Mapping[str, LineStyle]) -> None:
    """Put names below all panels, each with its line, in a figure that grows by their lines."""
    from matplotlib.lines import Line2D

    legend_of(figure, [Line2D([], [], **style) for style in styles.values()], list(styles))


def legend_of(figure: Figure, handles: Sequence[Any], names: Sequence[str]) -> None:
    """Put names and what shows them below all panels, as many side by side as the figure's width has room for."""
    import matplotlib as mpl

    size = mpl.rcParams["legend.fontsize"]
    entry = max(text_width(name, size) for name in names) + 0.8  # the mark, and the space around it
    across = min(len(names), max(1, int(WIDTH / entry)))
    across = math.ceil(len(names) / math.ceil(len(names) / across))
    figure.set_figheight(figure.get_figheight() + 0.22 * math.ceil(len(names) / across) + 0.1)
    figure.legend(handles, [*map(no_math, names)], loc="outside lower center", ncols=across, handlelength=3)


def annotate_gaps(panel: Axes, cells: Sequence[tuple[str, Cell]]) -> None:
    """List the incomplete ones of some cells by name, with their gaps, in the lower right corner."""
    lines = "\n".join(f"{name}: {gap_text(cell)}" for name, cell in cells if not cell.complete)
    panel.text(0.98, 0.03, lines, transform=panel.transAxes, ha="right", va="bottom", fontsize=SMALL, color=GREY)
