"""Measure which operators a plain local step of a network spends its time in: what no engine on top of torch can save.

    python -m benchmarks.operators [lenet|cifar10 ...] [FIELD=VALUE ...] [--repeats 7] [--steps 50]

One client, images in memory. In each turn the steps are timed, and then traced for the share of each operator in their
time.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.common import Case, Row, measure_each, options
from flbench.bench.loop import PlainLoop
from flbench.bench.timing import Spread

#: Operators with a smaller share are left out.
FEWEST_PERCENT = 2.0


def local_step(case: Case) -> Callable[[], None]:
    """Return a local step of SGD as a user of torch writes it."""
    network, data, size = PlainLoop(case.experiment, case.data).network, case.data, case.experiment.batch_size
    optimizer = torch.optim.SGD(network.parameters(), lr=case.experiment.lr)
    images = torch.from_numpy(data.train.images[:size].copy()).float() / data.white
    labels = torch.from_numpy(data.train.labels[:size].copy())

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(network(images)[1], labels).backward()
        optimizer.step()

    return step


def measure(steps: int, case: Case) -> list[Row]:
    """Return a row for the whole step, and one for each operator that takes part of its time."""
    torch.set_num_threads(case.threads)
    step, milliseconds, shares = local_step(case), [], defaultdict(list)
    for turn in range(case.repeats + 1):
        case.note("steps", turn, case.repeats + 1)
        start = time.perf_counter()
        for _ in range(steps):
            step()
        spent = 1000 * (time.perf_counter() - start) / steps
        with profile(activities=[ProfilerActivity.CPU]) as traced:
            for _ in range(steps):
                step()
        own = {one.key: one.self_cpu_time_total for one in traced.key_averages()}
        if turn:  # the first one warms up
            milliseconds.append(spent)
            for name, time_of in own.items():
                shares[name].append(100 * time_of / sum(own.values()))
    found = sorted(((name, Spread.of(own)) for name, own in shares.items()), key=lambda one: -one[1].median)
    operators = [{"what": name, "% of the time": share} for name, share in found if share.median >= FEWEST_PERCENT]
    return [{"what": "the step", "ms": Spread.of(milliseconds), "% of the time": 100}, *operators]


if __name__ == "__main__":
    parser = options(__doc__ or "", "lenet")
    parser.add_argument("--steps", type=int, default=50, help="steps in a turn")
    parser.set_defaults(device="cpu", repeats=7)
    arguments = parser.parse_intermixed_args()
    measure_each("operators", partial(measure, arguments.steps), arguments)
