"""Train the same rounds of digits by flbench, plain PyTorch, pfl-research, fluke and Flower, in turns on one core.

    nice -n -20 python -m benchmarks.speedups [--json]

The script prints the table, and writes it into docs/engine.md and the measurement into benchmarks/speedups.json. This
takes about two minutes. uv makes an environment for each framework; the first time it downloads up to 5 GB.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.common import WORKLOADS, data_of, ending_in_messages, experiment_of, parser_of
from benchmarks.frameworks import FRAMEWORKS, Framework, Peer, PeerFailed, write_task
from benchmarks.loader import loaders
from benchmarks.tables import ROOT, peers_table, replaced, write_pages
from flbench.bench.loop import PlainLoop, Source, from_memory
from flbench.bench.timing import Note, Variant, alone, seeds_of, take_turns, together, trainer_of
from flbench.cli.bench import header, load, machine, progress
from flbench.config import Federated
from flbench.data.arrays import Data
from flbench.engine.federated import FederatedTrainer
from flbench.engine.setup import make_network, runs_worth_fusing
from flbench.errors import UserError

#: What is written from the measurement, by the page that has it.
PAGES = {"docs/engine.md": peers_table}

#: The contestant with which the others are compared.
REFERENCE = "plain PyTorch, images in memory"


@dataclass(frozen=True)
class Task:
    """A workload of which every contestant trains one round to warm up and then ``turns`` times ``rounds`` rounds.

    Attributes:
        workload: its name in ``WORKLOADS``; ``what``: its name in the pages.
    """

    workload: str
    what: str
    turns: int
    rounds: int
    lr: float = 0.01

    @property
    def experiment(self) -> Federated:
        """Its experiment."""
        return experiment_of(f"{WORKLOADS[self.workload]} lr={self.lr}")

    @property
    def all_rounds(self) -> int:
        """Rounds that every contestant trains."""
        return 1 + self.turns * self.rounds


#: A hundred rounds, at a rate that trains in as many. The other frameworks' scripts know multi-layer perceptrons only.
TASK = Task("digits", "digits, MLP 64-128-10", turns=11, rounds=9, lr=0.1)


@dataclass(frozen=True)
class Contestant:
    """One way to train a task.

    Attributes:
        variant: its name in the table, and its work.
        weights: returns each run's weights after the last round, in the order of the network's parameters.
        versions: of Python and of the packages, if it is another framework.
    """

    variant: Variant
    weights: Callable[[], Sequence[Sequence[Tensor]]]
    versions: Mapping[str, str] = field(default_factory=dict)


def measure(task: Task, note: Note) -> dict[str, Any]:
    """Train a task by all contestants in turns.

    Returns:
        The measurement as plain JSON. Each of its ``rows`` has ``seconds`` of a round of one run, a number a turn, and
        ``accuracies`` on the test set, a number a run; those of other frameworks have also ``versions``, and
        ``difference``, the largest between their weights and flbench's. The row of a framework that cannot be started
        has the reason instead, ``missing``.
    """
    experiment = task.experiment
    data = data_of(experiment, None)
    torch.manual_seed(0)  # the plain loops' batches
    with ExitStack() as opened:
        contestants, missing = [*_flbench(task, data), *_plain(task, data)], []
        note("starting other frameworks", 0, 1)
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory()))
        write_task(folder, trainer_of(experiment, data, "cpu", executor="stacked"), data, rounds=task.all_rounds)
        for framework in FRAMEWORKS:
            try:
                peer = opened.enter_context(closing(Peer(framework, folder)))
            except PeerFailed as reason:
                missing.append({"name": framework.name, "missing": str(reason)})
            else:
                contestants.append(_peer(framework, peer, task.rounds))
        seconds = take_turns([one.variant for one in contestants], repeats=task.turns, note=note)
        rows: list[dict[str, Any]] = [
            {"name": name, "seconds": [round(s, 7) for s in own]} for name, own in seconds.items()
        ]
        _add_accuracies(rows, contestants, make_network(experiment, data, "cpu"), data)
    known = {"workload": task.workload, "what": task.what, "data": data.fingerprint}
    known |= {name: getattr(experiment, name) for name in ("clients", "local_steps", "batch_size", "lr")}
    turns = {"rounds": task.rounds, "all_rounds": task.all_rounds, "reference": REFERENCE}
    return {**known, **turns, "rows": rows + missing}


def _flbench(task: Task, data: Data) -> Iterator[Contestant]:
    """One run alone, and if clients are stacked as many runs as fill a stack."""
    experiment = task.experiment
    one = trainer_of(experiment, data, "cpu")
    yield Contestant(alone("flbench", one, task.rounds), lambda: [_weights(one)])
    runs = runs_worth_fusing(experiment, data, device="cpu", executor="auto")
    if runs > 1:
        stack = [trainer_of(run, data, "cpu") for run in seeds_of(experiment, runs)]
        name = f"flbench, {runs} runs as one stack, each"
        yield Contestant(together(name, stack, task.rounds), lambda: list(map(_weights, stack)))


def _weights(trainer: FederatedTrainer) -> Sequence[Tensor]:
    return list(trainer.model(0)[0].values())


def _plain(task: Task, data: Data) -> Iterator[Contestant]:
    """Loops without the engine."""

    def contestant(name: str, source: Source) -> Contestant:
        loop = PlainLoop(task.experiment, data, source=source)
        return Contestant(Variant(name, loop.round, rounds=task.rounds), lambda: [list(loop.network.parameters())])

    yield contestant(REFERENCE, from_memory)
    yield contestant("plain PyTorch, DataLoader", loaders)


def _peer(framework: Framework, peer: Peer, rounds: int) -> Contestant:
    name = f"{framework.name} {peer.versions[framework.package]}"
    return Contestant(Variant(name, peer.round, rounds=rounds), lambda: [peer.weights()], peer.versions)


@torch.no_grad()
def _add_accuracies(
    rows: Sequence[dict[str, Any]], contestants: Sequence[Contestant], network: nn.Module, data: Data
) -> None:
    """Add what shows that all contestants did the same work; the first contestant is flbench."""
    weights = [one.weights() for one in contestants]
    ours = weights[0][0]
    for row, one, own in zip(rows, contestants, weights, strict=True):
        row["accuracies"] = [round(accuracy(network, run, data), 6) for run in own]
        if one.versions:
            difference = max(float((leaf - our).abs().max()) for leaf, our in zip(own[0], ours, strict=True))
            row |= {"versions": dict(one.versions), "difference": difference}


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


def _stay_on_one_core() -> None:
    """Keep this process and those that it starts on one core, where the system can, and torch on one thread."""
    torch.set_num_threads(1)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def main() -> None:
    parser = parser_of(__doc__ or "")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    arguments = parser.parse_args()
    with ending_in_messages():
        for page in PAGES:
            replaced(ROOT / page, "speedups", "")  # before minutes of measuring
        facts = machine("cpu")
        print(*header(facts), sep="\n", file=sys.stderr)
        with progress() as note:
            task = measure(TASK, note)
        kept = ("date", "cpu", "flbench", "git_commit", "git_dirty", "python", "torch", "load_before")
        described = {**{name: facts[name] for name in kept}, "load_after": load()}
        measured = {"schema": 2, "machine": described, "task": task}
        print(json.dumps(measured, indent=1) if arguments.json else peers_table(measured))
        lacking = [f"{row['name']} ({row['missing']})" for row in task["rows"] if "missing" in row]
        if lacking:
            raise UserError(f"{', '.join(PAGES)}: unchanged, because the measurement lacks {', '.join(lacking)}")
        write_pages("speedups", measured, PAGES, ROOT)
    print(f"wrote {', '.join(PAGES)} and benchmarks/speedups.json", file=sys.stderr)


if __name__ == "__main__":
    _stay_on_one_core()
    main()
