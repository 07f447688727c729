"""Differences of cells to a reference: paired by seed, corrected for the number of comparisons."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from flbench.report.cells import Cell
from flbench.report.stats import Difference, holm, paired

At = TypeVar("At")


@dataclass(frozen=True)
class Contrast:
    """A cell minus its reference; ``p`` is corrected for the number of cells (Holm), None for single seeds."""

    difference: Difference
    p: float | None


def contrasts(cells: Mapping[At, Cell], reference: At) -> dict[At, Contrast]:
    """Return every other cell minus the one at ``reference``, over their common seeds."""
    against = cells[reference].by_seed
    found = {at: gap for at, cell in cells.items() if at != reference and (gap := paired(cell.by_seed, against))}
    tested = {at: gap.p for at, gap in found.items() if gap.p is not None}
    corrected = dict(zip(tested, holm(list(tested.values())), strict=True))
    return {at: Contrast(gap, corrected.get(at)) for at, gap in found.items()}
