"""Recompute the claims on trained deep networks (Daneshmand et al. 2020) from the exported runs.

python -m tests.audit.deep
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise, permutations

import numpy as np
import pandas as pd
from scipy import stats

from tests.audit.arms import (
    CONTROL,
    DRAWN,
    NORMALIZED,
    PLAIN,
    PRETRAINED,
    TITLES,
    Trained,
    measured,
)
from tests.audit.studies import Claims, half_width, mean_text, verdict_of

#: Epochs whose differences the page lists, by the length of the sweep.
SHOWN = {30: [5, 10, 20, 30], 75: [5, 10, 20, 30, 75]}


def way(change: pd.Series) -> int:
    """Return the sign of a mean paired difference whose 95 % interval excludes zero, else 0."""
    return int(np.sign(change.mean())) if abs(change.mean()) > half_width(change) else 0


def points(change: pd.Series) -> str:
    return f"{100 * change.mean():+.1f} ± {100 * half_width(change):.1f}"


def percent(accuracies: pd.Series) -> str:
    return mean_text(100 * accuracies, 1)


def ranks_over_depth(of: Trained) -> tuple[str, str]:
    """At 32 layers: below 1.5 in every seed without normalization, and more than twice as high in all with it."""
    normalized, outcomes, parts = of.rank(15, 32, NORMALIZED), [], []
    for arm in PLAIN:
        ranks = of.rank(15, 32, arm)
        outcomes.append("holds" if ranks.max() < 1.5 and normalized.min() > 2 * ranks.max() else "does not hold")
        parts.append(f"32 layers: r = {mean_text(ranks)} ({arm}), {mean_text(normalized)} (BN), n={len(ranks)}")
    return verdict_of(outcomes), "; ".join(parts)


def over_depth(of: Trained, arms: list[str], judge: Callable[[pd.Series, bool], str]) -> tuple[str, str]:
    """The deepest networks of each arm against the shallowest."""
    outcomes, parts = [], []
    for arm in arms:
        depths = [depth for depth, name in of.arms(15) if name == arm]
        finals = {depth: of.accuracy(15, depth, arm) for depth in depths}
        change, rises = finals[depths[-1]] - finals[depths[0]], of.rises(15, depths[-1], arm)
        outcomes.append(judge(change, rises))
        listed = ", ".join(f"{depth}: {percent(final)}" for depth, final in finals.items())
        length = "15 epochs of 75" + (", still rising" if rises else "")
        parts.append(f"{arm}: {listed} % by depth (change {points(change)} points, n={len(change)}, {length})")
    return verdict_of(outcomes), "; ".join(parts)


def falls(change: pd.Series, rises: bool) -> str:
    """A fall that is shown, unless the deep network may still catch up."""
    return "inconclusive" if rises or not way(change) else "holds" if way(change) < 0 else "does not hold"


def stays(change: pd.Series, rises: bool) -> str:
    """No fall by more than a point, or one that is shown."""
    low, high = change.mean() - half_width(change), change.mean() + half_width(change)
    return "holds" if low >= -0.01 else "does not hold" if high < -0.01 and not rises else "inconclusive"


def rank_predicts(of: Trained) -> tuple[str, str]:
    """The sweeps in which five arms or more have an accuracy."""
    found = [_rank_predicts(of, epochs) for epochs in TITLES]
    return verdict_of([verdict for verdict, _ in found]), "; ".join(evidence for _, evidence in found)


def _rank_predicts(of: Trained, epochs: int) -> tuple[str, str]:
    """Rank correlation of the arms at 32 layers; arms shown to train on a collapsed rank, or not to on a high one."""
    arms = of.arms(epochs)
    means = pd.DataFrame(
        {
            "rank": [of.rank(epochs, *arm).mean() for arm in arms],
            "accuracy": [of.accuracy(epochs, *arm).mean() for arm in arms],
            "reach": [half_width(of.accuracy(epochs, *arm)) for arm in arms],
        },
        index=pd.MultiIndex.from_tuples(arms, names=["depth", "arm"]),
    ).round({"rank": 6})
    deepest = means.loc[32]
    rho, p = permuted(deepest["rank"], deepest.accuracy)
    evidence = (
        f"{TITLES[epochs]}: rank correlation of the {len(deepest)} arms with 32 layers {rho:.2f} (exact permutation "
        f"test: p = {p:.2g})"
    )
    if len(means) > len(deepest):
        overall = stats.spearmanr(means["rank"], means.accuracy).statistic
        evidence += f", of all {len(means)} arms and depths {overall:.2f} (not tested: depth changes both)"
    best = means.accuracy.groupby("depth").transform("max")
    trains, fails = means.accuracy - means.reach > best - 0.1, means.accuracy + means.reach < best / 2
    against = means[((means["rank"] < 1.5) & trains) | ((means["rank"] > 5) & fails)]
    if len(against):
        evidence += "; against it: " + ", ".join(
            f"{arm} at {depth} layers, r = {mean_text(of.rank(epochs, depth, arm))}, "
            f"{percent(of.accuracy(epochs, depth, arm))} %"
            for depth, arm in against.index
        )
    if p < 0.05 and rho > 0:
        return "in part" if len(against) else "holds", evidence
    return "does not hold" if len(against) or p < 0.05 else "inconclusive", evidence


def permuted(first: pd.Series, second: pd.Series) -> tuple[float, float]:
    """Return Spearman's correlation, and twice the share of all orders in which it is as far to its side."""
    x, y = (some.rank().to_numpy() - (len(some) + 1) / 2 for some in (first, second))
    sums = np.array([np.dot(x, order) for order in permutations(y)])
    tails = [(sums >= x @ y - 1e-9).mean(), (sums <= x @ y + 1e-9).mean()]
    return float(stats.spearmanr(first, second).statistic), min(1.0, 2 * float(min(tails)))


def shift_breaks(of: Trained) -> tuple[str, str]:
    """The greatest shift against none: ranks below 1.5 in every seed, and lower accuracies that no longer rise."""
    arms = [arm for depth, arm in of.arms(15) if depth == 32 and arm.startswith(NORMALIZED)]
    ranks, finals = ({arm: value(15, 32, arm) for arm in arms} for value in (of.rank, of.accuracy))
    change = finals[arms[-1]] - finals[NORMALIZED]
    is_lower = ranks[arms[-1]].max() < min(1.5, ranks[NORMALIZED].min())
    doses = "; ".join(
        f"{arm.removeprefix('BN, shift ').replace('BN', '0')}: r = {mean_text(ranks[arm])}, {percent(finals[arm])} %"
        for arm in arms
    )
    evidence = f"shift {doses} (change {points(change)} points, 32 layers, n={len(change)}, 15 epochs of 75)"
    if not is_lower:
        return "does not hold", evidence
    return falls(change, of.rises(15, 32, arms[-1])), evidence


def raises(of: Trained) -> tuple[str, str]:
    """Every layer of every seed has a higher rank than as drawn."""
    outcomes, parts = [], []
    for epochs, arms in PRETRAINED.items():
        before = of.ranks(epochs, 32, DRAWN[epochs])
        for arm in arms:
            after = of.ranks(epochs, 32, arm)
            higher = np.array([np.greater(after[seed], before[seed]) for seed in after.index])
            outcomes.append("holds" if higher.all() else "does not hold")
            ends = [of.rank(epochs, 32, name).mean() for name in (DRAWN[epochs], arm)]
            parts.append(
                f"{arm}: {higher.sum()} of {higher.size} layers, the last from {ends[0]:.2f} to {ends[1]:.2f} "
                f"(n={len(after)})"
            )
    return verdict_of(outcomes), "; ".join(parts)


def outperforms(of: Trained, others: Mapping[int, str]) -> tuple[str, str]:
    """Each pre-trained arm against another one after the last epoch, unless the lower one still rises."""
    outcomes, parts = [], []
    for epochs, arm in [(epochs, arm) for epochs, arms in PRETRAINED.items() for arm in arms]:
        diverged, other = of.diverged(epochs, arm), others[epochs]
        if of.accuracy(epochs, 32, arm).empty:
            outcomes.append("inconclusive")
            parts.append(f"{arm}: {diverged}")
            continue
        gaps = {
            epoch: (of.accuracy(epochs, 32, arm, epoch) - of.accuracy(epochs, 32, other, epoch)).dropna()
            for epoch in SHOWN[epochs]
        }
        sign, n = way(gaps[epochs]), len(gaps[epochs])
        lower = other if sign > 0 else arm
        listed = ", ".join(f"{epoch}: {points(gap)}" for epoch, gap in gaps.items())
        lost = "" if diverged.startswith("0 ") else f", {diverged}"
        rises = bool(sign) and of.rises(epochs, 32, lower)
        outcomes.append("inconclusive" if rises or not sign else "holds" if sign > 0 else "does not hold")
        parts.append(
            f"{arm} less {other}, points by epoch: {listed} (n={n}{lost})"
            + (f"; {lower} still rises after {epochs} epochs" if rises else "")
        )
    return verdict_of(outcomes), "; ".join(parts)


def more_is_better(of: Trained) -> tuple[str, str]:
    """Every arm above the one with fewer steps; arms that diverge at every rate decide nothing."""
    outcomes, parts = [], []
    for epochs, without, named in ((75, DRAWN[75], "as in the code, "), (30, CONTROL[30], "")):
        arms = [without, *PRETRAINED[epochs]]
        finals = {arm: of.accuracy(epochs, 32, arm) for arm in arms}
        changes = [(finals[more] - finals[fewer]).dropna() for fewer, more in pairwise(arms)]
        ways = [0 if change.empty else way(change) for change in changes]
        listed = ", ".join(
            f"{0 if arm == without else arm.split()[0]}: {percent(final) if len(final) else '–'} % "
            f"({of.diverged(epochs, arm)})"
            for arm, final in finals.items()
        )
        outcomes.append("holds" if min(ways) > 0 else "does not hold" if min(ways) < 0 else "inconclusive")
        parts.append(f"{named}by steps, at the best rate: {listed}")
    return verdict_of(outcomes), "; ".join(parts)


def keeps_rank(of: Trained) -> tuple[str, str]:
    """At 32 layers no seed's rank changes by more than a factor of two, in arms with half the best accuracy or more."""
    outcomes, parts = [], []
    for epochs in (75, 15, 30):
        finals = {arm: of.accuracy(epochs, 32, arm).mean() for depth, arm in of.arms(epochs) if depth == 32}
        for arm in [arm for arm, final in finals.items() if final >= np.nanmax([*finals.values()]) / 2]:
            before, after = of.rank(epochs, 32, arm), of.final_rank(epochs, 32, arm)
            factors = (after / before).dropna()
            outcomes.append("holds" if factors.between(1 / 2, 2).all() else "does not hold")
            parts.append(
                f"{arm}: {before[factors.index].mean():.1f} to {after.mean():.1f} in {epochs} epochs "
                f"(by {factors.min():.2f} to {factors.max():.2f}, n={len(factors)})"
            )
    return verdict_of(outcomes), "; ".join(parts)


def claims() -> Claims:
    """Return the verdict and the numbers of every claim."""
    of = Trained(measured())
    return {
        "Rank collapses with depth": ranks_over_depth(of),
        "Without normalization accuracy falls": over_depth(of, PLAIN, falls),
        "With batch normalization accuracy": over_depth(of, [NORMALIZED], stays),
        "A high rank at initialization": rank_predicts(of),
        "Weights off centre": shift_breaks(of),
        "Pre-training raises the rank": raises(of),
        "A pre-trained network": outperforms(of, dict.fromkeys(PRETRAINED, NORMALIZED)),
        "It is the rank that helps": outperforms(of, CONTROL),
        "The more pre-training": more_is_better(of),
        "SGD keeps the magnitude": keeps_rank(of),
    }


if __name__ == "__main__":
    for name, (verdict, evidence) in claims().items():
        print(f"{name}: {verdict}\n    {evidence}")
