"""The claims on one class a client and on doses of rank, judged by t-tests over seeds, with pandas and scipy alone.

Each function returns a claim as the pages print it. The rules are those of ``docs/statistics.md`` and of Zhang et al.
2024, written down a second time.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pandas as pd
from scipy import stats

from tests.audit.planned import holm
from tests.audit.studies import span
from tests.audit.why import CELL
from tests.audit.why_claims import Claim

#: Fewer seeds have no interval.
FEWEST_SEEDS = 3

#: Accuracies that differ by less than this are equivalent.
MARGIN = 0.01


def combined(outcomes: Iterable[bool | None]) -> str:
    """Return the verdict over settings, each of which supports the claim, contradicts it or decides nothing."""
    found = set(outcomes)
    if True in found:
        return "holds" if found == {True} else "in part"
    return "does not hold" if False in found else "inconclusive"


def interval(values: pd.Series) -> tuple[float, float]:
    """Return Student's 95 % interval of the mean; everything for too few values."""
    if len(values) < FEWEST_SEEDS:
        return -np.inf, np.inf
    low, high = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    return float(low), float(high)


def shares(cells: pd.DataFrame) -> str:
    """``80.5 to 99.9 % (before training 79 %)``."""
    known = 100 * cells[["share", "share_0"]].dropna()
    return f"{span(known.share)} % (before training {span(known.share_0)} %)"


def norms_grow(of: pd.DataFrame, cells: pd.DataFrame) -> Claim:
    """Local training on one class makes norms grow without normalization; FN bounds them."""
    plain, bounded = alone_on_one_class(cells)
    runs_of_plain, _ = alone_on_one_class(of)
    logarithms = np.log(runs_of_plain.set_index(CELL).growth).groupby(level=CELL)
    grown = [interval(own)[0] > 0 for _, own in logarithms]
    kept = bounded.growth.between(1 / 1.05, 1.05, inclusive="neither")
    return Claim(
        combined([*grown, *kept]),
        f"none: factor {span(plain.growth)}, above 1 in {sum(grown)} of {len(plain)} settings (95 % t-interval of its "
        f"logarithm over seeds); fn: {span(bounded.growth)}; longest class embedding of none: factor "
        f"{span(plain.head_growth.dropna())}.",
    )


def features_collapse(cells: pd.DataFrame) -> Claim:
    """Local training on one class makes features collapse onto one direction without normalization, not with FN."""
    plain, normalized = alone_on_one_class(cells)
    collapsed, kept = plain.share > 0.99, normalized.share > 0.99
    return Claim(
        combined([*collapsed, *~kept]),
        f"share of the first singular value, none: {shares(plain)}, above 99 % in {collapsed.sum()} of {len(plain)} "
        f"settings, effective rank {span(plain['rank'])}; fn: {shares(normalized)}, above 99 % in {kept.sum()} of "
        f"{len(normalized)} settings.",
    )


def alone_on_one_class(of: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return what clients that train alone on one class did, without normalization and with FN."""
    alone = of[(of.method == "local-only") & (of.partition == "classes:1") & of.growth.notna()]
    return alone[alone.norm == "none"], alone[alone.norm == "fn"]


def fedavg_on_one_class(of: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return what FedAvg did with one class a client, without normalization and with FN."""
    own = of[(of.method == "fedavg") & (of.partition == "classes:1")]
    return own[own.norm == "none"], own[own.norm == "fn"]


def features_spread(of: pd.DataFrame, cells: pd.DataFrame) -> Claim:
    """With FN the features of FedAvg's model on one class a client are spread over more directions."""
    plain, normalized = map(shares, fedavg_on_one_class(cells))
    verdict, gaps = reduced_by_fn(of, "share")
    return Claim(verdict, f"share of the first singular value, none {plain}, fn {normalized}; {gaps}")


def less_forgotten(of: pd.DataFrame) -> Claim:
    """A few local steps on one class make FedAvg's model forget the others; with FN it forgets less."""
    plain, normalized = (100 * own.forgotten.mean() for own in fedavg_on_one_class(of))
    verdict, gaps = reduced_by_fn(of, "forgotten")
    return Claim(verdict, f"mean class accuracy lost: none {plain:.1f} points, fn {normalized:.1f} points; {gaps}")


def reduced_by_fn(of: pd.DataFrame, name: str) -> tuple[str, str]:
    """Return whether FN makes a number of FedAvg on one class smaller, paired by seed in each setting, and the text."""
    plain, normalized = (own.set_index(["column", "lr", "seed"])[name] for own in fedavg_on_one_class(of))
    gaps = [100 * gap for _, gap in (normalized - plain).dropna().groupby(level=["column", "lr"])]
    bounds = [interval(gap) for gap in gaps]
    below = [high < 0 for _, high in bounds]
    verdict = combined(
        is_below or (False if low > 0 else None) for is_below, (low, _) in zip(below, bounds, strict=True)
    )
    if len(gaps) == 1:
        half_width = (bounds[0][1] - bounds[0][0]) / 2
        text = f"{gaps[0].mean():+.2f} ± {half_width:.2f} points (paired by seed, n = {len(gaps[0])})"
    else:
        means = span([gap.mean() for gap in gaps])
        text = f"{means} points in {len(gaps)} settings, below 0 in {sum(below)} (95 % t-interval over seeds)"
    return verdict, f"fn less none: {text}."


def rank_doses(of: pd.DataFrame) -> Claim:
    """A higher rank of the features raises accuracy: doses of FedDecorr's penalty against none, paired by seed.

    It holds if accuracy is shown to rise with each dose that is shown to raise the rank, in part with some of them; it
    does not hold if none does and each is shown to lower it or to leave it within the margin.
    """
    ranks, gains = differences(of, "rank"), differences(of, "acc")
    bounds = {"greater": -MARGIN, "less": MARGIN}
    near = gains.map(
        lambda gap: max(stats.ttest_1samp(gap, at, alternative=side).pvalue for side, at in bounds.items())
    )
    doses = pd.DataFrame({"rank": ranks.map(np.mean), "acc": 100 * gains.map(np.mean), "is_equal": holm(near) < 0.05})
    is_shown = {
        name: holm(gaps.map(lambda gap: stats.ttest_1samp(gap, 0).pvalue)) < 0.05
        for name, gaps in (("rank", ranks), ("acc", gains))
    }
    doses = doses.assign(changes=np.sign(doses["rank"]) * is_shown["rank"], way=np.sign(doses.acc) * is_shown["acc"])
    raised, lowered = doses[doses.changes > 0], doses[doses.changes < 0]
    more, none = raised.way > 0, (raised.way < 0) | raised.is_equal
    verdict = "does not hold" if len(raised) and none.all() else "inconclusive"
    if more.any():
        verdict = "holds" if more.all() else "in part"
    return Claim(
        verdict,
        f"{len(doses)} doses, each at a fixed normalization and learning rate, paired by seed. "
        f"{counted(raised, 'raise')} {counted(lowered, 'lower')} (t-tests at 5 %, Holm's correction over the doses.)",
    )


def counted(doses: pd.DataFrame, what: str) -> str:
    """``3 raise the rank, by 0.2 to 1.1: accuracy changes by ...``."""
    return (
        f"{len(doses)} {what} the rank, by {span(doses['rank'].abs())}: accuracy changes by {span(doses.acc)} points; "
        f"shown to be more in {(doses.way > 0).sum()}, less in {(doses.way < 0).sum()}, equivalent within 1 point in "
        f"{doses.is_equal.sum()}."
    )


def differences(of: pd.DataFrame, name: str) -> pd.Series:
    """Return the differences by seed of a number with each dose and without the penalty, for each place and dose."""
    by_dose = of.pivot(index=["column", "norm", "lr", "seed"], columns="coefficient", values=name)
    gaps = by_dose.drop(columns=0.0).sub(by_dose[0.0], axis=0)
    found = {
        (*place, dose): own[dose].dropna() for place, own in gaps.groupby(["column", "norm", "lr"]) for dose in own
    }
    assert all(gap.nunique() > 1 for gap in found.values()), "the t-test is undefined for equal differences"
    return pd.Series(found)
