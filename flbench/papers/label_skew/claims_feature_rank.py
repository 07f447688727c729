"""The claim that accuracy follows the rank of the features."""

from __future__ import annotations

from collections.abc import Sequence

from flbench.papers.label_skew.correlations import (
    Direction,
    Key,
    Mechanism,
    RankCorrelation,
    by_partition,
    correlate_accuracy,
    verdict_on,
)
from flbench.papers.label_skew.probe_cells import Probed
from flbench.report.claims import Claim

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


def judge(cells: Sequence[Probed], tuned: Sequence[Probed]) -> Mechanism:
    """Return the verdict on three correlations: over all cells, those that work, and within norms at the best rates.

    A rank that only tells working cells from failing ones rises with accuracy over all cells, and not among those that
    work (``tests/papers/label_skew/test_feature_rank.py`` has the rule's error rates).
    """
    known = [one for one in cells if one.rank is not None and one.acc is not None]
    if not known:
        return Mechanism("rank", Claim(TEXT, SOURCE, "not run", "No run has the features probe."))
    *parts, whole = [
        _correlation(some, where, lambda one: one.column)
        for where, some in by_partition(known, lambda one: one.partition)
    ]
    working = [one for one in known if (one.acc or 0.0) > WORKING]
    good = _correlation(working, f"accuracy above {100 * WORKING:g} %", lambda one: one.column)
    best = _correlation(
        tuned, "at the best lr of each row, at the same norm", lambda one: (one.column, one.norm_label), within=True
    )
    same_norm = _correlation(
        known, "everywhere, at the same norm", lambda one: (one.column, one.norm_label), within=True
    )
    same_rate = _correlation(known, "everywhere, at the same lr", lambda one: (one.column, one.lr))
    both = _correlation(
        known, "everywhere, at the same norm and lr", lambda one: (one.column, one.norm_label, one.lr), within=True
    )
    everywhere_best = _correlation(tuned, "everywhere, at the best lr of each row", lambda one: one.column)
    name = "share of the first singular value"
    share = correlate_accuracy(known, lambda one: one.share, name, "everywhere", lambda one: one.column)
    evidence = (
        f"Over all cells of a column {_DIRECTIONS[whole.direction]}, {whole.text}; among cells above "
        f"{100 * WORKING:g} % accuracy {_DIRECTIONS[good.direction]}, {good.text}; at the best learning rates within "
        f"one norm {_DIRECTIONS[best.direction]}, {best.text}."
    )
    others = (good, best, same_norm, same_rate, both, everywhere_best, share)
    shown = (*parts, whole, *(one for one in others if one.correlation.rho is not None))
    return Mechanism("rank", Claim(TEXT, SOURCE, verdict_on(whole, (good, best)), evidence), shown)


def _correlation(cells: Sequence[Probed], where: str, strata: Key[Probed], *, within: bool = False) -> RankCorrelation:
    name = "effective rank"
    return correlate_accuracy(cells, lambda one: one.rank, name, where, strata, within_norms=within)
