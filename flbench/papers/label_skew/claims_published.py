"""Every published number as a claim: whether ours agrees, and whether the order of the methods does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from flbench.papers.label_skew.published import (
    Configuration,
    PublishedRow,
    configuration_of,
    other_data,
    published_rows,
)
from flbench.papers.published_numbers import Comparison, Judgement, judgements, without_comparison
from flbench.report.cells import Cell, cells_of, grouped
from flbench.report.claims import VERDICTS, Verdict
from flbench.report.runs import Run
from flbench.report.stats import kendall_tau

#: Percentage points; the paper's own repetitions of a number differ by up to 4.
TOLERANCE = 1.0


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

    tolerance: float  # percentage points
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


def compare(runs: Iterable[Run], *, tolerance: float = TOLERANCE, everything: bool = False) -> Published | None:
    """Compare runs with the published numbers of their data sets and models, or with all if ``everything``.

    Returns:
        None where nothing was published for any data set and model among the runs, unless ``everything``.
    """
    runs = list(runs)
    places = {(run.training.dataset.name, run.training.model.name) for run in runs}
    rows = [row for row in published_rows() if everything or row.configuration.place in places]
    if not rows:
        return None
    # Of each configuration those with default settings first, then as the leaderboard's.
    cells: dict[Configuration, list[Cell | None]] = {}
    for members in grouped(runs, lambda run: (run.training.dataset.label(), run.training.model.label())):
        for cell in sorted(cells_of(members, "acc"), key=_settings):
            if (configuration := configuration_of(cell.training)) is not None:
                cells.setdefault(configuration, []).append(cell)
    comparisons = [
        Comparison(row, cell, judge(row, cell, tolerance))
        for row in rows
        for cell in cells.get(row.configuration) or [None]
    ]
    return Published(tolerance, everything, tuple(comparisons), tuple(_orders(comparisons)))


def judge(row: PublishedRow, cell: Cell | None, tolerance: float) -> Judgement:
    """Return the verdict on a published number, and why.

    ``holds``: the difference and the half-width of our 95 % interval are both within the tolerance. ``does not hold``:
    the difference exceeds the tolerance by more than the half-width, or all our seeds diverged. Everything between, and
    every cell without all of its seeds, with a single one, or with an obstacle, is ``inconclusive``.
    """
    if cell is None:
        return Judgement("not run")
    other = other_data(cell.training, cell.fingerprint, cell.samples)
    if judgement := without_comparison(cell, row.rounds, other):
        return judgement
    summary = cell.summary
    assert summary is not None and summary.half_width is not None
    # Numbers are compared as printed, to a hundredth of a point.
    distance, half_width = round(abs(100 * summary.mean - row.value), 2), round(100 * summary.half_width, 2)
    if distance <= tolerance and half_width <= tolerance:
        return Judgement("holds")
    if round(distance - half_width, 2) > tolerance:
        return Judgement("does not hold")
    return Judgement("inconclusive", "" if distance > tolerance else "our interval is too wide")


def _settings(cell: Cell) -> tuple[int, str, str]:
    """The number of settings of a cell's method and norm that are no default, then the labels of both."""
    method, norm = getattr(cell.training, "method", None), cell.training.norm
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
