"""Curves in the terminal: a plot of braille dots, and sparklines of a few characters."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

from flbench.cli.numbers import handy
from flbench.metric_specs import METRICS, value_of
from flbench.store import Store
from flbench.sums import sum_in_order

#: Characters of a sparkline.
WIDTH = 16

#: Smallest range of a sparkline's scale, in accuracy, or as a share of the greatest number: noise must not look like
#: progress.
LEAST_RANGE = 0.05

_HEIGHTS = "▁▂▃▄▅▆▇█"

#: Bits of the dots of one braille character, by column, from the top: two columns of four dots.
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))


def sparklines(curves: Sequence[Sequence[float]], width: int = WIDTH, *, metric: str = "acc") -> tuple[str, list[str]]:
    """Return the scale as a title, and curves of one number as bars on that scale, so that they can be compared.

    The scale goes from the lowest to the highest value of all curves. A curve has at most ``width`` bars, each the last
    value of its share.
    """
    values = [value for curve in curves for value in curve]
    if not values:
        return "over rounds", [""] * len(curves)
    low, high = min(values), max(values)
    percent = METRICS[metric].percent
    least = LEAST_RANGE if percent else (LEAST_RANGE * high or 1.0)
    low = max(0.0, min(low, high - least))
    high = max(high, low + least)
    scale = f"from {100 * low:.0f} to {100 * high:.0f} %" if percent else f"from {handy(low)} to {handy(high)}"
    lines = []
    for curve in curves:
        shares = min(width, len(curve))
        shown = [curve[(share + 1) * len(curve) // shares - 1] for share in range(shares)]
        lines.append("".join(_HEIGHTS[min(7, int(8 * (value - low) / (high - low)))] for value in shown))
    return scale, lines


def mixed_sparklines(curves: Sequence[tuple[str, Sequence[float]]]) -> tuple[str, list[str]]:
    """Return bars as ``sparklines`` does for curves of several metrics; each metric has a scale of its own.

    The title is the scale if there is only one metric.
    """
    lines = [""] * len(curves)
    scale = "over rounds"
    metrics = dict.fromkeys(metric for metric, _ in curves)
    for metric in metrics:
        places = [place for place, (name, _) in enumerate(curves) if name == metric]
        scale, drawn = sparklines([curves[place][1] for place in places], metric=metric)
        for place, line in zip(places, drawn, strict=True):
            lines[place] = line
    return scale if len(metrics) == 1 else "over rounds", lines


class Curves:
    """The headline numbers of runs of a store; a file is read again only after its run has progressed."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[tuple[str, str], tuple[int, dict[int, float]]] = {}

    def of_run(self, run_id: str, round: int = 0, metric: str = "acc") -> list[float]:
        """Return the numbers of one run, which has reached ``round``."""
        return list(self.points(run_id, round, metric).values())

    def points(self, run_id: str, round: int = 0, metric: str = "acc") -> dict[int, float]:
        """Return the finite numbers of one run by round; the run has reached ``round``."""
        known = self._known.get((run_id, metric))
        if known is None or known[0] != round:
            attempts = self._store.run(run_id).attempts()
            records = attempts[-1].records() if attempts else []
            numbers = {record["round"]: value_of(record, metric) for record in records}
            known = round, {at: n for at, n in numbers.items() if n is not None and math.isfinite(n)}
            self._known[run_id, metric] = known
        return known[1]

    def of_runs(self, run_ids: Sequence[str], metric: str = "acc") -> list[float]:
        """Return the means of some finished runs, up to the length of the shortest."""
        curves = [self.of_run(run_id, metric=metric) for run_id in run_ids]
        return [sum_in_order(values) / len(values) for values in zip(*curves, strict=False)]


def curve(
    points: Sequence[tuple[float, float]],
    x_max: float,
    *,
    width: int = 60,
    height: int = 10,
    top: float = 1.0,
    text: Callable[[float], str] = lambda y: f"{100 * y:.0f} %",
) -> list[str]:
    """Return lines of text that draw points as a curve of braille dots, with a scale.

    Args:
        points: x rising from 0 to ``x_max``, y from 0 to ``top``; straight lines join neighbours.
        x_max: end of the horizontal scale.
        width: characters of the plot, without its scale.
        height: lines of the plot.
        top: end of the vertical scale.
        text: writes the scale's numbers.
    """
    points = [(x, y / top) for x, y in points]
    labels = {0: text(top), height // 2: text(top / 2), height - 1: text(0)}
    margin = max(5, *map(len, labels.values()))
    cells = [[0] * width for _ in range(height)]
    for x, y in _joined(points, x_max, columns=2 * width):
        row = round((1 - y) * (4 * height - 1))
        cells[row // 4][x // 2] |= _DOTS[x % 2][row % 4]
    lines = []
    for number, row_cells in enumerate(cells):
        dots = "".join(chr(0x2800 + bits) for bits in row_cells).rstrip("⠀")
        lines.append(f"{labels.get(number, ''):>{margin}} ┤{dots}")
    blank = " " * margin
    return [*lines, f"{blank} └{'─' * width}", f"{blank}  0{f'round {x_max:g}':>{width - 1}}"]


def _joined(points: Sequence[tuple[float, float]], x_max: float, *, columns: int) -> list[tuple[int, float]]:
    """Return one y per column of dots between the first and the last point, linear between neighbours."""
    places = [(round(x / x_max * (columns - 1)), min(1.0, max(0.0, y))) for x, y in points]
    dots = dict(places)
    for (left, low), (right, high) in pairwise(places):
        for x in range(left + 1, right):
            dots[x] = low + (high - low) * (x - left) / (right - left)
    return sorted(dots.items())
