"""Execute a run, from its experiment to its records.

data set -> partition -> network with its norm -> engine with the method -> metrics and probes -> the run's directory.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, Protocol, cast

import torch

from flbench import metrics
from flbench.checkpoints import NoCheckpoint, load_checkpoint
from flbench.config import Experiment, Training, require_device
from flbench.data.datasets import Dataset, load, load_named
from flbench.engine.federated import FederatedTrainer, step_together
from flbench.engine.model_access import ModelAccess
from flbench.engine.setup import make_network, make_trainer, matmul_precision_restored, runs_worth_fusing
from flbench.engine.stack_bits import same_bits_together
from flbench.engine.trainer import RoundReport
from flbench.errors import UserError
from flbench.execution_types import Ended, Outcome, Settings
from flbench.methods.base import Tree, tmap
from flbench.probes import Observation, Probe
from flbench.registry import Component
from flbench.store import Attempt, Checkpoint
from flbench.studies.experiment import StudyExperiment
from flbench.studies.start import make_study

_log = logging.getLogger(__name__)

#: Upper bounds, in rounds and in seconds, between two reads of a run's device-side state: a run that diverged ends
#: soon, and a stop waits only for the rounds that are queued on the GPU.
SYNC_ROUNDS = 50
SYNC_SECONDS = 1.0

#: Seconds of training between two checkpoints.
CHECKPOINT_SECONDS = 30.0


class Subject(Protocol):
    """A trainer or a study."""

    round: int
    x: Tree
    seconds: float

    @property
    def asynchronous(self) -> bool:
        """Whether ``step`` can return before the device has computed the round."""

    @property
    def convolutions(self) -> Mapping[str, str]:
        """How each convolution is computed, where the engine chose it by measuring."""

    def step(self, *, keep_clients: bool, wait: bool) -> RoundReport:
        """One round."""

    def diverged_in(self) -> int | None:
        """The first round that left a non-finite number; None if there was none."""

    def evaluate(self) -> metrics.Record:
        """The metrics after the last round."""

    def state(self) -> dict[str, Any]:
        """Everything that the next round depends on."""

    def load(self, state: dict[str, Any]) -> None:
        """Continue from what ``state`` returned."""


@dataclass(frozen=True)
class Runner:
    """Executes claimed runs, several as one computation where that is faster.

    Attributes:
        settings: of the worker.
        apart: names of the methods with a hook that failed for several runs together; their runs train one by one.
    """

    settings: Settings
    apart: set[str] = field(default_factory=set)

    def check(self, experiment: Experiment) -> None:
        """Raise UserError if the data that an experiment names are missing, damaged, or other data."""
        dataset = getattr(experiment, "dataset", None)
        if dataset is not None:
            load_named(dataset, self.settings.data_root)

    def group_size(self, experiment: Experiment) -> int:
        """Return how many runs like this one to train together: as many as fill one stack of clients."""
        if not isinstance(experiment, Training) or _method_of(experiment) in self.apart:
            return 1
        data = load(cast(Dataset, experiment.dataset), self.settings.data_root)
        settings = self.settings
        return runs_worth_fusing(
            experiment, data, device=settings.device, executor=settings.executor, neighbours=settings.neighbours
        )

    def execute(self, group: Sequence[Attempt], *, should_stop: Callable[[], bool], ended: Ended) -> None:
        """Execute runs together; each has the numbers, the files and the outcome that it has alone.

        Args:
            group: the runs; more than one only if ``group_size`` allows it and they differ in ``config.FUSABLE`` alone.
            should_stop: called after every round; once it returns True, every run writes a checkpoint and stops.
            ended: called when a run ends. An error in one run does not affect the others; an error in the computation
                that they share ends all of them, except one of a hook: they are then trained one by one.
        """
        with matmul_precision_restored():
            running: list[_Execution] = []
            for attempt in group:
                with _failures_to(attempt, ended):
                    execution = _Execution(attempt, self.settings)
                    if (outcome := execution.begin()) is None:
                        running.append(execution)
                    else:
                        ended(attempt, outcome)
            groups = _together(running)
            while groups:
                groups = [*self._one_round(groups[0], should_stop, ended), *groups[1:]]

    def _one_round(
        self, running: Sequence[_Execution], should_stop: Callable[[], bool], ended: Ended
    ) -> list[Sequence[_Execution]]:
        """Train one round of runs, and return those that continue: together, or one by one if a hook cannot do it."""
        try:
            continuing = _one_round(running, should_stop, ended)
        except Exception as error:
            if len(running) > 1 and isinstance(error, UserError):
                method = _method_of(running[0].attempt.experiment)
                self.apart.add(method)
                _log.warning(
                    "this worker trains all runs of %s one by one, because a hook failed with several of them as one "
                    "stack; name the fields that hooks need as Python numbers in `static` (flbench docs extending). "
                    "The error: %s",
                    method,
                    error,
                )
                return [[one] for one in running]
            for one in running:
                ended(one.attempt, error)
            return []
        return [continuing] if continuing else []


def _method_of(experiment: Experiment) -> str:
    """The name of a run's method; empty without one."""
    method: Component | None = getattr(experiment, "method", None)
    return "" if method is None else method.name


def _together(running: Sequence[_Execution]) -> list[Sequence[_Execution]]:
    """The runs in the groups that train as one stack, each with the bits that it has alone."""
    if len(running) < 2:
        return [running] if running else []
    trainers = cast(Sequence[FederatedTrainer], [execution.subject for execution in running])
    return [[running[position] for position in group] for group in same_bits_together(trainers)]


@contextmanager
def _failures_to(attempt: Attempt, ended: Ended) -> Iterator[None]:
    """Let an exception end this run alone."""
    try:
        yield
    except Exception as error:
        ended(attempt, error)


def _one_round(running: Sequence[_Execution], should_stop: Callable[[], bool], ended: Ended) -> list[_Execution]:
    """Train one round of each run, and return the runs that continue."""
    wait = any(execution.needs_sync() for execution in running)
    # What probes measure after the round may need the models that the participants sent.
    keep = [any(probe.needs_clients for probe in one.due_probes(one.subject.round + 1)) for one in running]
    if len(running) == 1:
        reports = [running[0].subject.step(keep_clients=keep[0], wait=wait)]
    else:
        trainers = cast(Sequence[FederatedTrainer], [execution.subject for execution in running])
        reports = step_together(trainers, keep, wait=wait)
    stop, continuing = should_stop(), []
    for execution, report in zip(running, reports, strict=True):
        with _failures_to(execution.attempt, ended):
            if (outcome := execution.after_round(report, synced=wait, stop=stop)) is None:
                continuing.append(execution)
            else:
                ended(execution.attempt, outcome)
    return continuing


class _Execution:
    """One run being executed: after each round it records, writes checkpoints and publishes."""

    def __init__(self, attempt: Attempt, settings: Settings) -> None:
        self.attempt = attempt
        self.subject: Subject
        self._probes: tuple[Probe, ...] = ()
        self._samples: tuple[int, int] | None = None
        experiment = attempt.experiment
        require_device([experiment], lambda: settings.device)
        if isinstance(experiment, Training):
            data = load_named(cast(Dataset, experiment.dataset), settings.data_root)
            trainer, numerics = make_trainer(
                experiment,
                data,
                device=settings.device,
                executor=settings.executor,
                pool=settings.pool,
                neighbours=settings.neighbours,
            )
            self.subject, fingerprint = trainer, data.fingerprint
            self._samples = len(data.train.labels), len(data.test.labels)
            self._probes = cast(tuple[Probe, ...], experiment.probes)
            self._model_access = cache(
                lambda: ModelAccess(trainer, make_network(experiment, data, settings.device), experiment.lr)
            )
        else:
            self.subject, numerics, fingerprint = make_study(
                cast(StudyExperiment, experiment), settings.data_root, settings.device
            )
        #: A run continues only from a checkpoint with the same.
        self._computed_with: dict[str, Any] = {"numerics": numerics.facts(), "fingerprint": fingerprint}
        resumed, saved = _newest_checkpoint(attempt, self._computed_with)
        if resumed is not None:
            self.subject.load(saved["trainer"])
            attempt.log(f"resumed after round {self.subject.round} of attempt {resumed.attempt}")
        self._records: list[metrics.Record] = attempt.adopt(resumed)
        self._convolutions: dict[str, str] = saved.get("convolutions", {})
        self._saved_at = resumed.round if resumed else None
        self._last_save = time.monotonic()
        self._wanted = experiment.evaluated_rounds()
        self._before = self.subject.x
        self._sync_at = self.subject.round + 1
        self._last_sync = self.subject.round, time.monotonic()

    def begin(self) -> Outcome | None:
        """Evaluate before the first round if the experiment requests it; return the outcome if no round follows."""
        if self._saved_at is None and 0 in self._wanted:
            self._record(self.subject.x, RoundReport(float("nan")))
        return self._at_end()

    def _at_end(self) -> Outcome | None:
        """Publish if the last round is done; it may be the checkpoint of a worker that was killed before publishing."""
        if self.subject.round < self.attempt.experiment.rounds:
            return None
        if self._saved_at != self.subject.round:
            self._checkpoint()  # kept, so that the run can be extended
        return self._publish("done", self.subject.round)

    def due_probes(self, round: int) -> list[Probe]:
        """The probes that measure after a round."""
        if round not in self._wanted:
            return []
        return [probe for probe in self._probes if probe.is_due(round, self.attempt.experiment.rounds)]

    def needs_sync(self) -> bool:
        """Whether the numbers of the coming round are needed; waiting for them in every round would idle a GPU."""
        coming = self.subject.round + 1
        wanted = coming in self._wanted or coming >= self.attempt.experiment.rounds
        return not self.subject.asynchronous or wanted or coming >= self._sync_at or self._checkpoint_is_due()

    def after_round(self, report: RoundReport, *, synced: bool, stop: bool) -> Outcome | None:
        """Return the outcome, once there is one, after recording, saving or publishing what is due.

        Does nothing in a round that is not waited for: if it diverged, the next sync finds that and dates it correctly.
        """
        subject, attempt = self.subject, self.attempt
        before, self._before = self._before, subject.x
        if not (synced or stop):
            return None
        # Choose the next round to wait for, from the time of the rounds since the last one.
        now, (round, then) = time.monotonic(), self._last_sync
        rounds = SYNC_SECONDS * (subject.round - round) / max(now - then, 1e-9)
        self._sync_at = subject.round + max(1, int(min(SYNC_ROUNDS, rounds)))
        self._last_sync = subject.round, now
        if (bad := subject.diverged_in()) is not None:
            attempt.log(f"diverged in round {bad}: the loss or a weight is not a finite number")
            return self._publish("diverged", bad)
        self._log_convolutions()
        if subject.round in self._wanted:
            self._record(before, report)
        if (outcome := self._at_end()) is not None:
            return outcome
        attempt.show_round(subject.round)
        if stop or self._checkpoint_is_due():
            self._checkpoint()
        return Outcome("stopped", subject.round) if stop else None

    def _log_convolutions(self) -> None:
        """Log how a GPU convolves, and what changed: a resumed run measures again, and may choose another way."""
        now = dict(self.subject.convolutions)
        if now != self._convolutions:
            chosen = " ".join(f"{layer}={way}" for layer, way in now.items())
            before = " ".join(f"{layer}={way}" for layer, way in self._convolutions.items())
            self.attempt.log(f"convolutions: {chosen}" + (f"; before this round: {before}" if before else ""))
            self._convolutions = now

    def _record(self, before: Tree, report: RoundReport) -> None:
        """Record the evaluation after the last round and the measurements of the probes."""
        record = self.subject.evaluate()
        if probes := self.due_probes(self.subject.round):
            # Probes add in the order of memory, which is not that in which clients train.
            before, after = (tmap(torch.Tensor.contiguous, x) for x in (before, self.subject.x))
            clients = report.client_params, report.weights_S
            seen = Observation(self.subject.round, before, after, *clients, self._model_access())
            record["probes"] = {probe.name: probe.measure(seen) for probe in probes}
        self._records.append(record)
        record |= metrics.over_records(self._records)
        self.attempt.record(record)

    def _checkpoint_is_due(self) -> bool:
        return time.monotonic() - self._last_save > CHECKPOINT_SECONDS

    def _checkpoint(self) -> None:
        subject = self.subject
        saved = {**self._computed_with, "convolutions": dict(subject.convolutions), "trainer": subject.state()}
        self.attempt.save_checkpoint(subject.round, lambda file: torch.save(saved, file))
        self._saved_at, self._last_save = subject.round, time.monotonic()

    def _publish(self, status: Literal["done", "diverged"], round: int) -> Outcome:
        self.attempt.publish(
            status=status, rounds=round, seconds=self.subject.seconds, samples=self._samples, **self._computed_with
        )
        return Outcome(status, round)


def _newest_checkpoint(attempt: Attempt, computed_with: Mapping[str, Any]) -> tuple[Checkpoint | None, dict[str, Any]]:
    """The newest checkpoint of the same numerics and data with its content; None and an empty dict: start over."""
    for checkpoint in attempt.checkpoints():
        try:
            saved = load_checkpoint(checkpoint.path)
        except NoCheckpoint as error:
            attempt.log(str(error))
            saved = None
        if not isinstance(saved, dict) or not saved.keys() >= {"numerics", "fingerprint", "trainer"}:
            attempt.log(f"not resuming from round {checkpoint.round}: {checkpoint.path} is no checkpoint of flbench")
        elif any(saved[name] != value for name, value in computed_with.items()):
            attempt.log(f"not resuming from round {checkpoint.round}: it was computed with {saved['numerics']}")
        else:
            return checkpoint, saved
    return None, {}
