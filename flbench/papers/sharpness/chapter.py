"""The report's chapter about studies of kind ``sharpness``."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from flbench.papers.declared import declared, judge
from flbench.papers.evidence import by, number_entry, three_digits, two_decimals
from flbench.papers.sharpness.frames import (
    CONVERGED,
    EXPLODED,
    GROWN,
    Family,
    Theory,
    descents,
    draws,
    highest_rates,
    stable_rate,
    theory,
)
from flbench.report.blocks import Block, Entry, Grid, Paragraph, words
from flbench.report.claims import Chapter
from flbench.report.runs import Collection, Run
from flbench.report.stats import summarize

if TYPE_CHECKING:
    import pandas as pd

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
    drawn, trained = draws(runs), descents(runs, collection)
    networks = highest_rates(trained)
    frames = {"draws": drawn, "descents": trained, "networks": networks}
    constants = {"GROWN": GROWN, "EXPLODED": EXPLODED, "percent": 100 * CONVERGED}
    claims = judge(declared(__package__), frames, constants)
    title, blocks = "Sharpness of wide networks", (*_networks(drawn), *_descents(networks))
    return Chapter("sharpness", title, _INTRODUCTION, claims, blocks, tuple(runs), "@karakida2019sharpness")


def _networks(drawn: pd.DataFrame) -> Iterator[Block]:
    if drawn.empty:
        return
    yield Paragraph(
        "**Networks at initialization.** Theory: a value, or bounds (medians over draws where they depend on a "
        "network's outputs). Ratio: of the mean to the value of theorem 2.2; otherwise the median over draws of each "
        "to its own value (layer normalization: the mean-field value, which is not the paper's) or lower bound."
    )
    head = ("network", "C", "normalized", "T", "M", "n", "mean", "sd", "median", "theory", "ratio", "within", "source")
    rows = (_point_row(family, width, own) for (family, width), own in by(drawn, "family", "width"))
    yield Grid(head, tuple(rows), names=4, remarks=1)


def _point_row(family: Family, width: int, own: pd.DataFrame) -> tuple[Entry, ...]:
    """The draws of a family at one width."""
    summary, predicted = summarize(own.lambda_max.tolist()), median_theory(own)
    assert summary is not None
    ratios = own.lambda_max / own.value.fillna(own.lower)
    ratio = ratios.mean() if family.normalized == "none" else ratios.median()
    admitted = (own.lambda_max >= own.lower) & ~(own.lambda_max > own.upper)
    return (
        *words(family.label, str(family.outputs), family.normalized, str(family.samples or "M"), str(width)),
        *words(str(summary.n)),
        number_entry(summary.mean, three_digits),
        Entry("–" if summary.sd is None else three_digits(summary.sd)),
        number_entry(float(own.lambda_max.median()), three_digits),
        Entry(_theory(predicted)),
        Entry("–" if predicted is None else two_decimals(ratio)),
        Entry("–" if predicted is None or predicted.lower is None else f"{admitted.sum()}/{summary.n}"),
        Entry("–" if predicted is None else predicted.source),
    )


def median_theory(own: pd.DataFrame) -> Theory | None:
    """Return the medians over draws of what theory says of them; None where it says nothing of one."""
    if own.empty or (own.source == "").any():
        return None
    medians = {name: None if own[name].isna().any() else own[name].median() for name in ("value", "lower", "upper")}
    return Theory(own.source.iloc[0], **medians)


def _theory(found: Theory | None) -> str:
    """``1099``, ``2.31 to 39.2``, ``≥ 62.9`` or a value with bounds."""
    if found is None:
        return "–"
    value = "" if found.value is None else three_digits(found.value)
    if found.lower is None:
        return value
    lower = three_digits(found.lower)
    bounds = f"≥ {lower}" if found.upper is None else f"{lower} to {three_digits(found.upper)}"
    return f"{value} ({bounds})" if value else bounds


def _descents(networks: pd.DataFrame) -> Iterator[Block]:
    if networks.empty:
        return
    yield Paragraph(
        "**Gradient descent.** Highest rates below the first that fails, in units of 2 / lambda_max of the same "
        "network before its first step, medians over networks. No growth: the loss never exceeded "
        f"{GROWN:g} of its first value; no spike: it never exceeded {EXPLODED:g}; survived: it ended finite and below "
        f"{EXPLODED:g}. –: the rates tried do not bracket it."
    )
    head = ("network", "normalized", "T", "M", "n", "lambda_max", "theory", "line", "no growth", "no spike", "survived")
    rows = (_network_row(family, width, own) for (family, width), own in by(networks, "family", "width"))
    yield Grid(head, tuple(rows), names=3)


def _network_row(family: Family, width: int, own: pd.DataFrame) -> tuple[Entry, ...]:
    line, medians = stable_rate(family, width), own[["grew", "peaked", "exploded"]].median()
    return words(
        family.label,
        family.normalized,
        str(family.samples or width),
        str(width),
        str(len(own)),
        three_digits(own.lambda_max.median()),
        _theory(theory(family, width, {})),
        "–" if line is None else three_digits(line),
        *("–" if math.isnan(median) else two_decimals(median) for median in medians),
    )
