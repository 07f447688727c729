"""Cells against a reference, paired by seed and corrected for how many are compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from flbench.report.cells import Cell
from flbench.report.stats import Difference, holm, paired

At = TypeVar("At")


@dataclass(frozen=True)
class Contrast:
    """A cell less its reference; ``p`` is corrected for the number of cells compared (Holm), None for single seeds."""

    difference: Difference
    p: float | None


def contrasts(cells: Mapping[At, Cell], reference: At) -> dict[At, Contrast]:
    """Every other cell less the one at ``reference``, over the seeds that both have."""
    against = cells[reference].by_seed
    found = {at: gap for at, cell in cells.items() if at != reference and (gap := paired(cell.by_seed, against))}
    tested = {at: gap.p for at, gap in found.items() if gap.p is not None}
    corrected = dict(zip(tested, holm(list(tested.values())), strict=True))
    return {at: Contrast(gap, corrected.get(at)) for at, gap in found.items()}
