"""From runs to the tables of a leaderboard: which cells there are, what each may say, and where it stands.

Nothing is dropped: a cell with missing, failed or diverged runs says so. Nothing is mixed: runs on two versions of the
data are never averaged, and seeds computed with different numerics are marked. What the tables look like is
``render``'s business.
"""

from __future__ import annotations

import dataclasses
import math
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flbench.config import ALIASES, Experiment
from flbench.errors import UserError
from flbench.registry import Component, by_similarity
from flbench.report.cells import (
    METRICS,
    Cell,
    Metric,
    Tick,
    axis_label,
    axis_value,
    cells_of,
    gap_of,
    grouped,
    tick,
    value_of,
)
from flbench.report.frames import Collection, Run, compared_fields
from flbench.report.provenance import Provenance
from flbench.report.verdicts import TOLERANCE, Published, compare

if TYPE_CHECKING:
    from rich.console import RenderableType

    from flbench.sweep import Sweep

#: A table with more columns than this is split by its slowest column axis.
MAX_COLUMNS = 7

#: Fields that name a section, and fields that are not axes of its tables.
SECTION = ("dataset", "model")


#: Settings that are told even where they have their default.
ALWAYS_SAID = frozenset({"lr", "local_steps", "batch_size", "clients", "method", "norm", "partition"})

#: What stands above the tables of a kind; federated ones need no title.
KIND_TITLES: Mapping[str, str] = {"federated": "", "centralized": "Centralized: one model on all the data"}


@dataclass(frozen=True)
class Options:
    """What a leaderboard shows: a sweep's ``report`` section, and where it came from."""

    metric: str = "acc"
    rows: tuple[str, ...] = ("method", "norm")
    cols: tuple[str, ...] = ("partition",)
    select_by: str = "last"
    title: str = "flbench leaderboard"
    specs: tuple[tuple[str, str], ...] = ()  # (name, hash)
    command: str = "flbench report"
    published: bool = False  # list every published number, also those that nobody asked for
    tolerance: float = TOLERANCE


def options_of(sweeps: Sequence[Sweep], arguments: Sequence[str] = (), **changes: Any) -> Options:
    """The options that the first sweep asks for, named after all of them; ``changes`` come last.

    ``arguments`` are what else the user gave ``flbench report``, for the command that makes the leaderboard again.
    """
    specs = [_public_path(sweep.path) for sweep in sweeps]
    given = dict.fromkeys(option for sweep in sweeps for option in sweep.options)
    words = [word for option in given for word in option.split(" ", 1)]
    options = Options(
        specs=tuple((sweep.name, sweep.spec_hash) for sweep in sweeps),
        command=shlex.join(["flbench", "report", *specs, *words, *arguments]),
    )
    if sweeps:
        wish = sweeps[0].spec.report
        title = ", ".join(sweep.name for sweep in sweeps)
        options = dataclasses.replace(options, title=title, metric=wish.metric, rows=wish.rows, cols=wish.cols)
        options = dataclasses.replace(options, select_by=wish.select_by)
    return dataclasses.replace(options, **changes)


def _public_path(path: Path) -> str:
    """The path as seen from here, or the bare name of a file that lies elsewhere."""
    here = Path.cwd()
    resolved = path.resolve()
    return resolved.relative_to(here).as_posix() if resolved.is_relative_to(here) else path.name


@dataclass(frozen=True)
class Table:
    """Cells in rows and columns; a position that nobody wished for holds None."""

    title: str
    metric: str
    row_axes: tuple[str, ...]
    col_axes: tuple[str, ...]
    rows: tuple[tuple[Tick, ...], ...]
    cols: tuple[tuple[Tick, ...], ...]
    cells: Mapping[tuple[int, int], Cell]
    ranked: bool = True

    @cached_property
    def best(self) -> frozenset[tuple[int, int]]:
        """Positions with the best printed mean of their column among complete cells on the same data."""
        if not self.ranked:
            return frozenset()
        metric = METRICS[self.metric]
        groups: dict[tuple[int, str | None], dict[tuple[int, int], str]] = {}
        for (row, col), cell in self.cells.items():
            if cell.complete and cell.summary:
                groups.setdefault((col, cell.fingerprint), {})[row, col] = metric.text(cell.summary.mean)
        choose: Callable[..., str] = min if metric.lower_is_better else max
        contests = [texts for texts in groups.values() if len(texts) > 1]
        return frozenset(
            at for texts in contests for at, text in texts.items() if text == choose(texts.values(), key=float)
        )


@dataclass(frozen=True)
class Section:
    """One data set and model: what is the same everywhere, then the tables."""

    title: str
    constants: str
    tables: tuple[Table, ...]
    own_shard: tuple[Table, ...]
    fingerprints: tuple[str, ...]


@dataclass(frozen=True)
class Leaderboard:
    """Everything that a leaderboard says, before it is written down."""

    options: Options
    sections: tuple[Section, ...]
    provenance: Provenance
    unfinished: Mapping[str, int]
    left_out: tuple[str, ...]
    published: Published | None = None

    @property
    def metric(self) -> Metric:
        """The headline metric."""
        return METRICS[self.options.metric]

    def all_tables(self) -> list[Table]:
        """Every table, in reading order."""
        return [table for section in self.sections for table in (*section.tables, *section.own_shard)]

    def markdown(self) -> str:
        """The text of ``leaderboard.md``: same runs, same bytes."""
        from flbench.report import render

        return render.markdown(self)

    def tables(self, width: int) -> list[RenderableType]:
        """Titles, tables and notes for a terminal that is ``width`` columns wide."""
        from flbench.report import render

        return render.terminal(self, width)

    def json(self) -> dict[str, Any]:
        """The cells and their provenance as plain data; stable from version to version."""
        from flbench.report import render

        return render.plain(self)


def build(collection: Collection, options: Options | None = None) -> Leaderboard:
    """The leaderboard of a collection of runs; raises UserError for a metric or an axis that does not exist."""
    options = options or Options()
    rows, cols = (tuple(ALIASES.get(axis, axis) for axis in axes) for axes in (options.rows, options.cols))
    options = dataclasses.replace(options, rows=rows, cols=cols)
    _check(collection.runs, options)
    gaps = Counter(why for run in collection.runs if (why := gap_of(run, options.metric)))
    return Leaderboard(
        options=options,
        sections=tuple(_section(members, options) for members in grouped(collection.runs, _place)),
        provenance=Provenance.of(collection.runs),
        unfinished=dict(sorted(gaps.items())),
        left_out=collection.left_out,
        published=compare(collection.runs, tolerance=options.tolerance, everything=options.published),
    )


def _place(run: Run) -> tuple[Tick, ...]:
    return tuple(tick(name, axis_value(run.experiment, name)) for name in SECTION)


def _check(runs: Sequence[Run], options: Options) -> None:
    if options.metric not in METRICS:
        known = by_similarity(options.metric, METRICS)
        raise UserError(f"unknown metric {options.metric!r}; known: {', '.join(known)}")
    finished = [run for run in runs if run.record is not None]
    if finished and all(value_of(run.record, options.metric) is None for run in finished):
        recorded = sorted({name for run in finished for name in run.record or ()} & METRICS.keys())
        raise UserError(f"no run recorded {options.metric!r}; recorded: {', '.join(recorded)}")
    for axis in (*options.rows, *options.cols):
        if axis in SECTION or axis in ("seed", "kind") or not any(_has_axis(run.experiment, axis) for run in runs):
            known = by_similarity(axis, _axes(run.experiment for run in runs))
            raise UserError(f"cannot lay out a leaderboard by {axis!r}; possible: {', '.join(known)}")


def _has_axis(experiment: Experiment, axis: str) -> bool:
    name, _, sub = axis.partition(".")
    if name not in type(experiment).model_fields:
        return False
    value = getattr(experiment, name)
    return not sub or (isinstance(value, Component) and sub in {item.name for item in dataclasses.fields(value)})


def _axes(experiments: Iterable[Experiment]) -> list[str]:
    """The axes that tables may have, in the order of the schema."""
    names = dict.fromkeys(name for experiment in experiments for name in compared_fields(experiment))
    return [name for name in (*names, "rounds") if name not in (*SECTION, "kind")]


def _section(runs: Sequence[Run], options: Options) -> Section:
    cells = cells_of(runs, options.metric)
    fingerprints = tuple(sorted({cell.fingerprint for cell in cells if cell.fingerprint}))
    rows = (*options.rows, "data") if len(fingerprints) > 1 else options.rows
    first = runs[0].experiment
    tables: list[Table] = []
    for kind in sorted({cell.experiment.kind for cell in cells}, reverse=True):  # federated before centralized
        members = [cell for cell in cells if cell.experiment.kind == kind]
        tables += _tables(members, KIND_TITLES.get(kind, kind), rows, options.cols)
    own = [dataclasses.replace(cell, metric="acc_personal") for cell in cells if cell.personal]
    return Section(
        title=", ".join(tick(name, axis_value(first, name)).label for name in SECTION),
        constants=_constants(cells),
        tables=tuple(tables),
        own_shard=tuple(_tables(own, "", rows, options.cols, ranked=False)),
        fingerprints=fingerprints,
    )


def _tables(
    cells: Sequence[Cell], title: str, rows: Sequence[str], cols: Sequence[str], *, ranked: bool = True
) -> list[Table]:
    """The cells as tables of a readable width: one table a value of the slower axes."""
    if not cells:
        return []
    named = (*rows, *cols)
    row_axes, asked = (tuple(axis for axis in axes if _anywhere(cells, axis)) for axes in (rows, cols))
    possible = [axis for axis in _axes(cell.experiment for cell in cells) if axis not in named]
    others = [axis for axis in possible if _varies(cells, axis, named)]
    col_axes = (*others, *asked)
    slow: tuple[str, ...] = ()
    while len(col_axes) > 1 and _widest(cells, slow, col_axes, named) > MAX_COLUMNS:
        slow, col_axes = (*slow, col_axes[0]), col_axes[1:]
    tables = []
    for members in grouped(cells, lambda cell: _ticks(cell, slow, named)):
        place = ", ".join(axis_label(axis, at) for axis, at in zip(slow, _ticks(members[0], slow, named), strict=True))
        heading = ": ".join(part for part in (title, place) if part)
        tables += _split(members, heading, row_axes, col_axes, named, ranked)
    return tables


def _split(
    cells: Sequence[Cell],
    title: str,
    row_axes: tuple[str, ...],
    col_axes: tuple[str, ...],
    named: Sequence[str],
    ranked: bool,
) -> list[Table]:
    """One table, or several with about as many columns each where one would be too wide."""
    cols = sorted({_ticks(cell, col_axes, named) for cell in cells})
    parts = math.ceil(len(cols) / MAX_COLUMNS)
    size = math.ceil(len(cols) / parts)
    tables = []
    for start in range(0, len(cols), size):
        some = cols[start : start + size]
        members = [cell for cell in cells if _ticks(cell, col_axes, named) in some]
        rows = sorted({_ticks(cell, row_axes, named) for cell in members})
        placed: dict[tuple[int, int], Cell] = {}
        for cell in members:
            at = rows.index(_ticks(cell, row_axes, named)), some.index(_ticks(cell, col_axes, named))
            if at in placed:
                raise AssertionError(f"two cells at one place: {placed[at].experiment!r} and {cell.experiment!r}")
            placed[at] = cell
        metric = cells[0].metric
        tables.append(Table(title, metric, row_axes, col_axes, tuple(rows), tuple(some), placed, ranked=ranked))
    return tables


def _anywhere(cells: Sequence[Cell], axis: str) -> bool:
    return axis == "data" or any(_has_axis(cell.experiment, axis) for cell in cells)


def _ticks(cell: Cell, axes: Sequence[str], named: Sequence[str]) -> tuple[Tick, ...]:
    return tuple(cell.tick(axis, named) for axis in axes)


def _varies(cells: Sequence[Cell], axis: str, named: Sequence[str] = ()) -> bool:
    return len({cell.tick(axis, named) for cell in cells}) > 1


def _widest(cells: Sequence[Cell], slow: Sequence[str], col_axes: Sequence[str], named: Sequence[str]) -> int:
    groups = grouped(cells, lambda cell: _ticks(cell, slow, named))
    return max(len({_ticks(cell, col_axes, named) for cell in members}) for members in groups)


def _constants(cells: Sequence[Cell]) -> str:
    """The settings that all federated (or else all) cells of a section share, as far as a reader wonders about them."""
    federated = [cell for cell in cells if cell.experiment.kind == "federated"] or list(cells)
    schema = type(federated[0].experiment).model_fields
    shown = []
    for axis in _axes(cell.experiment for cell in federated):
        value = axis_value(federated[0].experiment, axis)
        usual = axis in schema and (value is None or (axis not in ALWAYS_SAID and value == schema[axis].default))
        if not usual and not _varies(federated, axis):
            shown.append(axis_label(axis, federated[0].tick(axis)))
    return ", ".join(shown)
