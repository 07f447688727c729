"""The tables of leaderboard.md, and its sentences with numbers, recomputed; its claims are in other modules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping

import pandas as pd

from tests.audit import published
from tests.audit.planned import LEVEL, MARGIN, WITHIN, Comparison, comparisons
from tests.audit.runs import ROW, SEARCHED, TAIL, chosen, exported, federated, longest, only
from tests.audit.tables import CONFIDENCE, At, Row, better, in_order, values

#: The columns of the table of values, with their heads.
COLUMNS: dict[str, At] = {
    "digits (skew)<br>classes:1, E 10": ("skew", ("classes:1", 10)),
    "digits (skew)<br>iid, E 10": ("skew", ("iid", 10)),
    "cifar10 (cifar10_one_step)<br>classes:1": ("cifar10_one_step", ("classes:1",)),
    "fashion_mnist, lenet<br>classes:1": ("fashion_mnist_lenet", ("classes:1",)),
    "fashion_mnist, mlp<br>classes:1": ("skew_fashion_mnist", ("classes:1",)),
}

#: Most rows of the table of values, and lines of a figure.
MOST_ROWS, MOST_LINES = 12, 8

#: The columns of the tables of planned comparisons: of gains, and of their differences between partitions.
PLANNED = {
    "skew": (["classes:1, E 10", "iid, E 10"], ["E 1", "E 10"]),
    "cifar10_one_step": (["classes:1"], []),
    "fashion_mnist_lenet": (["classes:1"], ["accuracy"]),
    "skew_fashion_mnist": (["classes:1"], ["accuracy"]),
}

#: The order of verdicts in a summary.
VERDICTS = ["more", "more and equivalent", "less", "less and equivalent", "equivalent", "open"]


def tables() -> list[list[list[str]]]:
    """Return all tables of the page."""
    found = []
    for sweep, (columns, columns_of_differences) in PLANNED.items():
        family = comparisons(sweep)
        found.append(_planned_table([one for one in family if not one.between], columns))
        if columns_of_differences:
            found.append(_planned_table([one for one in family if one.between], columns_of_differences))
    return [*found, _values_table()]


def _planned_table(some: list[Comparison], columns: list[str]) -> list[list[str]]:
    """Return gains with their verdicts, bold where a difference is shown, and how many columns have which verdict."""
    every = {one.head for one in some}
    has_summary = len(every) > len(columns)
    ((among, interaction),) = {(one.among, one.interaction) for one in some}
    first = f"comparison {among}".rstrip() + interaction
    rows = [[first, *columns, *([f"all {len(every)} columns"] if has_summary else [])]]
    for label in dict.fromkeys(one.title for one in some):
        by_column = {one.head: one for one in some if one.title == label}
        counts = Counter(_verdict(one) for one in by_column.values())
        summary = ", ".join(f"{verdict} in {counts[verdict]}" for verdict in VERDICTS if counts[verdict])
        entries = [_gain(by_column[column]) for column in columns]
        rows.append([label, *entries, *([summary] if has_summary else [])])
    return rows


def _gain(one: Comparison) -> str:
    number = f"{one.mean:+.2f} ± {one.half_width:.2f}"
    is_different = one.verdict.startswith(("more", "less"))
    return f"{f'**{number}**' if is_different else number}<br><sub>{_verdict(one)}</sub>"


def _verdict(one: Comparison) -> str:
    """Return the verdict as the page has it, which names the margin once."""
    return one.verdict.replace(WITHIN, "equivalent").replace(", ", " and ")


def _values_table() -> list[list[str]]:
    """Return means with their intervals, bold where shown to be better than the first row, and published numbers."""
    rows = [[*ROW, *COLUMNS]]
    found = {at: (values(at).to_dict("index"), better(at)) for at in COLUMNS.values()}
    for row in in_order(list(COLUMNS.values()))[:MOST_ROWS]:
        entries = [
            _value(row, numbers[row], row in is_better, at) if row in numbers else "–"
            for at, (numbers, is_better) in found.items()
        ]
        rows.append([*row, *entries])
    return rows


def _value(row: Row, cell: Mapping[Hashable, float], is_better: bool, at: At) -> str:
    if pd.notna(cell["half_width"]):
        number = f"{cell['mean']:.2f} ± {cell['half_width']:.2f}"
        lines = [f"**{number}**" if is_better else number]
    else:
        lines = [f"{cell['mean']:.2f}", f"<sub>n={cell['n']:.0f}</sub>"]
    if beside := published.beside(row, at):
        ours, number, interval = beside
        lines.append(f"<sub>last {ours:.2f}; published {number:.2f}, {interval}</sub>")
    return "<br>".join(lines)


def sentences() -> list[str]:
    """Return the sentences of the page that contain a number."""
    percent = f"{100 * CONFIDENCE:.0f} %"
    return [
        *_counts(),
        f"± half-width of the {percent} interval over seeds; a minus b",
        f"More, less, equivalent (within {100 * MARGIN:.0f} point): shown at {100 * LEVEL:.0f} % by t-tests with "
        "Holm's correction over the comparisons",
        published.summary(),
        f"Mean ± half-width of its {percent} interval, over seeds and test images",
        *_settings(),
        *_captions(percent),
    ]


def _counts() -> list[str]:
    """Return how many runs there are, how many diverged, and how many each page of details has."""
    sweeps = {
        "digits, mlp": ("skew", "digits", "rank_dose", "sharpening"),
        "cifar10, cnn": ("cifar10", "cifar10_one_step"),
        "fashion_mnist, cnn": ("fashion_mnist",),
        f"fashion_mnist, {only('skew_fashion_mnist', 'model')}": ("skew_fashion_mnist",),
        "fashion_mnist, lenet": ("fashion_mnist_lenet",),
    }
    status = {
        page: pd.concat([longest(exported(one, "result")).result.map(lambda result: result["status"]) for one in some])
        for page, some in sweeps.items()
    }
    pages = {page: len(of_runs) for page, of_runs in status.items()}
    trained, diverged = sum(pages.values()), sum((of_runs == "diverged").sum() for of_runs in status.values())
    return [
        f"{trained:,} training runs on digits, cifar10, fashion_mnist",
        f"{diverged:,} of {trained:,} runs diverged; they have no value.",
        *(f"{title}: {count:,} runs" for title, count in pages.items()),
    ]


def _settings() -> list[str]:
    """Return the settings below the table of values, and how many rows are not in it."""
    (rate,) = chosen("cifar10_one_step").lr.unique()
    left_out = len(in_order(list(COLUMNS.values()))) - MOST_ROWS
    return [
        f"digits, {only('skew', 'model')} (skew): "
        f"{_listed('skew', 'batch_size', 'val_fraction', 'clients', 'rounds')}; mean of the last {TAIL['skew']} "
        "evaluations; the best lr of each row and column, chosen on held-out training data.",
        f"cifar10, cnn (cifar10_one_step): "
        f"{_listed('cifar10_one_step', 'batch_size', 'E', 'augment', 'clients', 'rounds')}; mean of the last "
        f"{TAIL['cifar10_one_step']} evaluations; lr {rate:g}.",
        *map(_searched, ("fashion_mnist_lenet", "skew_fashion_mnist")),
        f"Rows in the details alone: {left_out}.",
    ]


def _searched(sweep: str) -> str:
    """Return the settings of a sweep with successive halving; the partition where it is no axis."""
    partitions = federated(sweep).partition.unique()
    where = f"{partitions[0]}, " if len(partitions) == 1 else ""
    return (
        f"fashion_mnist, {only(sweep, 'model')}: {_listed(sweep, 'batch_size', 'E', 'val_fraction')}, fedavg, "
        f"{where}{_listed(sweep, 'clients')}, rounds {SEARCHED[sweep] // only(sweep, 'E')}; mean of the last "
        f"{TAIL[sweep]} evaluations; the best lr of each row and column, chosen on held-out training data."
    )


def _listed(sweep: str, *names: str) -> str:
    """Return ``batch_size 32, E 1``, settings that all runs of a sweep share."""
    return ", ".join(f"{name} {only(sweep, name)}" for name in names)


def _captions(percent: str) -> list[str]:
    """Return the parts of the figures' captions that contain a number."""
    model, rows = only("skew", "model"), len(in_order(list(COLUMNS.values())[:2]))
    marks = (
        f"paired by seed, with {percent} intervals; filled: the corrected test shows a difference, hollow: it does "
        f"not; grey: {WITHIN.removeprefix('equivalent ')}"
    )
    return [
        f"Planned comparisons against none and scale, {marks}",
        f"digits, {model} (skew): planned comparisons against none with fedavg, {marks}",
        f"digits, {model} (skew): expected accuracy (%) over the number of tried settings, of which the best by the "
        f"rule is reported; bands: {percent} intervals over seeds. {min(rows, MOST_LINES)} of {rows} rows:",
    ]
