"""What experiments of every kind share: their fields, the rules between fields, and what defines the run id."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Annotated, Any, ClassVar, NamedTuple, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator

from flbench.config.components import parse_components
from flbench.config.evaluations import (
    MAX_EVALUATIONS,
    MAX_ROUNDS,
    EvaluatedRounds,
    evaluated_at_start,
    too_many_evaluations,
)
from flbench.registry import Component, plain

#: Fields that set how long a run is and what it records; they are not part of the run id.
REQUEST_FIELDS = frozenset({"rounds", "eval_every", "probes", "finetune"})


def canonical_json(value: Any) -> str:
    """Return the one JSON text of equal values: sorted keys, no spaces, floats as Python's shortest repr, no NaN.

    >>> canonical_json({"b": 1, "a": 0.1})
    '{"a":0.1,"b":1}'
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def digest(value: Any) -> str:
    """Return the first 16 hex digits of the sha256 of the value's canonical JSON."""
    return digest_text(canonical_json(value))


def digest_text(text: str) -> str:
    """Return the first 16 hex digits of the sha256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Check(NamedTuple):
    """A rule between fields: ``find`` maps their values to what is wrong with the field ``blamed``, or None."""

    fields: tuple[str, ...]
    blamed: str
    find: Callable[..., str | None]


class Derived(NamedTuple):
    """A default that depends on another field: where only ``source`` is given, ``field`` is ``find`` of its value."""

    field: str
    source: str
    find: Callable[[Any], Any]


class Spelling(NamedTuple):
    """The canonical value of a field whose effect depends on other fields.

    ``find(fields)`` returns the one value of ``field`` under which equal computations are hashed.
    """

    field: str
    fields: tuple[str, ...]
    find: Callable[..., Any]


def _whole(raw: Any) -> Any:
    """Accept 1e4 and the points of a linspace where a whole number is expected."""
    return int(raw) if isinstance(raw, float) and raw.is_integer() else raw


#: A whole number that a signed integer of 64 bits can hold.
Whole = Annotated[int, BeforeValidator(_whole), Field(lt=2**63)]

#: A number of rounds.
Rounds = Annotated[Whole, Field(le=MAX_ROUNDS)]


class Experiment(BaseModel):
    """What every kind shares: rounds, evaluations, the seed, and the identity.

    ``parse_experiment`` makes one. The class itself checks each field alone, and neither ``derived`` nor ``checks``.
    """

    # Strict: the text "1" and the truth value yes are not numbers.
    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, arbitrary_types_allowed=True, allow_inf_nan=False
    )

    #: Raise when the numbers of every run of this kind change (a fixed engine, other random streams).
    version: ClassVar[int] = 1
    #: Rules between fields; each value alone is checked by its type, and components check themselves.
    checks: ClassVar[tuple[Check, ...]] = (Check(("rounds", "eval_every"), "eval_every", too_many_evaluations),)
    #: Defaults that depend on another field.
    derived: ClassVar[tuple[Derived, ...]] = ()
    #: Fields of the problem and its duration: cells that differ in one of them are not comparable. Reports, searches
    #: and the status compare cells of one problem alone.
    problem: ClassVar[frozenset[str]] = frozenset({"rounds"})
    #: Names under which runs of this kind record lists, and their depth; every other record is a number.
    lists: ClassVar[Mapping[str, int]] = {}
    #: Fields of which several values are the same computation, and share a run id.
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

    @field_validator(
        "dataset", "model", "norm", "head", "method", "partition", "cohort", "probes", mode="plain", check_fields=False
    )
    @classmethod
    def _parse_components(cls, raw: Any, info: ValidationInfo) -> Any:
        return parse_components(str(info.field_name), raw)

    @classmethod
    def headline_of(cls, raw: Mapping[str, Any]) -> str:
        """Return the name of the recorded number that sums up a run, from its experiment as plain JSON."""
        return "acc"

    @classmethod
    def identity_of(cls, field: str, value: Any) -> dict[str, Any]:
        """Return what one field adds to the identity: nothing for request fields and for default values."""
        if field in REQUEST_FIELDS or value is None:
            return {}
        if isinstance(value, Component):
            return {field: value.identity()}
        return {field: plain(value)} if field == "kind" or value != cls.model_fields[field].default else {}

    def identity(self) -> dict[str, Any]:
        """Return what defines the run's numbers: kind, version, every component, and what differs from its default."""
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

    def has(self, path: str) -> bool:
        """Return whether it has a field, or a component with the setting, as in ``method.mu``."""
        field, _, setting = path.partition(".")
        return field in type(self).model_fields and (not setting or has_setting(getattr(self, field), setting))

    def has_default(self, field: str) -> bool:
        """Return whether a field has its default; that of a component is the name of one."""
        value = getattr(self, field)
        own = value.label() if isinstance(value, Component) else value
        return bool(own == type(self).model_fields[field].default)

    def versions(self) -> dict[str, int]:
        """Return the version of its kind and of each component, by name: ``{"kind federated": 1, "norm ln": 1}``."""
        parts = ((field, value) for field, value in self.identity().items() if isinstance(value, dict))
        own = {f"{field} {value['name']}": value["version"] for field, value in parts}
        return {f"kind {self.kind}": self.version, **own}

    def having(self, **components: Component) -> Self:
        """Return the same experiment with other components, such as another ``dataset``."""
        changed = self.model_copy(update=components)
        for computed in ("run_id", "cell_id"):
            changed.__dict__.pop(computed, None)
        return changed

    def to_json(self) -> dict[str, Any]:
        """Return every field as plain JSON; ``parse_experiment`` reads it back to an equal experiment."""
        return {field: _plain(getattr(self, field)) for field in type(self).model_fields}

    def evaluated_rounds(self) -> EvaluatedRounds:
        """Return the rounds after which this experiment is evaluated."""
        return EvaluatedRounds(self.rounds, self.eval_every, evaluated_at_start(self.to_json()))


def has_setting(value: Any, name: str) -> bool:
    """Return whether a field's value is a component with a setting of this name."""
    return isinstance(value, Component) and name in value.setting_names()


def _plain(value: Any) -> Any:
    if isinstance(value, Component):
        return {"name": value.name, **value.settings()}
    return [_plain(item) for item in value] if isinstance(value, tuple) else plain(value)
