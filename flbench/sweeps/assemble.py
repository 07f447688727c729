"""From cells to experiments, fast: every distinct value is parsed, checked and spelled once.

``config.parse_experiment`` does the same for one experiment; a test compares the two, ids included.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from flbench.config import (
    KINDS,
    Check,
    Derived,
    Experiment,
    FieldProblem,
    Spelling,
    canonical_json,
    digest_text,
    parse_field,
    registry_of,
)
from flbench.messages import format_scalar, unknown
from flbench.registry import Component, InvalidComponent
from flbench.sweeps.grid import GivenValue, Layer
from flbench.sweeps.source import Source, Where


@dataclass(frozen=True, eq=False, slots=True)
class TypedValue:
    """A field's typed value, what it adds to the canonical JSON, and its place in the file (empty: a default)."""

    value: Any
    text: str
    where: Where


def label(value: Any) -> str:
    """Return a field's value as users write it."""
    if isinstance(value, tuple):
        return "[" + ", ".join(map(label, value)) + "]"
    return value.label() if isinstance(value, Component) else format_scalar(value)


#: Placeholder of the seed in a cell's canonical JSON; more fields follow it.
_SEED = "\0"

#: Typed values by field; absent fields have their defaults.
Cell = dict[str, TypedValue]


@dataclass(frozen=True, eq=False, slots=True)
class ValidCell:
    """A valid cell: its values, its id, and its canonical JSON before and after the place of the seed."""

    assembler: Assembler
    values: Cell
    id: str
    before: str
    after: str

    def known(self, field: str) -> TypedValue | None:
        """Return a field's value, default or not; None where this kind of experiment does not have the field."""
        return self.values.get(field) or self.assembler.defaults.get(field)

    def text(self, path: str) -> str | None:
        """Return the value at a path (``lr``, ``method.mu``) as users write it, or None where it has none."""
        field, _, sub = path.partition(".")
        known = self.known(field)
        value = getattr(known.value, sub, None) if known and sub else known.value if known else None
        return None if value is None else label(value)

    def experiments(self, seeds: Iterable[int]) -> Iterator[Experiment]:
        """Yield the cell's experiments, one per seed."""
        values = {field: known.value for field, known in self.values.items()}
        for seed in seeds:
            yield self.assembler.experiment(self, {**values, "seed": seed})


class Assembler:
    """Builds the experiments of one kind."""

    def __init__(self, kind: str, source: Source) -> None:
        self.kind, self.source = kind, source
        self.model = KINDS[kind]
        self.template = self.model.model_validate({})
        self.fields = self.model.model_fields
        self.defaults = {field: self._known(field, getattr(self.template, field), ()) for field in self.fields}
        version = canonical_json({"version": self.model.version})[1:-1]
        texts = {field: known.text for field, known in self.defaults.items()} | {"version": version}
        self._texts = dict(sorted(texts.items()))
        self._plans: dict[tuple[str, ...], list[tuple[str, tuple[str, ...]]]] = {}
        self._parsed: dict[GivenValue | tuple[GivenValue, ...], TypedValue] = {}
        self._derived: dict[tuple[str, TypedValue], TypedValue] = {}
        self._sound: dict[tuple[TypedValue, ...], Check] = {}
        self._spelled: dict[tuple[TypedValue, ...], str] = {}

    def read(self, layer: Layer) -> Cell:
        """Return the typed values of a cell, each valid by itself; raises SpecError."""
        cell: Cell = {}
        for field, paths in self._plan(tuple(layer)):
            choices = layer[paths[0]] if len(paths) == 1 else tuple(layer[path] for path in paths)
            known = self._parsed.get(choices)
            if known is None:
                if field not in self.fields and self._is_foreign(field, layer, paths):
                    continue
                known = self._parsed[choices] = self._parse(field, paths, [layer[path] for path in paths])
            cell[field] = known
        for derived in self.model.derived:
            if derived.source in cell and derived.field not in cell:
                cell[derived.field] = self._derive(derived, cell[derived.source])
        return cell

    def validated(self, cell: Cell) -> ValidCell:
        """Return the cell with its id; raises SpecError where its values do not fit together."""
        self._check(cell)
        texts = self._texts.copy()
        for field, known in cell.items():
            texts[field] = known.text
        for spelling in self.model.spellings:
            texts[spelling.field] = self._spell(spelling, cell)
        texts["seed"] = _SEED
        before, _, after = ",".join(filter(None, texts.values())).partition(_SEED + ",")
        return ValidCell(self, cell, digest_text(f"{{{before}{after}}}"), before, after)

    def experiment(self, cell: ValidCell, values: dict[str, Any]) -> Experiment:
        """Return one experiment from typed values that fit together, with ids from the known texts."""
        experiment = self.template.model_copy(update=values)
        # Shared, because no code reads which fields were given; one set per run would be a third of a plan's memory.
        object.__setattr__(experiment, "__pydantic_fields_set__", self.template.__pydantic_fields_set__)
        seed = self._text("seed", values["seed"])
        # What the cached properties would compute.
        experiment.__dict__["run_id"] = digest_text(f"{{{cell.before}{seed}{',' if seed else ''}{cell.after}}}")
        experiment.__dict__["cell_id"] = cell.id
        return experiment

    def _plan(self, paths: tuple[str, ...]) -> list[tuple[str, tuple[str, ...]]]:
        """Return which paths make up which field: the field itself first, then its sub-fields."""
        plan = self._plans.get(paths)
        if plan is None:
            grouped: dict[str, list[str]] = {}
            for path in sorted(paths):
                grouped.setdefault(path.partition(".")[0], []).append(path)
            plan = self._plans[paths] = [(field, tuple(group)) for field, group in grouped.items()]
        return plan

    def _is_foreign(self, field: str, layer: Layer, paths: tuple[str, ...]) -> bool:
        """Return whether a field of another kind is given in ``base``, which kinds share; elsewhere raise SpecError."""
        for path in paths:
            if layer[path].where[0] != "base":
                message = unknown("field", field, self.fields, f"a {self.kind} experiment")
                raise self.source.error(layer[path].where, message)
        return True

    def _parse(self, field: str, paths: tuple[str, ...], choices: list[GivenValue]) -> TypedValue:
        given = dict(zip(paths, choices, strict=True))
        try:
            raw = choices[0].raw if paths == (field,) else self._merged(field, given)
            return self._known(field, parse_field(self.kind, field, raw), choices[0].where)
        except FieldProblem as problem:
            own = given.get(".".join(map(str, problem.path[:2])))
            where = own.where if own else (*given.get(field, choices[0]).where, *problem.path[1:])
            raise self.source.error(where, str(problem)) from None

    def _merged(self, field: str, given: Layer) -> Any:
        """Return a component's mapping, completed by the settings that are given at separate paths."""
        registry: Any = registry_of(field)
        whole = given[field].raw if field in given else self.fields[field].default
        try:
            cls, settings = registry.read(whole)
            settings |= {path.partition(".")[2]: choice.raw for path, choice in given.items() if path != field}
            registry.read(merged := {"name": cls.name, **settings})
        except KeyError as error:
            raise FieldProblem(str(error), (field,)) from None
        except InvalidComponent as error:
            own_grid = f" (to vary it for some {field}s only, give them a grid of their own)"
            setting = given.get(f"{field}.{'.'.join(map(str, error.path))}")
            inside = setting is not None and field in given and setting.where[:-1] == given[field].where
            hint = own_grid if setting is not None and not inside else ""
            raise FieldProblem(f"{error}{hint}", (field, *error.path)) from None
        return merged

    def _known(self, field: str, value: Any, where: Where) -> TypedValue:
        return TypedValue(value, self._text(field, value), where)

    def _text(self, field: str, value: Any) -> str:
        identity = self.model.identity_of(field, value)
        return canonical_json(identity)[1:-1] if identity else ""

    def _spell(self, spelling: Spelling, cell: Cell) -> str:
        involved = tuple([cell.get(field) or self.defaults[field] for field in spelling.fields])
        if involved not in self._spelled:
            value = spelling.find(*(known.value for known in involved))
            self._spelled[involved] = self._text(spelling.field, value)
        return self._spelled[involved]

    def _derive(self, derived: Derived, source: TypedValue) -> TypedValue:
        if (derived.field, source) not in self._derived:
            value = derived.find(source.value)
            self._derived[derived.field, source] = self._known(derived.field, value, source.where)
        return self._derived[derived.field, source]

    def _check(self, cell: Cell) -> None:
        for check in self.model.checks:
            involved = tuple([cell.get(field) or self.defaults[field] for field in check.fields])
            if self._sound.get(involved) is check:
                continue
            if problem := check.find(*(known.value for known in involved)):
                raise self.source.error(_blame(check, involved), problem)
            self._sound[involved] = check


def _blame(check: Check, involved: tuple[TypedValue, ...]) -> Where:
    """Return where the blamed field is given, or else the last of the others that is."""
    given = [known.where for known in involved if known.where]
    own = involved[check.fields.index(check.blamed)].where
    return own or (given[-1] if given else ())
