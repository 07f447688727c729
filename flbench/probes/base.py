"""The contract of a probe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from flbench.registry import Component

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Observation:
    """What there is to see after a round.

    Attributes:
        round: number of the round, from 1.
        before: shared parameters at its start.
        after: shared parameters at its end.
        client_params: what the participants sent (leading axis S), if the probe asks for it.
        weights_S: their weights, which sum to 1.
    """

    round: int
    before: Mapping[str, Tensor]
    after: Mapping[str, Tensor]
    client_params: Mapping[str, Tensor] | None
    weights_S: Tensor | None


@dataclass(frozen=True)
class Probe(Component):
    """A measurement; it must not change what it looks at."""

    #: Whether it needs the participants' models, which costs memory.
    needs_clients: ClassVar[bool] = False

    def measure(self, seen: Observation) -> dict[str, Any]:
        """Numbers (or lists of numbers) by name, for the run's metrics."""
        raise NotImplementedError(f"{type(self).__name__} must measure something")
