"""The directory of one attempt at a run, read-only. ``claims.Attempt`` is the one that its owner writes."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flbench.store import files, strict_json
from flbench.store.leases import Lease, read_end
from flbench.store.names import is_number
from flbench.store.records import parse_records
from flbench.store.results import changed_plugins
from flbench.store.secrets import redact
from flbench.store.strict_json import SCHEMA

#: Kinds of exit.json that are no failures: the run continues where it stopped, without a limit on the attempts.
RESUMABLE = frozenset({"ok", "interrupted", "preempted"})


#: Kinds of exit.json that end the worker, independent of the run it was executing.
DIED = frozenset({"lost", "signal", "timeout", "node_fail"})


#: The file with the last round that a worker showed between two evaluations. Only displays read it.
ROUND = "round.txt"


@dataclass(frozen=True)
class Checkpoint:
    """A saved state after ``round``; only the engine reads and writes its content."""

    round: int
    path: Path
    attempt: int

    @classmethod
    def at(cls, path: Path, attempt: int) -> Checkpoint | None:
        """Return the checkpoint in a file, if its name is a checkpoint's and its content is whole."""
        round, _, checksum = path.stem.partition("-")
        try:
            if not is_number(round) or files.sha256_of(path)[: len(checksum)] != checksum:
                return None
        except OSError:  # `flbench gc` deleted it, or the disk lost it
            return None
        return cls(int(round), path, attempt)


class AttemptDir:
    """The directory of one attempt at a run, read-only."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.number = int(path.name)
        self.metrics_path = path / "metrics.jsonl"
        self.log_path = path / "log.txt"

    def exit(self) -> dict[str, Any] | None:
        """Return how the attempt ended; None before it ends."""
        return read_end(self.path / "exit.json")

    def lease(self) -> Lease | None:
        """Return the lease of the worker that executes, or executed, the attempt."""
        return Lease.read(self.path / "lease.json")

    def observed(self) -> frozenset[str]:
        """Return the probes that the attempt measures, as canonical JSON."""
        observed = (strict_json.read_json(self.path / "lease.json") or {}).get("observed", ())
        return frozenset(probe for probe in observed if isinstance(probe, str)) if observed else frozenset()

    def failures_reset(self) -> bool:
        """Return whether this and earlier failures no longer count."""
        return (self.path / "forgiven").exists()

    def is_superseded(self) -> bool:
        """Return whether this and earlier attempts are superseded (``RunDir.supersede``)."""
        return (self.path / "superseded").exists()

    def may_continue(self, plugins: str) -> bool:
        """Return whether a next attempt may go on from here: not superseded, with the same source code of plug-ins."""
        if self.is_superseded():
            return False
        try:
            return not (plugins and changed_plugins(self.environment(), plugins))
        except OSError:  # displays go on with the other runs
            return True

    def records(self) -> list[dict[str, Any]]:
        """Return the attempt's metrics; a torn last line is dropped."""
        return parse_records(files.read_bytes(self.metrics_path) or b"")

    def last_record(self) -> dict[str, Any] | None:
        """Return the newest metrics, read from the end of the file; None where there are none, or none can be read."""
        try:
            records = parse_records(files.last_line(self.metrics_path))
        except OSError:
            return None
        return records[-1] if records else None

    def shown_round(self) -> int:
        """Return the last round that the worker showed between two evaluations; 0 if it showed none."""
        try:
            text = (files.read_bytes(self.path / ROUND) or b"").decode(errors="replace")
        except OSError:
            return 0
        return int(text) if is_number(text) else 0  # the file may come from other people

    def environment(self) -> dict[str, Any]:
        """Return the environment that the attempt ran in."""
        written = strict_json.read_json(self.path / "environment.json") or {}
        return {name: value for name, value in written.items() if name != "sha256"}

    def checkpoint_files(self) -> list[Path]:
        """Return the paths of its checkpoints, newest round first, without checking their content."""
        return sorted((self.path / "checkpoint").glob("[0-9]*.pt"), reverse=True)


def failures_since_success(attempts: Iterable[tuple[AttemptDir, Mapping[str, Any] | None]]) -> int:
    """Return the number of failures since the last success, from attempts and how each ended (None: unknown).

    An attempt whose worker died is no failure where a checkpoint shows that the run made progress.
    """
    failures = 0
    for attempt, end in attempts:
        kind = "lost" if end is None else end.get("kind")
        if attempt.failures_reset() or kind == "ok":
            failures = 0
        elif kind not in RESUMABLE and not (kind in DIED and attempt.checkpoint_files()):
            failures += 1
    return failures


def ending(kind: str, message: str, round: int | None = None, *, user_fixable: bool = False) -> dict[str, Any]:
    """Return the content of an exit.json."""
    now = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    return {
        "schema": SCHEMA,
        "kind": kind,
        "message": redact(message),
        "round": round,
        "time": now,
        "mendable": user_fixable,
    }
