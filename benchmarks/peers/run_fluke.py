# /// script
# requires-python = "==3.11.*"
# dependencies = ["fluke-fl==0.8.1", "torch==2.15.0", "numpy==2.4.6"]
# ///
"""Train the task with fluke: its FedAVG with fixed data assignments."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from fluke import DDict
from fluke.algorithms.fedavg import FedAVG
from fluke.data import DataSplitter, DummyDataContainer, FastDataLoader
from fluke.utils import FederationObserver
from task import Task, Turns, save_weights
from torch import Tensor


class GivenBatches(FastDataLoader):
    """A client's loader, one of whose epochs is a round's batches."""

    def __init__(self, task: Task, client: int) -> None:
        rows = range(task.sizes_N[client])  # their number is the client's weight in the average
        super().__init__(task.labels_M[rows], num_labels=task.classes, batch_size=task.batch_size)
        self._task, self._client, self._round = task, client, 0

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        self._round += 1
        return self._task.batches(self._round - 1, self._client)


class Rounds(FederationObserver):
    def __init__(self, turns: Turns) -> None:
        self._turns = turns

    def end_round(self, round: int) -> None:
        self._turns.between_rounds()


task = Task(sys.argv[1])
turns = Turns(task.rounds, "fluke-fl")
clients = len(task.sizes_N)
loaders = [GivenBatches(task, client) for client in range(clients)]
data = DataSplitter(DummyDataContainer(loaders, [None] * clients, None, task.classes))
optimizer = DDict(name="SGD", lr=task.lr)
client = DDict(batch_size=task.batch_size, local_epochs=1, loss="CrossEntropyLoss", optimizer=optimizer)
client["scheduler"] = DDict(name="StepLR", step_size=1, gamma=1.0)
model = task.network()
algorithm = FedAVG(clients, data, DDict(model=model, client=client, server=DDict(weighted=True)))
algorithm.set_callbacks(Rounds(turns))
turns.between_rounds()
algorithm.run(task.rounds, 1.0)
save_weights(algorithm.server.model, sys.argv[2])
