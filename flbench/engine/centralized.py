"""Centralized training, counted in rounds as federated training is.

Shape suffixes: E local steps, B batch, M samples, C channels, H, W pixels, Y classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from flbench import metrics
from flbench.data.batches import Rows, consecutive_rows
from flbench.engine.clients import ChunkJob, ClientInit, ClientTask, Train
from flbench.engine.cuda_graph import GraphedFunction
from flbench.engine.device_data import DeviceData, on_device, side_by_side
from flbench.engine.executors import StackedExecutor
from flbench.engine.run import TrainingSetup
from flbench.engine.trainer import RoundReport, Trainer
from flbench.engine.tree_sums import watched
from flbench.methods.base import Method, Tree, tmap


@dataclass(frozen=True)
class _Round:
    """A round as a pure function; all the data belong to a single client."""

    images: DeviceData
    task: ClientTask
    counts_Y: Tensor
    local_steps: int

    def __call__(self, train: Train, trees: Sequence[Tree]) -> list[Tree]:
        """Train with ``train``, from batches, parameters, buffers, velocity and watch.

        Returns:
            The loss, and the next values of the last four trees.
        """
        drawn, x, buffers, velocity, watch = trees
        params, stats, moving = ({n: leaf.unsqueeze(0) for n, leaf in tree.items()} for tree in (x, buffers, velocity))
        init = ClientInit(
            params,
            stats,
            moving,
            state={},
            counts_Y=self.counts_Y.unsqueeze(0),
            steps=self.local_steps,
            relative_size=next(iter(x.values())).new_ones(1),
        )
        ((_, result),) = train(1, lambda _: ChunkJob(self.task, init, self.images.stack(drawn)))
        trained = (result.params, result.buffers, result.velocity)
        after = [{name: leaf[0] for name, leaf in tree.items()} for tree in trained]
        return [{"loss": result.loss[0]}, *after, watched(watch, list(after[0].values()), result.loss[0])]


class CentralizedTrainer(Trainer):
    """One model on all the data, ``steps`` steps of SGD a round; momentum continues from round to round."""

    def __init__(self, setup: TrainingSetup, *, train_rows: Rows, val_rows: Rows, steps: int, head: str) -> None:
        super().__init__(setup)
        self._setup, self._steps, self._train_rows, self._val_rows = setup, steps, train_rows, val_rows
        counts_Y = torch.bincount(setup.images.train_labels_M, minlength=setup.images.classes)
        task = ClientTask(Method(), setup.sgd, x={}, server={}, autocast=setup.autocast, head=head)
        self._round = _Round(setup.images, task, counts_Y, steps)
        self._graphed: GraphedFunction | None = None
        self.velocity: Tree = {}

    def _train_round(self, keep_clients: bool, wait: bool) -> RoundReport:
        if self.record is not None and self._setup.sgd.momentum and not self.velocity:
            self.velocity = tmap(torch.zeros_like, self.x)  # a recorded function keeps the shapes of its trees
        rows = consecutive_rows(
            self._train_rows,
            seed=self.seed,
            first_step=self.round * self._steps,
            steps=self._steps,
            batch_size=self._setup.batch_size,
        )
        batches = self.images.draw(rows, seed=self.seed, client=0, round=self.round, masked=self._setup.masked)
        drawn = on_device(side_by_side([batches]), self.device)
        trees = [drawn, self.x, self.buffers, self.velocity, self._open_watch()]
        if self.record is None:
            outputs = self._round(self.executor.train, trees)
        else:
            if self._graphed is None:
                if not isinstance(self.executor, StackedExecutor):
                    raise ValueError("rounds are recorded with the stacked executor only")
                function = partial(self._round, partial(self.executor.train, repeat=False))
                what = "a round of centralized training"
                self._graphed = GraphedFunction(function, self.record, what, feedback=4, tune=self.executor.tune)
            outputs = self._graphed(self._steps, trees)
        losses, self.x, self.buffers, self.velocity, self._watch = outputs
        loss = losses["loss"].item() if wait or self.record is None else losses["loss"]
        if not keep_clients:
            return RoundReport(loss)
        params = {name: leaf.unsqueeze(0) for name, leaf in self.x.items()}
        return RoundReport(loss, params, torch.ones(1, dtype=torch.float64, device=self.device))

    def _measure(self) -> metrics.Record:
        model = [(self.x, self.buffers)]
        record = metrics.whole_set(
            self.executor.predict(model, self.images.test_MCHW, self.images.prepare)[0], self.images.test_labels_M
        )
        if len(self._val_rows):
            rows = torch.from_numpy(self._val_rows).to(self.device)
            logits = self.executor.predict(model, self.images.train_MCHW[rows], self.images.prepare)[0]
            record["val_acc"] = metrics.whole_set(logits, self.images.train_labels_M[rows])["acc"]
        return record

    def _trees(self) -> dict[str, Tree]:
        return {"x": self.x, "buffers": self.buffers, "velocity": self.velocity}
