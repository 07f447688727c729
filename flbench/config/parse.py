"""From plain data to typed experiments: one (``parse_experiment``), or all cells of a sweep (``Assembler``).

The assembler does the same as ``parse_experiment``, but parses, checks and spells every distinct value once. A test
compares the two, ids included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, cast

from pydantic import ConfigDict, TypeAdapter, ValidationError

from flbench.config.base import Check, Experiment, canonical_json, digest_text, has_setting
from flbench.config.components import FieldProblem, parse_components, registry_of
from flbench.config.kinds import KINDS, fields_of_all_kinds
from flbench.errors import InvalidComponent, UserError
from flbench.messages import did_you_mean, explain, format_scalar, unknown, unknown_message
from flbench.registry import Component

#: Short names that users may write, and their fields.
ALIASES: Mapping[str, str] = {"E": "local_steps"}


#: What other frameworks and papers call these fields.
SYNONYMS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("learning_rate", "client_lr", "local_lr", "eta", "step_size"), ("lr",)),
    **dict.fromkeys(("epochs", "local_iterations", "tau"), ("local_steps", "local_epochs")),
    **dict.fromkeys(("optim", "solver", "server_optimizer"), ("optimizer", "method")),
    **dict.fromkeys(("algorithm", "strategy", "aggregator", "aggregation"), ("method",)),
    **dict.fromkeys(("normalization", "normalisation", "norm_layer"), ("norm",)),
    **dict.fromkeys(("num_clients", "n_clients", "num_users"), ("clients",)),
    **dict.fromkeys(("num_rounds", "n_rounds", "comm_round", "communication_rounds", "steps"), ("rounds",)),
    **dict.fromkeys(("sampler", "client_sampling", "client_selection"), ("cohort",)),
    **dict.fromkeys(("stragglers", "drop_percent"), ("local_steps", "local_epochs")),
    **dict.fromkeys(("fraction", "client_fraction", "frac", "sample_rate", "fraction_fit"), ("participation",)),
    **dict.fromkeys(("alpha", "beta", "split", "iid", "skew", "heterogeneity"), ("partition",)),
    **dict.fromkeys(("data", "data_set"), ("dataset",)),
    **dict.fromkeys(("network", "net", "architecture", "arch", "backbone"), ("model",)),
    **dict.fromkeys(("bs", "batch", "local_bs"), ("batch_size",)),
    **dict.fromkeys(("wd", "l2", "decay"), ("weight_decay",)),
    **dict.fromkeys(("clip", "grad_clip", "max_grad_norm"), ("clip_norm", "agc")),
    **dict.fromkeys(("random_seed", "random_state"), ("seed",)),
    "eval_interval": ("eval_every",),
    "dtype": ("precision",),
}


class InvalidExperiment(UserError):
    """An experiment with a mistake; the message starts with the field at fault.

    ``unknown`` is the component that is not known here (``norm 'lm'``), if that is the mistake.
    """

    def __init__(self, message: str, unknown: str = "") -> None:
        super().__init__(message)
        self.unknown = unknown


def parse_experiment(raw: Mapping[str, Any]) -> Experiment:
    """Return the validated experiment of plain data (``kind`` defaults to federated).

    Raises:
        InvalidExperiment: an unknown field, a value that does not fit, or a field given under two names.
    """
    given = {"kind": "federated", **raw}
    for alias, field in ALIASES.items():
        if alias in given:
            if field in given:
                raise InvalidExperiment(f"{alias}: {alias} and {field} are the same field; give one of them")
            given[field] = given.pop(alias)
    kind = given["kind"]
    if not isinstance(kind, str) or kind not in KINDS:
        raise InvalidExperiment(f"kind: {unknown('kind', str(kind), KINDS)}")
    model = KINDS[kind]
    for field in given:
        if field not in model.model_fields:
            raise InvalidExperiment(unknown_field(str(field), kind))
    try:
        values = {field: parse_field(kind, field, given[field]) for field in model.model_fields if field in given}
    except FieldProblem as problem:
        raise InvalidExperiment(f"{'.'.join(map(str, problem.path))}: {problem}", problem.unknown) from None
    for derived in model.derived:
        if derived.source in values and derived.field not in values:
            values[derived.field] = derived.find(values[derived.source])
    experiment = _default(kind).model_copy(update=values)
    for check in model.checks:
        if found := check.find(*(getattr(experiment, field) for field in check.fields)):
            raise InvalidExperiment(f"{check.blamed}: {found}")
    return experiment


def parse_field(kind: str, field: str, raw: Any) -> Any:
    """Return the typed value of one field of one kind of experiment, by itself; raises FieldProblem."""
    if registry_of(field) is not None:
        return parse_components(field, raw)
    try:
        return _adapter(kind, field).validate_python(raw)
    except ValidationError as error:
        raise FieldProblem(explain(error.errors()[0]), (field,)) from None


@cache
def _default(kind: str) -> Experiment:
    return KINDS[kind].model_validate({})


@cache
def _adapter(kind: str, field: str) -> TypeAdapter[Any]:
    info = KINDS[kind].model_fields[field]
    # Without the default, which is the field's; None, because there may be no metadata.
    annotation: Any = Annotated[(cast(Any, info.annotation), *info.metadata, None)]
    return TypeAdapter(annotation, config=ConfigDict(strict=True, allow_inf_nan=False))


def normal_path(key: str, kind: str | None = None) -> str:
    """Return the path that a key names: its alias replaced.

    Raises:
        ValueError: no experiment has it. The message names the fields of ``kind``, or of every kind.
    """
    head, dot, sub = key.partition(".")
    field = ALIASES.get(head, head)
    if field not in fields_of_all_kinds():
        raise ValueError(unknown_field(head, kind))
    if dot and (registry_of(field) is None or field == "probes"):
        raise ValueError(f"{field!r} has no fields of its own, got {key!r}")
    return field + dot + sub


def unknown_field(name: str, kind: str | None = None) -> str:
    """Return the message about a field that no experiment of a kind has (None: of any kind).

    It names the field that other frameworks call so, or else a similar one, and all fields from A to Z.
    """
    fields = list(fields_of_all_kinds() if kind is None else KINDS[kind].model_fields)
    known = sorted([*fields, *(alias for alias, field in ALIASES.items() if field in fields)], key=str.lower)
    meant = [field for field in SYNONYMS.get(name.lower().replace("-", "_"), ()) if field in known]
    hint = f"; did you mean {' or '.join(map(repr, meant))}?" if meant else did_you_mean(name, known)
    article = "an experiment" if kind is None else f"a {kind} experiment"
    return unknown_message(f"field {name[:80]!r} of {article}", hint, known)


def short_name(path: str) -> str:
    """Return the shortest name of a field: its alias where it has one."""
    return next((alias for alias, field in ALIASES.items() if field == path), path)


def label(value: Any) -> str:
    """Return a field's value as users write it."""
    if isinstance(value, tuple):
        return "[" + ", ".join(map(label, value)) + "]"
    return value.label() if isinstance(value, Component) else format_scalar(value)


#: The place of a value: keys and positions from the top of the file.
Where = tuple[str | int, ...]


@dataclass(frozen=True, eq=False, slots=True)
class GivenValue:
    """One value as given in the file. Compared by identity, so that looking up what was parsed from it is fast."""

    raw: Any
    where: Where


#: Given values by path: ``lr``, ``method``, ``method.mu``.
Layer = dict[str, GivenValue]


@dataclass(frozen=True, eq=False, slots=True)
class TypedValue:
    """A field's typed value, what it adds to the canonical JSON, and its place in the file (empty: a default)."""

    value: Any
    text: str
    where: Where


#: Typed values by field; absent fields have their defaults.
Cell = dict[str, TypedValue]

#: Placeholder of the seed in a cell's canonical JSON; more fields follow it.
_SEED = "\0"


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

    def has(self, path: str) -> bool:
        """Return whether its experiments have a field, or a component with the setting, as in ``method.mu``."""
        field, _, setting = path.partition(".")
        known = self.known(field)
        return known is not None and (not setting or has_setting(known.value, setting))

    def label(self, path: str) -> str | None:
        """Return the value at a path (``lr``, ``method.mu``) as users write it, or None where it has none."""
        field, _, sub = path.partition(".")
        known = self.known(field)
        value = getattr(known.value, sub, None) if known and sub else known.value if known else None
        return None if value is None else label(value)

    def experiments(self, seeds: Iterable[int]) -> Iterator[Experiment]:
        """Yield the cell's experiments, one per seed."""
        template = self.assembler.template
        values = {field: known.value for field, known in self.values.items()}
        for seed in seeds:
            experiment = template.model_copy(update={**values, "seed": seed})
            # Shared: no code reads which fields were given, and a set per run would be a third of a plan's memory.
            object.__setattr__(experiment, "__pydantic_fields_set__", template.__pydantic_fields_set__)
            text = self.assembler.text("seed", seed)
            # What the cached properties would compute.
            experiment.__dict__["run_id"] = digest_text(f"{{{self.before}{text}{',' if text else ''}{self.after}}}")
            experiment.__dict__["cell_id"] = self.id
            yield experiment


class Assembler:
    """Builds the experiments of one kind; ``error`` makes the exception about the value at a place in the file."""

    def __init__(self, kind: str, error: Callable[[Where, str], UserError]) -> None:
        self.kind, self._error = kind, error
        self.model = KINDS[kind]
        self.template = self.model.model_validate({})
        self.fields = self.model.model_fields
        self.defaults = {field: self._typed(field, getattr(self.template, field), ()) for field in self.fields}
        version = canonical_json({"version": self.model.version})[1:-1]
        texts = {field: known.text for field, known in self.defaults.items()} | {"version": version}
        self._texts = dict(sorted(texts.items()))
        self._groups: dict[tuple[str, ...], list[tuple[str, tuple[str, ...]]]] = {}
        self._parsed: dict[GivenValue | tuple[GivenValue, ...], TypedValue] = {}
        self._derived: dict[tuple[str, TypedValue], TypedValue] = {}
        self._sound: dict[tuple[TypedValue, ...], Check] = {}
        self._spelled: dict[tuple[str, tuple[TypedValue, ...]], str] = {}

    def read(self, layer: Layer) -> Cell:
        """Return the typed values of a cell, each valid by itself; raises what ``error`` makes."""
        cell: Cell = {}
        for field, paths in self._paths_by_field(tuple(layer)):
            given = layer[paths[0]] if len(paths) == 1 else tuple(layer[path] for path in paths)
            known = self._parsed.get(given)
            if known is None:
                if field not in self.fields:
                    for path in paths:
                        if layer[path].where[0] != "base":  # which kinds share: it may give fields of another kind
                            raise self._error(layer[path].where, unknown_field(field, self.kind))
                    continue
                known = self._parsed[given] = self._parse(field, {path: layer[path] for path in paths})
            cell[field] = known
        for derived in self.model.derived:
            if derived.source in cell and derived.field not in cell:
                source = cell[derived.source]
                if (derived.field, source) not in self._derived:
                    value = derived.find(source.value)
                    self._derived[derived.field, source] = self._typed(derived.field, value, source.where)
                cell[derived.field] = self._derived[derived.field, source]
        return cell

    def validated(self, cell: Cell) -> ValidCell:
        """Return the cell with its id; raises what ``error`` makes where its values do not fit together."""
        for check in self.model.checks:
            involved = tuple([cell.get(field) or self.defaults[field] for field in check.fields])
            if self._sound.get(involved) is check:
                continue
            if problem := check.find(*(known.value for known in involved)):
                # Where the blamed field is given, or else the last of the others that is.
                given = [known.where for known in involved if known.where]
                own = involved[check.fields.index(check.blamed)].where
                raise self._error(own or (given[-1] if given else ()), problem)
            self._sound[involved] = check
        texts = self._texts.copy()
        for field, known in cell.items():
            texts[field] = known.text
        for spelling in self.model.spellings:
            involved = tuple([cell.get(field) or self.defaults[field] for field in spelling.fields])
            key = spelling.field, involved
            if key not in self._spelled:
                value = spelling.find(*(known.value for known in involved))
                self._spelled[key] = self.text(spelling.field, value)
            texts[spelling.field] = self._spelled[key]
        texts["seed"] = _SEED
        before, _, after = ",".join(filter(None, texts.values())).partition(_SEED + ",")
        return ValidCell(self, cell, digest_text(f"{{{before}{after}}}"), before, after)

    def text(self, field: str, value: Any) -> str:
        """Return what a field adds to the canonical JSON."""
        identity = self.model.identity_of(field, value)
        return canonical_json(identity)[1:-1] if identity else ""

    def _typed(self, field: str, value: Any, where: Where) -> TypedValue:
        return TypedValue(value, self.text(field, value), where)

    def _paths_by_field(self, paths: tuple[str, ...]) -> list[tuple[str, tuple[str, ...]]]:
        """Return which paths make up which field: the field itself first, then its sub-fields."""
        groups = self._groups.get(paths)
        if groups is None:
            grouped: dict[str, list[str]] = {}
            for path in sorted(paths):
                grouped.setdefault(path.partition(".")[0], []).append(path)
            groups = self._groups[paths] = [(field, tuple(group)) for field, group in grouped.items()]
        return groups

    def _parse(self, field: str, given: Layer) -> TypedValue:
        """Return a field's value from what its path, or the paths of its settings, give."""
        first = next(iter(given.values()))
        try:
            raw = first.raw if given.keys() == {field} else self._merged(field, given)
            return self._typed(field, parse_field(self.kind, field, raw), first.where)
        except FieldProblem as problem:
            own_path = given.get(".".join(map(str, problem.path[:2])))  # method.mu
            in_mapping = (*given.get(field, first).where, *problem.path[1:])
            raise self._error(own_path.where if own_path else in_mapping, str(problem)) from None

    def _merged(self, field: str, given: Layer) -> Any:
        """Return a component's mapping, completed by the settings that are given at separate paths."""
        registry: Any = registry_of(field)
        whole = given[field].raw if field in given else self.fields[field].default
        try:
            cls, settings = registry.read(whole)
            settings |= {path.partition(".")[2]: value.raw for path, value in given.items() if path != field}
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
