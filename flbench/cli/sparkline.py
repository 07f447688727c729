"""Accuracies over rounds in a few characters: one column to a time, eight heights from 0 to 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flbench.store import Store

#: Columns of a sparkline.
WIDTH = 16

_HEIGHTS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int = WIDTH) -> str:
    """The values as bars, at most ``width`` of them, each the last of its share; the scale is always 0 to 1.

    That the scale is the same everywhere lets the eye compare runs, at the price of fine detail.
    """
    shares = min(width, len(values))
    shown = [values[(share + 1) * len(values) // shares - 1] for share in range(shares)]
    return "".join(_HEIGHTS[min(7, int(8 * min(1.0, max(0.0, value))))] for value in shown)


class Sparklines:
    """Sparklines of runs of a store; a file is read again only where its run has got further."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[str, tuple[int, list[float]]] = {}

    def of_run(self, run_id: str, round: int) -> str:
        """The accuracies of one run, which has got as far as ``round``."""
        return sparkline(self._accuracies(run_id, round))

    def of_runs(self, run_ids: Sequence[str]) -> str:
        """The mean accuracies of some finished runs, as far as all of them have any."""
        curves = [self._accuracies(run_id) for run_id in run_ids]
        return sparkline([sum(values) / len(values) for values in zip(*curves, strict=False)])

    def _accuracies(self, run_id: str, round: int = 0) -> list[float]:
        known = self._known.get(run_id)
        if known is None or known[0] != round:
            attempts = self._store.run(run_id).attempts()
            records = attempts[-1].records() if attempts else []
            known = round, [record["acc"] for record in records if isinstance(record.get("acc"), (int, float))]
            self._known[run_id] = known
        return known[1]
