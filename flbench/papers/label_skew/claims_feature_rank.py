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

_DIRECTIONS: dict[Direction, str] = {
    "rises": "it rises with the rank",
    "falls": "it falls with the rank",
    "flat": "it hardly depends on the rank",
    "open": "the direction is open",
}


def judge(cells: Sequence[Probed], tuned: Sequence[Probed]) -> Mechanism:
    """Correlate accuracy and effective rank over all cells, and among those of equal norm or learning rate."""
    known = [one for one in cells if one.rank is not None and one.acc is not None]
    if not known:
        return Mechanism("rank", Claim(TEXT, SOURCE, "not run", "No run has the features probe."))
    *parts, whole = [
        _correlation(some, where, lambda one: one.column)
        for where, some in by_partition(known, lambda one: one.partition)
    ]
    same_norm = _correlation(known, "everywhere, at the same norm", lambda one: (one.column, one.norm_label))
    same_rate = _correlation(known, "everywhere, at the same lr", lambda one: (one.column, one.lr))
    both = _correlation(known, "everywhere, at the same norm and lr", lambda one: (one.column, one.norm_label, one.lr))
    best = _correlation(tuned, "everywhere, at the best lr of each row", lambda one: one.column)
    name = "share of the first singular value"
    share = correlate_accuracy(known, lambda one: one.share, name, "everywhere", lambda one: one.column)
    evidence = (
        f"Over all cells of a column {_DIRECTIONS[whole.direction]}, {whole.text}; at the same norm "
        f"{_DIRECTIONS[same_norm.direction]}, {same_norm.text}; at the same learning rate "
        f"{_DIRECTIONS[same_rate.direction]}, {same_rate.text}; at the best learning rates {best.text}."
    )
    others = [one for one in (same_norm, same_rate, both, best, share) if one.correlation.rho is not None]
    verdict = verdict_on(whole, (same_norm, same_rate))
    return Mechanism("rank", Claim(TEXT, SOURCE, verdict, evidence), (*parts, whole, *others))


def _correlation(cells: Sequence[Probed], where: str, strata: Key[Probed]) -> RankCorrelation:
    return correlate_accuracy(cells, lambda one: one.rank, "effective rank", where, strata)
