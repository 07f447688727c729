"""The local training of a method that replaces the steps by its own (``Method.train``), of one client at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set

import torch
from torch import Tensor

from flbench.engine.gradients import Passes, autocast
from flbench.methods.base import Outputs, Tree
from flbench.models.layers import at_least_float

#: Images, labels, and the key of the step's masks for a network with dropout.
Step = tuple[Tensor, Tensor, Tensor | None]


class OwnTraining:
    """The batches of a client's round, and its network in training mode.

    Args:
        steps: the batches; to iterate over this object yields images and labels, again each time.
        passes: the network, in training mode.
        names: of the network's weights. ``of_network``: drops from the weights what the method adds to them.
        buffers: the client's, which a pass with batch normalization updates in place.
        fixed: frozen parameters and buffers.
        dtype: of mixed precision, or None.
    """

    def __init__(
        self,
        steps: Sequence[Step],
        passes: Passes,
        names: Set[str],
        of_network: Callable[[Tree], Tree],
        buffers: Tree,
        fixed: Tree,
        dtype: torch.dtype | None,
    ) -> None:
        self._steps, self._passes, self._names, self._dtype = steps, passes, names, dtype
        self._of_network, self._buffers = of_network, {**buffers, **fixed}
        self._masks = self._masks_of(steps[0][2])

    def __len__(self) -> int:
        return len(self._steps)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for images, labels, key in self._steps:
            self._masks = self._masks_of(key)
            yield images, labels

    def _masks_of(self, key: Tensor | None) -> Tree:
        return {} if key is None else {name: key ^ number for name, number in self._passes.mask_keys.items()}

    def forward(self, w: Tree, images: Tensor) -> Outputs:
        """Return the outputs at the weights ``w``; dropout has the masks of the batch that came last."""
        if missing := sorted(self._names - w.keys()):
            raise KeyError(f"forward needs all weights, and got no {missing[0]!r}")
        with autocast(images.device, self._dtype):
            outputs = self._passes.forward(self._of_network(w), {**self._buffers, **self._masks}, images)
        return Outputs(*map(at_least_float, outputs))
