"""Positions on the axes of tables and figures: how values are ordered, and the labels that readers see."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from flbench.config import Experiment, registry_of
from flbench.literal import line
from flbench.messages import public_scalar
from flbench.registry import Component, default_of

#: Significant digits of a number on an axis; more where its values would look equal.
DIGITS = 4


@dataclass(frozen=True)
class Tick:
    """A position on an axis: ``order`` sorts and identifies it, ``label`` is the text."""

    order: tuple[Any, ...]
    label: str = field(compare=False)

    def __lt__(self, other: Tick) -> bool:
        return self.order < other.order


@lru_cache(10_000, typed=True)  # called a dozen times a run for few values; typed, since 1 and 1.0 have other labels
def tick(
    axis: str, value: Any, without: tuple[str, ...] = (), digits: int = DIGITS, always: tuple[str, ...] = ()
) -> Tick:
    """Return the position of a value: components in the order of their registry, numbers by size, None first.

    Args:
        axis: name of the field.
        value: of the field.
        without: settings of components that have axes of their own, which the label omits.
        digits: significant digits of a number.
        always: settings that the label shows at their default as well.
    """
    if not isinstance(value, Component):
        text = f"{value:.{digits}g}" if isinstance(value, float) else public_scalar(value)
        return Tick(_sortable(value), "–" if value is None else line(text))
    value = value.as_given()
    omitted = [name.partition(".")[2] for name in without if name.startswith(f"{axis}.")]
    defaults = {item.name: default_of(item) for item in dataclasses.fields(value) if item.name in omitted}
    bare = dataclasses.replace(value, **{k: v for k, v in defaults.items() if v is not dataclasses.MISSING})
    names = list(registry.classes) if (registry := registry_of(axis)) else []
    place = names.index(value.name) if value.name in names else len(names)
    settings = tuple(_sortable(getattr(bare, item.name)) for item in dataclasses.fields(bare))
    shown = [name for name in always if f"{axis}.{name}" not in without]
    return Tick((place, value.name, settings), line(bare.label(shown, public_scalar)))


def _sortable(value: Any) -> tuple[Any, ...]:
    """Return a key that orders values of different types: None, numbers, texts, sequences."""
    if value is None:
        return (0,)
    if isinstance(value, bool | int | float):
        return (1, value)
    if isinstance(value, tuple | list):
        return (3, *map(_sortable, value))
    return (2, str(value))


def axis_value(experiment: Experiment, axis: str) -> Any:
    """Return the value of a field, or of a component's field as in ``method.mu``; None where there is none."""
    name, dot, sub = axis.partition(".")
    value = getattr(experiment, name, None)
    return getattr(value, sub, None) if dot else value


def axis_names(axes: Iterable[str]) -> tuple[str, ...]:
    """Return the names of fields in heads of tables: ``E`` for the local steps, else their own."""
    return tuple("E" if axis == "local_steps" else axis for axis in axes)


def axis_label(axis: str, at: Tick) -> str:
    """Return ``E 10`` or ``lr 0.01``; the label alone for components and for the version of the data."""
    if axis == "data" or registry_of(axis) is not None:
        return at.label
    (name,) = axis_names([axis])
    return f"{name} {at.label}"


def place_label(axes: Sequence[str], at: Sequence[Tick]) -> str:
    """Return the position on several axes as text: ``E 10, lr 0.01``."""
    return ", ".join(axis_label(axis, one) for axis, one in zip(axes, at, strict=True))


def digits_of(experiments: Iterable[Experiment]) -> dict[str, int]:
    """Return the significant digits of the axes that need more than ``DIGITS`` to keep their values apart."""
    given: dict[str, dict[int, Any]] = {}  # by identity: the experiments of a sweep share their few values
    for experiment in experiments:
        for name in type(experiment).model_fields:
            value = getattr(experiment, name)
            given.setdefault(name, {})[id(value)] = value
    values: dict[str, set[float]] = {}
    for name, known in given.items():
        for value in known.values():
            parts = {f"{name}.{sub}": one for sub, one in vars(value).items()} if isinstance(value, Component) else {}
            for axis, one in {name: value, **parts}.items():
                if isinstance(one, float):
                    values.setdefault(axis, set()).add(one)
    distinct = {
        axis: next(n for n in range(DIGITS, 18) if len({f"{value:.{n}g}" for value in found}) == len(found))
        for axis, found in values.items()
    }
    return {axis: digits for axis, digits in distinct.items() if digits > DIGITS}
