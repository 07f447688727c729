"""Planned comparisons: few, named in the sweep file before its runs, so that their tests keep their power.

A comparison of two values of a field, such as ``norm: fn`` against ``none``, is made in each column: the difference of
the two cells with the same method, paired by seed, and then its mean over the methods that have both. Seeds are the
unit: the t-test and its interval (``stats.paired``) are those of one mean difference a seed. Methods are not drawn from
a population, so the conclusion is about their mean. A method that computes the same as another one counts once. Holm's
correction is over the planned comparisons of the section alone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flbench.messages import format_scalar
from flbench.report.cells import Cell
from flbench.report.stats import Contrast, corrected, paired
from flbench.report.tables import Pair, Table
from flbench.report.ticks import place_label
from flbench.sweeps import condition


@dataclass(frozen=True)
class Planned:
    """A planned comparison in one column."""

    pair: Pair
    column: str  # its label
    contrast: Contrast  # corrected for all planned comparisons of the section
    cells: int  # differences of cells that are averaged
    missing: int  # those left out, because a cell has no value for some seed

    @property
    def name(self) -> str:
        """``fn against none``."""
        value, against = (format_scalar(json.loads(raw)) for raw in (self.pair.value, self.pair.against))
        return f"{value} against {against}"


def planned(tables: Sequence[Table], pairs: Sequence[Pair]) -> tuple[Planned, ...]:
    """Return the planned comparisons in the columns of some tables that have both values."""
    places = {
        (pair, column): found for pair in pairs for table in tables for column, found in _by_column(table, pair).items()
    }
    complete = {at: [(a, b) for a, b in found if a.complete and b.complete] for at, found in places.items()}
    differences = {
        at: gap
        for at, found in complete.items()
        if found and (gap := paired(_means([a for a, _ in found]), _means([b for _, b in found]))) is not None
    }
    return tuple(
        Planned(*at, contrast, len(complete[at]), len(places[at]) - len(complete[at]))
        for at, contrast in corrected(differences).items()
    )


def _by_column(table: Table, pair: Pair) -> Mapping[str, list[tuple[Cell, Cell]]]:
    """Return the cells that differ in the field alone, by the label of their column, each computation once."""
    is_first, is_reference = (condition([f"{pair.field}={value}"]) for value in (pair.value, pair.against))
    references: dict[tuple[object, ...], Cell] = {}
    firsts: list[tuple[str, tuple[object, ...], Cell]] = []
    for (r, c), cell in sorted(table.cells.items()):
        row: list[object] = [
            tick for axis, tick in zip(table.row_axes, table.rows[r], strict=True) if axis != pair.field
        ]
        on = {axis: tick for axis, tick in zip(table.col_axes, table.cols[c], strict=True) if axis != pair.field}
        # A wide table is split: its title has what all of its columns share.
        column = ", ".join(filter(None, [table.short_title, place_label(tuple(on), tuple(on.values()))]))
        place = (*row, column, cell.fingerprint)
        if is_reference(cell.experiment):
            references[place] = cell
        elif is_first(cell.experiment) and (r, c) not in table.twins:
            firsts.append((column, place, cell))
    found: dict[str, list[tuple[Cell, Cell]]] = {}
    for column, place, cell in firsts:
        if place in references:
            found.setdefault(column, []).append((cell, references[place]))
    return found


def _means(cells: Sequence[Cell]) -> dict[int, float]:
    """Return the mean over cells of each seed that all of them have."""
    seeds = sorted(set.intersection(*(set(cell.by_seed) for cell in cells)))
    return {seed: math.fsum(cell.by_seed[seed] for cell in cells) / len(cells) for seed in seeds}
