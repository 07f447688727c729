"""The experiment: one frozen, typed, validated configuration, and the run id that names its numbers.

What defines the numbers is in the run id; how long to run (``rounds``) and what to write down (``eval_every``,
``probes``) is not: 200 rounds are a prefix of 10,000, and looking does not change what is seen. Where a run executes
(store, device, executor, workers) is no part of an experiment at all.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, TypeAdapter, ValidationInfo, field_validator, model_validator

from flbench.registry import DATASETS, METHODS, MODELS, NORMS, PARTITIONS, PROBES, Component, InvalidComponent, Registry

#: Short names a user may write, and the field each stands for.
ALIASES: Mapping[str, str] = {"E": "local_steps"}

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


class _Experiment(BaseModel):
    """What every kind shares: the data, the network, plain SGD, and the wishes."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True, allow_inf_nan=False)

    #: Raise when the numbers of every run of this kind change (a mended engine, other random streams).
    version: ClassVar[int] = 1

    dataset: Component = Field(default="digits", validate_default=True, description="data set")  # type: ignore[assignment]
    model: Component = Field(default="mlp", validate_default=True, description="network")  # type: ignore[assignment]
    norm: Component = Field(default="none", validate_default=True, description="normalization")  # type: ignore[assignment]
    bias: bool = Field(default=False, description="bias terms in dense and convolution layers")
    lr: float = Field(default=0.01, gt=0, description="learning rate of local SGD, constant")
    momentum: float = Field(default=0.0, ge=0, lt=1, description="momentum of local SGD")
    weight_decay: float = Field(default=0.0, ge=0, description="L2 coefficient added to the gradient")
    batch_size: int = Field(default=32, ge=1, description="samples in a mini-batch")
    local_steps: int = Field(
        default=10,
        ge=1,
        validation_alias=AliasChoices("local_steps", "E"),
        description="mini-batch steps in a round (E)",
    )
    rounds: int = Field(default=200, ge=1, description="how many rounds to run; raising it extends finished runs")
    augment: Augmentation = Field(default="none", description="training augmentation; default: the data set's own")
    precision: Precision = Field(default="fp32", description="arithmetic of training and evaluation")
    val_fraction: float = Field(default=0.0, ge=0, lt=1, description="share of each client's training data held out")
    eval_every: int = Field(default=10, ge=1, description="rounds between evaluations; the last round always has one")
    probes: tuple[Component, ...] = Field(default=(), description="measurements taken at every evaluation")
    seed: int = Field(default=0, ge=0, lt=2**63, description="the root of every random choice")

    @model_validator(mode="before")
    @classmethod
    def _fill_augmentation(cls, raw: Any) -> Any:
        """Write the data set's usual augmentation into the experiment, so that the run id holds what is really done."""
        if isinstance(raw, dict) and raw.get("augment") is None:
            try:
                usual = DATASETS.parse(raw.get("dataset", "digits")).augment
            except (KeyError, ValueError):
                return raw  # the dataset field's own validator reports it
            return {**raw, "augment": usual}
        return raw

    @field_validator("dataset", "model", "norm", "method", "partition", mode="plain", check_fields=False)
    @classmethod
    def _parse_component(cls, raw: Any, info: ValidationInfo) -> Component:
        return _parse(str(info.field_name), raw)

    @field_validator("probes", mode="plain")
    @classmethod
    def _parse_probes(cls, raw: Any) -> tuple[Component, ...]:
        if not isinstance(raw, (list, tuple)):
            raise FieldProblem(f"expected a list of probes, got {raw!r}")
        return tuple(_parse("probes", item) for item in raw)

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        for field, problem in self.problems():
            raise FieldProblem(problem, (field,))
        return self

    def problems(self) -> Iterable[tuple[str, str]]:
        """Values that fit alone but not together, as (field, message); the components know their own limits."""
        dataset: Any = self.dataset
        model: Any = self.model
        norm: Any = self.norm
        if dataset.image is not None:
            if problem := model.problem(dataset.image):
                yield "model", f"{model.label()} on {dataset.label()}: {problem}"
            elif problem := norm.problem(model, dataset.image):
                yield "norm", f"{norm.label()} in {model.label()}: {problem}"

    def identity(self) -> dict[str, Any]:
        """What defines the run's numbers: every field that is not a wish and not at its introduction default."""
        out: dict[str, Any] = {"kind": self.kind, "version": self.version}  # type: ignore[attr-defined]
        for name, field in type(self).model_fields.items():
            if name in WISHES or name == "kind":
                continue
            value = getattr(self, name)
            if isinstance(value, Component):
                out[name] = value.identity()
            elif value != field.default:
                out[name] = value
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
        out: dict[str, Any] = {}
        for name in type(self).model_fields:
            value = getattr(self, name)
            if name == "probes":
                out[name] = [{"name": probe.name, **probe.settings()} for probe in value]
            else:
                out[name] = {"name": value.name, **value.settings()} if isinstance(value, Component) else value
        return out

    def evaluated_rounds(self) -> set[int]:
        """The rounds after which this experiment wants an evaluation."""
        return {*range(self.eval_every, self.rounds + 1, self.eval_every), self.rounds}


class Federated(_Experiment):
    """Clients train locally, the server combines what they send."""

    kind: Literal["federated"] = "federated"
    method: Component = Field(default="fedavg", validate_default=True, description="federated algorithm")  # type: ignore[assignment]
    partition: Component = Field(default="classes:1", validate_default=True, description="how data meets clients")  # type: ignore[assignment]
    min_size: int = Field(default=1, ge=1, description="fewest training samples a client may have")
    clients: int = Field(default=10, ge=1, description="number of clients")
    participation: float = Field(default=1.0, gt=0, le=1, description="share of the clients that train in a round")

    def problems(self) -> Iterable[tuple[str, str]]:
        """The shared ones, and those between data, partition and clients."""
        yield from super().problems()
        dataset: Any = self.dataset
        partition: Any = self.partition
        if dataset.classes is not None and (problem := partition.problem(dataset.classes, self.clients)):
            yield "partition", f"{partition.label()} of {dataset.label()} among {self.clients} clients: {problem}"


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
    """A validated experiment from plain data (``kind`` defaults to federated); raises pydantic.ValidationError."""
    return _ADAPTER.validate_python({"kind": "federated", **raw})


def canonical_json(value: Any) -> str:
    """One spelling for equal values: sorted keys, no spaces, floats as Python's shortest repr, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def digest(value: Any) -> str:
    """The first 16 hex digits of the sha256 of the value's canonical JSON."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:16]


def _parse(field: str, raw: Any) -> Component:
    try:
        component: Component = _REGISTRY_OF[field].parse(raw)
    except KeyError as error:
        raise FieldProblem(str(error), (field,)) from None
    except InvalidComponent as error:
        raise FieldProblem(str(error), (field, *error.path)) from None
    return component
