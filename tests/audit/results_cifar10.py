"""Sentences of docs/answers on CIFAR-10, recomputed; each function yields some of one section."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pandas as pd
from scipy import stats

from tests.audit import published
from tests.audit.cells import LEVEL, WITHIN, At, Judged, comparisons, holm, judge, plans, value
from tests.audit.pages import WORDS, listed, span
from tests.audit.runs import TAIL, chosen, federated, recorded

ONE_STEP, TEN_STEPS, TUNED, FULL_LENGTH = (
    At(f"cifar10_{name}", ("classes:1",)) for name in ("one_step", "ten_steps", "tuned", "full_length")
)

#: The cells of FedAvg at the paper's learning rate with one class a client.
CELLS = "method == 'fedavg' and partition == 'classes:1' and lr == 0.01"


def the_number_outside_its_interval() -> Iterator[str]:
    tested = published.tested().assign(holm=lambda of: holm(of.p))
    (one,) = (row for _, row in tested[tested.p < LEVEL].iterrows())
    assert one.norm == "ln" and len(tested) == 4 and set(tested.verdict) == {"holds", "does not hold"}
    pool = published.repeated(one)
    ours, paper, of_ln = pool[pool.our_code], pool[~pool.our_code], pool[pool.norm == "ln"]
    assert set(pool["count"]) == {3} and len(of_ln) == 2
    (sd, df), (other, other_df) = published.spread(ours), published.spread(paper)
    ratio = (sd / other) ** 2
    p = 2 * min(stats.f.sf(ratio, df, other_df), stats.f.cdf(ratio, df, other_df))
    alone, (low, high) = published.predict(one, of_ln)
    yield (
        f"That of layer normalization, {one.value - 100 * one.ours:.2f} points above our mean, lies just outside the "
        f"interval that the pooled spread of repeated runs predicts (p {one.p:.3f}, {one.holm:.3f} after Holm's "
        "correction). This depends on the pool, which has the paper's repeated runs (table 14 of the paper: "
        f"{WORDS[len(paper)]} cells of three seeds with the same network and partition, E = 10) and our "
        f"{WORDS[len(ours)]} cells of three seeds at E = 1, whose spreads are not shown to differ (ratio of the "
        f"variances {ratio:.1f}, p {p:.2f};"
    )
    yield f"the interval is {100 * low:.1f} to {100 * high:.1f} and contains the number (p {alone:.2f})."


def other_partitions() -> Iterator[str]:
    numbers = published.published().query("E == 1 and partition != 'classes:1'").dropna(subset="ours")
    of = numbers.set_index(["partition", "method", "norm"])
    rows = [("fedavg", "none"), ("fedavg", "fn"), ("fedavg", "ln"), ("fedyogi", "none")]
    places = [(partition, *row) for partition in ("classes:2", "dirichlet:0.1") for row in rows]
    assert set(of.index) == {*places} and set(of.verdict) == {"no spread"}
    ours, paper = ([f"{column[at]:.2f}" for at in places] for column in (100 * of.ours, of.value))
    yield (
        f"With two classes FedAvg is after 10,000 rounds at {ours[0]} without, {ours[1]} with feature and {ours[2]} "
        f"with layer normalization, and FedYogi at {ours[3]} (published: {listed(paper[:4])}); with Dirichlet(0.1) "
        f"these four are at {listed(ours[4:])} ({listed(paper[4:])})."
    )
    one_class = published.tested().query("E == 1 and partition == 'classes:1'")
    assert (100 * one_class.ours - one_class.value).abs().max() < 1.5
    difference = (100 * of.ours - of.value).abs().sort_values()
    larger = difference[difference > 1.5]
    yield (
        f"{WORDS[len(larger)].capitalize()} of the {WORDS[len(of)]} differ by more than 1.5 points, by "
        f"{listed(larger, 1)}; with one class no number does."
    )
    like = published.repeated(one_class.iloc[0])
    p = {at: published.predict(one, like)[0] for at, one in of.iterrows()}
    assert [at for at in p if p[at] < LEVEL] == [places[4], places[1]]
    yield (
        f"two would lie outside: feature normalization with two classes (p {p[places[1]]:.3f}) and none with "
        f"Dirichlet(0.1) (p {p[places[4]]:.3f})."
    )


def ten_steps_at_full_length() -> Iterator[str]:
    (gain,), none, fn = comparisons("cifar10_full_length"), *(value(FULL_LENGTH, norm) for norm in ("none", "fn"))
    assert gain.column == ("classes:1",) and gain.verdict == "more" and gain.p < 0.001
    of_tables = published.published(("cifar10_full_length",)).dropna(subset="p")
    numbers = published.tested(("cifar10_full_length",))
    assert set(of_tables.verdict) == {"holds"} and set(of_tables.E) == {10}
    last = 100 * numbers.groupby("norm").ours.first()
    of_paper = {table: published.gain_of_fn(table)["classes:1"] for table in (10, 14)}
    assert [set(of_tables[of_tables.table == table].seeds) for table in of_paper] == [{1}, {3}]
    yield (
        f"FedAvg with one class a client is at {none['mean']:.2f} ± {none.half_width:.2f} % without a normalization "
        f"and at {fn['mean']:.2f} ± {fn.half_width:.2f} % with feature normalization (three seeds), a gain of "
        f"{gain.text} points (p < 0.001, planned; its report). The paper gains {of_paper[10]:.1f} (table 10) and, over "
        f"three seeds, {of_paper[14]:.1f} (table 14). After the last round we have {last['none']:.2f} and "
        f"{last['fn']:.2f}, and all {WORDS[len(numbers)]} published numbers of these cells lie in their intervals "
        f"(smallest p {numbers.p.min():.2f})."
    )
    ends, runs = FULL_LENGTH.by_seed()["none"], recorded("cifar10_full_length").query("norm == 'fn'")
    (first,) = {next(one["round"] for one in run.records if one["acc"] >= ends[run.seed]) for run in runs.itertuples()}
    (every,) = {after["round"] - one["round"] for records in runs.records for one, after in pairwise(records)}
    yield (
        f"After {first} rounds feature normalization is where FedAvg without one is after 10,000 (the first such "
        f"evaluation of all {WORDS[len(runs)]} seeds; there is one every {every} rounds)."
    )


def ten_steps_are_where_one_is() -> Iterator[str]:
    ten, one = (at.by_seed() for at in (FULL_LENGTH, ONE_STEP))
    assert len(ten) == len(one) == 3
    (more,) = judge([(ten["fn"] - ten["none"]) - (one["fn"] - one["none"])])
    assert more.verdict == WITHIN
    farther = _lengths("cifar10_full_length") / _lengths("cifar10_one_step")
    yield (
        f"With one step they are at {100 * one['none'].mean():.2f} and {100 * one['fn'].mean():.2f} %. The gain with "
        f"ten steps less that with one, paired by seed, is {more.text} points; that they are equal within one point "
        f"has p {more.p_within:.3f}, in a comparison that we chose after the runs."
    )
    yield (
        f"in the last round {farther['none', 10_000]:.1f} times as far without a normalization and "
        f"{farther['fn', 10_000]:.1f} times with feature normalization (after 1,000 rounds "
        f"{farther['none', 1_000]:.1f} and {farther['fn', 1_000]:.1f} times; means of three seeds)."
    )


def _lengths(sweep: str) -> pd.Series[float]:
    """Return how far clients end from where a round began, by norm and round, the mean over three seeds."""
    of_norm = pd.DataFrame(
        (run.norm, record["round"], record["probes"]["drift"]["update_norm"])
        for run in recorded(sweep).query(CELLS).itertuples()
        for record in run.records
        if "drift" in record.get("probes", {})
    ).groupby([0, 1])[2]
    assert set(of_norm.size()) == {3}
    return of_norm.mean()


def gains_without_drift() -> Iterator[str]:
    one, two, dirichlet = (
        {(one.value, one.against): one for one in comparisons("cifar10_one_step") if one.column == (partition,)}
        for partition in ("classes:1", "classes:2", "dirichlet:0.1")
    )
    fn, ln, scale, more, also = (
        one[pair] for pair in [("fn", "none"), ("ln", "none"), ("scale", "none"), ("fn", "scale"), ("ln", "scale")]
    )
    assert {of.verdict for of in one.values()} == {"more"} and f"{more.p:.3f}" == f"{also.p:.3f}"
    of_seed = 100 * ONE_STEP.by_seed()
    yield (
        f"Feature normalization gains {fn.text} points (three seeds, {listed(of_seed['fn'] - of_seed['none'], 1)}) "
        f"and layer normalization {ln.text} (planned). With two classes and with Dirichlet(0.1) feature normalization "
        f"gains {two['fn', 'none'].mean:.1f} and {dirichlet['fn', 'none'].mean:.1f} (one seed)."
    )
    yield f"{scale.text} points with `scale`"
    yield (
        f"Feature normalization gains {more.text} points more, layer normalization {also.text} (p {more.p:.3f} both)."
    )
    fast = 100 * federated("cifar10_one_step").query("method == 'fedavg' and lr == 0.1").set_index("norm").value
    assert set(fast.index[fast.isna()]) == {"scale"}
    yield (
        f"nearly disappears: {fast['none']:.2f} without a norm, {fast['fn']:.2f} with fn (lr 0.1, E = 1, one seed "
        "each); the constant diverges."
    )
    of_paper = published.gain_of_fn(3)[["classes:2", "dirichlet:0.1"]]
    yield f"the paper gains only {listed(of_paper, 1)} points at E = 10"


def fewer_and_more_evaluations() -> Iterator[str]:
    runs, pairs = recorded("cifar10_one_step").query(CELLS), [*plans("cifar10_one_step")]
    assert len(pairs) == 5

    def judged(first: int, last: int | None = None) -> dict[str, Judged]:
        """Return what fn and ln show against the constant by the mean of these evaluations, counted from the end."""
        means = [np.mean([one["acc"] for one in records[first:last]]) for records in runs.records]
        of = runs.assign(mean=means).pivot(index="seed", columns="norm", values="mean")
        found = judge([of[plan.value] - of[plan.against] for plan in pairs])
        return {plan.value: one for plan, one in zip(pairs, found, strict=True) if plan.against == "scale"}

    by_number = {number: judged(-number) for number in range(1, 21)}
    is_open = {norm: [n for n, of in by_number.items() if of[norm].verdict == "open"] for norm in ("fn", "ln")}
    assert is_open == {"fn": [1, 2, 3, 4], "ln": [1, 2, 3]}
    yield (
        f"By the last evaluation the two are {by_number[1]['fn'].text} and {by_number[1]['ln'].text}, both open. With "
        "means of one to four evaluations feature normalization is open, with one to three layer normalization; with "
        "six to twenty both are shown."
    )
    before = judged(-10, -5)["ln"].mean
    yield f"The lead of layer normalization still shrinks ({before:.1f} points 1,000 rounds earlier)"


def the_last_rounds() -> Iterator[str]:
    """Means of the last five evaluations less those of the five before: rounds 9,200 to 10,000, and 8,200 to 9,000."""
    runs = recorded("cifar10_one_step").query("method == 'fedavg' and lr == 0.01").set_index("norm")
    accuracies = [pd.Series({one["round"]: 100 * one["acc"] for one in records}) for records in runs.records]
    last, before = ([of[of.index.isin(range(first, first + 801))] for of in accuracies] for first in (9200, 8200))
    assert {len(of) for of in (*last, *before)} == {TAIL}
    rise = pd.Series([of.mean() for of in last], runs.index) - [of.mean() for of in before]
    yield (
        f"in the last 1,000 rounds accuracy rises by {span(rise['none'])} points without a normalization and by "
        f"{span(rise[['fn', 'ln']])} with feature or layer normalization"
    )


def networks_of_the_published_code() -> Iterator[str]:
    shown = [value(TEN_STEPS, norm) for norm in ("none", "fn", "ln-static")]
    gains = comparisons("cifar10_ten_steps")
    assert [one.verdict for one in gains] == ["more", "more", "open"]
    levels = listed([f"{one['mean']:.1f} ± {one.half_width:.1f}" for one in shown])
    yield (
        f"none, fn and `ln-static` are at {levels} %: fn and `ln-static` gain {gains[0].text} and {gains[1].text} "
        f"points over none, and the second {gains[2].text} over the first (open)"
    )


def fedrs_on_digits() -> Iterator[str]:
    """With one class and E = 10, at the rate that is best on the test data, as everywhere in this sweep."""
    runs = federated("digits").query("method.str.startswith('fedrs') and partition == 'classes:1' and E == 10")
    best = 100 * runs.groupby(["norm", "lr"]).value.mean().groupby("norm").max()
    yield (
        f"At its best learning rate it is at {best['none']:.0f} % without a normalization, {best['fn']:.0f} % with fn "
        f"and {best['ln']:.0f} % with ln (E = 10)"
    )


def dropped_rates() -> Iterator[str]:
    runs = recorded("cifar10_tuned")
    at_20 = [next((100 * one["val_acc"] for one in records if one["round"] == 20), np.nan) for records in runs.records]
    of_row = runs.assign(at_20=at_20).pivot_table("at_20", "lr", "norm")
    kept, best = of_row.rank(ascending=False) <= 2, chosen("cifar10_tuned").groupby("norm").lr.first()
    assert len(of_row) == 8 and all(kept.loc[best[norm], norm] for norm in of_row)
    assert 13.5 < of_row["none"].max() < 14
    yield "At round 20, when six of the eight were dropped, no rate without a normalization was above 14 % there"


def tuned_rates() -> Iterator[str]:
    rows, rate = {norm: value(TUNED, norm) for norm in ("none", "scale", "fn", "ln")}, TUNED.runs.groupby("norm").lr
    levels = [
        f"{one['mean']:.1f} ± {one.half_width:.1f} % (last {one['last']:.1f}; rate {rate.first()[norm]:.2g})"
        for norm, one in rows.items()
    ]
    yield (
        f"FedAvg is at {levels[0]} without a normalization, {levels[1]} with the constant, {levels[2]} with feature "
        f"and {levels[3]} with layer normalization."
    )
    of = {(one.value, one.against): one for one in comparisons("cifar10_tuned")}
    ln, scale, fn = (of[norm, "none"] for norm in ("ln", "scale", "fn"))
    assert [one.verdict for one in (ln, scale, fn)] == ["more", "open", "open"]
    texts = [f"{one.text} points (p {one.p:.2g}" for one in (ln, scale, fn)]
    yield (
        f"Layer normalization gains {texts[0]}, shown); the constant gains {texts[1]}) and feature normalization "
        f"{texts[2]}), which the correction leaves open."
    )
    assert {of["fn", "scale"].verdict, of["ln", "scale"].verdict} == {"open"}
    yield (
        f"Over the constant feature normalization gains {of['fn', 'scale'].text} and layer normalization "
        f"{of['ln', 'scale'].text} points (both open)."
    )
    rise = pd.Series({norm: one["last"] - one["mean"] for norm, one in rows.items()})
    yield (
        f"the last evaluation is above these means by {rise['none']:.1f} points without a normalization and by "
        f"{span(rise.drop('none'))} with the others"
    )


SECTIONS = {
    "At the paper's full length": [
        the_number_outside_its_interval,
        other_partitions,
        ten_steps_at_full_length,
        ten_steps_are_where_one_is,
        gains_without_drift,
        fewer_and_more_evaluations,
        the_last_rounds,
    ],
    "At a hundredth of the paper's length": [networks_of_the_published_code, fedrs_on_digits],
    "CIFAR-10 at tuned learning rates": [dropped_rates, tuned_rates],
}
