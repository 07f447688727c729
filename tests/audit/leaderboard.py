"""The tables of leaderboard.md, and its sentences with numbers, recomputed; its claims are in other modules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence

import pandas as pd

from tests.audit import published, readme, trust
from tests.audit.cells import (
    CONFIDENCE,
    LEVEL,
    MARGIN,
    WITHIN,
    At,
    Comparison,
    Ranked,
    Row,
    better,
    comparisons,
    in_order,
    ranked,
    values,
)
from tests.audit.runs import ROW, TAIL, chosen, federated, only, recorded, runs, sweep_of

#: The columns of the table of values, with their heads.
COLUMNS = {
    "digits<br>one class, 1,000 rounds": At("plateau", ("classes:1",)),
    "digits<br>no skew, 1,000 rounds": At("plateau", ("iid",)),
    "digits<br>two classes, E 10, 1,000 rounds": At("plateau_skew", ("classes:2", 10)),
    "digits<br>Dirichlet(0.1), E 10, 1,000 rounds": At("plateau_skew", ("dirichlet:0.1", 10)),
    "digits<br>one class, 300 rounds": At("plateau_methods", ("classes:1",)),
    "CIFAR-10<br>one class, 10,000 rounds": At("cifar10_one_step", ("classes:1",)),
    "Fashion-MNIST, LeNet<br>one class, 1,000 rounds": At("fashion_mnist_lenet", ("classes:1",)),
    "Fashion-MNIST, MLP<br>one class, 800 rounds": At("fashion_mnist_long", ("classes:1",)),
}

#: The classes of each of these data sets.
CLASSES = 10

#: Most rows of the table of values.
MOST_ROWS = 12

#: The columns of the tables of planned comparisons: of gains, and of their differences between partitions.
PLANNED = {
    "plateau": (["classes:1", "iid"], []),
    "plateau_skew": (["classes:2, E 10", "dirichlet:0.1, E 10"], []),
    "plateau_methods": (["classes:1"], []),
    "cifar10_one_step": (["classes:1"], []),
    "fashion_mnist_lenet": (["classes:1"], ["accuracy"]),
    "fashion_mnist_long": (["classes:1"], []),
}

#: The order of verdicts in a summary.
VERDICTS = [
    *("more", "more and equivalent", "less", "less and equivalent", "equivalent", "open"),
    *("slower", "faster", "easier", "harder"),
]

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
    "no plateau": "rising",
}


def tables() -> list[list[list[str]]]:
    """Return all tables of the page."""
    found = []
    for sweep, (columns, columns_of_differences) in PLANNED.items():
        family = comparisons(sweep)
        found.append(_planned_table([one for one in family if not one.between], columns))
        by_ranks = [[one for one in ranked(sweep) if one.measure == measure] for measure in ("fast", "easy")]
        found += [_planned_table(some, columns) for some in by_ranks if some]
        if columns_of_differences:
            found.append(_planned_table([one for one in family if one.between], columns_of_differences))
    return [_values_table(), *found]


def _planned_table(some: Sequence[Comparison | Ranked], columns: list[str]) -> list[list[str]]:
    """Return gains with their verdicts, bold where a difference is shown, and how many columns have which verdict."""
    every = {one.head for one in some}
    has_summary = len(every) > len(columns)
    (interaction,) = {one.interaction for one in some}
    among = {one.among for one in some}
    first = f"comparison {among.pop()}".rstrip() + interaction if len(among) == 1 else "comparison"
    rows = [[first, *columns, *([f"all {len(every)} columns"] if has_summary else [])]]
    titles = {one: " ".join(filter(None, [one.title, one.among if among else ""])) for one in some}
    for title in dict.fromkeys(titles.values()):
        by_column = {one.head: one for one, name in titles.items() if name == title}
        counts = Counter("fails" if one.doubts else _verdict(one) for one in by_column.values())
        summary = ", ".join(f"{of} in {counts[of]}" for of in [*VERDICTS, "fails"] if counts[of])
        entries = [_gain(by_column[column]) for column in columns]
        rows.append([title, *entries, *([summary] if has_summary else [])])
    return rows


def _gain(one: Comparison | Ranked) -> str:
    if isinstance(one, Ranked):
        number, last = f"{one.effect:.2g} × the rounds" if one.measure == "fast" else f"{one.effect:+.2f} decades", ""
    else:
        number = f"{one.mean:+z.2f} ± {one.half_width:.2f}"
        last = f"<br><sub>last {one.last[0]:+z.2f} ± {one.last[1]:.2f}</sub>" if one.last else ""
    but = f", but {', '.join(dict.fromkeys(CHECKS[doubt] for doubt in one.doubts))}" if one.doubts else ""
    bold = (one.is_shown if isinstance(one, Comparison) else one.verdict != "open") and not one.doubts
    return f"{f'**{number}**' if bold else number}<br><sub>{_verdict(one)}{but}</sub>{last}"


def _verdict(one: Comparison | Ranked) -> str:
    """Return the verdict as the page has it, which names the margin once."""
    return one.verdict.replace(WITHIN, "equivalent").replace(", ", " and ")


def _values_table() -> list[list[str]]:
    """Return means with their intervals, bold where shown to be better than the first row, and published numbers."""
    rows = [[*ROW, *COLUMNS]]
    found = {at: (values(at).to_dict("index"), better(at)) for at in COLUMNS.values()}
    for row in in_order(list(COLUMNS.values()))[:MOST_ROWS]:
        names = ["scaffold(variant=original)" if name == "scaffold" else name for name in row]
        entries = [
            _value(row, numbers[row], row in is_better, at) if row in numbers else "–"
            for at, (numbers, is_better) in found.items()
        ]
        rows.append([*names, *entries])
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
        "digits, mlp": ("plateau", "plateau_skew", "plateau_methods", "digits", "rank_dose", "sharpening"),
        "cifar10, cnn": ("cifar10", "cifar10_one_step"),
        "fashion_mnist, cnn": ("fashion_mnist",),
        "fashion_mnist, mlp(widths=[64, 64])": ("fashion_mnist_long",),
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
        (run.E, *(run.records[at]["round"] for at in (-TAIL, -1)))
        for run in recorded(sweep).query("kind == 'federated'").itertuples()
        if len(run.records) >= TAIL
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
    return [
        *(
            f"digits, {only(sweep, 'model')} ({sweep}): {_listed(sweep, *names)}, "
            f"{method}{_listed(sweep, 'clients', 'rounds')}; {_mean_of(sweep)}; {best}"
            for sweep, names, method in (
                ("plateau", ("batch_size", "E", "val_fraction"), "fedavg, "),
                ("plateau_skew", ("batch_size", "val_fraction"), "fedavg, "),
                ("plateau_methods", ("batch_size", "E", "val_fraction"), ""),
            )
        ),
        f"cifar10, cnn (cifar10_one_step): "
        f"{_listed('cifar10_one_step', 'batch_size', 'E', 'augment', 'clients', 'rounds')}; "
        f"{_mean_of('cifar10_one_step')}; lr {rate:g}.",
        *(
            f"fashion_mnist, {only(sweep, 'model')}: {_listed(sweep, 'batch_size', 'E', 'val_fraction')}, "
            f"fedavg, {_listed(sweep, 'clients')}, rounds {runs(sweep).trained.max()}; {_mean_of(sweep)}; {best}"
            for sweep in ("fashion_mnist_lenet", "fashion_mnist_long")
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
        f"Planned comparisons against no norm and constant, {marks}",
    ]
