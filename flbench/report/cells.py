"""The frame of cells: a row for all seeds of one configuration on one version of the data.

Nothing is dropped: a cell lists its missing, failed and diverged runs. Nothing is mixed: runs on two versions of the
data are never averaged, and seeds that were computed with different numerics are marked.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, namedtuple
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar, cast

from flbench.config import Experiment, Federated
from flbench.literal import line
from flbench.messages import format_scalar
from flbench.metric_specs import METRICS, Record, value_of
from flbench.report.provenance import describe
from flbench.report.runs import Run
from flbench.report.stats import FEWEST, Contrast, Summary, summarize, with_images
from flbench.report.ticks import DIGITS, Tick, axis_value, digits_of, tick
from flbench.store.results import CONTRIBUTED_BY, known_samples

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")

#: Cells with the same unit are one computation: the id of the cell, its round, the version of its data.
Unit = tuple[str, int, str | None]

#: The row and the column of a cell in its table.
Position = tuple[int, int]

#: A seed has collapsed if it is below the median of its cell by ten points and by five usual deviations.
COLLAPSE, FAR = 0.1, 5.0


class Cell(Protocol):
    """A row of the frame of cells; ``rows_of`` returns the rows, and the names are those of the frame's columns."""

    Index: int  # that of the frame

    # What was run, by ``cells_of``.
    runs: tuple[Run, ...]  # one a seed
    experiment: Any  # that of the first seed; the others differ in nothing that is shown
    kind: str  # of the experiment
    rounds: int  # the round whose record counts
    fingerprint: str | None  # version of the data
    key: Unit  # names the cell: its id, its round, the version of its data
    unit: Unit  # names what is computed: the key with the plainest method that trains the same
    requested: int  # number of requested seeds, those on other data among them
    samples: str | None  # numbers of training and test images: ``1442/355``
    dropped: int | None  # the round at which the search dropped this setting
    refined: bool  # whether a search's refinement has added this setting to the grid
    personal: bool  # whether parts of the model stay on the clients
    numerics: tuple[str, ...]  # the different settings of numerics among the seeds
    contributors: tuple[str, ...]  # who contributed seeds; empty where the owners of the results computed all
    digits: Mapping[str, int]  # significant digits by axis, where four are too few
    copies: tuple[Cell, ...]  # cells of the same unit whose rows are merged with this one's (``merge_rows``)

    # The values of a metric, by ``measured``.
    metric: str
    by_seed: Mapping[int, float]  # finite values only
    last_by_seed: Mapping[int, float]  # of the last evaluation, of the seeds whose value is a mean
    values: tuple[float, ...]  # those of ``by_seed``
    summary: Summary | None  # mean, sd and interval of the values
    images: int | None  # number of test images of which the metric is a share
    half_width: float | None  # of the interval over seeds and test images
    collapsed: tuple[int, ...]  # the seeds far below the others
    gaps: Mapping[str, int]  # seeds without a value by reason: ``{"diverged": 1, "failed (oom)": 2}``
    complete: bool  # whether every requested seed has a value

    # How its hyperparameters were chosen, by ``selection.tune``.
    chosen: str  # in words; empty where nothing was chosen
    at_edge: bool  # whether a chosen one is the lowest or the highest that was tried
    lost: bool  # whether it stands for settings of which each was dropped or diverged with a seed

    # Its place in a table, and what it is compared with, by ``tables.lay_out`` and ``tables.with_details``.
    at: Position
    origin: Position  # that of the first cell of its column with the same unit, often its own
    contest: int | None  # the number of the contest it is in, if any: cells of one column that are compared
    is_best: bool  # whether its printed mean is the best of its contest
    is_tied: bool  # whether it is shown to be less than the margin worse than the best
    to_best: Contrast | None  # the cell minus the one with the best mean
    to_baseline: Contrast | None  # the cell minus the baseline of its column
    costs: Any  # of training, by ``costs``, which reads cells
    # Of the cells that details show, by ``trust``, which reads cells; None elsewhere.
    rise: Summary | None  # slope of the last evaluations per doubling of rounds, over seeds; None where not known
    grid: Any  # the settings among which its own was chosen
    speed: Any  # how fast it reaches the level of its column, by ``measures``; None without a level or a curve

    def _replace(self, **columns: Any) -> Self: ...


def rows_of(cells: pd.DataFrame) -> list[Cell]:
    """Return the rows of a frame of cells."""
    # As ``DataFrame.itertuples`` does, which makes a class at every call, and reads the columns one by one.
    columns = cells.to_numpy(dtype=object).T
    return cast(list[Cell], list(map(_row_type(tuple(cells.columns))._make, zip(cells.index, *columns, strict=True))))


@cache
def _row_type(columns: tuple[str, ...]) -> Any:
    return namedtuple("Cell", ("Index", *columns))


def with_columns(cells: pd.DataFrame, **columns: Sequence[Any]) -> pd.DataFrame:
    """Return cells with more columns of Python objects, so that pandas makes no NaN of None and no float of an int."""
    import pandas as pd

    return cells.assign(**{name: pd.Series(of, index=cells.index, dtype=object) for name, of in columns.items()})


def cells_of(runs: Sequence[Run], metric: str) -> pd.DataFrame:
    """Return the frame of cells of some runs, with the values of a metric.

    An unfinished run has no version of its own: it joins the most frequent one of its configuration, or of all runs.
    """
    import pandas as pd

    usual = _most_frequent(runs, None)
    by_cell = grouped(runs, lambda run: run.cell)
    digits = digits_of(members[0].experiment for members in by_cell)
    rows = []
    for members in by_cell:
        home = _most_frequent(members, usual)
        by_data: dict[str | None, list[Run]] = {}
        for run in members:
            by_data.setdefault(run.fingerprint or home, []).append(run)
        for fingerprint, same in sorted(by_data.items(), key=lambda item: item[0] or ""):
            rows.append({**_configuration(same, fingerprint), "requested": len(members), "digits": digits})
    return measured(pd.DataFrame(rows, dtype=object), metric)


def _most_frequent(runs: Iterable[Run], otherwise: str | None) -> str | None:
    """Return the version of the data that most runs have, the first by name of several."""
    counts = Counter(run.fingerprint for run in runs if run.fingerprint)
    return max(sorted(counts), key=lambda name: counts[name]) if counts else otherwise


def _configuration(runs: Sequence[Run], fingerprint: str | None) -> dict[str, Any]:
    """Return the columns of a cell that do not depend on a metric."""
    first, results = runs[0], [run.result for run in runs if run.result]
    # All seeds are on the same data: of counts that differ, the smaller one cannot narrow an interval.
    recorded = min((one.samples for one in results if one.samples), key=lambda both: both[1], default=None)
    samples = known_samples(first.experiment, fingerprint) or recorded
    numerics = {id(one.numerics): one.numerics for one in results}  # equal ones are one object
    contributors = {one.environment.get(CONTRIBUTED_BY) for one in results} - {None}
    return {
        "runs": tuple(runs),
        "experiment": first.experiment,
        "kind": first.experiment.kind,
        "rounds": first.rounds,
        "fingerprint": fingerprint,
        "key": (*first.cell, fingerprint),
        "unit": unit_of(first.experiment, first.rounds, fingerprint),
        "samples": None if samples is None else "{}/{}".format(*samples),
        "dropped": first.dropped,
        "refined": first.refined,
        "personal": any(run.record is not None and "acc_personal" in run.record for run in runs),
        "numerics": tuple(sorted({*map(describe, numerics.values())})),
        "contributors": tuple(sorted(map(str, contributors))),
        "copies": (),
        "chosen": "",
        "at_edge": False,
        "lost": False,
        "rise": None,
        "grid": None,
        "speed": None,
    }


def unit_of(experiment: Experiment, rounds: int, fingerprint: str | None) -> Unit:
    """Return the unit of a cell: its id with the plainest method that trains the same, its round, its data."""
    if isinstance(experiment, Federated):
        same = experiment.method.same_as(experiment)  # type: ignore[attr-defined]
        if same != experiment.method:
            experiment = experiment.having(method=same)
    return experiment.cell_id, rounds, fingerprint


def measured(cells: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Return a frame of cells with the values of a metric."""
    found = [_values(cell, metric) for cell in rows_of(cells)]
    return with_columns(cells, **{name: [one[name] for one in found] for name in found[0]}) if found else cells


def _values(cell: Cell, metric: str) -> dict[str, Any]:
    """Return the columns of a cell that depend on a metric."""
    by_seed = _finite(((run, run.record) for run in cell.runs), metric)
    values, summary = tuple(by_seed.values()), summarize(tuple(by_seed.values()))
    gaps = Counter(why for run in cell.runs if (why := gap_of(run, metric)))
    if elsewhere := cell.requested - len(cell.runs):
        gaps["on other data"] = elsewhere
    counts = getattr(getattr(cell.experiment, "dataset", None), "counts", None)
    recorded = int(cell.samples.partition("/")[2]) if cell.samples else counts and counts[1]
    images = recorded if METRICS[metric].is_share else None
    return {
        "metric": metric,
        "by_seed": by_seed,
        "last_by_seed": _finite(((run, run.last) for run in cell.runs if run.last is not None), metric),
        "values": values,
        "summary": summary,
        "images": images,
        "half_width": with_images(summary, images),
        "collapsed": _collapsed(by_seed) if METRICS[metric].is_share else (),
        "gaps": dict(sorted(gaps.items())),
        "complete": len(values) == cell.requested,
    }


def _finite(records: Iterable[tuple[Run, Record | None]], metric: str) -> dict[int, float]:
    found = {run.experiment.seed: value_of(record, metric) for run, record in records}
    return {seed: value for seed, value in found.items() if value is not None and math.isfinite(value)}


def _collapsed(by_seed: Mapping[int, float]) -> tuple[int, ...]:
    """Return the seeds far below the others: under the median by ``COLLAPSE`` and by ``FAR`` usual deviations.

    The usual deviation is 1.4826 times the median absolute one, which equals the sd of normal values. Fewer than
    ``FEWEST`` values have none.
    """
    if len(by_seed) < FEWEST:
        return ()
    middle = statistics.median(by_seed.values())
    usual = 1.4826 * statistics.median(abs(value - middle) for value in by_seed.values())
    bound = middle - max(COLLAPSE, FAR * usual)
    return tuple(seed for seed, value in by_seed.items() if value < bound)


def gap_of(run: Run, metric: str) -> str | None:
    """Return why a run has no value; None where it has one."""
    if run.state == "dropped":
        return f"dropped at round {run.dropped}"
    if run.state != "done":
        return line(f"{run.state} ({run.failure})" if run.failure else run.state)
    value = value_of(run.record, metric)
    if value is None:
        return f"without {metric}"
    return None if math.isfinite(value) else f"{metric} not finite"


def merge_rows(cells: pd.DataFrame, rows: Sequence[str]) -> pd.DataFrame:
    """Return the cells of one row of each set of rows that compute the same, with those of the others as ``copies``.

    Methods that train the same model in a setting declare it (``same_as``). FedBN without batch normalization is
    FedAvg: its row beside FedAvg's would be a copy, and tests and correlations would count one result twice. Rows whose
    cells are all the same are merged under all their names. Where only some cells are the same (FedProx with one local
    step), the rows stay apart, and ``Cell.origin`` tells the copies. Sameness follows from the declarations and never
    from results, which agree by chance where accuracies have few values.

    Args:
        cells: of one section.
        rows: the fields that make the rows.

    Returns:
        Of rows with the same units the cells of the first, with its seeds: copies add nothing to n.
    """
    same: dict[frozenset[Unit], list[list[Cell]]] = {}
    for row in grouped(rows_of(cells), lambda cell: (cell.kind, *(tick_of(cell, axis) for axis in rows))):
        same.setdefault(frozenset(cell.unit for cell in row), []).append(row)
    copies = {
        cell.Index: tuple(copy for row in others for copy in row if copy.unit == cell.unit)
        for first, *others in same.values()
        for cell in first
    }
    return with_columns(cells.loc[list(copies)], copies=list(copies.values()))


def distinct(cells: Iterable[Cell]) -> list[Cell]:
    """Return one cell of each unit, the first."""
    first: dict[Unit, Cell] = {}
    for cell in cells:
        first.setdefault(cell.unit, cell)
    return list(first.values())


def tick_of(cell: Cell, axis: str, without: Sequence[str] = ()) -> Tick:
    """Return the position of a cell on an axis; the label omits the settings in ``without``."""
    if axis == "data":
        return Tick((cell.fingerprint or "",), f"data {line(cell.fingerprint or '?')[:8]}")
    if axis == "rounds":
        return Tick((cell.rounds,), format_scalar(cell.rounds))
    value = axis_value(cell.experiment, axis)
    always = ("variant",) if axis == "method" and value is not None and value.name in cell.runs[0].varied else ()
    own = tick(axis, value, tuple(without), cell.digits.get(axis, DIGITS), always)
    if axis != "method" or not cell.copies:
        return own
    return Tick(own.order, " = ".join([own.label, *(tick_of(copy, axis, without).label for copy in cell.copies)]))


def ticks_of(cells: Iterable[Cell], axis: str, without: Sequence[str] = ()) -> list[Tick]:
    """Return the positions of cells on an axis; cells that share a value, as those of a sweep do, share its tick."""
    if axis in ("data", "rounds"):  # of the cell itself
        return [tick_of(cell, axis, without) for cell in cells]
    name, known, ticks = axis.partition(".")[0], dict[Any, Tick](), []
    for cell in cells:
        if axis == "method" and cell.copies:
            ticks.append(tick_of(cell, axis, without))
            continue
        # By identity, which is fast: the cells keep these objects.
        key = id(getattr(cell.experiment, name, None)), id(cell.digits), id(cell.runs[0].varied)
        found = known.get(key)
        if found is None:
            found = known[key] = tick_of(cell, axis, without)
        ticks.append(found)
    return ticks


def grouped(items: Iterable[T], key: Callable[[T], Any]) -> list[list[T]]:
    """Return items of equal key together, in the order of the keys."""
    found: dict[Any, list[T]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return [found[one] for one in sorted(found)]
