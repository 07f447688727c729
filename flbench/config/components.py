"""The fields of an experiment that hold components: their registries, their YAML forms, what they add to a run id."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import PlainValidator, WithJsonSchema

from flbench.errors import InvalidComponent
from flbench.registry import (
    DATASETS,
    HEADS,
    INITS,
    METHODS,
    MODELS,
    NORMS,
    PARTITIONS,
    PROBES,
    SAMPLERS,
    Component,
    Registry,
    UnknownName,
)

_REGISTRY_OF: Mapping[str, Registry[Any]] = {
    "dataset": DATASETS,
    "model": MODELS,
    "norm": NORMS,
    "head": HEADS,
    "method": METHODS,
    "partition": PARTITIONS,
    "cohort": SAMPLERS,
    "probes": PROBES,
}


#: Every registry, by the field that may name its components in plain JSON.
_ALL: Mapping[str, Registry[Any]] = {**_REGISTRY_OF, "init": INITS}


def registry_of(field: str) -> Registry[Any] | None:
    """Return the registry of a field of an experiment, if the field holds components."""
    return _REGISTRY_OF.get(field)


class FieldProblem(ValueError):
    """A value that does not fit, with the path of the field inside the experiment.

    ``unknown`` is the component that is not known here (``norm 'lm'``), if that is the problem.
    """

    def __init__(self, message: str, path: tuple[str | int, ...], unknown: str = "") -> None:
        super().__init__(message)
        self.path, self.unknown = path, unknown


def content_of(raw: Mapping[str, Any]) -> str | None:
    """Return the fingerprint of the data that an experiment, as plain JSON, is defined on; None where it names none.

    A data set without ``content`` means its official content, where that is known and not split again.
    """
    dataset = raw.get("dataset")
    if not isinstance(dataset, Mapping):
        return None
    known = DATASETS.classes.get(str(dataset.get("name")))
    official = None if dataset.get("test_fraction") else getattr(known, "official", None)
    return dataset.get("content") or official


def components_of(raw: Mapping[str, Any]) -> Iterator[tuple[Registry[Any], str]]:
    """Yield the registry and the name of each component of an experiment, as plain JSON, that a plug-in may have."""
    for field, registry in _ALL.items():
        if not registry.has_plugins:  # nearly always
            continue
        value = raw.get(field, ())
        components = [value] if isinstance(value, Mapping) else value
        yield from ((registry, str(one.get("name"))) for one in components if isinstance(one, Mapping))


def parse_components(field: str, raw: Any) -> Component | tuple[Component, ...]:
    """Return the component of a field (for ``probes``: the components) from its YAML form; raises FieldProblem."""
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


def parse_init(raw: Any) -> Component:
    """Return the start of training from its YAML form, of which ``{sweep: ..., match: ...}`` needs no name.

    It is not among the fields of ``registry_of``, because studies have texts in a field of this name.

    Raises:
        ValueError: it is no start, or its weights are not there.
    """
    if isinstance(raw, Mapping) and "sweep" in raw and "name" not in raw:
        raw = {"name": "sweep", **raw}
    try:
        component: Component = INITS.parse(raw)
    except KeyError as error:
        raise ValueError(str(error)) from None
    except InvalidComponent as error:
        raise ValueError(": ".join([*map(str, error.path), str(error)])) from None
    return component


#: The type of the field ``init``.
InitField = Annotated[Any, PlainValidator(parse_init), WithJsonSchema({"type": ["string", "object"]})]


def _named(name: Any, settings: Any) -> Any:
    """Convert an item of a mapping of probes to an item of a list: ``features: 10`` measures every 10 rounds."""
    if settings is None or isinstance(settings, Mapping):
        return {"name": name, **(settings or {})}
    return {"name": name, "every": settings}


def _parse(field: str, raw: Any) -> Component:
    try:
        component: Component = _REGISTRY_OF[field].parse(raw)
    except UnknownName as error:
        raise FieldProblem(str(error), (field,), error.what) from None
    except InvalidComponent as error:
        raise FieldProblem(str(error), (field, *error.path)) from None
    return component
