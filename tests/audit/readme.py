"""README's answer, its tables and its sentences with numbers, recomputed."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator

import numpy as np

from tests.audit import learning_rate, measured, published
from tests.audit.cells import WITHIN, At, Planned, comparisons, gains, ranked, values
from tests.audit.measured import THREE, Column
from tests.audit.pages import listed, span
from tests.audit.results_digits import NORMS
from tests.audit.runs import ROOT, TAIL, WITH_TAIL, chosen, federated, only

#: The rows and columns of the quickstart, as the page names them.
METHODS = {"fedavg": "FedAvg", "fedyogi": "FedYogi"}
PARTITIONS = {"classes:1": "one class a client", "dirichlet:0.1": "Dirichlet(0.1)"}

#: The columns of the table of findings.
COLUMNS = {
    "digits, after 1,000 rounds": Column("plateau"),
    "Fashion-MNIST, after 800 rounds": Column("fashion_mnist_long"),
    "CIFAR-10, after 10,000 rounds": Column("cifar10_one_step", E=1, lr=0.01),
}


def tables() -> list[list[list[str]]]:
    """Return the tables of the page: that of the quickstart, and how far and how fast FedAvg trains."""
    places = [values(At("quickstart", (partition,))) for partition in PARTITIONS]
    quick = [["method", "norm", *PARTITIONS.values()]]
    for method, norm in ((method, norm) for method in METHODS for norm in ("none", "ln", "fn")):
        cells = [of.loc[method, norm, "linear"] for of in places]
        texts = [f"{of['mean']:.2f} ± {of.half_width:.2f}" for of in cells]
        quick.append([METHODS[method], NORMS.get(norm, norm), *texts])
    found = [["normalization", *(head for name in COLUMNS for head in (name, "how fast"))]]
    for norm, name in {"none": "none", **NORMS}.items():
        found.append([name])
        for column in COLUMNS.values():
            value, rounds = column.by_seed().get(f"fedavg {norm}"), column.rounds_to_level().get(f"fedavg {norm}")
            if value is None or rounds is None:
                found[-1] += ["–", "–"]
                continue
            fast = f"{rounds.median():,.0f}" if np.isfinite(rounds.median()) else "never"
            found[-1] += [f"{value.mean():.1f}", fast]
    return [quick, found]


def sentences() -> list[str]:
    """Return the sentences of the page that contain a number."""
    parts = (_try_it, _settings, _digits, _fashion_mnist, _zhang_et_al, _methods, _lenet)
    return [sentence for part in parts for sentence in part()]


def answers() -> list[str]:
    """Return the sentences that leaderboard.md opens with, too."""
    reproduced, gained = _zhang_et_al()
    return [*_digits(), *_fashion_mnist(), *_methods(), reproduced, gained]


def _try_it() -> Iterator[str]:
    """What the first command installs, which docs/install.md has, too, and the settings of the quickstart."""
    install = (ROOT / "docs/install.md").read_text()
    assert "6.4 GB" in install and "1.7 GB" in install
    requires = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    yield f"Python {requires.removeprefix('>=')} or newer"
    yield f"6 GB (1.7 GB without a GPU); then its {len(federated('quickstart'))} runs"
    yield (
        f"the accuracy in % on digits after {only('quickstart', 'rounds')} rounds, at learning rate "
        f"{only('quickstart', 'lr')} for all rows, not tuned."
    )
    yield "Tutorial, 30 minutes"


def _settings() -> Iterator[str]:
    """The levels and the settings of the table."""
    digits, fashion_mnist, cifar10 = COLUMNS.values()
    levels = [column.level() for column in COLUMNS.values()]
    yield "rounds to {:.1f} % on digits, {:.1f} % on Fashion-MNIST and {:.1f} % on CIFAR-10.".format(*levels)
    several = digits.by_seed().count()
    assert set(several[_rows("none", *THREE)]) == {10} and set(several[_rows("gn", "bn")]) == {5}
    assert set(fashion_mnist.by_seed().count()) == {10} and digits.E == fashion_mnist.E == 10
    assert set(cifar10.by_seed()[_rows("none", *THREE)].count()) == {3}
    assert TAIL == 5 and {"plateau", "cifar10_one_step"} <= WITH_TAIL
    none = learning_rate.one_step()["fedavg none"]
    yield (
        "CIFAR-10: CNN, one local step, learning rate 0.01, three seeds; at 0.1 none reaches "
        f"{none[0.1]:.1f} % (one seed)."
    )


def _rows(*norms: str) -> list[str]:
    return [f"fedavg {norm}" for norm in norms]


def _shown(sweep: str, partition: str) -> dict[tuple[str, str], str]:
    """Return the verdicts on how far and how fast in a column, with the checks that they do not pass, by value."""
    both: list[Planned] = [*comparisons(sweep), *ranked(sweep)]
    here = [one for one in both if one.column[0] == partition and one.measure != "easy"]
    return {(one.measure, one.value): one.checked for one in here}


def _digits() -> Iterator[str]:
    """How far and how fast the norms train with one class and with two."""
    one, two = (_shown(*at) for at in (("plateau", "classes:1"), ("plateau_skew", "classes:2")))
    assert [one["far", norm] for norm in THREE] == [WITHIN] * 3 and only("plateau", "rounds") == 1000
    assert [one["fast", norm] for norm in THREE] == ["open", "open", "faster"]
    assert (two["far", "ln"], two["fast", "ln"]) == (WITHIN, "faster")
    every = (*ranked("plateau"), *ranked("plateau_skew"))
    ratio = {(one.column[0], one.measure, one.value): one.effect for one in every}
    scale, fn, ln = (ratio["classes:1", "fast", norm] for norm in THREE)
    (p,) = {one.p for one in every if one.column == ("classes:1",) and (one.measure, one.verdict) == ("fast", "open")}
    yield (
        f"need {scale:.2f}, {fn:.2f} and {ln:.2f} times its rounds (layer norm: shown; the other two: open, p {p:.3f} "
        "after correction)."
    )
    others = measured.ratios_of_other_seeds()
    assert all(len(one) == 30 and min(one.index) == 10 and (one <= 1).all() for one in others)
    yield f"Thirty other seeds agree: {listed([one.median() for one in others], 2)}; no seed needs more rounds."
    assert ratio["classes:2", "fast", "ln"] == 0.5
    yield "With two classes layer norm does so in half the rounds."


def _fashion_mnist() -> Iterator[str]:
    """The leads on Fashion-MNIST after 800 rounds and after three times as many, and those without skew."""
    found = {(one.value, one.column[0]): one for one in comparisons("fashion_mnist_long")}
    assert all("rising" in one.doubts or one.verdict == "open" for one in found.values())
    leads = [found[norm, "classes:1"] for norm in THREE]
    iid = [found[norm, "iid"] for norm in THREE]
    assert all(WITHIN in one.verdict for one in iid)
    gaps = measured.leads_over_none(measured.LONG["fashion_mnist"])
    later = [f"{mean:.1f} ± {half_width:.1f}" for mean, half_width in gaps]
    assert len(measured.LONG["fashion_mnist"].by_seed()) == 10
    assert all(mean > half_width for mean, half_width in gaps[1:])
    yield (
        f"The constant, feature and layer norm lead by {listed([one.text for one in leads])} points after 800 rounds, "
        f"and by {listed(later)} after 2,400 (ten seeds)"
    )
    yield f"without skew the leads are {span([one.mean for one in iid])}"


def _zhang_et_al() -> Iterator[str]:
    """What feature norm gains on CIFAR-10 at the paper's rate, and where each row has the best rate tried."""
    (gained,) = comparisons("cifar10_full_length")
    runs = federated("cifar10_full_length")
    assert gained.verdict == "more" and only("cifar10_full_length", "E") == 10
    assert set(runs.lr) == {0.01} and set(runs.rounds) == {10_000}
    same, tuned = learning_rate.leads(2000)
    step, step_tuned = learning_rate.one_step_leads()
    assert tuned < same.mean / 2
    yield "Most of the label-skew paper's gain comes from its learning rate, in the runs we have."
    yield (
        f"At its rate, 0.01, the headline is reproduced: feature norm gains {gained.text} points on CIFAR-10 after "
        f"10,000 rounds (they: {published.gain_of_fn(10)['classes:1']:.1f}). Where each has the best rate tried, "
        f"{same.text} points after 2,000 rounds become {tuned:.1f}, and with one local step "
        f"{step:.1f} after 10,000 become {step_tuned:.1f} (one seed)."
    )


def _methods() -> Iterator[str]:
    """What the methods gain over FedAvg without a normalization; corrected for the planned comparisons."""
    found = {(one.value, one.column[0]): one for one in comparisons("plateau_methods")}
    skewed, dirichlet = "classes:1", "dirichlet:0.1"
    assert found["scaffold", dirichlet].checked == WITHIN and only("plateau_methods", "rounds") == 300
    assert all(one.verdict == "open" or one.doubts or one.verdict == WITHIN for one in found.values())
    texts = {
        method: [found[method, at].text for at in (skewed, dirichlet)] for method in ("fedyogi", "scaffold", "feddyn")
    }
    yield (
        "After 300 rounds with one class and with Dirichlet(0.1) FedYogi leads by {} and {} points, SCAFFOLD by {} and "
        "{}, FedDyn by {} and {}"
    ).format(*(text for both in texts.values() for text in both))
    one_class = Column("plateau_methods")
    rounds = one_class.rounds_to_level().median()
    yield (
        f"We planned no comparison of speed: to {one_class.level():.1f} % with one class FedYogi needs "
        f"{rounds['fedyogi none']:.0f} rounds and FedAvg {rounds['fedavg none']:.0f}."
    )


def _lenet() -> Iterator[str]:
    """The gains over none in LeNet with one class, none of which is shown."""
    of = gains("fashion_mnist_lenet", "none", column=("classes:1",))
    assert {one.verdict for one in of} == {"open"} and chosen("fashion_mnist_lenet").seed.nunique() == 5
    yield f"LeNet, where gains of {span([one.mean for one in of])} points are not shown with five seeds;"
