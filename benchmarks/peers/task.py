"""What the scripts of this folder share: the task to train, and the turns that they take with flbench.

``benchmarks/speedups.py`` (``frameworks.py``) starts each script with two paths: of the task, which defines
the training, and of the file into which the script writes the weights after the last round.

Shape suffixes: R rounds, N clients, E local steps, B batch, M samples.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Iterator
from functools import cache
from importlib.metadata import version

import numpy as np
import torch
from torch import Tensor, nn


class Task:
    """Federated averaging of a multi-layer perceptron on given batches, from given weights."""

    def __init__(self, path: str) -> None:
        torch.set_num_threads(1)
        given = np.load(path)
        self.images_M = torch.from_numpy(given["images_M"])
        self.labels_M = torch.from_numpy(given["labels_M"])
        self._rows_RNEB = torch.from_numpy(given["rows_RNEB"])
        self.lr = float(given["lr"])
        self.classes = int(given["classes"])
        self.sizes_N = given["sizes_N"].tolist()
        self._weights = [torch.from_numpy(given[name]) for name in sorted(given) if name.startswith("weight")]

    @property
    def rounds(self) -> int:
        return len(self._rows_RNEB)

    @property
    def batch_size(self) -> int:
        return self._rows_RNEB.shape[-1]

    def batches(self, round: int, client: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Return the batches of a client's local steps, gathered at once."""
        rows = self._rows_RNEB[round, client].flatten()
        return zip(self.images_M[rows].split(self.batch_size), self.labels_M[rows].split(self.batch_size), strict=True)

    def network(self) -> nn.Sequential:
        """Return linear layers without biases, ReLU between them, with the initial weights."""
        layers: list[nn.Module] = []
        for weight in self._weights:
            layers += [nn.Linear(*reversed(weight.shape), bias=False), nn.ReLU()]
        network = nn.Sequential(*layers[:-1])
        with torch.no_grad():
            for parameter, weight in zip(network.parameters(), self._weights, strict=True):
                parameter.copy_(weight)
        return network


def save_weights(network: nn.Module, path: str) -> None:
    np.savez(path, **{f"weight_{i}": leaf.detach().numpy() for i, leaf in enumerate(network.parameters())})


@cache
def task_of_process(path: str) -> Task:
    """Return the task, read once in each process that imports this module."""
    return Task(path)


class Turns:
    """Lets flbench start each round: lines on standard input and output. What a framework prints goes to stderr."""

    def __init__(self, rounds: int, *packages: str) -> None:
        self._out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        self._left = rounds
        versions = {name: version(name) for name in (*packages, "torch")}
        self._hello = json.dumps({"python": platform.python_version(), **versions})

    def between_rounds(self) -> None:
        """Report that the script is ready, or that a round is done; wait for the next round if there is one."""
        print(self._hello, file=self._out, flush=True)
        self._hello = "done"
        if self._left and not sys.stdin.readline():
            raise SystemExit("flbench is gone")
        self._left -= 1
