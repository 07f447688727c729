"""Federated averaging in plain PyTorch, written with care: what the engine's speed is compared with.

Clients train one after another in one module, by a fresh ``torch.optim`` optimizer and autograd. Images are in memory,
as finished floats unless they are augmented. Weights are reset and averaged by one foreach call for all of them.

Shape suffixes: B batch, C channels, H, W pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, cast

import torch
from torch import Tensor, nn

from flbench.config import Federated
from flbench.data.arrays import Data
from flbench.data.batches import CROP_PADDING, Rows
from flbench.data.shards import shards_of
from flbench.engine.setup import local_steps, make_network
from flbench.models.layers import PooledConv

#: Endless batches of images and labels, in a new order after every pass.
Batches = Callable[[], Iterator[tuple[Tensor, Tensor]]]

#: Make the batches of each client, from the rows of its samples.
Source = Callable[[Federated, Data, Sequence[Rows], str], Sequence[Batches]]

_OPTIMIZERS: dict[str, Any] = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


@dataclass(frozen=True)
class Client:
    """A client's number of samples, its local steps in a round, and its batches."""

    samples: int
    steps: int
    batches: Batches


class PlainLoop:
    """Rounds of federated averaging.

    Args:
        network: a module that returns (features, logits); it is trained in place.
        clients: all clients.
        optimizer: makes the optimizer of a client's round.
        cohort: clients that train in a round.
        memory_format: layout of the batches of images.
    """

    def __init__(
        self,
        network: nn.Module,
        clients: Sequence[Client],
        optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
        *,
        cohort: int | None = None,
        memory_format: torch.memory_format = torch.contiguous_format,
    ) -> None:
        self.network = network.train().to(memory_format=memory_format)
        for layer in network.modules():
            if isinstance(layer, PooledConv):
                layer.by_hand = False  # autograd alone, without the gradient that flbench derives
        self._clients, self._cohort = clients, cohort or len(clients)
        self._optimizer, self._memory_format = optimizer, memory_format
        self._parameters = list(network.parameters())
        statistics = [buffer for buffer in network.buffers() if buffer.is_floating_point()]
        self._averaged: list[Tensor] = [*self._parameters, *statistics]

    def round(self) -> None:
        """Train a random cohort from the same weights, then average, weighted by numbers of samples."""
        cohort = [self._clients[place] for place in torch.randperm(len(self._clients))[: self._cohort].tolist()]
        samples = sum(client.samples for client in cohort)
        start = [leaf.detach().clone() for leaf in self._averaged]
        total = [torch.zeros_like(leaf) for leaf in start]
        for client in cohort:
            self._set(start)
            self._train(client)
            with torch.no_grad():
                torch._foreach_add_(total, self._averaged, alpha=client.samples / samples)
        self._set(total)

    @torch.no_grad()
    def _set(self, values: list[Tensor]) -> None:
        torch._foreach_copy_(self._averaged, values)

    def _train(self, client: Client) -> None:
        optimizer = self._optimizer(self._parameters)
        for images, labels in islice(client.batches(), client.steps):
            optimizer.zero_grad()
            logits = self.network(images.contiguous(memory_format=self._memory_format))[1]
            nn.functional.cross_entropy(logits, labels).backward()
            optimizer.step()


def from_memory(experiment: Federated, data: Data, rows: Sequence[Rows], device: str) -> Sequence[Batches]:
    """Return batches that are gathered from one tensor of all images, of the same sizes as the engine's."""
    dtype = torch.float64 if experiment.precision == "fp64" else torch.float32
    images, labels = (torch.from_numpy(part.copy()).to(device) for part in (data.train.images, data.train.labels))
    augmented, batch_size = experiment.augment == "flip-crop", experiment.batch_size
    if not augmented:
        images = images.to(dtype) / data.white

    def batches(own: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        passes = max(1, -(-batch_size // len(own))) if experiment.drop_last else 1  # small clients fill a batch
        while True:
            order = torch.cat([own[torch.randperm(len(own), device=device)] for _ in range(passes)])
            for batch in order.split(batch_size):
                if len(batch) == batch_size or not experiment.drop_last:
                    pixels = augment(images[batch]).to(dtype) / data.white if augmented else images[batch]
                    yield pixels, labels[batch]

    return [partial(batches, torch.from_numpy(own).to(device)) for own in rows]


def augment(images_BCHW: Tensor) -> Tensor:
    """Pad with zeros, crop at random to the original size, and flip half of the images."""
    count, channels, height, width = images_BCHW.shape
    device = images_BCHW.device
    padded = nn.functional.pad(images_BCHW, (CROP_PADDING,) * 4)
    top, left = torch.randint(0, 2 * CROP_PADDING + 1, (2, count), device=device)
    rows = (top[:, None] + torch.arange(height, device=device))[:, None, :, None]
    columns = (left[:, None] + torch.arange(width, device=device))[:, None, None, :]
    sample = torch.arange(count, device=device)[:, None, None, None]
    crops = padded[sample, torch.arange(channels, device=device)[None, :, None, None], rows, columns]
    return torch.where(torch.rand(count, 1, 1, 1, device=device) < 0.5, crops.flip(-1), crops)


def plain_loop(
    experiment: Federated,
    data: Data,
    device: str = "cpu",
    *,
    source: Source = from_memory,
    fused: bool = False,
    memory_format: torch.memory_format = torch.contiguous_format,
) -> PlainLoop:
    """Return the loop that trains an experiment's networks, cohorts and local steps with its local optimizer.

    It computes bf16 experiments in fp32. It leaves out what a method other than FedAvg, a schedule or clipping adds.

    Args:
        experiment: what to train.
        data: its data set.
        device: where to train.
        source: makes the batches of each client.
        fused: whether the optimizer is torch's fused one.
        memory_format: layout of the network and of the images.
    """
    settings: dict[str, Any] = {"lr": experiment.lr, "weight_decay": experiment.weight_decay, "fused": fused}
    if experiment.optimizer == "sgd":
        settings |= {"momentum": experiment.momentum, "nesterov": experiment.nesterov}
    optimizer = partial(_OPTIMIZERS[experiment.optimizer], **settings)
    rows = shards_of(experiment, data).train
    made = source(experiment, data, rows, device)
    clients = [Client(len(own), local_steps(experiment, own), batches) for own, batches in zip(rows, made, strict=True)]
    return PlainLoop(
        make_network(experiment, data, device),
        clients,
        cast(Any, optimizer),
        cohort=experiment.cohort_size,
        memory_format=memory_format,
    )
