"""What federated and centralized training have in common.

A trainer has a state and two operations, ``step`` and ``evaluate``. All random choices are functions of (seed, client,
round), so a checkpoint holds nothing but the state.

Shape suffixes: N clients, S participants.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flbench import metrics
from flbench.engine.executors import StackedExecutor
from flbench.engine.randomness import without_draws
from flbench.engine.run import TrainingSetup
from flbench.methods.base import Tree


@dataclass(frozen=True)
class RoundReport:
    """The training loss of a round, and the models that the participants sent.

    ``client_params`` (leading axis S) and ``weights_S`` are None unless they were requested; both are on the trainer's
    device. The loss is a 0-d tensor if ``step`` did not wait for the device.
    """

    loss: float | Tensor
    client_params: Tree | None = None
    weights_S: Tensor | None = None


class Trainer(ABC):
    """Federated or centralized training of one experiment.

    Attributes:
        round: rounds done.
        x: shared parameters, in any layout. ``buffers``: shared buffers.
        local: parameters and buffers that stay on the clients, every leaf with a leading axis N.
        images, executor, seed, record: as in ``TrainingSetup``.
    """

    def __init__(self, setup: TrainingSetup) -> None:
        self.images, self.executor, self.seed, self.record = setup.images, setup.executor, setup.seed, setup.record
        self.x, self.buffers = setup.params, setup.buffers
        self.round = 0
        self.local: Tree = {}
        self.bytes_up = self.bytes_down = 0
        self.seconds = 0.0
        self._loss: float | Tensor = float("nan")  # of the last round
        self._watch: Tree = {}
        self._watched_from = 0

    def step(self, *, keep_clients: bool = False, wait: bool = True) -> RoundReport:
        """Return the report of one more round of training.

        Args:
            keep_clients: whether the report holds what the participants sent.
            wait: whether to wait until the device has computed it. If not, its time is counted with that of the next
                round that is waited for.
        """
        began = time.perf_counter()
        with without_draws(self.drawing):
            report = self._train_round(keep_clients, wait)
        self.count_round(report, time.perf_counter() - began)
        return report

    #: What may draw random numbers in a round, in the error of a round that has drawn some.
    drawing = "a layer of the network"

    def count_round(self, report: RoundReport, seconds: float) -> None:
        """Count a round."""
        self.round += 1
        self._loss = report.loss
        self.seconds += seconds

    @property
    def device(self) -> torch.device:
        """Where its tensors are."""
        return self.images.train_MCHW.device

    @property
    def asynchronous(self) -> bool:
        """Whether ``step`` can return before the device has computed the round."""
        return self.record is not None

    @property
    def convolutions(self) -> Mapping[str, str]:
        """How each convolution of a stack is computed, where the engine chose it by measuring."""
        return self.executor.convolutions if isinstance(self.executor, StackedExecutor) else {}

    def diverged_in(self) -> int | None:
        """The first round whose loss or parameters were not finite numbers; None if there was none."""
        if not self._watch:
            return None
        finite = int(self._watch["rounds"])
        return None if finite == self.round - self._watched_from else self._watched_from + finite + 1

    def _open_watch(self) -> Tree:
        """The counter of finite rounds, on the device (``watch.watched``); a new one after loading a state."""
        if not self._watch:
            like = self.images.train_labels_M
            self._watch = {"finite": like.new_ones((), dtype=torch.bool), "rounds": like.new_zeros(())}
            self._watched_from = self.round
        return self._watch

    def evaluate(self) -> metrics.Record:
        """Return the metrics after the last round.

        ``train_loss`` is that round's mean over clients and local steps, and None before the first round.
        """
        record = {"round": self.round, **self._measure(), "train_loss": float(self._loss) if self.round else None}
        return {**record, "bytes_up": self.bytes_up, "bytes_down": self.bytes_down, "seconds": round(self.seconds, 4)}

    def state(self) -> dict[str, Any]:
        """Return everything that the next round depends on: tensors, numbers, dicts and lists only.

        The tensors are the trainer's own, and valid until its next step.
        """
        counters = {"round": self.round, "bytes_up": self.bytes_up, "bytes_down": self.bytes_down}
        return {**counters, "seconds": self.seconds, "loss": float(self._loss), "trees": self._trees()}

    def load(self, state: dict[str, Any]) -> None:
        """Continue from a copy of what ``state`` returned."""
        self.round, self.seconds, self._loss = state["round"], state["seconds"], state["loss"]
        self.bytes_up, self.bytes_down = state["bytes_up"], state["bytes_down"]
        self._watch = {}
        for name, tree in self._trees().items():
            saved = state["trees"][name]
            started = name != "velocity" or tree  # that of centralized training is empty before its first step
            if started and {k: v.shape for k, v in saved.items()} != {k: v.shape for k, v in tree.items()}:
                raise ValueError(f"the checkpoint's {name} has other tensors than this experiment's")
            # A copy, because rounds write into the clients' states.
            setattr(self, name, {key: leaf.to(self.device, copy=True) for key, leaf in saved.items()})

    @abstractmethod
    def _train_round(self, keep_clients: bool, wait: bool) -> RoundReport: ...

    @abstractmethod
    def _measure(self) -> metrics.Record: ...

    @abstractmethod
    def _trees(self) -> dict[str, Tree]:
        """The trees of the state, by attribute name."""
