"""README's answer, its tables and its sentences with numbers, recomputed."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator

import numpy as np
import pandas as pd

from tests.audit import plateau, published
from tests.audit.cells import LEVEL, At, comparisons, gain, gains, values
from tests.audit.pages import span
from tests.audit.results_digits import FASHION_MNIST, HEADS, NORMS, PARTS, THREE, part_gain, shrinkage
from tests.audit.runs import ROOT, TAIL, WITH_TAIL, chosen, federated, only

#: The rows and columns of the quickstart, as the page names them.
METHODS = {"fedavg": "FedAvg", "fedyogi": "FedYogi"}
PARTITIONS = {"classes:1": "one class a client", "dirichlet:0.1": "Dirichlet(0.1)"}

CIFAR10 = At("cifar10_one_step", ("classes:1",))


def columns() -> dict[str, pd.DataFrame]:
    """Return the runs of FedAvg in each column of the table of findings."""
    others = {"Fashion-MNIST, after 400 rounds": FASHION_MNIST.after(400)}
    others |= {"CIFAR-10, after 10,000 rounds": CIFAR10.after(10_000)}
    plain = {name: at.runs.query("method == 'fedavg' and head == 'linear'") for name, at in others.items()}
    return {"digits, after 1,000 rounds": plateau.chosen("classes:1"), **plain}


def tables() -> list[list[list[str]]]:
    """Return the tables of the page: that of the quickstart, and how far and how fast FedAvg trains."""
    places = [values(At("quickstart", (partition,))) for partition in PARTITIONS]
    quick = [["method", "norm", *PARTITIONS.values()]]
    for method, norm in ((method, norm) for method in METHODS for norm in ("none", "ln", "fn")):
        cells = [of.loc[method, norm, "linear"] for of in places]
        texts = [f"{of['mean']:.2f} ± {of.half_width:.2f}" for of in cells]
        quick.append([METHODS[method], NORMS.get(norm, norm), *texts])
    found = [["normalization", *(head for name in columns() for head in (name, "how fast"))]]
    for norm, name in {"none": "none", **NORMS}.items():
        found.append([name])
        for runs in columns().values():
            of = runs.assign(first=plateau.first_at_level(runs))[runs.norm == norm]
            rounds = of["first"].median()
            fast = f"{rounds:,.0f}" if np.isfinite(rounds) else "never"
            found[-1] += [f"{100 * of.value.mean():.1f}", fast] if len(of) else ["–", "–"]
    return [quick, found]


def sentences() -> list[str]:
    """Return the sentences of the page that contain a number."""
    parts = (_try_it, _settings, _digits, _fashion_mnist, _the_constant, _zhang_et_al, _lenet)
    return [sentence for part in parts for sentence in part()]


def answers() -> list[str]:
    """Return the sentences that leaderboard.md opens with, too."""
    reproduced, gained = _zhang_et_al()
    return [*_digits(), *_fashion_mnist(), reproduced, gained]


def _try_it() -> Iterator[str]:
    """What the first command installs, which docs/install.md has, too, and the settings of the quickstart."""
    install = (ROOT / "docs/install.md").read_text()
    assert "5.9 GB" in install and "1.5 GB" in install
    requires = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    yield f"Python {requires.removeprefix('>=')} or newer"
    yield f"6 GB (1.5 GB without a GPU); then its {len(federated('quickstart'))} runs"
    yield (
        f"the accuracy in % on digits after {only('quickstart', 'rounds')} rounds, at learning rate "
        f"{only('quickstart', 'lr')} for all rows, not tuned."
    )
    yield "Tutorial, 30 minutes"


def _settings() -> Iterator[str]:
    """The levels and the settings of the table."""
    of_digits, of_fashion_mnist, of_cifar10 = columns().values()
    digits, fashion_mnist, cifar10 = (100 * plateau.level(of) for of in columns().values())
    yield f"rounds to {digits:.1f} % on digits, {fashion_mnist:.1f} % on Fashion-MNIST and {cifar10:.1f} % on CIFAR-10."
    several = of_digits.groupby("norm").seed.nunique()
    assert set(several[["none", *THREE]]) == {10} and set(several[["gn", "bn"]]) == {5}
    assert set(of_fashion_mnist.groupby("norm").seed.nunique()) == {5}
    assert set(of_digits.E) == set(of_fashion_mnist.E) == {10} and set(of_cifar10.E) == {1}
    assert set(of_cifar10.lr) == {0.01} and set(of_cifar10.groupby("norm").seed.nunique()) == {3}
    assert TAIL == 5 and {"plateau", "one_class", "cifar10_one_step"} <= WITH_TAIL
    yield "CIFAR-10: CNN, one local step, learning rate 0.01, three seeds."


def _digits() -> Iterator[str]:
    """How far and how fast the norms train with one class; the tests are those of their report."""
    skewed = "classes:1"
    assert all(plateau.is_equivalent(norm, skewed, tests=6) for norm in THREE) and only("plateau", "rounds") == 1000
    assert all(plateau.p_of_ranks(norm, skewed) < 0.05 / 12 for norm in THREE)
    ln, fn, scale = (plateau.ratio(norm, skewed) for norm in ("ln", "fn", "scale"))
    yield f"need {scale:.2f}, {fn:.2f} and {ln:.2f} times its rounds (both shown, ten seeds)."


def _fashion_mnist() -> Iterator[str]:
    """The leads on Fashion-MNIST; that they shrink is shown until round 200 alone, in means of five evaluations."""
    for norm in THREE:  # the first by Bonferroni's correction, the others without one
        assert shrinkage(norm, 100, 200) < LEVEL / len(THREE)
        assert shrinkage(norm, 100, 200, "last") > LEVEL and shrinkage(norm, 200, 400) > LEVEL
    planned = {one.value: one for one in gains("one_class_fashion_mnist", "none")}
    assert {planned[norm].verdict for norm in THREE} == {"open"}
    leads = [gain(FASHION_MNIST.after(rounds), "ln").text for rounds in (100, 200, 400)]
    yield (
        f"Layer norm leads by {leads[0]} points in the mean of rounds 20 to 100, by {leads[1]} in that of rounds 120 "
        f"to 200, and by {leads[2]} in that of rounds 320 to 400 (not shown)."
    )


def _the_constant() -> Iterator[str]:
    """What a constant gains on CIFAR-10 and on digits, and what the larger initial head gains alone."""
    scale, fn = (gain(CIFAR10, norm) for norm in ("scale", "fn"))
    constant, initial = (part_gain(row) for row in ("constant", "larger initial head"))
    assert PARTS["constant"][1] == "scale(factor=16)" and HEADS.rounds == 100
    yield "On CIFAR-10 one fixed number has most of the gain."
    yield (
        f"The constant gains {scale.text} points, feature norm {fn.text}. On digits, in the mean of rounds 60 to 100, "
        f"a constant of 16 gains {constant.text} points, and the larger initial last layer that it amounts to "
        f"{initial.text}."
    )


def _zhang_et_al() -> Iterator[str]:
    """What feature norm gains on CIFAR-10 at the paper's rate, and at ten times that rate."""
    (gained,) = comparisons("cifar10_full_length")
    runs, plain = federated("cifar10_full_length"), federated("cifar10_one_step").query("lr == 0.01")
    assert gained.verdict == "more" and only("cifar10_full_length", "E") == 10
    assert set(runs.lr) == set(plain.lr) == {0.01} and set(runs.rounds) == set(plain.rounds) == {10_000}
    fast = 100 * federated("cifar10_one_step").query("method == 'fedavg' and lr == 0.1").set_index("norm").value
    yield "The headline of Zhang et al. (2024) is reproduced at their learning rate, 0.01."
    yield (
        f"With ten local steps feature norm gains {gained.text} points on CIFAR-10 (they: "
        f"{published.gain_of_fn(10)['classes:1']:.1f}). At ten times that rate and one local step it gains "
        f"{fast['fn'] - fast['none']:.1f} (one seed), so the rate's part is open."
    )


def _lenet() -> Iterator[str]:
    """The gains over none in LeNet with one class, none of which is shown."""
    of = gains("fashion_mnist_lenet", "none", column=("classes:1",))
    assert {one.verdict for one in of} == {"open"} and chosen("fashion_mnist_lenet").seed.nunique() == 5
    yield f"LeNet, where gains of {span([one.mean for one in of])} points are not shown with five seeds;"
