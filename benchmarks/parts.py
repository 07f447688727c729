"""Time the parts of a computation by wrapping their functions."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any
from unittest import mock

#: The functions of each part, as (owner, name).
Parts = Mapping[str, Sequence[tuple[Any, str]]]


@contextmanager
def timed(parts: Parts, seconds: defaultdict[str, float]) -> Iterator[None]:
    """Add up the seconds of each part; a part inside another counts for the inner one only."""
    inside: list[float] = []

    def timing(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            inside.append(0.0)
            start = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                spent = time.perf_counter() - start
                seconds[part] += spent - inside.pop()
                if inside:
                    inside[-1] += spent

        return wrapper

    with ExitStack() as patches:
        for part, functions in parts.items():
            for owner, name in functions:
                patches.enter_context(mock.patch.object(owner, name, timing(part, getattr(owner, name))))
        yield
