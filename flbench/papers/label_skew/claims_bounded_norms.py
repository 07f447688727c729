"""The claim that bounded norms explain the gain of feature normalization (FN)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from flbench.papers.label_skew.correlations import (
    WITHIN_NORMS,
    Direction,
    Means,
    MeansRow,
    Mechanism,
    RankCorrelation,
    by_partition,
    correlate,
    mean_points_text,
)
from flbench.report.cells import tick_of
from flbench.report.claims import Claim, Verdict
from flbench.report.correlation import Mean, mean

if TYPE_CHECKING:
    import pandas as pd

TEXT = "Bounded norms explain the gain of FN"
SOURCE = "after Zhang et al. 2024, theorem 1"

#: Growth of the features' norm without normalization, in classes: hardly, some, a lot.
GROWTHS: tuple[tuple[float, float, str], ...] = (
    (0.0, 2.0, "below 2"),
    (2.0, 10.0, "2 to 10"),
    (10.0, math.inf, "10 and more"),
)

#: A gain below this, half a point, leaves nothing to explain.
NOTABLE = 0.005

#: Lengths of features that differ by less than this factor are equal.
EQUAL = 1.05

#: What cells that are compared share: at the same learning rate, and at the best one of each.
_AT_LR, _AT_BEST = ["column", "method", "lr"], ["column", "method"]

_DIRECTIONS: dict[Direction, str] = {
    "rises": "rises with it",
    "falls": "falls with it",
    "flat": "hardly depends on it",
    "open": "open",
}


def judge(cells: pd.DataFrame, tuned: pd.DataFrame) -> Mechanism:
    """Compare the gains of FN with the growth of norms without it, and with what other normalizations gain."""
    grown = cells.dropna(subset="growth")
    pairs, best_pairs = _pairs(grown, _AT_LR, "fn"), _pairs(tuned, _AT_BEST, "fn")
    if pairs.empty:
        lack = "No cells with fn and with none, else alike, have the features probe (also at round 0)."
        return Mechanism("norms", Claim(TEXT, SOURCE, "not run", lack))
    plain = [_gain(some, where, ["column"]) for where, some in by_partition(pairs)]
    *places, same_rate = (
        _gain(some, f"{where}, at the same lr", ["column", "lr"]) for where, some in by_partition(pairs)
    )
    best = _gain(best_pairs, "everywhere, at the best lr of each row", ["column"])
    bare = grown[grown.norm == "none"]
    inside = _within(bare, "norm none, at the same lr", ["column", "lr"])
    of_ln = pairs.merge(_pairs(grown, _AT_LR, "ln")[[*_AT_LR, "gain"]], on=_AT_LR, suffixes=("", "_of_ln"))
    like_ln = "gain of ln over none ~ gain of fn over none"
    others = [
        correlate(of_ln, "gain", "gain_of_ln", what=like_ln, where="everywhere", strata=["column"], units=["method"]),
        _within(bare, "norm none", ["column"]),
        inside,
        _within(tuned[tuned.norm == "none"], "norm none, methods at their best lr", ["column"]),
    ]
    overall, without = _mean(best_pairs), _mean(pairs[pairs.growth < GROWTHS[0][1]])
    ways = ", ".join(f"{one.where.split(', ')[0]}: {_DIRECTIONS[one.direction]}" for one in places)
    sentences = [
        f"The gain against the growth of none's norms: at the same learning rate {same_rate.text}"
        + (f" (by partition, {ways})" if ways else "")
        + f", at the best ones {best.text}.",
        f"At the best learning rates the gain of fn over none is {mean_points_text(overall)}."
        if overall
        else "No cells of fn and none are at their best learning rates.",
        f"Where none's norms grow less than twofold the gain is {mean_points_text(without)} at the same learning rate."
        if without
        else "Nowhere do none's norms grow less than twofold.",
        *(
            f"{one.what[0].upper()}{one.what[1:]}{'' if one.where == 'everywhere' else f' ({one.where})'}: {one.text}."
            for one in others[:3]
            if one.correlation.rho is not None
        ),
        _lengths(pairs),
    ]
    found = verdict(overall, without, same_rate, best, places, inside)
    return Mechanism(
        "norms",
        Claim(TEXT, SOURCE, found, " ".join(filter(None, sentences))),
        (*plain, *places, same_rate, best, *(one for one in others if one.correlation.rho is not None)),
        tuple(filter(None, [_by_growth(pairs), _by_norm(tuned)])),
    )


def verdict(
    overall: Mean | None,
    without: Mean | None,
    same_rate: RankCorrelation,
    best: RankCorrelation,
    places: Sequence[RankCorrelation],
    inside: RankCorrelation,
) -> Verdict:
    """Return ``holds`` if the gain grows with the norms that FN bounds, and is gone where they do not grow.

    It holds in part if the gain grows with them in some partitions alone. It is inconclusive if its direction is open
    at equal or at the best learning rates, or if it does not grow with them although accuracy without normalization
    falls with their growth. The arguments are the gain at the best learning rates and where the norms of none hardly
    grow; the correlation of gain and growth at equal learning rates, at the best ones, and at equal ones in each of
    several partitions; and that of accuracy and growth within none.
    """
    if overall is None or overall.interval is None:
        return "inconclusive"
    if overall.interval[0] <= 0:
        return "does not hold"
    if same_rate.direction == "rises":
        left = without.interval if without else None
        return "holds" if left is not None and left[0] <= NOTABLE else "in part"
    if any(one.direction == "rises" for one in places):
        return "in part"
    is_open = "open" in (same_rate.direction, best.direction)
    return "inconclusive" if is_open or inside.direction == "falls" else "does not hold"


def _pairs(cells: pd.DataFrame, same: Sequence[str], norm: str) -> pd.DataFrame:
    """Return the cells without normalization beside those with a norm, alike in what is the ``same``; ``gain``."""
    known = cells.dropna(subset="acc")
    plain = known[known.norm == "none"].drop_duplicates([*same], keep="last")
    others = known[known.norm == norm][[*same, "acc", "first_length"]]
    pairs = others.merge(plain, on=[*same], suffixes=("_other", ""))
    return pairs.assign(gain=pairs.acc_other - pairs.acc)


def _gain(pairs: pd.DataFrame, where: str, strata: Sequence[str]) -> RankCorrelation:
    """All pairs of one method vary together."""
    what = "gain of fn over none ~ growth of none's norms"
    return correlate(pairs, "growth", "gain", what=what, where=where, strata=strata, units=["method"])


def _within(cells: pd.DataFrame, where: str, strata: Sequence[str]) -> RankCorrelation:
    what = "accuracy ~ growth of norms"
    return correlate(cells, "growth", "acc", what=what, where=where, strata=strata, units=WITHIN_NORMS)


def _mean(pairs: pd.DataFrame) -> Mean | None:
    return mean(pairs.gain.tolist(), pairs.method.tolist())


def _lengths(pairs: pd.DataFrame) -> str:
    """How much longer normalized features are before the first round: a difference that growth does not have."""
    ratios = (pairs.first_length_other / pairs.first_length).dropna()
    factor = statistics.geometric_mean(ratios) if len(ratios) else 1.0
    if 1 / EQUAL < factor < EQUAL:
        return ""
    return f"Before the first round fn's features are {factor:.1f} times as long as none's."


def _by_growth(pairs: pd.DataFrame) -> Means:
    rows = [
        MeansRow((name,), _column_means(pairs, pairs[(low <= pairs.growth) & (pairs.growth < high)]))
        for low, high, name in GROWTHS
    ]
    title = "Gain of fn over none at the same learning rate, by the growth of none's norms"
    return Means(title, ("growth", *_columns(pairs)), tuple(rows))


def _by_norm(tuned: pd.DataFrame) -> Means | None:
    """Every normalization against none, beside the growth of its norms."""
    import pandas as pd

    ordered = sorted(tuned.itertuples(), key=lambda one: tick_of(one.cell, "norm"))  # type: ignore[arg-type]
    pairs = {label: _pairs(tuned, _AT_BEST, label) for label in dict.fromkeys(str(one.norm) for one in ordered)}
    everything = pd.concat([own for label, own in pairs.items() if label != "none"] or [tuned.head(0)])
    if everything.empty:
        return None
    rows = []
    for label, own in pairs.items():
        growths = sorted(tuned.growth[tuned.norm == label].dropna())
        middle = f"{growths[len(growths) // 2]:.3g} ({growths[0]:.3g} to {growths[-1]:.3g})" if growths else "–"
        means = (None,) * len(_columns(everything)) if label == "none" else _column_means(everything, own)
        rows.append(MeansRow((label, middle), means))
    title = (
        "Gain of every normalization over none at the best learning rates, beside the growth of its norms (median, "
        "smallest to largest)"
    )
    return Means(title, ("norm", "growth", *_columns(everything)), tuple(rows))


def _columns(pairs: pd.DataFrame) -> list[str]:
    """The partitions if there are several, and ``everywhere``."""
    return [name for name, _ in by_partition(pairs)]


def _column_means(everything: pd.DataFrame, some: pd.DataFrame) -> tuple[Mean | None, ...]:
    """The mean gain of some pairs in each column of all pairs."""
    *partitions, _ = _columns(everything)
    return tuple(_mean(part) for part in [*(some[some.partition == name] for name in partitions), some])
