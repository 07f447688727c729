"""Record what was sent to a tracker: one JSON line for each run; the last line of a run counts.

If a line is lost, the run is sent once more.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flbench.store import files, strict_json
from flbench.store.strict_json import SCHEMA


class SyncLog:
    """What was sent to one target: a project on a server, or offline files for it.

    Raises:
        OSError: the file cannot be read.
    """

    def __init__(self, path: Path, target: str) -> None:
        self._path, self._target = path, target
        self._digests: dict[str, str] = {}
        self._position = 0
        self.refresh()

    def refresh(self) -> None:
        """Read the lines that this or another process has added."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._position)
                added, newline, _ = file.read().rpartition(b"\n")
        except FileNotFoundError:
            return
        self._position += len(added) + len(newline)
        for line in added.splitlines():
            try:
                raw: Any = json.loads(line)
            except ValueError:
                continue  # cut off by a crash
            if isinstance(raw, Mapping) and raw.get("schema") == SCHEMA and raw.get("target") == self._target:
                self._digests[str(raw.get("run"))] = str(raw.get("digest"))

    def has(self, run_id: str, digest: str) -> bool:
        """Return whether this is the digest of the last version that was sent of a run."""
        return self._digests.get(run_id) == digest

    def add(self, run_id: str, digest: str, segment: str) -> None:
        """Record that a run was sent, and the name of the folder of its offline files; raises OSError."""
        files.make_directory(self._path.parent, self._path.parents[1])
        now = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        line = {"schema": SCHEMA, "target": self._target, "run": run_id, "digest": digest}
        files.append_line(self._path, strict_json.to_line({**line, "segment": segment, "time": now}))
        self._digests[run_id] = digest
