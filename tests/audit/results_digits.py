"""Sentences and tables of docs/answers on skew, local steps and FedYogi, recomputed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tests.audit import pages
from tests.audit.cells import WITHIN, At, Comparison, comparisons, gains, judge, value
from tests.audit.measured import THREE, Column
from tests.audit.pages import listed, span
from tests.audit.runs import SEARCHED, federated

#: Norms with their names in tables, and those on Fashion-MNIST.
NORMS = {"scale": "constant", "fn": "feature norm", "ln": "layer norm", "gn": "group norm", "bn": "batch norm"}

#: The partitions of the methods, the most skewed one first.
PARTITIONS = ("classes:1", "classes:2", "dirichlet:0.1", "iid")

#: The sections of the phase diagram, with the names of their data sets.
PHASES = {"phase_digits": "digits", "phase_fashion_mnist": "Fashion-MNIST"}
STEPS = (1, 2, 5, 10, 20, 50)


def what_skew_adds() -> list[list[str]]:
    """Return the table of interactions: bold where a difference is shown, with ≈ where equivalence is."""
    added = [_added(data) for data in PHASES]
    rows = [["local steps a round", *(f"{name}, {NORMS[norm]}" for name in PHASES.values() for norm in THREE)]]
    for steps in STEPS:
        rows.append([str(steps)])
        for one in (of[norm, steps] for of in added for norm in THREE):
            text = f"{one.mean:+.1f} ± {one.half_width:.1f}"
            rows[-1].append((f"**{text}**" if one.is_shown else text) + " ≈" * (WITHIN in one.verdict))
    return rows


def _added(data: str) -> Mapping[tuple[str, object], Comparison]:
    return {(one.value, one.column[0]): one for one in comparisons(data) if one.between}


def where_skew_adds() -> Iterator[str]:
    added = {(data, *at): one for data in PHASES for at, one in _added(data).items()}
    shown = {at for at, one in added.items() if one.is_shown}
    assert {at for at in added if at[2] >= 10} - shown == {("phase_digits", "fn", 50)}
    assert not {at for at in shown if at[2] <= 2}
    for norm in THREE:
        means = [added["phase_fashion_mnist", norm, steps].mean for steps in STEPS]
        assert sorted(means)[2:] == means[2:], "more with more steps"
    on_digits, fashion = ([one for one in gains(data, "none") if one.column[1] == 1] for data in PHASES)
    assert not any(one.is_shown for one in on_digits)
    fashion = [one for one in fashion if one.value in ("fn", "ln")]
    assert (sum(one.verdict.startswith("more") for one in fashion), len(fashion)) == (9, 10)
    yield (
        f"gain {span([one.mean for one in fashion])} points, whatever the number of classes (shown in nine of ten "
        "comparisons)"
    )


def what_shown_means_there() -> Iterator[str]:
    """None of the comparisons passes the checks, and what the last evaluation alone has of ten steps on digits."""
    every = [one for data in PHASES for one in comparisons(data) if one.verdict != "open"]
    assert all(one.doubts for one in every)
    yield f"None of the {len(every)} comparisons with a verdict passes all four checks:"
    lasts = [_added("phase_digits")[norm, 10].last for norm in THREE]
    texts = ["{:.1f} ± {:.1f}".format(*last) for last in lasts if last]
    yield (
        f"at ten steps on digits, is {texts[0]} points for the constant, {texts[1]} for feature and {texts[2]} for "
        "layer normalization, about half of what the table has."
    )


def where_digits_gain() -> Iterator[str]:
    """Layer normalization needs skew and local steps; elsewhere nothing is shown, and most is equivalent."""
    over_none = gains("phase_digits", "none")
    assert {one.column for one in over_none if one.value == "ln" and one.verdict == "more"} == {
        *(("classes:1", steps) for steps in (5, 10, 20, 50)),
        *(("classes:2", steps) for steps in (10, 20, 50)),
        ("classes:3", 50),
    }
    elsewhere = [one for one in over_none if one.column[1] in (1, 2) or one.column[0] in ("classes:5", "classes:10")]
    equivalent = sum(one.verdict == WITHIN for one in elsewhere)
    assert equivalent + sum(one.verdict == "open" for one in elsewhere) == len(elsewhere)
    means = [one.mean for one in elsewhere]
    yield (
        f"these {len(elsewhere)} comparisons lie between {min(means):.1f} and {max(means):+.1f} points, and "
        f"{equivalent} of them are shown to be equivalent to none within one point"
    )


def against_the_constant() -> Iterator[str]:
    against = gains("phase_digits", "scale")
    shown = {(one.value, one.column): one.verdict.partition(",")[0] for one in against if one.is_shown}
    assert shown == {
        ("ln", ("classes:2", 50)): "more",
        ("ln", ("classes:3", 50)): "more",
        ("fn", ("classes:3", 1)): "less",
    }
    yield f"of {len(against)} comparisons of feature and layer normalization with it, two show more"
    of_two = [one for steps in (10, 20) for one in gains("phase_digits", "none", column=("classes:2", steps))]
    words = {(one.value, one.verdict.partition(" ")[0]) for one in of_two}
    assert words == {("scale", "open"), ("fn", "more"), ("ln", "more")}
    against = gains("phase_fashion_mnist", "scale")
    more = [one for one in against if one.verdict.startswith("more")]
    assert more == [one for one in against if one.is_shown]
    yield f"{len(more)} of {len(against)} comparisons with it show more, and none less"


def where_fashion_mnist_gains() -> Iterator[str]:
    against = [one for one in gains("phase_fashion_mnist", "none") if one.value in ("fn", "ln")]
    shown = [one for one in against if one.verdict.startswith("more")]
    assert not [one for one in against if one not in shown and one.column[0] == "classes:10"], "all those without skew"
    yield f"{len(shown)} of {len(against)} gains of feature and layer normalization over none are shown"
    of = {one.column: one.mean for one in against if one.value == "ln"}
    one, two, three, five, ten = ([of[f"classes:{k}", steps] for steps in STEPS] for k in (1, 2, 3, 5, 10))
    yield (
        f"goes from {one[0]:.1f} to {one[-1]:.1f} points with one class, {two[0]:.1f} to {two[-1]:.1f} with two, "
        f"{three[0]:.1f} to {three[-1]:.1f} with three and {five[0]:.1f} to {five[-1]:.1f} with five; with ten it is "
        f"{span(ten)}."
    )


def skew_after_twice_as_many_rounds() -> Iterator[str]:
    added = {one.value: one for one in comparisons("skew_fashion_mnist") if one.between}
    assert {added["fn"].verdict, added["ln"].verdict} == {"more"} and added["scale"].verdict == "open"
    assert SEARCHED["skew_fashion_mnist"].steps == 2 * SEARCHED["phase_diagram"].steps
    yield f"with ten steps by {added['fn'].text} points of feature and {added['ln'].text} of layer normalization"
    yield f"That of the constant, {added['scale'].text}, is open there."


def the_phase_of_training() -> Iterator[str]:
    """With one class ten local steps save no rounds, with or without a normalization."""
    columns = Column("plateau"), Column("plateau_skew", "classes:1", 1), Column("plateau_skew", "iid", 1)
    of = [column.rounds_to_level().median() for column in columns]
    none, scale, ln = ([rounds[f"fedavg {norm}"] for rounds in of] for norm in ("none", "scale", "ln"))
    assert none == [70] * 3 and ln == [30] * 3
    yield (
        "With it and ten steps a round FedAvg needs on digits to 92 % as many rounds as with one step, skew or not: 70 "
        f"without a normalization, 30 with layer norm and {span(scale, 0)} with the constant"
    )


def fedyogi_at_its_best_rates() -> Iterator[str]:
    best = {at: Column("plateau_methods", at).rates()["fedyogi none"].idxmax() for at in PARTITIONS}
    one, *others = best.values()
    yield f"without a normalization its best rate on digits is {one:g} with one class and {span(others)} with"
    yield "on digits no gain is shown after 1,000 rounds"
    ln, none = (Column("plateau_skew", "classes:1", 1).by_seed()[f"fedavg {norm}"] for norm in ("ln", "none"))
    assert judge([(ln - none) / 100])[0].p > 0.05


def fedyogi_takes_one_step() -> Iterator[str]:
    texts, means, last = [], [], []
    for dataset in ("digits", "fashion_mnist"):
        of = federated("fedyogi_steps").query("dataset == @dataset").pivot(index="seed", columns="E", values="value")
        found = pages.planned(pages.section(pages.details("fedyogi-steps"), f"{dataset}, mlp(widths=[64, 64])"))
        assert len(of) == 10
        for steps, one in zip((1, 2), judge([of[steps] - of[10] for steps in (1, 2)]), strict=True):
            numbers, verdict, *_ = found[f"E {steps} against 10", "accuracy"].split("<br>")
            assert pages.numbers(numbers) == pages.rounded(one.mean, one.half_width)
            assert one.verdict == WITHIN and verdict.startswith(f"<sub>{WITHIN}, but ") and "not tuned" in verdict
            texts.append(numbers.removeprefix("+"))
        at_ten = value(At("fedyogi_steps", (dataset, 10)), "none", "fedyogi")
        means.append(f"{at_ten['mean']:.1f} ± {at_ten['half_width']:.1f}")
        last.append(f"{at_ten['last']:.1f}")
    yield (f"it is after 100 rounds at {listed(means)} % (last {listed(last)}) with ten local steps a round")
    yield (
        f"one step differs from ten by {texts[0]} points on digits and {texts[2]} on Fashion-MNIST, two steps by "
        f"{texts[1]} and {texts[3]}; by the tests all four are equivalent within a point, at the rates that were "
        "chosen for ten steps."
    )


SECTIONS = {
    "Skew and local steps": [
        what_shown_means_there,
        where_skew_adds,
        where_digits_gain,
        against_the_constant,
        where_fashion_mnist_gains,
        skew_after_twice_as_many_rounds,
        the_phase_of_training,
    ],
    "FedYogi: one local step": [fedyogi_takes_one_step, fedyogi_at_its_best_rates],
}
