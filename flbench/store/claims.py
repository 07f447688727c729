"""A claimed run: what only the holder of the claim may write. ``Store.claim`` makes the claim."""

from __future__ import annotations

import errno
import hashlib
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, Literal

from flbench.config import Experiment
from flbench.store import files, strict_json
from flbench.store.attempts import ROUND, AttemptDir, Checkpoint, ending
from flbench.store.records import check_record, parse_records
from flbench.store.results import Result, RunRequest, changed_plugins
from flbench.store.runs import RunDir
from flbench.store.secrets import redact, redact_all

#: The file that reserves space for exit.json in every attempt, and its size in bytes.
RESERVE, RESERVED = "exit.reserve", 2048

#: Seconds between two rounds that an attempt shows: runs with faster evaluations write nothing more than these.
SHOWN_SECONDS = 5.0

#: Characters of a message that always fit into the reserve.
SHORT = 400

#: Seconds of work that a power cut may cost a run. Younger attempts do not wait for the disk: with runs of a tenth of a
#: second, the wait would take a fifth of the time.
AT_RISK = 30.0

#: Names in environment.json that are repeated in a result.
SHORT_ENVIRONMENT = ("flbench", "git_commit", "git_dirty", "python", "torch", "host", "cpu", "gpu", "plugins")


class Attempt(AttemptDir):
    """An attempt that this process owns: only the owner writes below ``path``."""

    def __init__(self, path: Path, run: RunDir, experiment: Experiment) -> None:
        super().__init__(path)
        self.run, self.experiment, self.request = run, experiment, RunRequest.of(experiment)
        self._began = self._shown = time.perf_counter()

    @property
    def _is_durable(self) -> bool:
        """Whether to wait until what this attempt writes is on disk."""
        return time.perf_counter() - self._began >= AT_RISK

    def checkpoints(self) -> list[Checkpoint]:
        """Return the checkpoints of earlier attempts from which this run can continue, newest round first.

        These are sound checkpoints whose attempt recorded everything requested until then, with the same source code of
        plug-ins. Without any, the run starts from round 0.
        """
        found = []
        for earlier in self._earlier:
            recorded = {record.get("round") for record in earlier.records()}
            found += [
                checkpoint
                for checkpoint in self.run.sound_checkpoints(earlier)
                if self.request.probes <= earlier.observed()
                and not changed_plugins(earlier.environment(), self.request.plugins)
                and checkpoint.round <= self.request.rounds
                and self.request.until(checkpoint.round) <= recorded
            ]
        return sorted(found, key=lambda checkpoint: (checkpoint.round, checkpoint.attempt), reverse=True)

    def adopt(self, checkpoint: Checkpoint | None) -> list[dict[str, Any]]:
        """Return the records before a checkpoint (None: no records), after writing them as the first of the metrics.

        Only requested rounds up to the checkpoint's are copied, so that the file ends up as in an uninterrupted run.
        """
        records = []
        if checkpoint is not None:
            wanted = self.request.until(checkpoint.round)
            source = next(earlier for earlier in self._earlier if earlier.number == checkpoint.attempt)
            records = [record for record in source.records() if record.get("round") in wanted]
        files.replace(self.metrics_path, strict_json.join_lines(records), sync=False)
        return records

    def record(self, metrics: Mapping[str, Any]) -> None:
        """Append one evaluated round to the metrics; raises ValueError for a record that could not be read back."""
        line = strict_json.to_line(metrics)
        check_record(strict_json.loads(line.encode()))  # a plug-in's probe may measure anything
        files.append_line(self.metrics_path, line)

    def show_round(self, round: int) -> None:
        """Tell displays that a round is done, at most every ``SHOWN_SECONDS``; errors are ignored."""
        if time.perf_counter() - self._shown >= SHOWN_SECONDS:
            self._shown = time.perf_counter()
            with suppress(OSError):
                files.replace(self.path / ROUND, b"%d" % round, sync=False)

    def save_checkpoint(self, round: int, write: Callable[[BinaryIO], object]) -> None:
        """Save the state after a round atomically; then delete this attempt's older checkpoints."""
        directory = self.path / "checkpoint"
        files.make_directory(directory, self.path)
        older = self.checkpoint_files()
        sync = self._is_durable
        partial = files.stage(directory / f"{round:08d}.pt", write, sync=sync)
        target = directory / f"{round:08d}-{files.sha256_of(partial)[:16]}.pt"
        try:
            files.disk.rename(partial, target)
        except OSError:
            files.discard(partial)
            raise
        if sync:
            files.sync_directory(directory)
        if not target.exists():  # a disk that lost the new file must not cost the old ones
            raise OSError(errno.EIO, "lost although its renaming succeeded", str(target))
        for path in older:
            if path != target:
                files.discard(path)

    def publish(
        self,
        *,
        status: Literal["done", "diverged"],
        rounds: int,
        seconds: float,
        fingerprint: str,
        numerics: Mapping[str, Any],
        samples: tuple[int, int] | None = None,
    ) -> bool:
        """Publish the result.

        ``samples`` are the numbers of training and test images: a subset never counts as the full set.

        Returns:
            Whether this result counts; where several are published, the first one does.

        Raises:
            ValueError: a finished run whose metrics lack an evaluation that was requested.
        """
        if sync := self._is_durable:
            files.sync_file(self.metrics_path)
        data = self.metrics_path.read_bytes()
        records = parse_records(data)
        evaluated = frozenset(record["round"] for record in records)
        if status == "done" and not (missing := self.request.evaluated - evaluated) <= frozenset():
            raise ValueError(f"{self.metrics_path} lacks the requested rounds {sorted(missing)}")
        environment = self.environment()
        facts = {key: environment[key] for key in SHORT_ENVIRONMENT if key in environment}
        if samples is not None:
            facts["samples"] = "/".join(map(str, samples))
        result = Result(
            file=f"{self.run.path}/results/{rounds:08d}.json",
            run_id=self.run.run_id,
            status=status,
            rounds=rounds,
            wanted=self.request.rounds,
            evaluated=evaluated,
            probes=self.request.probes,
            final=records[-1] if records else {},
            metrics_sha256=hashlib.sha256(data).hexdigest(),
            metrics_bytes=len(data),
            attempt=self.number,
            seconds=seconds,
            fingerprint=fingerprint,
            numerics=dict(numerics),
            environment=facts,
            published=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        )
        self.run.write_experiment(self.experiment)  # again: a result is useless without it
        files.make_directory(result.path.parent, self.run.path)
        content = result.to_bytes()
        if files.publish(result.path, content, sync=sync):
            return True
        if self.run.result_for(self.request) is not None:
            return False
        # The same number of rounds is published already, with other evaluations or probes: both results are valid.
        other = result.path.with_name(f"{rounds:08d}-{self.number:04d}.json")
        return files.publish(other, content, sync=sync)

    def end(self, kind: str, message: str = "", round: int | None = None, *, user_fixable: bool = False) -> None:
        """Release the claim and record why; ``user_fixable`` marks a failure that only the user can fix."""
        end = ending(kind, message, round, user_fixable=user_fixable)
        try:
            files.replace(self.path / "exit.json", strict_json.sealed(end), sync=False)
            files.discard(self.path / RESERVE)
        except OSError:
            # No new file can be created: use the space that the claim reserved, whose rest is white space, as in JSON.
            short = strict_json.sealed({**end, "message": end["message"][:SHORT]})
            files.overwrite(self.path / RESERVE, short, sync=True)
            files.disk.rename(self.path / RESERVE, self.path / "exit.json")

    def describe(self, environment: Mapping[str, Any]) -> None:
        """Write the environment of this attempt."""
        files.replace(self.path / "environment.json", strict_json.sealed(redact_all(environment)), sync=False)

    def log(self, text: str) -> None:
        """Append to the attempt's log, with the time; errors are ignored: the log does not affect the run."""
        with suppress(OSError):
            files.append_line(self.log_path, f"{time.strftime('%Y-%m-%d %H:%M:%S')} {redact(text)}")

    @cached_property
    def _earlier(self) -> list[AttemptDir]:
        earlier: list[AttemptDir] = []
        for attempt in self.run.attempts():
            if attempt.number < self.number:
                earlier = [] if attempt.is_superseded() else [*earlier, attempt]
        return earlier
