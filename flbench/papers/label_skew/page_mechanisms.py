"""The synthesis as blocks: the answers, the pictures, what they rest on."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from flbench.config import Federated
from flbench.metric_specs import METRICS
from flbench.papers.label_skew.answers import READING, Means
from flbench.papers.label_skew.mechanisms import Answer, Finding, Probed, Synthesis
from flbench.report.blocks import Block, Entry, Figure, Fold, Grid, Heading, Paragraph, words
from flbench.report.correlation import Mean
from flbench.report.literal import literal
from flbench.report.page.chapters import claims_grid

NO_PROBES = (
    "No finished run recorded probes, so there is nothing to explain with. Switch them on and run the sweep once more, "
    "each every so many rounds, a multiple of `eval_every`: "
    "`flbench sweep SPEC --set 'probes={features: 50, drift: 50, sharpness: 100}'`."
)
NO_POINTS = "The questions are about accuracies: this report's metric is none, so they are not asked."

#: What the columns of the table are.
COLUMNS = (
    "Per cell, mean over seeds: *rank*: effective rank of the features, *1st*: share of the first singular value's "
    "square in percent, *growth*: mean feature norm over what it was before the first round, *agreement* of the "
    "clients' updates (1: all pull one way), *λ start, λ end*: lambda_max of the Fisher information of the global "
    "model's softmax before the first round and at the end (geometric means, as for growth), *2/λ end* beside the *lr* "
    "in use, and *lr λ/2*, below 1 where gradient descent is stable."
)


def compose(found: Sequence[Synthesis], pictures: Mapping[tuple[str, str], Sequence[Figure]]) -> Iterator[Block]:
    """The whole section."""
    yield Heading(2, "Why")
    if not any(one.seen for one in found):
        yield Paragraph(NO_PROBES)
        return
    yield Paragraph(READING)
    last = {one.place: one for one in found}
    for one in found:
        if len(found) > 1:
            yield Heading(3, f"Why: {one.title}")
        yield from _one(one, pictures.get(one.place, ()) if last[one.place] is one else ())


def _one(found: Synthesis, pictures: Sequence[Figure]) -> Iterator[Block]:
    if not found.seen:
        yield Paragraph(NO_PROBES)
        return
    if found.seen < found.finished:
        yield Paragraph(f"{found.seen} of {found.finished} finished runs recorded probes; only these are read.")
    yield from ([] if found.answers else [Paragraph(NO_POINTS)])
    yield from (Paragraph(f"**{answer.question}** {literal(answer.text)}") for answer in found.answers)
    if found.claims:
        yield claims_grid(found.claims)
    yield from pictures
    for answer in found.answers:
        if rest := tuple(_evidence(answer)):
            yield Fold(f"{answer.question} The numbers", rest)
    yield Fold(f"{len(found.tuned)} cells with probes", (Paragraph(COLUMNS), table(found.tuned)))


def _evidence(answer: Answer) -> Iterator[Block]:
    if answer.findings:
        yield _findings(answer.findings)
    for means in answer.means:
        yield Paragraph(f"{means.title}:")
        yield _means(means)


def _findings(findings: Sequence[Finding]) -> Grid:
    rows = []
    for one in findings:
        found = one.correlation
        rho = Entry("–") if found.rho is None else Entry(f"{found.rho:+.2f}", order=found.rho)
        interval = "none" if found.interval is None else f"{found.interval[0]:+.2f} to {found.interval[1]:+.2f}"
        size = (Entry(str(found.n), order=found.n), Entry(f"{found.groups} {one.unit}", order=found.groups))
        rows.append((*words(one.what, one.where), rho, Entry(interval), *size))
    return Grid(("of", "where", "rho", "95 % interval", "n", "resampled"), tuple(rows), names=2)


def _means(means: Means) -> Grid:
    names = len(means.lines[0].names)
    rows = [(*words(*line.names), *map(_mean, line.means)) for line in means.lines]
    return Grid(means.head, tuple(rows), names)


def _mean(found: Mean | None) -> Entry:
    if found is None:
        return Entry("–")
    interval = f"{100 * found.interval[0]:+.1f} to {100 * found.interval[1]:+.1f}, " if found.interval else ""
    return Entry(f"{100 * found.mean:+.1f}", (f"{interval}n={found.n}",), order=found.mean)


def table(cells: Sequence[Probed]) -> Grid:
    """Accuracy beside everything that probes saw, a line a cell."""
    axes = _axes(cells)
    metric = METRICS[cells[0].cell.metric]
    heads = (*axes, "lr", metric.title, "rank", "1st", "growth", "agreement", "λ start", "λ end", "2/λ end", "lr λ/2")
    rows = []
    for one in sorted(cells, key=lambda one: tuple(one.cell.tick(axis) for axis in axes)):
        numbers = (one.lr, one.acc, one.rank, one.share, one.growth, one.agreement, one.born, one.final)
        lr, acc, rank, share, *others = numbers
        rows.append(
            (
                *words(*(one.cell.tick(axis).label for axis in axes)),
                _number(lr),
                _number(acc, metric.text),
                _number(rank),
                _number(share, lambda value: f"{100 * value:.1f}"),
                *map(_number, others),
                _number(2 / one.final if one.final else None),
                _number(one.used),
            )
        )
    return Grid(heads, tuple(rows), len(axes))


def _axes(cells: Sequence[Probed]) -> tuple[str, ...]:
    """The partition and other columns first, so that what may be compared stands together."""
    others = [name for name in dict(cells[0].column) if name != "data"]
    differing = [name for name in others if len({dict(one.column).get(name) for one in cells}) > 1]
    federated = any(isinstance(one.cell.experiment, Federated) for one in cells)
    return (*differing, *(["method"] if federated else []), "norm")


def _number(value: float | None, text: Any = None) -> Entry:
    if value is None:
        return Entry("–")
    return Entry(text(value) if text else f"{value:.3g}", order=value)


def plain(found: Sequence[Synthesis]) -> list[dict[str, Any]]:
    """The same as plain data; shares and accuracies as fractions."""
    return [
        {
            "section": one.title,
            "runs_with_probes": one.seen,
            "finished": one.finished,
            "answers": [_plain_answer(answer) for answer in one.answers],
            "claims": [dataclasses.asdict(claim) for claim in one.claims],
            "cells": [_plain_cell(cell) for cell in one.cells],
        }
        for one in found
    ]


def _plain_answer(answer: Answer) -> dict[str, Any]:
    plain = dataclasses.asdict(answer)
    plain["findings"] = [
        {
            "what": one.what,
            "where": one.where,
            "rho": one.correlation.rho,
            "interval": list(one.correlation.interval) if one.correlation.interval else None,
            "n": one.correlation.n,
            "groups": one.correlation.groups,
            "resampled": one.unit,
        }
        for one in answer.findings
    ]
    return plain


def _plain_cell(one: Probed) -> dict[str, Any]:
    names = ("acc", "rank", "share", "norm", "growth", "agreement", "born", "born_local", "final", "final_local")
    return {
        "cell_id": one.cell.experiment.cell_id,
        "fingerprint": one.cell.fingerprint,
        "rounds": one.cell.runs[0].rounds,
        "lr": one.lr,
        **{_PLAIN_NAMES.get(name, name): getattr(one, name) for name in names},
    }


_PLAIN_NAMES = {
    "share": "first_share",
    "born": "lambda_start",
    "born_local": "lambda_start_local",
    "final": "lambda_end",
    "final_local": "lambda_end_local",
}


def lines(found: Sequence[Synthesis]) -> list[str]:
    """The answers as lines for a terminal."""
    if not any(one.seen for one in found):
        return [f"why: {NO_PROBES}"]
    return [
        f"{f'{one.title}: ' if len(found) > 1 else ''}{answer.question} {answer.text}"
        for one in found
        for answer in one.answers
    ]
