"""README's answer, its table and its sentences with numbers, recomputed."""

from __future__ import annotations

import tomllib

import pandas as pd

from tests.audit import head_scale, one_class, published
from tests.audit.one_class import DIGITS, FASHION_MNIST
from tests.audit.planned import LEVEL, WITHIN, comparisons
from tests.audit.runs import ROOT, TAIL, chosen, federated, only
from tests.audit.tables import CONFIDENCE, At, values

#: The rows of the table.
ROWS = {
    "none": "none",
    "constant (`scale`)": "scale",
    "feature norm (`fn`)": "fn",
    "layer norm (`ln`)": "ln",
    "group norm (`gn`)": "gn",
    "batch norm (`bn`)": "bn",
}

#: The columns of the table that sweeps of their own have, with their heads.
SWEEPS: dict[str, At] = {
    "Fashion-MNIST, LeNet, 1,000 rounds": ("fashion_mnist_lenet", ("classes:1",)),
    "CIFAR-10, 10,000 rounds": ("cifar10_one_step", ("classes:1",)),
}

#: The sections of the phase diagram, with the names of their data sets.
PHASES = {"phase_digits": "digits", "phase_fashion_mnist": "Fashion-MNIST"}

#: Small numbers as the page writes them.
WORDS = [
    "no",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
]


def table() -> list[list[str]]:
    """Return the table of the page: FedAvg with one class a client."""
    columns = {
        "digits, 100 rounds": one_class.values(DIGITS, 100),
        "digits, 1,000 rounds": one_class.values(DIGITS, 1000),
        "Fashion-MNIST, 400 rounds": one_class.values(FASHION_MNIST, 400),
        **{head: values(at).xs("fedavg").xs("linear", level="head") for head, at in SWEEPS.items()},
    }
    rows = [["normalization", *columns]]
    rows += [[name, *(_value(of, norm) for of in columns.values())] for name, norm in ROWS.items()]
    return rows


def _value(of: pd.DataFrame, norm: str) -> str:
    if norm not in of.index:
        return "–"
    return f"{of['mean'][norm]:.2f} ± {of['half_width'][norm]:.2f} ({of['last'][norm]:.2f})"


def sentences() -> list[str]:
    """Return the sentences of the page that contain a number."""
    return [
        _digits(),
        *_fashion_mnist(),
        _the_constant(),
        *_zhang_et_al(),
        *_fedyogi(),
        _lenet(),
        *_settings(),
        _python(),
        *_install(),
    ]


def _gain(setting: one_class.Setting, rounds: int, norm: str) -> str:
    """Return ``2.8 ± 1.2 (last 1.7 ± 1.1)``."""
    (mean, half), (last, of_last) = (one_class.gain(setting, rounds, norm, of) for of in ("value", "last"))
    return f"{mean:.1f} ± {half:.1f} (last {last:.1f} ± {of_last:.1f})"


def _digits() -> str:
    """Return the lead of layer norm after some rounds, and where all are after the last; no gain is shown there."""
    at_end = values(("one_class_digits", (10,)))["mean"].xs("fedavg").xs("linear", level="head")
    of = [one for one in comparisons("one_class_digits") if (one.against, one.column) == ("none", (10,))]
    assert {one.verdict for one in of} <= {"open", WITHIN}
    others = at_end[["scale", "fn", "ln", "gn"]]
    return (
        f"With ten local steps a round layer norm is ahead of none by {_gain(DIGITS, 100, 'ln')} points in the mean "
        f"of rounds 60 to 100, by {_gain(DIGITS, 200, 'ln')} in that of rounds 160 to 200 and by "
        f"{_gain(DIGITS, 300, 'ln')} in that of rounds 260 to 300. After 1,000 rounds none is at "
        f"{at_end['none']:.1f} %, the constant and feature, layer and group norm are at {others.min():.1f} to "
        f"{others.max():.1f} %, and no gain is shown; batch norm is at {at_end['bn']:.1f} %."
    )


def _fashion_mnist() -> list[str]:
    """Return the leads on Fashion-MNIST; that they shrink is shown until round 200 alone."""
    norms = ("scale", "fn", "ln")
    for norm in norms:  # the first by Bonferroni's correction, the others without one
        assert one_class.shrinkage(norm, 100, 200) < LEVEL / len(norms)
        assert one_class.shrinkage(norm, 100, 200, "last") > LEVEL and one_class.shrinkage(norm, 200, 400) > LEVEL
    planned = {one.value: one for one in comparisons("one_class_fashion_mnist") if one.against == "none"}
    assert {planned[norm].verdict for norm in norms} == {"open"}
    gains = {norm: f"{planned[norm].mean:.1f} ± {planned[norm].half_width:.1f}" for norm in norms}
    return [
        "On Fashion-MNIST the leads shrink from the first hundred rounds to the second, in means of five evaluations.",
        "By the last evaluation alone, and after round 200, it is not shown that they shrink.",
        f"That of layer norm is {_gain(FASHION_MNIST, 100, 'ln')} points in the mean of rounds 20 to 100, "
        f"{_gain(FASHION_MNIST, 200, 'ln')} in that of rounds 120 to 200, {_gain(FASHION_MNIST, 300, 'ln')} in that of "
        f"rounds 220 to 300 and {_gain(FASHION_MNIST, 400, 'ln')} in that of rounds 320 to 400.",
        f"After 400 rounds the gain of layer norm, that of feature norm ({gains['fn']}) and that of the constant "
        f"({gains['scale']}) are open (p {planned['ln'].p:.2f}, {planned['fn'].p:.2f} and {planned['scale'].p:.2f}, "
        "corrected for "
        f"{WORDS[len(comparisons('one_class_fashion_mnist'))]} comparisons).",
    ]


def _the_constant() -> str:
    """Return what a constant gains on digits, and what each of the two things that it does gains alone."""
    of = {row: head_scale.gain(row) for row in head_scale.ROWS if row != "none"}
    text = {row: f"{mean:.1f} ± {half:.1f}" for row, (mean, half) in of.items()}
    assert head_scale.ROWS["constant"][1] == "scale(factor=16)" and head_scale.ROUNDS == 100
    after, half_after = one_class.gain(DIGITS, 200, "scale")
    last = [head_scale.gain(row, of="last") for row in head_scale.ROWS if row != "none"]
    assert all(abs(mean) < half for mean, half in last)
    shown = ("constant", "larger initial head", "higher rate of the head", "larger head, frozen")
    assert all(of[row][0] > of[row][1] for row in shown)
    return (
        "On digits a constant of 16, in the mean of rounds 60 to 100, gains "
        f"{text['constant']} points over none, the larger initial weight alone {text['larger initial head']}, the "
        f"higher rate alone {text['higher rate of the head']}, and the larger head, frozen, "
        f"{text['larger head, frozen']}; by round 100 alone none of these is shown, and after 200 rounds the constant "
        f"of `scale` gains {after:.1f} ± {half_after:.1f}."
    )


def _zhang_et_al() -> list[str]:
    """Return what feature norm gains on CIFAR-10 at the paper's rate, and at ten times that rate."""
    (gain,) = comparisons("cifar10_full_length")
    assert gain.last is not None
    last = f"{gain.last.mean:.1f} ± {gain.last.half_width:.1f}"
    runs, plain = federated("cifar10_full_length"), federated("cifar10_one_step").query("lr == 0.01")
    assert gain.verdict == "more" and only("cifar10_full_length", "E") == 10
    assert set(runs.lr) == set(plain.lr) == {0.01} and set(runs.rounds) == set(plain.rounds) == {10_000}
    fast = federated("cifar10_one_step").query("method == 'fedavg' and lr == 0.1").set_index("norm").value
    return [
        "The headline of Zhang et al. (2024) is reproduced at their learning rate, 0.01.",
        f"On CIFAR-10 with ten local steps feature norm gains {gain.text} points (last {last}) after 10,000 "
        f"rounds ({WORDS[runs.seed.nunique()]} seeds; they: {published.gain_of_fn(10)['classes:1']:.1f}).",
        f"At ten times that rate and one local step it gains {100 * (fast['fn'] - fast['none']):.1f} points (one "
        "seed), so how much of the gain is the rate's is open.",
    ]


def _fedyogi() -> list[str]:
    """Return the accuracies of FedYogi on digits at the rates at which it is flat."""
    runs = federated("skew").query("method == 'fedyogi' and norm == 'none' and partition == 'classes:1' and E == 10")
    means = 100 * runs.groupby("lr").value.mean()
    flat, low = means[means.index > 0.9], means[means.index < 0.9]
    assert len(low) == 6
    assert (flat.index.min(), flat.index.max(), len(flat)) == (1, 1000, 7) and means[
        means.index < 0.9
    ].max() < flat.min()
    skewed = federated("skew").query("method == 'fedyogi' and norm == 'none' and partition != 'classes:1' and E == 10")
    assert skewed[skewed.lr > 3].groupby(["partition", "lr"]).value.mean().max() < 0.15
    assert skewed[skewed.lr == 1].groupby("partition").value.mean()["iid"] > 0.95
    return [
        f"On digits FedYogi is at {flat.min():.1f} to {flat.max():.1f} % (mean of rounds 60 to 100) at each of seven "
        f"learning rates from 1 to 1000, and at {low.min():.1f} to {low.max():.1f} % at six lower ones;",
        "With two classes or more and ten steps rates from 3.2 on fail.",
    ]


def _lenet() -> str:
    """Return the gains over none in LeNet with one class, none of which is shown."""
    of = [one for one in comparisons("fashion_mnist_lenet") if (one.against, one.column) == ("none", ("classes:1",))]
    assert {one.verdict for one in of} == {"open"}
    low, high = min(one.mean for one in of), max(one.mean for one in of)
    return f"In LeNet the gains over none, {low:.1f} to {high:.1f} points in the mean of rounds 800 to 1,000, are open"


def _settings() -> list[str]:
    """Return the settings of the table."""
    lenet, cifar10 = federated("fashion_mnist_lenet").query("partition == 'classes:1'"), federated("cifar10_one_step")
    (rate,) = chosen("cifar10_one_step").lr.unique()
    of_rate = cifar10.query("partition == 'classes:1' and lr == @rate")
    (several,) = of_rate.groupby(["method", "norm"]).seed.nunique().unique()
    assert only("fashion_mnist_lenet", "E") == 10 and only("cifar10_one_step", "rounds") == 10_000
    digits, fashion = one_class.read(DIGITS, 100), one_class.read(FASHION_MNIST, 100)
    seeds = digits.groupby("norm").seed.nunique()
    assert set(seeds[["none", "scale", "fn", "ln"]]) == {10} and set(seeds[["gn", "bn"]]) == {5}
    assert fashion.seed.nunique() == lenet.seed.nunique() == 5
    assert {TAIL[sweep] for sweep in ("one_class", "fashion_mnist_lenet", "cifar10_one_step")} == {5}
    return [
        "Accuracy of FedAvg in %, one class a client, ten clients: mean of the last five evaluations ± half-width of "
        f"its {100 * CONFIDENCE:.0f} % interval for other seeds and test images, in brackets the last evaluation",
        "Digits and Fashion-MNIST: MLP, E = 10 local steps a round, "
        f"{WORDS[digits.lr.nunique()]} and {WORDS[fashion.lr.nunique()]} learning rates, the best on held-out training "
        "data, ten seeds (digits; group and batch norm five) and five.",
        f"LeNet: E = 10, five seeds, {WORDS[lenet.lr.nunique()]} learning rates. CIFAR-10: CNN, E = "
        f"{only('cifar10_one_step', 'E')}, learning rate {rate}, {WORDS[several]} seeds.",
    ]


def _install() -> list[str]:
    """Return what the first command installs, which docs/install.md has, too, and where pip refuses."""
    install = (ROOT / "docs/install.md").read_text()
    assert "5.9 GB" in install and "1.5 GB" in install and "Debian 12" in install
    return ["The first command installs 6 GB (1.5 GB without a GPU).", "as on Debian 12,"]


def _python() -> str:
    """Return the required version of Python."""
    requires = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    return f"Python {requires.removeprefix('>=')} or newer"
