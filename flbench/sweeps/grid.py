"""The cells of a sweep before they mean anything: which value stands at which path of an experiment."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from flbench.config import ALIASES, fields_of_all_kinds, registry_of
from flbench.registry import unknown
from flbench.sweeps.source import Source, Where
from flbench.sweeps.spec import Grid, SweepSpec, expand_range

#: More cells than this are a mistake, and would take minutes to write down.
MOST_CELLS = 1_000_000


@dataclass(frozen=True, eq=False, slots=True)
class Choice:
    """One value as the file gives it. Equal to itself only: what is known of it is looked up by identity, fast."""

    raw: Any
    where: Where


#: Values by path: ``lr``, ``method``, ``method.mu``.
Layer = dict[str, Choice]


@dataclass(frozen=True)
class Axis:
    """One dimension of a grid: an axis, or the joint axis of a ``zip``."""

    paths: tuple[str, ...]
    options: tuple[Layer, ...]


@dataclass(frozen=True)
class CellGrid:
    """One grid: what its cells share and its axes."""

    shared: Layer
    axes: tuple[Axis, ...]

    @property
    def size(self) -> int:
        """The number of its cells."""
        return math.prod(len(axis.options) for axis in self.axes)

    def paths(self) -> Iterator[str]:
        """What it gives besides its base: axes first."""
        yield from (path for axis in self.axes for path in axis.paths)
        yield from (path for path, choice in self.shared.items() if choice.where[0] != "base")

    def cells(self) -> list[Layer]:
        """Every cell, the last axis running fastest."""
        cells = [self.shared]
        for axis in self.axes:
            cells = [{**cell, **option} for cell in cells for option in axis.options]
        return cells


def normal_path(key: str) -> str:
    """The path that a key names: its alias replaced; raises ValueError if no experiment has it."""
    head, dot, sub = key.partition(".")
    field = ALIASES.get(head, head)
    known = [*fields_of_all_kinds(), *ALIASES]
    if field not in known:
        raise ValueError(unknown("field", head, known, "an experiment"))
    if dot and (registry_of(field) is None or field == "probes"):
        raise ValueError(f"{field!r} has no fields of its own, got {key!r}")
    return field + dot + sub


def read_layer(source: Source, values: Mapping[str, Any], where: Where, *, seed: bool = False) -> Layer:
    """The values of one mapping of the file by path; a field may be given once, under one name."""
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
        layer[path] = Choice(raw, (*where, key))
    return layer


def read_grids(source: Source, spec: SweepSpec) -> list[CellGrid]:
    """Every grid of a sweep, over its base."""
    if spec.grids and (spec.axes or spec.zip):
        key = "axes" if spec.axes else "zip"
        raise source.error(
            (key,), f"give either 'grids' or a single grid ('axes', 'zip'), not both: move {key} into a grid"
        )
    base = read_layer(source, spec.base, ("base",))
    grids = [_read_grid(source, base, grid, where) for where, grid in spec.all_grids()]
    if (cells := sum(grid.size for grid in grids)) * len(spec.seeds) > MOST_CELLS:
        total = f"{cells:,} cells times {len(spec.seeds)} seeds"
        raise source.error((), f"{total} are more than the {MOST_CELLS:,} runs that a sweep may have: split it")
    return grids


def without(layer: Layer, replaced: Iterable[str]) -> Layer:
    """A layer less the sub-fields of components that are replaced as a whole."""
    whole = {path for path in replaced if "." not in path}
    return {path: choice for path, choice in layer.items() if "." not in path or path.partition(".")[0] not in whole}


def _read_grid(source: Source, base: Layer, grid: Grid, where: Where) -> CellGrid:
    fixed = read_layer(source, grid.set, (*where, "set"))
    taken = dict(fixed)
    axes = [
        Axis((path,), _options(source, {path: choice}))
        for path, choice in _new(source, taken, grid.axes, where, "axes")
    ]
    joint = dict(_new(source, taken, grid.zip, where, "zip"))
    if joint:
        axes.append(Axis(tuple(joint), _options(source, joint)))
    for path, choice in base.items():
        if "." in path and (field := path.partition(".")[0]) in taken:
            there = taken[field].where[-2]
            raise source.error(
                choice.where, f"has no effect where {field} stands in {there}: write {field}: {{name: ..., ...}}"
            )
    return CellGrid({**base, **fixed}, tuple(axes))


def _new(source: Source, taken: Layer, values: Mapping[str, Any], where: Where, part: str) -> list[tuple[str, Choice]]:
    """The axes of one part of a grid; a field may vary once and not be set besides."""
    layer = read_layer(source, values, (*where, part))
    for path, choice in layer.items():
        if path in taken:
            other = taken[path].where
            raise source.error(choice.where, f"{path} is given twice in one grid: in {other[-2]} and in {part}")
    taken |= layer
    return list(layer.items())


def _options(source: Source, axes: Layer) -> tuple[Layer, ...]:
    """The values of axes that advance together."""
    columns = {path: _axis_values(source, choice) for path, choice in axes.items()}
    lengths = {str(axes[path].where[-1]): len(values) for path, values in columns.items()}
    if len(set(lengths.values())) > 1:
        got = ", ".join(f"{key} has {length}" for key, length in lengths.items())
        raise source.error(next(iter(axes.values())).where[:-1], f"expected lists of equal length, {got}")
    rows = zip(*columns.values(), strict=True)
    return tuple(dict(zip(columns, row, strict=True)) for row in rows)


def _axis_values(source: Source, choice: Choice) -> list[Choice]:
    raw = choice.raw
    if isinstance(raw, dict):
        try:
            return [Choice(value, choice.where) for value in expand_range(raw)]
        except ValueError as error:
            raise source.error(choice.where, str(error)) from None
    if not isinstance(raw, list):
        raise source.error(choice.where, f"expected a list of values, got {raw!r}; write [{raw}] for a single one")
    if not raw:
        raise source.error(choice.where, "expected at least one value, got an empty list")
    return [Choice(value, (*choice.where, index)) for index, value in enumerate(raw)]
