"""What benchmarks of the parts of a computation share: their options, their clock, and how they print numbers."""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import wraps
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from processes import machine

from flbench.bench.workloads import WORKLOADS, Workload

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


def options(about: str, workload: str, repeats: int) -> argparse.ArgumentParser:
    """Return a parser of the shared options; ``workload`` and ``repeats`` are defaults."""
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("workloads", nargs="*", default=[workload], help="names of flbench bench")
    parser.add_argument("--repeats", type=int, default=repeats)
    parser.add_argument("--data", type=Path, help="folder of the data sets; default: $FLBENCH_DATA")
    return parser


def measure_all(
    measure: Callable[[Workload, argparse.Namespace], None], arguments: argparse.Namespace, turn: str
) -> None:
    """Measure each workload on one torch thread, below the machine and what ``n`` counts (``turn``: "20 rounds")."""
    torch.set_num_threads(1)
    print(machine("torch"))
    print(f"n = {arguments.repeats} turns of {turn}; medians, min to max")
    for name in arguments.workloads:
        measure(WORKLOADS[name], arguments)


def median_and_range(values: Sequence[float], digits: int) -> str:
    """Return ``1.50 (1.20 to 1.90)``."""
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"
