"""The server's side: rounds of federated training, and centralized training in the same dress.

A trainer is a value (its state) and two verbs, ``step`` and ``evaluate``. All random choices are functions of (seed,
client, round), so the state is all there is to save.

Shape suffixes: N clients, S participants, E local steps, B batch, M samples, C channels, H, W pixels, Y classes.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flbench import metrics
from flbench.data.batches import Rows, consecutive_rows
from flbench.engine.draws import Draws, Weights
from flbench.engine.executors import Client, Executor, StackedExecutor
from flbench.engine.graphs import Record
from flbench.engine.images import Batch, Images
from flbench.engine.local import Finish, Sgd, Start, Task
from flbench.engine.whole import Member, State, WholeRounds
from flbench.methods.base import Method, Tree


@dataclass(frozen=True)
class RoundReport:
    """What a round leaves for those who watch: its training loss, and the models that the participants sent.

    ``client_params`` (leading axis S) and ``weights_S`` are there only when they were asked for. The loss is a 0-d
    tensor where nobody has waited for the device yet.
    """

    loss: float | Tensor
    client_params: Tree | None = None
    weights_S: Tensor | None = None


class Trainer(ABC):
    """Federated or centralized training of one experiment.

    Attributes:
        round: rounds done.
        x: shared parameters. ``buffers``: shared buffers.
        local: parameters and buffers that stay on the clients, every leaf with a leading axis N.
    """

    def __init__(self, *, images: Images, executor: Executor, x: Tree, buffers: Tree, seed: int) -> None:
        self.images, self.executor, self.seed = images, executor, seed
        self.round = 0
        self.x, self.buffers = x, buffers
        self.local: Tree = {}
        self.bytes_up = self.bytes_down = 0
        self.seconds = 0.0
        self._loss: float | Tensor = float("nan")  # of the last round

    def step(self, *, keep_clients: bool = False, wait: bool = True) -> RoundReport:
        """One round.

        Args:
            keep_clients: whether the report holds what the participants sent.
            wait: until the device has computed it; else its time counts as that of the next round that is waited for.
        """
        began = time.perf_counter()
        report = self._train_round(keep_clients, wait)
        self.count_round(report, time.perf_counter() - began)
        return report

    def count_round(self, report: RoundReport, seconds: float) -> None:
        """Note that a round is over."""
        self.round += 1
        self._loss = report.loss
        self.seconds += seconds

    @property
    def lags(self) -> bool:
        """Whether a round may be still on its way when ``step`` returns without waiting."""
        return False

    @property
    def convolutions(self) -> Mapping[str, str]:
        """How each convolution of a stack is computed, where that was chosen by measuring."""
        return self.executor.convolutions if isinstance(self.executor, StackedExecutor) else {}

    def is_finite(self) -> bool:
        """Whether the last round's loss and all parameters, the clients' own among them, are finite numbers."""
        leaves = [*self.x.values(), *self.local.values()]
        totals = torch.stack([leaf.sum() for leaf in leaves])
        return bool(torch.isfinite(totals).all()) and math.isfinite(self._loss)

    def diverged_in(self) -> int | None:
        """The first round whose loss or parameters were not finite numbers; None if there was none."""
        return None if self.is_finite() else self.round

    def evaluate(self) -> metrics.Record:
        """The metrics after the last round; ``train_loss`` is that round's mean over clients and local steps."""
        record = {"round": self.round, **self._measure(), "train_loss": float(self._loss)}
        return {**record, "bytes_up": self.bytes_up, "bytes_down": self.bytes_down, "seconds": round(self.seconds, 4)}

    def state(self) -> dict[str, Any]:
        """Everything that the next round depends on: tensors, numbers, dicts and lists only."""
        counters = {"round": self.round, "bytes_up": self.bytes_up, "bytes_down": self.bytes_down}
        return {**counters, "seconds": self.seconds, "loss": float(self._loss), "trees": self._trees()}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from what ``state`` returned."""
        self.round, self.seconds, self._loss = state["round"], state["seconds"], state["loss"]
        self.bytes_up, self.bytes_down = state["bytes_up"], state["bytes_down"]
        for name, tree in self._trees().items():
            saved = state["trees"][name]
            if name != "velocity" and {k: v.shape for k, v in saved.items()} != {k: v.shape for k, v in tree.items()}:
                raise ValueError(f"the checkpoint's {name} has other tensors than this experiment's")
            setattr(self, name, {key: leaf.to(self.images.train_MCHW.device) for key, leaf in saved.items()})

    @abstractmethod
    def _train_round(self, keep_clients: bool, wait: bool) -> RoundReport: ...

    @abstractmethod
    def _measure(self) -> metrics.Record: ...

    @abstractmethod
    def _trees(self) -> dict[str, Tree]:
        """The trees of the state, by attribute name."""

    def _logits(self, models: Sequence[tuple[Tree, Tree]], images: Tensor) -> Tensor:
        return self.executor.predict(models, images, self.images.prepare)


@dataclass(frozen=True)
class Clients:
    """Who has which rows: of the training set to train on, of the training set held out, of the test set."""

    train: tuple[Rows, ...]
    val: tuple[Rows, ...]
    test: tuple[Rows, ...]


@dataclass(frozen=True)
class OpenRound:
    """A federated round between the draw of its cohort and the server's step."""

    cohort: Rows
    clients: Sequence[Client]
    sums: _Sums
    weights: Weights
    keep_on_clients: Callable[[Finish, Tensor], None]
    kept: list[Tree] | None

    def add(self, positions: range, end: Finish) -> None:
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
        record: how a whole round is recorded as one CUDA graph; None: rounds are computed chunk by chunk, as on a CPU.
    """

    def __init__(
        self,
        *,
        method: Method,
        sgd: Sgd,
        autocast: torch.dtype | None,
        local_names: frozenset[str],
        clients: Clients,
        steps: Sequence[int],
        batch_size: int,
        participation: float,
        images: Images,
        executor: Executor,
        params: Tree,
        buffers: Tree,
        seed: int,
        record: Record | None = None,
    ) -> None:
        shared = {name: leaf for name, leaf in params.items() if name not in local_names}
        shared_buffers = {name: leaf for name, leaf in buffers.items() if name not in local_names}
        super().__init__(images=images, executor=executor, x=shared, buffers=shared_buffers, seed=seed)
        self._method, self._sgd, self._autocast = method, sgd, autocast
        self._clients, self._steps = clients, steps
        count = len(clients.train)
        self.draws = Draws(
            method=method,
            momentum=sgd.momentum,
            rows=clients.train,
            steps=steps,
            batch_size=batch_size,
            cohort_size=max(1, round(count * participation)),
            images=images,
            seed=seed,
        )
        self._param_names, self._buffer_names = list(params), list(buffers)
        self.server = method.init_server(shared)
        self.states = _repeat(method.init_client(shared), count)
        self.local = _repeat({n: leaf for n, leaf in {**params, **buffers}.items() if n in local_names}, count)
        self._counts_NY = self._count_labels()
        self._test_rows = [self._to_device(rows) for rows in clients.test]
        self._bytes_model = _bytes(self.x) + _bytes(self.buffers)
        self._bytes_down = self._bytes_model + (_bytes(self.server) if method.broadcasts_state else 0)
        self.record = record
        self._whole: WholeRounds | None = None
        self._watch: Tree = {}
        self._watched_from = 0

    @property
    def lags(self) -> bool:
        """Whether whole rounds are launched and not waited for."""
        return self.record is not None

    def cohort(self) -> Rows:
        """The clients of the coming round, in ascending order."""
        return self.draws.cohort(self.round)

    def _train_round(self, keep_clients: bool, wait: bool) -> RoundReport:
        if self.record is not None:
            return train_whole([self], [keep_clients], wait=wait)[0]
        round = self.begin_round(keep_clients)
        for chunk in self.executor.train(round.clients):
            round.add(chunk.positions, chunk.finish)
        return self.end_round(round)

    def begin_round(self, keep_clients: bool = False) -> OpenRound:
        """Draw the cohort; its clients can then be trained, alone or together with those of other runs."""
        cohort = self.cohort()
        broadcast = self.server if self._method.broadcasts_state else {}
        task = Task(self._method, self._sgd, self.x, broadcast, self._autocast)
        clients = [
            Client(task, partial(self._start, int(k)), partial(self.draws.batch, int(k), self.round), self.images)
            for k in cohort
        ]
        return OpenRound(
            cohort=cohort,
            clients=clients,
            sums=_Sums(self.x, self.buffers),
            weights=self.draws.weights(cohort),
            keep_on_clients=self._keep_on_clients,
            kept=[] if keep_clients else None,
        )

    def end_round(self, round: OpenRound) -> RoundReport:
        """Let the server step, once all clients of the round are added."""
        sums, participants = round.sums, len(round.cohort)
        participation = participants / len(self._clients.train)
        self.x, self.server = self._method.server_step(self.x, sums.delta, sums.message, self.server, participation)
        self.buffers = sums.buffers
        self._count_bytes(_bytes(sums.message))
        if round.kept is None:
            return RoundReport(sums.loss)
        joined = {name: torch.cat([params[name] for params in round.kept]) for name in self.x}
        return RoundReport(sums.loss, joined, torch.tensor(round.weights.share, dtype=torch.float64))

    def _count_bytes(self, message: int) -> None:
        """Note what a round sends to and from its participants, the message of each in bytes."""
        self.bytes_down += self.draws.cohort_size * self._bytes_down
        self.bytes_up += self.draws.cohort_size * (self._bytes_model + message)

    def member(self) -> Member:
        """What does not change from round to round."""
        names = self._param_names, self._buffer_names
        return Member(self.draws, self._sgd, self._autocast, self._counts_NY, *names)

    def open_state(self) -> State:
        """What the coming round changes."""
        if not self._watch:
            like = self._counts_NY
            self._watch = {"finite": like.new_ones((), dtype=torch.bool), "rounds": like.new_zeros(())}
            self._watched_from = self.round
        return State(self.x, self.buffers, self.server, self.states, self.local, self._watch)

    def close_state(self, state: State, message_bytes: int) -> None:
        """Take over what a whole round has made of it."""
        self.x, self.buffers, self.server = state.x, state.buffers, state.server
        self.states, self.local, self._watch = state.states, state.local, state.watch
        self._count_bytes(message_bytes)

    def diverged_in(self) -> int | None:
        """The first round whose loss or parameters were not finite numbers; None if there was none."""
        if not self._watch:
            return super().diverged_in()
        finite = int(self._watch["rounds"])
        return None if finite == self.round - self._watched_from else self._watched_from + finite + 1

    def load(self, state: dict[str, Any]) -> None:
        """Go on from what ``state`` returned."""
        super().load(state)
        self._watch = {}

    def whole(self, members: Sequence[Member]) -> WholeRounds:
        """Whole rounds of these runs, made anew only when they are others than the last time."""
        if self.record is None or not isinstance(self.executor, StackedExecutor):
            raise ValueError("whole rounds are trained by the stacked executor, and recorded")
        if self._whole is None or [own.draws for own in self._whole.members] != [own.draws for own in members]:
            self._whole = None  # its memory is free for the next
            self._whole = WholeRounds(members, self.executor, self.record)
        return self._whole

    def _keep_on_clients(self, end: Finish, members: Tensor) -> None:
        """Store what stays on the clients of a chunk until they train again."""
        for name, leaf in self.states.items():
            leaf[members] = end.state[name].clone()  # a method may hand back the very state that it was given
        for name, leaf in self.local.items():
            leaf[members] = end.params[name] if name in end.params else end.buffers[name]

    def _start(self, client: int) -> Start:
        own = {name: leaf[client] for name, leaf in self.local.items()}
        return Start(
            params={name: own[name] if name in own else self.x[name] for name in self._param_names},
            buffers={name: own[name] if name in own else self.buffers[name] for name in self._buffer_names},
            velocity={},
            state={name: leaf[client] for name, leaf in self.states.items()},
            counts_Y=self._counts_NY[client],
            steps=self._steps[client],
        )

    def _measure(self) -> metrics.Record:
        labels = self.images.test_labels_M
        starts = [self._start(client) for client in range(len(self._clients.train) if self.local else 1)]
        models = [(start.params, start.buffers) for start in starts]
        logits = self._logits(models, self.images.test_MCHW)
        if self.local:
            record = metrics.personal_models(logits, labels, self._test_rows)
        else:
            record = metrics.shared_model(logits[0], labels, self._test_rows)
        if any(len(rows) for rows in self._clients.val):
            record["val_acc"] = self._held_out_accuracy(models)
        return record

    def _held_out_accuracy(self, models: Sequence[tuple[Tree, Tree]]) -> float | None:
        """Mean over clients of the accuracy of the client's model on its held-out training rows."""
        rows = [self._to_device(rows) for rows in self._clients.val]
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
            torch.bincount(labels[torch.from_numpy(rows)], minlength=self.images.classes)
            for rows in self._clients.train
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
            share = trainer.draws.weights(trainer.cohort()).share
            reports.append(RoundReport(loss, outcome.client_params, torch.tensor(share, dtype=torch.float64)))
        else:
            reports.append(RoundReport(loss))
    return reports


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
        images: Images,
        executor: Executor,
        params: Tree,
        buffers: Tree,
        seed: int,
    ) -> None:
        super().__init__(images=images, executor=executor, x=params, buffers=buffers, seed=seed)
        self._sgd, self._autocast, self._steps, self._batch_size = sgd, autocast, steps, batch_size
        self._train_rows, self._val_rows = train_rows, val_rows
        self.velocity: Tree = {}

    def _train_round(self, keep_clients: bool, wait: bool) -> RoundReport:
        counts = torch.bincount(self.images.train_labels_M, minlength=self.images.classes)
        start = Start(self.x, self.buffers, self.velocity, state={}, counts_Y=counts, steps=self._steps)
        task = Task(Method(), self._sgd, self.x, server={}, autocast=self._autocast)
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

    def _batch(self) -> Batch:
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


class _Sums:
    """The weighted sums of a round, client by client in ascending order, so that no executor or pool changes a bit."""

    def __init__(self, x: Tree, buffers: Tree) -> None:
        self._x = x
        self.delta = {name: torch.zeros_like(leaf) for name, leaf in x.items()}
        self.buffers = {name: torch.zeros_like(leaf) for name, leaf in buffers.items()}
        self.message: Tree = {}
        self.loss = 0.0

    def add(
        self, end: Finish, share: Sequence[float], delta_weights: Sequence[float], message_weights: Sequence[float]
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
