"""From plain data to an experiment, for one experiment at a time.

``sweeps.assemble`` does the same for many, and parses and checks every distinct value once.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, cast

from pydantic import ConfigDict, TypeAdapter, ValidationError

from flbench.config.base import Experiment
from flbench.config.components import FieldProblem, parse_components, registry_of
from flbench.config.kinds import KINDS
from flbench.errors import UserError
from flbench.messages import explain, unknown

#: Short names that users may write, and their fields.
ALIASES: Mapping[str, str] = {"E": "local_steps"}


class InvalidExperiment(UserError):
    """An experiment with a mistake; ``path`` is the field at fault."""

    def __init__(self, message: str, path: tuple[str | int, ...] = ()) -> None:
        super().__init__(": ".join(filter(None, [".".join(map(str, path)), message])))
        self.path = path


def parse_experiment(raw: Mapping[str, Any]) -> Experiment:
    """Return the validated experiment of plain data (``kind`` defaults to federated).

    Raises:
        InvalidExperiment: an unknown field, a value that does not fit, or a field given under two names.
    """
    given = {"kind": "federated", **raw}
    for alias, field in ALIASES.items():
        if alias in given:
            if field in given:
                raise InvalidExperiment(f"{alias} and {field} are the same field; give one of them", (alias,))
            given[field] = given.pop(alias)
    kind = given["kind"]
    if not isinstance(kind, str) or kind not in KINDS:
        raise InvalidExperiment(unknown("kind", str(kind), KINDS), ("kind",))
    model = KINDS[kind]
    for field in given:
        if field not in model.model_fields:
            raise InvalidExperiment(unknown("field", str(field), model.model_fields, f"a {kind} experiment"))
    try:
        values = {field: parse_field(kind, field, given[field]) for field in model.model_fields if field in given}
    except FieldProblem as problem:
        raise InvalidExperiment(str(problem), problem.path) from None
    for derived in model.derived:
        if derived.source in values and derived.field not in values:
            values[derived.field] = derived.find(values[derived.source])
    experiment = _default(kind).model_copy(update=values)
    for check in model.checks:
        if found := check.find(*(getattr(experiment, field) for field in check.fields)):
            raise InvalidExperiment(found, (check.blamed,))
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
    annotation: Any = Annotated[cast(Any, info.annotation), info]
    return TypeAdapter(annotation, config=ConfigDict(strict=True, allow_inf_nan=False))
