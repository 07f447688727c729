"""A leaderboard as plain data."""

from __future__ import annotations

import math
from typing import Any

from flbench.messages import public_scalar, without_directories
from flbench.report.board import Leaderboard
from flbench.report.cells import Cell
from flbench.report.dataframes import flatten
from flbench.report.measures import is_flat
from flbench.report.runs import NOT_COMPARED
from flbench.report.stats import Contrast, Difference
from flbench.report.summary import Overall
from flbench.report.tables import Table
from flbench.report.trust import improves
from flbench.report.tuning import Budget, Range, Rows

#: Version of the fields; raised when a program that reads the old ones would misread the new ones.
JSON_SCHEMA = 3


def to_json(board: Leaderboard) -> dict[str, Any]:
    """Return the stable machine-readable form: one object per cell, values as recorded (accuracies as fractions)."""
    made, sections = board.provenance, board.sections
    return {
        "schema": JSON_SCHEMA,
        "title": board.options.title,
        "metric": sections[0].layout.metric if sections else None,
        "cells": [
            _cell(table, shown, cell)
            for section in sections
            for table in (*section.tables, *section.own_shard)
            for shown in table.cells.values()
            for cell in (shown, *shown.copies)
        ],
        "overall": [_overall(found) for found in board.overall],
        "details": [
            _details(cell, table.margin)
            for section in sections
            for table in section.details
            for cell in table.cells.values()
        ],
        "planned": [
            {
                "section": section.title,
                "field": one.pair.field,
                "comparison": one.name,
                "measure": one.pair.measure,
                "effect": one.effect if math.isfinite(one.effect) else None,
                "column": one.column,
                "between": one.between or None,
                **(_contrast(one.contrast) or {}),
                "last": one.last and _difference(one.last),
                "p_equivalence_holm": one.contrast.equivalence,
                "verdict": one.contrast.verdict,
                "pairs": one.cells,
                "missing": one.missing,
                "checks": {"fails": [vars(doubt) for doubt in one.doubts], **one.checks.fields()},
            }
            for section in sections
            for one in section.planned
        ],
        "budgets": [
            _budget(section.title, budgets, row)
            for section in sections
            for budgets in section.budgets
            for row in budgets.rows
        ],
        "lr_ranges": [
            _lr_range(section.title, ranges, row)
            for section in sections
            for ranges in section.ranges
            for row in ranges.rows
        ],
        "unfinished": dict(board.unfinished),
        "left_out": list(board.collection.left_out),
        "claims": [{"kind": chapter.kind, **claim.fields()} for chapter in board.chapters for claim in chapter.claims],
        **{name: value for one in board.supplements for name, value in one.fields().items()},
        "provenance": {
            "runs": made.requested,
            "finished": made.finished,
            "seeds": list(made.seeds),
            "rounds": list(made.rounds),
            **{title.lower(): dict(counts) for title, counts in made.facts.items()},
            "specs": [{"name": name, "hash": spec_hash} for name, spec_hash in board.options.specs],
            "command": board.options.command,
        },
    }


def _cell(table: Table, shown: Cell, cell: Cell) -> dict[str, Any]:
    """Return a cell that a table shows, or one of its copies, which name the cell that they are the same as."""
    summary, origin = cell.summary, table.cells[shown.origin]
    return {
        "cell_id": cell.experiment.cell_id,
        "same_as": None if cell is origin else origin.experiment.cell_id,
        "experiment": without_directories(
            {name: value for name, value in flatten(cell.experiment, public_scalar).items() if name not in NOT_COMPARED}
        ),
        "rounds": cell.rounds,
        "metric": cell.metric,
        "mean": summary.mean if summary else None,
        "sd": summary.sd if summary else None,
        "ci_half_width": summary.half_width if summary else None,
        "population_half_width": cell.half_width,
        "collapsed_seeds": list(cell.collapsed),
        "n": len(cell.values),
        "wished": cell.requested,
        "gaps": dict(cell.gaps),
        "dropped": cell.dropped,
        "refined": cell.refined,
        "changed_plugins": sorted({plugin for run in cell.runs for plugin in run.changed_plugins}),
        "best": shown.is_best,
        "tied": shown.is_tied,
        "client_local": cell.personal,
        "fingerprint": cell.fingerprint,
        "numerics": list(cell.numerics),
        "contributors": list(cell.contributors),
        "seeds": [run.experiment.seed for run in cell.runs],
        "run_ids": [run.run_id for run in cell.runs],
        "values": list(cell.values),
    }


def _overall(found: Overall) -> dict[str, Any]:
    return {
        "title": found.title,
        "columns": list(found.columns),
        "rows": [
            {
                **{axis: at.label for axis, at in zip(found.row_axes, row.row, strict=True)},
                "complete": row.complete,
                "mean": row.mean,
                "interval": list(row.interval) if row.interval else None,
                "mean_rank": row.rank,
                "best_or_tied": row.best,
            }
            for row in found.rows
        ],
    }


def _details(cell: Cell, margin: float) -> dict[str, Any]:
    costs, speed = cell.costs, cell.speed
    return {
        "cell_id": cell.experiment.cell_id,
        "rounds": cell.rounds,
        "fingerprint": cell.fingerprint,
        "chosen": cell.chosen or None,
        "at_edge": cell.at_edge,
        "per_doubling": cell.rise and {"mean": cell.rise.mean, "ci_half_width": cell.rise.half_width, "n": cell.rise.n},
        "rising": improves(cell.rise, cell.metric),
        "plateau": is_flat(cell.rise, margin),
        "coarse": cell.grid.is_coarse(margin),
        "grid": cell.grid.fields(),
        "best": cell.is_best,
        "tied": cell.is_tied,
        "to_baseline": _contrast(cell.to_baseline),
        "to_best": _contrast(cell.to_best),
        "budget": costs.budget,
        "bytes": costs.bytes,
        "acc_worst": costs.worst,
        "acc_sd": costs.spread,
        "recall": list(costs.recall),
        "speed": speed and speed.fields(),
    }


def _difference(found: Difference) -> dict[str, Any]:
    return {"mean": found.mean, "ci_half_width": found.half_width, "n": found.n}


def _contrast(contrast: Contrast | None) -> dict[str, Any] | None:
    if contrast is None:
        return None
    return {**_difference(contrast.difference), "p": contrast.difference.p, "p_holm": contrast.p}


def _budget(title: str, budgets: Rows[Budget], row: Budget) -> dict[str, Any]:
    return {
        "section": title,
        **{axis: at.label for axis, at in zip(budgets.row_axes, row.row, strict=True)},
        "where": row.column,
        "expected": [
            {"settings": k, "mean": one.mean, "ci_half_width": one.half_width, "n": one.n}
            for k, one in enumerate(row.curve, start=1)
        ],
    }


def _lr_range(title: str, ranges: Rows[Range], row: Range) -> dict[str, Any]:
    works = row.best is not None
    return {
        "section": title,
        **{axis: at.label for axis, at in zip(ranges.row_axes, row.row, strict=True)},
        "where": row.column,
        "best": row.best,
        "low": row.low if works else None,
        "high": row.high if works else None,
        "decades": row.decades if works else None,
        "open": [row.open_low, row.open_high],
        "diverged": row.diverged,
        "finished": row.finished,
        "rates": len(row.cells),
    }
