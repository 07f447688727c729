"""The part of the training set that the server holds, and the network that it evaluates there.

Shape suffixes: M samples of the server.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor, nn

from flbench.engine.device_data import DeviceData
from flbench.engine.gradients import autocast
from flbench.errors import UserError
from flbench.methods.base import Outputs, Tree
from flbench.models.layers import at_least_float
from flbench.models.network import Forward, pure_forward


@dataclass(frozen=True, eq=False)
class HeldByServer:
    """As in ``methods.values.ServerData``.

    Attributes:
        images: the data set. ``rows_M``: the server's rows of the training set, on the device.
        network: a network that no other thread uses; its own tensors are never read.
        autocast: dtype of mixed precision, or None.
        buffers: those of the server in this round.
    """

    images: DeviceData
    rows_M: Tensor
    network: nn.Module
    autocast: torch.dtype | None
    buffers: Tree = field(default_factory=dict)

    @property
    def labels_M(self) -> Tensor:
        return self.images.train_labels_M.index_select(0, self.rows_M)

    @cached_property
    def _network(self) -> tuple[Forward, Set[str]]:
        """Its forward pass, and the names of its tensors."""
        network = self.network
        return pure_forward(network), {*dict(network.named_parameters()), *dict(network.named_buffers())}

    def outputs(self, w: Tree, buffers: Tree | None = None, samples: slice = slice(None)) -> Outputs:
        given = {**(self.buffers if buffers is None else buffers), **w}
        forward, names = self._network
        if missing := sorted(names - given.keys()):
            raise UserError(f"the server's outputs need {missing[0]!r}, which is not given or stays on the clients")
        if unknown := sorted(given.keys() - names):
            raise UserError(f"the server's outputs got {unknown[0]!r}, which the network does not have")
        pixels = self.images.train_MCHW.index_select(0, self.rows_M[samples])
        self.network.eval()
        with autocast(pixels.device, self.autocast):
            features, logits = forward(given, {}, self.images.prepare(pixels))
        return Outputs(at_least_float(features), at_least_float(logits))
