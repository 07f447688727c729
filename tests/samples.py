"""A sample of a test's cases, for tests that cost too much to run all of them each time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from _pytest.mark import ParameterSet


def fast(cases: Iterable[Any], *names: str, name: Callable[[Any], str] = str) -> list[ParameterSet]:
    """Return the cases; all but those with these names are slow."""
    found = [(name(case), case) for case in cases]
    assert {*names} <= {each for each, _ in found}, "a sample of cases that exist"
    return [pytest.param(case, id=each, marks=[] if each in names else [pytest.mark.slow]) for each, case in found]
