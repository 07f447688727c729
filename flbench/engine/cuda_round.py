"""A whole round as one CUDA graph: :func:`server_round` recorded, with what was drawn for the round as its input.

Nothing in the round waits for the device or depends on a number that is not known before the first round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from functools import partial

import torch

from flbench.engine.cuda_graph import GraphedFunction, Recorder
from flbench.engine.executors import StackedExecutor
from flbench.engine.run import Prefetcher, RoundInputs
from flbench.engine.server_round import RoundOutcome, RunGroup, RunState, server_round
from flbench.methods.base import Tree, tmap


class RoundFunction:
    """The round as a function of trees: what was drawn, then the trees of every run's state.

    It returns the losses and the trees of every run's next state, and changes none of its inputs.

    Attributes:
        message_bytes: size of one client's message in each run; known after the first call.
    """

    def __init__(self, group: RunGroup, executor: StackedExecutor) -> None:
        self._group, self._executor = group, executor
        self.message_bytes: list[int] = []

    def __call__(self, trees: Sequence[Tree]) -> list[Tree]:
        """One round."""
        drawn, *rest = trees
        outcomes = self.outcomes(drawn, states_of(rest), [False] * len(self._group.runs))
        losses = {"loss_R": torch.stack([outcome.loss for outcome in outcomes])}
        return [losses, *(tree for outcome in outcomes for tree in outcome.state.trees())]

    def outcomes(self, drawn: Tree, states: Sequence[RunState], keep_clients: Sequence[bool]) -> list[RoundOutcome]:
        """One round, computed operation by operation."""
        kept = ("states", "local", "velocity")
        copies = [replace(one, **{name: tmap(torch.clone, getattr(one, name)) for name in kept}) for one in states]
        train = partial(self._executor.train, repeat=False)
        outcomes = server_round(self._group, copies, RoundInputs.of_tree(drawn), train, keep_clients)
        self.message_bytes = [outcome.message_bytes for outcome in outcomes]
        return outcomes


class RecordedRounds:
    """Rounds of runs that are trained together, in as few stacks as fit into memory.

    Args:
        group: the runs.
        executor: trains the stacks; its chunk is halved where memory runs out.
        record: records a graph.
    """

    def __init__(self, group: RunGroup, executor: StackedExecutor, record: Recorder) -> None:
        self.group = group
        self._executor, self._record = executor, record
        self._clients = sum(group.sizes)  # exact: whole numbers
        self._prefetcher = Prefetcher(group.runs, group.runs[0].counts_NY.device)
        self._prepare()

    def _prepare(self) -> None:
        """Start with stacks as large as the executor allows."""
        self._function = RoundFunction(self.group, self._executor)
        runs = f", {len(self.group.runs)} runs" if len(self.group.runs) > 1 else ""
        feedback = len(self.group.runs) * len(fields(RunState))
        what = f"a round ({self._clients} clients{runs})"
        self._graphed = GraphedFunction(self._function, self._record, what, feedback, self._executor.tune)

    def step(
        self, rounds: Sequence[int], states: Sequence[RunState], keep_clients: Sequence[bool]
    ) -> list[RoundOutcome]:
        """Train the round that follows ``rounds`` completed rounds of each run."""
        drawn = self._prefetcher.next(tuple(rounds))
        while True:
            chunk = min(self._executor.chunk, self._clients)
            try:
                return self._attempt(drawn, states, keep_clients)
            except RuntimeError as error:
                self._executor.halve(chunk, error)
            # Outside of the handler, whose traceback still holds what was allocated.
            self._graphed.forget()
            if torch.cuda.is_initialized():
                torch.cuda.empty_cache()
            self._prepare()

    def _attempt(self, drawn: Tree, states: Sequence[RunState], keep_clients: Sequence[bool]) -> list[RoundOutcome]:
        if any(keep_clients):  # rare: not worth a graph of its own
            return self._function.outcomes(drawn, states, keep_clients)
        trees = [drawn, *(tree for state in states for tree in state.trees())]
        losses, *rest = self._graphed(drawn["rows_NEB"].shape[1], trees)
        return [
            RoundOutcome(state, loss, message_bytes, None)
            for state, loss, message_bytes in zip(
                states_of(rest), losses["loss_R"].unbind(), self._function.message_bytes, strict=True
            )
        ]


def states_of(trees: Sequence[Tree]) -> list[RunState]:
    """Return the states whose ``trees`` these are, one after another."""
    each = len(fields(RunState))
    return [RunState(*trees[first : first + each]) for first in range(0, len(trees), each)]
