"""The cells of a sweep as untyped values by path of the experiment."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flbench.config import ALIASES, fields_of_all_kinds, registry_of
from flbench.messages import unknown
from flbench.registry import InvalidComponent, Registry
from flbench.sweeps.source import Source, Where
from flbench.sweeps.spec import Grid, SweepSpec, expand_range

#: Most cells of a sweep: more are a mistake, and would take minutes to plan.
MOST_CELLS = 1_000_000


@dataclass(frozen=True, eq=False, slots=True)
class GivenValue:
    """One value as given in the file. Compared by identity, so that looking up what was parsed from it is fast."""

    raw: Any
    where: Where


#: Values by path: ``lr``, ``method``, ``method.mu``.
Layer = dict[str, GivenValue]


@dataclass(frozen=True)
class Axis:
    """One dimension of a grid: an axis, or the joint axis of a ``zip``.

    Attributes:
        paths: the keys of the file, in order.
        options: what each of its positions gives; a component's settings have paths of their own.
    """

    paths: tuple[str, ...]
    options: tuple[Layer, ...]


@dataclass(frozen=True)
class CellGrid:
    """One grid: what its cells share, from base and its own ``set``, and its axes."""

    shared: Layer
    axes: tuple[Axis, ...]

    @property
    def size(self) -> int:
        """The number of its cells."""
        return math.prod(len(axis.options) for axis in self.axes)

    def paths(self) -> Iterator[str]:
        """Yield the paths that it gives itself, and not ``base``: axes first."""
        yield from (path for axis in self.axes for path in axis.paths)
        yield from (path for path, choice in self.shared.items() if choice.where[0] != "base")

    def cells(self) -> Iterator[Layer]:
        """Return every cell, the last axis running fastest."""
        return _product(self.shared, self.axes)


def _product(shared: Layer, axes: Sequence[Axis]) -> Iterator[Layer]:
    if not axes:
        yield shared
        return
    for cell in _product(shared, axes[:-1]):
        for option in axes[-1].options:
            yield {**cell, **option}


def normal_path(key: str) -> str:
    """Return the path that a key names: its alias replaced; raises ValueError if no experiment has it."""
    head, dot, sub = key.partition(".")
    field = ALIASES.get(head, head)
    known = [*fields_of_all_kinds(), *ALIASES]
    if field not in known:
        raise ValueError(unknown("field", head, known, "an experiment"))
    if dot and (registry_of(field) is None or field == "probes"):
        raise ValueError(f"{field!r} has no fields of its own, got {key!r}")
    return field + dot + sub


def read_layer(source: Source, values: Mapping[str, Any], where: Where, *, seed: bool = False) -> Layer:
    """Return the values of one mapping of the file by path; a field may be given once, under one name."""
    layer: Layer = {}
    for key, raw in values.items():
        try:
            path = normal_path(key)
        except ValueError as error:
            raise source.error((*where, key), str(error)) from None
        if path == "seed" and not seed:
            raise source.error((*where, key), "seeds are given by 'seeds: [0, 1, 2]' at the top of the file")
        if path in layer:
            raise source.error((*where, key), f"{path} is given twice: as {layer[path].where[-1]} and as {key}")
        layer[path] = GivenValue(raw, (*where, key))
    return layer


def read_values(source: Source, values: Mapping[str, Any], where: Where, *, seed: bool = False) -> Layer:
    """Return the values of one mapping, the settings inside a component at paths of their own; each is given once."""
    layer: Layer = {}
    for path, choice in read_layer(source, values, where, seed=seed).items():
        for part, value in _parts(path, choice).items():
            if part in layer:
                inside = part.partition(".")[0]
                raise source.error(choice.where, f"{part} is given twice: inside {inside} and as {part}")
            layer[part] = value
    return layer


def _parts(path: str, choice: GivenValue) -> Layer:
    """Split a value by path: a component's name, and each of its settings, as in ``method`` and ``method.mu``."""
    form = component_form(path, choice.raw)
    if form is None or len(form) == 1:
        return {path: choice}
    name = GivenValue(form.pop("name"), choice.where)
    return {path: name, **{f"{path}.{key}": GivenValue(raw, (*choice.where, key)) for key, raw in form.items()}}


def component_form(path: str, raw: Any) -> dict[str, Any] | None:
    """Return a component as a mapping of name and settings; None for other fields and for values that are not valid."""
    registry: Registry[Any] | None = registry_of(path)
    if registry is None or path == "probes":
        return None
    try:
        cls, settings = registry.read(raw)
    except (KeyError, InvalidComponent):
        return None  # reported where the value is parsed
    return {"name": cls.name, **settings}


def without(layer: Layer, replaced: Iterable[str]) -> Layer:
    """Return a layer without the settings of components that are replaced as a whole."""
    whole = {path for path in replaced if "." not in path}
    return {path: choice for path, choice in layer.items() if "." not in path or path.partition(".")[0] not in whole}


def read_grids(source: Source, spec: SweepSpec, base: Layer) -> list[CellGrid]:
    """Return every grid of a sweep, over its base."""
    if spec.grids and (spec.axes or spec.zip):
        key = "axes" if spec.axes else "zip"
        raise source.error(
            (key,), f"give either 'grids' or a single grid ('axes', 'zip'), not both: move {key} into a grid"
        )
    grids: list[CellGrid] = []
    cells = 0
    for where, grid in spec.all_grids():
        grids.append(_Reading(source, where, len(spec.seeds), cells).read(base, grid))
        cells += grids[-1].size
    return grids


class _Reading:
    """Reads one grid; it counts the cells, on top of ``before`` of earlier grids, before it makes any."""

    def __init__(self, source: Source, where: Where, seeds: int, before: int) -> None:
        self.source, self.where, self.seeds, self.before = source, where, seeds, before
        self.size = 1
        self.taken: dict[str, str] = {}  # paths that this grid gives, and the part that gives each

    def read(self, base: Layer, grid: Grid) -> CellGrid:
        fixed = read_values(self.source, grid.set, (*self.where, "set"))
        self.taken = dict.fromkeys(fixed, "set")
        varied = read_layer(self.source, grid.axes, (*self.where, "axes"))
        joint = read_layer(self.source, grid.zip, (*self.where, "zip"))
        axes = [self._axis("axes", {path: choice}) for path, choice in varied.items()]
        axes += [self._axis("zip", joint)] if joint else []
        return CellGrid({**without(base, [*fixed, *varied, *joint]), **fixed}, tuple(axes))

    def _axis(self, part: str, given: Layer) -> Axis:
        """Return one axis, or the joint axis of several fields."""
        columns = []
        for choice in given.values():
            columns.append(_axis_values(self.source, choice))
            self._refuse_more(self.size * max(map(len, columns)))
            if sum(map(len, columns)) > MOST_CELLS:
                raise self.source.error((*self.where, part), f"expected at most {MOST_CELLS:,} values in its lists")
        if len({*map(len, columns)}) > 1:
            lengths = zip(given.values(), columns, strict=True)
            got = ", ".join(f"{choice.where[-1]} has {len(values)}" for choice, values in lengths)
            raise self.source.error((*self.where, part), f"expected lists of equal length, {got}")
        self.size *= len(columns[0])
        parts = [[_parts(path, value) for value in values] for path, values in zip(given, columns, strict=True)]
        for choice, values in zip(given.values(), parts, strict=True):
            self._take(part, choice, {path for value in values for path in value})
        rows = zip(*parts, strict=True)
        return Axis(tuple(given), tuple({path: one for value in row for path, one in value.items()} for row in rows))

    def _refuse_more(self, cells: int) -> None:
        """Refuse more runs than a sweep may have, as soon as their number is certain."""
        if (total := self.before + cells) * self.seeds > MOST_CELLS:
            runs = f"{total:,} cells times {self.seeds} seeds"
            raise self.source.error((), f"{runs} are more than the {MOST_CELLS:,} runs that a sweep may have: split it")

    def _take(self, part: str, choice: GivenValue, paths: Iterable[str]) -> None:
        """Raise SpecError for a field that the grid gives twice."""
        for path in sorted(paths):
            if path in self.taken:
                there = self.taken[path]
                raise self.source.error(choice.where, f"{path} is given twice in one grid: in {there} and in {part}")
            self.taken[path] = part


def _axis_values(source: Source, choice: GivenValue) -> list[GivenValue]:
    raw = choice.raw
    if isinstance(raw, dict):
        try:
            return [GivenValue(value, choice.where) for value in expand_range(raw)]
        except ValueError as error:
            raise source.error(choice.where, str(error)) from None
    if not isinstance(raw, list):
        raise source.error(choice.where, f"expected a list of values, got {raw!r}; write [{raw}] for a single one")
    if not raw:
        raise source.error(choice.where, "expected at least one value, got an empty list")
    return [GivenValue(value, (*choice.where, index)) for index, value in enumerate(raw)]
