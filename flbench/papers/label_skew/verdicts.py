"""Ours beside the published numbers: the difference, a verdict, and whether the order of the methods is the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from flbench.papers.label_skew.published import (
    Configuration,
    PublishedRow,
    configuration_of,
    other_data,
    published_rows,
)
from flbench.report.cells import Cell, cells_of, grouped
from flbench.report.runs import Run
from flbench.report.stats import kendall_tau

#: In the order in which one is chosen where several of our cells answer to a published number.
Verdict = Literal["reproduced", "differs", "inconclusive", "not comparable", "shorter", "not run"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)

#: Percentage points; the paper's own repetitions of a number differ by up to 4.
TOLERANCE = 1.0


@dataclass(frozen=True)
class Comparison:
    """One published number and one of our cells, if any answers to it; ``why`` explains the verdict."""

    row: PublishedRow
    cell: Cell | None
    verdict: Verdict
    why: str = ""

    @property
    def difference(self) -> float | None:
        """Ours minus published, in percentage points."""
        summary = self.cell.summary if self.cell else None
        return 100 * summary.mean - self.row.value if summary else None


@dataclass(frozen=True)
class Order:
    """How alike the methods of a table's column are ordered here and there: Kendall's tau-b over ``n`` methods.

    ``tau`` is None where it is not defined: all published numbers, or all of ours, are equal.
    """

    table: str
    column: Configuration  # of any of its rows
    rounds: int
    n: int
    tau: float | None


@dataclass(frozen=True)
class Published:
    """Everything that a report says about published numbers."""

    tolerance: float
    everything: bool  # whether numbers that nobody requested are listed too
    comparisons: tuple[Comparison, ...]
    orders: tuple[Order, ...]

    @property
    def counts(self) -> Mapping[Verdict, int]:
        """How many published numbers have which verdict, each counted once."""
        best: dict[int, Verdict] = {}
        for one in self.comparisons:
            known = best.get(id(one.row), one.verdict)
            best[id(one.row)] = min(known, one.verdict, key=VERDICTS.index)
        counts = Counter(best.values())
        return {verdict: counts[verdict] for verdict in VERDICTS if counts[verdict]}


def compare(runs: Iterable[Run], *, tolerance: float = TOLERANCE, everything: bool = False) -> Published | None:
    """Compare runs with the published numbers of their data sets and models, or with all that there are.

    Args:
        runs: the runs of a report.
        tolerance: percentage points.
        everything: also the numbers of data sets and models that are not among the runs.

    Returns:
        None where nothing was published for any data set and model among the runs, unless ``everything``.
    """
    runs = list(runs)
    places = {(run.training.dataset.name, run.training.model.name) for run in runs}
    rows = [row for row in published_rows() if everything or row.configuration.place in places]
    if not rows:
        return None
    cells = _cells_by_configuration(runs)
    comparisons = [
        Comparison(row, cell, *judge(row, cell, tolerance))
        for row in rows
        for cell in cells.get(row.configuration) or [None]
    ]
    return Published(tolerance, everything, tuple(comparisons), tuple(_orders(comparisons)))


def judge(row: PublishedRow, cell: Cell | None, tolerance: float) -> tuple[Verdict, str]:
    """Return the verdict on a published number, and the reason.

    ``reproduced``: the difference and the half-width of our 95 % interval are both within the tolerance. ``differs``:
    the difference exceeds the tolerance by more than the half-width, or all our seeds diverged. Everything between, and
    every cell without all of its seeds or with a single one, is ``inconclusive``.
    """
    if cell is None:
        return "not run", ""
    gap = "" if cell.complete else ", ".join(f"{count} {why}" for why, count in cell.gaps.items())
    diverged = cell.gaps.keys() == {"diverged"}
    if not cell.values and not diverged:
        return "not run", "" if cell.gaps.keys() == {"pending"} else gap
    if why := other_data(cell.training, cell.fingerprint, cell.samples):
        return "not comparable", why
    if (rounds := cell.runs[0].rounds) != row.rounds:
        return ("shorter" if rounds < row.rounds else "not comparable"), f"{rounds:,} of {row.rounds:,} rounds"
    if not cell.values:
        return "differs", gap
    if gap:
        return "inconclusive", gap
    return _judge_mean(row, cell, tolerance)


def _judge_mean(row: PublishedRow, cell: Cell, tolerance: float) -> tuple[Verdict, str]:
    summary = cell.summary
    if summary is None or summary.half_width is None:
        return "inconclusive", "one seed has no interval"
    # Numbers are compared as printed, to a hundredth of a point.
    distance, half_width = round(abs(100 * summary.mean - row.value), 2), round(100 * summary.half_width, 2)
    if distance <= tolerance and half_width <= tolerance:
        return "reproduced", ""
    if round(distance - half_width, 2) > tolerance:
        return "differs", ""
    return "inconclusive", "" if distance > tolerance else "our interval is too wide"


def _cells_by_configuration(runs: Sequence[Run]) -> dict[Configuration, list[Cell | None]]:
    """Our cells that answer to some configuration; those with default settings first, then as the leaderboard's."""
    found: dict[Configuration, list[Cell | None]] = {}
    for members in grouped(runs, lambda run: (run.training.dataset.label(), run.training.model.label())):
        cells = cells_of(members, "acc")
        for cell in sorted(cells, key=_settings):
            if (configuration := configuration_of(cell.training)) is not None:
                found.setdefault(configuration, []).append(cell)
    return found


def _settings(cell: Cell) -> tuple[int, str, str]:
    """How much of a cell's method and norm is not default, then how it reads."""
    method, norm = getattr(cell.training, "method", None), cell.training.norm
    given = (method.settings() if method else {}) | norm.settings()
    return len(given), method.label() if method else "", norm.label()


def _orders(comparisons: Sequence[Comparison]) -> list[Order]:
    """Kendall's tau of every column in which two methods at least were run for equally many rounds on the same data."""
    columns: dict[tuple[object, ...], dict[tuple[str, str], Comparison]] = {}
    for one in comparisons:
        if one.cell is None or one.cell.summary is None:
            continue
        configuration, rounds = one.row.configuration, one.cell.runs[0].rounds
        column = columns.setdefault((one.row.table, configuration.column, rounds, one.cell.fingerprint), {})
        column.setdefault((configuration.method, configuration.norm), one)
    return [_order(list(column.values())) for column in columns.values() if len(column) > 1]


def _order(column: Sequence[Comparison]) -> Order:
    cells = [one.cell for one in column if one.cell is not None]
    ours = [cell.summary.mean for cell in cells if cell.summary]
    first = column[0].row
    tau = kendall_tau([one.row.value for one in column], ours)
    return Order(first.table, first.configuration, cells[0].runs[0].rounds, len(column), tau)
