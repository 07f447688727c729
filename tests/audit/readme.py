"""The table and the sentences of README's answer, recomputed."""

from __future__ import annotations

import tomllib
from collections.abc import Hashable, Mapping

import pandas as pd

from tests.audit import published
from tests.audit.planned import WITHIN, Comparison, comparisons
from tests.audit.runs import ROOT, SEARCHED, TAIL, chosen, federated, only
from tests.audit.tables import CONFIDENCE, At, Row, values

#: The columns of the table, with their heads.
COLUMNS: dict[str, At] = {
    "digits, one class": ("skew", ("classes:1", 10)),
    "digits, Dirichlet(0.1)": ("skew", ("dirichlet:0.1", 10)),
    "digits, iid": ("skew", ("iid", 10)),
    "Fashion-MNIST, one class": ("skew_fashion_mnist", ("classes:1",)),
    "CIFAR-10, one class, E = 1, 10,000 rounds": ("cifar10_one_step", ("classes:1",)),
}

#: The rows of the table.
ROWS: dict[tuple[str, str], Row] = {
    ("FedAvg", "none"): ("fedavg", "none", "linear"),
    ("FedAvg", "constant"): ("fedavg", "scale", "linear"),
    ("FedAvg", "feature norm"): ("fedavg", "fn", "linear"),
    ("FedAvg", "layer norm"): ("fedavg", "ln", "linear"),
    ("FedAvg", "group norm"): ("fedavg", "gn", "linear"),
    ("FedAvg", "batch norm"): ("fedavg", "bn", "linear"),
    ("FedAvg", "none, cosine head"): ("fedavg", "none", "cosine"),
    ("FedYogi", "none"): ("fedyogi", "none", "linear"),
}

#: Small numbers as the page writes them.
WORDS = ["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]

#: Comparisons and columns in words.
NORMS = {"fn": "feature norm", "ln": "layer norm", "gn": "group norm"}
CLASSES = {"classes:1": "one class", "classes:2": "two classes", "dirichlet:0.1": "Dirichlet data", "iid": "iid data"}


def table() -> list[list[str]]:
    """Return the table of the page."""
    numbers = {at: values(at).to_dict("index") for at in COLUMNS.values()}
    rows = [["method", "normalization", *COLUMNS]]
    for names, row in ROWS.items():
        cells = [_value(row, of[row], at) if row in of else "–" for at, of in numbers.items()]
        rows.append([*names, *cells])
    return rows


def _value(row: Row, cell: Mapping[Hashable, float], at: At) -> str:
    if pd.notna(cell["half_width"]):
        return f"{cell['mean']:.2f} ± {cell['half_width']:.2f}"
    beside = published.beside(row, at)
    return f"{cell['mean']:.2f} ({beside[0]:.2f})" if beside else f"{cell['mean']:.2f}"


def sentences() -> list[str]:
    """Return the sentences of the page that contain a number."""
    return [
        *_by_skew_and_steps(),
        *_gains(),
        _against_the_constant(),
        _on_fashion_mnist(),
        _one_rate(),
        *_settings(),
        _without_drift(),
        _python(),
    ]


def _by_skew_and_steps() -> list[str]:
    """Return from which skew and number of local steps on a normalization is shown to gain, and where none is."""
    gains = [one for one in comparisons("phase_diagram") if one.against == "none" and not one.between]
    places = [(one.column, one) for one in gains if one.value == "ln"]
    one_class = {column[1]: one for column, one in places if column[0] == "classes:1"}
    shown = {
        classes: [column[1] for column, one in places if column[0] == f"classes:{classes}" and one.verdict == "more"]
        for classes in (1, 2, 3, 5, 10)
    }
    assert shown == {1: [5, 10, 20, 50], 2: [10, 20, 50], 3: [50], 5: [], 10: []}
    elsewhere = [one for one in gains if one.column[1] in (1, 2) or one.column[0] in ("classes:5", "classes:10")]
    equivalent = sum(one.verdict == WITHIN for one in elsewhere)
    assert equivalent + sum(one.verdict == "open" for one in elsewhere) == len(elsewhere)
    means = [one.mean for one in elsewhere]
    return [
        f"At equal training ({SEARCHED['phase_diagram']:,} local steps in all)",
        f"layer normalization gains {_gain(one_class[5])} points with five local steps a round, "
        f"{_gain(one_class[10])} with ten and {_gain(one_class[20])} with twenty",
        f"these {len(elsewhere)} comparisons lie between {min(means):.1f} and {max(means):+.1f} points, and "
        f"{equivalent} of them are shown to be equivalent to no normalization within one point.",
    ]


def _gains() -> list[str]:
    """Return the gains over no normalization with one class and ten local steps."""
    gains = [one for one in comparisons("skew") if one.against == "none" and not one.between]
    said = {one.value: _gain(one) for one in gains if one.column == ("classes:1", 10)}
    return [
        f"On digits, with one class a client and ten local steps a round, FedAvg gains {said['scale']} points if its "
        "features are multiplied by the constant that gives them feature norm's length before training; "
        f"{said['fn']} with feature, {said['ln']} with layer and {said['gn']} with group normalization.",
    ]


def _against_the_constant() -> str:
    """Return what the comparisons of three normalizations with the constant show."""
    against = [one for one in comparisons("skew") if one.against == "scale" and not one.between]
    different = [one for one in against if one.verdict.startswith(("more", "less"))]
    (shown,) = (f"{NORMS[one.value]} with {CLASSES[str(one.column[0])]}, {_gain(one)}" for one in different)
    return (
        f"Of {len(against)} comparisons of these {WORDS[len(NORMS)]} with the constant {WORDS[len(different)]} shows a "
        f"difference: {shown} points."
    )


def _gain(one: Comparison) -> str:
    return f"{one.mean:.1f} ± {one.half_width:.1f}"


def _on_fashion_mnist() -> str:
    """Return what the constant and feature normalization gain on Fashion-MNIST with one class."""
    gains = {
        (one.value, one.against): one
        for one in comparisons("skew_fashion_mnist")
        if one.column == ("classes:1",) and not one.between
    }
    scale, fn, ln, beyond = (
        gains[pair] for pair in [("scale", "none"), ("fn", "none"), ("ln", "none"), ("fn", "scale")]
    )
    assert {one.verdict for one in (scale, fn, ln, beyond, gains["ln", "scale"])} == {"more"}
    return (
        f"in the same network with one class, the constant gains {_gain(scale)} points, feature norm {_gain(fn)} and "
        f"layer norm {_gain(ln)}: "
        f"feature norm is shown to gain {_gain(beyond)} more than the constant, and layer norm "
        f"{_gain(gains['ln', 'scale'])}."
    )


def _one_rate() -> str:
    """Return the expected accuracy of one drawn learning rate; a diverged run counts as guessing one of ten classes."""
    runs = federated("skew")
    runs = runs[(runs.method == "fedavg") & (runs.partition == "classes:1") & (runs.E == 10)]
    drawn = runs.assign(value=runs.value.fillna(0.1)).groupby(["norm", "head"]).value.mean() * 100
    said = [
        f"{drawn[row]:.0f} %" for row in [("none", "linear"), ("scale", "linear"), ("ln", "linear"), ("none", "cosine")]
    ]
    return (
        f"with one learning rate, drawn from {WORDS[runs.lr.nunique()]}, FedAvg ends at {said[0]} on average, with the "
        f"constant at {said[1]}, with layer normalization at {said[2]}, and with a cosine head at {said[3]} (diverged"
    )


def _settings() -> list[str]:
    """Return the settings of the table."""
    skew, fashion, cifar10 = (federated(sweep) for sweep in ("skew", "skew_fashion_mnist", "cifar10_one_step"))
    (clients,) = pd.concat([skew, fashion, cifar10]).clients.unique()
    (of_paper,) = published.published().dropna(subset="p").rounds.unique()
    (rate,) = chosen("cifar10_one_step").lr.unique()
    rounds, steps = only("cifar10_one_step", "rounds"), only("skew_fashion_mnist", "E")
    rounds_of = SEARCHED["skew_fashion_mnist"] // steps
    assert rounds == of_paper
    assert {column[1] for _, column in COLUMNS.values() if len(column) > 1} == {steps}
    alike = [
        (one.seed.nunique(), one.lr.nunique(), only(name, "model"))
        for name, one in (("skew", skew), ("skew_fashion_mnist", fashion))
    ]
    assert alike[0] == alike[1] and TAIL["skew"] == TAIL["skew_fashion_mnist"]
    return [
        f"Accuracy in %, mean ± half-width of its {100 * CONFIDENCE:.0f} % interval",
        f"{WORDS[clients].capitalize()} clients. Digits and Fashion-MNIST: MLP, {only('skew', 'rounds')} and "
        f"{rounds_of} rounds of E = {steps} local steps, {WORDS[skew.seed.nunique()]} seeds, mean of the last "
        f"{WORDS[TAIL['skew']]} evaluations, the best of {WORDS[skew.lr.nunique()]} learning rates on held-out "
        "training data. CIFAR-10: CNN, "
        f"{WORDS[cifar10.seed.nunique()]} seed, the paper's learning rate of "
        f"{rate}, E = {only('cifar10_one_step', 'E')} and {rounds:,} rounds, with the published numbers in brackets",
    ]


def _without_drift() -> str:
    """Return the gains of feature norm on CIFAR-10 at E = 1, at the paper's learning rate and at ten times that."""
    runs = federated("cifar10_one_step").query("method == 'fedavg'").pivot(index="lr", columns="norm", values="value")
    gain = 100 * (runs.fn - runs.none)
    return (
        f"with E = {only('cifar10_one_step', 'E')}, where FedAvg is SGD on all data, feature norm still gains "
        f"{gain[0.01]:.0f} points on CIFAR-10 at the paper's learning rate, and {gain[0.1]:.0f} at ten times that rate"
    )


def _python() -> str:
    """Return the required version of Python."""
    requires = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    return f"Python {requires.removeprefix('>=')} or newer"
