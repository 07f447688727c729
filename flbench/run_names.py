"""The short name of a run, which distinguishes it from the others of its sweep."""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Mapping
from functools import cache
from typing import Any

from flbench.config import REQUEST_FIELDS, canonical_json, fields_of_all_kinds, registry_of
from flbench.messages import format_scalar
from flbench.store import Entry

#: Prefix of a value in a run's name, if it is not ``FIELD=``.
_PREFIXES = {"kind": "", "normalized": "", "activation": "", "seed": "s", "local_steps": "E="}

#: Fields that come first in a name, in this order; the seed comes last.
_FIRST = (
    "kind",
    "method",
    "norm",
    "normalized",
    "activation",
    "head",
    "init",
    "train",
    "partition",
    "dataset",
    "model",
    "lr",
    "local_steps",
)

#: Fields that a name always shows.
_ALWAYS = ("method", "norm", "normalized", "seed")

#: Fields that no name shows; the number of rounds is in that of a problem alone.
NEVER_NAMED = REQUEST_FIELDS - {"rounds"}

#: How the name of a single run begins, which its worker registers in place of a plan's.
SINGLE = "run "

#: By kind, the fields in which the runs of a plan agree; ``kind`` is one of them if there is only one kind.
Common = Mapping[str, Container[str]]


def common_fields(entries: Iterable[Entry]) -> dict[str, dict[str, Any]]:
    """Return, by kind, the fields in which its runs agree, with their values as plain JSON (see ``Common``)."""
    names = {name for name in fields_of_all_kinds() if name not in NEVER_NAMED}
    common: dict[str, dict[str, Any]] = {}
    last: Mapping[str, Any] = {}
    for entry in entries:
        raw = entry.experiment
        known = common.get(kind := str(raw.get("kind")))
        if known is None:
            common[kind] = {name: raw.get(name) for name in names}
        elif "seed" not in known and differ_in_seed(last, raw):
            continue  # most runs of a plan
        elif differing := [name for name, value in known.items() if raw.get(name) != value]:
            for name in differing:
                del known[name]
        last = raw
    for fields in common.values() if len(common) > 1 else ():
        fields.pop("kind", None)
    return common


def differ_in_seed(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Return whether two experiments, as plain JSON, are equal but for the seed."""
    return {**first, "seed": second.get("seed")} == second


def label(experiment: Mapping[str, Any], common: Common, fields: Container[str] | None = None) -> str:
    """Return a short name: method, norm, the fields in which the runs of its kind differ, and the seed.

    Args:
        experiment: as plain JSON.
        common: the fields that need not be named.
        fields: those that may be named; None: all but the number of rounds.
    """
    shared = common.get(str(experiment.get("kind")), ())
    parts = []
    for name in _label_order():
        value = experiment.get(name)
        is_wanted = name != "rounds" if fields is None else name in fields
        if value is None or not is_wanted or (name in shared and name not in _ALWAYS):
            continue
        if registry_of(name) is None:
            parts.append(f"{_PREFIXES.get(name, name + '=')}{format_scalar(value)}")
        else:
            parts.append(_component_label(name, canonical_json(value)))
    return " ".join(filter(None, parts))


@cache
def _label_order() -> tuple[str, ...]:
    others = [name for name in fields_of_all_kinds() if name not in {*NEVER_NAMED, *_FIRST, "seed"}]
    return (*_FIRST, *others, "seed")


@cache
def _component_label(field: str, raw: str) -> str:
    registry: Any = registry_of(field)
    try:
        return str(registry.parse(json.loads(raw)).label())
    except (KeyError, ValueError):  # a plan may name a component that was removed since
        return raw
