"""From a sweep file's values to its runs, in the order that the schema fixes: base, grids, exclude, overrides, seeds.

Each of base, grid and overrides is a layer over those before it. Of equal cells the first stays, with the seeds of all.
An entry that every cell replaces is an error.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, product

from flbench.config import (
    KINDS,
    REQUEST_FIELDS,
    Assembler,
    Cell,
    Experiment,
    GivenValue,
    Layer,
    ValidCell,
    Where,
    label,
    short_name,
)
from flbench.messages import unknown
from flbench.plugin_files import CURE
from flbench.sweeps.effects import Effects, Entry
from flbench.sweeps.match import Rule, values_here
from flbench.sweeps.ranges import expand_range
from flbench.sweeps.source import Source, split_component
from flbench.sweeps.spec import Grid, SweepSpec

#: Most runs of a sweep: more are a mistake, and would take minutes to plan.
MOST_RUNS = 1_000_000

#: The seeds of a cell.
Seeds = tuple[int, ...]


@dataclass(frozen=True)
class GridCount:
    """One grid's numbers: each axis and its length (a joint axis as ``E+rounds``), and the product."""

    axes: tuple[tuple[str, int], ...]
    cells: int


@dataclass(frozen=True)
class Arithmetic:
    """The numbers behind the number of runs.

    Attributes:
        grids: every grid's axes and number of cells.
        excluded: cells that each rule of ``exclude`` removed, a cell counted at the first rule that it matches.
        overridden: cells that each rule of ``overrides`` changed.
        duplicates: cells that an earlier one equals.
        unselected: cells that ``--only`` left out.
        cells: what remains.
        seeds: the different numbers of seeds that a cell has, increasing.
        beyond_limit: runs that ``--limit`` left out.
        runs: what remains.
    """

    grids: tuple[GridCount, ...]
    excluded: tuple[int, ...]
    overridden: tuple[int, ...]
    duplicates: int
    unselected: int
    cells: int
    seeds: tuple[int, ...]
    beyond_limit: int
    runs: int


#: One ``--only``: the source that its errors name, and its one condition.
Only = tuple[Source, Layer]


def expand(
    source: Source, spec: SweepSpec, only: Sequence[Only], limit: int | None
) -> tuple[tuple[Experiment, ...], tuple[str, ...], Arithmetic, list[ValidCell]]:
    """Expand a sweep to the cells that every ``only`` keeps, and up to ``limit`` runs.

    Returns:
        The runs in order, the fields that differ between cells, the numbers behind the number of runs, and all cells,
        also those that ``only`` and ``limit`` leave out.

    Raises:
        SpecError: the file or an option has a mistake.
    """
    base = source.read_values(spec.base, ("base",))
    grids = _read_grids(source, spec, base)
    rules = _Rules(source, spec)
    changes = [change for _, change in rules.overrides]
    effects = Effects(source, _entries(base, grids, changes))
    wanted = [Rule(*one) for one in only if "seed" not in one[1]]
    distinct: dict[str, ValidCell] = {}
    seeds: dict[str, Seeds] = {}
    duplicates = 0
    for grid in grids:
        for layer in grid.cells():
            layer, cell = rules.apply(layer)
            if cell is None:
                continue
            selected = all(rule.matches(cell.values, cell.assembler) for rule in wanted)
            effects.note(layer, cell.assembler.kind, cell.assembler.fields, selected=selected)
            twin = distinct.setdefault(cell.id, cell)
            if twin is cell:
                seeds[cell.id] = grid.seeds
            else:
                _refuse_other_request(source, cell, twin)
                seeds[cell.id] = tuple(dict.fromkeys((*seeds[cell.id], *grid.seeds)))
                duplicates += 1
    rules.refuse_idle()
    if not distinct:
        raise source.error(("exclude",), "no cell is left: the rules exclude all of them")
    cells = list(distinct.values())
    chosen = _select([(cell, seeds[cell.id]) for cell in cells], only)
    effects.refuse_idle()
    runs = tuple(islice((run for cell, its in chosen for run in cell.experiments(its)), limit))
    arithmetic = Arithmetic(
        grids=tuple(grid.count() for grid in grids),
        excluded=tuple(rules.excluded),
        overridden=tuple(rules.overridden),
        duplicates=duplicates,
        unselected=len(cells) - len(chosen),
        cells=len(chosen),
        seeds=tuple(sorted({len(its) for _, its in chosen})),
        beyond_limit=sum(len(its) for _, its in chosen) - len(runs),
        runs=len(runs),
    )
    # The augmentation follows the data set, so that it may differ although no entry gives it.
    given = (*(path for grid in grids for path in grid.paths()), *(path for change in changes for path in change))
    varying = []
    for field in dict.fromkeys([*(path.partition(".")[0] for path in given), "augment"]):
        known = {cell.known(field) for cell, _ in chosen}
        if len({one and one.value for one in known}) > 1:
            varying.append(field)
    return runs, tuple(varying), arithmetic, cells


@dataclass(frozen=True)
class _Axis:
    """One dimension of a grid: an axis, or the joint axis of a ``zip``.

    Attributes:
        paths: the keys of the file, in order.
        options: what each of its positions gives; a component's settings have paths of their own.
    """

    paths: tuple[str, ...]
    options: tuple[Layer, ...]


@dataclass(frozen=True)
class _CellGrid:
    """One grid: what its cells share, from base and its own ``set``, its axes, and the seeds of its cells."""

    shared: Layer
    axes: tuple[_Axis, ...]
    seeds: Seeds

    def count(self) -> GridCount:
        axes = tuple(("+".join(map(short_name, axis.paths)), len(axis.options)) for axis in self.axes)
        return GridCount(axes, math.prod(length for _, length in axes))

    def paths(self) -> Iterator[str]:
        """Yield the paths that it gives itself, and not ``base``: axes first."""
        yield from (path for axis in self.axes for path in axis.paths)
        yield from (path for path, value in self.shared.items() if value.where[0] != "base")

    def cells(self) -> Iterator[Layer]:
        """Yield every cell, the last axis running fastest."""
        for options in product(*(axis.options for axis in self.axes)):
            cell = self.shared.copy()
            for option in options:
                cell.update(option)
            yield cell


def _read_grids(source: Source, spec: SweepSpec, base: Layer) -> list[_CellGrid]:
    """Return every grid of a sweep, over its base; without any, one grid with the one cell of ``base``."""
    if spec.grids and (spec.axes or spec.zip):
        key = "axes" if spec.axes else "zip"
        raise source.error(
            (key,), f"give either 'grids' or a single grid ('axes', 'zip'), not both: move {key} into a grid"
        )
    if spec.grids and "seeds" in spec.model_fields_set and all(grid.seeds is not None for grid in spec.grids):
        raise source.error(("seeds",), "has no effect: every grid has seeds of its own")
    places: list[tuple[Where, Grid]] = [(("grids", index), grid) for index, grid in enumerate(spec.grids)]
    grids: list[_CellGrid] = []
    runs = 0
    for where, grid in places or [((), Grid(axes=spec.axes, zip=spec.zip))]:
        reading = _Reading(source, where, spec.seeds if grid.seeds is None else grid.seeds, runs)
        grids.append(reading.read(base, grid))
        runs += reading.runs
    return grids


class _Reading:
    """Reads one grid; it counts the runs, on top of ``before`` of earlier grids, before it makes any cell."""

    def __init__(self, source: Source, where: Where, seeds: Seeds, before: int) -> None:
        self.source, self.where, self.seeds, self.before = source, where, seeds, before
        self.runs = len(seeds)
        self.taken: dict[str, str] = {}  # paths that this grid gives, and the part that gives each

    def read(self, base: Layer, grid: Grid) -> _CellGrid:
        fixed = self.source.read_values(grid.set, (*self.where, "set"))
        self.taken = dict.fromkeys(fixed, "set")
        varied = self.source.read_layer(grid.axes, (*self.where, "axes"))
        joint = self.source.read_layer(grid.zip, (*self.where, "zip"))
        axes = [self._axis("axes", {path: value}) for path, value in varied.items()]
        axes += [self._axis("zip", joint)] if joint else []
        return _CellGrid({**_without(base, [*fixed, *varied, *joint]), **fixed}, tuple(axes), self.seeds)

    def _axis(self, part: str, given: Layer) -> _Axis:
        """Return one axis, or the joint axis of several fields."""
        columns = []
        for value in given.values():
            columns.append(_axis_values(self.source, value))
            if (total := self.before + self.runs * max(map(len, columns))) > MOST_RUNS:
                message = f"{total:,} runs are more than the {MOST_RUNS:,} that a sweep may have: split it"
                raise self.source.error((), message)
            if sum(map(len, columns)) > MOST_RUNS:
                raise self.source.error((*self.where, part), f"expected at most {MOST_RUNS:,} values in its lists")
        if len({*map(len, columns)}) > 1:
            lengths = zip(given.values(), columns, strict=True)
            got = ", ".join(f"{value.where[-1]} has {len(values)}" for value, values in lengths)
            raise self.source.error((*self.where, part), f"expected lists of equal length, {got}")
        self.runs *= len(columns[0])
        split = [[split_component(path, one) for one in values] for path, values in zip(given, columns, strict=True)]
        for value, layers in zip(given.values(), split, strict=True):
            for path in sorted({path for layer in layers for path in layer}):
                if path in self.taken:
                    both = f"in {self.taken[path]} and in {part}"
                    raise self.source.error(value.where, f"{path} is given twice in one grid: {both}")
                self.taken[path] = part
        options = []
        for at_one_position in zip(*split, strict=True):
            option: Layer = {}
            for layer in at_one_position:
                option |= layer
            options.append(option)
        return _Axis(tuple(given), tuple(options))


def _axis_values(source: Source, given: GivenValue) -> list[GivenValue]:
    raw = given.raw
    if isinstance(raw, dict):
        try:
            return [GivenValue(value, given.where) for value in expand_range(raw)]
        except ValueError as error:
            raise source.error(given.where, str(error)) from None
    if not isinstance(raw, list):
        raise source.error(given.where, f"expected a list of values, got {raw!r}; write [{raw}] for a single one")
    if not raw:
        raise source.error(given.where, "expected at least one value, got an empty list")
    return [GivenValue(value, (*given.where, index)) for index, value in enumerate(raw)]


def _without(layer: Layer, replaced: Iterable[str]) -> Layer:
    """Return a layer without the settings of components that are replaced as a whole."""
    whole = {path for path in replaced if "." not in path}
    return {path: value for path, value in layer.items() if "." not in path or path.partition(".")[0] not in whole}


def _entries(base: Layer, grids: Sequence[_CellGrid], changes: Sequence[Layer]) -> Iterator[Entry]:
    """Yield every entry of the layers; of an axis, its values together, and each setting inside one by itself."""
    for path, value in base.items():
        yield Entry(path, value.where, 0, (value,))
    for grid in grids:
        for path, value in grid.shared.items():
            if value.where[0] != "base":
                yield Entry(path, value.where, 1, (value,))
        for axis in grid.axes:
            together: dict[tuple[str, Where], list[GivenValue]] = {}
            for option in axis.options:
                for path, value in option.items():
                    where = value.where[:-1] if isinstance(value.where[-1], int) else value.where
                    together.setdefault((path, where), []).append(value)
            for (path, where), values in together.items():
                yield Entry(path, where, 1, tuple(values))
    for rank, change in enumerate(changes, 2):
        for path, value in change.items():
            yield Entry(path, value.where, rank, (value,))


class _Rules:
    """``exclude`` and ``overrides``, and how many cells each rule matched."""

    def __init__(self, source: Source, spec: SweepSpec) -> None:
        self.source = source
        self.exclude = [
            Rule(source, source.read_layer(rule, ("exclude", index))) for index, rule in enumerate(spec.exclude)
        ]
        self.overrides = [
            (
                Rule(source, source.read_layer(rule.if_, ("overrides", index, "if"))),
                source.read_values(rule.set, ("overrides", index, "set")),
            )
            for index, rule in enumerate(spec.overrides)
        ]
        self.excluded = [0] * len(self.exclude)  # cells that the rule was the first to exclude
        self.met = {"exclude": [0] * len(self.exclude), "overrides": [0] * len(self.overrides)}
        self.overridden = [0] * len(self.overrides)  # cells in which a value of the rule stayed
        self._assemblers: dict[GivenValue | None, Assembler] = {}

    def apply(self, layer: Layer) -> tuple[Layer, ValidCell | None]:
        """Return the cell's values and the cell after the rules, or None where a rule excludes it."""
        cell, assembler = self._read(layer)
        matching = [index for index, rule in enumerate(self.exclude) if rule.matches(cell, assembler)]
        for index in matching:
            self.met["exclude"][index] += 1
        if matching:
            self.excluded[matching[0]] += 1
            return layer, None
        for index, (rule, change) in enumerate(self.overrides):
            if rule.matches(cell, assembler):
                matching.append(index)
                layer = {**_without(layer, change), **change}
                cell, assembler = self._read(layer)
        for index in matching:
            self.met["overrides"][index] += 1
            self.overridden[index] += any(layer.get(path) is value for path, value in self.overrides[index][1].items())
        return layer, assembler.validated(cell)

    def refuse_idle(self) -> None:
        """Raise SpecError for a rule that matches no cell: a mistake in the rule, or in the axes."""
        for part, counts in self.met.items():
            for index, count in enumerate(counts):
                if not count:
                    message = f"this rule matches no cell: fix or remove it (for once: --set {part}=[])"
                    raise self.source.error((part, index), message)

    def _read(self, layer: Layer) -> tuple[Cell, Assembler]:
        kind = layer.get("kind")
        assembler = self._assemblers.get(kind)
        if assembler is None:
            name = kind.raw if kind else "federated"
            if not isinstance(name, str) or name not in KINDS:
                raise self.source.error(kind.where if kind else (), unknown("kind", str(name), KINDS) + CURE)
            same = (other for other in self._assemblers.values() if other.kind == name)
            assembler = self._assemblers[kind] = next(same, None) or Assembler(name, self.source.error)
        return assembler.read(layer), assembler


def _refuse_other_request(source: Source, cell: ValidCell, twin: ValidCell) -> None:
    """Raise SpecError where two cells are one run with different requests, of which only one could apply."""
    for field in sorted(REQUEST_FIELDS):
        mine, other = cell.known(field), twin.known(field)
        if mine and other and mine.value != other.value:
            both = f"{field} {label(other.value)} and {field} {label(mine.value)}"
            why = f"{field} only sets how long to run or what to record: give each cell one value of it"
            raise source.error(mine.where or other.where, f"two cells are one run, requested with {both}; {why}")


def _select(cells: list[tuple[ValidCell, Seeds]], only: Iterable[Only]) -> list[tuple[ValidCell, Seeds]]:
    """Return the cells, each with its seeds, that every ``--only`` keeps."""
    for source, layer in only:
        ((path, given),) = layer.items()
        if path == "seed":
            wanted = given.raw if isinstance(given.raw, list) else [given.raw]
            there: list[str | None] = [str(seed) for seed in dict.fromkeys(seed for _, its in cells for seed in its)]
            kept = [(cell, tuple(seed for seed in its if seed in wanted)) for cell, its in cells]
            cells = [(cell, its) for cell, its in kept if its]
        else:
            rule = Rule(source, layer)
            there = [cell.label(path) for cell, _ in cells]
            cells = [(cell, its) for cell, its in cells if rule.matches(cell.values, cell.assembler)]
        if not cells:
            raise source.error(given.where, f"nothing matches; {values_here(path, there)}")
    return cells
