"""Values of an axis that a file gives by their range: ``{range: ...}``, ``{linspace: ...}``, ``{logspace: ...}``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from flbench.refinement import written

_SPACES = {"range": "start, stop", "linspace": "first, last, n", "logspace": "first, last, n"}


def expand_range(raw: Mapping[str, Any]) -> list[Any]:
    """Return the values of ``{range: [start, stop]}``, ``{linspace: [first, last, n]}`` or ``{logspace: ...}``.

    Raises:
        ValueError: not one of these forms, or no values.

    >>> expand_range({"range": [0, 3]}), expand_range({"logspace": [0.01, 1, 3]})
    ([0, 1, 2], [0.01, 0.1, 1.0])
    """
    if len(raw) != 1 or (kind := next(iter(raw))) not in _SPACES:
        forms = "{range: [start, stop]}, {linspace: [first, last, n]} or {logspace: [first, last, n]}"
        raise ValueError(f"expected a list of values, {forms}, got {raw!r}")
    numbers = raw[kind]
    usage = f"expected {kind}: [{_SPACES[kind]}]"
    wanted = 2 if kind == "range" else 3
    finite = isinstance(numbers, list) and all(type(one) in (int, float) and math.isfinite(one) for one in numbers)
    if not finite or len(numbers) != wanted:
        raise ValueError(f"{usage} ({wanted} numbers), got {numbers!r}")
    first, last, count = [*numbers, 0][:3]
    if kind == "range":
        if not (isinstance(first, int) and isinstance(last, int) and first < last <= first + 1_000_000):
            limits = "whole numbers with start below stop (stop is not in it), at most 1,000,000 of them"
            raise ValueError(f"{usage}, {limits}, got {numbers!r}")
        return list(range(first, last))
    if not (isinstance(count, int) and 2 <= count <= 100_000):
        raise ValueError(f"{usage} with n a whole number from 2 to 100,000, got {count!r}")
    if kind == "logspace":
        if first <= 0 or last <= 0:
            raise ValueError(f"{usage} with first and last above 0, got {numbers!r}")
        first, last = math.log10(first), math.log10(last)
    points = [first + (last - first) * index / (count - 1) for index in range(count)]
    if kind == "logspace":
        points = [10**point for point in points]
    return [written(point) for point in points]
