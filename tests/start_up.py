"""Modules that are imported only when they are needed, because importing them is measured to delay the start."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping

#: Modules that take most of a second or more, imported inside functions everywhere.
HEAVY = ("torch", "torchvision", "pandas", "matplotlib", "sklearn", "scipy", "pyarrow", "wandb", "PIL", "submitit")

#: Modules that take most of a tenth of a second: ``flbench --help`` imports none, a command those that it needs.
SLOW = ("numpy", "pydantic", "rich.console", "ruamel.yaml", "flbench.config", "flbench.store", "flbench.sweeps")


def heavy_imports(
    program: str, modules: tuple[str, ...] = HEAVY, environment: Mapping[str, str] | None = None
) -> tuple[list[str], str]:
    """Run a program in a process of its own; return which of the modules it has imported, and its output."""
    report = f"\nimport sys; print(*[name for name in {modules!r} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", program + report],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **(environment or {})},
    )
    output, _, imported = done.stdout.removesuffix("\n").rpartition("\n")
    return imported.split(), output
