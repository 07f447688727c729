"""The claim that bounded norms explain the gain of feature normalization (FN)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from flbench.papers.label_skew.correlations import (
    Direction,
    Groups,
    Key,
    Means,
    MeansRow,
    Mechanism,
    RankCorrelation,
    by_partition,
    correlate,
    correlate_accuracy,
    mean_points_text,
)
from flbench.papers.label_skew.probe_cells import Probed
from flbench.report.cells import tick_of
from flbench.report.claims import Claim, Verdict
from flbench.report.correlation import Mean, mean

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

_DIRECTIONS: dict[Direction, str] = {
    "rises": "rises with it",
    "falls": "falls with it",
    "flat": "hardly depends on it",
    "open": "open",
}


@dataclass(frozen=True)
class _Pair:
    """A normalized cell and the cell that differs from it by having no normalization."""

    plain: Probed
    other: Probed

    @property
    def gain(self) -> float:
        """The gain in accuracy."""
        return (self.other.acc or 0.0) - (self.plain.acc or 0.0)


#: All pairs of one method vary together.
_METHODS: Groups[_Pair] = ("methods", lambda pair: pair.plain.method_label)


def _at_lr(one: Probed) -> object:
    return one.column, one.method_label, one.lr


def _at_best(one: Probed) -> object:
    return one.column, one.method_label


def judge(cells: Sequence[Probed], tuned: Sequence[Probed]) -> Mechanism:
    """Compare the gains of FN with the growth of norms without it, and with what other normalizations gain."""
    grown = [one for one in cells if one.growth is not None]
    pairs, best_pairs = _pairs(grown, _at_lr, "fn"), _pairs(tuned, _at_best, "fn")
    if not pairs:
        lack = "No cells with fn and with none, else alike, have the features probe (also at round 0)."
        return Mechanism("norms", Claim(TEXT, SOURCE, "not run", lack))
    partitions = by_partition(pairs, lambda pair: pair.plain.partition)
    plain = [_gain(some, where, strata=lambda pair: pair.plain.column) for where, some in partitions]
    *places, same_rate = (
        _gain(some, f"{where}, at the same lr", strata=lambda pair: (pair.plain.column, pair.plain.lr))
        for where, some in partitions
    )
    best = _gain(best_pairs, "everywhere, at the best lr of each row", strata=lambda pair: pair.plain.column)
    bare = [one for one in grown if one.norm_label == "none"]
    inside = _within(bare, "norm none, at the same lr", lambda one: (one.column, one.lr))
    others = [
        _ln_gains_like_fn(grown),
        _within(bare, "norm none", lambda one: one.column),
        inside,
        _within(
            [one for one in tuned if one.norm_label == "none"],
            "norm none, methods at their best lr",
            lambda one: one.column,
        ),
    ]
    overall, without = _mean(best_pairs), _mean([pair for pair in pairs if (pair.plain.growth or 0) < GROWTHS[0][1]])
    verdict = _verdict(overall, without, same_rate, best, places, inside)
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
    return Mechanism(
        "norms",
        Claim(TEXT, SOURCE, verdict, " ".join(filter(None, sentences))),
        (*plain, *places, same_rate, best, *(one for one in others if one.correlation.rho is not None)),
        tuple(filter(None, [_by_growth(pairs), _by_norm(tuned)])),
    )


def _verdict(
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


def _pairs(cells: Iterable[Probed], key: Key[Probed], norm: str) -> list[_Pair]:
    """Cells with a norm (by its label) and those without any that agree in the key."""
    known = [one for one in cells if one.acc is not None]
    plain = {key(one): one for one in known if one.norm_label == "none"}
    return [_Pair(plain[key(one)], one) for one in known if one.norm_label == norm and key(one) in plain]


def _gain(pairs: Sequence[_Pair], where: str, *, strata: Key[_Pair]) -> RankCorrelation:
    return correlate(
        pairs,
        (lambda pair: pair.plain.growth, lambda pair: pair.gain),
        what="gain of fn over none ~ growth of none's norms",
        where=where,
        strata=strata,
        groups=_METHODS,
    )


def _ln_gains_like_fn(grown: Sequence[Probed]) -> RankCorrelation:
    of_ln = {_at_lr(pair.plain): pair for pair in _pairs(grown, _at_lr, "ln")}
    return correlate(
        [pair for pair in _pairs(grown, _at_lr, "fn") if _at_lr(pair.plain) in of_ln],
        (lambda pair: pair.gain, lambda pair: of_ln[_at_lr(pair.plain)].gain),
        what="gain of ln over none ~ gain of fn over none",
        where="everywhere",
        strata=lambda pair: pair.plain.column,
        groups=_METHODS,
    )


def _within(cells: Sequence[Probed], where: str, strata: Key[Probed]) -> RankCorrelation:
    return correlate_accuracy(cells, lambda one: one.growth, "growth of norms", where, strata, within_norms=True)


def _mean(pairs: Sequence[_Pair]) -> Mean | None:
    return mean([pair.gain for pair in pairs], [pair.plain.method_label for pair in pairs])


def _lengths(pairs: Sequence[_Pair]) -> str:
    """How much longer normalized features are before the first round: a difference that growth does not have."""
    ratios = [
        other / plain
        for pair in pairs
        if (other := pair.other.born_norm) is not None and (plain := pair.plain.born_norm) is not None
    ]
    factor = statistics.geometric_mean(ratios) if ratios else 1.0
    if 1 / EQUAL < factor < EQUAL:
        return ""
    return f"Before the first round fn's features are {factor:.1f} times as long as none's."


def _by_growth(pairs: Sequence[_Pair]) -> Means:
    rows = []
    for low, high, name in GROWTHS:
        some = [pair for pair in pairs if pair.plain.growth is not None and low <= pair.plain.growth < high]
        rows.append(MeansRow((name,), _column_means(pairs, some)))
    title = "Gain of fn over none at the same learning rate, by the growth of none's norms"
    return Means(title, ("growth", *_columns(pairs)), tuple(rows))


def _by_norm(tuned: Sequence[Probed]) -> Means | None:
    """Every normalization against none, beside the growth of its norms."""
    labels = list(dict.fromkeys(one.norm_label for one in sorted(tuned, key=lambda one: tick_of(one.cell, "norm"))))
    pairs = {label: _pairs(tuned, _at_best, label) for label in labels}
    everything = [pair for label in labels if label != "none" for pair in pairs[label]]
    if not everything:
        return None
    columns = _columns(everything)
    rows = []
    for label in labels:
        growths = sorted(one.growth for one in tuned if one.norm_label == label and one.growth is not None)
        middle = f"{growths[len(growths) // 2]:.3g} ({growths[0]:.3g} to {growths[-1]:.3g})" if growths else "–"
        means = (None,) * len(columns) if label == "none" else _column_means(everything, pairs[label])
        rows.append(MeansRow((label, middle), means))
    title = (
        "Gain of every normalization over none at the best learning rates, beside the growth of its norms (median, "
        "smallest to largest)"
    )
    return Means(title, ("norm", "growth", *columns), tuple(rows))


def _columns(pairs: Sequence[_Pair]) -> list[str]:
    """The partitions if there are several, and ``everywhere``."""
    return [name for name, _ in by_partition(pairs, lambda pair: pair.plain.partition)]


def _column_means(everything: Sequence[_Pair], some: Sequence[_Pair]) -> tuple[Mean | None, ...]:
    """The mean gain of some pairs in each column of all pairs."""
    *partitions, _ = _columns(everything)
    parts = [[pair for pair in some if pair.plain.partition == name] for name in partitions]
    return tuple(_mean(part) for part in [*parts, some])
