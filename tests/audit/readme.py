"""The table and the sentences of README's answer, recomputed."""

from __future__ import annotations

import tomllib
from collections.abc import Hashable, Mapping

import pandas as pd

from tests.audit import published
from tests.audit.planned import CONSTANTS, WITHIN, added_by_skew, gains
from tests.audit.runs import ROOT, ROW, SEARCHED, TAIL, chosen, federated, only
from tests.audit.tables import CONFIDENCE, At, Row, values

#: The columns of the table, with their heads.
COLUMNS: dict[str, At] = {
    "digits, one class": ("skew", ("classes:1", 10)),
    "digits, iid": ("skew", ("iid", 10)),
    "Fashion-MNIST, one class": ("skew_fashion_mnist", ("classes:1",)),
    "the same, LeNet": ("fashion_mnist_lenet", ("classes:1",)),
    "CIFAR-10, one class": ("cifar10_one_step", ("classes:1",)),
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
        _by_skew_and_steps(),
        _against_constants(),
        _against_the_constant(),
        _in_a_convolutional_network(),
        _fedyogi(),
        *_settings(),
        _without_drift(),
        _python(),
    ]


def _by_skew_and_steps() -> str:
    """Return what skew adds to the gain of layer normalization, and the largest gain without skew."""
    added = {
        data: {steps: one for (norm, steps), one in added_by_skew(data).items() if norm == "ln"} for data in PHASES
    }
    for of in added.values():
        assert of[1].verdict in (WITHIN, "open") and {of[steps].verdict for steps in (10, 20, 50)} == {"more"}
    feature_norm = [added_by_skew(data)["fn", 50] for data in PHASES]
    assert [one.verdict for one in feature_norm] == ["open", "more"]
    said = [
        text
        for of, beside in zip(added.values(), feature_norm, strict=True)
        for text in (*(of[steps].text for steps in (1, 10, 20, 50)), beside.text)
    ]
    digits, fashion = (max(one.mean for one in gains(data, "none") if one.column[0] == "classes:10") for data in PHASES)
    return (
        f"At equal training ({SEARCHED['phase_diagram']:,} local steps in all) layer normalization gains this much "
        "more with one class a client than with all ten: on digits {} points with one local step a round, {} with ten, "
        "{} with twenty and {} with fifty (feature norm there {}, open); on Fashion-MNIST {}, {}, {} and {} "
        "({}).".format(*said)
        + f" With all ten classes the largest gain of a normalization is {digits:.1f} and {fashion:.1f} points."
    )


def _against_constants() -> str:
    """Return what feature and layer norm gain more than each constant on Fashion-MNIST with one class."""
    more = [one for constant in CONSTANTS for one in gains("constants", constant, "fedavg", ("classes:1",))]
    assert all(one.verdict.startswith("more") for one in more) and {one.value for one in more} == {"fn", "ln"}
    means = [one.mean for one in more]
    return (
        f"with one class and {WORDS[only('constants', 'E')]} local steps {min(means):.1f} to {max(means):.1f} points "
        f"more than each of {WORDS[len(CONSTANTS)]} constants."
    )


def _against_the_constant() -> str:
    """Return what the comparisons of three normalizations with the constant show on digits."""
    against = gains("skew", "scale", "fedavg")
    different = [one for one in against if one.verdict.startswith(("more", "less"))]
    equivalent, undecided = (sum(one.verdict == verdict for one in against) for verdict in (WITHIN, "open"))
    assert len(different) + equivalent + undecided == len(against)
    (shown,) = (one.text for one in different)
    over_none = {one.value: one for one in gains("skew", "none", "fedavg", ("classes:1", 10))}
    assert {one.verdict for one in over_none.values()} == {"more"}
    scale, fn, ln = (over_none[norm].text for norm in ("scale", "fn", "ln"))
    return (
        f"with one class and ten local steps it gains {scale} points, feature norm {fn} and layer norm {ln}. Of "
        f"{len(against)} comparisons with it {WORDS[len(different)]} shows a difference, {shown} points, {equivalent} "
        f"show equivalence within one point, and {undecided} are open."
    )


def _in_a_convolutional_network() -> str:
    """Return what a constant and the normalizations gain in LeNet after long training, with one class and with all."""
    of_place = [
        {one.value: one for one in gains("fashion_mnist_lenet", "none", column=(partition,))}
        for partition in ("classes:1", "iid")
    ]
    assert [{one.verdict for one in of.values()} for of in of_place] == [{"open"}, {WITHIN}]
    scale, fn, ln, gn = (of_place[0][norm].text for norm in ("scale", "fn", "ln", "gn"))
    seeds = WORDS[federated("fashion_mnist_lenet").seed.nunique()]
    return (
        f"In LeNet, after {SEARCHED['fashion_mnist_lenet']:,} local steps with one class, a constant gains {scale} "
        f"points, feature norm {fn}, layer norm {ln} and group norm {gn} (each open with {seeds} "
        "seeds); with iid data each changes less than a point (equivalent)."
    )


def _fedyogi() -> str:
    """Return where FedYogi ends without a normalization and FedAvg with layer norm, with one class."""
    places: list[At] = [("skew", ("classes:1", 10)), ("constants", ("classes:1",))]
    rows: list[Row] = [("fedyogi", "none", "linear"), ("fedavg", "ln", "linear")]
    of = [values(at).to_dict("index") for at in places]
    yogi, avg = ([f"{one[row]['mean']:.1f} ± {one[row]['half_width']:.1f}" for one in of] for row in rows)
    rates = [
        of.lr.unique().item()
        for sweep, (partition, *_) in places
        for of in [
            chosen(sweep).query("method == 'fedyogi' and norm == 'none' and partition == @partition and E == 10")
        ]
    ]
    at_each_rate = drawn()["fedyogi"].droplevel("head")
    others = at_each_rate.drop("none")
    with_norm = {one.value: one for one in gains("constants", "none", "fedyogi")}
    assert (with_norm["fn"].verdict, with_norm["ln"].verdict) == (WITHIN, "open")
    return (
        f"With one class and {WORDS[only('constants', 'E')]} local steps it ends without a normalization at {yogi[0]} "
        f"% on digits and {yogi[1]} % on Fashion-MNIST after {SEARCHED['scale_or_geometry']:,} steps, at "
        f"rates of {rates[0]:.0f} and {rates[1]:.0f}; FedAvg with "
        f"layer norm at {avg[0]} and {avg[1]} %. On Fashion-MNIST feature norm changes this by "
        f"{with_norm['fn'].text} points (equivalent), layer norm by {with_norm['ln'].text}. At a rate "
        f"drawn from {WORDS[federated('skew').lr.nunique()]} it ends on digits at {at_each_rate['none']:.0f} % "
        f"without a normalization, and at {others.min():.0f} to {others.max():.0f} % with one or with a constant."
    )


def drawn() -> pd.Series[float]:
    """Return the mean accuracy over all learning rates of ``skew``, with one class and E = 10, by row, in percent.

    A diverged run counts as guessing one of ten classes.
    """
    runs = federated("skew").query("partition == 'classes:1' and E == 10")
    return 100 * runs.assign(value=runs.value.fillna(0.1)).groupby(ROW).value.mean()


def _settings() -> list[str]:
    """Return the settings of the table."""
    skew, fashion, lenet, cifar10 = (
        federated(sweep) for sweep in ("skew", "skew_fashion_mnist", "fashion_mnist_lenet", "cifar10_one_step")
    )
    (clients,) = pd.concat([skew, fashion, lenet, cifar10]).clients.unique()
    (of_paper,) = published.published().dropna(subset="p").rounds.unique()
    (rate,) = chosen("cifar10_one_step").lr.unique()
    rounds, steps = only("cifar10_one_step", "rounds"), only("skew_fashion_mnist", "E")
    rounds_of = SEARCHED["skew_fashion_mnist"] // steps
    assert rounds == of_paper
    assert {column[1] for _, column in COLUMNS.values() if len(column) > 1} == {steps}
    alike = [
        (one.seed.nunique(), only(name, "model")) for name, one in (("skew", skew), ("skew_fashion_mnist", fashion))
    ]
    assert alike[0] == alike[1] and TAIL["skew"] == TAIL["skew_fashion_mnist"] == TAIL["fashion_mnist_lenet"]
    assert only("fashion_mnist_lenet", "E") == steps
    return [
        f"Accuracy in %, mean ± half-width of its {100 * CONFIDENCE:.0f} % interval",
        f"{WORDS[clients].capitalize()} clients. Digits and Fashion-MNIST: MLP, {only('skew', 'rounds')} and "
        f"{rounds_of} rounds of E = {steps} local steps, {WORDS[skew.seed.nunique()]} seeds, mean of the last "
        f"{WORDS[TAIL['skew']]} evaluations, the best of {WORDS[skew.lr.nunique()]} and {WORDS[fashion.lr.nunique()]} "
        f"learning rates on held-out "
        f"training data; LeNet: {SEARCHED['fashion_mnist_lenet'] // steps:,} rounds, "
        f"{WORDS[lenet.seed.nunique()]} seeds, {WORDS[lenet.lr.nunique()]} learning rates. CIFAR-10: CNN, "
        f"{WORDS[cifar10.seed.nunique()]} seed, the paper's learning rate of "
        f"{rate}, E = {only('cifar10_one_step', 'E')} and {rounds:,} rounds, with the published numbers in brackets",
    ]


def _without_drift() -> str:
    """Return the gains of feature norm and a constant on CIFAR-10 at E = 1, at the paper's rate and ten times that."""
    runs = federated("cifar10_one_step").query("method == 'fedavg'").pivot(index="lr", columns="norm", values="value")
    gain = 100 * runs.sub(runs.none, axis="index")
    assert pd.isna(gain.scale[0.1]), "it diverges"
    return (
        f"with E = {only('cifar10_one_step', 'E')}, where FedAvg is SGD on all data, feature norm still gains "
        f"{gain.fn[0.01]:.0f} points on CIFAR-10 at the paper's learning rate, and a constant {gain.scale[0.01]:.0f}; "
        f"at ten times that rate feature norm gains {gain.fn[0.1]:.0f}, and the constant diverges (one seed each)."
    )


def _python() -> str:
    """Return the required version of Python."""
    requires = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    return f"Python {requires.removeprefix('>=')} or newer"
