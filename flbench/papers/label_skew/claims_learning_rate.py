"""The claim that the range of learning rates that works follows 2 / lambda_max."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flbench.papers.label_skew.correlations import (
    Mechanism,
    RankCorrelation,
    by_partition,
    correlate,
    quartiles_text,
    verdict_on,
)
from flbench.papers.label_skew.probe_cells import Probed
from flbench.report.claims import Claim
from flbench.report.lr_range import Ranges

TEXT = "The range of learning rates that works follows 2 / lambda_max"
SOURCE = "after Karakida et al. 2019"

#: A row works somewhere if its best mean is at least this many times what guessing one class gets.
OVER_CHANCE = 2.0


@dataclass(frozen=True)
class _Row:
    """A method and norm in a column, over the learning rates."""

    cells: tuple[Probed, ...]  # one a learning rate, in ascending order
    high: float  # the highest learning rate that works
    is_open: bool  # whether no higher one was tried

    @property
    def any(self) -> Probed:
        """A cell of the row that was probed before the first round, when all are alike."""
        return next((cell for cell in self.cells if cell.born is not None), self.cells[0])

    @property
    def rate(self) -> float | None:
        """2 / lambda_max of the untrained network."""
        return 2 / self.any.born if self.any.born else None


def judge(ranges: Sequence[Ranges], cells: Sequence[Probed], tuned: Sequence[Probed]) -> Mechanism:
    """Correlate the highest learning rate that works with 2 / lambda_max, over rows."""
    rows, idle, unsettled = _rows(ranges, cells)
    at_end = _at_end(tuned)
    measured = [row for row in rows if row.rate is not None]
    if not measured:
        lack = "No row has three learning rates, all seeds of each, and the sharpness probe."
        return Mechanism("rates", Claim(TEXT, SOURCE, "not run", " ".join(filter(None, [lack, at_end]))))
    correlations = [
        found
        for is_local in (False, True)
        for where, some in by_partition(measured, lambda row: row.any.partition)
        if (found := _correlation(some, where, is_local=is_local)).correlation.n
    ]
    whole, *local = [found for found in correlations if found.where == "everywhere"]
    ratios = [(row.any.norm_label, row.high / row.rate) for row in measured if row.rate]
    open_rows = sum(row.is_open for row in measured)
    sentences = [
        f"Highest learning rate that works against 2 / lambda_max of the untrained global model: {whole.text}"
        + "".join(f"; of the sharpest client: {one.text}" for one in local)
        + f". That rate is {quartiles_text([ratio for _, ratio in ratios])} times 2 / lambda_max (median and middle "
        f"half of {len(ratios)} rows; by norm: {_by_norm(ratios)}).",
        at_end,
        f"In {open_rows} of {len(measured)} rows no higher rate was tried." if open_rows else "",
        f"Left out: {idle} rows whose best rate is not {OVER_CHANCE:g} times better than guessing." if idle else "",
        f"Left out: {unsettled} rows whose runs are not all finished." if unsettled else "",
    ]
    claim = Claim(TEXT, SOURCE, verdict_on(whole), " ".join(filter(None, sentences)))
    return Mechanism("rates", claim, tuple(correlations))


def _rows(ranges: Sequence[Ranges], cells: Sequence[Probed]) -> tuple[list[_Row], int, int]:
    """Return the rows that work somewhere, the number that works nowhere, and the number that is not finished."""
    known = {one.cell.key: one for one in cells}
    rows, idle, unsettled = [], 0, 0
    for one in (one for some in ranges for one in some.rows):
        members = tuple(known[cell.key] for cell in one.cells if cell.key in known)
        if not members:
            continue
        if any(run.result is None for cell in one.cells for run in cell.runs):
            unsettled += 1
        elif one.best is None or one.best < OVER_CHANCE * chance(members[0]):
            idle += 1
        else:
            rows.append(_Row(members, one.high, one.open_high))
    return rows, idle, unsettled


def chance(one: Probed) -> float:
    """Return the accuracy of guessing one class; 0 where records do not have the number of classes."""
    classes = max((len(run.record.get("recall") or ()) for run in one.cell.runs if run.record), default=0)
    return 1 / classes if classes else 0.0


def _correlation(rows: Sequence[_Row], where: str, *, is_local: bool) -> RankCorrelation:
    """Resample norms, whose rows begin with the same lambda_max, and independently methods."""
    model = "sharpest client" if is_local else "global model"

    def rate(row: _Row) -> float | None:
        sharpness = row.any.born_local if is_local else row.any.born
        return 2 / sharpness if sharpness else None

    return correlate(
        rows,
        (rate, lambda row: row.high),
        what=f"highest working lr ~ 2 / lambda_max at the start, {model}",
        where=where,
        strata=lambda row: row.any.column,
        groups=("norms", lambda row: row.any.norm_label),
        crossed=("methods", lambda row: row.any.method_label),
    )


def _at_end(tuned: Sequence[Probed]) -> str:
    """The learning rates in units of 2 / lambda_max of the trained network."""
    used = [(one.norm_label, one.used) for one in tuned if one.used is not None]
    if not used:
        return ""
    is_chosen = any("lr" in one.cell.chosen for one in tuned if one.used is not None)
    below = sum(value < 1 for _, value in used)
    return (
        f"At the end of training lr x lambda_max / 2 is {quartiles_text([value for _, value in used])}, below 1 in "
        f"{below} of {len(used)} cells{' at their best learning rates' if is_chosen else ''} "
        f"(by norm: {_by_norm(used)})."
    )


def _by_norm(values: Sequence[tuple[str, float]]) -> str:
    """``none 0.07 (0.06 to 0.2), fn 4 (3.8 to 4.3)``."""
    found: dict[str, list[float]] = {}
    for norm, value in values:
        found.setdefault(norm, []).append(value)
    return ", ".join(f"{norm} {quartiles_text(own)}" for norm, own in found.items())
