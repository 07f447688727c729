"""Federated rounds: the server's side.

Shape suffixes: N clients, S participants, E local steps, B batch, M samples, C channels, H, W pixels, Y classes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from flbench import metrics
from flbench.config import cohort_size
from flbench.data.batches import Rows
from flbench.data.shards import Shards
from flbench.engine.cuda_graph import Recorder
from flbench.engine.cuda_round import Member, State, WholeRounds
from flbench.engine.device_data import DeviceData
from flbench.engine.executors import Client, Executor, StackedExecutor
from flbench.engine.hook_checks import checked
from flbench.engine.local import ClientInit, ClientResult, ClientTask, Sgd
from flbench.engine.sampling import ClientWeights, Sampler
from flbench.engine.trainer import RoundReport, Trainer
from flbench.methods.base import Method, Tree


@dataclass(frozen=True)
class OpenRound:
    """A federated round between the draw of its cohort and the server's step."""

    cohort: Rows
    clients: Sequence[Client]
    sums: _Sums
    weights: ClientWeights
    keep_on_clients: Callable[[ClientResult, Tensor], None]
    kept: list[Tree] | None

    def add(self, positions: range, end: ClientResult) -> None:
        """Take in finished clients, by their positions in the cohort; they must come in order."""
        at = slice(positions.start, positions.stop)
        self.sums.add(end, self.weights.share[at], self.weights.deltas[at], self.weights.messages[at])
        self.keep_on_clients(end, torch.from_numpy(self.cohort[at]))
        if self.kept is not None:
            self.kept.append(end.params)


class FederatedTrainer(Trainer):
    """Rounds of cohort, local training, aggregation and server step.

    Attributes:
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
        self._method, self._sgd, self._autocast = method, sgd, autocast
        self._shards, self._steps = shards, steps
        count = len(shards.train)
        self.sampler = Sampler(
            method=method,
            momentum=sgd.momentum,
            rows=shards.train,
            steps=steps,
            batch_size=batch_size,
            cohort_size=cohort_size(count, participation),
            images=images,
            seed=seed,
        )
        self._param_names, self._buffer_names = list(params), list(buffers)
        self.server = method.init_server(shared)
        self.states = _repeat(method.init_client(shared), count)
        self.local = _repeat({n: leaf for n, leaf in {**params, **buffers}.items() if n in local_names}, count)
        self._counts_NY = self._count_labels()
        self._test_rows = [self._to_device(rows) for rows in shards.test]
        self._bytes_model = _bytes(self.x) + _bytes(self.buffers)
        self._bytes_down = self._bytes_model + (_bytes(self.server) if method.broadcasts_state else 0)
        self._whole: WholeRounds | None = None

    def cohort(self) -> Rows:
        """The clients of the coming round, in ascending order."""
        return self.sampler.cohort(self.round)

    def _train_round(self, keep_clients: bool, wait: bool) -> RoundReport:
        if self.record is not None:
            return train_whole([self], [keep_clients], wait=wait)[0]
        round = self.begin_round(keep_clients)
        for chunk in self.executor.train(round.clients):
            round.add(chunk.positions, chunk.finish)
        return self.end_round(round)

    def begin_round(self, keep_clients: bool = False) -> OpenRound:
        """Draw the cohort; its clients can then be trained, alone or together with those of other runs."""
        cohort, task = self.cohort(), self.task()
        clients = [
            Client(task, partial(self.start, int(k)), partial(self.sampler.batch, int(k), self.round), self.images)
            for k in cohort
        ]
        return OpenRound(
            cohort=cohort,
            clients=clients,
            sums=_Sums(self.x, self.buffers),
            weights=self.sampler.weights(cohort),
            keep_on_clients=self._keep_on_clients,
            kept=[] if keep_clients else None,
        )

    def end_round(self, round: OpenRound) -> RoundReport:
        """Let the server step, once all clients of the round are added."""
        sums, participants = round.sums, len(round.cohort)
        participation = participants / len(self._shards.train)
        self.x, self.server = self._method.server_step(self.x, sums.delta, sums.message, self.server, participation)
        self.buffers = sums.buffers
        self._count_bytes(_bytes(sums.message))
        if round.kept is None:
            return RoundReport(sums.loss)
        joined = {name: torch.cat([params[name] for params in round.kept]) for name in self.x}
        return RoundReport(sums.loss, joined, torch.tensor(round.weights.share, dtype=torch.float64))

    def _count_bytes(self, message: int) -> None:
        """Note what a round sends to and from its participants, the message of each in bytes."""
        self.bytes_down += self.sampler.cohort_size * self._bytes_down
        self.bytes_up += self.sampler.cohort_size * (self._bytes_model + message)

    def member(self) -> Member:
        """What does not change from round to round."""
        names = self._param_names, self._buffer_names
        return Member(self.sampler, self._sgd, self._autocast, self._counts_NY, *names)

    def open_state(self) -> State:
        """What the coming round changes."""
        return State(self.x, self.buffers, self.server, self.states, self.local, self._open_watch())

    def close_state(self, state: State, message_bytes: int) -> None:
        """Take over what a whole round has made of it."""
        self.x, self.buffers, self.server = state.x, state.buffers, state.server
        self.states, self.local, self._watch = state.states, state.local, state.watch
        self._count_bytes(message_bytes)

    def whole(self, members: Sequence[Member]) -> WholeRounds:
        """Whole rounds of these runs, made anew only when they are others than the last time."""
        if self.record is None or not isinstance(self.executor, StackedExecutor):
            raise ValueError("whole rounds are trained by the stacked executor, and recorded")
        if self._whole is None or [own.sampler for own in self._whole.members] != [own.sampler for own in members]:
            self._whole = None  # its memory is free for the next
            self._whole = WholeRounds(members, self.executor, self.record)
        return self._whole

    def _keep_on_clients(self, end: ClientResult, members: Tensor) -> None:
        """Store what stays on the clients of a chunk until they train again."""
        for name, leaf in self.states.items():
            leaf[members] = end.state[name].clone()  # a method may hand back the very state that it was given
        for name, leaf in self.local.items():
            leaf[members] = end.params[name] if name in end.params else end.buffers[name]

    def task(self) -> ClientTask:
        """What all clients share in the coming round."""
        broadcast = self.server if self._method.broadcasts_state else {}
        return ClientTask(self._method, self._sgd, self.x, broadcast, self._autocast)

    def start(self, client: int) -> ClientInit:
        """Where a client begins the coming round."""
        own = {name: leaf[client] for name, leaf in self.local.items()}
        return ClientInit(
            params={name: own[name] if name in own else self.x[name] for name in self._param_names},
            buffers={name: own[name] if name in own else self.buffers[name] for name in self._buffer_names},
            velocity={},
            state={name: leaf[client] for name, leaf in self.states.items()},
            counts_Y=self._counts_NY[client],
            steps=self._steps[client],
        )

    def _measure(self) -> metrics.Record:
        labels = self.images.test_labels_M
        starts = [self.start(client) for client in range(len(self._shards.train) if self.local else 1)]
        models = [(start.params, start.buffers) for start in starts]
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
        rows = [self._to_device(rows) for rows in self._shards.val]
        accuracies = []
        for client, own in enumerate(rows):
            if len(own):
                model = models[client] if self.local else models[0]
                logits = self._logits([model], self.images.train_MCHW[own])[0]
                accuracies.append(float((logits.argmax(-1) == self.images.train_labels_M[own]).double().mean()))
        return sum(accuracies) / len(accuracies) if accuracies else None

    def _trees(self) -> dict[str, Tree]:
        names = ("x", "buffers", "server", "states", "local")
        return {name: getattr(self, name) for name in names}

    def _count_labels(self) -> Tensor:
        labels = self.images.train_labels_M.cpu()
        counts = [
            torch.bincount(labels[torch.from_numpy(rows)], minlength=self.images.classes) for rows in self._shards.train
        ]
        return torch.stack(counts).to(self.images.train_MCHW.device)

    def _to_device(self, rows: Rows) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(rows)).to(self.images.train_MCHW.device)


def train_whole(trainers: Sequence[FederatedTrainer], keep_clients: Sequence[bool], *, wait: bool) -> list[RoundReport]:
    """One round of each run as one computation, without the counting; see ``fused.step_together``."""
    first = trainers[0]
    for trainer in trainers:
        trainer.executor = first.executor  # of equal networks: graphs are recorded once for all
    whole = first.whole([trainer.member() for trainer in trainers])
    rounds, states = [trainer.round for trainer in trainers], [trainer.open_state() for trainer in trainers]
    outcomes = whole.step(rounds, states, keep_clients=any(keep_clients))
    losses: list[Any] = [outcome.loss for outcome in outcomes]
    if wait:
        losses = torch.stack(losses).tolist()
    reports = []
    for trainer, outcome, loss, keep in zip(trainers, outcomes, losses, keep_clients, strict=True):
        trainer.close_state(outcome.state, outcome.message_bytes)
        if keep:
            share = trainer.sampler.weights(trainer.cohort()).share
            reports.append(RoundReport(loss, outcome.client_params, torch.tensor(share, dtype=torch.float64)))
        else:
            reports.append(RoundReport(loss))
    return reports


class _Sums:
    """The weighted sums of a round, client by client in ascending order, so that no executor or pool changes a bit."""

    def __init__(self, x: Tree, buffers: Tree) -> None:
        self._x = x
        self.delta = {name: torch.zeros_like(leaf) for name, leaf in x.items()}
        self.buffers = {name: torch.zeros_like(leaf) for name, leaf in buffers.items()}
        self.message: Tree = {}
        self.loss = 0.0

    def add(
        self,
        end: ClientResult,
        share: Sequence[float],
        delta_weights: Sequence[float],
        message_weights: Sequence[float],
    ) -> None:
        """Add a chunk: differences to x and messages by the method's weights, buffers and loss by shares of samples."""
        if end.message and not self.message:
            self.message = {name: torch.zeros_like(leaf[0]) for name, leaf in end.message.items()}
        moved = {name: end.params[name] - leaf for name, leaf in self._x.items()}
        weighed = (
            (self.delta, moved, delta_weights),
            (self.buffers, end.buffers, share),
            (self.message, end.message, message_weights),
        )
        for total, tree, weights in weighed:
            if total:
                sums, leaves = list(total.values()), [tree[name].unbind() for name in total]
                for weight, of_client in zip(weights, zip(*leaves, strict=True), strict=True):
                    torch._foreach_add_(sums, of_client, alpha=weight)
        for part, loss in zip(share, end.loss.tolist(), strict=True):
            self.loss += part * loss  # one by one: where chunks are cut must not move a bit


def _repeat(tree: Tree, count: int) -> Tree:
    return {name: leaf.unsqueeze(0).repeat(count, *[1] * leaf.dim()) for name, leaf in tree.items()}


def _bytes(tree: Tree) -> int:
    return sum(leaf.numel() * leaf.element_size() for leaf in tree.values())
