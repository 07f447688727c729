"""The tables of leaderboard.md, and its sentences with numbers, recomputed; its claims are in other modules."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping

import pandas as pd

from tests.audit import published, readme, trust
from tests.audit.cells import (
    CONFIDENCE,
    LEVEL,
    MARGIN,
    WITHIN,
    At,
    Comparison,
    Row,
    better,
    comparisons,
    in_order,
    values,
)
from tests.audit.runs import ROW, TAIL, chosen, federated, only, runs, sweep_of

#: The columns of the table of values, with their heads.
COLUMNS = {
    "digits<br>one class, E 10, 1,000 rounds": At("one_class_digits", (10,)),
    "digits<br>one class, E 10, 100 rounds": At("skew", ("classes:1", 10)),
    "digits<br>no skew, E 10, 100 rounds": At("skew", ("iid", 10)),
    "cifar10<br>one class, 10,000 rounds": At("cifar10_one_step", ("classes:1",)),
    "fashion_mnist, lenet<br>one class, 1,000 rounds": At("fashion_mnist_lenet", ("classes:1",)),
    "fashion_mnist, mlp<br>one class, E 10, 400 rounds": At("one_class_fashion_mnist", (10,)),
    "fashion_mnist, mlp<br>one class, 200 rounds": At("skew_fashion_mnist", ("classes:1",)),
}

#: The classes of each of these data sets.
CLASSES = 10

#: Most rows of the table of values.
MOST_ROWS = 12

#: The columns of the tables of planned comparisons: of gains, and of their differences between partitions.
PLANNED = {
    "one_class_digits": (["E 10"], []),
    "skew": (["classes:1, E 10", "iid, E 10"], ["E 1", "E 10"]),
    "cifar10_one_step": (["classes:1"], []),
    "fashion_mnist_lenet": (["classes:1"], ["accuracy"]),
    "one_class_fashion_mnist": (["E 10"], []),
    "skew_fashion_mnist": (["classes:1"], ["accuracy"]),
}

#: The order of verdicts in a summary.
VERDICTS = ["more", "more and equivalent", "less", "less and equivalent", "equivalent", "open"]

#: The names of the checks that comparisons do not pass, as the page has them, by the reasons of the details.
CHECKS = {
    "rising": "rising",
    "difference rising": "rising",
    "difference falling": "rising",
    "slope not known": "rising unknown",
    "within the grid": "coarse",
    "edge of the grid": "coarse",
    "not tuned": "coarse",
    "grid not known": "coarse unknown",
    "depends on the window": "window",
    "window not known": "window unknown",
    "seeds collapsed": "collapse",
}


def tables() -> list[list[list[str]]]:
    """Return all tables of the page."""
    found = []
    for sweep, (columns, columns_of_differences) in PLANNED.items():
        family = comparisons(sweep)
        found.append(_planned_table([one for one in family if not one.between], columns))
        if columns_of_differences:
            found.append(_planned_table([one for one in family if one.between], columns_of_differences))
    return [_values_table(), *found]


def _planned_table(some: list[Comparison], columns: list[str]) -> list[list[str]]:
    """Return gains with their verdicts, bold where a difference is shown, and how many columns have which verdict."""
    every = {one.head for one in some}
    has_summary = len(every) > len(columns)
    ((among, interaction),) = {(one.among, one.interaction) for one in some}
    first = f"comparison {among}".rstrip() + interaction
    rows = [[first, *columns, *([f"all {len(every)} columns"] if has_summary else [])]]
    for title in dict.fromkeys(one.title for one in some):
        by_column = {one.head: one for one in some if one.title == title}
        counts = Counter("fails" if one.doubts else _verdict(one) for one in by_column.values())
        summary = ", ".join(f"{of} in {counts[of]}" for of in [*VERDICTS, "fails"] if counts[of])
        entries = [_gain(by_column[column]) for column in columns]
        rows.append([title, *entries, *([summary] if has_summary else [])])
    return rows


def _gain(one: Comparison) -> str:
    number = f"{one.mean:+.2f} ± {one.half_width:.2f}"
    last = f"<br><sub>last {one.last[0]:+.2f} ± {one.last[1]:.2f}</sub>" if one.last else ""
    but = f", but {', '.join(dict.fromkeys(CHECKS[doubt] for doubt in one.doubts))}" if one.doubts else ""
    bold = one.is_shown and not one.doubts
    return f"{f'**{number}**' if bold else number}<br><sub>{_verdict(one)}{but}</sub>{last}"


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
    lines.append(f"<sub>last {cell['last']:.2f}</sub>")
    cells = trust.cells(at.sweep)
    mine = cells[(cells[[*ROW, *sweep_of(at.sweep).column]] == [*row, *at.place]).all(axis=1)]
    if len(mine) and mine.rising.iloc[0]:
        lines.append("<sub>rising</sub>")
    if beside := published.beside(row, at):
        ours, number, interval = beside
        assert f"{ours:.2f}" == f"{cell['last']:.2f}"
        lines.append(f"<sub>published {number:.2f}, {interval}</sub>")
    return "<br>".join(lines)


def sentences() -> list[str]:
    """Return the sentences of the page that contain a number."""
    percent = f"{100 * CONFIDENCE:.0f} %"
    return [
        *readme.answers(),
        *_counts(),
        f"± half-width of the {percent} interval over seeds; last: the same difference in the last "
        "evaluation alone; a minus b",
        f"More, less, equivalent (within {100 * MARGIN:.0f} point): shown at {100 * LEVEL:.0f} % by t-tests with "
        "Holm's correction over the section",
        published.summary(),
        f"Mean ± half-width of its {percent} interval, over seeds and test images",
        *_partitions(),
        *_settings(),
        *_captions(percent),
    ]


def _counts() -> list[str]:
    """Return how many runs there are, how many diverged, and how many each page of details has."""
    sweeps = {
        "digits, mlp": ("one_class_digits", "skew", "digits", "rank_dose", "sharpening"),
        "cifar10, cnn": ("cifar10", "cifar10_one_step"),
        "fashion_mnist, cnn": ("fashion_mnist",),
        "fashion_mnist, mlp": ("one_class_fashion_mnist", "skew_fashion_mnist"),
        "fashion_mnist, lenet": ("fashion_mnist_lenet",),
    }
    status = {page: pd.concat([runs(one).status for one in some]) for page, some in sweeps.items()}
    trained, diverged = sum(map(len, status.values())), sum((of == "diverged").sum() for of in status.values())
    return [
        f"{trained:,} training runs on digits, cifar10, fashion_mnist",
        f"{diverged:,} of {trained:,} runs diverged; they have no value.",
        *(f"{title}: {len(of):,} runs" for title, of in status.items()),
    ]


def _mean_of(sweep: str) -> str:
    """Return ``mean of the last 5 evaluations (rounds 60 to 100)``, those of the runs that were not dropped."""
    ends = [
        (run.E, *(json.loads(run.lines[at])["round"] for at in (-TAIL, -1)))
        for run in runs(sweep).query("kind == 'federated'").itertuples()
        if len(run.lines) >= TAIL
    ]
    most = {steps: max(last for other, _, last in ends if other == steps) for steps, *_ in ends}
    windows = sorted({(first, last) for steps, first, last in ends if last == most[steps]})
    rounds = ", ".join(f"{first:,} to {last:,}" for first, last in windows)
    return f"mean of the last {TAIL} evaluations (rounds {rounds})"


def _settings() -> list[str]:
    """Return the settings below the table of values, and how many rows are not in it."""
    (rate,) = chosen("cifar10_one_step").lr.unique()
    left_out = len(in_order(list(COLUMNS.values()))) - MOST_ROWS
    best = "the best lr of each row and column, chosen on held-out training data."
    digits = federated("one_class_digits").groupby("E").rounds.unique()
    rounds = ", ".join(f"{of.item()} with E {steps}" for steps, of in digits.sort_index().items())
    return [
        f"digits, {only('one_class_digits', 'model')} (one_class): "
        f"{_listed('one_class_digits', 'batch_size', 'val_fraction')}, fedavg, classes:1, "
        f"{_listed('one_class_digits', 'clients')}, rounds {rounds}; {_mean_of('one_class_digits')}; {best}",
        f"digits, {only('skew', 'model')} (skew): "
        f"{_listed('skew', 'batch_size', 'val_fraction', 'clients', 'rounds')}; {_mean_of('skew')}; {best}",
        f"cifar10, cnn (cifar10_one_step): "
        f"{_listed('cifar10_one_step', 'batch_size', 'E', 'augment', 'clients', 'rounds')}; "
        f"{_mean_of('cifar10_one_step')}; lr {rate:g}.",
        *(
            f"fashion_mnist, {only(sweep, 'model')}{where}: {_listed(sweep, 'batch_size', 'E', 'val_fraction')}, "
            f"fedavg, {partition}{_listed(sweep, 'clients')}, rounds {runs(sweep).trained.max()}; "
            f"{_mean_of(sweep)}; {best}"
            for sweep, where, partition in (
                ("fashion_mnist_lenet", "", ""),
                ("one_class_fashion_mnist", " (one_class)", "classes:1, "),
                ("skew_fashion_mnist", " (skew_fashion_mnist)", ""),
            )
        ),
        f"Rows that only the details show: {left_out}.",
    ]


def _partitions() -> Iterator[str]:
    """Yield in which partitions all seeds have the same data: each client has a class, and each class a client."""
    for sweep in PLANNED:
        of = federated(sweep)
        is_same = (of.partition == "classes:1") & (of.clients == CLASSES)
        if is_same.any() and not is_same.all():
            yield f"all seeds share one partition in {', '.join(of[is_same].partition.unique())}:"


def _listed(sweep: str, *names: str) -> str:
    """Return ``batch_size 32, E 1``, settings that all runs of a sweep share."""
    return ", ".join(f"{name} {only(sweep, name)}" for name in names)


def _captions(percent: str) -> list[str]:
    """Return the parts of the figures' captions that contain a number."""
    marks = (
        f"paired by seed, with {percent} intervals; filled: shown by the corrected test and the checks, "
        f"hollow: not; grey: {WITHIN.removeprefix('equivalent ')}"
    )
    return [
        f"Planned comparisons against none and scale, {marks}",
    ]
