"""Time rounds of several methods in turns, relative to FedAvg's.

    python -m benchmarks.methods [digits cifar10 ...] --methods feddyn,fedsam,moon [--norm ln] [--rounds 1] [--json]

On a CPU both executors are timed on one core, on a GPU recorded graphs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from benchmarks.common import Row, Settings, engine_options, measure_workloads
from benchmarks.workloads import Workload
from flbench.bench.timing import Note, Spread, alone, take_turns, trainer_of
from flbench.choices import UsedExecutor
from flbench.engine.setup import matmul_precision_restored
from flbench.messages import unknown
from flbench.registry import METHODS

#: The method whose rounds are the unit of all others.
UNIT = "fedavg"


def measure(methods: Sequence[str], workload: Workload, settings: Settings, note: Note) -> list[Row]:
    """Return a row for each executor and method; FedAvg comes first, whether it is among the methods or not."""
    experiments = {name: settings.experiment(workload, method=name) for name in dict.fromkeys([UNIT, *methods])}
    data = settings.data_of(workload)
    executors: list[UsedExecutor] = ["stacked"] if settings.device == "cuda" else ["loop", "stacked"]
    pairs = [(executor, name) for executor in executors for name in experiments]
    with matmul_precision_restored():
        variants = [
            alone(
                f"{executor}, {name}",
                trainer_of(experiments[name], data, settings.device, executor=executor),
                settings.turn(workload),
            )
            for executor, name in pairs
        ]
        seconds = take_turns(variants, repeats=settings.repeats, note=note)
    return [
        {
            "executor": executor,
            "method": name,
            "ms a round": Spread.of(own).times(1000),
            f"x {UNIT}": Spread.of_ratios(own, seconds[f"{executor}, {UNIT}"]),
        }
        for executor, name in pairs
        for own in [seconds[f"{executor}, {name}"]]
    ]


def main() -> None:
    parser = engine_options(__doc__ or "", "digits", "cifar10")
    parser.add_argument("--methods", required=True, metavar="NAME,...", help="methods to time")
    arguments = parser.parse_args()
    methods = arguments.methods.split(",")
    for name in methods:
        if name not in METHODS.classes:
            parser.error(unknown("method", name, METHODS.classes))
    measure_workloads("methods", partial(measure, methods), arguments)


if __name__ == "__main__":
    main()
