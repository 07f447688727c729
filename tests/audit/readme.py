"""README's answer, its table and its sentences with numbers, recomputed."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator

import pandas as pd

from tests.audit import plateau, published
from tests.audit.cells import CONFIDENCE, LEVEL, At, comparisons, gain, gains, values
from tests.audit.pages import WORDS, listed, span
from tests.audit.results_digits import (
    DIGITS,
    FASHION_MNIST,
    HEADS,
    NORMS,
    PARTS,
    THREE,
    fedyogi_at_any_rate,
    part_gain,
    shrinkage,
)
from tests.audit.runs import ROOT, TAIL, WITH_TAIL, chosen, federated, only

#: The columns of the table, with their heads.
COLUMNS = {
    "digits, 100 rounds": DIGITS.after(100),
    "digits, 1,000 rounds": DIGITS.after(1000),
    "Fashion-MNIST, 400 rounds": FASHION_MNIST.after(400),
    "Fashion-MNIST, LeNet, 1,000 rounds": At("fashion_mnist_lenet", ("classes:1",)),
    "CIFAR-10, 10,000 rounds": At("cifar10_one_step", ("classes:1",)),
}


def table() -> list[list[str]]:
    """Return the table of the page: FedAvg with one class a client."""
    columns = [values(at).xs("fedavg").xs("linear", level="head") for at in COLUMNS.values()]
    rows, names = [["normalization", *COLUMNS]], {norm: f"{name} (`{norm}`)" for norm, name in NORMS.items()}
    for norm, name in {"none": "none", **names}.items():
        known = [of.loc[norm] if norm in of.index else None for of in columns]
        rows.append([name, *("–" if of is None else _value(of) for of in known)])
    return rows


def _value(of: pd.Series[float]) -> str:
    return f"{of['mean']:.2f} ± {of.half_width:.2f} ({of['last']:.2f})"


def sentences() -> list[str]:
    """Return the sentences of the page that contain a number."""
    parts = (_digits, _fashion_mnist, _the_constant, _zhang_et_al, _fedyogi, _lenet, _settings, _install)
    return [sentence for part in parts for sentence in part()]


def _gain(at: At, norm: str) -> str:
    """Return ``2.8 ± 1.2 (last 1.7 ± 1.1)``."""
    return f"{gain(at, norm).text} (last {gain(at, norm, of='last').text})"


def _digits() -> Iterator[str]:
    """How far and how fast the norms train with one class; the level and the tests are those of their report."""
    at, skewed = plateau.means("classes:1"), "classes:1"
    assert all(plateau.is_equivalent(norm, skewed, tests=6) for norm in THREE) and only("plateau", "rounds") == 1000
    assert all(plateau.p_of_ranks(norm, skewed) < 0.05 / 12 for norm in THREE)
    assert set(plateau.chosen(skewed).query("norm in @THREE").groupby("norm").seed.nunique()) == {10}
    ln, fn, scale = (plateau.ratio(norm, skewed) for norm in ("ln", "fn", "scale"))
    yield (
        f"After 1,000 rounds of ten local steps, each at its own refined learning rate, none is at {at['none']:.1f} % "
        f"and the constant, feature and layer norm are at {span(at[[*THREE]])} %, each shown to be within a point of "
        "none;"
    )
    yield (
        f"to {plateau.level(skewed):.1f} % they need {scale:.2f}, {fn:.2f} and {ln:.2f} times its rounds (shown, ten "
        f"seeds). Batch norm is at {at['bn']:.1f} %."
    )


def _fashion_mnist() -> Iterator[str]:
    """The leads on Fashion-MNIST; that they shrink is shown until round 200 alone."""
    for norm in THREE:  # the first by Bonferroni's correction, the others without one
        assert shrinkage(norm, 100, 200) < LEVEL / len(THREE)
        assert shrinkage(norm, 100, 200, "last") > LEVEL and shrinkage(norm, 200, 400) > LEVEL
    planned = {one.value: one for one in gains("one_class_fashion_mnist", "none")}
    assert {planned[norm].verdict for norm in THREE} == {"open"}
    yield "On Fashion-MNIST the leads shrink from the first hundred rounds to the second, in means of five evaluations."
    yield "By the last evaluation alone, and after round 200, it is not shown that they shrink."
    ln = [_gain(FASHION_MNIST.after(rounds), "ln") for rounds in (100, 200, 300, 400)]
    yield (
        f"That of layer norm is {ln[0]} points in the mean of rounds 20 to 100, {ln[1]} in that of rounds 120 to 200, "
        f"{ln[2]} in that of rounds 220 to 300 and {ln[3]} in that of rounds 320 to 400."
    )
    yield (
        f"After 400 rounds the gain of layer norm, that of feature norm ({planned['fn'].text}) and that of the "
        f"constant ({planned['scale'].text}) are open (p {listed([planned[of].p for of in ('ln', 'fn', 'scale')], 2)}, "
        f"corrected for {WORDS[len(comparisons('one_class_fashion_mnist'))]} comparisons)."
    )


def _the_constant() -> Iterator[str]:
    """What a constant gains on digits, and what each of the two things that it does gains alone."""
    of = {row: part_gain(row) for row in PARTS if row != "none"}
    assert PARTS["constant"][1] == "scale(factor=16)" and HEADS.rounds == 100
    assert all(abs(last.mean) < last.half_width for last in (part_gain(row, of="last") for row in of))
    constant, initial, rate, frozen, _ = of.values()
    assert all(one.mean > one.half_width for one in (constant, initial, rate, frozen))
    yield (
        f"On digits a constant of 16, in the mean of rounds 60 to 100, gains {constant.text} points over none, the "
        f"larger initial weight alone {initial.text}, the higher rate alone {rate.text}, and the larger head, frozen, "
        f"{frozen.text}; by round 100 alone none of these is shown, and after 200 rounds the constant of `scale` gains "
        f"{gain(DIGITS.after(200), 'scale').text}."
    )


def _zhang_et_al() -> Iterator[str]:
    """What feature norm gains on CIFAR-10 at the paper's rate, and at ten times that rate."""
    (gained,) = comparisons("cifar10_full_length")
    runs, plain = federated("cifar10_full_length"), federated("cifar10_one_step").query("lr == 0.01")
    assert gained.verdict == "more" and only("cifar10_full_length", "E") == 10 and gained.last
    assert set(runs.lr) == set(plain.lr) == {0.01} and set(runs.rounds) == set(plain.rounds) == {10_000}
    fast = 100 * federated("cifar10_one_step").query("method == 'fedavg' and lr == 0.1").set_index("norm").value
    yield "The headline of Zhang et al. (2024) is reproduced at their learning rate, 0.01."
    yield (
        f"On CIFAR-10 with ten local steps feature norm gains {gained.text} points (last {gained.last[0]:.1f} ± "
        f"{gained.last[1]:.1f}) after 10,000 rounds ({WORDS[runs.seed.nunique()]} seeds; they: "
        f"{published.gain_of_fn(10)['classes:1']:.1f})."
    )
    yield (
        f"At ten times that rate and one local step it gains {fast['fn'] - fast['none']:.1f} points (one seed), so how "
        "much of the gain is the rate's is open."
    )


def _fedyogi() -> Iterator[str]:
    """The accuracies of FedYogi on digits at the rates at which it is flat."""
    flat, low, skewed = fedyogi_at_any_rate()
    means = skewed.groupby(["partition", "lr"]).value.mean()
    assert means[means.index.get_level_values("lr") > 3].max() < 0.15 and means["iid", 1] > 0.95
    yield (
        f"On digits FedYogi is at {span(flat)} % (mean of rounds 60 to 100) at each of seven learning rates from 1 to "
        f"1000, and at {span(low)} % at six lower ones;"
    )
    yield "With two classes or more and ten steps rates from 3.2 on fail."


def _lenet() -> Iterator[str]:
    """The gains over none in LeNet with one class, none of which is shown."""
    of = gains("fashion_mnist_lenet", "none", column=("classes:1",))
    assert {one.verdict for one in of} == {"open"}
    gained = span([one.mean for one in of])
    yield f"In LeNet the gains over none, {gained} points in the mean of rounds 800 to 1,000, are open"


def _settings() -> Iterator[str]:
    """The settings of the table, and the required version of Python."""
    lenet, cifar10 = federated("fashion_mnist_lenet").query("partition == 'classes:1'"), federated("cifar10_one_step")
    (rate,) = chosen("cifar10_one_step").lr.unique()
    of_rate = cifar10.query("partition == 'classes:1' and lr == @rate")
    (several,) = of_rate.groupby(["method", "norm"]).seed.nunique().unique()
    assert only("fashion_mnist_lenet", "E") == 10 and only("cifar10_one_step", "rounds") == 10_000
    digits, fashion = federated("one_class_digits").query("E == 10"), federated("one_class_fashion_mnist")
    seeds = digits.groupby("norm").seed.nunique()
    assert set(seeds[["none", "scale", "fn", "ln"]]) == {10} and set(seeds[["gn", "bn"]]) == {5}
    assert fashion.seed.nunique() == lenet.seed.nunique() == 5
    assert TAIL == 5 and {"one_class", "fashion_mnist_lenet", "cifar10_one_step"} <= WITH_TAIL
    yield (
        "Accuracy of FedAvg in %, one class a client, ten clients: mean of the last five evaluations ± half-width of "
        f"its {100 * CONFIDENCE:.0f} % interval for other seeds and test images, in brackets the last evaluation"
    )
    yield (
        f"Digits and Fashion-MNIST: MLP, E = 10 local steps a round, {WORDS[digits.lr.nunique()]} and "
        f"{WORDS[fashion.lr.nunique()]} learning rates, the best on held-out training data, ten seeds (digits; group "
        "and batch norm five) and five."
    )
    yield (
        f"LeNet: E = 10, five seeds, {WORDS[lenet.lr.nunique()]} learning rates. CIFAR-10: CNN, E = "
        f"{only('cifar10_one_step', 'E')}, learning rate {rate}, {WORDS[several]} seeds."
    )
    requires = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    yield f"Python {requires.removeprefix('>=')} or newer"


def _install() -> Iterator[str]:
    """What the first command installs, which docs/install.md has, too, and where pip refuses."""
    install = (ROOT / "docs/install.md").read_text()
    assert "5.9 GB" in install and "1.5 GB" in install and "Debian 12" in install
    yield from ("The first command installs 6 GB (1.5 GB without a GPU).", "as on Debian 12,")
