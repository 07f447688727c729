"""Headline numbers over rounds in a few characters: a column for a time, eight heights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from flbench.cli.numbers import handy
from flbench.metric_specs import METRICS

if TYPE_CHECKING:
    from flbench.store import Store

#: Columns of a sparkline.
WIDTH = 16

#: The least that the heights differ by, of an accuracy, and of other numbers as a share of the greatest: noise is not
#: to look like progress.
LEAST_RANGE = 0.05

_HEIGHTS = "▁▂▃▄▅▆▇█"


def sparklines(curves: Sequence[Sequence[float]], width: int = WIDTH, *, metric: str = "acc") -> tuple[str, list[str]]:
    """Return curves of one number as bars on one scale, and the title that names the scale.

    The scale goes from the lowest value to the highest of all the curves. A curve has at most ``width`` bars, each
    the last value of its share.
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
    return scale, [_bars(curve, low, high, width) for curve in curves]


def mixed_sparklines(curves: Sequence[tuple[str, Sequence[float]]]) -> tuple[str, list[str]]:
    """Curves of several numbers, each with its name, on a scale a number; the title says it where there is only one."""
    lines = [""] * len(curves)
    scale = "over rounds"
    metrics = dict.fromkeys(metric for metric, _ in curves)
    for metric in metrics:
        places = [place for place, (name, _) in enumerate(curves) if name == metric]
        scale, drawn = sparklines([curves[place][1] for place in places], metric=metric)
        for place, line in zip(places, drawn, strict=True):
            lines[place] = line
    return scale if len(metrics) == 1 else "over rounds", lines


def _bars(curve: Sequence[float], low: float, high: float, width: int) -> str:
    shares = min(width, len(curve))
    shown = [curve[(share + 1) * len(curve) // shares - 1] for share in range(shares)]
    return "".join(_HEIGHTS[min(7, int(8 * (value - low) / (high - low)))] for value in shown)


class Curves:
    """The headline numbers of runs of a store; a file is read again only where its run has got further."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[str, tuple[int, list[float]]] = {}

    def of_run(self, run_id: str, round: int, metric: str = "acc") -> list[float]:
        """Those of one run, which has got as far as ``round``."""
        return self._values(run_id, round, metric)

    def of_runs(self, run_ids: Sequence[str], metric: str = "acc") -> list[float]:
        """The means of some finished runs, as far as all of them have any."""
        curves = [self._values(run_id, 0, metric) for run_id in run_ids]
        return [sum(values) / len(values) for values in zip(*curves, strict=False)]

    def _values(self, run_id: str, round: int, metric: str) -> list[float]:
        known = self._known.get(run_id)
        if known is None or known[0] != round:
            attempts = self._store.run(run_id).attempts()
            records = attempts[-1].records() if attempts else []
            known = round, [record[metric] for record in records if _is_finite(record.get(metric))]
            self._known[run_id] = known
        return known[1]


def _is_finite(value: object) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)
