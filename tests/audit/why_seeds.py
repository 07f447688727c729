"""The claims on one class a client, doses of rank and sharpness along training: t-tests over seeds in each setting.

Each function returns a verdict and its evidence as the pages print them. The rules are those of
``docs/statistics.md`` and of Zhang et al. 2024, written down a second time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pandas as pd
from scipy import stats

from tests.audit.cells import LEVEL, MARGIN, holm, judge
from tests.audit.studies import short, span
from tests.audit.why import CELL, along_training

#: A verdict, and the numbers beside it.
Claim = tuple[str, str]

#: How settings are tested.
TESTS = "t-tests over seeds, Holm's correction"

#: Settings of the claim on sharpness: the columns of the page, and its order of norms.
COLUMNS = [("iid", 1), ("iid", 10), ("classes:1", 1), ("classes:1", 10)]
SETTING = ["partition", "E", "norm", "lr"]
NORMS = ["none", "ln", "gn", "fn", "scale"]


def combined(outcomes: Iterable[bool | str | None]) -> str:
    """Return the verdict over settings, each of which supports the claim, contradicts it or decides nothing."""
    found = set(outcomes)
    if found & {True, "in part"}:
        return "holds" if found == {True} else "in part"
    return "does not hold" if False in found else "inconclusive"


def shown(gaps: Sequence[pd.Series]) -> np.ndarray:
    """Return 1 or -1 where the mean over seeds is shown to be above or below 0, else 0: t-tests, Holm's correction."""
    p_values = pd.Series([stats.ttest_1samp(gap, 0).pvalue if len(gap) > 1 else 1.0 for gap in gaps])
    return np.sign([gap.mean() for gap in gaps]) * (holm(p_values).to_numpy() < LEVEL)


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


def on_one_class(of: pd.DataFrame, method: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return what a method did with one class a client, without normalization and with FN."""
    own = of[(of.method == method) & (of.partition == "classes:1") & (of.growth.notna() | (method == "fedavg"))]
    return own[own.norm == "none"], own[own.norm == "fn"]


def norms_grow(of: pd.DataFrame, cells: pd.DataFrame) -> Claim:
    (plain, bounded), (runs_of_plain, runs_of_fn) = (on_one_class(some, "local-only") for some in (cells, of))
    grown = shown([np.log(own) for own in by_setting(runs_of_plain, "growth")])
    kept = [bool(own.between(1 / 1.05, 1.05, inclusive="neither").all()) for own in by_setting(runs_of_fn, "growth")]
    return combined([*outcomes(grown), *kept]), (
        f"none: factor {span(plain.growth)}, shown to be above 1 in {counted_of(grown)} (its logarithm; {TESTS}); fn: "
        f"{span(bounded.growth)}; longest class embedding of none: factor {span(plain.head_growth.dropna())}."
    )


def features_collapse(of: pd.DataFrame, cells: pd.DataFrame) -> Claim:
    plain, normalized = on_one_class(cells, "local-only")
    settings = [by_setting(own, "share") for own in on_one_class(of, "local-only")]
    signs = shown([own - 0.99 for some in settings for own in some])
    collapsed, kept = signs[: len(settings[0])], signs[len(settings[0]) :]
    return combined([*outcomes(collapsed), *outcomes(-kept)]), (
        f"share of the first singular value, none: {shares(plain)}, shown to be above 99 % in {counted_of(collapsed)}, "
        f"effective rank {span(plain['rank'])}; fn: {shares(normalized)}, shown to be above 99 % in {counted_of(kept)} "
        f"({TESTS})."
    )


def features_spread(of: pd.DataFrame, cells: pd.DataFrame) -> Claim:
    plain, normalized = map(shares, on_one_class(cells, "fedavg"))
    verdict, gaps = reduced_by_fn(of, "share")
    return verdict, f"share of the first singular value, none {plain}, fn {normalized}; {gaps}"


def less_forgotten(of: pd.DataFrame) -> Claim:
    plain, normalized = (100 * own.forgotten.mean() for own in on_one_class(of, "fedavg"))
    verdict, gaps = reduced_by_fn(of, "forgotten")
    return verdict, f"mean class accuracy lost: none {plain:.1f} points, fn {normalized:.1f} points; {gaps}"


def gaps_by_fn(of: pd.DataFrame, name: str) -> list[pd.Series]:
    """Return what FN changes in a number of FedAvg on one class, paired by seed in each setting."""
    plain, normalized = (own.set_index(["column", "lr", "seed"])[name] for own in on_one_class(of, "fedavg"))
    return [gap for _, gap in (normalized - plain).dropna().groupby(level=["column", "lr"])]


def reduced_by_fn(of: pd.DataFrame, name: str) -> Claim:
    """Judge whether FN makes a number of FedAvg on one class smaller, paired by seed in each setting."""
    gaps = gaps_by_fn(of, name)
    signs = shown(gaps)
    text = (
        f"{span([100 * gap.mean() for gap in gaps])} points, shown to be below 0 in {(signs < 0).sum()} of {len(gaps)} "
        f"settings, above in {(signs > 0).sum()} ({TESTS})"
    )
    if len(gaps) == 1:
        (one,) = judge(gaps)
        text = f"{one.mean:+.2f} ± {one.half_width:.2f} points (paired by seed, n = {len(gaps[0])})"
    return combined(outcomes(-signs)), f"fn less none: {text}."


def doses_of(of: pd.DataFrame) -> pd.DataFrame:
    """Return each dose's differences in rank and in points of accuracy, whether tests show them, and their signs."""
    gaps = {name: differences(of, name) for name in ("rank", "acc")}
    doses = pd.DataFrame({name: some.map(np.mean) for name, some in gaps.items()})
    signs = {name: shown([*some]) for name, some in gaps.items()}
    is_equal = [one.p_within < LEVEL for one in judge([*gaps["acc"]])]
    return doses.assign(acc=100 * doses.acc, is_equal=is_equal, changes=signs["rank"], way=signs["acc"])


def differences(of: pd.DataFrame, name: str) -> pd.Series:
    """Return the differences by seed of a number with each dose and without the penalty, for each place and dose."""
    by_dose = of.pivot(index=["column", "norm", "lr", "seed"], columns="coefficient", values=name)
    gaps = by_dose.drop(columns=0.0).sub(by_dose[0.0], axis=0)
    found = {
        (*place, dose): own[dose].dropna() for place, own in gaps.groupby(["column", "norm", "lr"]) for dose in own
    }
    assert all(gap.nunique() > 1 for gap in found.values()), "the t-test is undefined for equal differences"
    return pd.Series(found)


def rank_doses(of: pd.DataFrame) -> Claim:
    """Judge doses of FedDecorr's penalty against none, paired by seed.

    The claim holds if accuracy is shown to rise with each dose that is shown to raise the rank, in part with some of
    them; it does not hold if none does and each is shown to lower it or to leave it within the margin.
    """
    doses = doses_of(of)
    raised, lowered = doses[doses.changes > 0], doses[doses.changes < 0]
    more, none = raised.way > 0, (raised.way < 0) | raised.is_equal
    verdict = "does not hold" if len(raised) and none.all() else "inconclusive"
    if more.any():
        verdict = "holds" if more.all() else "in part"
    counts = " ".join(
        f"{len(some)} {what} the rank, by {span(some['rank'].abs())}: accuracy changes by {span(some.acc)} points; "
        f"shown to be more in {(some.way > 0).sum()}, less in {(some.way < 0).sum()}, equivalent within "
        f"{100 * MARGIN:g} point in {some.is_equal.sum()}."
        for some, what in ((raised, "raise"), (lowered, "lower"))
    )
    return verdict, (
        f"{len(doses)} doses, each at a fixed normalization and learning rate, paired by seed. {counts} (t-tests at 5 "
        "%, Holm's correction over the doses.)"
    )


def sharpened() -> pd.DataFrame:
    """Return the cells in which every seed has twice the accuracy of guessing, and what tests over seeds show.

    A cell is ``at_one`` if its ratio is shown to end within a factor of two of 1.
    """
    of = along_training()
    works = of.fillna({"acc": 0}).groupby(SETTING).acc.min() >= 0.2
    cells = of.set_index(SETTING).loc[works[works].index].groupby(level=SETTING)
    found = cells[["start", "halfway", "last", "end"]].mean().assign(n=cells.size())
    below, above = (
        cells.end.apply(lambda end, sign=sign: stats.ttest_1samp(sign * end, np.log(2), alternative="less").pvalue)
        for sign in (1, -1)
    )
    found["at_one"] = holm(np.maximum(below, above)) < LEVEL
    moved = shown([own.end.abs() - own.start.abs() for _, own in cells])
    reach = cells.end.apply(lambda end: np.ptp(stats.ttest_1samp(end, 0).confidence_interval(0.95)) / 2)
    is_outside = found.end.abs() - reach > np.log(2)
    return found.assign(nearer=moved < 0, farther=moved > 0, outside=is_outside)


def counted(flags: pd.Series) -> str:
    return f"{flags.sum()} of {len(flags)}"


def sharpening() -> Claim:
    """Judge whether the ratio moves to 1: in part where it comes nearer without being shown to be there."""
    cells = sharpened()

    def by_column(text: Callable[[pd.DataFrame], str]) -> str:
        return "; ".join(f"{partition}, E {steps}: {text(cells.loc[partition, steps])}" for partition, steps in COLUMNS)

    def medians(some: pd.DataFrame) -> str:
        return " and ".join(short(np.exp(some[name].median())) for name in ("start", "end"))

    of_norms = "; ".join(f"{norm}: {counted(cells.at_one.xs(norm, level='norm'))}" for norm in NORMS)
    verdicts = np.select(
        [cells.at_one, cells.nearer, cells.outside | cells.farther], ["holds", "in part", "does not hold"], "open"
    )
    outcome = {"holds": True, "in part": "in part", "does not hold": False, "open": None}
    (n,) = cells.n.unique()
    return combined(outcome[one] for one in verdicts), (
        f"It ends within a factor of 2 of 1 in {counted(cells.at_one)} cells "
        f"({by_column(lambda some: counted(some.at_one))}). By norm: {of_norms}. "
        f"Nearer to 1 than before training: {by_column(lambda some: counted(some.nearer))}. "
        f"Farther: {by_column(lambda some: counted(some.farther))}. "
        f"Before training and at the end, medians of cells: {by_column(medians)}. "
        "(Cells with twice the accuracy of guessing in every seed. Logarithms; the end is the mean of the last 5 "
        f"evaluations; n = {n} runs a cell, paired by seed; t-tests at 5 %, Holm's correction over the cells.)"
    )
