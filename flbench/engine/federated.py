"""Federated training of a run, and of several runs together.

Shape suffixes: N clients, S participants, M samples, C channels, H, W pixels, Y classes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from flbench import metrics
from flbench.data.batches import Rows
from flbench.data.cohorts.base import Population, Sampler
from flbench.data.shards import Shards
from flbench.engine.clients import JobAt, Results
from flbench.engine.cuda_round import RecordedRounds
from flbench.engine.device_data import OWN_BATCH, own_rows
from flbench.engine.executors import Executor, StackedExecutor
from flbench.engine.final_statistics import final_statistics
from flbench.engine.finetuning import finetuned
from flbench.engine.hook_checks import CHECKED, OF_STEPS, checked
from flbench.engine.local_steps import DrawSteps
from flbench.engine.randomness import without_draws
from flbench.engine.run import UNIFORM, RoundInputs, Run, TrainingSetup
from flbench.engine.server_data import HeldByServer
from flbench.engine.server_round import TWIN, RoundOutcome, RunGroup, RunState, server_round
from flbench.engine.trainer import RoundReport, Trainer
from flbench.engine.tree_sums import tree_bytes
from flbench.errors import UserError
from flbench.messages import hook_at
from flbench.methods.base import Method, Outputs, Tree, overrides, tmap
from flbench.models.frozen import frozen_names
from flbench.models.layers import at_least_float
from flbench.models.network import buffer_updates, buffers_that_are, head_weight
from flbench.models.observers import Observation
from flbench.sums import sum_in_order

_log = logging.getLogger(__name__)


class FederatedTrainer(Trainer):
    """Rounds of cohort, local training, aggregation and server step.

    Attributes:
        run: what stays the same in all rounds.
        group: the runs with which it was trained in the last round, if it is the first of them.
        server: the method's server state.
        states: the method's client states, every leaf with a leading axis N.
        velocity: what the clients' optimizers keep over rounds, likewise; empty unless they keep it.
    """

    def __init__(
        self,
        setup: TrainingSetup,
        *,
        method: Method,
        network: nn.Module,
        shards: Shards,
        steps: Sequence[int],
        participation: float,
        sampler: Sampler = UNIFORM,
        draw_steps: DrawSteps | None = None,
        finetune: int = 0,
    ) -> None:
        super().__init__(setup)
        if sampler.varies and self.record is not None:
            _log.info("cohort %s: its size varies, so that rounds are not recorded as CUDA graphs", sampler.label())
            self.record = None
        self.drawing = f"method {method.label()}, or a layer of the network,"
        method, count = checked(method), len(shards.train)
        labels = setup.images.train_labels_M.cpu().numpy()
        counts = np.stack([np.bincount(labels[rows], minlength=setup.images.classes) for rows in shards.train])
        clients, head = Population(counts, participation, setup.seed), head_weight(network)
        frozen = frozen_names(network)
        if method.trains and setup.executor.name == "stacked":
            raise UserError(f"{method.label()} trains each client by itself; use the loop executor")
        if method.trains_head and not head:
            raise UserError(f"{method.label()} needs the network's head: name its last layer 'head'")
        if method.trains_head and head in frozen:
            raise UserError(f"{method.label()} trains the rows of the head, and the model's {head} is frozen")
        constants, receive_shares = buffers_that_are("constants", network), buffers_that_are("shares", network)
        twin = _twin_of(method)
        extra = method.extra(setup.params, head)
        observation, unshared = Observation.of(network), buffers_that_are("unshared", network)
        seen_rows = shards.train
        if not method.statistics and observation is not None and not observation.all:
            seen_rows = tuple(rows[:OWN_BATCH] for rows in seen_rows)
        self.run = Run(
            setup,
            method,
            shards.train,
            steps,
            clients,
            torch.from_numpy(counts).to(self.device),
            counts,
            head,
            frozen,
            constants,
            receive_shares,
            buffer_updates(network),
            self._server_data(method, network, shards, setup.autocast),
            own_rows(seen_rows).to(self.device) if method.statistics or observation is not None else None,
            sampler,
            draw_steps,
            twin,
            tuple(extra),
            unshared,
            observation,
        )
        kept_by_method = method.local_names(network) - frozen  # equal on all clients
        local_names = kept_by_method | buffers_that_are("local", network)
        self.x = {name: leaf for name, leaf in setup.params.items() if name not in local_names | unshared}
        self.buffers = {name: leaf for name, leaf in setup.buffers.items() if name not in local_names}
        self.server = method.init_server(self.x or setup.params)
        first_buffers = {name: leaf for name, leaf in setup.buffers.items() if name not in kept_by_method | frozen}
        self.states = _repeat(method.init_client(self.x, first_buffers), count)
        first = {**setup.params, **setup.buffers}
        own = {**{name: leaf for name, leaf in first.items() if name in local_names | unshared}, **extra}
        if twin is not None:
            own |= {TWIN + name: leaf for name, leaf in first.items() if name not in constants}
        self.local = _repeat(own, count)
        self.velocity = _repeat(setup.sgd.first_state({**setup.params, **extra}), count)
        hooks = ("twin", "predict", "personal")
        #: Whether clients have models of their own in evaluations.
        self.is_personal = bool(local_names) or any(overrides(type(method), hook) for hook in hooks)
        self._shards, self._finetune, self._network = shards, finetune, network
        self._evaluated: tuple[Tree, Tree] = {}, {}  # shared buffers, and what is evaluated in their place
        self._test_rows = [self._to_device(rows) for rows in shards.test]
        moving = {name: leaf for name, leaf in self.buffers.items() if name not in constants}
        self._bytes_up = tree_bytes(moving) + method.upload_bytes(self.x)
        received = method.broadcast(self.x, self.server)[1]
        self._bytes_down = tree_bytes(moving) + tree_bytes(self.x) + tree_bytes(received)
        self.group = RunGroup((self.run,))
        self._recorded: RecordedRounds | None = None

    def _server_data(self, method: Method, network: nn.Module, shards: Shards, autocast: Any) -> HeldByServer | None:
        if len(shards.server):
            return HeldByServer(self.images, self._to_device(shards.server), network, autocast)
        if method.needs_server_data:
            raise UserError(f"{method.label()} needs data of the server: server_fraction above 0")
        return None

    def may_order_stacks(self, allowed: bool) -> None:
        """Say whether the order of the clients of a stack changes no bit (``stack_bits.any_place``)."""
        self.run = replace(self.run, any_place=allowed)
        self.group = RunGroup((self.run,))

    def model(self, client: int) -> tuple[Tree, Tree]:
        """Return the parameters and buffers that are evaluated: the server's, with those that stay on the client."""
        return self._model(client, self._evaluated_buffers())

    def _model(self, client: int, shared: Tree) -> tuple[Tree, Tree]:
        own, method, setup = self._of_client(self.local, client), self.run.method, self.run.setup
        own |= {name.removeprefix(TWIN): leaf for name, leaf in own.items() if name.startswith(TWIN)}
        x = method.evaluated(tmap(Tensor.contiguous, self.x), self.server)
        if overrides(type(method), "personal"):
            x = method.personal(x, self._of_client(self.states, client))
        params, buffers = {**x, **own}, {**shared, **own}
        return {n: params[n] for n in setup.params}, {n: buffers[n] for n in setup.buffers}

    def _evaluated_buffers(self) -> Tree:
        """The shared buffers, where layers observe with the statistics of the last weights."""
        if self.run.observation is None:
            return self.buffers
        if self._evaluated[0] is not self.buffers:  # new ones since the last evaluation
            found = final_statistics(
                self.run,
                self.run.observation,
                self._network,
                self.buffers,
                partial(self._model, shared=self.buffers),
                max(self.round - 1, 0),
            )
            self._evaluated = self.buffers, found
        return self._evaluated[1]

    @staticmethod
    def _of_client(tree: Tree, client: int) -> Tree:
        return {name: leaf[client] for name, leaf in tree.items()}

    def _logits(self, models: Mapping[int, tuple[Tree, Tree]], images: Tensor) -> Tensor:
        """The logits (models, images, Y) of clients' models, as the method predicts with them."""
        method = self.run.method
        if not overrides(type(method), "predict"):
            return self.executor.predict([*models.values()], images, self.images.prepare)
        server = method.broadcast(self.x, self.server)[1]
        each = []
        for client, model in models.items():
            w = {**model[0], **{name: self.local[name][client] for name in self.run.extra}}
            state = self._of_client(self.states, client)
            each.append(partial(_predicted, method, w=w, client=state, server=server))
        return self.executor.predict([*models.values()], images, self.images.prepare, each)

    def run_state(self) -> RunState:
        """Return what the coming round changes."""
        return RunState(self.x, self.buffers, self.server, self.states, self.local, self.velocity, self._open_watch())

    def _train_round(self, keep_clients: bool, wait: bool) -> RoundReport:
        return _train_round([self], [keep_clients], wait=wait)[0]

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
        state = outcome.state
        self.x, self.buffers, self.server = state.x, state.buffers, state.server
        self.states, self.local, self.velocity, self._watch = state.states, state.local, state.velocity, state.watch
        participants = self.run.participants(self.round)
        self.bytes_down += participants * self._bytes_down
        self.bytes_up += participants * (self._bytes_up + outcome.message_bytes)
        if outcome.client_params is None:
            return RoundReport(loss)
        cohort = self.run.cohort(self.round)
        share, *_ = self.run.weights(cohort, self.run.steps_of(cohort, self.round))
        return RoundReport(loss, outcome.client_params, torch.from_numpy(share).to(self.device))

    def _measure(self) -> metrics.Record:
        labels = self.images.test_labels_M
        models = {client: self.model(client) for client in range(len(self._shards.train) if self.is_personal else 1)}
        logits = self._logits(models, self.images.test_MCHW)
        if self.is_personal:
            record = metrics.personal_models(logits, labels, self._test_rows)
        else:
            record = metrics.shared_model(logits[0], labels, self._test_rows)
        accuracies = []  # of each client's model on its held-out training rows
        for client, rows in enumerate(self._shards.val):
            if len(rows):
                own, model = self._to_device(rows), models[client if self.is_personal else 0]
                logits = self._logits({client: model}, self.images.train_MCHW[own])[0]
                accuracies.append(float((logits.argmax(-1) == self.images.train_labels_M[own]).cpu().double().mean()))
        if accuracies:
            record["val_acc"] = sum_in_order(accuracies) / len(accuracies)
        return {**record, **self._measure_finetuned()} if self._finetune else record

    def _measure_finetuned(self) -> metrics.Record:
        """The accuracy of each client's fine-tuned model on its own test shard."""
        own: list[float | None] = []
        tuned = finetuned(self.run, self.model, self._finetune, self.round)
        for client, (model, rows) in enumerate(zip(tuned, self._test_rows, strict=True)):
            logits = self._logits({client: model}, self.images.test_MCHW[rows])[0] if len(rows) else None
            own.append(None if logits is None else metrics.accuracy(logits, self.images.test_labels_M[rows]))
        return metrics.finetuned_models(own)

    def _trees(self) -> dict[str, Tree]:
        kept = ("velocity",) if self.velocity else ()  # not in checkpoints of other runs, older ones among them
        trees = {name: getattr(self, name) for name in ("x", "buffers", "server", "states", "local", *kept)}
        return trees | {"x": tmap(Tensor.contiguous, self.x)}

    def _to_device(self, rows: Rows) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(rows)).to(self.device)


def _twin_of(method: Method) -> Method | None:
    """The method that trains the clients' second sets of weights, if there is one."""
    twin = cast(Method | None, method.twin())  # as its check has found
    if twin is None:
        return None
    # It has no state, no message and no broadcast of its own.
    if wrong := [hook for hook in CHECKED - OF_STEPS if overrides(type(twin), hook)]:
        raise UserError(
            f"{hook_at(type(method), 'twin', 'method')} returned {twin.label()}, whose hook {min(wrong)} a second set "
            "of weights cannot have: it trains with hooks of local steps alone, such as penalty"
        )
    return checked(twin)


def _predicted(
    method: Method, features_BD: Tensor, logits_BY: Tensor, *, w: Tree, client: Tree, server: Tree
) -> Tensor:
    outputs = Outputs(at_least_float(features_BD), at_least_float(logits_BY))
    return method.predict(outputs, w, client, server)


def step_together(
    trainers: Sequence[FederatedTrainer], keep_clients: Sequence[bool], *, wait: bool = True
) -> list[RoundReport]:
    """Return the reports of one round of several runs, trained as one computation with all their clients in one stack.

    Args:
        trainers: of runs with one method, norm, model, data set and shape of batches.
        keep_clients: for each run, whether its report holds what the participants sent.
        wait: as in ``Trainer.step``.

    Raises:
        ValueError: layers combine the clients of a step, and would combine those of all runs.
        UserError: a hook failed. No trainer's state has changed.
    """
    if len(trainers) > 1 and trainers[0].run.shares:
        raise ValueError("runs whose layers combine the clients of a step are trained one by one")
    began = time.perf_counter()
    with without_draws(trainers[0].drawing):
        reports = _train_round(trainers, keep_clients, wait=wait)
    seconds = (time.perf_counter() - began) / len(trainers)
    for trainer, report in zip(trainers, reports, strict=True):
        trainer.count_round(report, seconds)
    return reports


def _train_round(trainers: Sequence[FederatedTrainer], keep: Sequence[bool], *, wait: bool) -> list[RoundReport]:
    """One round of each run, without counting it."""
    first = trainers[0]
    runs = tuple(trainer.run for trainer in trainers)
    if first.group.runs != runs:  # else recorded rounds of the group can be launched again
        first.group = RunGroup(runs)
    group = first.group
    rounds, states = [trainer.round for trainer in trainers], [trainer.run_state() for trainer in trainers]
    if first.record is None:
        inputs = RoundInputs.draw(group.runs, rounds, first.device)
        train = first.executor.train if len(runs) == 1 else partial(_trained_at_once, first.executor)
        outcomes = server_round(group.in_round(inputs), states, inputs, train, keep)
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


def _trained_at_once(executor: Executor, clients: int, job: JobAt) -> Results:
    """Return the results of all chunks, after the last has been trained.

    The round overwrites the clients' states chunk by chunk. If a hook fails in a later chunk, each run of the group
    still has the states with which it can be trained alone.
    """
    return iter(list(executor.train(clients, job)))


def _repeat(tree: Tree, count: int) -> Tree:
    return {name: leaf.unsqueeze(0).repeat(count, *[1] * leaf.dim()) for name, leaf in tree.items()}
