"""Federated training of a run, and of several runs together.

Shape suffixes: N clients, S participants, M samples, C channels, H, W pixels, Y classes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from flbench import metrics
from flbench.config import cohort_size
from flbench.data.batches import Rows
from flbench.data.shards import Shards
from flbench.engine.cuda_graph import Recorder
from flbench.engine.cuda_round import RecordedRounds
from flbench.engine.device_data import DeviceData
from flbench.engine.executors import Executor, StackedExecutor
from flbench.engine.hook_checks import checked
from flbench.engine.local import Sgd
from flbench.engine.sampling import RoundInputs, Sampler
from flbench.engine.server_round import RoundOutcome, Run, RunGroup, RunState, chunk_job, server_round, tree_bytes
from flbench.engine.trainer import RoundReport, Trainer
from flbench.methods.base import Method, Tree


class FederatedTrainer(Trainer):
    """Rounds of cohort, local training, aggregation and server step.

    Attributes:
        run: what stays the same in all rounds.
        server: the method's server state.
        states: the method's client states, every leaf with a leading axis N.
    """

    def __init__(
        self,
        *,
        method: Method,
        sgd: Sgd,
        autocast: torch.dtype | None,
        network: nn.Module,
        shards: Shards,
        steps: Sequence[int],
        batch_size: int,
        participation: float,
        images: DeviceData,
        executor: Executor,
        params: Tree,
        buffers: Tree,
        seed: int,
        record: Recorder | None = None,
    ) -> None:
        method = checked(method)
        local_names = method.local_names(network)
        shared = {name: leaf for name, leaf in params.items() if name not in local_names}
        shared_buffers = {name: leaf for name, leaf in buffers.items() if name not in local_names}
        super().__init__(images=images, executor=executor, x=shared, buffers=shared_buffers, seed=seed, record=record)
        count = len(shards.train)
        sampler = Sampler(
            method=method,
            momentum=sgd.momentum,
            rows=shards.train,
            steps=steps,
            batch_size=batch_size,
            cohort_size=cohort_size(count, participation),
            images=images,
            seed=seed,
        )
        self.run = Run(sampler, sgd, autocast, _count_labels(images, shards.train), list(params), list(buffers))
        self.server = method.init_server(shared)
        self.states = _repeat(method.init_client(shared), count)
        self.local = _repeat({n: leaf for n, leaf in {**params, **buffers}.items() if n in local_names}, count)
        self._shards = shards
        self._test_rows = [self._to_device(rows) for rows in shards.test]
        self._bytes_model = tree_bytes(self.x) + tree_bytes(self.buffers)
        self._bytes_down = self._bytes_model + (tree_bytes(self.server) if method.broadcasts_state else 0)
        self._group = RunGroup((self.run,))
        self._recorded: RecordedRounds | None = None

    @property
    def sampler(self) -> Sampler:
        """What draws its rounds."""
        return self.run.sampler

    def cohort(self) -> Rows:
        """The clients of the coming round, in ascending order."""
        return self.sampler.cohort(self.round)

    def model(self, client: int) -> tuple[Tree, Tree]:
        """Return the parameters and buffers with which a client would start the coming round."""
        own = {name: leaf[client] for name, leaf in self.local.items()}
        params, buffers = {**self.x, **own}, {**self.buffers, **own}
        return {n: params[n] for n in self.run.param_names}, {n: buffers[n] for n in self.run.buffer_names}

    def train_client(self, client: int, steps: int) -> tuple[Tree, Tree]:
        """Return parameters and buffers of a client after local steps from here, with the next round's batches.

        The trainer does not change.
        """
        sampler = replace(self.sampler, steps=[steps] * len(self.sampler.rows))
        group, cohort = RunGroup((replace(self.run, sampler=sampler),)), np.array([client])
        inputs = RoundInputs.of_clients([sampler], [self.round], [cohort], self.device)
        ((_, result),) = self.executor.train(1, lambda at: chunk_job(group, [self.run_state()], inputs, at))
        params, buffers = ({name: leaf[0] for name, leaf in tree.items()} for tree in (result.params, result.buffers))
        return params, buffers

    def run_state(self) -> RunState:
        """Return what the coming round changes."""
        return RunState(self.x, self.buffers, self.server, self.states, self.local, self._open_watch())

    def _train_round(self, keep_clients: bool, wait: bool) -> RoundReport:
        return _train_round([self], [keep_clients], wait=wait)[0]

    def group_of(self, runs: Sequence[Run]) -> RunGroup:
        """Return the group of these runs; a new one only if they differ from those of the last call."""
        if self._group.runs != tuple(runs):
            self._group = RunGroup(tuple(runs))
        return self._group

    def recorded_rounds(self, group: RunGroup) -> RecordedRounds:
        """Return the recorded rounds of a group; new ones only if it is another group than in the last call."""
        if self.record is None or not isinstance(self.executor, StackedExecutor):
            raise ValueError("rounds are recorded with the stacked executor only")
        if self._recorded is None or self._recorded.group is not group:
            self._recorded = None  # its memory is free for the next
            self._recorded = RecordedRounds(group, self.executor, self.record)
        return self._recorded

    def close_round(self, outcome: RoundOutcome, loss: float | Tensor) -> RoundReport:
        """Take over the outcome of a round."""
        state, cohort = outcome.state, self.cohort()
        self.x, self.buffers, self.server = state.x, state.buffers, state.server
        self.states, self.local, self._watch = state.states, state.local, state.watch
        self.bytes_down += len(cohort) * self._bytes_down
        self.bytes_up += len(cohort) * (self._bytes_model + outcome.message_bytes)
        if outcome.client_params is None:
            return RoundReport(loss)
        share = torch.tensor(self.sampler.weights(cohort).share, dtype=torch.float64)
        return RoundReport(loss, outcome.client_params, share)

    def _measure(self) -> metrics.Record:
        labels = self.images.test_labels_M
        models = [self.model(client) for client in range(len(self._shards.train) if self.local else 1)]
        logits = self._logits(models, self.images.test_MCHW)
        if self.local:
            record = metrics.personal_models(logits, labels, self._test_rows)
        else:
            record = metrics.shared_model(logits[0], labels, self._test_rows)
        if any(len(rows) for rows in self._shards.val):
            record["val_acc"] = self._held_out_accuracy(models)
        return record

    def _held_out_accuracy(self, models: Sequence[tuple[Tree, Tree]]) -> float | None:
        """Mean over clients of the accuracy of the client's model on its held-out training rows."""
        accuracies = []
        for client, rows in enumerate(self._shards.val):
            if len(rows):
                own = self._to_device(rows)
                logits = self._logits([models[client if self.local else 0]], self.images.train_MCHW[own])[0]
                accuracies.append(float((logits.argmax(-1) == self.images.train_labels_M[own]).double().mean()))
        return sum(accuracies) / len(accuracies) if accuracies else None

    def _trees(self) -> dict[str, Tree]:
        names = ("x", "buffers", "server", "states", "local")
        return {name: getattr(self, name) for name in names}

    def _to_device(self, rows: Rows) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(rows)).to(self.device)


def step_together(
    trainers: Sequence[FederatedTrainer], keep_clients: Sequence[bool], *, wait: bool = True
) -> list[RoundReport]:
    """Return the reports of one round of several runs, trained as one computation with all their clients in one stack.

    Args:
        trainers: of runs with one method, norm, model, data set and shape of batches.
        keep_clients: for each run, whether its report holds what the participants sent.
        wait: as in ``Trainer.step``.
    """
    began = time.perf_counter()
    reports = _train_round(trainers, keep_clients, wait=wait)
    seconds = (time.perf_counter() - began) / len(trainers)
    for trainer, report in zip(trainers, reports, strict=True):
        trainer.count_round(report, seconds)
    return reports


def _train_round(trainers: Sequence[FederatedTrainer], keep: Sequence[bool], *, wait: bool) -> list[RoundReport]:
    """One round of each run, without counting it."""
    first = trainers[0]
    group = first.group_of([trainer.run for trainer in trainers])
    rounds, states = [trainer.round for trainer in trainers], [trainer.run_state() for trainer in trainers]
    if first.record is None:
        inputs = RoundInputs.draw([trainer.sampler for trainer in trainers], rounds, first.device)
        outcomes = server_round(group, states, inputs, first.executor.train, keep)
    else:
        for trainer in trainers:
            trainer.executor = first.executor  # of equal networks: an evaluation is recorded once for all
        outcomes = first.recorded_rounds(group).step(rounds, states, keep)
    losses: list[Any] = [outcome.loss for outcome in outcomes]
    if wait or first.record is None:
        losses = torch.stack(losses).tolist()
    return [
        trainer.close_round(outcome, loss) for trainer, outcome, loss in zip(trainers, outcomes, losses, strict=True)
    ]


def _count_labels(images: DeviceData, rows: Sequence[Rows]) -> Tensor:
    """Training samples of each client by class: (N, Y)."""
    labels = images.train_labels_M.cpu()
    counts = [torch.bincount(labels[torch.from_numpy(own)], minlength=images.classes) for own in rows]
    return torch.stack(counts).to(images.train_MCHW.device)


def _repeat(tree: Tree, count: int) -> Tree:
    return {name: leaf.unsqueeze(0).repeat(count, *[1] * leaf.dim()) for name, leaf in tree.items()}
