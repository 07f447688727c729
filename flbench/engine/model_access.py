"""What a probe may compute with a trainer's networks, without changing the trainer.

Where parameters stay on the clients (FedBN, local training) there is no global model, and client 0's is used.

Shape suffixes: K models, M samples, C channels, H, W pixels, D features, Y classes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from flbench.data.batches import Rows
from flbench.engine.federated import FederatedTrainer
from flbench.engine.run import RoundInputs
from flbench.engine.server_round import RoundStart, RunGroup
from flbench.engine.trainer import Trainer
from flbench.methods.base import Tree
from flbench.models.network import pure_forward
from flbench.streams import stream


@dataclass(frozen=True)
class ModelAccess:
    """Access to the models and data of a trainer after a round.

    Attributes:
        trainer: the trainer.
        network: a network of the same structure; its own tensors are not used.
        lr: learning rate of the first round.
    """

    trainer: Trainer
    network: nn.Module
    lr: float

    @property
    def current_lr(self) -> float:
        """Learning rate of the last round, or of the first before any."""
        if isinstance(self.trainer, FederatedTrainer):
            return self.trainer.run.setup.sgd.lr_in(max(self.trainer.round - 1, 0))
        return self.lr

    @property
    def clients(self) -> int:
        """Number of clients; 0 where training is not federated."""
        return len(self.trainer.run.rows) if isinstance(self.trainer, FederatedTrainer) else 0

    def model(self, client: int = 0) -> tuple[Tree, Tree]:
        """Return the parameters and buffers of a client's model, as they are evaluated."""
        if isinstance(self.trainer, FederatedTrainer):
            return self.trainer.model(client)
        return self.trainer.x, self.trainer.buffers

    def mixed_test_samples(self, count: int) -> tuple[Tensor, Tensor]:
        """Return test images as the network's input (M, C, H, W) and labels, equally many of each class.

        They are the same in every round, and fewer than ``count`` if a class has too few.
        """
        images = self.trainer.images
        labels = images.test_labels_M.cpu().numpy()
        order = stream(self.trainer.seed, "probe test samples").permutation(len(labels))
        each = max(1, count // images.classes)
        rows = np.concatenate([order[labels[order] == label][:each] for label in range(images.classes)])
        index = torch.from_numpy(rows).to(images.test_labels_M.device)
        return images.prepare(images.test_MCHW[index]), images.test_labels_M[index]

    def train_samples(self, count: int, client: int | None = None) -> Tensor:
        """Return training images as the network's input, without augmentation: a client's own, or all clients'."""
        images = self.trainer.images
        rows: Rows = np.arange(len(images.train_labels_M))
        if isinstance(self.trainer, FederatedTrainer):
            own = self.trainer.run.rows
            rows = np.concatenate(own) if client is None else own[client]
        purpose = "probe samples" if client is None else "probe samples of a client"
        drawn = stream(self.trainer.seed, purpose, client or 0).permutation(rows)[:count]
        return images.prepare(images.train_MCHW[torch.from_numpy(drawn).to(images.train_MCHW.device)])

    def training_set(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield all training images of clients as the network's input, without augmentation, and labels, in batches."""
        images = self.trainer.images
        rows: Rows = np.arange(len(images.train_labels_M))
        if isinstance(self.trainer, FederatedTrainer):
            rows = np.concatenate(self.trainer.run.rows)
        for index in torch.from_numpy(rows).to(images.train_MCHW.device).split(size):
            yield images.prepare(images.train_MCHW[index]), images.train_labels_M[index]

    def forward(self, params: Tree, buffers: Tree, images: Tensor, *, training: bool) -> tuple[Tensor, Tensor]:
        """Return features (M, D) and logits (M, Y); in training mode with the batch statistics of these samples."""
        self.network.train(training)
        copies = {name: leaf.clone() for name, leaf in buffers.items()}  # batch normalization updates them in place
        return pure_forward(self.network)(params, copies, images)

    def after_local_steps(self, client: int, steps: int) -> tuple[Tree, Tree]:
        """Return a client's parameters and buffers after local steps from here, with the next round's batches."""
        trainer = self.trainer
        if not isinstance(trainer, FederatedTrainer):
            raise TypeError("only a federated trainer has clients")
        run, state = replace(trainer.run, steps=[steps] * self.clients, draw_steps=None), trainer.run_state()
        inputs = RoundInputs.draw([run], [trainer.round], trainer.device, [np.array([client])])
        ((_, result),) = trainer.executor.train(1, RoundStart(RunGroup((run,), (1,)), [state], inputs).job)
        params, buffers = ({name: leaf[0] for name, leaf in tree.items()} for tree in (result.params, result.buffers))
        return params, {**trainer.buffers, **buffers}

    def class_accuracies(self, model: tuple[Tree, Tree], images: Tensor, labels_M: Tensor) -> list[float | None]:
        """Return a model's accuracy on each class's samples; None for a class without samples."""
        with torch.no_grad():
            correct_M = self.forward(*model, images, training=False)[1].argmax(1) == labels_M
        shares = []
        for label in range(self.trainer.images.classes):
            own = correct_M[labels_M == label]
            shares.append(float(own.double().mean()) if len(own) else None)
        return shares
