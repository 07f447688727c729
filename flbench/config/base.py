"""What experiments of every kind share: how a value is parsed, what is checked, what defines the run id."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Annotated, Any, ClassVar, NamedTuple, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from flbench.errors import UserError
from flbench.registry import (
    DATASETS,
    METHODS,
    MODELS,
    NORMS,
    PARTITIONS,
    PROBES,
    Component,
    InvalidComponent,
    Registry,
    plain,
)

#: Most rounds of a run. Result files are named by eight digits, and 10**7 rounds already take an hour or more.
MAX_ROUNDS = 10**7

#: Most evaluations of a run. Each is a line of about 500 bytes in ``metrics.jsonl``, which readers load whole.
MAX_EVALUATIONS = 100_000

#: Fields that say how long and what to observe; they are no part of the run id.
REQUEST_FIELDS = frozenset({"rounds", "eval_every", "probes"})

_REGISTRY_OF: Mapping[str, Registry[Any]] = {
    "dataset": DATASETS,
    "model": MODELS,
    "norm": NORMS,
    "method": METHODS,
    "partition": PARTITIONS,
    "probes": PROBES,
}


def registry_of(field: str) -> Registry[Any] | None:
    """The registry whose components a field of an experiment holds, if it holds components."""
    return _REGISTRY_OF.get(field)


class FieldProblem(ValueError):
    """A value that does not fit, with the path of the field inside the experiment."""

    def __init__(self, message: str, path: tuple[str | int, ...] = ()) -> None:
        super().__init__(message)
        self.path = path


class InvalidExperiment(UserError):
    """An experiment that cannot be; ``path`` is the field at fault."""

    def __init__(self, message: str, path: tuple[str | int, ...] = ()) -> None:
        super().__init__(": ".join(filter(None, [".".join(map(str, path)), message])))
        self.path = path


class Check(NamedTuple):
    """A rule between fields: ``find`` takes their values and says what is wrong with the field ``blamed``, or None."""

    fields: tuple[str, ...]
    blamed: str
    find: Callable[..., str | None]


class Spelling(NamedTuple):
    """How the identity spells a field whose effect depends on other fields.

    ``find`` takes the values of ``fields`` and returns the value of ``field`` that all equal computations share.
    """

    field: str
    fields: tuple[str, ...]
    find: Callable[..., Any]


def _whole(raw: Any) -> Any:
    """Let 1e4 and the points of a linspace stand where a whole number is expected."""
    return int(raw) if isinstance(raw, float) and raw.is_integer() else raw


#: A whole number that a signed integer of 64 bits can hold.
Whole = Annotated[int, BeforeValidator(_whole), Field(lt=2**63)]

#: A number of rounds.
Rounds = Annotated[Whole, Field(le=MAX_ROUNDS)]


@dataclass(frozen=True, slots=True, eq=False)
class EvaluatedRounds(Set[int]):
    """The rounds after which a run is evaluated: every so many rounds and the last, as a set of constant size.

    Attributes:
        rounds: the last round, which is always evaluated.
        every: rounds between two evaluations, at least 1.
        before_the_first: whether round 0, the state before training, is evaluated as well.
    """

    rounds: int
    every: int
    before_the_first: bool

    @property
    def _regular(self) -> range:
        return range(0 if self.before_the_first else self.every, self.rounds + 1, self.every)

    def __contains__(self, round: object) -> bool:
        return round == self.rounds or round in self._regular

    def __iter__(self) -> Iterator[int]:
        regular = self._regular
        return chain(regular, () if self.rounds in regular else (self.rounds,))

    def __len__(self) -> int:
        regular = self._regular
        return len(regular) + (self.rounds not in regular)

    def __hash__(self) -> int:
        return self._hash()

    @classmethod
    def _from_iterable(cls, rounds: Iterable[Any]) -> frozenset[Any]:
        """Make the result of set operations a plain set."""
        return frozenset(rounds)


def _few_evaluations(rounds: int, eval_every: int) -> str | None:
    if rounds // eval_every <= MAX_EVALUATIONS:
        return None
    fewest = -(-rounds // MAX_EVALUATIONS)
    return (
        f"every {eval_every:,} of {rounds:,} rounds is more than the {MAX_EVALUATIONS:,} evaluations that a run may "
        f"have: use at least {fewest:,}"
    )


def request_problem(raw: Mapping[str, Any]) -> str | None:
    """Return what is wrong with ``rounds``, ``eval_every`` or ``probes`` of an experiment as plain JSON, or None."""
    for field, least in (("rounds", 0), ("eval_every", 1)):
        value = raw.get(field)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= MAX_ROUNDS:
            return f"{field}: expected a whole number from {least} to {MAX_ROUNDS}, got {value!r:.40}"
    if not isinstance(raw.get("probes", []), list):
        return f"probes: expected a list, got {raw['probes']!r:.40}"
    problem = _few_evaluations(raw["rounds"], raw["eval_every"])
    return f"eval_every: {problem}" if problem else None


class BaseExperiment(BaseModel):
    """What every kind shares: how long it runs, what it is drawn from, and its identity."""

    # Strict: the text "1" and the truth value yes are no numbers.
    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, arbitrary_types_allowed=True, allow_inf_nan=False
    )

    #: Raise when the numbers of every run of this kind change (a mended engine, other random streams).
    version: ClassVar[int] = 1
    #: Values that fit alone and may not fit together; the components know their own limits.
    checks: ClassVar[tuple[Check, ...]] = (Check(("rounds", "eval_every"), "eval_every", _few_evaluations),)
    #: Fields of which several values are one computation: they share a run id.
    spellings: ClassVar[tuple[Spelling, ...]] = ()

    kind: str
    rounds: Rounds
    eval_every: Rounds = Field(
        default=10,
        ge=1,
        description=f"rounds between evaluations, of which a run may have {MAX_EVALUATIONS:,}; the last round always "
        "has one",
    )
    seed: Whole = Field(default=0, ge=0, description="the root of every random choice")

    @field_validator("dataset", "model", "norm", "method", "partition", "probes", mode="plain", check_fields=False)
    @classmethod
    def _parse_components(cls, raw: Any, info: ValidationInfo) -> Any:
        return parse_components(str(info.field_name), raw)

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        for check in self.checks:
            if problem := check.find(*(getattr(self, field) for field in check.fields)):
                raise FieldProblem(problem, (check.blamed,))
        return self

    @classmethod
    def headline_of(cls, raw: Mapping[str, Any]) -> str:
        """The recorded number that sums a run of this kind up, from its experiment as plain JSON."""
        return "acc"

    @classmethod
    def identity_of(cls, field: str, value: Any) -> dict[str, Any]:
        """What one field adds to the identity: nothing where it is a request or at its introduction default."""
        if field in REQUEST_FIELDS or value is None:
            return {}
        if isinstance(value, Component):
            return {field: value.identity()}
        return {field: plain(value)} if field == "kind" or value != cls.model_fields[field].default else {}

    def identity(self) -> dict[str, Any]:
        """What defines the run's numbers: kind, version, every component, and what differs from its default."""
        values = {field: getattr(self, field) for field in type(self).model_fields}
        for spelling in self.spellings:
            values[spelling.field] = spelling.find(*(getattr(self, field) for field in spelling.fields))
        out: dict[str, Any] = {"version": self.version}
        for field, value in values.items():
            out |= self.identity_of(field, value)
        return out

    @cached_property
    def run_id(self) -> str:
        """The first 16 hex digits of the sha256 of the canonical JSON of ``identity()``."""
        return digest(self.identity())

    @cached_property
    def cell_id(self) -> str:
        """The id that all seeds of one cell share."""
        return digest({name: value for name, value in self.identity().items() if name != "seed"})

    def on(self, dataset: Component) -> Self:
        """The same experiment on another data set."""
        changed = self.model_copy(update={"dataset": dataset})
        for computed in ("run_id", "cell_id"):
            changed.__dict__.pop(computed, None)
        return changed

    def to_json(self) -> dict[str, Any]:
        """Every field as plain JSON; ``parse_experiment`` reads it back to an equal experiment."""
        return {field: _plain(getattr(self, field)) for field in type(self).model_fields}

    def evaluated_rounds(self) -> EvaluatedRounds:
        """The rounds after which this experiment wants an evaluation."""
        return EvaluatedRounds(self.rounds, self.eval_every, asks_why(self.to_json()))


def asks_why(raw: Mapping[str, Any]) -> bool:
    """Whether an experiment, as plain JSON, is also looked at before its first round: with probes, and every study."""
    return bool(raw.get("probes", True))


def content_of(raw: Mapping[str, Any]) -> str | None:
    """The fingerprint of the data that an experiment, as plain JSON, is defined on; None where it names none.

    A data set without ``content`` stands for its official content, where that is known.
    """
    dataset = raw.get("dataset")
    if not isinstance(dataset, Mapping):
        return None
    known = DATASETS.classes.get(str(dataset.get("name")))
    return dataset.get("content") or getattr(known, "official", None)


def plugins_of(raw: Mapping[str, Any]) -> str:
    """The source code of the plug-ins that an experiment, as plain JSON, uses: ``package=hash``, space-separated."""
    found = set()
    for field, registry in _REGISTRY_OF.items():
        value = raw.get(field, ()) if registry.has_plugins else ()
        components = [value] if isinstance(value, Mapping) else value
        found |= {registry.source(str(one.get("name"))) for one in components if isinstance(one, Mapping)}
    return " ".join(sorted(found - {""}))


def parse_components(field: str, raw: Any) -> Component | tuple[Component, ...]:
    """The component, or for ``probes`` the components, of a field from their YAML form; raises FieldProblem."""
    if field != "probes":
        return _parse(field, raw)
    if isinstance(raw, Mapping):
        raw = [_named(name, settings) for name, settings in raw.items()]
    if not isinstance(raw, (list, tuple)):
        raise FieldProblem(f"expected a list of probes, or a mapping of their names, got {raw!r}", (field,))
    probes = tuple(_parse(field, item) for item in raw)
    if twice := [name for name, count in Counter(probe.name for probe in probes).items() if count > 1]:
        raise FieldProblem(f"{twice[0]} is given twice", (field,))
    return probes


def _named(name: Any, settings: Any) -> Any:
    """One item of a mapping of probes as an item of a list: ``features: 10`` is one every 10 rounds."""
    if settings is None or isinstance(settings, Mapping):
        return {"name": name, **(settings or {})}
    return {"name": name, "every": settings}


def _parse(field: str, raw: Any) -> Component:
    try:
        component: Component = _REGISTRY_OF[field].parse(raw)
    except KeyError as error:
        raise FieldProblem(str(error), (field,)) from None
    except InvalidComponent as error:
        raise FieldProblem(str(error), (field, *error.path)) from None
    return component


def canonical_json(value: Any) -> str:
    """One spelling for equal values: sorted keys, no spaces, floats as Python's shortest repr, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def digest(value: Any) -> str:
    """The first 16 hex digits of the sha256 of the value's canonical JSON."""
    return digest_text(canonical_json(value))


def digest_text(text: str) -> str:
    """The first 16 hex digits of the sha256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _plain(value: Any) -> Any:
    if isinstance(value, Component):
        return {"name": value.name, **value.settings()}
    return [_plain(item) for item in value] if isinstance(value, tuple) else plain(value)
