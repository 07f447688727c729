"""What W&B was told already, in a file of the store: one line for each run told, the last one counts.

A line that is lost costs no more than telling W&B the same once more.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flbench.store import files
from flbench.store.files import SCHEMA


@dataclass(frozen=True)
class Told:
    """What was told of one run: the digest of it all, and the folder that holds it if it went into files."""

    digest: str
    segment: str = ""


class Memory:
    """What one target (a project on a server, or files for it) was told.

    Raises:
        OSError: the file cannot be read.
    """

    def __init__(self, path: Path, target: str) -> None:
        self._path, self.target = path, target
        self._told: dict[str, Told] = {}
        self._position = 0
        self.refresh()

    def refresh(self) -> None:
        """Read what was added since the last look, by this process or another."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._position)
                added, newline, _ = file.read().rpartition(b"\n")
        except FileNotFoundError:
            return
        self._position += len(added) + len(newline)
        for line in added.splitlines():
            self._read(line)

    def told(self, run_id: str) -> Told | None:
        """What was told of a run; None where nothing was."""
        return self._told.get(run_id)

    def remember(self, run_id: str, told: Told) -> None:
        """Write down that a run was told; raises OSError."""
        files.make_directory(self._path.parent, self._path.parents[1])
        now = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        line = {"schema": SCHEMA, "target": self.target, "run": run_id, **vars(told), "time": now}
        files.append_line(self._path, files.to_line(line))
        self._told[run_id] = told

    def _read(self, line: bytes) -> None:
        try:
            raw: Any = json.loads(line)
        except ValueError:
            return  # torn by a crash
        if isinstance(raw, Mapping) and raw.get("schema") == SCHEMA and raw.get("target") == self.target:
            self._told[str(raw.get("run"))] = Told(str(raw.get("digest")), str(raw.get("segment", "")))
