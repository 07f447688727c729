"""Records: what a run measured after a round, checked where a file is read.

A store or an exported file may come from another person, and readers compute with its records: text in the place of a
number, or a number too large for pandas, would make a report fail halfway.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from flbench.config import KINDS, MAX_ROUNDS
from flbench.metric_specs import METRICS
from flbench.registry import PROBES
from flbench.store import strict_json

#: The largest count: the largest integer of 64 bits.
MOST = 2**63 - 1

#: The least and the most of shares and counts.
_SHARE, _COUNT, _ROUNDING = (0.0, 1.0), (0.0, math.inf), 1e-9

#: Depth of lists that a probe may record without naming them.
_DEEPEST = 4


@cache
def _ranges() -> Mapping[str, tuple[float, float]]:
    """Return the least and the most of recorded numbers, and of the items of lists, by name; all others are finite."""
    return {
        **{name: _SHARE for name, metric in METRICS.items() if metric.percent},
        **dict.fromkeys(("train_acc", "recall", "clients", "clients_personal", "clients_finetuned"), _SHARE),
        **{name: _COUNT for name, metric in METRICS.items() if metric.of == "run"},
        "clients_tested": _COUNT,
    }


@cache
def _depths_of_runs() -> Mapping[str, int]:
    """Return the depth of every list that the engine or a study records."""
    depths = dict.fromkeys(("recall", "clients", "clients_personal", "clients_finetuned"), 1)
    for kind in KINDS.values():
        depths |= kind.lists
    return depths


def check_record(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return a checked record, in which equal names are one object to save memory.

    Raises:
        ValueError: a value is not of the type, or not in the range, that is recorded under its name.
    """
    if not _is_usual(raw):
        check_by_rules(raw)
    return {sys.intern(name): value for name, value in raw.items()}


def check_by_rules(raw: Mapping[str, Any]) -> None:
    """Raise ValueError as ``check_record``, which asks this for all records that are not as usual."""
    if type(round := raw.get("round")) is not int or not 0 <= round <= MAX_ROUNDS:
        raise ValueError(f"round: expected a whole number from 0 to {MAX_ROUNDS}, got {round!r:.40}")
    _check_values({name: value for name, value in raw.items() if name != "probes"}, _depths_of_runs())
    ranges = _ranges()
    for name in raw.keys() & ranges.keys():
        least, most = ranges[name]
        items: Iterable[float | None] = raw[name] if isinstance(raw[name], list) else (raw[name],)
        for item in items:
            if item is not None and not least - _ROUNDING <= item <= most + _ROUNDING:
                raise ValueError(f"{name}: expected {least:g} to {most:g}, got {item!r:.40}")
    probes = raw.get("probes", {})
    if not isinstance(probes, Mapping):
        raise ValueError(f"probes: expected a mapping, got {probes!r:.40}")
    for name, measured in probes.items():
        if not isinstance(measured, Mapping):
            raise ValueError(f"probes.{name:.40}: expected a mapping, got {measured!r:.40}")
        probe = PROBES.classes.get(name)  # None for one of a plug-in that is not loaded
        _check_values(measured, None if probe is None else probe.lists)


def _is_usual(raw: Mapping[str, Any]) -> bool:
    """Return whether a record is right, in a fraction of the time; False also for right ones with probes."""
    if type(round := raw.get("round")) is not int or not 0 <= round <= MAX_ROUNDS or "probes" in raw:
        return False
    bounds, others = _bounds(), (0, -math.inf, math.inf)
    for name, value in raw.items():
        depth, least, most = bounds.get(name, others)
        kind = type(value)
        if depth == 0 and (kind is float or (kind is int and -MOST <= value <= MOST)):
            if not least <= value <= most:  # NaN, too
                return False
        elif depth == 1 and kind is list and {*map(type, value)} <= {float}:
            for item in value:
                if not least <= item <= most:
                    return False
        elif depth > 0 or value is not None:
            return False
    return True


@cache
def _bounds() -> Mapping[str, tuple[int, float, float]]:
    """Return the depth of the lists, and the least and the most of the numbers, by name."""
    depths, ranges = _depths_of_runs(), _ranges()
    bounds = {name: ranges.get(name, (-math.inf, math.inf)) for name in depths.keys() | ranges.keys()}
    return {name: (depths.get(name, 0), least - _ROUNDING, most + _ROUNDING) for name, (least, most) in bounds.items()}


def parse_records(data: bytes) -> list[dict[str, Any]]:
    """Return the records at the start of a metrics file, up to the first torn or wrong line."""
    records = []
    for raw in strict_json.parse_lines(data):
        try:
            records.append(check_record(raw))
        except ValueError:
            break
    return records


def _check_values(values: Mapping[str, Any], depths: Mapping[str, int] | None) -> None:
    """Compare types; where the depths are unknown (None), any value may be a number or a list."""
    for name, value in values.items():
        depth = 0 if depths is None else depths.get(name, 0)
        if not (_is_nested(value, depth) or (depths is None and _is_nested(value, _DEEPEST, at_most=True))):
            expected = "a list of lists of numbers" if depth > 1 else "a list of numbers" if depth else "a number"
            raise ValueError(f"{name:.40}: expected {expected}, got {value!r:.40}")


def _is_nested(value: Any, depth: int, *, at_most: bool = False) -> bool:
    """Return whether this is a number in lists of exactly (or at most) this depth."""
    if isinstance(value, list):
        if depth == 1 and {*map(type, value)} <= {float}:  # most lists
            return True
        return depth > 0 and all(_is_nested(item, depth - 1, at_most=at_most) for item in value)
    is_number = value is None or type(value) is float or (type(value) is int and abs(value) <= MOST)
    return is_number and (at_most or depth == 0)
