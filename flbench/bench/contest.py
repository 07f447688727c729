"""Train the same rounds by flbench, by plain PyTorch and by other frameworks, in turns on one core."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from flbench.bench.measure import Note, Variant, take_turns
from flbench.bench.peers import FRAMEWORKS, Framework, Peer, PeerFailed, write_task
from flbench.bench.plain_pytorch import PlainLoop, Training
from flbench.bench.workloads import WORKLOADS, data_for, name_of
from flbench.choices import UsedExecutor
from flbench.config import Federated
from flbench.data.arrays import Data
from flbench.data.shards import shards_of
from flbench.engine.federated import FederatedTrainer, step_together
from flbench.engine.setup import executor_for, make_network, make_trainer, runs_worth_fusing

#: The contestant with which the others are compared.
REFERENCE = "plain PyTorch, images in memory"


@dataclass(frozen=True)
class Task:
    """A workload of which every contestant trains one round to warm up and then ``turns`` times ``rounds`` rounds.

    Attributes:
        workload: its name in ``WORKLOADS``.
        peers: whether other frameworks train it too, and accuracies are compared to show that all did the same work.
            Their scripts know multi-layer perceptrons only.
        lr: the learning rate.
    """

    workload: str
    turns: int
    rounds: int
    peers: bool = False
    lr: float = 0.01

    @property
    def all_rounds(self) -> int:
        """Rounds that every contestant trains."""
        return 1 + self.turns * self.rounds


#: The tables of docs/engine.md, in about four minutes: a hundred rounds of digits, at a rate that trains in as many.
TASKS = (
    Task("digits", turns=11, rounds=9, peers=True, lr=0.1),
    Task("lenet", turns=7, rounds=2),
    Task("cifar10", turns=5, rounds=1),
)


@dataclass(frozen=True)
class Contestant:
    """One way to train a task.

    Attributes:
        name: what the table calls it.
        work: trains one round of each of its runs.
        weights: returns each run's weights after the last round, in the order of the network's parameters.
        runs: runs that are trained together.
        versions: of Python and of the packages, if it is another framework.
    """

    name: str
    work: Callable[[], object]
    weights: Callable[[], Sequence[Sequence[Tensor]]]
    runs: int = 1
    versions: Mapping[str, str] = field(default_factory=dict)


def measure(task: Task, data_root: Path | None, note: Note) -> dict[str, Any]:
    """Train a task by all contestants in turns.

    Returns:
        The measurement as plain JSON. Each of its ``rows`` has ``seconds`` of a round of one run, a number a turn. If
        there are other frameworks, it has ``accuracies`` on the test set, a number a run; their own rows have also
        ``versions``, and ``difference``, the largest between their weights and flbench's. The row of a framework that
        cannot be started has the reason instead, ``missing``.
    """
    workload = WORKLOADS[task.workload]
    experiment_of = partial(workload.experiment, lr=task.lr)
    experiment = experiment_of()
    data = data_for(experiment, data_root)
    torch.manual_seed(0)  # the plain loops' batches
    with ExitStack() as opened:
        contestants = [*_flbench(experiment_of, data), *_plain(experiment, data)]
        missing: list[dict[str, Any]] = []
        if task.peers:
            note(f"{task.workload}: starting other frameworks", 0, 1)
            folder = Path(opened.enter_context(tempfile.TemporaryDirectory()))
            write_task(folder, _trainer(experiment, data, "stacked"), data, rounds=task.all_rounds)
            peers, missing = _peers(folder, opened)
            contestants += peers
        variants = [Variant(one.name, one.work, "fp32", task.rounds, one.runs) for one in contestants]
        seconds = take_turns(
            variants,
            repeats=task.turns,
            note=lambda what, done, total: note(f"{task.workload}: {what}", done, total),
        )
        rows: list[dict[str, Any]] = [
            {"name": one.name, "seconds": [round(s / one.runs, 7) for s in seconds[one.name]]} for one in contestants
        ]
        if task.peers:
            _add_accuracies(rows, contestants, make_network(experiment, data, "cpu"), data)
    known = {"workload": task.workload, "what": workload.what, "data": name_of(data)}
    known |= {name: getattr(experiment, name) for name in ("clients", "local_steps", "batch_size", "lr")}
    turns = {"rounds": task.rounds, "all_rounds": task.all_rounds, "reference": REFERENCE}
    return {**known, **turns, "rows": rows + missing}


def _flbench(experiment_of: Callable[..., Federated], data: Data) -> Iterator[Contestant]:
    """One run alone, and if clients are stacked as many runs as fill a stack."""
    first = experiment_of()
    executor = executor_for(first, data, device="cpu", wanted="auto")
    alone = _trainer(first, data, executor)
    yield Contestant("flbench", partial(alone.step, wait=False), lambda: [_weights(alone)])
    runs = runs_worth_fusing(first, data, device="cpu", executor=executor)
    if runs > 1:
        together = [_trainer(experiment_of(seed=seed), data, executor) for seed in range(runs)]
        work = partial(step_together, together, [False] * runs, wait=False)
        yield Contestant(f"flbench, {runs} runs as one stack, each", work, lambda: list(map(_weights, together)), runs)


def _trainer(experiment: Federated, data: Data, executor: UsedExecutor) -> FederatedTrainer:
    return cast(FederatedTrainer, make_trainer(experiment, data, device="cpu", executor=executor, pool=1)[0])


def _weights(trainer: FederatedTrainer) -> Sequence[Tensor]:
    return list(trainer.model(0)[0].values())


def _plain(experiment: Federated, data: Data) -> Iterator[Contestant]:
    """Loops without the engine."""
    rows, training = shards_of(experiment, data).train, Training.of(experiment, "cpu")

    def loop(name: str, source: Literal["memory", "loader"]) -> Contestant:
        network = make_network(experiment, data, "cpu")
        work = PlainLoop(network, data, rows, training, source).round
        return Contestant(name, work, lambda: [list(network.parameters())])

    yield loop(REFERENCE, "memory")
    yield loop("plain PyTorch, DataLoader", "loader")


def _peers(folder: Path, opened: ExitStack) -> tuple[list[Contestant], list[dict[str, str]]]:
    """Start the other frameworks, which ``opened`` ends; return them, and rows for those that cannot be started."""
    started: list[Contestant] = []
    missing: list[dict[str, str]] = []
    for framework in FRAMEWORKS:
        try:
            started.append(_peer(framework, opened.enter_context(closing(Peer(framework, folder)))))
        except PeerFailed as reason:
            missing.append({"name": framework.name, "missing": str(reason)})
    return started, missing


def _peer(framework: Framework, peer: Peer) -> Contestant:
    name = f"{framework.name} {peer.versions[framework.package]}"
    return Contestant(name, peer.round, lambda: [peer.weights()], versions=peer.versions)


def _add_accuracies(
    rows: Sequence[dict[str, Any]], contestants: Sequence[Contestant], network: nn.Module, data: Data
) -> None:
    """Add what shows that all contestants did the same work; the first contestant is flbench."""
    weights = [one.weights() for one in contestants]
    for row, one, own in zip(rows, contestants, weights, strict=True):
        row["accuracies"] = [round(accuracy(network, run, data), 6) for run in own]
        if one.versions:
            row |= {"versions": dict(one.versions), "difference": _difference(own[0], weights[0][0])}


@torch.no_grad()
def _difference(weights: Sequence[Tensor], ours: Sequence[Tensor]) -> float:
    return max(float((own - our).abs().max()) for own, our in zip(weights, ours, strict=True))


@torch.no_grad()
def accuracy(network: nn.Module, weights: Sequence[Tensor], data: Data) -> float:
    """Return the accuracy of a network with these weights on the test set."""
    for parameter, weight in zip(network.parameters(), weights, strict=True):
        parameter.copy_(weight)
    network.eval()
    images, labels = (torch.from_numpy(half.copy()).split(500) for half in (data.test.images, data.test.labels))
    hits = [
        int((network(some.float() / data.white)[1].argmax(-1) == own).sum())
        for some, own in zip(images, labels, strict=True)
    ]
    return sum(hits) / len(data.test.labels)
