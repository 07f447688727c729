"""The JSON Schema of a sweep file, for editors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, get_args

from flbench.choices import Measure
from flbench.config import ALIASES, KINDS, registry_of
from flbench.metric_specs import METRICS
from flbench.registry import LAUNCHERS, Component, schema_of
from flbench.sweeps.spec import AGAINST, BETWEEN, IF, MEASURE, SweepSpec

Schema = dict[str, Any]


def sweep_schema() -> Schema:
    """Return the JSON Schema of a sweep file, with every installed component.

    Pydantic's schema of ``SweepSpec`` leaves the fields of experiments open, since a plug-in may add components; here
    they are filled in, as are the shorter forms that a file may have (one value in place of a list of one).
    """
    whole = SweepSpec.model_json_schema(by_alias=True)
    parts = whole["$defs"]
    parts["Report"]["properties"]["metric"] |= {
        "enum": [name for name, metric in METRICS.items() if metric.recorded != "by studies"]
    }
    *own, _ = whole["properties"]["backend"]["anyOf"]  # the last stands for those of plug-ins
    whole["properties"]["backend"]["anyOf"] = [*own, *map(_backend, LAUNCHERS.classes.values())]
    fields, of_kinds = _fields(), _of_kinds()
    parts |= {f"field.{path}": field for path, field in fields.items()}
    parts |= {f"{kind}.{path}": field for kind, own in of_kinds.items() for path, field in own.items()}
    where_kind = [
        {
            "if": {"properties": {"kind": {"const": kind}}, "required": ["kind"]},
            "then": {"properties": {name: _ref(f"{kind}.{name}") for name in own}},
        }
        for kind, own in of_kinds.items()
    ]
    conditions = _mapping(fields, _one_or_list)
    parts["values"] = {**_mapping(fields, lambda field: field), "allOf": where_kind}
    parts["conditions"] = conditions
    parts["axes"] = _mapping(fields, lambda field: {"anyOf": [_list_of(field), _GENERATOR]})
    two = _mapping(fields, lambda field: {**_list_of(field, 2), "maxItems": 2})
    parts["between"] = {**two, "minProperties": 1, "maxProperties": 1}
    against = [  # a planned comparison: values of a field, which to compare with, between which columns
        {
            "properties": {
                path: form,
                AGAINST: _ref(f"field.{path}"),
                BETWEEN: _ref("between"),
                IF: _ref("conditions"),
                MEASURE: {"enum": [*get_args(Measure)]},
            },
            "required": [path, AGAINST],
            "additionalProperties": False,
        }
        for path, form in conditions["properties"].items()
    ]
    parts["contrast"] = {"type": "object", "anyOf": against}
    grid = {"set": _ref("values"), "axes": _ref("axes"), "zip": _ref("axes"), "seeds": _SEEDS}
    rules = {"exclude": _any_number(_ref("conditions")), "overrides": _any_number(_ref("Override"))}
    axis = {"enum": [path for path in fields if path != "seed"]}
    report = {
        "baseline": _ref("conditions"),
        "contrasts": _any_number(_ref("contrast")),
        "headline": _any_number(_ref("conditions")),
        "rows": _any_number(axis),
        "cols": _any_number(axis),
    }
    for owner, forms in (
        (whole, {"base": grid["set"], "axes": grid["axes"], "zip": grid["zip"], "seeds": _SEEDS, **rules}),
        (parts["Grid"], grid),
        (parts["Override"], {"if": _ref("conditions"), "set": _ref("values")}),
        (parts["Report"], report),
        (parts["Search"], {"axis": _one_or_list({"type": "string"})}),
    ):
        for key, form in forms.items():
            about = owner["properties"][key].get("description", "")
            owner["properties"][key] = {"description": about, **form}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "flbench sweep", **whole}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/$defs/{name}"}


def _list_of(item: Schema, fewest: int = 1) -> Schema:
    return {"type": "array", "items": item, "minItems": fewest}


def _one_or_list(item: Schema) -> Schema:
    return {"anyOf": [item, _list_of(item)]}


def _any_number(item: Schema) -> Schema:
    return {"anyOf": [item, _list_of(item, 0)]}


def _space(name: str, count: int, about: str, **limits: Any) -> Schema:
    numbers = {**_list_of({"type": "number", **limits}, count), "maxItems": count, "description": about}
    return {"type": "object", "properties": {name: numbers}, "required": [name], "additionalProperties": False}


_RANGE = _space("range", 2, "start, stop: whole numbers, stop is not in it")
_GENERATOR: Schema = {
    "anyOf": [
        _RANGE,
        _space("linspace", 3, "first, last, n"),
        _space("logspace", 3, "first, last, n", exclusiveMinimum=0),
    ]
}
_SEEDS: Schema = {"anyOf": [_list_of({"type": "integer", "minimum": 0}), _RANGE]}


def _backend(cls: type[Component]) -> Schema:
    """The form of a plug-in's backend."""
    schema = schema_of(cls)
    properties = {"kind": {"const": cls.name}, **schema["properties"]}
    required = ["kind", *schema.get("required", ())]
    return {**schema, "properties": properties, "required": required, "additionalProperties": False}


def _mapping(fields: dict[str, Schema], form: Callable[[Schema], Schema]) -> Schema:
    """Return the schema of a mapping of an experiment's fields, each in a form: one value, a list, ..."""
    properties = {
        path: {"description": field.get("description", ""), **form(_ref(f"field.{path}"))}
        for path, field in fields.items()
        if path != "seed"
    }
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _fields() -> dict[str, Schema]:
    """Return the schema of every path of an experiment: fields, aliases, settings of components (``norm.groups``)."""
    of_kinds: dict[str, list[Schema]] = {}
    for model in KINDS.values():
        for name, schema in model.model_json_schema()["properties"].items():
            of_kinds.setdefault(name, []).append(schema)
    fields = {name: _any_of(schemas) for name, schemas in of_kinds.items()}
    about = "; ".join(f"{kind}: {first_line(model)}" for kind, model in KINDS.items())
    fields["kind"] = {"enum": list(KINDS), "description": about}
    for path in list(fields):
        if (registry := registry_of(path)) is None:
            continue
        classes = list(registry.classes.values())
        component = {"anyOf": [form for cls in classes for form in _forms(cls)]}
        if path == "probes":
            fields[path] = {"description": fields[path]["description"], "anyOf": _probes(component, classes)}
            continue
        fields[path] = {**component, "description": fields[path]["description"]}
        for cls in classes:
            for name, setting in schema_of(cls)["properties"].items():
                fields.setdefault(f"{path}.{name}", {**setting, "description": f"{name} of {cls.name}"})
    return fields | {alias: fields[field] for alias, field in ALIASES.items()}


def _any_of(schemas: Sequence[Schema]) -> Schema:
    """Return one schema for values that match one of several."""
    about = ("title", "description", "default")
    forms = [{key: value for key, value in schema.items() if key not in about} for schema in schemas]
    distinct = [form for place, form in enumerate(forms) if form not in forms[:place]]
    if len(distinct) == 1:
        return schemas[0]
    descriptions = dict.fromkeys(schema.get("description", "") for schema in schemas)
    return {"description": "; or ".join(descriptions), "anyOf": distinct}


def _of_kinds() -> dict[str, dict[str, Schema]]:
    """Return, by kind, the schemas of the fields in which it differs from other kinds."""
    own = {kind: model.model_json_schema()["properties"] for kind, model in KINDS.items()}
    return {
        kind: {
            name: schema
            for name, schema in fields.items()
            if name != "kind" and any(other.get(name, schema) != schema for other in own.values())
        }
        for kind, fields in own.items()
    }


def first_line(cls: type) -> str:
    """Return the first line of a class's docstring."""
    return (cls.__doc__ or "").strip().partition("\n")[0]


def _probes(component: Schema, classes: Sequence[type[Component]]) -> list[Schema]:
    """Return the schemas of probes: a list, or a mapping of names to settings or to rounds between measurements."""
    settings = {
        cls.name: {
            "anyOf": [
                {"type": "integer", "minimum": 1},
                {"type": "null"},
                {"type": "object", "properties": schema_of(cls)["properties"], "additionalProperties": False},
            ]
        }
        for cls in classes
    }
    as_list: Schema = {"type": "array", "items": component if classes else False}
    return [as_list, {"type": "object", "properties": settings, "additionalProperties": False}]


def _forms(cls: type[Component]) -> list[Schema]:
    """Return the schemas of one component: its name, its shorthand, a mapping."""
    about = first_line(cls)
    mapping = {
        "type": "object",
        "description": about,
        "properties": {"name": {"const": cls.name}, **schema_of(cls)["properties"]},
        "required": ["name"],
        "additionalProperties": False,
    }
    # The name alone is valid even if a field is required: its own path (partition.beta) may give it.
    forms: list[Schema] = [{"const": cls.name, "description": about}, mapping]
    if cls.shorthand is not None:
        forms.insert(1, {"type": "string", "pattern": f"^{cls.name}:.+$", "description": f"{cls.name}:{cls.shorthand}"})
    return forms
