"""The experiment: one frozen, typed, validated configuration, and the run id that names its numbers.

What defines the numbers is in the run id; how long to run (``rounds``) and what to write down (``eval_every``,
``probes``) is not: 200 rounds are a prefix of 10,000, and looking does not change what is seen. Where a run executes
(store, device, executor, workers) is no part of an experiment at all.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping
from functools import cache, cached_property, lru_cache
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self, cast

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
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
    explain,
    plain,
    unknown,
)

#: Short names a user may write, and the field each stands for.
ALIASES: Mapping[str, str] = {"E": "local_steps"}

#: Fields in which runs that are trained together may differ, besides the wishes and numbers of the method.
FUSABLE = frozenset({"seed", "lr", "partition", "min_size", "clients", "participation"})

#: Fields that say how long and what to observe; they are no part of the run id.
WISHES = frozenset({"rounds", "eval_every", "probes"})

Precision = Literal["fp32", "tf32", "bf16", "fp64"]
Augmentation = Literal["none", "flip-crop"]

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


def _image_fits(dataset: Any, model: Any) -> str | None:
    problem = model.problem(dataset.image) if dataset.image is not None else None
    return f"{model.label()} on {dataset.label()}: {problem}" if problem else None


def _norm_fits(dataset: Any, model: Any, norm: Any) -> str | None:
    if dataset.image is None or model.problem(dataset.image):
        return None
    problem = norm.problem(model, dataset.image)
    return f"{norm.label()} in {model.label()}: {problem}" if problem else None


def _batch_fits(component: Any, batch_size: int) -> str | None:
    smallest = component.smallest_batch
    return (
        f"{component.label()} needs at least {smallest} samples in a batch, got {batch_size}"
        if batch_size < smallest
        else None
    )


def _one_length(local_steps: int | None, local_epochs: int | None) -> str | None:
    if (local_steps is None) == (local_epochs is None):
        return f"give either local_steps (E) or local_epochs, got {local_steps} and {local_epochs}"
    return None


def _probes_meet_evaluations(probes: tuple[Any, ...], eval_every: int) -> str | None:
    for probe in probes:
        if probe.every is not None and probe.every % eval_every:
            between = f"every {probe.every} rounds is not among the evaluations, every {eval_every}"
            return f"{probe.label()}: {between}; use a multiple, or another eval_every"
    return None


def _partition_fits(dataset: Any, partition: Any, clients: int) -> str | None:
    if dataset.classes is None:
        return None
    problem = partition.misfit(dataset.classes, clients, len(dataset.domains))
    return f"{partition.label()} of {dataset.label()} among {clients} clients: {problem}" if problem else None


def _whole(raw: Any) -> Any:
    """Let 1e4 and the points of a linspace stand where a whole number is expected."""
    return int(raw) if isinstance(raw, float) and raw.is_integer() else raw


Whole = Annotated[int, BeforeValidator(_whole)]


class _Experiment(BaseModel):
    """What every kind shares: the data, the network, plain SGD, and the wishes."""

    # Strict: the text "1" and the truth value yes are no numbers.
    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, arbitrary_types_allowed=True, allow_inf_nan=False
    )

    #: Raise when the numbers of every run of this kind change (a mended engine, other random streams).
    version: ClassVar[int] = 1
    #: Values that fit alone and may not fit together; the components know their own limits.
    checks: ClassVar[tuple[Check, ...]] = (
        Check(("dataset", "model"), "model", _image_fits),
        Check(("dataset", "model", "norm"), "norm", _norm_fits),
        Check(("norm", "batch_size"), "batch_size", _batch_fits),
        Check(("local_steps", "local_epochs"), "local_epochs", _one_length),
        Check(("probes", "eval_every"), "probes", _probes_meet_evaluations),
    )

    kind: str
    dataset: Component = Field(default="digits", validate_default=True, description="data set")
    model: Component = Field(default="mlp", validate_default=True, description="network")
    norm: Component = Field(default="none", validate_default=True, description="normalization")
    bias: bool = Field(default=False, description="bias terms in dense and convolution layers")
    lr: float = Field(default=0.01, gt=0, description="learning rate of local SGD, constant")
    momentum: float = Field(default=0.0, ge=0, lt=1, description="momentum of local SGD")
    weight_decay: float = Field(default=0.0, ge=0, description="L2 coefficient added to the gradient")
    batch_size: Whole = Field(default=32, ge=1, description="samples in a mini-batch")
    local_steps: Annotated[Whole, Field(ge=1)] | None = Field(
        default=10, description="mini-batch steps in a round (alias: E); not together with local_epochs"
    )
    local_epochs: Annotated[Whole, Field(ge=1)] | None = Field(
        default=None, description="passes through a client's own data in a round, in place of local_steps"
    )
    rounds: Whole = Field(default=200, ge=1, description="how many rounds to run; raising it extends finished runs")
    augment: Augmentation = Field(default="none", description="training augmentation; default: the data set's own")
    precision: Precision = Field(default="fp32", description="arithmetic of training and evaluation")
    val_fraction: float = Field(default=0.0, ge=0, lt=1, description="share of each client's training data held out")
    eval_every: Whole = Field(default=10, ge=1, description="rounds between evaluations; the last round always has one")
    probes: tuple[Component, ...] = Field(
        default=(), description="measurements at evaluations: a list, or a mapping such as {features: 10, drift: 50}"
    )
    seed: Whole = Field(default=0, ge=0, lt=2**63, description="the root of every random choice")

    @model_validator(mode="before")
    @classmethod
    def _fill_augmentation(cls, raw: Any) -> Any:
        """Write the data set's usual augmentation into the experiment, so that the run id holds what is really done."""
        if isinstance(raw, dict) and "augment" not in raw:
            try:
                return {**raw, "augment": DATASETS.parse(raw.get("dataset", "digits")).augment}
            except (KeyError, ValueError):
                return raw  # the dataset field's own validator reports it
        return raw

    @model_validator(mode="before")
    @classmethod
    def _fill_length(cls, raw: Any) -> Any:
        """Whoever gives ``local_epochs`` gives no ``local_steps``, not even their default."""
        return {**implied_by(raw), **raw} if isinstance(raw, dict) else raw

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
    def identity_of(cls, field: str, value: Any) -> dict[str, Any]:
        """What one field adds to the identity: nothing where it is a wish or at its introduction default."""
        if field in WISHES or value is None:
            return {}
        if isinstance(value, Component):
            return {field: value.identity()}
        return {field: plain(value)} if field == "kind" or value != cls.model_fields[field].default else {}

    def identity(self) -> dict[str, Any]:
        """What defines the run's numbers: kind, version, every component, and what differs from its default."""
        out: dict[str, Any] = {"version": self.version}
        for field in type(self).model_fields:
            out |= self.identity_of(field, getattr(self, field))
        return out

    @cached_property
    def run_id(self) -> str:
        """The first 16 hex digits of the sha256 of the canonical JSON of ``identity()``."""
        return digest(self.identity())

    @cached_property
    def cell_id(self) -> str:
        """The id that all seeds of one cell share."""
        return digest({name: value for name, value in self.identity().items() if name != "seed"})

    def to_json(self) -> dict[str, Any]:
        """Every field as plain JSON; ``parse_experiment`` reads it back to an equal experiment."""
        return {field: _plain(getattr(self, field)) for field in type(self).model_fields}

    def evaluated_rounds(self) -> frozenset[int]:
        """The rounds after which this experiment wants an evaluation."""
        return evaluated_rounds(self.rounds, self.eval_every, before_the_first=bool(self.probes))


class Federated(_Experiment):
    """Clients train locally, the server combines what they send."""

    checks: ClassVar[tuple[Check, ...]] = (
        *_Experiment.checks,
        Check(("dataset", "partition", "clients"), "partition", _partition_fits),
        Check(("method", "batch_size"), "batch_size", _batch_fits),
    )

    kind: Literal["federated"] = "federated"
    method: Component = Field(default="fedavg", validate_default=True, description="federated algorithm")
    partition: Component = Field(default="classes:1", validate_default=True, description="how data meets clients")
    min_size: Whole = Field(default=1, ge=1, description="fewest training samples a client may have")
    clients: Whole = Field(default=10, ge=1, description="number of clients")
    participation: float = Field(default=1.0, gt=0, le=1, description="share of the clients that train in a round")


class Centralized(_Experiment):
    """One model on all the data: the ceiling that federated training is held against.

    A round is ``local_steps`` consecutive steps of SGD through ever new permutations of the whole training set;
    momentum is carried from round to round.
    """

    kind: Literal["centralized"] = "centralized"


#: Every kind of experiment. Kinds to come (sharpness, rank) join this union and run.py, nothing else.
Experiment = Federated | Centralized
_ADAPTER: TypeAdapter[Experiment] = TypeAdapter(Annotated[Experiment, Field(discriminator="kind")])
KINDS: Mapping[str, type[Federated] | type[Centralized]] = {"federated": Federated, "centralized": Centralized}


def parse_experiment(raw: Mapping[str, Any]) -> Experiment:
    """A validated experiment from plain data (``kind`` defaults to federated).

    Raises:
        InvalidExperiment: an unknown field, a value that does not fit, or a field given under two names.
    """
    given = {"kind": "federated", **raw}
    for alias, field in ALIASES.items():
        if alias in given:
            if field in given:
                raise InvalidExperiment(f"{alias} and {field} are the same field; give one of them", (alias,))
            given[field] = given.pop(alias)
    kind = KINDS.get(given["kind"]) if isinstance(given["kind"], str) else None
    if kind is None:
        raise InvalidExperiment(unknown("kind", str(given["kind"]), KINDS), ("kind",))
    for field in given:
        if field not in kind.model_fields:
            raise InvalidExperiment(unknown("field", str(field), kind.model_fields, f"a {given['kind']} experiment"))
    try:
        return _ADAPTER.validate_python(given)
    except ValidationError as error:
        raise InvalidExperiment(*_first_problem(error)) from None


@lru_cache(1000)
def evaluated_rounds(rounds: int, every: int, *, before_the_first: bool) -> frozenset[int]:
    """Every so many rounds and the last; whoever asks why (with probes, or in a study) also looks at the beginning.

    The experiments of a sweep share the few sets that there are.
    """
    return frozenset((*range(0 if before_the_first else every, rounds + 1, every), rounds))


def implied_by(given: Container[str]) -> dict[str, None]:
    """The fields that have no value, in place of their default, because of the fields that are given."""
    return {"local_steps": None} if "local_epochs" in given else {}


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


def parse_field(kind: str, field: str, raw: Any) -> Any:
    """One field of one kind of experiment, by itself, from its YAML form; raises FieldProblem."""
    if registry_of(field) is not None:
        return parse_components(field, raw)
    try:
        return _field_adapter(kind, field).validate_python(raw)
    except ValidationError as error:
        raise FieldProblem(explain(error.errors()[0]), (field,)) from None


@cache
def _field_adapter(kind: str, field: str) -> TypeAdapter[Any]:
    info = KINDS[kind].model_fields[field]
    annotation: Any = Annotated[cast(Any, info.annotation), info]
    return TypeAdapter(annotation, config=ConfigDict(strict=True, allow_inf_nan=False))


def canonical_json(value: Any) -> str:
    """One spelling for equal values: sorted keys, no spaces, floats as Python's shortest repr, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def digest(value: Any) -> str:
    """The first 16 hex digits of the sha256 of the value's canonical JSON."""
    return digest_text(canonical_json(value))


def digest_text(text: str) -> str:
    """The first 16 hex digits of the sha256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def fields_of_all_kinds() -> Iterator[str]:
    """Every field that some kind of experiment has, each once, in their order."""
    yield from dict.fromkeys(field for kind in KINDS.values() for field in kind.model_fields)


def _parse(field: str, raw: Any) -> Component:
    try:
        component: Component = _REGISTRY_OF[field].parse(raw)
    except KeyError as error:
        raise FieldProblem(str(error), (field,)) from None
    except InvalidComponent as error:
        raise FieldProblem(str(error), (field, *error.path)) from None
    return component


def _first_problem(error: ValidationError) -> tuple[str, tuple[str | int, ...]]:
    """The first thing wrong and the path of the field inside the experiment."""
    first = error.errors()[0]
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, FieldProblem):
        return str(cause), cause.path
    return explain(first), first["loc"][1:]  # the union's tag comes first


def _plain(value: Any) -> Any:
    if isinstance(value, Component):
        return {"name": value.name, **value.settings()}
    return [_plain(item) for item in value] if isinstance(value, tuple) else plain(value)
