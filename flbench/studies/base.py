"""The contract of a study, which ``flbench.execution`` executes round by round as it does a trainer."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from flbench.engine.trainer import RoundReport
from flbench.methods.base import Tree

Record = dict[str, Any]


class Study(ABC):
    """A network under observation: a round may train it, an evaluation measures it.

    Attributes:
        round: rounds done.
        x: parameters.
        seconds: spent in rounds and measurements, which are what a study is for.
        carried: numbers by name that the next round or measurement also depends on, saved with the parameters.
    """

    #: Every round is complete when ``step`` returns, and no algorithm of a convolution is chosen by timing.
    asynchronous: ClassVar[bool] = False
    convolutions: ClassVar[Mapping[str, str]] = {}

    def __init__(self, x: Tree) -> None:
        self.x = x
        self.round = 0
        self.seconds = 0.0
        self.carried: dict[str, Any] = {}
        self.loss = float("nan")  # of the last round

    def step(self, *, keep_clients: bool = False, wait: bool = True) -> RoundReport:
        """Train for one round; there are no clients, and the round is complete when this returns."""
        began = time.perf_counter()
        self.loss = self._train()
        self.round += 1
        self.seconds += time.perf_counter() - began
        return RoundReport(self.loss)

    def diverged_in(self) -> int | None:
        """Return the last round, if its loss or a parameter is not finite."""
        finite = all(bool(torch.isfinite(leaf).all()) for leaf in self.x.values())
        return None if finite and (self.round == 0 or math.isfinite(self.loss)) else self.round

    def evaluate(self) -> Record:
        """Return the measurements after the last round."""
        began = time.perf_counter()
        measured = self._measure()
        self.seconds += time.perf_counter() - began
        return {"round": self.round, **measured, "seconds": round(self.seconds, 4)}

    def state(self) -> dict[str, Any]:
        """Return everything that the next round depends on: tensors, numbers, dicts and lists only."""
        counters = {"round": self.round, "seconds": self.seconds, "loss": self.loss}
        return {**counters, "x": self.x, "carried": dict(self.carried)}

    def load(self, state: dict[str, Any]) -> None:
        """Continue from what ``state`` returned."""
        self.round, self.seconds, self.loss = state["round"], state["seconds"], state["loss"]
        if {k: v.shape for k, v in state["x"].items()} != {k: v.shape for k, v in self.x.items()}:
            raise ValueError("the checkpoint has other tensors than this experiment's network")
        self.x = {name: leaf.to(self.x[name].device) for name, leaf in state["x"].items()}
        self.carried = dict(state["carried"])

    @abstractmethod
    def _train(self) -> float:
        """Train for one round and return its loss."""

    @abstractmethod
    def _measure(self) -> Record: ...
