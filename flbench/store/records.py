"""Records: what a run measured after a round, checked where a file is read.

A store or an exported file may come from anybody, and what reads a record computes with it: a text in the place of a
number, or a number beyond what pandas holds, would end a report somewhere in the middle.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from flbench.config import MAX_ROUNDS
from flbench.store import files

#: The largest count: what 64 bits hold.
MOST = 2**63 - 1

#: Names under which lists are recorded, by the probe that records them (None: the engine); all else are numbers.
_LISTS: Mapping[str | None, frozenset[str]] = {
    None: frozenset({"recall", "clients", "clients_personal", "ranks", "sigmas", "spectrum"}),
    "features": frozenset({"singular", "head_norms"}),
    "overfit": frozenset({"before", "after"}),
    "sharpness": frozenset({"local"}),
    "drift": frozenset(),
}

#: Lists in lists at most.
_DEEPEST = 4


def check_record(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record as it is kept: equal names are one object.

    Raises:
        ValueError: a value is not of the type that is recorded under its name.
    """
    if type(round := raw.get("round")) is not int or not 0 <= round <= MAX_ROUNDS:
        raise ValueError(f"round: expected a whole number from 0 to {MAX_ROUNDS}, got {round!r:.40}")
    _check_values({name: value for name, value in raw.items() if name != "probes"}, _LISTS[None])
    probes = raw.get("probes", {})
    if not isinstance(probes, Mapping):
        raise ValueError(f"probes: expected a mapping, got {probes!r:.40}")
    for name, measured in probes.items():
        if not isinstance(measured, Mapping):
            raise ValueError(f"probes.{name:.40}: expected a mapping, got {measured!r:.40}")
        _check_values(measured, _LISTS.get(name))
    return {sys.intern(name): value for name, value in raw.items()}


def parse_records(data: bytes) -> list[dict[str, Any]]:
    """Return the records at the start of a metrics file; what follows a torn or wrong line is dropped."""
    records = []
    for raw in files.parse_lines(data):
        try:
            records.append(check_record(raw))
        except ValueError:
            break
    return records


def _check_values(values: Mapping[str, Any], lists: frozenset[str] | None) -> None:
    """Compare types; where it is not known which are ``lists``, any value may be a number or a list."""
    for name, value in values.items():
        may_be_list = lists is None or name in lists
        must_be_list = lists is not None and name in lists
        if not (_is_number(value) and not must_be_list) and not (may_be_list and _is_list(value)):
            expected = "a list of numbers" if must_be_list else "a number"
            raise ValueError(f"{name:.40}: expected {expected}, got {value!r:.40}")


def _is_number(value: Any) -> bool:
    return value is None or type(value) is float or (type(value) is int and abs(value) <= MOST)


def _is_list(value: Any, depth: int = 1) -> bool:
    return (
        isinstance(value, list)
        and depth <= _DEEPEST
        and all(_is_number(item) or _is_list(item, depth + 1) for item in value)
    )
