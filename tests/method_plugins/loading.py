"""Methods of plug-in files, without registering them in the test session."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from flbench.registry import METHODS

#: Most lines of a plug-in: its hooks are to be enough.
MOST_LINES = 60


def plugin(name: str) -> ModuleType:
    """Return the module in a plug-in file of this folder, which has at most ``MOST_LINES`` lines."""
    path, registered = Path(__file__).parent / f"{name}.py", dict(METHODS.classes)
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MOST_LINES
    spec = spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    finally:
        METHODS.classes.clear()
        METHODS.classes.update(registered)
    return module
