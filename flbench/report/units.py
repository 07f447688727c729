"""Rows that are one computation: methods that train the same model in a setting, as they declare (``same_as``).

FedBN without batch normalization is FedAvg: its row beside FedAvg's would be a copy, and tests and correlations would
count one result twice. Rows whose cells are all the same are merged under all their names. Where only some cells are
the same (FedProx with one local step), the rows stay apart and ``Table.twins`` finds the copies. Sameness follows from
the declarations and never from results, which agree by chance where accuracies have few values.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from flbench.report.cells import Cell, grouped


def merge_rows(cells: Sequence[Cell], rows: Sequence[str]) -> list[Cell]:
    """Return the cells of different rows; each has the cells that are the same in ``copies``.

    Args:
        cells: of one section.
        rows: the fields that make the rows.

    Returns:
        Of rows with the same units the cells of the first, with its seeds: copies add nothing to n.
    """
    same: dict[frozenset[object], list[list[Cell]]] = {}
    for row in grouped(cells, lambda cell: (cell.experiment.kind, *(cell.tick(axis) for axis in rows))):
        same.setdefault(frozenset(cell.unit for cell in row), []).append(row)
    out = []
    for first, *others in same.values():
        for cell in first:
            copies = (copy for row in others for copy in row if copy.unit == cell.unit)
            out.append(dataclasses.replace(cell, copies=tuple(copies)))
    return out


def distinct(cells: Iterable[Cell]) -> list[Cell]:
    """Return one cell of each unit, the first."""
    first: dict[object, Cell] = {}
    for cell in cells:
        first.setdefault(cell.unit, cell)
    return list(first.values())
