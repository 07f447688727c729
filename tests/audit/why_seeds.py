"""The claims on one class a client and on doses of rank, judged by t-tests over seeds, with pandas and scipy alone.

Each function returns a claim as the pages print it. The rules are those of ``docs/statistics.md`` and of Zhang et al.
2024, written down a second time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd
from scipy import stats

from tests.audit.planned import holm
from tests.audit.studies import span
from tests.audit.why import CELL
from tests.audit.why_claims import Claim

#: How settings are tested.
TESTS = "t-tests over seeds, Holm's correction"

#: Accuracies that differ by less than this are equivalent.
MARGIN = 0.01


def combined(outcomes: Iterable[bool | None]) -> str:
    """Return the verdict over settings, each of which supports the claim, contradicts it or decides nothing."""
    found = set(outcomes)
    if True in found:
        return "holds" if found == {True} else "in part"
    return "does not hold" if False in found else "inconclusive"


def shown(gaps: Sequence[pd.Series]) -> np.ndarray:
    """Return 1 or -1 where the mean over seeds is shown to be above or below 0, else 0: t-tests, Holm's correction."""
    p_values = pd.Series([stats.ttest_1samp(gap, 0).pvalue if len(gap) > 1 else 1.0 for gap in gaps])
    return np.sign([gap.mean() for gap in gaps]) * (holm(p_values).to_numpy() < 0.05)


def outcomes(signs: np.ndarray) -> list[bool | None]:
    """Return what signs say of a claim that a number is positive."""
    return [bool(sign > 0) if sign else None for sign in signs]


def counted_of(signs: np.ndarray) -> str:
    """``13 of 14 settings, below in 0``."""
    return f"{(signs > 0).sum()} of {len(signs)} settings, below in {(signs < 0).sum()}"


def by_setting(of: pd.DataFrame, name: str) -> list[pd.Series]:
    """Return a number of the runs of each setting."""
    return [own.dropna() for _, own in of.set_index(CELL)[name].groupby(level=CELL)]


def shares(cells: pd.DataFrame) -> str:
    """``80.5 to 99.9 % (before training 79 %)``."""
    known = 100 * cells[["share", "share_0"]].dropna()
    return f"{span(known.share)} % (before training {span(known.share_0)} %)"


def norms_grow(of: pd.DataFrame, cells: pd.DataFrame) -> Claim:
    """Local training on one class makes norms grow without normalization; FN bounds them."""
    plain, bounded = alone_on_one_class(cells)
    runs_of_plain, runs_of_fn = alone_on_one_class(of)
    grown = shown([np.log(own) for own in by_setting(runs_of_plain, "growth")])
    kept = [own.between(1 / 1.05, 1.05, inclusive="neither").all() for own in by_setting(runs_of_fn, "growth")]
    return Claim(
        combined([*outcomes(grown), *kept]),
        f"none: factor {span(plain.growth)}, shown to be above 1 in {counted_of(grown)} (its logarithm; {TESTS}); fn: "
        f"{span(bounded.growth)}; longest class embedding of none: factor {span(plain.head_growth.dropna())}.",
    )


def features_collapse(of: pd.DataFrame, cells: pd.DataFrame) -> Claim:
    """Local training on one class makes features collapse onto one direction without normalization, not with FN."""
    plain, normalized = alone_on_one_class(cells)
    settings = [by_setting(own, "share") for own in alone_on_one_class(of)]
    signs = shown([own - 0.99 for some in settings for own in some])
    collapsed, kept = signs[: len(settings[0])], signs[len(settings[0]) :]
    return Claim(
        combined([*outcomes(collapsed), *outcomes(-kept)]),
        f"share of the first singular value, none: {shares(plain)}, shown to be above 99 % in {counted_of(collapsed)}, "
        f"effective rank {span(plain['rank'])}; fn: {shares(normalized)}, shown to be above 99 % in {counted_of(kept)} "
        f"({TESTS}).",
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
    signs = shown(gaps)
    verdict = combined(outcomes(-signs))
    if len(gaps) == 1:
        low, high = stats.ttest_1samp(gaps[0], 0).confidence_interval(0.95)
        text = f"{gaps[0].mean():+.2f} ± {(high - low) / 2:.2f} points (paired by seed, n = {len(gaps[0])})"
    else:
        means = span([gap.mean() for gap in gaps])
        text = (
            f"{means} points, shown to be below 0 in {(signs < 0).sum()} of {len(gaps)} settings, above in "
            f"{(signs > 0).sum()} ({TESTS})"
        )
    return verdict, f"fn less none: {text}."


def doses_of(of: pd.DataFrame) -> pd.DataFrame:
    """Return each dose's differences in rank and in points of accuracy, whether tests show them, and their signs."""
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
    return doses.assign(changes=np.sign(doses["rank"]) * is_shown["rank"], way=np.sign(doses.acc) * is_shown["acc"])


def rank_doses(of: pd.DataFrame) -> Claim:
    """A higher rank of the features raises accuracy: doses of FedDecorr's penalty against none, paired by seed.

    It holds if accuracy is shown to rise with each dose that is shown to raise the rank, in part with some of them; it
    does not hold if none does and each is shown to lower it or to leave it within the margin.
    """
    doses = doses_of(of)
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
