"""From cells to runs, in the order that the schema fixes: base, grids, exclude, overrides, seeds, duplicates.

Each of base, grid and overrides is a layer over those before it. An entry that every cell replaces is an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from flbench.config import ALIASES, KINDS, REQUEST_FIELDS, Experiment
from flbench.messages import unknown
from flbench.sweeps.assemble import Assembler, Cell, ValidCell, label
from flbench.sweeps.effects import Effects
from flbench.sweeps.grid import CellGrid, GivenValue, Layer, read_grids, read_layer, read_values, without
from flbench.sweeps.match import Rule
from flbench.sweeps.source import Source
from flbench.sweeps.spec import SweepSpec


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
        seeds: seeds of each cell.
        beyond_limit: runs that ``--limit`` left out.
        runs: cells times seeds, less those.
    """

    grids: tuple[GridCount, ...]
    excluded: tuple[int, ...]
    overridden: tuple[int, ...]
    duplicates: int
    unselected: int
    cells: int
    seeds: int
    beyond_limit: int
    runs: int


#: One ``--only``: the source that its errors name, and its one condition.
Only = tuple[Source, Layer]


@dataclass(frozen=True)
class Expansion:
    """The runs of a sweep in order, the fields that vary among them, and the numbers behind their number."""

    experiments: tuple[Experiment, ...]
    varying: tuple[str, ...]
    arithmetic: Arithmetic


def expand(source: Source, spec: SweepSpec, only: Sequence[Only] = (), limit: int | None = None) -> Expansion:
    """Return the runs of a sweep, of the cells that every ``only`` keeps and up to ``limit``; raises SpecError."""
    base = read_values(source, spec.base, ("base",))
    grids = read_grids(source, spec, base)
    rules = _Rules(source, spec)
    effects = Effects(source, base, grids, [change for _, change in rules.overrides])
    wanted = [Rule(*one) for one in only if "seed" not in one[1]]
    distinct: dict[str, ValidCell] = {}
    duplicates = 0
    for grid in grids:
        for layer in grid.cells():
            layer, cell = rules.apply(layer)
            if cell is None:
                continue
            selected = all(rule.matches(cell.values, cell.assembler) for rule in wanted)
            effects.note(layer, cell.assembler.kind, cell.assembler.fields, selected=selected)
            twin = distinct.setdefault(cell.id, cell)
            if twin is not cell:
                _refuse_other_request(source, cell, twin)
                duplicates += 1
    rules.refuse_idle()
    if not distinct:
        raise source.error(("exclude",), "no cell is left: the rules exclude all of them")
    chosen, seeds = _select(list(distinct.values()), spec.seeds, only)
    effects.refuse_idle()
    possible = len(chosen) * len(seeds)
    runs = tuple(islice((run for cell in chosen for run in cell.experiments(seeds)), limit))
    arithmetic = Arithmetic(
        grids=tuple(map(_count, grids)),
        excluded=tuple(rules.excluded),
        overridden=tuple(rules.overridden),
        duplicates=duplicates,
        unselected=len(distinct) - len(chosen),
        cells=len(chosen),
        seeds=len(seeds),
        beyond_limit=possible - len(runs),
        runs=len(runs),
    )
    given = [
        *(path for grid in grids for path in grid.paths()),
        *(path for _, change in rules.overrides for path in change),
    ]
    return Expansion(runs, _varying(chosen, given), arithmetic)


class _Rules:
    """``exclude`` and ``overrides``, and how many cells each rule matched."""

    def __init__(self, source: Source, spec: SweepSpec) -> None:
        self.source = source
        self.exclude = [Rule(source, read_layer(source, rule, ("exclude", i))) for i, rule in enumerate(spec.exclude)]
        self.overrides = [
            (
                Rule(source, read_layer(source, rule.if_, ("overrides", i, "if"))),
                read_values(source, rule.set, ("overrides", i, "set")),
            )
            for i, rule in enumerate(spec.overrides)
        ]
        self.excluded = [0] * len(self.exclude)  # cells that the rule was the first to exclude
        self.met = {"exclude": [0] * len(self.exclude), "overrides": [0] * len(self.overrides)}
        self.overridden = [0] * len(self.overrides)  # cells in which a value of the rule stayed
        self._assemblers: dict[GivenValue | None, Assembler] = {}

    def apply(self, layer: Layer) -> tuple[Layer, ValidCell | None]:
        """Return the cell's values and the cell after the rules, or None where a rule excludes it."""
        cell, assembler = self._read(layer)
        if self._excludes(cell, assembler):
            return layer, None
        matching = []
        for index, (rule, change) in enumerate(self.overrides):
            if rule.matches(cell, assembler):
                matching.append(index)
                layer = {**without(layer, change), **change}
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
                raise self.source.error(kind.where if kind else (), unknown("kind", str(name), KINDS))
            same = (other for other in self._assemblers.values() if other.kind == name)
            assembler = self._assemblers[kind] = next(same, None) or Assembler(name, self.source)
        return assembler.read(layer), assembler

    def _excludes(self, cell: Cell, assembler: Assembler) -> bool:
        matching = [index for index, rule in enumerate(self.exclude) if rule.matches(cell, assembler)]
        for index in matching:
            self.met["exclude"][index] += 1
        if matching:
            self.excluded[matching[0]] += 1
        return bool(matching)


def _refuse_other_request(source: Source, cell: ValidCell, twin: ValidCell) -> None:
    """Raise SpecError where two cells are one run with different requests, of which only one could apply."""
    for field in sorted(REQUEST_FIELDS):
        mine, other = cell.known(field), twin.known(field)
        if mine and other and mine.value != other.value:
            both = f"{field} {label(other.value)} and {field} {label(mine.value)}"
            why = f"{field} only sets how long to run or what to record: give each cell one value of it"
            raise source.error(mine.where or other.where, f"two cells are one run, requested with {both}; {why}")


def _select(
    cells: list[ValidCell], seeds: tuple[int, ...], only: Iterable[Only]
) -> tuple[list[ValidCell], tuple[int, ...]]:
    """Return the cells and seeds that every ``--only`` keeps."""
    for source, layer in only:
        ((path, choice),) = layer.items()
        if path == "seed":
            wanted = choice.raw if isinstance(choice.raw, list) else [choice.raw]
            there: list[str | None] = [str(seed) for seed in seeds]
            seeds = tuple(seed for seed in seeds if seed in wanted)
        else:
            rule = Rule(source, layer)
            there = [cell.text(path) for cell in cells]
            cells = [cell for cell in cells if rule.matches(cell.values, cell.assembler)]
        if not cells or not seeds:
            values = list(dict.fromkeys(filter(None, there)))
            shown = ", ".join(values[:20]) + (", ..." if len(values) > 20 else "")
            raise source.error(choice.where, f"nothing matches; here {path} is one of: {shown}")
    return cells, seeds


def _varying(cells: list[ValidCell], paths: Iterable[str]) -> tuple[str, ...]:
    """Return which of the fields at ``paths``, and the augmentation that follows the data set, differ between cells."""
    fields = dict.fromkeys([*(path.partition(".")[0] for path in paths), "augment"])
    known = {field: {cell.known(field) for cell in cells} for field in fields}
    return tuple(field for field in fields if len({one and one.value for one in known[field]}) > 1)


def _count(grid: CellGrid) -> GridCount:
    return GridCount(tuple(("+".join(map(short_name, axis.paths)), len(axis.options)) for axis in grid.axes), grid.size)


def short_name(path: str) -> str:
    """Return the shortest name of a field: its alias where it has one."""
    return next((alias for alias, field in ALIASES.items() if field == path), path)
