# /// script
# requires-python = "==3.11.*"
# dependencies = ["pfl[pytorch]==0.6.0", "torch==2.15.0", "numpy==2.4.6"]
# ///
"""Train the task with pfl-research: federated averaging on its simulated backend."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from task import Task, Turns, save_weights
from torch import Tensor, nn


class Network(nn.Module):
    """The task's network with the two methods that pfl calls."""

    def __init__(self, layers: nn.Sequential) -> None:
        super().__init__()
        self.layers = layers
        self._loss = nn.CrossEntropyLoss()

    def loss(self, images: Tensor, labels: Tensor) -> Tensor:
        return self._loss(self.layers(images), labels)

    def metrics(self, images: Tensor, labels: Tensor) -> dict[str, Weighted]:
        return {"loss": Weighted(len(labels) * self.loss(images, labels).item(), len(labels))}


class GivenBatches(PyTorchTensorDataset):
    """A user's data, one of whose epochs is a round's batches."""

    def __init__(self, task: Task, client: int) -> None:
        rows = range(task.sizes_N[client])  # their number is the user's weight in the average
        super().__init__((task.images_M[rows], task.labels_M[rows]), user_id=str(client))
        self._task, self._client, self._round = task, client, -1

    def next_round(self) -> GivenBatches:
        self._round += 1
        return self

    def iter(self, batch_size: int | None) -> Iterator[tuple[Tensor, Tensor]]:
        return self._task.batches(self._round, self._client)


class Rounds(TrainingProcessCallback):
    def __init__(self, turns: Turns) -> None:
        self._turns = turns

    def after_central_iteration(self, *_: object, **__: object) -> tuple[bool, Metrics]:
        self._turns.between_rounds()
        return False, Metrics()


task = Task(sys.argv[1])
turns = Turns(task.rounds, "pfl")
clients = len(task.sizes_N)
users = [GivenBatches(task, client) for client in range(clients)]
data = FederatedDataset(lambda user: users[user].next_round(), get_user_sampler("minimize_reuse", range(clients)))
network = task.network()
model = PyTorchModel(
    Network(network),
    local_optimizer_create=torch.optim.SGD,
    central_optimizer=torch.optim.SGD(network.parameters(), 1.0),
)
algorithm = NNAlgorithmParams(
    central_num_iterations=task.rounds,
    evaluation_frequency=task.rounds + 1,  # only before the first round, which is not timed
    train_cohort_size=clients,
    val_cohort_size=0,
)
train = NNTrainHyperParams(local_batch_size=task.batch_size, local_num_epochs=1, local_learning_rate=task.lr)
asyncio.set_event_loop(asyncio.new_event_loop())
turns.between_rounds()
FederatedAveraging().run(
    algorithm,
    SimulatedBackend(training_data=data, val_data=data, postprocessors=[WeightByDatapoints()]),
    model,
    train,
    NNEvalHyperParams(local_batch_size=None),
    callbacks=[Rounds(turns)],
    send_metrics_to_platform=False,
)
save_weights(network, sys.argv[2])
