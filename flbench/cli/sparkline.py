"""Accuracies over rounds in a few characters: a column for a time, eight heights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flbench.store import Store

#: Columns of a sparkline.
WIDTH = 16

#: The least that the heights differ by, of an accuracy: noise is not to look like progress.
LEAST_RANGE = 0.05

_HEIGHTS = "▁▂▃▄▅▆▇█"


def sparklines(curves: Sequence[Sequence[float]], width: int = WIDTH) -> tuple[str, list[str]]:
    """Curves of accuracies as bars on one scale, so that they can be compared, and the title that says the scale.

    The scale goes from the lowest accuracy to the highest of all the curves. A curve has at most ``width`` bars, each
    the last value of its share.
    """
    values = [value for curve in curves for value in curve]
    if not values:
        return "over rounds", [""] * len(curves)
    low, high = min(values), max(values)
    low = max(0.0, min(low, high - LEAST_RANGE))
    high = max(high, low + LEAST_RANGE)
    return f"from {100 * low:.0f} to {100 * high:.0f} %", [_bars(curve, low, high, width) for curve in curves]


def _bars(curve: Sequence[float], low: float, high: float, width: int) -> str:
    shares = min(width, len(curve))
    shown = [curve[(share + 1) * len(curve) // shares - 1] for share in range(shares)]
    return "".join(_HEIGHTS[min(7, int(8 * (value - low) / (high - low)))] for value in shown)


class Curves:
    """The accuracies of runs of a store; a file is read again only where its run has got further."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[str, tuple[int, list[float]]] = {}

    def of_run(self, run_id: str, round: int) -> list[float]:
        """Those of one run, which has got as far as ``round``."""
        return self._accuracies(run_id, round)

    def of_runs(self, run_ids: Sequence[str]) -> list[float]:
        """The means of some finished runs, as far as all of them have any."""
        curves = [self._accuracies(run_id) for run_id in run_ids]
        return [sum(values) / len(values) for values in zip(*curves, strict=False)]

    def _accuracies(self, run_id: str, round: int = 0) -> list[float]:
        known = self._known.get(run_id)
        if known is None or known[0] != round:
            attempts = self._store.run(run_id).attempts()
            records = attempts[-1].records() if attempts else []
            known = round, [record["acc"] for record in records if _is_finite(record.get("acc"))]
            self._known[run_id] = known
        return known[1]


def _is_finite(value: object) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)
