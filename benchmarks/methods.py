"""Time rounds of several methods in turns, relative to FedAvg's, and count the passes that a local step takes.

    python -m benchmarks.methods [digits cifar10 ...] [FIELD=VALUE ...] --methods feddyn,fedsam,moon [--json]

On a CPU both executors are timed, in CPU time, which waiting on a busy machine does not change; on a GPU recorded
graphs. An entry of --methods may be a field in place of a method: ``norm=dyt``, or ``keep_momentum=true`` beside
``momentum=0.9``. Plug-ins come from $FLBENCH_PLUGINS.

A pass is a forward and a backward pass over the batches of all clients, as FedAvg takes one. A forward pass alone, of a
teacher, counts as a third, and class statistics as a forward pass over all of a client's data.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

from benchmarks.common import Case, Row, measure_each, options
from flbench.bench.timing import Spread, alone
from flbench.choices import Executor
from flbench.engine.federated import FederatedTrainer
from flbench.engine.setup import make_network
from flbench.engine.stack_size import teacher_count
from flbench.sums import sum_in_order
from flbench.sweeps.options import read_fields

#: The method whose rounds are the unit of all others.
UNIT = "fedavg"

#: A forward pass, in passes: the backward pass computes about twice as much.
FORWARD = 1 / 3


def measure(methods: Sequence[str], case: Case) -> list[Row]:
    """Return a row for each executor and method; FedAvg comes first, whether it is among the methods or not."""
    changed = {name: with_method(case, name) for name in dict.fromkeys([UNIT, *methods])}
    executors: list[Executor] = ["stacked"] if case.device == "cuda" else ["loop", "stacked"]
    trainers = {(executor, name): one.trainer(executor) for executor in executors for name, one in changed.items()}
    clock = time.perf_counter if case.device == "cuda" else time.process_time
    every = [alone(", ".join(pair), trainer) for pair, trainer in trainers.items()]
    seconds = dict(zip(trainers, case.turns(every, clock).values(), strict=True))
    rows: list[Row] = []
    for (executor, name), own in seconds.items():
        passes = passes_of(changed[name], trainers[executor, name])
        ratio = Spread.of_ratios(own, seconds[executor, UNIT])
        rows.append(
            {
                "executor": executor,
                "method": name,
                "ms a round": Spread.of(own).times(1000),
                f"x {UNIT}": ratio,
                "passes": passes,
                "x passes": ratio.median / passes,
            }
        )
    return rows


def with_method(case: Case, name: str) -> Case:
    """Return the case with a method, or with a field given as FIELD=VALUE."""
    if "=" not in name:
        return case.changed(method=name)
    return case.changed(**{field: value.raw for field, value in read_fields([name])[1].items()})


def passes_of(case: Case, trainer: FederatedTrainer) -> float:
    """Return the passes of a round, in those of FedAvg: one over the batch of each local step."""
    run, network = trainer.run, make_network(case.experiment, case.data, "cpu")
    passes = 0.0
    for method in (run.method, run.twin):
        if method is not None:
            passes += 1 + method.perturbs + FORWARD * teacher_count(method, network)
    if run.method.statistics:
        seen = sum_in_order([steps * run.setup.batch_size for steps in run.steps])
        passes += FORWARD * sum_in_order([len(rows) for rows in run.rows]) / seen
    return passes


if __name__ == "__main__":
    parser = options(__doc__ or "", "digits", "cifar10")
    parser.add_argument("--methods", required=True, metavar="NAME|FIELD=VALUE,...", help="methods to time")
    arguments = parser.parse_intermixed_args()
    measure_each("methods", partial(measure, arguments.methods.split(",")), arguments)
