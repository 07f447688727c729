"""What a federated run trains on, without training it: ``flbench.problem``.

For programs that share nothing with the engine but these rows and weights (tests of a method), and for plots.

Shape suffixes: M samples, C channels, H rows, W columns, E local steps, B batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from flbench.config import Federated, label
from flbench.data.arrays import Data
from flbench.data.datasets import load_named
from flbench.data.shards import shards_of
from flbench.engine.federated import FederatedTrainer
from flbench.engine.run import Run
from flbench.engine.setup import make_network, make_trainer, matmul_precision_restored
from flbench.messages import counted

Rows = NDArray[np.int64]


@dataclass(frozen=True, repr=False)
class Samples:
    """The training or the test set, as the network sees it.

    Attributes:
        inputs_MCHW: the network's input, without augmentation.
        labels_M: int64.
    """

    inputs_MCHW: Tensor
    labels_M: Tensor

    def __repr__(self) -> str:
        """Return one line: the number of samples, and the shape of one."""
        return f"<Samples: {len(self.labels_M):,} of {list(self.inputs_MCHW.shape[1:])}>"


@dataclass(frozen=True, repr=False)
class Problem:
    """What a federated experiment trains on; two calls return equal things, and a run of the experiment sees the same.

    Attributes:
        train, test: the samples of the data set.
        train_rows: the rows of ``train`` on which each client trains.
        val_rows: those that each client holds out (``val_fraction``).
        test_rows: each client's rows of ``test``.
        params, buffers: the initial weights by name, as clients have them; frozen parameters are among the buffers.
    """

    train: Samples
    test: Samples
    train_rows: tuple[Rows, ...]
    val_rows: tuple[Rows, ...]
    test_rows: tuple[Rows, ...]
    params: dict[str, Tensor]
    buffers: dict[str, Tensor]
    _run: Run
    _experiment: Federated
    _data: Data

    def __repr__(self) -> str:
        """Return one line: what is trained, on how many samples and clients, and the size of the network."""
        trained, parts = sum(map(Tensor.numel, self.params.values())), self._experiment
        return (
            f"<Problem: {label(parts.dataset)}, {label(parts.model)}, norm {label(parts.norm)}, "
            f"{label(parts.partition)}, {counted(len(self.train_rows), 'client')}, "
            f"{len(self.train.labels_M):,} training and {len(self.test.labels_M):,} test samples "
            f"of {list(self.train.inputs_MCHW.shape[1:])}, {trained:,} parameters>"
        )

    def network(self) -> nn.Module:
        """Return a new network with the initial weights; of inputs it returns features and logits."""
        return make_network(self._experiment, self._data, "cpu")

    def cohort(self, round: int) -> Rows:
        """Return the participants of a round (from 0), in ascending order."""
        return self._run.cohort(round)

    def steps(self, round: int) -> list[int]:
        """Return the numbers of local steps of a round's participants."""
        return self._run.steps_of(self.cohort(round), round)

    def batches(self, client: int, round: int) -> list[Rows]:
        """Return the rows of ``train`` in each local step of a client that takes part in a round.

        With ``augment``, the engine mirrors and crops these images, too.

        Raises:
            ValueError: the client does not take part in the round.
        """
        cohort = self.cohort(round).tolist()
        if client not in cohort:
            raise ValueError(f"client {client} does not take part in round {round}, but {cohort}")
        drawn = self._run.batch(client, round, self.steps(round)[cohort.index(client)])
        if drawn.sizes_E is None:
            return list(drawn.rows_EB)
        return [rows[:size] for rows, size in zip(drawn.rows_EB, drawn.sizes_E, strict=True)]


def problem_of(experiment: Federated, data_root: Path | None) -> Problem:
    """Return the problem of an experiment.

    Raises:
        UserError: the data are missing or damaged, or the experiment does not fit them.
    """
    dataset: Any = experiment.dataset
    data = load_named(dataset, data_root)
    with matmul_precision_restored():
        trainer, _ = make_trainer(experiment, data, device="cpu", executor="auto", pool=1)
    assert isinstance(trainer, FederatedTrainer)
    images, shards, setup = trainer.images, shards_of(experiment, data), trainer.run.setup
    return Problem(
        train=Samples(images.prepare(images.train_MCHW), images.train_labels_M.clone()),
        test=Samples(images.prepare(images.test_MCHW), images.test_labels_M.clone()),
        train_rows=shards.train,
        val_rows=shards.val,
        test_rows=shards.test,
        params={name: leaf.clone() for name, leaf in setup.params.items()},
        buffers={name: leaf.clone() for name, leaf in setup.buffers.items()},
        _run=trainer.run,
        _experiment=experiment,
        _data=data,
    )
