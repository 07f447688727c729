"""The examples in docstrings are true."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import flbench

PACKAGE = Path(flbench.__file__).parent


def test_examples() -> None:
    for path in sorted(PACKAGE.rglob("*.py")):
        if ">>> " in path.read_text(encoding="utf-8"):
            name = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
            found = doctest.testmod(importlib.import_module(name))
            assert found.attempted > 0 and found.failed == 0, name
