"""Every kind of experiment together: from plain data to one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import Annotated, Any, cast

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from flbench.config.base import FieldProblem, InvalidExperiment, parse_components, registry_of
from flbench.config.studies import Deep, Rank, Sharpness
from flbench.config.training import Centralized, Federated
from flbench.errors import UserError
from flbench.messages import explain, unknown

#: Short names a user may write, and the field each stands for.
ALIASES: Mapping[str, str] = {"E": "local_steps"}

#: Every kind of experiment. Whoever executes one is in ``execution.py``; nothing else needs to know of a new one.
Experiment = Federated | Centralized | Sharpness | Rank | Deep
_ADAPTER: TypeAdapter[Experiment] = TypeAdapter(Annotated[Experiment, Field(discriminator="kind")])
KINDS: Mapping[str, type[Experiment]] = {
    "federated": Federated,
    "centralized": Centralized,
    "sharpness": Sharpness,
    "rank": Rank,
    "deep": Deep,
}


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


def require_device(experiments: Iterable[Experiment], device: Callable[[], str]) -> None:
    """Raise UserError where a device (``cpu`` or ``cuda``) lacks the precision of an experiment.

    ``device`` is called only where that matters: to find CUDA imports torch, which takes seconds.
    """
    if any(getattr(experiment, "precision", None) == "tf32" for experiment in experiments) and device() == "cpu":
        raise UserError(
            "precision: tf32 exists on GPUs only: on a CPU it would be fp32 under another run id. Use precision: fp32, "
            "or a GPU (`flbench run --device cuda`; in a sweep `--set resources.gpus=1`)"
        )


def headline_of(raw: Mapping[str, Any]) -> str:
    """The name of the recorded number that sums a run up, from its experiment as plain JSON."""
    return KINDS.get(str(raw.get("kind")), Federated).headline_of(raw)  # a plan may outlive a kind


def fields_of_all_kinds() -> Iterator[str]:
    """Every field that some kind of experiment has, each once, in their order."""
    yield from dict.fromkeys(field for kind in KINDS.values() for field in kind.model_fields)


def _first_problem(error: ValidationError) -> tuple[str, tuple[str | int, ...]]:
    """The first thing wrong and the path of the field inside the experiment."""
    first = error.errors()[0]
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, FieldProblem):
        return str(cause), cause.path
    return explain(first), first["loc"][1:]  # the union's tag comes first
