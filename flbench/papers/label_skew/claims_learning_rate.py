"""The claim that the range of learning rates that works follows 2 / lambda_max."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from flbench.papers.label_skew.correlations import (
    NORMS,
    Mechanism,
    RankCorrelation,
    by_partition,
    correlate,
    quartiles_text,
    verdict_on,
)
from flbench.papers.label_skew.frames import rows_of
from flbench.report.cells import Cell
from flbench.report.claims import Claim
from flbench.report.lr_range import Ranges

if TYPE_CHECKING:
    import pandas as pd

TEXT = "The range of learning rates that works follows 2 / lambda_max"
SOURCE = "after Karakida et al. 2019"

#: A row works somewhere if its best mean is at least this many times what guessing one class gets.
OVER_CHANCE = 2.0

#: What rows of the frame below share with their cells.
_PLACE = ["column", "partition", "method", "norm", "first_lambda", "first_local_lambda"]


def judge(ranges: Sequence[Ranges], cells: pd.DataFrame, tuned: pd.DataFrame) -> Mechanism:
    """Correlate the highest learning rate that works with 2 / lambda_max, over rows."""
    rows, idle, unsettled = _rows(ranges, cells)
    at_end, measured = _at_end(tuned), rows.dropna(subset="first_lambda")
    if measured.empty:
        lack = "No row has three learning rates, all seeds of each, and the sharpness probe."
        return Mechanism("rates", Claim(TEXT, SOURCE, "not run", " ".join(filter(None, [lack, at_end]))))
    correlations = [
        found
        for name, model in (("first_lambda", "global model"), ("first_local_lambda", "sharpest client"))
        for where, some in by_partition(measured)
        if (found := _correlation(some, where, name, model)).correlation.n
    ]
    whole, *local = [found for found in correlations if found.where == "everywhere"]
    measured, is_open = measured.assign(ratio=measured.high / (2 / measured.first_lambda)), measured.is_open.sum()
    sentences = [
        f"Highest learning rate that works against 2 / lambda_max of the untrained global model: {whole.text}"
        + "".join(f"; of the sharpest client: {one.text}" for one in local)
        + f". That rate is {quartiles_text(measured.ratio)} times 2 / lambda_max (median and middle half of "
        f"{len(measured)} rows; by norm: {_by_norm(measured, 'ratio')}).",
        at_end,
        f"In {is_open} of {len(measured)} rows no higher rate was tried." if is_open else "",
        f"Left out: {idle} rows whose best rate is not {OVER_CHANCE:g} times better than guessing." if idle else "",
        f"Left out: {unsettled} rows whose runs are not all finished." if unsettled else "",
    ]
    claim = Claim(TEXT, SOURCE, verdict_on(whole), " ".join(filter(None, sentences)))
    return Mechanism("rates", claim, tuple(correlations))


def _rows(ranges: Sequence[Ranges], cells: pd.DataFrame) -> tuple[pd.DataFrame, int, int]:
    """Return the rows that work somewhere, the number that works nowhere, and the number that is not finished.

    A row is a method and norm in a column over its learning rates: the highest that works, whether no higher one was
    tried, and the lambda_max of a cell that was probed before the first round, when all are alike.
    """
    import pandas as pd

    known = {one["cell"].key: one for one in rows_of(cells)}
    rows, idle, unsettled = [], 0, 0
    for one in (one for some in ranges for one in some.rows):
        members = [known[cell.key] for cell in one.cells if cell.key in known]
        if not members:
            continue
        if any(run.result is None for cell in one.cells for run in cell.runs):
            unsettled += 1
        elif one.best is None or one.best < OVER_CHANCE * chance(members[0]["cell"]):
            idle += 1
        else:
            at_birth = next((cell for cell in members if cell["first_lambda"]), members[0])
            rows.append({**{name: at_birth[name] for name in _PLACE}, "high": one.high, "is_open": one.open_high})
    frame = pd.DataFrame(rows, columns=[*_PLACE, "high", "is_open"])
    return frame.astype({"first_lambda": float, "first_local_lambda": float}), idle, unsettled


def chance(cell: Cell) -> float:
    """Return the accuracy of guessing one class; 0 where records do not have the number of classes."""
    classes = max((len(run.record.get("recall") or ()) for run in cell.runs if run.record), default=0)
    return 1 / classes if classes else 0.0


def _correlation(rows: pd.DataFrame, where: str, name: str, model: str) -> RankCorrelation:
    """Resample norms, whose rows begin with the same lambda_max, and independently methods."""
    what = f"highest working lr ~ 2 / lambda_max at the start, {model}"
    rates = rows.assign(rate=2 / rows[name])
    return correlate(rates, "rate", "high", what=what, where=where, strata=["column"], units=NORMS)


def _at_end(tuned: pd.DataFrame) -> str:
    """The learning rates in units of 2 / lambda_max of the trained network."""
    known = tuned.dropna(subset="used")
    if known.empty:
        return ""
    is_chosen = any("lr" in cell.chosen for cell in known.cell)
    return (
        f"At the end of training lr x lambda_max / 2 is {quartiles_text(known.used)}, below 1 in "
        f"{(known.used < 1).sum()} of {len(known)} cells{' at their best learning rates' if is_chosen else ''} "
        f"(by norm: {_by_norm(known, 'used')})."
    )


def _by_norm(rows: pd.DataFrame, name: str) -> str:
    """``none 0.07 (0.06 to 0.2), fn 4 (3.8 to 4.3)``."""
    return ", ".join(f"{norm} {quartiles_text(own)}" for norm, own in rows.groupby("norm", sort=False)[name])
