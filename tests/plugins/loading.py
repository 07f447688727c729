"""Methods of plug-in files, without registering them in the test session."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from flbench.registry import METHODS

#: Most lines of a plug-in: its hooks are to be enough.
MOST_LINES = 60


def method_of(path: Path) -> Any:
    """Return the method that a plug-in file of at most ``MOST_LINES`` lines adds."""
    known = dict(METHODS.classes)
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MOST_LINES
    spec = spec_from_file_location(f"plugged_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        ((name, added),) = METHODS.classes.items() - known.items()
    finally:
        METHODS.classes.clear()
        METHODS.classes.update(known)
    assert added.name == name and added.__module__ == module.__name__
    return added
