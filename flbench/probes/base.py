"""The contract of a probe."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from flbench.registry import Component

if TYPE_CHECKING:
    from torch import Tensor

    from flbench.engine.model_access import ModelAccess


@dataclass(frozen=True)
class Observation:
    """What a probe sees after a round.

    Attributes:
        round: number of the round; 0: before the first.
        before: shared parameters at its start.
        after: shared parameters at its end; ``access.model`` has those that are evaluated, which may be others.
        client_params: ``before`` plus each participant's change (leading axis S), if the probe asks for it.
        weights_S: their weights, which sum to 1.
        access: the run's network and data.
    """

    round: int
    before: Mapping[str, Tensor]
    after: Mapping[str, Tensor]
    client_params: Mapping[str, Tensor] | None
    weights_S: Tensor | None
    access: ModelAccess


@dataclass(frozen=True)
class Probe(Component, ABC):
    """A measurement, which must not change what it measures.

    ``every`` is the number of rounds between two measurements, a multiple of ``eval_every``; by default a probe
    measures at each evaluation. Every probe measures after the last round, and before the first one unless it needs
    what clients sent.
    """

    #: Whether it needs the participants' models, which costs memory.
    needs_clients: ClassVar[bool] = False

    #: Names under which it records lists, and their depth; every other record is a number, which readers of a store
    #: check. None: any of its records may be a list.
    lists: ClassVar[Mapping[str, int] | None] = None

    every: Annotated[int, Field(ge=1)] | None = None

    def is_due(self, round: int, rounds: int) -> bool:
        """Return whether it measures at the evaluation after ``round`` of ``rounds``; 0 is the start."""
        if round == 0 and self.needs_clients:
            return False
        return self.every is None or round % self.every == 0 or round == rounds

    @abstractmethod
    def measure(self, seen: Observation) -> dict[str, Any]:
        """Return numbers (or lists of numbers) by name, for the run's metrics."""
