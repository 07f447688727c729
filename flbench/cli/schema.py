"""The JSON Schema of a sweep file, for editors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flbench.config import ALIASES, KINDS, registry_of
from flbench.registry import Component, schema_of
from flbench.sweeps.spec import AGAINST, BETWEEN, IF, SweepSpec

Schema = dict[str, Any]


def sweep_schema() -> Schema:
    """Return the JSON Schema of a sweep file, with every installed component."""
    whole = SweepSpec.model_json_schema(by_alias=True)
    parts = whole["$defs"]
    fields = _fields()
    parts |= {f"field.{path}": field for path, field in fields.items()}
    of_kinds = _of_kinds()
    parts |= {f"{kind}.{path}": field for kind, own in of_kinds.items() for path, field in own.items()}
    parts["values"] = {
        **_mapping(fields, lambda field: field),
        "allOf": [_where_kind(*each) for each in of_kinds.items()],
    }
    parts["conditions"] = _mapping(fields, _one_or_list)
    parts["axes"] = _mapping(fields, lambda field: {"anyOf": [_list_of(field), _GENERATOR]})
    for owner, key, mapping in (
        (whole, "base", "values"),
        (whole, "axes", "axes"),
        (whole, "zip", "axes"),
        (parts["Grid"], "set", "values"),
        (parts["Grid"], "axes", "axes"),
        (parts["Grid"], "zip", "axes"),
        (parts["Override"], "if", "conditions"),
        (parts["Override"], "set", "values"),
        (parts["Report"], "baseline", "conditions"),
    ):
        _replace(owner, key, {"$ref": f"#/$defs/{mapping}"})
    parts["between"] = {**_mapping(fields, _two), "minProperties": 1, "maxProperties": 1}
    parts["contrast"] = _contrast(fields)
    _replace(parts["Report"], "contrasts", _one_or_list({"$ref": "#/$defs/contrast"}, fewest=0))
    _replace(parts["Report"], "headline", _one_or_list({"$ref": "#/$defs/conditions"}, fewest=0))
    _replace(whole, "exclude", _one_or_list({"$ref": "#/$defs/conditions"}, fewest=0))
    _replace(whole, "overrides", _one_or_list({"$ref": "#/$defs/Override"}, fewest=0))
    for owner in (whole, parts["Grid"]):
        _replace(owner, "seeds", {"anyOf": [_list_of({"type": "integer", "minimum": 0}), _RANGE]})
    for key in ("rows", "cols"):
        _replace(parts["Report"], key, _one_or_list({"enum": [path for path in fields if path != "seed"]}, fewest=0))
    _replace(parts["Search"], "axis", _one_or_list({"type": "string"}))
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "flbench sweep", **whole}


def _numbers(count: int, **limits: Any) -> Schema:
    return {"type": "array", "items": {"type": "number", **limits}, "minItems": count, "maxItems": count}


def _only(key: str, value: Schema) -> Schema:
    return {"type": "object", "properties": {key: value}, "required": [key], "additionalProperties": False}


_RANGE = _only("range", {**_numbers(2), "description": "start, stop: whole numbers, stop is not in it"})
_GENERATOR: Schema = {
    "anyOf": [
        _RANGE,
        _only("linspace", {**_numbers(3), "description": "first, last, n"}),
        _only("logspace", {**_numbers(3, exclusiveMinimum=0), "description": "first, last, n"}),
    ]
}


def _list_of(item: Schema) -> Schema:
    return {"type": "array", "items": item, "minItems": 1}


def _one_or_list(item: Schema, fewest: int = 1) -> Schema:
    return {"anyOf": [item, {**_list_of(item), "minItems": fewest}]}


def _replace(owner: Schema, key: str, new: Schema) -> None:
    """Replace the schema of a property; keep its description."""
    old = owner["properties"][key]
    owner["properties"][key] = {"description": old.get("description", ""), **new}


def _two(schema: Schema) -> Schema:
    return {**_list_of(schema), "minItems": 2, "maxItems": 2}


def _contrast(fields: dict[str, Schema]) -> Schema:
    """Return the schema of a planned comparison: values of a field, which to compare with, between which columns."""
    conditions = _mapping(fields, _one_or_list)["properties"]
    forms = [
        {
            "properties": {
                path: schema,
                AGAINST: {"$ref": f"#/$defs/field.{path}"},
                BETWEEN: {"$ref": "#/$defs/between"},
                IF: {"$ref": "#/$defs/conditions"},
            },
            "required": [path, AGAINST],
            "additionalProperties": False,
        }
        for path, schema in conditions.items()
    ]
    return {"type": "object", "anyOf": forms}


def _mapping(fields: dict[str, Schema], form: Callable[[Schema], Schema]) -> Schema:
    """Return the schema of a mapping of an experiment's fields, each in a form: one value, a list, ..."""
    properties = {
        path: {"description": field.get("description", ""), **form({"$ref": f"#/$defs/field.{path}"})}
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


def _where_kind(kind: str, fields: dict[str, Schema]) -> Schema:
    """Return the conditional schema of a mapping that names its kind."""
    properties = {name: {"$ref": f"#/$defs/{kind}.{name}"} for name in fields}
    return {
        "if": {"properties": {"kind": {"const": kind}}, "required": ["kind"]},
        "then": {"properties": properties},
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
