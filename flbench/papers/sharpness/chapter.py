"""The report's chapter about studies of kind ``sharpness``."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from flbench.papers.evidence import number_entry, three_digits
from flbench.papers.sharpness import claims_learning_rate, claims_width
from flbench.papers.sharpness.networks import Curve, Point, Prediction, curves_of, predict
from flbench.papers.sharpness.training import (
    EXPLODED,
    GROWN,
    Descent,
    Network,
    descents_of,
    networks_of,
    predicted_rate,
)
from flbench.report.blocks import Block, Entry, Grid, Paragraph, words
from flbench.report.cells import grouped
from flbench.report.claims import Chapter
from flbench.report.runs import Collection, Run

_INTRODUCTION = (
    "lambda_max, the largest eigenvalue of the Fisher information F = E[sum_k grad f_k grad f_k^T], of random fully "
    "connected networks of width M with C outputs on T Gaussian samples, and gradient descent on them (Karakida et al. "
    "2019, The Normalization Method for Alleviating Pathological Sharpness in Wide Neural Networks). Normalization: "
    "subtracted means (`mean`), batch (`bn`) or layer normalization (`ln`), in the `last` layer, the `middle` ones or "
    "`all`. Exponents are fitted to the logarithms of all draws, with Welch's 95 % intervals; "
    "sd and ranges are over draws."
)


def chapter(runs: Sequence[Run], collection: Collection) -> Chapter:
    """Return the verdicts on the paper's claims, and the measurements."""
    curves, descents = curves_of(runs), descents_of(runs, collection)
    claims = (*claims_width.claims(curves), *claims_learning_rate.claims(descents))
    title = "Sharpness of wide networks"
    blocks = (*_networks(curves), *_descents(descents))
    return Chapter("sharpness", title, _INTRODUCTION, claims, blocks, tuple(runs), "@karakida2019sharpness")


def _networks(curves: Sequence[Curve]) -> Iterator[Block]:
    if not curves:
        return
    yield Paragraph(
        "**Networks at initialization.** Theory: a value, or bounds (medians over draws where they depend on a "
        "network's outputs). Ratio: of the mean to the value of theorem 2.2; otherwise the median over draws of each "
        "to its own value (layer normalization: the mean-field value, which is not the paper's) or lower bound."
    )
    head = ("network", "C", "normalized", "T", "M", "n", "mean", "sd", "median", "theory", "ratio", "within", "source")
    yield Grid(head, tuple(_point_row(point) for curve in curves for point in curve.points), names=4, remarks=1)


def _point_row(point: Point) -> tuple[Entry, ...]:
    family, summary, predicted = point.family, point.summary, point.predicted
    bounded = predicted is not None and predicted.lower is not None
    return (
        *words(family.label, str(family.outputs), family.normalized, str(family.samples or "M"), str(point.width)),
        *words(str(summary.n)),
        number_entry(summary.mean, three_digits),
        Entry("–" if summary.sd is None else three_digits(summary.sd)),
        number_entry(statistics.median(point.values), three_digits),
        Entry(_theory(predicted)),
        Entry("–" if point.ratio is None else f"{point.ratio:.2f}"),
        Entry(f"{point.admitted}/{summary.n}" if bounded else "–"),
        Entry(predicted.source if predicted else "–"),
    )


def _theory(predicted: Prediction | None) -> str:
    """``1099``, ``2.31 to 39.2``, ``≥ 62.9`` or a value with bounds."""
    if predicted is None:
        return "–"
    value = "" if predicted.value is None else three_digits(predicted.value)
    if predicted.lower is None:
        return value
    lower = three_digits(predicted.lower)
    bounds = f"≥ {lower}" if predicted.upper is None else f"{lower} to {three_digits(predicted.upper)}"
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
    head = ("network", "normalized", "T", "M", "n", "lambda_max", "theory", "line", "no growth", "no spike", "survived")
    groups = grouped(networks_of(descents), lambda one: (one.family, one.width))
    yield Grid(head, tuple(_network_row(same) for same in groups), names=3)


def _network_row(same: Sequence[Network]) -> tuple[Entry, ...]:
    family, width = same[0].family, same[0].width
    line = predicted_rate(family, width)
    units = (
        [rate * one.lambda_max / 2 for one in same if (rate := one.highest(failed))]
        for failed in (lambda run: run.grew, lambda run: run.peaked, lambda run: run.exploded)
    )
    return words(
        family.label,
        family.normalized,
        str(family.samples or width),
        str(width),
        str(len(same)),
        three_digits(statistics.median(one.lambda_max for one in same)),
        _theory(predict(family, width, {})),
        "–" if line is None else three_digits(line),
        *(f"{statistics.median(values):.2f}" if values else "–" for values in units),
    )
