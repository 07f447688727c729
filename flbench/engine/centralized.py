"""Centralized training in the dress of federated rounds.

Shape suffixes: E local steps, B batch, M samples, C channels, H, W pixels, Y classes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from flbench import metrics
from flbench.data.batches import Rows, consecutive_rows
from flbench.engine.cuda_graph import GraphedFunction, Recorder
from flbench.engine.cuda_round import batches_of
from flbench.engine.device_data import ClientBatches, DeviceData
from flbench.engine.executors import Client, Executor, StackedExecutor
from flbench.engine.local import ClientInit, ClientResult, ClientTask, Sgd
from flbench.engine.sampling import on_device, stack_batches
from flbench.engine.trainer import RoundReport, Trainer, watched
from flbench.methods.base import Method, Tree, tmap


class CentralizedTrainer(Trainer):
    """One model on all the data, ``steps`` steps of SGD a round; momentum goes on from round to round."""

    def __init__(
        self,
        *,
        sgd: Sgd,
        autocast: torch.dtype | None,
        train_rows: Rows,
        val_rows: Rows,
        steps: int,
        batch_size: int,
        images: DeviceData,
        executor: Executor,
        params: Tree,
        buffers: Tree,
        seed: int,
        record: Recorder | None = None,
    ) -> None:
        super().__init__(images=images, executor=executor, x=params, buffers=buffers, seed=seed, record=record)
        self._sgd, self._autocast, self._steps, self._batch_size = sgd, autocast, steps, batch_size
        self._train_rows, self._val_rows = train_rows, val_rows
        self._counts_Y = torch.bincount(images.train_labels_M, minlength=images.classes)
        self._whole: GraphedFunction | None = None
        self.velocity: Tree = {}

    def _train_round(self, keep_clients: bool, wait: bool) -> RoundReport:
        if self.record is not None:
            return self._train_whole(keep_clients, wait)
        start = ClientInit(self.x, self.buffers, self.velocity, state={}, counts_Y=self._counts_Y, steps=self._steps)
        task = ClientTask(Method(), self._sgd, self.x, server={}, autocast=self._autocast)
        (chunk,) = self.executor.train([Client(task, lambda: start, self._batch, self.images)])
        first = {
            name: {key: leaf[0] for key, leaf in getattr(chunk.finish, name).items()}
            for name in ("params", "buffers", "velocity")
        }
        self.x, self.buffers, self.velocity = first["params"], first["buffers"], first["velocity"]
        loss = chunk.finish.loss[0].item()
        if not keep_clients:
            return RoundReport(loss)
        return RoundReport(loss, chunk.finish.params, torch.ones(1, dtype=torch.float64))

    def _train_whole(self, keep_clients: bool, wait: bool) -> RoundReport:
        """The same as one graph."""
        if self._whole is None:
            self._whole = self._recorded()
        if self._sgd.momentum and not self.velocity:
            self.velocity = tmap(torch.zeros_like, self.x)
        batch = on_device(stack_batches([self._batch()]), self.images.train_MCHW.device)
        trees = [batch, self.x, self.buffers, self.velocity, self._open_watch()]
        losses, self.x, self.buffers, self.velocity, self._watch = self._whole(self._steps, trees)
        loss = losses["loss"].item() if wait else losses["loss"]
        if not keep_clients:
            return RoundReport(loss)
        params = {name: leaf.unsqueeze(0) for name, leaf in self.x.items()}
        return RoundReport(loss, params, torch.ones(1, dtype=torch.float64))

    def _recorded(self) -> GraphedFunction:
        if self.record is None or not isinstance(self.executor, StackedExecutor):
            raise ValueError("whole rounds are trained by the stacked executor, and recorded")
        self.executor.tune(1, (self._batch_size, *self.images.train_MCHW.shape[1:]))
        train = partial(self.executor.train_stack, ClientTask(Method(), self._sgd, {}, {}, self._autocast))
        function = partial(_round, self.images, train, self._counts_Y, self._steps)
        return GraphedFunction(function, self.record, "a round of centralized training", feedback=4)

    def _batch(self) -> ClientBatches:
        first = self.round * self._steps
        rows = consecutive_rows(
            self._train_rows, seed=self.seed, first_step=first, steps=self._steps, batch_size=self._batch_size
        )
        return self.images.draw(rows, seed=self.seed, client=0, round=self.round)

    def _measure(self) -> metrics.Record:
        model = [(self.x, self.buffers)]
        record = metrics.whole_set(self._logits(model, self.images.test_MCHW)[0], self.images.test_labels_M)
        if len(self._val_rows):
            rows = torch.from_numpy(self._val_rows).to(self.images.train_MCHW.device)
            held_out = metrics.whole_set(
                self._logits(model, self.images.train_MCHW[rows])[0], self.images.train_labels_M[rows]
            )
            record["val_acc"] = held_out["acc"]
        return record

    def _trees(self) -> dict[str, Tree]:
        return {"x": self.x, "buffers": self.buffers, "velocity": self.velocity}


def _round(
    images: DeviceData, train: Callable[..., ClientResult], counts_Y: Tensor, steps: int, trees: Sequence[Tree]
) -> list[Tree]:
    """Steps of SGD from batches, parameters, buffers, velocity and watch to the loss and the next values of these."""
    given, x, buffers, velocity, watch = trees
    params, stats, moving = (
        {name: leaf.unsqueeze(0) for name, leaf in tree.items()} for tree in (x, buffers, velocity)
    )
    start = ClientInit(params, stats, moving, state={}, counts_Y=counts_Y.unsqueeze(0), steps=steps)
    end = train(start, batches_of(images, given))
    first = [{name: leaf[0] for name, leaf in tree.items()} for tree in (end.params, end.buffers, end.velocity)]
    return [{"loss": end.loss[0]}, *first, watched(watch, list(first[0].values()), end.loss[0])]
