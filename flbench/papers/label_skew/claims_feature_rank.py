"""The claim that accuracy follows the rank of the features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from flbench.papers.label_skew.correlations import (
    NORMS,
    WITHIN_NORMS,
    Direction,
    Mechanism,
    RankCorrelation,
    by_partition,
    correlate,
    verdict_on,
)
from flbench.report.claims import Claim

if TYPE_CHECKING:
    import pandas as pd

TEXT = "Accuracy follows the rank of the features"
SOURCE = "after Daneshmand et al. 2020"

#: Cells above this accuracy work: a correlation among them is not that of working and failing cells.
WORKING = 0.9

_DIRECTIONS: dict[Direction, str] = {
    "rises": "it rises with the rank",
    "falls": "it falls with the rank",
    "flat": "it hardly depends on the rank",
    "open": "the direction is open",
}


def judge(cells: pd.DataFrame, tuned: pd.DataFrame) -> Mechanism:
    """Return the verdict on three correlations: over all cells, those that work, and within norms at the best rates.

    A rank that only tells working cells from failing ones rises with accuracy over all cells, and not among those that
    work (``tests/papers/label_skew/test_feature_rank.py`` has the rule's error rates).
    """
    known = cells.dropna(subset=["rank", "acc"])
    if known.empty:
        return Mechanism("rank", Claim(TEXT, SOURCE, "not run", "No run has the features probe."))
    *parts, whole = [_correlation(some, where, ["column"]) for where, some in by_partition(known)]
    good = _correlation(known[known.acc > WORKING], f"accuracy above {100 * WORKING:g} %", ["column"])
    best = _correlation(tuned, "at the best lr of each row, at the same norm", ["column", "norm"])
    others = (
        good,
        best,
        _correlation(known, "everywhere, at the same norm", ["column", "norm"]),
        _correlation(known, "everywhere, at the same lr", ["column", "lr"]),
        _correlation(known, "everywhere, at the same norm and lr", ["column", "norm", "lr"]),
        _correlation(tuned, "everywhere, at the best lr of each row", ["column"]),
        _correlation(known, "everywhere", ["column"], "share", "share of the first singular value"),
    )
    evidence = (
        f"Over all cells of a column {_DIRECTIONS[whole.direction]}, {whole.text}; among cells above "
        f"{100 * WORKING:g} % accuracy {_DIRECTIONS[good.direction]}, {good.text}; at the best learning rates within "
        f"one norm {_DIRECTIONS[best.direction]}, {best.text}."
    )
    shown = (*parts, whole, *(one for one in others if one.correlation.rho is not None))
    return Mechanism("rank", Claim(TEXT, SOURCE, verdict_on(whole, (good, best)), evidence), shown)


def _correlation(
    cells: pd.DataFrame, where: str, strata: Sequence[str], of: str = "rank", name: str = "effective rank"
) -> RankCorrelation:
    """Correlate accuracy; where ``strata`` differ by norm, enough methods make an interval and not enough norms."""
    units = WITHIN_NORMS if "norm" in strata else NORMS
    return correlate(cells, of, "acc", what=f"accuracy ~ {name}", where=where, strata=strata, units=units)
