"""What a check of files found, in a store or in exported files."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from flbench.messages import counted


@dataclass(frozen=True)
class Problem:
    """A file and its defect."""

    path: Path
    what: str


@dataclass
class Findings:
    """Problems, and runs that could not be checked.

    ``unknown`` has, by the component that is not known here (``norm 'lm'``), the ids of the runs that name it: whether
    these ids are the hashes of their experiments cannot be checked.
    """

    problems: list[Problem] = field(default_factory=list)
    unknown: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))

    def report(self, path: Path, what: str) -> None:
        """Add a problem."""
        self.problems.append(Problem(path, what))

    @property
    def summary(self) -> str:
        """What was found, in words."""
        if self.problems:
            return counted(len(self.problems), "problem")
        return "no damage found" if self.unknown else "all sound"
