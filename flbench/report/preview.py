"""Check the report section of a sweep before its runs: what the report would refuse or leave empty is a mistake.

The sections, rows, columns and comparisons are those that the report makes of the finished runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flbench.config import Training, Where
from flbench.errors import UserError
from flbench.report.cells import Cell, cells_of, grouped, merge_rows, rows_of
from flbench.report.leaderboard import section_of
from flbench.report.planned import Gains, gains_of
from flbench.report.runs import Run
from flbench.report.ticks import place_label
from flbench.report.tuning import OfKind, by_kind
from flbench.sweeps import Sweep
from flbench.sweeps.layout import Pair
from flbench.sweeps.match import Condition, all_of

#: Columns that a message lists.
_MOST_LISTED = 12


def check_report_of(sweep: Sweep) -> None:
    """Raise SpecError for a planned comparison or a column of the first page that the leaderboard would not have.

    Where options change the cells of the file, it may lack some, and only what the report refuses is a mistake.
    """
    layout = sweep.layout
    if not (layout.contrasts or layout.headline):
        return
    full = layout.spelled_out()
    # The cells of each data set and model, by kind of experiment.
    runs = [Run(one, one.rounds, "pending") for one in sweep.experiments if isinstance(one, Training)]
    sections = [
        by_kind(merge_rows(cells_of(members, full.metric), full.rows), full) for members in grouped(runs, section_of)
    ]
    for pair in layout.contrasts:
        _check_contrast(sweep, pair, [kind for section in sections for kind in section])
    if sweep.is_whole and sections:
        for index, wanted in enumerate(layout.headline or ()):
            _check_column(sweep, wanted, ("report", "headline", index), sections)


def _check_contrast(sweep: Sweep, pair: Pair, kinds: Sequence[OfKind]) -> None:
    where = pair.value.given.where
    try:
        found = [gains_of(kind, pair) for kind in kinds]
    except UserError as error:
        raise sweep.file.error(where[:3], str(error)) from None  # ("report", "contrasts", its number)
    if sweep.is_whole and not any(map(_is_paired, found)):
        raise sweep.file.error(
            where,
            f"no two cells of a data set and model, with a seed in common, differ in {pair.field} alone, "
            f"{pair.value.label} and {pair.against.label}{_conditions_text(pair.among)}"
            f"{' in both columns' if pair.between else ''}: fix or remove it",
        )


def _is_paired(gains: Gains) -> bool:
    """Return whether cells of some column, all that are averaged there, have a seed in common."""
    for found in gains.values():
        cells = [cell for gain in found.values() for cell in (*gain.plus, *gain.minus)]
        if cells and set.intersection(*({run.experiment.seed for run in cell.runs} for cell in cells)):
            return True
    return False


def _check_column(sweep: Sweep, wanted: Sequence[Condition], where: Where, sections: Sequence[list[OfKind]]) -> None:
    is_wanted = all_of(wanted)
    columns = [column for first, *_ in sections for column in _columns(first)]
    if not any(is_wanted(cell.experiment) for _, cell in columns):
        here = list(dict.fromkeys(name or "a single one" for name, _ in columns))
        listed = f"{'; '.join(here[:_MOST_LISTED])}{'; ...' if len(here) > _MOST_LISTED else ''}"
        message = f"no column{_conditions_text(wanted)}: fix or remove it; the columns here: {listed}"
        raise sweep.file.error(where, message)


def _columns(kind: OfKind) -> Iterator[tuple[str, Cell]]:
    """Yield the name of each column, and the cell of its first row, which stands for it."""
    for members in grouped(rows_of(kind.shown), kind.axes.col):
        first = min(members, key=kind.axes.row)
        yield place_label(kind.axes.cols, kind.axes.col(first)), first


def _conditions_text(conditions: Sequence[Condition]) -> str:
    return f" with {', '.join(one.name for one in conditions)}" if conditions else ""
