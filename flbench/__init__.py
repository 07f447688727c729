"""flbench: which normalization and which federated method survive label skew, and why?

From Python, for notebooks (``flbench.api`` has the details; the results are pandas frames):

``flbench.load(source)``: the runs of a store or of exported files, one a row.
``flbench.run(norm="ln", partition="classes:1")``: run one experiment; its evaluations, one a row.
``flbench.sweep("quickstart")``: run what is missing of a sweep; its runs, one a row.
``flbench.model(run_id)``: the network of a run with its trained weights; ``flbench.predict(run_id, images)``.
``flbench.problem(norm="ln", partition="classes:1")``: what an experiment trains on: rows, batches, initial weights.

Importing this package imports nothing slow; the first use of one of these functions imports ``flbench.api``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from flbench.errors import check_platform

if TYPE_CHECKING:
    from flbench.api import load, model, predict, problem, run, sweep

__all__ = ["load", "model", "predict", "problem", "run", "sweep"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    check_platform()
    return getattr(importlib.import_module("flbench.api"), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
