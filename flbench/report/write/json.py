"""A leaderboard as plain data."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from flbench.report.board import Details, Leaderboard, Section
from flbench.report.dataframes import flatten
from flbench.report.paired_tests import Contrast
from flbench.report.summary import Overall
from flbench.report.tables import Table

#: Version of the form; raised when a reader of the old one would misread the new one.
JSON_SCHEMA = 2


def to_json(board: Leaderboard) -> dict[str, Any]:
    """The stable machine-readable form: one object a cell, values as recorded (accuracies as fractions)."""
    made = board.provenance
    return {
        "schema": JSON_SCHEMA,
        "title": board.options.title,
        "metric": board.sections[0].layout.metric if board.sections else None,
        "cells": [_plain_cell(table, at) for table in board.all_tables() for at in sorted(table.cells)],
        "overall": [_overall(found) for found in board.overall],
        "details": [line for section in board.sections for line in _details_of(section)],
        "lr_ranges": [line for section in board.sections for line in _ranges_of(section)],
        "unfinished": dict(board.unfinished),
        "left_out": list(board.collection.left_out),
        "claims": [
            {"kind": chapter.kind, **dataclasses.asdict(claim)}
            for chapter in board.chapters
            for claim in chapter.claims
        ],
        **{name: value for one in board.supplements for name, value in one.fields().items()},
        "provenance": {
            "runs": made.wished,
            "finished": made.finished,
            "seeds": list(made.seeds),
            "rounds": list(made.rounds),
            **{title.lower(): dict(counts) for title, counts in made.facts.items()},
            "specs": [{"name": name, "hash": spec_hash} for name, spec_hash in board.options.specs],
            "command": board.options.command,
        },
    }


def _plain_cell(table: Table, at: tuple[int, int]) -> dict[str, Any]:
    cell = table.cells[at]
    summary = cell.summary
    fields = flatten(cell.experiment)
    for name in ("seed", "eval_every", "probes", "rounds"):
        fields.pop(name, None)
    return {
        "cell_id": cell.experiment.cell_id,
        "experiment": fields,
        "rounds": cell.runs[0].rounds,
        "metric": cell.metric,
        "mean": summary.mean if summary else None,
        "sd": summary.sd if summary else None,
        "ci_half_width": summary.half_width if summary else None,
        "n": len(cell.values),
        "wished": cell.wished,
        "gaps": dict(cell.gaps),
        "best": at in table.best,
        "tied": at in table.tied,
        "client_local": cell.personal,
        "fingerprint": cell.fingerprint,
        "numerics": list(cell.numerics),
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


def _details_of(section: Section) -> Iterator[dict[str, Any]]:
    for details in section.details:
        for at in sorted(details.table.cells):
            yield _details(details, at)


def _details(details: Details, at: tuple[int, int]) -> dict[str, Any]:
    table, costs = details.table, details.costs[at]
    cell = table.cells[at]
    return {
        "cell_id": cell.experiment.cell_id,
        "rounds": cell.runs[0].rounds,
        "fingerprint": cell.fingerprint,
        "chosen": cell.chosen or None,
        "best": at in table.best,
        "tied": at in table.tied,
        "to_baseline": _contrast(details.to_baseline.get(at)),
        "to_best": _contrast(table.to_best.get(at)),
        "bytes": costs.bytes,
        "acc_worst": costs.worst,
        "acc_sd": costs.spread,
        "recall": list(costs.recall),
        "target": dataclasses.asdict(costs.reached) if costs.reached else None,
    }


def _contrast(contrast: Contrast | None) -> dict[str, Any] | None:
    if contrast is None:
        return None
    found = contrast.difference
    return {"mean": found.mean, "ci_half_width": found.half_width, "n": found.n, "p": found.p, "p_holm": contrast.p}


def _ranges_of(section: Section) -> Iterator[dict[str, Any]]:
    for ranges in section.ranges:
        for one in ranges.rows:
            yield {
                "section": section.title,
                **{axis: at.label for axis, at in zip(ranges.row_axes, one.row, strict=True)},
                "where": one.where,
                "best": one.best,
                "low": one.low if one.best is not None else None,
                "high": one.high if one.best is not None else None,
                "decades": one.decades if one.best is not None else None,
                "open": [one.open_low, one.open_high],
                "diverged": one.diverged,
                "finished": one.finished,
                "rates": one.rates,
            }
