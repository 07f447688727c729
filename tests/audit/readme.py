"""The table and the sentences of README's answer, recomputed."""

from __future__ import annotations

import tomllib
from collections.abc import Hashable, Mapping

import pandas as pd
from scipy import stats

from tests.audit import published
from tests.audit.planned import CONSTANTS, LEVEL, added_by_skew, comparisons, gains
from tests.audit.runs import ROOT, SEARCHED, TAIL, chosen, federated, only
from tests.audit.tables import CONFIDENCE, At, Row, values

#: The columns of the table, with their heads.
COLUMNS: dict[str, At] = {
    "digits, one class": ("skew", ("classes:1", 10)),
    "digits, iid": ("skew", ("iid", 10)),
    "Fashion-MNIST, one class": ("skew_fashion_mnist", ("classes:1",)),
    "Fashion-MNIST, one class, LeNet": ("fashion_mnist_lenet", ("classes:1",)),
    "CIFAR-10, one class": ("cifar10_one_step", ("classes:1",)),
}

#: The rows of the table.
ROWS: dict[tuple[str, str], Row] = {
    ("FedAvg", "none"): ("fedavg", "none", "linear"),
    ("FedAvg", "constant (`scale`)"): ("fedavg", "scale", "linear"),
    ("FedAvg", "feature norm (`fn`)"): ("fedavg", "fn", "linear"),
    ("FedAvg", "layer norm (`ln`)"): ("fedavg", "ln", "linear"),
    ("FedAvg", "group norm (`gn`)"): ("fedavg", "gn", "linear"),
    ("FedAvg", "batch norm (`bn`)"): ("fedavg", "bn", "linear"),
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
    interval = f" ± {cell['half_width']:.2f}" if pd.notna(cell["half_width"]) else ""
    beside = published.beside(row, at)
    return f"{cell['mean']:.2f}{interval}{f' ({beside[1]:.2f})' if beside else ''}"


def sentences() -> list[str]:
    """Return the sentences of the page that contain a number."""
    return [
        _what_survives(),
        _by_skew_and_steps(),
        _against_constants(),
        _against_the_constant(),
        _in_a_convolutional_network(),
        _fedyogi(),
        *_settings(),
        _without_drift(),
        _python(),
    ]


def _what_survives() -> str:
    """Return where FedAvg ends on digits with one class, by normalization."""
    ends = values(("skew", ("classes:1", 10))).loc["fedavg", :, "linear"]
    survive = ends.loc[["fn", "ln", "gn"]]
    assert {one.verdict for one in gains("skew", "none", "fedavg", ("classes:1", 10))} == {"more"}
    none, batch = ends.loc["none"], ends.loc["bn"]
    assert batch["mean"] + batch["half_width"] < none["mean"] - none["half_width"]
    return (
        f"With ten local steps a round FedAvg ends at {survive['mean'].min():.1f} to "
        f"{survive['mean'].max():.1f} % with these three, at {none['mean']:.1f} % with none and at "
        f"{batch['mean']:.1f} % with batch norm."
    )


def _by_skew_and_steps() -> str:
    """Return what skew adds to the gain of layer normalization with many local steps a round, and with one."""
    digits, fashion = (
        {steps: one for (norm, steps), one in added_by_skew(data).items() if norm == "ln"} for data in PHASES
    )
    for of in (digits, fashion):
        assert of[1].verdict == "open" and {of[steps].verdict for steps in (5, 10, 20, 50)} == {"more"}
    (longer,) = (one for one in comparisons("skew_fashion_mnist") if one.between and one.value == "ln")
    assert longer.verdict == "more" and only("skew_fashion_mnist", "E") == only("fashion_mnist_lenet", "E") == 10
    (lenet,) = (one for one in comparisons("fashion_mnist_lenet") if one.between and one.value == "ln")
    assert lenet.verdict == "open"
    return (
        f"Skew adds to the gain where clients take several local steps: after {SEARCHED['phase_diagram']:,} local "
        f"steps, ten a round, layer norm gains {digits[10].text} points more with one class than with all ten on "
        f"digits, and {fashion[10].text} on Fashion-MNIST ({longer.text} after {SEARCHED['skew_fashion_mnist']:,}); "
        f"with one a round {digits[1].text} and {fashion[1].text} (open). In LeNet, with ten, the {lenet.text} points "
        "are open."
    )


def _against_the_constant() -> str:
    """Return what the constant and two normalizations gain on digits."""
    over_none = {one.value: one for one in gains("skew", "none", "fedavg", ("classes:1", 10))}
    assert {one.verdict for one in over_none.values()} == {"more"}
    assert {one.verdict for one in gains("skew", "scale", "fedavg", ("classes:1", 10))} == {"open"}
    scale, fn, ln = (over_none[norm].text for norm in ("scale", "fn", "ln"))
    return (
        f"The constant that makes features as long as feature norm does before training gains {scale} points on "
        f"digits, feature norm {fn} and layer norm {ln}."
    )


def _against_constants() -> str:
    """Return what they gain more than the best constant on Fashion-MNIST with one class, and later than ``scale``."""
    column = ("classes:1",)
    more = {constant: gains("constants", constant, "fedavg", column) for constant in CONSTANTS}
    assert {(one.value, one.verdict) for of in more.values() for one in of} == {("fn", "more"), ("ln", "more")}
    means = chosen("constants").query("method == 'fedavg' and partition == 'classes:1'").groupby("norm").value.mean()
    later = {one.value: one for one in gains("skew_fashion_mnist", "scale", column=column)}
    assert {later["fn"].verdict, later["ln"].verdict} == {"more"}
    (steps,) = {only("constants", "E"), only("skew_fashion_mnist", "E")}
    first, last = (SEARCHED[sweep] // steps for sweep in ("scale_or_geometry", "skew_fashion_mnist"))
    fn, ln = more[means[[*CONSTANTS]].idxmax()]
    return (
        f"On Fashion-MNIST these two gain {fn.mean:.1f} and {ln.mean:.1f} points more than the best of "
        f"{WORDS[len(CONSTANTS)]} constants after {first} rounds, and {later['fn'].mean:.1f} and "
        f"{later['ln'].mean:.1f} more than `scale` after {last}."
    )


def _in_a_convolutional_network() -> str:
    """Return what is shown in LeNet with label skew."""
    partitions = ("classes:1", "classes:2", "dirichlet:0.1")
    of = [one for at in partitions for one in gains("fashion_mnist_lenet", "none", column=(at,))]
    assert {one.verdict for one in of} == {"open"}
    seeds = federated("fashion_mnist_lenet").groupby("partition").seed.nunique()
    one_class, *others = (WORDS[seeds[partition]] for partition in partitions)
    (of_others,) = set(others)
    return (
        f"In LeNet no gain is shown with one class ({one_class} seeds), two classes or Dirichlet(0.1) ({of_others} "
        "seeds each)."
    )


def _fedyogi() -> str:
    """Return where FedYogi ends without a normalization and FedAvg with layer norm, with one class."""
    places: list[At] = [("skew", ("classes:1", 10)), ("constants", ("classes:1",))]
    rows: list[Row] = [("fedyogi", "none", "linear"), ("fedavg", "ln", "linear")]
    of = [values(at).to_dict("index") for at in places]
    (rounds,) = {only("skew", "rounds"), SEARCHED["scale_or_geometry"] // only("constants", "E")}
    assert not [one for one in gains("constants", "none", "fedyogi") if one.verdict.startswith("more")]
    yogi, avg = ([f"{one[row]['mean']:.1f} ± {one[row]['half_width']:.1f}" for one in of] for row in rows)
    runs = {sweep: chosen(sweep).query("method == 'fedyogi' and E == 10") for sweep, _ in places}
    for _, of_column in runs["skew"].groupby("partition"):
        of_seed = of_column.pivot(index="seed", columns="norm", values="value")
        over_none = of_seed.drop(columns="none").sub(of_seed["none"], axis=0)
        assert (stats.ttest_1samp(over_none, 0, alternative="greater").pvalue > LEVEL / len(over_none.columns)).all()
    rates = {sweep: of.query("norm == 'none'").groupby("partition").lr.unique() for sweep, of in runs.items()}
    one_class = [rates[sweep]["classes:1"].item() for sweep, _ in places]
    others = [rate.item() for rate in rates["skew"].drop("classes:1")]
    assert len(others) == 3
    return (
        f"After {rounds} rounds with one class and ten local steps it is at {yogi[0]} % on digits and {yogi[1]} % on "
        f"Fashion-MNIST, FedAvg with layer norm at {avg[0]} and {avg[1]} %. Its best learning rates without one are "
        f"{one_class[0]:.0f} and {one_class[1]:.0f}: a step of this size ends training on one class, and ten steps end "
        "where one does (equivalent). With ten local steps on digits with two classes, Dirichlet(0.1) and iid data "
        f"they are {min(others):.1g} to {max(others):.1g}, and no gain is shown either."
    )


def _settings() -> list[str]:
    """Return the settings of the table."""
    skew, fashion, lenet, cifar10 = (
        federated(sweep) for sweep in ("skew", "skew_fashion_mnist", "fashion_mnist_lenet", "cifar10_one_step")
    )
    (clients,) = pd.concat([skew, fashion, lenet, cifar10]).clients.unique()
    lenet = lenet.query("partition == 'classes:1'")
    (of_paper,) = published.published().dropna(subset="p").rounds.unique()
    (rate,) = chosen("cifar10_one_step").lr.unique()
    (several,) = (
        cifar10.query("partition == 'classes:1' and lr == @rate").groupby(["method", "norm"]).seed.nunique().unique()
    )
    rounds, steps = only("cifar10_one_step", "rounds"), only("skew_fashion_mnist", "E")
    rounds_of = SEARCHED["skew_fashion_mnist"] // steps
    assert rounds == of_paper
    assert {column[1] for _, column in COLUMNS.values() if len(column) > 1} == {steps}
    alike = [
        (one.seed.nunique(), only(name, "model")) for name, one in (("skew", skew), ("skew_fashion_mnist", fashion))
    ]
    assert alike[0] == alike[1]
    (tail,) = {TAIL[sweep] for sweep, _ in COLUMNS.values()}
    assert only("fashion_mnist_lenet", "E") == steps
    at: At = ("cifar10_one_step", ("classes:1",))
    there = [row for row in ROWS.values() if row in values(at).index]
    *first, last = (f"{one[0]:.2f}" for row in there if (one := published.beside(row, at)))
    return [
        f"Accuracy in %, mean of the last {WORDS[tail]} evaluations ± half-width of its {100 * CONFIDENCE:.0f} % "
        "interval for other seeds and test images; ",
        f"{WORDS[clients].capitalize()} clients. Digits and Fashion-MNIST: MLP, {only('skew', 'rounds')} and "
        f"{rounds_of} rounds of E = {steps} local steps, {WORDS[skew.seed.nunique()]} seeds, the best of "
        f"{WORDS[skew.lr.nunique()]} and {WORDS[fashion.lr.nunique()]} learning rates on held-out training data; "
        f"LeNet: {SEARCHED['fashion_mnist_lenet'] // steps:,} rounds, "
        f"{WORDS[lenet.seed.nunique()]} seeds, {WORDS[lenet.lr.nunique()]} learning rates. CIFAR-10: CNN, "
        f"the learning rate of Zhang et al. (2024), {rate}, E = {only('cifar10_one_step', 'E')} and {rounds:,} "
        f"rounds, {WORDS[several]} seeds, with their numbers, of the last round, in brackets (ours then: "
        f"{', '.join(first)} and {last}). –",
    ]


def _without_drift() -> str:
    """Return the gains over none on CIFAR-10 at E = 1, at the paper's rate and of feature norm at ten times that."""
    sweep, column = "cifar10_one_step", ("classes:1",)
    fast = federated(sweep).query("method == 'fedavg' and lr == 0.1").set_index("norm").value
    over_none, over_constant = (
        {one.value: one for one in gains(sweep, against, "fedavg", column)} for against in ("none", "scale")
    )
    assert {one.verdict for of in (over_none, over_constant) for one in of.values()} == {"more"}
    scale, fn, ln = (over_none[norm].text for norm in ("scale", "fn", "ln"))
    assert only(sweep, "E") == 1
    return (
        f"With one local step a round, where FedAvg is SGD on all data, feature norm gains {fn} points on CIFAR-10 at "
        f"the rate of Zhang et al. (2024), layer norm {ln} and a constant {scale} (three seeds); the two gain "
        f"{over_constant['fn'].text} and {over_constant['ln'].text} more than it (by the last round alone, the "
        "first rule, both are open). At ten times that rate feature norm "
        f"gains {100 * (fast['fn'] - fast['none']):.1f} (one seed)."
    )


def _python() -> str:
    """Return the required version of Python."""
    requires = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    return f"Python {requires.removeprefix('>=')} or newer"
