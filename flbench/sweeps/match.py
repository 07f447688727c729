"""Partial matches: the conditions of ``exclude``, ``overrides``, ``report`` and ``--only``."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from flbench.config import (
    KINDS,
    Assembler,
    Cell,
    Experiment,
    FieldProblem,
    GivenValue,
    Layer,
    TypedValue,
    parse_field,
    registry_of,
    short_name,
)
from flbench.messages import format_scalar, unknown
from flbench.registry import plain
from flbench.sweeps.source import Source

Test = Callable[[Any], bool]

#: Values that a message lists.
_MOST_LISTED = 20


class Rule:
    """Conditions that must all be met; one is met when the cell's value is any of those listed.

    A name matches a component with any settings; a shorthand or a mapping matches one with these settings, whatever the
    others; a label matches exactly. Numbers match to six significant digits: a point of a logspace has twelve, such as
    0.00316227766017, which a condition need not repeat.
    """

    def __init__(self, source: Source, conditions: Layer) -> None:
        self._tests: dict[str, list[Test]] = {}
        self._met: dict[tuple[str, TypedValue], bool] = {}
        for path, choice in conditions.items():
            wanted = choice.raw if isinstance(choice.raw, list) else [choice.raw]
            try:
                self._tests[path] = [_test(path, raw) for raw in wanted]
            except ValueError as error:
                raise source.error(choice.where, str(error)) from None
            if not wanted:
                raise source.error(choice.where, "expected at least one value, got an empty list")

    def matches(self, cell: Cell, assembler: Assembler) -> bool:
        """Return whether a cell meets every condition."""
        for path in self._tests:
            field = path.partition(".")[0]
            known = cell.get(field) or assembler.defaults.get(field)
            if known is None:
                return False  # a field that this kind of experiment does not have
            met = self._met.get((path, known))
            if met is None:
                met = self._met[path, known] = any(test(known.value) for test in self._tests[path])
            if not met:
                return False
        return True

    def holds_for(self, experiment: Experiment) -> bool:
        """Return whether an experiment meets every condition."""
        values = ((getattr(experiment, path.partition(".")[0], None), tests) for path, tests in self._tests.items())
        return all(value is not None and any(test(value) for test in tests) for value, tests in values)


@dataclass(frozen=True)
class Condition:
    """A field, and the value that it must have, or values of which it must have one; parsed once.

    Attributes:
        field: its path.
        form: the value as JSON; equal conditions have equal ones.
        given: the value with its place in the file.
        rule: its test.
    """

    field: str
    form: str
    given: GivenValue = dataclasses.field(compare=False, repr=False)
    rule: Rule = dataclasses.field(compare=False, repr=False)

    @classmethod
    def each_of(cls, source: Source, layer: Layer) -> tuple[Condition, ...]:
        """Return the conditions of a layer; raises SpecError for one that cannot be tested."""
        return tuple(
            cls(path, json.dumps(given.raw, sort_keys=True), given, Rule(source, {path: given}))
            for path, given in layer.items()
        )

    @cached_property
    def label(self) -> str:
        """``ln``, ``cosine(learned=true)``."""
        return _label(self.given.raw)

    @property
    def labels(self) -> list[str]:
        """The label of each value that meets it."""
        return list(map(_label, self.given.raw if isinstance(self.given.raw, list) else [self.given.raw]))

    @property
    def name(self) -> str:
        """The label; with the name of the field where it is a number: ``coefficient 0.3``."""
        named = "" if isinstance(self.given.raw, str | dict) else short_name(self.field).rpartition(".")[2]
        return f"{named} {self.label}".lstrip()

    def holds_for(self, experiment: Experiment) -> bool:
        """Return whether an experiment meets it."""
        return self.rule.holds_for(experiment)


def _label(raw: Any) -> str:
    """Return the label of a value as a file gives it."""
    if not isinstance(raw, dict):
        return format_scalar(raw)
    settings = ", ".join(f"{name}={format_scalar(one)}" for name, one in raw.items() if name != "name")
    return f"{raw.get('name', '')}({settings})" if settings else str(raw.get("name", ""))


def all_of(conditions: Iterable[Condition]) -> Callable[[Experiment], bool]:
    """Return a test whether an experiment meets all conditions."""
    known = tuple(conditions)
    return lambda experiment: all(one.holds_for(experiment) for one in known)


def values_here(path: str, labels: Iterable[str | None]) -> str:
    """Return the part of a message that lists the values of a field, from those of all cells.

    >>> values_here("norm", ["none", "ln", "ln", None])
    'here norm is one of: none, ln'
    """
    values = list(dict.fromkeys(filter(None, labels)))
    if not values:
        return f"here no cell has {path}"
    return f"here {path} is one of: {', '.join(values[:_MOST_LISTED])}{', ...' if len(values) > _MOST_LISTED else ''}"


def _test(path: str, raw: Any) -> Test:
    field, _, sub = path.partition(".")
    if field == "probes":
        raise ValueError("probes cannot be matched: they observe a run and do not define it")
    registry = registry_of(field)
    if registry is None:
        if field == "kind":
            if raw not in KINDS:
                raise ValueError(unknown("kind", str(raw), KINDS))
            return lambda value: bool(value == raw)
        wanted = _value_of_any_kind(field, raw)
        return lambda value: _same(value, wanted)
    if sub:
        return lambda component: hasattr(component, sub) and _same(plain(getattr(component, sub)), raw)
    if isinstance(raw, str) and "(" in raw:
        return lambda component: bool(component.label() == raw)
    try:
        cls, settings = registry.read(raw)
    except KeyError as error:
        raise ValueError(str(error)) from None
    return lambda component: (
        component.name == cls.name and all(_same(plain(getattr(component, key)), raw) for key, raw in settings.items())
    )


def _value_of_any_kind(field: str, raw: Any) -> Any:
    """Return a field's typed value in the first kind of experiment that accepts it; raises ValueError if none does."""
    problems = []
    for kind, model in KINDS.items():
        if field not in model.model_fields:
            continue
        try:
            return parse_field(kind, field, raw)
        except FieldProblem as problem:
            problems.append(str(problem))
    raise ValueError(problems[0])


def _same(value: Any, wanted: Any) -> bool:
    if isinstance(value, bool) or isinstance(wanted, bool):
        return value is wanted
    if isinstance(value, float) and isinstance(wanted, (int, float)):
        return f"{value:g}" == f"{wanted:g}"
    return bool(value == wanted)
