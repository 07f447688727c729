"""The chapter about studies of kind ``sharpness``."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from flbench.papers.sharpness import claims_figure1 as sharpness_claims
from flbench.papers.sharpness import claims_figure2 as sharpness_rates
from flbench.papers.sharpness.claims_figure1 import short
from flbench.papers.sharpness.descents import (
    EXPLODED,
    GROWN,
    Descent,
    Network,
    descents_of,
    line_of_theory,
    networks_of,
)
from flbench.papers.sharpness.draws import Family, Line, Point, Predicted, lines_of, predict
from flbench.report.blocks import Block, Entry, Grid, Paragraph
from flbench.report.cells import grouped
from flbench.report.claims import Chapter
from flbench.report.runs import Collection, Run

_INTRODUCTION = (
    "lambda_max, the largest eigenvalue of the Fisher information F = E[sum_k grad f_k grad f_k^T], of random fully "
    "connected networks of width M with C outputs on T Gaussian samples, and gradient descent on them (Karakida et al. "
    "2019, The Normalization Method for Alleviating Pathological Sharpness in Wide Neural Networks). Normalization: "
    "subtracted means (`mean`), batch (`bn`) or layer normalization (`ln`), in the `last` layer, the `middle` ones or "
    "`all`. Exponents are fitted to the logarithms of all draws, with 95 % intervals; sd and ranges are over draws."
)


def chapter(runs: Sequence[Run], collection: Collection) -> Chapter:
    """What the runs say."""
    lines, descents = lines_of(runs), descents_of(runs, collection)
    claims = (*sharpness_claims.claims(lines), *sharpness_rates.claims(descents))
    title = "Sharpness of wide networks"
    return Chapter("sharpness", title, _INTRODUCTION, claims, (*_draws(lines), *_descents(descents)), tuple(runs))


def _draws(lines: Sequence[Line]) -> Iterator[Block]:
    if not lines:
        return
    yield Paragraph(
        "**Networks as drawn.** Theory: a value, or bounds (medians over draws where they depend on a network's "
        "outputs). Ratio: of the mean to the value of theorem 2.2; otherwise the median over draws of each to its own "
        "value (layer normalization: the mean-field value, which is not the paper's) or lower bound."
    )
    head = ("network", "C", "normalized", "T", "M", "n", "mean", "sd", "median", "theory", "ratio", "within", "source")
    rows = [_row(line.family, point) for line in lines for point in line.points]
    yield Grid(head, tuple(rows), names=4, remarks=1)


def _row(family: Family, point: Point) -> tuple[Entry, ...]:
    summary, predicted = point.summary, point.predicted
    bounded = predicted is not None and predicted.lower is not None
    return (
        Entry(family.label),
        Entry(str(family.outputs)),
        Entry(family.normalized),
        Entry("M" if family.samples is None else str(family.samples)),
        Entry(str(point.width)),
        Entry(str(summary.n)),
        Entry(short(summary.mean), order=summary.mean),
        Entry("–" if summary.sd is None else short(summary.sd)),
        Entry(short(point.median), order=point.median),
        Entry(_theory(predicted)),
        Entry("–" if point.ratio is None else f"{point.ratio:.2f}"),
        Entry(f"{point.admitted}/{summary.n}" if bounded else "–"),
        Entry(predicted.source if predicted else "–"),
    )


def _theory(predicted: Predicted | None) -> str:
    if predicted is None:
        return "–"
    value = "" if predicted.value is None else short(predicted.value)
    if predicted.lower is None:
        return value
    upper = "" if predicted.upper is None else f" to {short(predicted.upper)}"
    bounds = f"{short(predicted.lower)}{upper}" if upper else f"≥ {short(predicted.lower)}"
    return f"{value} ({bounds})" if value else bounds


def _descents(descents: Sequence[Descent]) -> Iterator[Block]:
    if not descents:
        return
    yield Paragraph(
        "**Gradient descent.** Highest rates below the first that fails, in units of 2 / lambda_max of the same "
        "network before its first step, medians over networks. No growth: the loss never exceeded "
        f"{GROWN:g} of its first value; no spike: it never exceeded {EXPLODED:g}; survived: it ended finite and below "
        f"{EXPLODED:g}. –: the rates tried do not bracket it."
    )
    head = (
        "network",
        "normalized",
        "T",
        "M",
        "n",
        "lambda_max",
        "theory",
        "line",
        "no growth",
        "no spike",
        "survived",
    )
    groups = grouped(networks_of(descents), lambda one: (one.family, one.width))
    yield Grid(head, tuple(_network_row(same) for same in groups), names=3)


def _network_row(same: Sequence[Network]) -> tuple[Entry, ...]:
    family, width = same[0].family, same[0].width
    line = line_of_theory(family, width)
    units = (
        [rate * one.lambda_max / 2 for one in same if (rate := one.last_before(lost))]
        for lost in (lambda run: run.grew, lambda run: run.peaked, lambda run: run.exploded)
    )
    return (
        Entry(family.label),
        Entry(family.normalized),
        Entry(str(family.samples_at(width))),
        Entry(str(width)),
        Entry(str(len(same))),
        Entry(short(statistics.median(one.lambda_max for one in same))),
        Entry(_theory(predict(family, width, {}))),
        Entry("–" if line is None else short(line)),
        *(Entry(f"{statistics.median(values):.2f}" if values else "–") for values in units),
    )
