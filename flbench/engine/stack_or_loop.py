"""Whether a stack trains small clients faster on a CPU than the loop: looked up in ``stack_or_loop.json``.

``python -m benchmarks.stack_or_loop --write`` measures the table: for networks of either kind and for sizes of batches,
how many times as fast a stack of ten clients is. Between two measured sizes the logarithm of the speed is linear in
that of the size; beyond the ends it is as at the end, but networks larger than all measured ones are never stacked. The
table is committed, so that an experiment has one executor, and its bits, on every machine.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np
from torch import nn

from flbench.engine.dense_stack import dense_layers

TABLE = Path(__file__).with_suffix(".json")

#: Networks whose passes in a stack are derived by hand, and all others.
Kind = Literal["by hand", "by autograd"]


@dataclass(frozen=True)
class Speeds:
    """What was measured on networks of one kind.

    Attributes:
        flops: floating-point operations of each network's forward pass on one sample, ascending.
        batch_sizes: samples of a local step, ascending.
        speed: of a stack relative to the loop, a row for each network.
    """

    flops: Sequence[float]
    batch_sizes: Sequence[int]
    speed: Sequence[Sequence[float]]

    def at(self, flops: float, batch_size: int) -> float:
        """Return the speed of a stack relative to the loop on a network of this size."""
        rows = [np.interp(np.log(batch_size), np.log(self.batch_sizes), np.log(row)) for row in self.speed]
        return float(np.exp(np.interp(np.log(flops), np.log(self.flops), rows)))


def kind_of(network: nn.Module) -> Kind:
    """Return the kind of a network."""
    return "by autograd" if dense_layers(network) is None else "by hand"


@cache
def speeds() -> dict[Kind, Speeds]:
    """Return the committed table."""
    kinds = json.loads(TABLE.read_text(encoding="utf-8"))["kinds"]
    return {kind: Speeds(own["flops"], own["batch_sizes"], own["speed"]) for kind, own in kinds.items()}


def stack_is_faster(network: nn.Module, flops: float, batch_size: int) -> bool:
    """Return whether the stack is the faster one; ``flops`` are those of the network's forward pass on one sample."""
    own = speeds()[kind_of(network)]
    return flops <= own.flops[-1] and own.at(flops, batch_size) > 1
