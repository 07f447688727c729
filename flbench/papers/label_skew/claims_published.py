"""Every published number as a claim: whether ours agrees, and whether the order of the methods does.

Most numbers are single runs. What single runs scatter by is pooled over the cells, published ones and ours, that share
data set, model, partition, clients and rounds and have several seeds (``flbench/papers/prediction.py``).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from flbench.config import Training
from flbench.papers.label_skew.published import (
    Configuration,
    PublishedRow,
    configuration_of,
    other_data,
    published_rows,
)
from flbench.papers.prediction import Seeds, Spread, pool, predict
from flbench.papers.published_numbers import WIDEST, Comparison, Judgement, judgements, without_comparison
from flbench.registry import DATASETS
from flbench.report.cells import Cell, cells_of, grouped, rows_of
from flbench.report.claims import VERDICTS, Verdict
from flbench.report.measures import CHANCE
from flbench.report.runs import Run
from flbench.report.stats import LEVEL, holm, kendall_tau

#: What cells whose seeds scatter alike have in common: data set, model, partition, clients, rounds.
Level = tuple[str, str, str, int, int]


@dataclass(frozen=True)
class Order:
    """The agreement on the order of the methods in a table's column: Kendall's tau-b over ``n`` methods.

    ``tau`` is None where it is not defined: all published numbers, or all of ours, are equal.
    """

    table: str
    column: Configuration  # of any of its rows
    rounds: int
    n: int
    tau: float | None


@dataclass(frozen=True)
class Published:
    """The comparison with all published numbers."""

    widest: float  # percentage points that an interval which shows agreement may reach to either side
    everything: bool  # whether published numbers without a requested run are listed too
    comparisons: tuple[Comparison[PublishedRow], ...]  # one a published number and cell of ours
    orders: tuple[Order, ...]  # one a column of a table

    @property
    def counts(self) -> Mapping[Verdict, int]:
        """The published numbers by verdict, each counted once."""
        counts = Counter(one.verdict for one in self.judgements)
        return {verdict: counts[verdict] for verdict in VERDICTS if counts[verdict]}

    @property
    def judgements(self) -> Sequence[Judgement]:
        """A judgement for each published number, by the most decisive of our cells."""
        return judgements(self.comparisons)

    @property
    def tested(self) -> str:
        """How many numbers lie outside their interval, and how many would by chance; empty where none was tested.

        A number that several tables print is one; Holm's correction controls the chance of any false alarm.
        """
        pairs = {(id(one.cell), one.row.text, one.row.sd): one.judgement.prediction for one in self.comparisons}
        p_values = [prediction.p for prediction in pairs.values() if prediction]
        if not p_values:
            return ""
        outside = sum(p < LEVEL for p in p_values)
        corrected = sum(p < LEVEL for p in holm(dict(enumerate(p_values))).values())
        return (
            f"Outside the 95 % interval that runs of full length predict: {outside} of {len(p_values)} numbers "
            f"({LEVEL * len(p_values):.1f} expected by chance); after Holm's correction {corrected} of them"
        )


def compare(runs: Iterable[Run], *, widest: float = WIDEST, everything: bool = False) -> Published | None:
    """Compare runs with all published numbers of each data set and model that has a run at the settings of one.

    The paper's accuracies are those "in the last iteration", so means over evaluations are not compared with them.

    Args:
        runs: what was requested.
        widest: percentage points that an interval which shows agreement may reach to either side.
        everything: whether to compare with all published numbers.

    Returns:
        None where no run has the settings of a published number, unless ``everything``.
    """
    # Of each configuration those with default settings first, then as the leaderboard's.
    cells: dict[Configuration, list[Cell | None]] = {}
    last = [run.at_last for run in runs]
    published = {row.configuration for row in published_rows()}
    compared = {configuration.place for configuration in published}
    there = [one for one in _one_a_cell(last) if (one.dataset.name, one.model.name) in compared]
    if not everything and not any(configuration_of(one) in published for one in there):
        return None  # before the cells of 100,000 runs are made
    for members in grouped(last, lambda run: (run.training.dataset.label(), run.training.model.label())):
        for cell in sorted(rows_of(cells_of(members, "acc")), key=_settings):
            if (configuration := configuration_of(cell.experiment)) is not None:
                cells.setdefault(configuration, []).append(cell)
    places = {row.configuration.place for row in published_rows() if row.configuration in cells}
    rows = [row for row in published_rows() if everything or row.configuration.place in places]
    if not rows:
        return None
    spreads = _spreads(cells)
    comparisons = [
        Comparison(row, cell, judge(row, cell, spreads.get(_level(row.configuration, row.rounds)), widest))
        for row in rows
        for cell in cells.get(row.configuration) or [None]
    ]
    return Published(widest, everything, tuple(comparisons), tuple(_orders(comparisons)))


def _one_a_cell(runs: Iterable[Run]) -> Iterable[Training]:
    """Return the experiment of one run of each cell: seeds have the same configuration."""
    return {run.experiment.cell_id: run.training for run in runs}.values()


def _level(configuration: Configuration, rounds: int) -> Level:
    return *configuration.place, configuration.partition, configuration.clients, rounds


def _spreads(cells: Mapping[Configuration, Sequence[Cell | None]]) -> dict[Level, Spread]:
    """Return the spread of single runs at each level, from published and our repetitions that are not at chance."""
    found: dict[Level, list[Seeds]] = {}
    for row in published_rows():
        if row.sd:
            seeds = Seeds(row.value / 100, float(row.sd) / 100, row.seeds)
            found.setdefault(_level(row.configuration, row.rounds), []).append(seeds)
    for configuration, cell in ((known, cell) for known, same in cells.items() for cell in same):
        if cell is None or cell.summary is None or cell.summary.sd is None or not cell.complete:
            continue
        if other_data(cell.experiment, cell.fingerprint, cell.samples) is None:
            ours = Seeds(cell.summary.mean, cell.summary.sd, cell.summary.n)
            found.setdefault(_level(configuration, cell.rounds), []).append(ours)
    chance = {level: CHANCE / (DATASETS[level[0]].classes or math.inf) for level in found}
    pools = {level: pool(one for one in some if one.mean >= chance[level]) for level, some in found.items()}
    return {level: spread for level, spread in pools.items() if spread}


def judge(row: PublishedRow, cell: Cell | None, spread: Spread | None, widest: float = WIDEST) -> Judgement:
    """Return the verdict on a published number, and why.

    The unit is a run. ``does not hold``: the published number lies outside the 95 % interval that our runs predict for
    it, or all our seeds diverged. ``holds``: it lies inside, and the interval reaches at most ``widest`` points to
    either side. Everything else, every cell without all of its seeds or with an obstacle, is ``inconclusive``.
    """
    if cell is None:
        return Judgement("not run")
    other = other_data(cell.experiment, cell.fingerprint, cell.samples)
    if judgement := without_comparison(cell, row.rounds, other):
        return judgement
    if spread is None:
        return Judgement("inconclusive", "no comparable runs with several seeds")
    assert cell.summary is not None
    mean, n = cell.summary.mean, cell.summary.n
    found = predict(mean, n, spread, published=row.value / 100, seeds=row.seeds)
    why = f"{100 * found.low:.2f} to {100 * found.high:.2f}"
    if found.p < LEVEL:
        return Judgement("does not hold", why, prediction=found)
    is_narrow = 100 * max(mean - found.low, found.high - mean) <= widest
    return Judgement("holds" if is_narrow else "inconclusive", why, prediction=found)


def _settings(cell: Cell) -> tuple[int, str, str]:
    """The number of settings of a cell's method and norm that are no default, then the labels of both."""
    method, norm = getattr(cell.experiment, "method", None), cell.experiment.norm
    given = (method.settings() if method else {}) | norm.settings()
    return len(given), method.label() if method else "", norm.label()


def _orders(comparisons: Sequence[Comparison[PublishedRow]]) -> list[Order]:
    """Kendall's tau of every column in which at least two methods ran for equally many rounds on the same data."""
    columns: dict[tuple[str, object, int, str | None], dict[tuple[str, str], tuple[PublishedRow, float]]] = {}
    for one in comparisons:
        if one.cell is None or one.ours is None:
            continue
        configuration, rounds = one.row.configuration, one.cell.runs[0].rounds
        column = columns.setdefault((one.row.table, configuration.column, rounds, one.cell.fingerprint), {})
        column.setdefault((configuration.method, configuration.norm), (one.row, one.ours.mean))
    orders = []
    for (table, _, rounds, _), column in columns.items():
        if len(column) > 1:
            rows, ours = zip(*column.values(), strict=True)
            tau = kendall_tau([row.value for row in rows], ours)
            orders.append(Order(table, rows[0].configuration, rounds, len(column), tau))
    return orders
