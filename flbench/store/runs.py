"""One run's directory: results, attempts, metrics, checkpoints, and the state that follows from them."""

from __future__ import annotations

import hashlib
import logging
import os
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from flbench.config import Experiment, parse_experiment
from flbench.store import files, strict_json
from flbench.store.attempts import RESUMABLE, AttemptDir, Checkpoint, failures_since_success
from flbench.store.leases import Liveness
from flbench.store.names import is_number
from flbench.store.records import parse_records
from flbench.store.results import Result, RunRequest
from flbench.store.strict_json import SCHEMA

_log = logging.getLogger(__name__)

#: Kind of failure of a run with a file that cannot be read.
UNREADABLE = "unreadable"


@dataclass(frozen=True)
class RunState:
    """The state of a run with respect to one request, from its files and the liveness of its lease.

    ``failures`` counts the attempts that failed or were lost since the last success or reset; a ``user_fixable``
    failure is not retried before the user acts.
    """

    status: Literal["done", "running", "failed", "lost", "pending"]
    kind: str | None = None
    message: str = ""
    attempts: int = 0
    failures: int = 0
    user_fixable: bool = False
    result: Result | None = None

    @property
    def unreadable(self) -> bool:
        """Whether a file of the run cannot be read, so that its state is unknown."""
        return self.kind == UNREADABLE

    def claimable(self, max_attempts: int | None = None) -> bool:
        """Return whether a worker may claim the run."""
        if self.status in ("done", "running") or self.user_fixable:
            return False
        return max_attempts is None or self.failures < max_attempts


class RunDir:
    """The directory of one run."""

    def __init__(self, directory: str, quarantine: Path, liveness: Liveness) -> None:
        self._directory = directory
        self.run_id = os.path.basename(directory)  # noqa: PTH119  speed
        self._quarantine, self._liveness = quarantine, liveness

    @cached_property
    def path(self) -> Path:
        """The directory as a path, which takes longer to make than a text."""
        return Path(self._directory)

    def experiment(self) -> Experiment:
        """Return the experiment as first requested; raises FileNotFoundError where the run is unknown or damaged."""
        raw = strict_json.read_json(self.path / "experiment.json")
        if raw is None:
            raise FileNotFoundError(self.path / "experiment.json")
        return parse_experiment({key: raw[key] for key in raw.keys() - {"schema", "run_id", "cell_id"}})

    def attempts(self) -> list[AttemptDir]:
        """Return every attempt, oldest first."""
        names = _names(f"{self._directory}/attempts")
        return [
            AttemptDir(self.path / "attempts" / name)
            for name in sorted(names, key=lambda name: (len(name), name))
            if is_number(name)
        ]

    def results(self) -> list[Result]:
        """Return every sound result, fewest rounds first; move damaged ones to quarantine, with a warning."""
        found = []
        directory = f"{self._directory}/results"
        for name in sorted(_names(directory)):
            if not name.endswith(".json") or name.startswith("."):
                continue
            file = f"{directory}/{name}"
            result = Result.read(file)
            if result is None:
                self._set_aside(Path(file))
            else:
                found.append(result)
        return found

    def result_for(self, experiment: Experiment | RunRequest) -> Result | None:
        """Return the shortest result that covers a request and whose metrics file is complete, or None."""
        request = RunRequest.of(experiment)
        # Nearly always it has this name; listing a directory costs as much as reading a file.
        likely = Result.read(f"{self._directory}/results/{request.rounds:08d}.json")
        if likely is not None and likely.covers(request) and self._has_metrics_of(likely):
            return likely
        for result in self.results():
            if not result.covers(request):
                continue
            if self._has_metrics_of(result):
                return result
            self._discard(result)
        return None

    def metrics(self, result: Result | None = None) -> list[dict[str, Any]]:
        """Return the verified records of a result (default: the longest); without results, the newest attempt's."""
        for candidate in [result] if result else reversed(self.results()):
            data = files.read_bytes(self._metrics_path(candidate)) or b""
            if hashlib.sha256(data).hexdigest() == candidate.metrics_sha256:
                return parse_records(data)
            self._discard(candidate)
        attempts = self.attempts()
        return attempts[-1].records() if attempts and result is None else []

    def state(self, experiment: Experiment | RunRequest) -> RunState:
        """Return the run's state for a request: done > running > failed | lost > pending.

        A run with a file that cannot be read counts as failed, so that commands can go on with the other runs.
        """
        request = RunRequest.of(experiment)
        try:
            if (result := self.result_for(request)) is not None:
                return RunState("done", result=result)
            attempts = self.attempts()
            if not attempts:
                return RunState("pending")
            state = self._state_of(attempts)
            # The attempt may have published its result between the first check and its end.
            result = None if state.status == "running" else self.result_for(request)
        except OSError as error:
            return RunState("failed", UNREADABLE, files.reason(error), user_fixable=True)
        return RunState("done", attempts=state.attempts, result=result) if result else state

    def reset_failures(self) -> None:
        """Reset the count of failures."""
        attempts = self.attempts()
        if attempts:
            files.disk.touch(attempts[-1].path / "forgiven")

    def supersede(self) -> bool:
        """Discard all results and checkpoints, so that the run is executed again.

        Results move to ``superseded/``. The mark that keeps new attempts from the checkpoints is made first: if this is
        interrupted at any point, either a result still counts, or the run starts from round 0.

        Returns:
            Whether this was done: not where there is no result, or a worker executes the run now.
        """
        attempts, results = self.attempts(), self.results()
        if not results or (attempts and self._state_of(attempts).status == "running"):
            return False
        if attempts:
            files.disk.touch(attempts[-1].path / "superseded")
            files.disk.touch(attempts[-1].path / "forgiven")
        aside = self.path / "superseded"
        files.make_directory(aside, self.path)
        for result in results:
            with suppress(FileNotFoundError):  # another process supersedes it too
                files.disk.rename(result.path, aside / f"{result.rounds:08d}-{result.attempt:04d}.json")
        return True

    def sound_checkpoints(self, attempt: AttemptDir) -> list[Checkpoint]:
        """Return an attempt's whole checkpoints, newest round first; move damaged ones to quarantine."""
        found = []
        for path in attempt.checkpoint_files():
            checkpoint = Checkpoint.at(path, attempt.number)
            if checkpoint is None:
                self._set_aside(path)
            else:
                found.append(checkpoint)
        return found

    def _state_of(self, attempts: list[AttemptDir]) -> RunState:
        last = attempts[-1]
        if self.is_live(last):
            return RunState("running", attempts=last.number)
        # Read again: the attempt may have ended between the two checks.
        ends = [self.end_of(attempt) for attempt in attempts]
        failures, end = failures_since_success(zip(attempts, ends, strict=True)), ends[-1]
        if end is None:
            return RunState("lost", attempts=last.number, failures=failures, message="its worker died")
        kind, message = str(end.get("kind")), str(end.get("message", ""))
        if kind in RESUMABLE or (kind == "timeout" and last.checkpoint_files()):
            return RunState("pending", kind=kind, attempts=last.number, message=message)
        user_fixable = bool(end.get("mendable")) and not last.failures_reset()
        return RunState("failed", kind, message, last.number, failures, user_fixable)

    def is_live(self, attempt: AttemptDir) -> bool:
        """Return whether a living worker still works on an attempt."""
        return attempt.exit() is None and self._liveness.alive(attempt.lease(), attempt.path / "lease.json")

    def end_of(self, attempt: AttemptDir) -> Mapping[str, Any] | None:
        """Return how an attempt ended: by its own exit.json, else by the one that the launcher wrote for its worker."""
        return attempt.exit() or self._liveness.recorded_end(attempt.lease())

    def write_experiment(self, experiment: Experiment) -> None:
        """Write experiment.json, unless it is there."""
        path = self.path / "experiment.json"
        if strict_json.read_json(path) is None:
            ids = {"schema": SCHEMA, "run_id": experiment.run_id, "cell_id": experiment.cell_id}
            files.replace(path, strict_json.pretty({**ids, **experiment.to_json()}), sync=False)

    def _has_metrics_of(self, result: Result) -> bool:
        try:
            size = os.stat(f"{self._directory}/attempts/{result.attempt:04d}/metrics.jsonl").st_size  # noqa: PTH116  speed
        except (FileNotFoundError, NotADirectoryError):  # other errors are raised: the file may exist
            return False
        return size == result.metrics_bytes

    def _metrics_path(self, result: Result) -> Path:
        return self.path / f"attempts/{result.attempt:04d}/metrics.jsonl"

    def _discard(self, result: Result) -> None:
        """Move a result and the metrics that contradict it to quarantine, so that no attempt resumes from them."""
        self._set_aside(result.path)
        self._set_aside(self._metrics_path(result))

    def _set_aside(self, path: Path) -> None:
        try:
            files.make_directory(self._quarantine, self._quarantine.parent)
            aside = self._quarantine / f"{self.run_id}-{path.parent.name}-{uuid.uuid4().hex[:8]}-{path.name}"
            files.disk.rename(path, aside)
        except OSError:
            return  # another process moved it, or the store is read-only; the file is damaged either way
        # As a literal, because the file's name may come from other people.
        _log.warning("a damaged file was set aside: %r", str(aside))


def _names(directory: str) -> list[str]:
    try:
        return os.listdir(directory)  # noqa: PTH208  speed
    except (FileNotFoundError, NotADirectoryError):
        return []
