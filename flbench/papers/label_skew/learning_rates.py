"""Does the range of learning rates that works follow 2 / lambda_max?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flbench.papers.label_skew.answers import (
    STRONG,
    Answer,
    Finding,
    Verdict,
    correlate,
    leaning,
    number_text,
    partitions,
    spread_text,
)
from flbench.papers.label_skew.probe_cells import Probed
from flbench.report.lr_range import Ranges

QUESTION = "Does the range of learning rates that works follow 2 / lambda_max?"

#: A row works somewhere if its best mean is at least this many times what guessing one class gets.
OVER_CHANCE = 2.0


@dataclass(frozen=True)
class _Row:
    """A method and norm in a column, over the learning rates.

    Attributes:
        cells: one a learning rate, in ascending order.
        high: the highest learning rate that works.
        is_open: whether no higher one was tried.
    """

    cells: tuple[Probed, ...]
    high: float
    is_open: bool

    @property
    def any(self) -> Probed:
        """A cell of the row: before the first round all are alike."""
        return next((cell for cell in self.cells if cell.born is not None), self.cells[0])

    @property
    def rate(self) -> float | None:
        """2 / lambda_max of the untrained network."""
        return 2 / self.any.born if self.any.born else None

    @property
    def local_rate(self) -> float | None:
        """The same on the sharpest client looked at."""
        return 2 / self.any.born_local if self.any.born_local else None


def answer(ranges: Sequence[Ranges], cells: Sequence[Probed], tuned: Sequence[Probed]) -> Answer:
    """What the ranges of learning rates say, and the learning rates that were chosen."""
    rows, idle, unsettled = _rows(ranges, cells)
    at_end = _at_end([one for one in tuned if one.used is not None])
    measured = [row for row in rows if row.rate is not None]
    if not measured:
        lack = "no row has three learning rates, all seeds of each, and the sharpness probe"
        return Answer("rates", QUESTION, "not measured", " ".join(filter(None, [f"Not measured: {lack}.", at_end])))
    findings = [
        finding
        for local, name in ((False, "global model"), (True, "sharpest client"))
        for where, some in partitions(measured, lambda row: row.any.partition)
        if (finding := _finding(some, name, where, local=local)).correlation.n
    ]
    whole, *others = [finding for finding in findings if finding.where == "everywhere"]
    verdict = _verdict(whole)
    ratios = [(row.any.norm_label, row.high / row.rate) for row in measured if row.rate]
    sentences = [
        f"{_SAYS[verdict]}: the highest learning rate that works against 2 / lambda_max of the untrained global model: "
        f"{number_text(whole.correlation, whole.unit)}"
        + "".join(f"; of the sharpest client: {number_text(one.correlation, one.unit)}" for one in others)
        + f". That rate is {spread_text([ratio for _, ratio in ratios])} times 2 / lambda_max (median and middle half "
        f"of {len(ratios)} rows; following would be the same factor everywhere; by norm: {_by_norm(ratios)}).",
        at_end,
        _open(measured),
        f"Left out: {idle} rows whose best rate is not {OVER_CHANCE:g} times better than guessing." if idle else "",
        f"Left out: {unsettled} rows whose runs are not all finished." if unsettled else "",
    ]
    return Answer("rates", QUESTION, verdict, " ".join(filter(None, sentences)), tuple(findings))


_SAYS: dict[Verdict, str] = {
    "yes": "Yes",
    "in part": "In part",
    "no": "No",
    "does not tell": "The data do not tell",
}


def _verdict(found: Finding) -> Verdict:
    way = leaning(found.correlation)
    if way == "rises":
        return "yes" if (found.correlation.rho or 0) >= STRONG else "in part"
    return "does not tell" if way == "open" else "no"


def _rows(ranges: Sequence[Ranges], cells: Sequence[Probed]) -> tuple[list[_Row], int, int]:
    """Rows that work somewhere; how many work nowhere, and how many are not finished."""
    known = {id(one.cell): one for one in cells}
    rows, idle, unsettled = [], 0, 0
    for one in (one for some in ranges for one in some.rows):
        members = tuple(known[id(cell)] for cell in one.cells if id(cell) in known)
        if not members:
            continue
        if any(run.result is None for cell in one.cells for run in cell.runs):
            unsettled += 1
        elif one.best is None or one.best < OVER_CHANCE * _chance(members[0]):
            idle += 1
        else:
            rows.append(_Row(members, one.high, one.open_high))
    return rows, idle, unsettled


def _chance(one: Probed) -> float:
    """What guessing one class gets; 0 where records do not tell the number of classes."""
    classes = max((len(run.record.get("recall") or ()) for run in one.cell.runs if run.record), default=0)
    return 1 / classes if classes else 0.0


def _finding(rows: Sequence[_Row], name: str, where: str, *, local: bool) -> Finding:
    """Rows of one norm begin with the same lambda_max: norms are resampled, and not replaced by anything finer."""
    return correlate(
        rows,
        (lambda row: row.local_rate if local else row.rate, lambda row: row.high),
        what=f"highest working lr ~ 2 / lambda_max at the start, {name}",
        where=where,
        strata=lambda row: row.any.column,
        units=[("norms", lambda row: row.any.norm_label)],
    )


def _at_end(tuned: Sequence[Probed]) -> str:
    """Where the chosen learning rates stand against 2 / lambda_max of the trained network."""
    used = [(one.norm_label, one.used) for one in tuned if one.used is not None]
    if not used:
        return ""
    chosen = " at their best learning rates" if any("lr" in one.cell.chosen for one in tuned) else ""
    below = sum(value < 1 for _, value in used)
    return (
        f"At the end of training lr x lambda_max / 2 is {spread_text([value for _, value in used])}, below 1 in "
        f"{below} of {len(used)} cells{chosen} (by norm: {_by_norm(used)})."
    )


def _by_norm(values: Sequence[tuple[str, float]]) -> str:
    """``none 0.07 (0.06 to 0.2), fn 4 (3.8 to 4.3)``."""
    found: dict[str, list[float]] = {}
    for norm, value in values:
        found.setdefault(norm, []).append(value)
    return ", ".join(f"{norm} {spread_text(own)}" for norm, own in found.items())


def _open(rows: Sequence[_Row]) -> str:
    count = sum(row.is_open for row in rows)
    return f"In {count} of {len(rows)} rows no higher rate was tried: theirs is a lower bound." if count else ""
