"""One run's directory: results, attempts, metrics, checkpoints, and the state that follows from them."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, Literal

from flbench.config import Experiment, parse_experiment
from flbench.store import files
from flbench.store.attempts import RESUMABLE, AttemptDir, Checkpoint, charges_of
from flbench.store.files import SCHEMA
from flbench.store.leases import Judge, Lease
from flbench.store.names import is_number
from flbench.store.records import check_record, parse_records
from flbench.store.results import Result, Wish
from flbench.store.secrets import redact, redact_all

#: A file that every attempt begins with, and its bytes.
RESERVE, RESERVED = "exit.reserve", 2048

#: Characters of a message that fit into it whatever they are.
SHORT = 400

#: Kind of failure of a run with a file that cannot be read.
UNREADABLE = "unreadable"

#: What of environment.json is repeated in a result.
SHORT_ENVIRONMENT = ("flbench", "git_commit", "git_dirty", "python", "torch", "host", "cpu", "gpu", "plugins")


@dataclass(frozen=True)
class RunState:
    """What a run's files and the liveness of its lease say about one wish.

    ``charges`` counts the attempts that failed or were lost since the last that went well (or was forgiven); a
    ``mendable`` failure is one that waits for the user.
    """

    status: Literal["done", "running", "failed", "lost", "pending"]
    kind: str | None = None
    message: str = ""
    attempts: int = 0
    charges: int = 0
    mendable: bool = False
    result: Result | None = None

    @property
    def unreadable(self) -> bool:
        """Whether a file of the run cannot be read, so that nothing else is known of it."""
        return self.kind == UNREADABLE

    def claimable(self, max_attempts: int | None = None) -> bool:
        """Whether a worker may take the run on."""
        if self.status in ("done", "running") or self.mendable:
            return False
        return max_attempts is None or self.charges < max_attempts


class RunDir:
    """All that a store holds of one run."""

    def __init__(self, path: Path, quarantine: Path, judge: Judge) -> None:
        self.path = path
        self.run_id = path.name
        self._quarantine, self._judge = quarantine, judge

    def experiment(self) -> Experiment:
        """The experiment as it was first wished for; raises FileNotFoundError where the run is unknown or damaged."""
        raw = files.read_json(self.path / "experiment.json")
        if raw is None:
            raise FileNotFoundError(self.path / "experiment.json")
        return parse_experiment({key: raw[key] for key in raw.keys() - {"schema", "run_id", "cell_id"}})

    def attempts(self) -> list[AttemptDir]:
        """Every attempt, oldest first."""
        names = _names(f"{self.path}/attempts")
        return [
            AttemptDir(self.path / "attempts" / name) for name in sorted(names, key=_len_then_text) if is_number(name)
        ]

    def results(self) -> list[Result]:
        """Every sound result, fewest rounds first; damaged ones go to quarantine."""
        found = []
        directory = f"{self.path}/results"
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

    def result_for(self, experiment: Experiment | Wish) -> Result | None:
        """A result that covers a wish, its metrics being there at full length; of few rounds rather than of many."""
        wish = experiment if isinstance(experiment, Wish) else Wish.of(experiment)
        # Nearly always it is there under this name; to list a directory costs as much as to read a file.
        likely = Result.read(f"{self.path}/results/{wish.rounds:08d}.json")
        if likely is not None and likely.covers(wish) and self._has_metrics_of(likely):
            return likely
        for result in self.results():
            if not result.covers(wish):
                continue
            if self._has_metrics_of(result):
                return result
            self._discard(result)
        return None

    def metrics(self, result: Result | None = None) -> list[dict[str, Any]]:
        """The records behind a result (default: the longest), verified; without a result, the newest attempt's."""
        for candidate in [result] if result else reversed(self.results()):
            data = files.read_bytes(self._metrics_path(candidate)) or b""
            if hashlib.sha256(data).hexdigest() == candidate.metrics_sha256:
                return parse_records(data)
            self._discard(candidate)
        attempts = self.attempts()
        return attempts[-1].records() if attempts and result is None else []

    def state(self, experiment: Experiment | Wish) -> RunState:
        """The run's state for a wish: done > running > failed | lost > pending.

        A run with a file that cannot be read counts as failed: it keeps no command from the other runs.
        """
        wish = experiment if isinstance(experiment, Wish) else Wish.of(experiment)
        try:
            return self._state(wish)
        except OSError as error:
            return RunState("failed", UNREADABLE, files.reason(error), mendable=True)

    def _state(self, wish: Wish) -> RunState:
        if (result := self.result_for(wish)) is not None:
            return RunState("done", result=result)
        attempts = self.attempts()
        if not attempts:
            return RunState("pending")
        state = self._state_of(attempts)
        # The attempt seen to have ended may have published after the first look.
        result = None if state.status == "running" else self.result_for(wish)
        return RunState("done", attempts=state.attempts, result=result) if result else state

    def forgive(self) -> None:
        """Let the failures so far count no more against the run."""
        attempts = self.attempts()
        if attempts:
            files.disk.touch(attempts[-1].path / "forgiven")

    def supersede(self) -> bool:
        """Let nothing that was computed so far count, so that the run is executed again.

        Returns False where there is no result, or a worker executes the run right now. Its results move to
        ``superseded/``. The mark that keeps new attempts from its checkpoints is made first: whenever this is cut
        short, a result still counts, or the run is executed from its beginning.
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

    def claim(self, experiment: Experiment, lease: Lease, max_attempts: int | None = None) -> Attempt | None:
        """Take the run on; None where it is done, given up, held by a live lease, or somebody else was faster.

        The directory of the new attempt appears under its number complete with its lease, in one rename, which fails
        where the number is taken: the number is the fencing token.
        """
        wish = Wish.of(experiment)
        state = self.state(wish)
        if not state.claimable(max_attempts):
            return None
        attempts = self.path / "attempts"
        files.make_directory(attempts, self.path.parents[1])
        self._describe(experiment)
        target = attempts / f"{state.attempts + 1:04d}"
        staged = files.temporary(target)
        try:
            self._stage(staged, {"schema": SCHEMA, **lease.to_json(), "observed": sorted(wish.probes)})
            files.disk.rename(staged, target)
        except OSError:
            shutil.rmtree(staged, ignore_errors=True)
            # NFS may report a repeated request as failed: the claim is ours if our token lies there.
            holder = Lease.read(target / "lease.json")
            if holder is None:
                raise
            if holder.token != lease.token:
                return None
        return Attempt(target, self, experiment)

    def _stage(self, staged: Path, lease: Mapping[str, Any]) -> None:
        """Fill the directory of a new attempt: its lease, and room to say how it ended if the disk is full then."""
        files.disk.mkdir(staged)
        for name, content in (("lease.json", files.sealed(lease)), (RESERVE, b" " * RESERVED)):
            descriptor = files.disk.create(staged / name)
            try:
                files.write_all(descriptor, content)
            finally:
                os.close(descriptor)

    def sound_checkpoints(self, attempt: AttemptDir) -> list[Checkpoint]:
        """An attempt's whole checkpoints, newest round first; damaged ones go to quarantine."""
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
        if last.exit() is None and self._judge.alive(last.lease(), last.path / "lease.json"):
            return RunState("running", attempts=last.number)
        # Read again: it may have ended between the two looks.
        ends = [self.end_of(attempt) for attempt in attempts]
        charges, end = charges_of(zip(attempts, ends, strict=True)), ends[-1]
        if end is None:
            return RunState("lost", attempts=last.number, charges=charges, message="its worker died")
        kind, message = str(end.get("kind")), str(end.get("message", ""))
        if kind in RESUMABLE or (kind == "timeout" and last.checkpoint_files()):
            return RunState("pending", kind=kind, attempts=last.number, message=message)
        mendable = bool(end.get("mendable")) and not last.forgiven()
        return RunState("failed", kind, message, last.number, charges, mendable)

    def end_of(self, attempt: AttemptDir) -> Mapping[str, Any] | None:
        """How an attempt that is over ended: by its own words, or else by those of whoever started its worker."""
        return attempt.exit() or self._judge.last_words(attempt.lease())

    def _describe(self, experiment: Experiment) -> None:
        path = self.path / "experiment.json"
        if files.read_json(path) is None:
            ids = {"schema": SCHEMA, "run_id": experiment.run_id, "cell_id": experiment.cell_id}
            files.replace(path, files.pretty({**ids, **experiment.to_json()}), sync=False)

    def _has_metrics_of(self, result: Result) -> bool:
        return _size(f"{self.path}/attempts/{result.attempt:04d}/metrics.jsonl") == result.metrics_bytes

    def _metrics_path(self, result: Result) -> Path:
        return self.path / f"attempts/{result.attempt:04d}/metrics.jsonl"

    def _discard(self, result: Result) -> None:
        """Set a result aside together with the metrics that do not bear it out, so that nothing resumes from them."""
        self._set_aside(result.path)
        self._set_aside(self._metrics_path(result))

    def _set_aside(self, path: Path) -> None:
        try:
            files.make_directory(self._quarantine, self._quarantine.parent)
            aside = f"{self.run_id}-{path.parent.name}-{uuid.uuid4().hex[:8]}-{path.name}"
            files.disk.rename(path, self._quarantine / aside)
        except OSError:
            return  # somebody else did it, or this store is read-only here: damaged it is either way


class Attempt(AttemptDir):
    """A claim that is held: only its owner writes below ``path``."""

    def __init__(self, path: Path, run: RunDir, experiment: Experiment) -> None:
        super().__init__(path)
        self.run, self.experiment, self.wish = run, experiment, Wish.of(experiment)

    def checkpoints(self) -> list[Checkpoint]:
        """Where this run can go on: sound checkpoints of earlier attempts, newest round first.

        Only those whose attempt recorded all that is wished for until then, and with the same source code of plug-ins;
        otherwise the run starts over.
        """
        found = []
        for earlier in self._earlier:
            recorded = {record.get("round") for record in earlier.records()}
            found += [
                checkpoint
                for checkpoint in self.run.sound_checkpoints(earlier)
                if self.wish.probes <= earlier.observed()
                and earlier.environment().get("plugins", self.wish.plugins) == self.wish.plugins
                and checkpoint.round <= self.wish.rounds
                and self.wish.until(checkpoint.round) <= recorded
            ]
        return sorted(found, key=lambda checkpoint: (checkpoint.round, checkpoint.attempt), reverse=True)

    def adopt(self, checkpoint: Checkpoint | None) -> list[dict[str, Any]]:
        """Begin the metrics with those that led to a checkpoint (None: with none), and return them.

        They are cut at its round, and to the rounds that are wished for: the file ends up as if nothing had happened.
        """
        records = []
        if checkpoint is not None:
            wanted = self.wish.until(checkpoint.round)
            source = next(earlier for earlier in self._earlier if earlier.number == checkpoint.attempt)
            records = [record for record in source.records() if record.get("round") in wanted]
        files.replace(self.metrics_path, files.join_lines(records), sync=False)
        return records

    def record(self, metrics: Mapping[str, Any]) -> None:
        """Add one evaluated round to the metrics; raises ValueError for what nobody could read back."""
        line = files.to_line(metrics)
        check_record(files.loads(line.encode()))  # a plug-in's probe may measure anything
        files.append_line(self.metrics_path, line)

    def save_checkpoint(self, round: int, write: Callable[[BinaryIO], object]) -> None:
        """Keep the state after a round, whole or not at all; this attempt's older checkpoints go."""
        directory = self.path / "checkpoint"
        files.make_directory(directory, self.path)
        older = self.checkpoint_files()
        partial = files.stage(directory / f"{round:08d}.pt", write, sync=True)
        target = directory / f"{round:08d}-{files.sha256_of(partial)[:16]}.pt"
        try:
            files.disk.rename(partial, target)
        except OSError:
            files.discard(partial)
            raise
        files.sync_directory(directory)
        if not target.exists():  # whoever loses the new name shall not take the old state with it
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
        """Publish the result; say whether it is ours that counts (the first writer's does).

        ``samples`` are the images of the data set in train and test: a subset never counts as the full set.

        Raises:
            ValueError: a finished run whose metrics lack an evaluation that was wished for.
        """
        files.sync_file(self.metrics_path)
        data = self.metrics_path.read_bytes()
        records = parse_records(data)
        evaluated = frozenset(record["round"] for record in records)
        if status == "done" and not (missing := self.wish.evaluated - evaluated) <= frozenset():
            raise ValueError(f"{self.metrics_path} lacks the wished for rounds {sorted(missing)}")
        environment = self.environment()
        facts = {key: environment[key] for key in SHORT_ENVIRONMENT if key in environment}
        if samples is not None:
            facts["samples"] = "/".join(map(str, samples))
        result = Result(
            file=f"{self.run.path}/results/{rounds:08d}.json",
            run_id=self.run.run_id,
            status=status,
            rounds=rounds,
            wanted=self.wish.rounds,
            evaluated=evaluated,
            probes=self.wish.probes,
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
        self.run._describe(self.experiment)  # once more: a result without it would belong to nothing
        files.make_directory(result.path.parent, self.run.path)
        content = result.to_bytes()
        if files.publish(result.path, content):
            return True
        if self.run.result_for(self.wish) is not None:
            return False
        # As many rounds are published already, observed otherwise: both results stand.
        return files.publish(result.path.with_name(f"{rounds:08d}-{self.number:04d}.json"), content)

    def end(self, kind: str, message: str = "", round: int | None = None, *, mendable: bool = False) -> None:
        """Give the claim back and say why; ``mendable`` marks a failure that only the user can put right."""
        end = ending(kind, message, round, mendable=mendable)
        try:
            files.replace(self.path / "exit.json", files.sealed(end), sync=False)
            files.discard(self.path / RESERVE)
        except OSError:
            self._end_in_reserve(files.sealed({**end, "message": end["message"][:SHORT]}))

    def describe(self, environment: Mapping[str, Any]) -> None:
        """Write down what this attempt runs on."""
        files.replace(self.path / "environment.json", files.sealed(redact_all(environment)), sync=False)

    def log(self, text: str) -> None:
        """Add to the attempt's log, with the time; a log that cannot be written changes nothing about the run."""
        with suppress(OSError):
            files.append_line(self.log_path, f"{time.strftime('%Y-%m-%d %H:%M:%S')} {redact(text)}")

    def _end_in_reserve(self, data: bytes) -> None:
        """Say how it ended where no file can be made any more: in the room that the claim has set aside."""
        descriptor = files.disk.open(self.path / RESERVE)
        try:
            files.write_all(descriptor, data)  # what follows is white space, as JSON allows
            files.disk.sync(descriptor)
        finally:
            os.close(descriptor)
        files.disk.rename(self.path / RESERVE, self.path / "exit.json")

    @cached_property
    def _earlier(self) -> list[AttemptDir]:
        earlier: list[AttemptDir] = []
        for attempt in self.run.attempts():
            if attempt.number < self.number:
                earlier = [] if attempt.is_superseded() else [*earlier, attempt]
        return earlier


def ending(kind: str, message: str, round: int | None = None, *, mendable: bool = False) -> dict[str, Any]:
    """What an exit.json says."""
    now = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    return {
        "schema": SCHEMA, "kind": kind, "message": redact(message), "round": round, "time": now, "mendable": mendable
    }  # fmt: skip


def _len_then_text(name: str) -> tuple[int, str]:
    """Sorts numbers written with four digits or more."""
    return len(name), name


def _names(directory: str) -> list[str]:
    try:
        return os.listdir(directory)  # noqa: PTH208  speed
    except (FileNotFoundError, NotADirectoryError):
        return []


def _size(path: str) -> int | None:
    """Bytes in a file, None where there is none; a file that cannot be asked for its size is not gone."""
    try:
        return os.stat(path).st_size  # noqa: PTH116  half the time of Path.stat
    except (FileNotFoundError, NotADirectoryError):
        return None
