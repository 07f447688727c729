"""Measure the parts of a round of MLPs in a stack: by compiled functions, and with a gradient by hand and by autograd.

    python -m benchmarks.round [digits|mlp ...] [FIELD=VALUE ...] [--runs 1] [--repeats 15] [--rounds 20]

All ways take turns of ``--rounds`` rounds. The numbers are medians of milliseconds a round and run; ``whole round`` is
measured in turns of their own, without the time that the parts' clocks take. ``products`` are the matrix products of
the same shapes alone, which no way can do without.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from unittest import mock

import torch

from benchmarks.common import Case, Parts, Row, measure_each, options, timed
from flbench.bench.timing import Spread, seeds_of, trainer_of
from flbench.choices import Executor
from flbench.engine import executors, federated, gradients, local
from flbench.engine.dense_stack import DenseStack
from flbench.engine.device_data import DeviceData
from flbench.engine.federated import FederatedTrainer, step_together
from flbench.engine.hooks import LiftedHooks
from flbench.engine.native_stack import NativeStack
from flbench.engine.run import RoundInputs, Run
from flbench.models.network import Network

#: The timed functions of each part. The rest of the local training is what its loop does around them.
PARTS: Parts = {
    "drawing": [(RoundInputs, "draw"), (Run, "batch")],
    "gathering": [(DeviceData, "stack"), (DeviceData, "prepare")],
    "forward": [(DenseStack, "forward"), (NativeStack, "forward"), (Network, "forward")],
    "loss": [
        (DenseStack, "cross_entropy"),
        (NativeStack, "cross_entropy"),
        (LiftedHooks, "loss_terms"),
        (gradients.ByHand, "losses"),
    ],
    "backward": [(DenseStack, "backward"), (NativeStack, "backward"), (torch.autograd, "grad")],
    "compiled steps": [(NativeStack, "train")],
    "update": [(local, "_descend"), *((LiftedHooks, hook) for hook in ("perturbed", "direction", "step", "finish"))],
    "rest of training": [(executors, "local_train")],
    "server": [(federated, "server_round")],
}


#: The executors of the ways to compute a round.
WAYS: dict[str, Executor] = {"native": "native", "by hand": "stacked", "by autograd": "stacked"}


def trainers(case: Case, runs: int, way: str) -> list[FederatedTrainer]:
    """Return runs of different seeds."""
    no_layers = mock.patch.object(executors, "dense_layers", lambda network: None)
    with no_layers if way == "by autograd" else nullcontext():
        return [trainer_of(run, case.data, "cpu", executor=WAYS[way]) for run in seeds_of(case.experiment, runs)]


def products(trainer: FederatedTrainer, runs: int) -> Callable[[], object]:
    """Return the matrix products of one round of an MLP, of all runs."""
    weights = [leaf.shape for leaf in trainer.x.values() if leaf.dim() == 2]
    clients, batch = trainer.run.cohort_size * runs, trainer.run.setup.batch_size
    factors = [
        [torch.rand(clients, *shape) for shape in ((batch, width), (out, width), (batch, out))]
        for out, width in weights
    ]

    def work() -> None:
        for _ in range(max(trainer.run.steps)):
            for number, (x, weight, of_y) in enumerate(factors):
                torch.bmm(x, weight.mT)
                torch.bmm(of_y.mT, x)
                if number:
                    torch.bmm(of_y, weight)

    return work


def milliseconds(work: Callable[[], object], rounds: int) -> float:
    """Return those of one call."""
    start = time.perf_counter()
    for _ in range(rounds):
        work()
    return 1000 * (time.perf_counter() - start) / rounds


def measure(runs: int, rounds: int, case: Case) -> list[Row]:
    """Return a row for each part, the whole round and the products, with a column for each way."""
    torch.set_num_threads(case.threads)
    ways = {name: trainers(case, runs, name) for name in WAYS}
    found: dict[str, dict[str, list[float]]] = {name: defaultdict(list) for name in ways}
    alone = products(ways["by hand"][0], runs)
    for turn in range(case.repeats + 1):
        case.note("rounds", turn, case.repeats + 1)
        for name, together in ways.items():
            whole = partial(step_together, together, [False] * len(together))
            own = {"whole round": milliseconds(whole, rounds), "products": milliseconds(alone, rounds)}
            seconds: defaultdict[str, float] = defaultdict(float)
            with timed(PARTS, seconds):
                for _ in range(rounds):
                    whole()
            if turn:  # the first one warms up
                own |= {part: 1000 * spent / rounds for part, spent in seconds.items()}
                for part, spent in own.items():
                    found[name][part].append(spent / runs)
    return [
        {"ms a round and run": part, **{name: Spread.of(own.get(part, [0.0])) for name, own in found.items()}}
        for part in [*PARTS, "whole round", "products"]
    ]


if __name__ == "__main__":
    parser = options(__doc__ or "", "digits")
    parser.add_argument("--runs", type=int, default=1, help="runs that are trained together")
    parser.add_argument("--rounds", type=int, default=20, help="rounds in a turn")
    parser.set_defaults(device="cpu", repeats=15)
    arguments = parser.parse_intermixed_args()
    measure_each("parts", partial(measure, arguments.runs, arguments.rounds), arguments)
