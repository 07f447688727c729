"""Methods of plug-in files, without registering them in the test session."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from flbench.methods.base import Method
from flbench.registry import METHODS

#: Most lines of a plug-in: its hooks are to be enough.
MOST_LINES = 60


def module_of(path: Path) -> ModuleType:
    """Return a plug-in file of at most ``MOST_LINES`` lines as a module."""
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MOST_LINES
    known = dict(METHODS.classes)
    spec = spec_from_file_location(f"plugged_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    finally:
        METHODS.classes.clear()
        METHODS.classes.update(known)
    return module


def method_of(path: Path) -> Any:
    """Return the method that a plug-in file adds."""
    own = [value for value in vars(module_of(path)).values() if isinstance(value, type) and issubclass(value, Method)]
    (added,) = (value for value in own if value is not Method)
    assert added.name not in METHODS.classes
    return added
