"""The short name by which people tell a run from the others of its sweep."""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Mapping
from functools import cache, reduce
from typing import Any

from flbench.config import REQUEST_FIELDS, canonical_json, fields_of_all_kinds, registry_of
from flbench.messages import format_scalar
from flbench.store import Entry

#: What stands before a value in a run's short name, where it is not the field's name.
_SHORT = {"kind": "", "normalized": "", "activation": "", "seed": "s", "local_steps": "E="}

#: By kind, the fields in which the runs of a plan agree; ``kind`` is among them where there is only one.
Common = Mapping[str, Container[str]]


def common_fields(entries: Iterable[Entry]) -> dict[str, dict[str, Any]]:
    """By kind, the fields, as plain JSON, in which its runs agree (see ``Common``)."""
    names = {name for name in fields_of_all_kinds() if name not in REQUEST_FIELDS}
    common: dict[str, dict[str, Any]] = {}
    for entry in entries:
        raw = entry.experiment
        known = common.get(kind := str(raw.get("kind")))
        if known is None:
            common[kind] = {name: raw.get(name) for name in names}
        elif differing := [name for name, value in known.items() if raw.get(name) != value]:
            for name in differing:
                del known[name]
    return _telling_kinds(common)


def joined_common(parts: Iterable[Mapping[str, Mapping[str, Any]]]) -> dict[str, dict[str, Any]]:
    """What is common to the runs of all parts of a plan, from what is to those of each."""
    return _telling_kinds(reduce(_agreed, parts, {}))


def _agreed(left: Mapping[str, Mapping[str, Any]], right: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    joined = {kind: dict(fields) for kind, fields in (*left.items(), *right.items())}
    for kind in left.keys() & right.keys():
        joined[kind] = {name: value for name, value in left[kind].items() if right[kind].get(name, ...) == value}
    return joined


def _telling_kinds(common: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The kind is no field that all agree in where there are several."""
    for fields in common.values() if len(common) > 1 else ():
        fields.pop("kind", None)
    return common


def label(experiment: Mapping[str, Any], common: Common, fields: Container[str] | None = None) -> str:
    """Return a short name that tells a run apart from others: method, norm, fields that differ, and the seed.

    Args:
        experiment: as plain JSON.
        common: what needs no name.
        fields: those that may be named; None: all.
    """
    always, shared = ("method", "norm", "normalized", "seed"), common.get(str(experiment.get("kind")), ())
    names = (name for name in _label_order() if name in always or name not in shared)
    shown = (name for name in names if fields is None or name in fields)
    return " ".join(filter(None, (_text(name, experiment.get(name)) for name in shown)))


@cache
def _label_order() -> tuple[str, ...]:
    return tuple(sorted((name for name in fields_of_all_kinds() if name not in REQUEST_FIELDS), key=_rank))


def _rank(field: str) -> int:
    order = ("kind", "method", "norm", "normalized", "activation", "partition", "dataset", "model", "lr", "local_steps")
    return order.index(field) if field in order else len(order) + (field == "seed")


def _text(field: str, value: Any) -> str:
    if value is None:
        return ""
    registry = registry_of(field)
    if registry is None:
        return f"{_SHORT.get(field, field + '=')}{format_scalar(value)}"
    return _component_label(field, canonical_json(value))


@cache
def _component_label(field: str, raw: str) -> str:
    registry: Any = registry_of(field)
    try:
        return str(registry.parse(json.loads(raw)).label())
    except (KeyError, ValueError):  # a plan may outlive a component
        return raw
