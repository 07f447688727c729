"""Hook of the build: put the sweep files, profiles and pages, which stay where they are in a clone, into the wheel.

``flbench.installation.bundled`` finds them in both places. An editable installation gets none: it is the clone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

#: What is put into the wheel; figures are not, they would make it a hundred times as large.
BUNDLED = (
    "sweeps/**/*.yaml",
    "sweeps/**/*.py",
    "slurm/profiles/*.yaml",
    "docs/**/*.md",
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "leaderboard.md",
)


class Bundle(BuildHookInterface):
    """Add the files to a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the files, unless the installation is editable."""
        if version == "editable":
            return
        root = Path(self.root)
        for path in (path for pattern in BUNDLED for path in sorted(root.glob(pattern))):
            build_data["force_include"][str(path)] = f"flbench/bundled/{path.relative_to(root).as_posix()}"
