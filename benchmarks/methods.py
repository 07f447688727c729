"""Time rounds of several methods in turns, relative to FedAvg's.

    python -m benchmarks.methods [digits cifar10 ...] [FIELD=VALUE ...] --methods feddyn,fedsam,moon [--json]

On a CPU both executors are timed, on a GPU recorded graphs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from benchmarks.common import Case, Row, measure_each, options
from flbench.bench.timing import Spread, alone
from flbench.choices import Executor

#: The method whose rounds are the unit of all others.
UNIT = "fedavg"


def measure(methods: Sequence[str], case: Case) -> list[Row]:
    """Return a row for each executor and method; FedAvg comes first, whether it is among the methods or not."""
    changed = {name: case.changed(method=name) for name in dict.fromkeys([UNIT, *methods])}
    executors: list[Executor] = ["stacked"] if case.device == "cuda" else ["loop", "stacked"]
    pairs = [(executor, name) for executor in executors for name in changed]
    seconds = case.turns([alone(f"{executor}, {name}", changed[name].trainer(executor)) for executor, name in pairs])
    return [
        {
            "executor": executor,
            "method": name,
            "ms a round": Spread.of(own).times(1000),
            f"x {UNIT}": Spread.of_ratios(own, seconds[f"{executor}, {UNIT}"]),
        }
        for (executor, name), own in zip(pairs, seconds.values(), strict=True)
    ]


if __name__ == "__main__":
    parser = options(__doc__ or "", "digits", "cifar10")
    parser.add_argument("--methods", required=True, metavar="NAME,...", help="methods to time")
    arguments = parser.parse_intermixed_args()
    measure_each("methods", partial(measure, arguments.methods.split(",")), arguments)
