"""The table and the sentences of README's answer, recomputed."""

from __future__ import annotations

import tomllib
from collections.abc import Hashable, Mapping

import pandas as pd
from scipy import stats

from tests.audit import published
from tests.audit.planned import LEVEL, added_by_skew, comparisons, gains
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

#: The constant, feature and layer norm.
NORMS = ("scale", "fn", "ln")

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
        _fedyogi(),
        *_the_constant(),
        _by_skew_and_steps(),
        _with_ten_local_steps(),
        _at_ten_times_the_rate(),
        _in_a_convolutional_network(),
        *_settings(),
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
        f"After {only('skew', 'rounds')} rounds of ten local steps (batches) FedAvg ends at "
        f"{survive['mean'].min():.1f} to {survive['mean'].max():.1f} % with these three, at {none['mean']:.1f} % with "
        f"none and at {batch['mean']:.1f} % with batch norm."
    )


def _fedyogi() -> str:
    """Return where FedYogi ends on digits with one class; with ten local steps it is not shown to gain from a norm."""
    for _, of_column in chosen("skew").query("method == 'fedyogi' and E == 10").groupby("partition"):
        of_seed = of_column.pivot(index="seed", columns="norm", values="value")
        over_none = of_seed.drop(columns="none").sub(of_seed["none"], axis=0)
        assert (stats.ttest_1samp(over_none, 0, alternative="greater").pvalue > LEVEL / len(over_none.columns)).all()
    end = values(("skew", ("classes:1", 10))).loc["fedyogi", "none", "linear"]["mean"]
    return f"FedYogi ends at {end:.1f} % with none, at a learning rate that ends local training after one step."


def _the_constant() -> list[str]:
    """Return what the constant, feature and layer norm gain with one class, and the share that the constant has."""
    cells = (
        ("skew", "fedavg", ("classes:1", 10)),
        ("cifar10_one_step", "fedavg", ("classes:1",)),
        ("skew_fashion_mnist", "", ("classes:1",)),  # FedAvg alone
    )
    digits, cifar10, fashion = ({one.value: one for one in gains(sweep, "none", *where)} for sweep, *where in cells)
    assert {of[norm].verdict for of in (digits, cifar10, fashion) for norm in NORMS} == {"more"}
    shares = [[of["scale"].mean / of[norm].mean for norm in ("fn", "ln")] for of in (digits, cifar10, fashion)]
    assert min(*shares[0], *shares[1]) > 0.9, "most"
    assert all(0.45 < share < 0.6 for share in shares[2]), "half"
    more = [{one.value for one in gains(sweep, "scale", *where) if one.verdict == "more"} for sweep, *where in cells]
    assert [of & {*NORMS} for of in more] == [set(), {"fn", "ln"}, {"fn", "ln"}]
    assert only("cifar10_one_step", "E") == 1
    digits, cifar10, fashion = ([of[norm].text for norm in NORMS] for of in (digits, cifar10, fashion))
    return [
        "A constant factor has most of the gain on digits and CIFAR-10, and half of it on Fashion-MNIST.",
        f"With one class it gains {digits[0]} points over none on digits (feature norm {digits[1]}, layer norm "
        f"{digits[2]}), {cifar10[0]} on CIFAR-10 with one local step a round at the learning rate of Zhang et al. "
        f"(2024) ({cifar10[1]}, {cifar10[2]}) and {fashion[0]} on Fashion-MNIST ({fashion[1]}, {fashion[2]}). Both "
        "norms are shown to gain more than it on Fashion-MNIST and CIFAR-10 (there by the mean of "
        f"{WORDS[TAIL['cifar10_one_step']]} evaluations, not by the last one alone, the first rule), neither on "
        "digits.",
    ]


def _by_skew_and_steps() -> str:
    """Return what skew adds to the gain of layer normalization with many local steps a round, and with one."""
    digits, fashion = (
        {steps: one for (norm, steps), one in added_by_skew(data).items() if norm == "ln"} for data in PHASES
    )
    for of in (digits, fashion):
        assert of[1].verdict == "open" and {of[steps].verdict for steps in (5, 10, 20, 50)} == {"more"}
    (longer,) = (one for one in comparisons("skew_fashion_mnist") if one.between and one.value == "ln")
    assert longer.verdict == "more" and only("skew_fashion_mnist", "E") == 10
    return (
        f"After {SEARCHED['phase_diagram']:,} local steps, ten a round, layer norm gains {digits[10].text} points more "
        f"with one class than with all ten on digits, and {fashion[10].text} on Fashion-MNIST ({longer.text} after "
        f"{SEARCHED['skew_fashion_mnist']:,}); with one a round {digits[1].text} and {fashion[1].text} (open: neither "
        "a difference nor equivalence is shown)."
    )


def _in_a_convolutional_network() -> str:
    """Return what LeNet leaves open with one class: all gains, and what skew adds to them."""
    of = [one for one in comparisons("fashion_mnist_lenet") if one.between or one.column == ("classes:1",)]
    assert {one.verdict for one in of} == {"open"} and len({one.between for one in of}) == 2
    return "In LeNet every gain with one class, and what skew adds to it, is open."


def _with_ten_local_steps() -> str:
    """Return what feature norm gains on CIFAR-10 with ten local steps a round, and what it gains in table 10."""
    (gain,) = comparisons("cifar10_full_length")
    runs, plain = federated("cifar10_full_length"), federated("cifar10_one_step").query("lr == 0.01")
    assert gain.verdict == "more" and only("cifar10_full_length", "E") == 10
    assert set(runs.lr) == set(plain.lr) and set(runs.rounds) == set(plain.rounds)
    return (
        f"With ten local steps a round, the headline of Zhang et al., feature norm gains {gain.text} points on "
        f"CIFAR-10 ({WORDS[runs.seed.nunique()]} seeds; they: {published.gain_of_fn(10)['classes:1']:.1f})."
    )


def _at_ten_times_the_rate() -> str:
    """Return what feature norm gains on CIFAR-10 at the one other learning rate that was run."""
    fast = federated("cifar10_one_step").query("method == 'fedavg' and lr == 0.1").set_index("norm").value
    assert chosen("cifar10_one_step").lr.unique() == [0.01]
    gain = 100 * (fast["fn"] - fast["none"])
    return f"At ten times their learning rate and one local step it gains {gain:.1f} points (one seed)."


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
        f"learning rate {rate}, E = {only('cifar10_one_step', 'E')} and {rounds:,} rounds, {WORDS[several]} seeds, "
        "with the numbers of Zhang et al., of the last round, in brackets (ours then: "
        f"{', '.join(first)} and {last}). –",
    ]


def _python() -> str:
    """Return the required version of Python."""
    requires = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    return f"Python {requires.removeprefix('>=')} or newer"
