"""flbench: which normalization and which federated method survive label skew, and why?

From Python, for notebooks (``flbench.api`` has the details; the results are pandas frames):

``flbench.load(source)``: the runs of a store or of exported files, one a row.
``flbench.run(norm="ln", partition="classes:1")``: run one experiment; its evaluations, one a row.
``flbench.sweep("sweeps/quickstart.yaml")``: run what is missing of a sweep; its runs, one a row.

Importing this package imports nothing heavy; what needs torch or pandas imports them when it is called.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["load", "run", "sweep"]


def load(source: Any = None, **options: Any) -> pd.DataFrame:
    """The runs of a store or of exported files as a tidy frame; see ``flbench.api.load``."""
    from flbench import api

    return api.load(source, **options)


class _Run(ModuleType):
    """The module ``flbench.run``, which can be called."""

    def __call__(self, **fields: Any) -> pd.DataFrame:
        """Run one experiment and return its evaluations; see ``flbench.api.run``."""
        from flbench import api

        return api.run(**fields)


class _Sweep(ModuleType):
    """The package ``flbench.sweep``, which can be called."""

    def __call__(self, path: str | Path, **options: Any) -> pd.DataFrame:
        """Run what is missing of a sweep file and return its runs; see ``flbench.api.sweep``."""
        from flbench import api

        return api.sweep(path, **options)


class _Flbench(ModuleType):
    """This package: importing ``flbench.run`` or ``flbench.sweep`` binds a module that can be called, too.

    Their names are those of what a user does as well as of the rooms that do it.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        """Let the import system bind a module, and make it callable where it has a call."""
        if name in _CALLS and isinstance(value, ModuleType):
            value.__class__ = _CALLS[name]
        super().__setattr__(name, value)


_CALLS: dict[str, type[ModuleType]] = {"run": _Run, "sweep": _Sweep}
sys.modules[__name__].__class__ = _Flbench


def __getattr__(name: str) -> ModuleType:
    """Import the modules that can be called when they are first used."""
    if name in _CALLS:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
