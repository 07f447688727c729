"""Measure what a run costs besides training: the store, the metrics, creating a trainer, starting a worker.

    python -m benchmarks.overhead [--data FOLDER] [--rounds 200] [--repeats 3]

A worker's own loop executes runs in a fresh store: digits as in the quickstart (trained together, as workers do), and
the CIFAR-10 CNN if its files are available. The parts are the store's writing methods, ``metrics``, the forward passes
of evaluations, creating trainers, and the rest, which is training. The first run of each kind warms up and is not
counted.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common import Parts, parser_of, timed
from benchmarks.processes import cost_of, machine_line
from flbench import execution, metrics
from flbench.config import Experiment, parse_experiment
from flbench.engine.executors import LoopExecutor, StackedExecutor
from flbench.errors import DataMissing
from flbench.store import Attempt, Lease, Plan, Store
from flbench.worker import Options, load_engine, work

#: The timed functions of each part.
PARTS: Parts = {
    "store": [
        (Store, "claim"),
        *((Attempt, name) for name in ("describe", "adopt", "log", "record", "save_checkpoint", "publish", "end")),
    ],
    "metrics": [(metrics, name) for name in ("shared_model", "personal_models", "whole_set")],
    "evaluation": [(LoopExecutor, "predict"), (StackedExecutor, "predict")],
    "creating trainers": [(execution, "make_trainer")],
}

QUICKSTART = {"model": {"name": "mlp", "widths": [64, 64]}, "eval_every": 20, "E": 10, "lr": 0.01}
CNN = {"dataset": "cifar10", "model": "cnn", "rounds": 10, "eval_every": 10, "E": 10, "lr": 0.01}


def shares(experiments: Sequence[Experiment], options: Options) -> dict[str, float]:
    """Return the milliseconds per round and run of each part."""
    seconds: defaultdict[str, float] = defaultdict(float)
    with tempfile.TemporaryDirectory() as folder, timed(PARTS, seconds):
        store, start = Store(Path(folder)), time.perf_counter()
        entries = Plan.of(experiments)
        work(store, entries, Lease.here(), options, should_stop=lambda: False, load=load_engine)
        seconds["training"] = time.perf_counter() - start - sum(seconds.values())
        ended = [
            store.run(entry.run_id).state(experiment) for entry, experiment in zip(entries, experiments, strict=True)
        ]
        assert all(state.status == "done" for state in ended), ended
    rounds = sum(experiment.rounds for experiment in experiments)
    return {part: 1000 * spent / rounds for part, spent in seconds.items()}


def show(what: str, experiments: Sequence[Experiment], options: Options, repeats: int, target: float) -> bool:
    """Print the parts of a kind of run; return whether store and metrics stay below ``target``."""
    measured = [shares(experiments, options) for _ in range(repeats + 1)][1:]
    parts = {part: statistics.median(one.get(part, 0.0) for one in measured) for part in ["training", *PARTS]}
    extra = (parts["store"] + parts["metrics"]) / parts["training"]
    listed = ", ".join(f"{part} {ms:.3f}" for part, ms in parts.items())
    print(f"{what} (n={repeats}), ms per round and run: {listed}")
    print(f"  store and metrics are {extra:.2%} of training (target {target:.0%})")
    return extra < target


def main() -> None:
    parser = parser_of(__doc__ or "")
    parser.add_argument("--data", type=Path, help="folder of the data sets; default: $FLBENCH_DATA")
    parser.add_argument("--rounds", type=int, default=200, help="rounds of a run on digits")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    options = Options(data_root=arguments.data, pool=os.cpu_count() or 1)
    fields = {**QUICKSTART, "rounds": arguments.rounds, "partition": "classes:1"}
    digits = [parse_experiment({**fields, "seed": seed}) for seed in range(3)]
    good = show("digits, three runs together", digits, options, arguments.repeats, 0.05)
    cnn = parse_experiment({**CNN, "partition": "classes:1"})
    try:
        good &= show(f"CIFAR-10 CNN, {options.pool} threads", [cnn], options, arguments.repeats, 0.01)
    except DataMissing as missing:
        print(f"CIFAR-10 CNN not measured: {missing}")
    imports = [sys.executable, "-c", "import flbench.worker, flbench.execution"]
    starts = [cost_of(imports).wall for _ in range(arguments.repeats)]
    print(f"starting a worker, once: {statistics.median(starts):.1f} s")
    print(machine_line("torch"))
    sys.exit(not good)


if __name__ == "__main__":
    main()
