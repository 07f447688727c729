"""Which layers of a network observe clients' data before the local steps (``StackableLayer.observes``)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from flbench.models.layers import StackableLayer
from flbench.models.network import buffers_that_are


@dataclass(frozen=True)
class Observation:
    """What the layers of a network observe.

    Attributes:
        weights: names of the buffers that receive the weights of the samples.
        all: whether they observe all training data of a client, and not only one batch.
    """

    weights: frozenset[str]
    all: bool

    @classmethod
    def of(cls, network: nn.Module) -> Observation | None:
        """Return that of a network; None if no layer observes."""
        names = buffers_that_are("observes", network)
        return cls(names, any(layer.observes_all for layer in observers(network))) if names else None


def observers(network: nn.Module) -> Iterator[StackableLayer]:
    """Yield the layers that observe."""
    return (module for module in network.modules() if isinstance(module, StackableLayer) and module.observes)
