"""Federated averaging in plain PyTorch, written with care: what the engine's speed is compared with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from flbench.config import Federated
from flbench.data.arrays import Data
from flbench.data.batches import CROP_PADDING, Rows, crop_and_flip
from flbench.data.shards import shards_of
from flbench.engine.device_data import as_input, normalization
from flbench.engine.local_steps import local_steps
from flbench.engine.setup import make_network
from flbench.models.layers import PooledConv

#: Endless batches of images and labels, in a new order after every pass.
Batches = Callable[[], Iterator[tuple[Tensor, Tensor]]]

#: Make the batches of each client, from the rows of its samples and for a device.
Source = Callable[[Federated, Data, Sequence[Rows], str], Sequence[Batches]]

_OPTIMIZERS: dict[str, Any] = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


def from_memory(experiment: Federated, data: Data, rows: Sequence[Rows], device: str) -> Sequence[Batches]:
    """Return batches from one tensor of all images, as finished floats unless they are augmented."""
    dtype = torch.float64 if experiment.precision == "fp64" else torch.float32
    images, labels = (torch.from_numpy(part.copy()).to(device) for part in (data.train.images, data.train.labels))
    augmented, batch_size = experiment.augment == "flip-crop", experiment.batch_size
    finish = partial(as_input, white=data.white, dtype=dtype, normalize=normalization(data, dtype, device))
    if not augmented:
        images = finish(images)

    def batches(own: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        passes = max(1, -(-batch_size // len(own))) if experiment.drop_last else 1  # small clients fill a batch
        while True:
            order = torch.cat([own[torch.randperm(len(own), device=device)] for _ in range(passes)])
            for batch in order.split(batch_size):
                if len(batch) == batch_size or not experiment.drop_last:
                    pixels = finish(augment(images[batch])) if augmented else images[batch]
                    yield pixels, labels[batch]

    return [partial(batches, torch.from_numpy(own).to(device)) for own in rows]


def augment(images: Tensor) -> Tensor:
    """Pad with zeros, crop at random to the original size, and flip half of the images."""
    places = [torch.randint(most, (len(images),), device=images.device) for most in (2, *[2 * CROP_PADDING + 1] * 2)]
    return crop_and_flip(images, torch.stack(places, 1))


class PlainLoop:
    """Rounds of federated averaging with an experiment's networks, cohorts, local steps and local optimizer.

    Clients train one after another in one module, by a fresh optimizer (``fused``: torch's fused one) and autograd
    alone. ``source`` makes the batches of each client, in the engine's sizes; ``memory_format`` is the layout of images
    and network. Weights are reset and averaged by one foreach call for all of them. Experiments in bf16 are computed by
    autocast. What a method other than FedAvg, a schedule, clipping or kept momentum adds is left out. Cohorts are
    uniform; where local steps are drawn, clients take the most.
    """

    def __init__(
        self,
        experiment: Federated,
        data: Data,
        device: str = "cpu",
        *,
        source: Source = from_memory,
        fused: bool = False,
        memory_format: torch.memory_format = torch.contiguous_format,
    ) -> None:
        self.network = make_network(experiment, data, device).train().to(memory_format=memory_format)
        for layer in self.network.modules():
            if isinstance(layer, PooledConv):
                layer.by_hand = False  # autograd, without the gradient that flbench derives
        self._parameters = list(self.network.parameters())
        statistics = [buffer for buffer in self.network.buffers() if buffer.is_floating_point()]
        self._averaged: list[Tensor] = [*self._parameters, *statistics]
        self._memory_format, self._cohort_size = memory_format, experiment.cohort_size
        is_bf16 = experiment.precision == "bf16"
        self._autocast = partial(torch.autocast, torch.device(device).type, torch.bfloat16, enabled=is_bf16)
        settings: dict[str, Any] = {"lr": experiment.lr, "weight_decay": experiment.weight_decay, "fused": fused}
        if experiment.optimizer == "sgd":
            settings |= {"momentum": experiment.momentum, "nesterov": experiment.nesterov}
        self._optimizer = partial(_OPTIMIZERS[experiment.optimizer], self._parameters, **settings)
        rows = shards_of(experiment, data).train
        self._batches = source(experiment, data, rows, device)
        self._sizes, self._steps = [len(own) for own in rows], [local_steps(experiment, own) for own in rows]

    def round(self) -> None:
        """Train a random cohort from the same weights, then average, weighted by numbers of samples."""
        cohort = torch.randperm(len(self._sizes))[: self._cohort_size].tolist()
        samples = sum(self._sizes[client] for client in cohort)
        start = [leaf.detach().clone() for leaf in self._averaged]
        total = [torch.zeros_like(leaf) for leaf in start]
        for client in cohort:
            self._set(start)
            self._train(client)
            with torch.no_grad():
                torch._foreach_add_(total, self._averaged, alpha=self._sizes[client] / samples)
        self._set(total)

    @torch.no_grad()
    def _set(self, values: list[Tensor]) -> None:
        torch._foreach_copy_(self._averaged, values)

    def _train(self, client: int) -> None:
        optimizer = self._optimizer()
        for images, labels in islice(self._batches[client](), self._steps[client]):
            optimizer.zero_grad()
            with self._autocast():
                logits = self.network(images.contiguous(memory_format=self._memory_format))[1]
                loss = nn.functional.cross_entropy(logits, labels)
            loss.backward()
            optimizer.step()
