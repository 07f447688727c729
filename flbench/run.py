"""One run, top to bottom: experiment to records.

data set -> partition -> network with its norm -> engine with the method -> metrics and probes -> the run's directory.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

import torch

from flbench.config import Experiment
from flbench.data.datasets import Dataset, load
from flbench.engine.rounds import RoundReport, Trainer
from flbench.engine.setup import Numerics, make_trainer
from flbench.methods.base import Tree
from flbench.probes import Observation, Probe
from flbench.store import Attempt, Checkpoint


@dataclass(frozen=True)
class Settings:
    """Where and how to execute; none of it changes what a run is.

    Attributes:
        data_root: folder of the data sets; None: the usual one.
        device: ``cpu`` or ``cuda``.
        executor: how clients are mapped (see ``flbench.engine.executors``).
        pool: threads of the loop executor.
        checkpoint_seconds: most seconds of training that a kill may cost.
    """

    data_root: Path | None = None
    device: Literal["cpu", "cuda"] = "cpu"
    executor: Literal["auto", "loop", "stacked"] = "auto"
    pool: int = 1
    checkpoint_seconds: float = 30.0


@dataclass(frozen=True)
class Outcome:
    """How an execution ended: a result is published unless it was stopped (then a checkpoint was written)."""

    status: Literal["done", "diverged", "stopped"]
    round: int


def execute(
    experiment: Experiment, attempt: Attempt, *, settings: Settings, should_stop: Callable[[], bool] = lambda: False
) -> Outcome:
    """Train until the experiment's last round, its first non-finite number, or ``should_stop()``.

    Goes on from the run's newest checkpoint with the same numerics, if there is one. Every wished for evaluation is
    recorded in the attempt, a checkpoint is written now and then and at the end, and the result is published.

    Raises:
        flbench.errors.UserError: the data set is missing, or the partition cannot be drawn.
    """
    data = load(cast(Dataset, experiment.dataset), settings.data_root)
    trainer, numerics = make_trainer(
        experiment, data, device=settings.device, executor=settings.executor, pool=settings.pool
    )
    resumed = _resume(trainer, attempt, numerics, data.fingerprint)
    attempt.adopt(resumed)
    saved_at = resumed.round if resumed else None
    wanted = experiment.evaluated_rounds()
    probes = cast(tuple[Probe, ...], experiment.probes)
    last_save = time.monotonic()

    def publish(status: Literal["done", "diverged"]) -> Outcome:
        attempt.publish(
            status=status,
            rounds=trainer.round,
            seconds=trainer.seconds,
            fingerprint=data.fingerprint,
            numerics=numerics.to_json(),
        )
        return Outcome(status, trainer.round)

    def checkpoint() -> None:
        attempt.save_checkpoint(trainer.round, lambda file: _save(file, trainer, numerics, data.fingerprint))

    while trainer.round < experiment.rounds:
        evaluated = trainer.round + 1 in wanted
        before = trainer.x
        report = trainer.step(keep_clients=evaluated and any(probe.needs_clients for probe in probes))
        if not trainer.is_finite():
            attempt.log(f"diverged in round {trainer.round}: the loss or a weight is not a finite number")
            return publish("diverged")
        if evaluated:
            record = trainer.evaluate()
            if probes:
                record["probes"] = _observe(probes, trainer, before, report)
            attempt.record(record)
        stop = should_stop() and trainer.round < experiment.rounds
        if stop or time.monotonic() - last_save > settings.checkpoint_seconds:
            checkpoint()
            saved_at, last_save = trainer.round, time.monotonic()
        if stop:
            return Outcome("stopped", trainer.round)
    if saved_at != trainer.round:
        checkpoint()  # kept, so that the run can be extended and probed
    return publish("done")


def _observe(probes: tuple[Probe, ...], trainer: Trainer, before: Tree, report: RoundReport) -> dict[str, Any]:
    seen = Observation(trainer.round, before, trainer.x, report.client_params, report.weights_S)
    return {probe.label(): probe.measure(seen) for probe in probes}


def _save(file: BinaryIO, trainer: Trainer, numerics: Numerics, fingerprint: str) -> None:
    torch.save({"numerics": numerics.to_json(), "fingerprint": fingerprint, "trainer": trainer.state()}, file)


def _resume(trainer: Trainer, attempt: Attempt, numerics: Numerics, fingerprint: str) -> Checkpoint | None:
    """Load the newest checkpoint that was computed the same way on the same data; None: the run starts over."""
    for checkpoint in attempt.checkpoints():
        # weights_only: a checkpoint holds tensors, numbers and strings, and nothing in it can execute code.
        saved = torch.load(checkpoint.path, map_location="cpu", weights_only=True)
        if saved["numerics"] != numerics.to_json() or saved["fingerprint"] != fingerprint:
            attempt.log(f"not resuming from round {checkpoint.round}: it was computed with {saved['numerics']}")
            continue
        trainer.load(saved["trainer"])
        attempt.log(f"resumed after round {trainer.round} of attempt {checkpoint.attempt}")
        return checkpoint
    return None
