"""What docs/results/README.md says of planned comparisons, recomputed."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from tests.audit import pages, published
from tests.audit.planned import (
    CONSTANTS,
    LEVEL,
    PLANNED,
    WITHIN,
    Comparison,
    Judged,
    added_by_skew,
    comparisons,
    gains,
    holm,
    judge,
)
from tests.audit.readme import PHASES, WORDS
from tests.audit.runs import ROW, SEARCHED, TAIL, chosen, exported, federated, label, longest, recorded
from tests.audit.tables import At, level, values

NORMS = {"scale": "constant", "fn": "feature norm", "ln": "layer norm"}
STEPS = (1, 2, 5, 10, 20, 50)

#: The convolutional network on Fashion-MNIST.
LENET = "fashion_mnist_lenet"

#: CIFAR-10 with a learning rate of its own for each row.
TUNED = "cifar10_tuned"

#: CIFAR-10 with ten local steps a round and all rounds of the paper.
FULL_LENGTH = "cifar10_full_length"

#: The section on the phase diagram.
PHASE = "Skew and local steps"


def text(section: str) -> str:
    return pages.plain(pages.section(pages.details("README"), section))


def entry(one: Comparison) -> str:
    """Return the mean and half-width, bold where a difference is shown, with ≈ where equivalence is."""
    said = f"{one.mean:+.1f} ± {one.half_width:.1f}"
    return (f"**{said}**" if one.verdict.startswith(("more", "less")) else said) + " ≈" * (WITHIN in one.verdict)


@pytest.mark.slow
def test_the_table_of_what_skew_adds() -> None:
    added = [added_by_skew(data) for data in PHASES]
    heads = ["local steps a round", *(f"{name}, {norm}" for name in PHASES.values() for norm in NORMS.values())]
    rows = [[str(steps), *(entry(of[norm, steps]) for of in added for norm in NORMS)] for steps in STEPS]
    assert pages.tables(pages.section(pages.details("README"), PHASE)) == [[heads, *rows]]


@pytest.mark.slow
def test_where_skew_adds_to_the_gain() -> None:
    added = {(data, *at): one for data in PHASES for at, one in added_by_skew(data).items()}
    shown = {at for at, one in added.items() if one.verdict.startswith(("more", "less"))}
    assert {at for at in added if at[2] >= 10} - shown == {("phase_digits", "fn", 50)}
    assert not {at for at in shown if at[2] <= 2}
    for norm in NORMS:
        means = [added["phase_fashion_mnist", norm, steps].mean for steps in STEPS]
        assert sorted(means)[2:] == means[2:], "more with more steps"
    at_one = {data: [one for one in gains(data, "none") if one.column[1] == 1] for data in PHASES}
    assert not [one for one in at_one["phase_digits"] if one.verdict.startswith(("more", "less"))]
    fashion = [one for one in at_one["phase_fashion_mnist"] if one.value in ("fn", "ln")]
    assert (sum(one.verdict.startswith("more") for one in fashion), len(fashion)) == (9, 10)
    low, high = min(one.mean for one in fashion), max(one.mean for one in fashion)
    assert (
        f"gain {low:.1f} to {high:.1f} points, whatever the number of classes (shown in nine of ten comparisons)"
    ) in text(PHASE)


@pytest.mark.slow
def test_where_a_normalization_gains_on_digits() -> None:
    """Layer normalization needs skew and local steps; elsewhere nothing is shown, and most is equivalent."""
    shown = {one.column for one in gains("phase_digits", "none") if one.value == "ln" and one.verdict == "more"}
    assert shown == {
        *(("classes:1", steps) for steps in (5, 10, 20, 50)),
        *(("classes:2", steps) for steps in (10, 20, 50)),
        ("classes:3", 50),
    }
    elsewhere = [
        one
        for one in gains("phase_digits", "none")
        if one.column[1] in (1, 2) or one.column[0] in ("classes:5", "classes:10")
    ]
    equivalent = sum(one.verdict == WITHIN for one in elsewhere)
    assert equivalent + sum(one.verdict == "open" for one in elsewhere) == len(elsewhere)
    means = [one.mean for one in elsewhere]
    assert (
        f"these {len(elsewhere)} comparisons lie between {min(means):.1f} and {max(means):+.1f} points, and "
        f"{equivalent} of them are shown to be equivalent to none within one point"
    ) in text(PHASE)


@pytest.mark.slow
def test_what_the_comparisons_with_the_constant_show() -> None:
    against = gains("phase_digits", "scale")
    more, less = (
        {(one.value, one.column) for one in against if one.verdict.startswith(word)} for word in ("more", "less")
    )
    assert more == {("ln", ("classes:2", 50)), ("ln", ("classes:3", 50))}
    assert less == {("fn", ("classes:3", 1))}
    assert f"of {len(against)} comparisons of feature and layer normalization with it, two show more" in text(PHASE)
    of_two = [one for steps in (10, 20) for one in gains("phase_digits", "none", column=("classes:2", steps))]
    assert {(one.value, one.verdict.partition(" ")[0]) for one in of_two} == {
        ("scale", "open"),
        ("fn", "more"),
        ("ln", "more"),
    }
    against = gains("phase_fashion_mnist", "scale")
    more = [one for one in against if one.verdict.startswith("more")]
    assert not [one for one in against if one.verdict.startswith("less")]
    assert f"{len(more)} of {len(against)} comparisons with it show more, and none less" in text(PHASE)


@pytest.mark.slow
def test_where_a_normalization_gains_on_fashion_mnist() -> None:
    against = [one for one in gains("phase_fashion_mnist", "none") if one.value in ("fn", "ln")]
    shown = [one for one in against if one.verdict.startswith("more")]
    assert f"{len(shown)} of {len(against)} gains of feature and layer normalization over none are shown" in text(PHASE)
    assert not [one for one in against if one not in shown and one.column[0] == "classes:10"], "all those without skew"
    of = {one.column: one.mean for one in against if one.value == "ln"}
    one, two, three, five, ten = ([of[f"classes:{k}", steps] for steps in STEPS] for k in (1, 2, 3, 5, 10))
    assert (
        f"goes from {one[0]:.1f} to {one[-1]:.1f} points with one class, {two[0]:.1f} to {two[-1]:.1f} with two, "
        f"{three[0]:.1f} to {three[-1]:.1f} with three and {five[0]:.1f} to {five[-1]:.1f} with five; with ten it is "
        f"{min(ten):.1f} to {max(ten):.1f}."
    ) in text(PHASE)


@pytest.mark.slow
def test_what_lenet_shows_with_iid_data() -> None:
    said, at = text("Fashion-MNIST: scale or geometry"), (LENET, ("iid",))
    changes = gains(LENET, "none", column=("iid",))
    assert [one.value for one in changes] == ["scale", "fn", "ln", "gn"]
    assert [one.verdict for one in changes] == ["open", WITHIN, WITHIN, WITHIN]
    constant, *others = changes
    means = [one.mean for one in others]
    none = level(at, ("fedavg", "none", "linear"))
    assert f"FedAvg is at {none} without a normalization; feature, layer and group normalization" in said
    assert f"change this by {min(means):.1f} to {max(means):.1f} points, each shown" in said
    of_fewer = comparisons(LENET, without=("dirichlet:0.1",))
    (before,) = (one for one in of_fewer if (one.title, one.column) == (constant.title, ("iid",)))
    assert before.verdict == WITHIN and len(comparisons(LENET)) - len(of_fewer) == 7
    assert (
        f"The constant changes it by {constant.text} points, which was shown to be less than one point before "
        "Dirichlet(0.1) added seven comparisons to the correction, and is open now."
    ) in said


@pytest.mark.slow
@pytest.mark.parametrize("partition", ["classes:1", "classes:2", "dirichlet:0.1"])
def test_where_lenet_is_and_what_it_gains_over_the_constant(partition: str) -> None:
    said, at = text("Fashion-MNIST: scale or geometry"), (LENET, (partition,))
    levels = [level(at, ("fedavg", norm, "linear")) for norm in ("none", "scale", "fn", "ln", "gn")]
    assert (
        "FedAvg is at {} without a normalization, {} with the constant, {} with feature, {} with layer and {} with "
        "group normalization."
    ).format(*levels) in said
    over_constant = [one.text for one in gains(LENET, "scale", column=(partition,))]
    assert "gain {}, {} and {} points".format(*over_constant) in said


@pytest.mark.slow
def test_no_gain_of_lenet_with_label_skew_is_shown() -> None:
    said, planned = text("Fashion-MNIST: scale or geometry"), comparisons(LENET)
    assert {one.column for one in planned} == {("classes:1",), ("classes:2",), ("dirichlet:0.1",), ("iid",), ()}
    assert {one.verdict for one in planned if one.column != ("iid",)} == {"open"}
    one_class, *others = (gains(LENET, "none", column=(of,)) for of in ("classes:1", "classes:2", "dirichlet:0.1"))
    assert all(one.mean > one.half_width for one in one_class)
    assert (
        "These gains are {}, {}, {} and {} points, and each interval excludes zero, but none is shown after the "
        f"correction for {len(planned)} comparisons."
    ).format(*(one.text for one in one_class)) in said
    best = chosen(LENET).query("partition == 'classes:1'").pivot(index="seed", columns="norm", values="value")
    alone = judge([(best[norm] - best["none"]).to_numpy() for norm in ("scale", "fn", "ln", "gn")])
    assert {one.verdict for one in alone} == {"more"}
    assert (
        "Corrected for these four alone, all are shown (p {:.3f}, {:.3f}, {:.3f} and {:.3f}); that family was chosen "
        "after the runs."
    ).format(*(one.p for one in alone)) in said
    for of_partition in others:
        assert "These gains are {}, {}, {} and {} points (all open)".format(*(one.text for one in of_partition)) in said
    of_mlp = gains("skew_fashion_mnist", "scale", column=("classes:1",))
    assert "in the MLP (200 rounds) they were {}, {} and {}.".format(*(one.text for one in of_mlp)) in said


@pytest.mark.slow
def test_batch_normalization_in_lenet() -> None:
    columns = ("iid", "dirichlet:0.1", "classes:2", "classes:1")
    means = pd.DataFrame({of: values((LENET, (of,)))["mean"] for of in columns}).droplevel(["method", "head"])
    few_classes = means[["classes:1", "classes:2"]]
    iid, dirichlet, two, one = (level((LENET, (of,)), ("fedavg", "bn", "linear")) for of in columns)
    assert ((few_classes.drop("bn").min() - few_classes.loc["bn"]) > 30).all()
    seeds = chosen(LENET).query("norm == 'bn' and partition == 'classes:1'")
    assert seeds.seed.nunique() == len(seeds) == 5
    assert (
        "With one and two classes batch normalization is more than 30 points below every other row. "
        f"With it FedAvg is at {iid} with iid data, {dirichlet} with Dirichlet(0.1), {two} with two classes and {one} "
        "with one (its five seeds at "
        f"{100 * seeds.value.min():.1f} to {100 * seeds.value.max():.1f} %, and guessing has 10)."
    ) in text("Fashion-MNIST: scale or geometry")


@pytest.mark.slow
def test_how_seeds_of_lenet_differ_with_dirichlet() -> None:
    best = chosen(LENET).query("partition == 'dirichlet:0.1'")
    runs = recorded(LENET).merge(best[["norm", "lr", "partition", "seed", "value"]])
    whole = [np.mean([one["acc_global"] for one in records[-TAIL[LENET] :]]) for records in runs.records]
    of_seed = runs.assign(whole=whole).pivot(index="seed", columns="norm", values=["value", "whole"])
    by_client, whole = 100 * of_seed["value"], 100 * of_seed["whole"]
    smallest = []
    for _, of in runs.groupby("seed"):
        clients = np.array([one["clients"] for records in of.records for one in records])
        sizes = [images(accuracies) for accuracies in clients.T]
        assert sum(sizes) == 10_000
        smallest.append(min(sizes))
    gain = judge([(whole[norm] - whole["none"]).to_numpy() / 100 for norm in ("scale", "fn", "ln", "gn")])
    assert (
        "the smallest has {}, {} and {} test images in the three seeds. On the whole test set seeds are at "
        "{:.1f} to {:.1f} % without a normalization, not at {:.1f} to {:.1f} %, and the gains over it are "
        "{}, {}, {} and {} points (not planned)."
    ).format(
        *smallest,
        *whole["none"].agg(["min", "max"]),
        *by_client["none"].agg(["min", "max"]),
        *(f"{one.mean:.1f} ± {one.half_width:.1f}" for one in gain),
    ) in text("Fashion-MNIST: scale or geometry")


def images(accuracies: np.ndarray) -> int:
    """Return the smallest number of test images with which all of these accuracies are whole numbers of hits."""
    return next(n for n in range(1, 10_001) if np.allclose(n * accuracies, np.round(n * accuracies), rtol=0, atol=1e-6))


@pytest.mark.slow
def test_the_learning_rate_of_lenet_that_was_best_early_failed_later() -> None:
    """Without a normalization and with iid data; a seed that ends at the accuracy of guessing is lost, too."""
    done = exported(LENET, "experiment", "result", "metrics")
    seeds = []
    for experiment, result, metrics in longest(done).to_numpy():
        if (label(experiment["norm"]), label(experiment["partition"])) == ("none", "iid") and result["rounds"] > 300:
            records = [json.loads(line) for line in metrics.splitlines()]
            lost = result["status"] == "diverged" or records[-1]["val_acc"] < 0.2
            seeds.append((round(experiment["lr"], 2), lost, result["rounds"]))
    assert {lr for lr, _, _ in seeds} == {0.1, 0.32}
    lost = [(lr, rounds) for lr, is_lost, rounds in seeds if is_lost]
    assert len(lost) == 3 and {lr for lr, _ in lost} == {0.32} and min(rounds for _, rounds in lost) > 600
    assert "that was 0.32, at which three of five seeds diverged or fell to chance after round 600" in text(
        "Fashion-MNIST: scale or geometry"
    )


@pytest.mark.slow
def test_the_learning_rate_that_was_added_to_lenet() -> None:
    said = text("Fashion-MNIST: scale or geometry")
    best = chosen(LENET).query("partition == 'classes:2'").groupby("norm").lr.first()
    of_others = best.drop(["scale", "bn"])
    rates = sorted(federated(LENET).query("partition == 'iid'").lr.unique())
    assert best["scale"] == rates[0] < of_others.min()
    added = federated(LENET).query("lr < @rates[0]")
    lowest = f"{added.lr.unique().item():.2g}"
    assert set(added.partition) == {"classes:2", "dirichlet:0.1"}
    assert added.query("norm != 'bn'").value.isna().all(), "dropped"
    assert (
        f"With two classes the constant was best at {rates[0]:g}, the lowest rate, so {lowest} was added in every row "
        "there and with Dirichlet(0.1); these five rows dropped it at round 100."
    ) in said
    assert best["bn"] == added.lr.min() and f"With two classes it is best at {lowest}, so lower rates may be" in said


@pytest.mark.slow
def test_what_the_networks_of_the_published_code_show() -> None:
    mean = values(("cifar10_ten_steps", ("classes:1",)))
    shown = [mean.loc["fedavg", norm, "linear"] for norm in ("none", "fn", "ln-static")]
    of_norm = {(one.value, one.against): one for one in comparisons("cifar10_ten_steps")}
    assert [one.verdict for one in of_norm.values()] == ["more", "more", "open"]
    gain = [one.text for one in of_norm.values()]
    said = text("At a hundredth of the paper's length")
    assert "{}, {} and {} %".format(*(f"{one['mean']:.1f} ± {one.half_width:.1f}" for one in shown)) in said
    assert f"gain {gain[0]} and {gain[1]} points over none, and the second {gain[2]} over the first (open)" in said


@pytest.mark.slow
def test_the_published_number_outside_its_interval() -> None:
    tested = published.published().dropna(subset="p")
    tested = tested.drop_duplicates([*published.SHARED, "value", "std"]).assign(holm=lambda of: holm(of.p))
    (outside,) = (one for _, one in tested[tested.p < LEVEL].iterrows())
    assert outside.norm == "ln" and len(tested) == 4 and set(tested.verdict) == {"holds", "does not hold"}
    said = text("At the paper's full length")
    assert f"That of layer normalization, {outside.value - 100 * outside.ours:.2f} points above our mean, lies" in said
    assert f"predicts (p {outside.p:.3f}, {outside.holm:.3f} after Holm's correction)" in said
    pool = published.repeated(outside)
    ours, paper = pool[pool.our_code], pool[~pool.our_code]
    assert f"{WORDS[len(paper)]} cells of three seeds with the same network and partition, E = 10" in said
    assert f"our {WORDS[len(ours)]} cells of three seeds at E = 1" in said and set(pool["count"]) == {3}
    (sd, df), (other, other_df) = published.spread(ours), published.spread(paper)
    ratio = (sd / other) ** 2
    p = 2 * min(stats.f.sf(ratio, df, other_df), stats.f.cdf(ratio, df, other_df))
    assert f"(ratio of the variances {ratio:.1f}, p {p:.2f};" in said
    p, (low, high) = published.predict(outside, pool[pool.norm == "ln"])
    assert (pool.norm == "ln").sum() == 2
    assert f"the interval is {100 * low:.1f} to {100 * high:.1f} and contains the number (p {p:.2f})" in said


def test_what_normalization_gains_without_drift() -> None:
    said = text("At the paper's full length")
    one, two, dirichlet = (
        {(one.value, one.against): one for one in comparisons("cifar10_one_step") if one.column == (partition,)}
        for partition in ("classes:1", "classes:2", "dirichlet:0.1")
    )
    of_seed = (
        100
        * federated("cifar10_one_step")
        .query("partition == 'classes:1' and lr == 0.01")
        .pivot_table("value", "seed", ["method", "norm"])["fedavg"]
    )
    gains_of_fn = "{:.1f}, {:.1f} and {:.1f}".format(*(of_seed["fn"] - of_seed["none"]))
    fn, ln, scale = (one[norm, "none"] for norm in ("fn", "ln", "scale"))
    assert f"Feature normalization gains {fn.text} points (three seeds, {gains_of_fn}) and layer" in said
    assert f"and layer normalization {ln.text} (planned)" in said
    assert (
        f"feature normalization gains {two['fn', 'none'].mean:.1f} and {dirichlet['fn', 'none'].mean:.1f} (one" in said
    )
    assert f"{scale.text} points with `scale`" in said and {fn.verdict, ln.verdict, scale.verdict} == {"more"}
    more, also = one["fn", "scale"], one["ln", "scale"]
    assert {more.verdict, also.verdict} == {"more"} and f"{more.p:.3f}" == f"{also.p:.3f}"
    assert (
        f"Feature normalization gains {more.text} points more, layer normalization {also.text} (p {more.p:.3f} both)."
    ) in said
    runs = federated("cifar10_one_step").query("method == 'fedavg'")
    fast = runs.query("lr == 0.1").set_index("norm").value
    assert set(fast.index[fast.isna()]) == {"scale"}
    assert (
        f"nearly disappears: {100 * fast['none']:.2f} without a norm, {100 * fast['fn']:.2f} with fn (lr 0.1, E = 1, "
        "one seed each); the constant diverges."
    ) in said
    gain = published.gain_of_fn(3)
    assert f"the paper gains only {gain['classes:2']:.1f} and {gain['dirichlet:0.1']:.1f} points at E = 10" in said


def test_means_of_fewer_and_of_more_evaluations_without_drift() -> None:
    runs = recorded("cifar10_one_step").query("method == 'fedavg' and lr == 0.01 and partition == 'classes:1'")
    plans = [(plan.value, plan.against) for plan in PLANNED["cifar10_one_step"]]
    assert len(plans) == 5

    def judged(first: int, last: int | None = None) -> dict[str, Judged]:
        """Return what fn and ln show against the constant by the mean of these evaluations, counted from the end."""
        means = [np.mean([one["acc"] for one in records[first:last]]) for records in runs.records]
        of = runs.assign(mean=means).pivot(index="seed", columns="norm", values="mean")
        found = judge([(of[value] - of[against]).to_numpy() for value, against in plans])
        return {value: one for (value, against), one in zip(plans, found, strict=True) if against == "scale"}

    by_number = {number: judged(-number) for number in range(1, 21)}
    is_open = {norm: [n for n, of in by_number.items() if of[norm].verdict == "open"] for norm in ("fn", "ln")}
    assert is_open == {"fn": [1, 2, 3, 4], "ln": [1, 2, 3]}
    said, (fn, ln) = text("At the paper's full length"), by_number[1].values()
    assert (
        f"By the last evaluation the two are {fn.mean:.1f} ± {fn.half_width:.1f} and {ln.mean:.1f} ± "
        f"{ln.half_width:.1f}, both open. With means of one to four evaluations feature normalization is open, with "
        "one to three layer normalization; with six to twenty both are shown."
    ) in said
    assert f"still shrinks ({judged(-10, -5)['ln'].mean:.1f} points 1,000 rounds earlier)" in said


def test_what_the_last_rounds_gain_without_drift() -> None:
    """Means of the last five evaluations less those of the five before: rounds 9,200 to 10,000, and 8,200 to 9,000."""
    runs = recorded("cifar10_one_step").query("method == 'fedavg' and lr == 0.01").set_index("norm")
    accuracies = [pd.Series({one["round"]: 100 * one["acc"] for one in records}) for records in runs.records]
    last, before = ([of[of.index.isin(range(first, first + 801))] for of in accuracies] for first in (9200, 8200))
    assert {len(of) for of in (*last, *before)} == {TAIL["cifar10_one_step"]}
    rise = pd.Series([of.mean() for of in last], runs.index) - [of.mean() for of in before]
    none, others = rise["none"], rise[["fn", "ln"]]
    assert (
        f"in the last 1,000 rounds accuracy rises by {none.min():.1f} to {none.max():.1f} points without a "
        f"normalization and by {others.min():.1f} to {others.max():.1f} with feature or layer normalization"
    ) in text("At the paper's full length")


def test_the_other_partitions_at_full_length() -> None:
    said = text("At the paper's full length")
    numbers = published.published().query("E == 1 and partition != 'classes:1'").dropna(subset="ours")
    of = numbers.set_index(["partition", "method", "norm"])
    rows = [("fedavg", "none"), ("fedavg", "fn"), ("fedavg", "ln"), ("fedyogi", "none")]
    two, dirichlet = ([(partition, *row) for row in rows] for partition in ("classes:2", "dirichlet:0.1"))
    assert set(of.index) == {*two, *dirichlet} and set(of.verdict) == {"no spread"}
    ours, paper = ([f"{column[at]:.2f}" for at in (*two, *dirichlet)] for column in (100 * of.ours, of.value))
    assert (
        f"With two classes FedAvg is after 10,000 rounds at {ours[0]} without, {ours[1]} with feature and {ours[2]} "
        f"with layer normalization, and FedYogi at {ours[3]} (published: {paper[0]}, {paper[1]}, {paper[2]} and "
        f"{paper[3]}); with Dirichlet(0.1) these four are at {ours[4]}, {ours[5]}, {ours[6]} and {ours[7]} "
        f"({paper[4]}, {paper[5]}, {paper[6]} and {paper[7]})."
    ) in said
    one_class = published.published().query("E == 1 and partition == 'classes:1'").dropna(subset="p")
    difference = (100 * of.ours - of.value).abs().sort_values()
    assert (100 * one_class.ours - one_class.value).abs().max() < 1.5
    larger = difference[difference > 1.5]
    assert (
        f"{WORDS[len(larger)].capitalize()} of the {WORDS[len(of)]} differ by more than 1.5 points, by "
        "{:.1f}, {:.1f} and {:.1f}; with one class no number does."
    ).format(*larger) in said
    like = published.repeated(one_class.iloc[0])
    p = {at: published.predict(one, like)[0] for at, one in of.iterrows()}
    assert [at for at in p if p[at] < LEVEL] == [dirichlet[0], two[1]]
    assert (
        f"two would lie outside: feature normalization with two classes (p {p[two[1]]:.3f}) and none with "
        f"Dirichlet(0.1) (p {p[dirichlet[0]]:.3f})."
    ) in said


def test_feature_normalization_with_ten_steps_at_full_length() -> None:
    (gain,) = comparisons(FULL_LENGTH)
    (column,), ends = {one.column for one in comparisons(FULL_LENGTH)}, values((FULL_LENGTH, ("classes:1",)))
    none, fn = (ends.loc["fedavg", norm, "linear"] for norm in ("none", "fn"))
    assert column == ("classes:1",) and gain.verdict == "more" and gain.p < 0.001
    numbers = published.published((FULL_LENGTH,)).dropna(subset="p")
    different = numbers.drop_duplicates([*published.SHARED, "value", "std"])
    assert set(numbers.verdict) == {"holds"} and set(numbers.E) == {10}
    last = 100 * different.set_index("norm").ours
    of_paper = {table: published.gain_of_fn(table)["classes:1"] for table in (10, 14)}
    assert [set(numbers[numbers.table == table].seeds) for table in of_paper] == [{1}, {3}]
    assert (
        f"is at {none['mean']:.2f} ± {none.half_width:.2f} % without a normalization and at {fn['mean']:.2f} ± "
        f"{fn.half_width:.2f} % with feature normalization (three seeds), a gain of {gain.text} points (p < 0.001, "
        f"planned; its report). The paper gains {of_paper[10]:.1f} (table 10) and, over three seeds, "
        f"{of_paper[14]:.1f} (table 14). After the last round we have {last['none'].iloc[0]:.2f} and "
        f"{last['fn'].iloc[0]:.2f}, and all {WORDS[len(different)]} published numbers of these cells lie in their "
        f"intervals (smallest p {different.p.min():.2f})."
    ) in text("At the paper's full length")


def test_when_feature_normalization_is_where_none_ends() -> None:
    ends = federated(FULL_LENGTH).query("norm == 'none'").set_index("seed").value
    runs = recorded(FULL_LENGTH).query("norm == 'fn'")
    first = {next(one["round"] for one in run.records if one["acc"] >= ends[run.seed]) for run in runs.itertuples()}
    every = {after["round"] - one["round"] for run in runs.itertuples() for one, after in pairwise(run.records)}
    assert (
        f"After {first.pop()} rounds feature normalization is where FedAvg without one is after 10,000 (the first such "
        f"evaluation of all {WORDS[len(runs)]} seeds; there is one every {every.pop()} rounds)."
    ) in text("At the paper's full length")
    assert not first and not every


def test_ten_local_steps_at_full_length_end_where_one_does() -> None:
    cells = "method == 'fedavg' and partition == 'classes:1' and lr == 0.01"

    def ends(sweep: str) -> pd.DataFrame:
        """Return the accuracy of each seed (rows) by norm."""
        return federated(sweep).query(cells).pivot(index="seed", columns="norm", values="value")

    def lengths(sweep: str) -> pd.Series[float]:
        """Return how far clients end from where a round began, by norm and round, the mean over three seeds."""
        of_norm = pd.DataFrame(
            (run.norm, record["round"], record["probes"]["drift"]["update_norm"])
            for run in recorded(sweep).query(cells).itertuples()
            for record in run.records
            if "drift" in record.get("probes", {})
        ).groupby([0, 1])[2]
        assert set(of_norm.size()) == {3}
        return of_norm.mean()

    ten, one = ends(FULL_LENGTH), ends("cifar10_one_step")
    assert len(ten) == len(one) == 3
    (more,) = judge([((ten["fn"] - ten["none"]) - (one["fn"] - one["none"])).to_numpy()])
    assert more.verdict == WITHIN
    at = {norm: f"{100 * one[norm].mean():.2f}" for norm in ("none", "fn")}
    assert (
        f"With one step they are at {at['none']} and {at['fn']} %. The gain with ten steps less that with one, paired "
        f"by seed, is {more.mean:.1f} ± {more.half_width:.1f} points; that they are equal within one point has p "
        f"{more.p_within:.3f}, in a comparison that we chose after the runs."
    ) in text("At the paper's full length")
    farther = lengths(FULL_LENGTH) / lengths("cifar10_one_step")
    assert (
        f"in the last round {farther['none', 10_000]:.1f} times as far without a normalization and "
        f"{farther['fn', 10_000]:.1f} times with feature normalization (after 1,000 rounds "
        f"{farther['none', 1_000]:.1f} and {farther['fn', 1_000]:.1f} times; means of three seeds)."
    ) in text("At the paper's full length")


@pytest.mark.slow
def test_what_fedrs_reaches_on_digits() -> None:
    """With one class and E = 10, at the rate that is best on the test data, as everywhere in this sweep."""
    runs = federated("digits").query("method.str.startswith('fedrs') and partition == 'classes:1' and E == 10")
    best = 100 * runs.groupby(["norm", "lr"]).value.mean().groupby("norm").max()
    rates = "at {:.0f} % without a normalization, {:.0f} % with fn and {:.0f} % with ln".format(
        *best[["none", "fn", "ln"]]
    )
    assert f"At its best learning rate it is {rates}" in text("At a hundredth of the paper's length")


@pytest.mark.slow
def test_what_a_drawn_learning_rate_gives() -> None:
    """The mean over all learning rates, with one class and E = 10; a diverged run guesses one of ten classes."""
    runs = federated("skew").query("partition == 'classes:1' and E == 10")
    assert runs.lr.nunique() == 13
    drawn = 100 * runs.assign(value=runs.value.fillna(0.1)).groupby(ROW).value.mean()
    fedavg, fedyogi = (drawn[method] for method in ("fedavg", "fedyogi"))
    said, heads = text("Digits: scale or geometry"), ["cosine", "cosine(learned=true)", "etf"]
    rows = [("none", "linear"), ("scale", "linear"), ("ln", "linear"), ("none", "cosine"), ("none", "etf")]
    assert (
        "with one learning rate, drawn from the thirteen, FedAvg with one class and E = 10 is after 100 rounds at "
        "{:.0f} % on average (mean of rounds 60 to 100), with the constant at {:.0f} %, with layer normalization at "
        "{:.0f} %, with a cosine head at {:.0f} % and with an ETF head at {:.0f} %"
    ).format(*(fedavg[row] for row in rows)) in said
    of_heads = fedavg.index.isin(heads, level="head")
    assert fedavg[of_heads].min() > fedavg[~of_heads].max(), "heads need the least tuning"
    plain, others = fedyogi["none", "linear"], fedyogi.drop(("none", "linear"))
    assert f"FedYogi at {plain:.0f} % without a normalization and at {others.min():.0f} to {others.max():.0f} %" in said


@pytest.mark.slow
def test_what_fedyogi_gains_on_digits() -> None:
    runs = chosen("skew").query("method == 'fedyogi'")
    means = 100 * runs.pivot_table("value", ["partition", "E"], "norm")
    gains_of = means.drop(columns="none").sub(means["none"], axis=0)
    low, high = gains_of.min(axis=None), gains_of.max(axis=None)
    lowest, highest = gains_of.loc["classes:1", 10].agg(["min", "max"])
    assert (
        f"change it by {low:.1f} to {high:.1f} points in the eight columns, with one class and E = 10 by "
        f"{lowest:.1f} to {highest:.1f}."
    ) in text("Digits: scale or geometry")
    largest = runs.query("norm == 'none' and lr == lr.max()")
    assert set(zip(largest.partition, largest.E, strict=True)) == {("iid", 1)}


@pytest.mark.slow
def test_what_other_constants_fedyogi_and_depth_show() -> None:
    said = text("Fashion-MNIST: scale or geometry")
    more = [one for constant in CONSTANTS for one in gains("constants", constant, "fedavg", ("classes:1",))]
    more = [one for one in more if one.value == "fn"]
    assert len(more) == 5 and all(one.verdict.startswith("more") for one in more)
    assert f"by {min(one.mean for one in more):.1f} to {max(one.mean for one in more):.1f} points" in said
    with_norm = {one.value: one for one in gains("constants", "none", "fedyogi")}
    assert [with_norm[norm].verdict for norm in ("fn", "ln")] == [WITHIN, "open"]
    loss = with_norm["scale"]
    assert loss.verdict.startswith("less") and f"the constant loses {-loss.mean:.1f} points" in said
    fedyogi = level(("constants", ("classes:1",)), ("fedyogi", "none", "linear"))
    assert f"it is after 100 rounds at {fedyogi} without a normalization" in said
    deep: At = ("constants_of_a_deeper_network", ("classes:1",))
    levels = [level(deep, ("fedavg", norm, "linear")) for norm in ("none", "scale", "fn", "ln")]
    assert (
        "FedAvg is after 100 rounds at {} without a normalization, {} with the constant, {} with feature and {} with "
        "layer normalization"
    ).format(*levels) in said
    deeper = gains("constants_of_a_deeper_network", "scale", "fedavg")
    assert {(one.value, one.verdict) for one in deeper} == {("fn", "more"), ("ln", "more")}


@pytest.mark.slow
def test_what_depth_adds() -> None:
    """The gain over the constant in the deeper network minus that in the other one, with one class, paired by seed."""
    gain = {}
    for sweep in ("constants", "constants_of_a_deeper_network"):
        runs = chosen(sweep).query("method == 'fedavg' and partition == 'classes:1'")
        of_norm = 100 * runs.pivot(index="seed", columns="norm", values="value")
        gain[sweep] = of_norm[["fn", "ln"]].sub(of_norm["scale"], axis=0)
    more = gain["constants_of_a_deeper_network"] - gain["constants"]
    assert more.notna().all(axis=None) and len(more) == 10
    test = stats.ttest_1samp(more, 0)
    interval = test.confidence_interval(1 - LEVEL)
    said = [
        f"{mean:.1f} ± {half:.1f}" for mean, half in zip(more.mean(), (interval.high - interval.low) / 2, strict=True)
    ]
    assert "the gains of feature and layer normalization over the constant are {} and {} points larger".format(
        *said
    ) in text("Fashion-MNIST: scale or geometry")


@pytest.mark.slow
def test_what_normalizations_gain_more_than_the_constant_with_one_step_on_digits() -> None:
    said = text("Digits: scale or geometry")
    against = [
        one
        for column in {one.column for one in comparisons("skew")}
        for one in gains("skew", "scale", "fedavg", column)
    ]
    shown = [(one.value, one.column) for one in against if one.verdict.startswith("more")]
    assert shown == [("ln", ("classes:2", 10))] and f"One of {len(against)} comparisons shows" in said
    runs = chosen("skew").query("method == 'fedavg' and head == 'linear' and E == 1")
    of_norm = runs.pivot_table("value", ["partition", "seed"], "norm")
    found = {}
    for norm in ("ln", "gn", "fn"):
        of_seed = 100 * (of_norm[norm] - of_norm["scale"]).unstack("seed").mean()
        half_width = stats.t.ppf(0.975, len(of_seed) - 1) * of_seed.sem()
        found[norm] = f"{of_seed.mean():.1f} ± {half_width:.1f}"
    assert (
        f"layer and group normalization gain {found['ln']} and {found['gn']} points more than the constant, feature "
        f"normalization {found['fn']} (not planned)"
    ) in said


@pytest.mark.slow
def test_how_cosine_and_etf_heads_differ_from_normalizations() -> None:
    differences = []
    for sweep in ("skew_fashion_mnist", "skew"):
        runs = chosen(sweep).query("method == 'fedavg' and partition == 'classes:1' and E == 10")
        mean = 100 * runs.groupby(["norm", "head"]).value.mean()
        heads, norms = mean["none"].drop("linear"), mean[[(norm, "linear") for norm in ("fn", "ln", "gn")]]
        differences += [min(heads) - max(norms), max(heads) - min(norms)]
    assert (
        "differ from the normalizations by {:.1f} to {:.1f} points with one class; on digits by {:.1f} to {:.1f} (E"
    ).format(*differences) in text("Fashion-MNIST: scale or geometry")


@pytest.mark.slow
def test_the_first_report_of_lenet() -> None:
    """Five comparisons with one class: those of group normalization and of iid data came later."""
    runs = federated(LENET).query("partition == 'classes:1'")
    best = chosen(LENET).query("partition == 'classes:1'")
    of_seed = best.pivot(index="seed", columns="norm", values="value")
    pairs = [("scale", "none"), ("fn", "none"), ("ln", "none"), ("fn", "scale"), ("ln", "scale")]
    p = holm(pd.Series({pair: stats.ttest_1samp(of_seed[pair[0]] - of_seed[pair[1]], 0).pvalue for pair in pairs}))
    assert set(runs.seed) == set(of_seed.index) and (p < LEVEL).sum() == 1
    assert f"with five comparisons, that of layer normalization was shown (p {p['ln', 'none']:.3f})." in text(
        "Fashion-MNIST: scale or geometry"
    )


@pytest.mark.slow
def test_one_step_on_digits_needs_normalization_for_speed_alone() -> None:
    assert "on digits after 1,000 rounds no gain is shown." in text("FedYogi: one local step")
    assert {one.verdict for one in gains("phase_digits", "none", column=("classes:1", 1))} <= {"open", WITHIN}


@pytest.mark.slow
def test_when_learning_rates_were_dropped_on_cifar10() -> None:
    runs = recorded(TUNED)
    at_20 = [next((100 * one["val_acc"] for one in records if one["round"] == 20), np.nan) for records in runs.records]
    of_row = runs.assign(at_20=at_20).pivot_table("at_20", "lr", "norm")
    kept, best = of_row.rank(ascending=False) <= 2, chosen(TUNED).groupby("norm").lr.first()
    assert len(of_row) == 8 and all(kept.loc[best[norm], norm] for norm in of_row)
    assert 13.5 < of_row["none"].max() < 14
    assert (
        "At round 20, when six of the eight were dropped, no rate without a normalization was above 14 % there"
    ) in text("CIFAR-10 at tuned learning rates")


@pytest.mark.slow
def test_what_skew_adds_after_twice_as_many_rounds() -> None:
    added = {one.value: one for one in comparisons("skew_fashion_mnist") if one.between}
    assert {added["fn"].verdict, added["ln"].verdict} == {"more"} and added["scale"].verdict == "open"
    assert SEARCHED["skew_fashion_mnist"] == 2 * SEARCHED["phase_diagram"]
    said = text("Skew and local steps")
    assert f"with ten steps by {added['fn'].text} points of feature and {added['ln'].text} of layer norm" in said
    assert f"That of the constant, {added['scale'].text}, is open there." in said


@pytest.mark.slow
def test_what_tuned_rates_show_on_cifar10() -> None:
    mean, runs, said = values((TUNED, ("classes:1",))), chosen(TUNED), text("CIFAR-10 at tuned learning rates")
    rows = {norm: mean.loc["fedavg", norm, "linear"] for norm in ("none", "scale", "fn", "ln")}
    rate = runs.groupby("norm").lr.first()
    levels = [
        f"{one['mean']:.1f} ± {one.half_width:.1f} % (last {one['last']:.1f}; rate {rate[norm]:.2g})"
        for norm, one in rows.items()
    ]
    assert (
        f"FedAvg is at {levels[0]} without a normalization, {levels[1]} with the constant, {levels[2]} with feature "
        f"and {levels[3]} with layer normalization."
    ) in said
    of = {(one.value, one.against): one for one in comparisons(TUNED)}
    assert [of[norm, "none"].verdict for norm in ("ln", "scale", "fn")] == ["more", "open", "open"]
    ln, scale, fn = (
        f"{one.text} points (p {one.p:.2g}" for one in (of[norm, "none"] for norm in ("ln", "scale", "fn"))
    )
    assert (
        f"Layer normalization gains {ln}, shown); the constant gains {scale}) and feature normalization {fn}), " in said
    )
    assert {of["fn", "scale"].verdict, of["ln", "scale"].verdict} == {"open"}
    more = (
        f"feature normalization gains {of['fn', 'scale'].text} and layer normalization {of['ln', 'scale'].text} points"
    )
    assert f"Over the constant {more} (both open)." in said
    best = {*runs[["norm", "lr", "seed"]].itertuples(index=False, name=None)}
    last = [
        (norm, 100 * json.loads(metrics.splitlines()[-1])["acc"])
        for one, _, metrics in longest(exported(TUNED, "experiment", "result", "metrics")).to_numpy()
        if ((norm := label(one["norm"])), one["lr"], one["seed"]) in best
    ]
    rise = pd.DataFrame(last, columns=["norm", "acc"]).groupby("norm").acc.mean() - mean["mean"].droplevel(
        ["method", "head"]
    )
    none, others = rise["none"], rise.drop("none")
    assert (
        f"the last evaluation is above these means by {none:.1f} points without a normalization and by "
        f"{others.min():.1f} to {others.max():.1f} with the others"
    ) in said
