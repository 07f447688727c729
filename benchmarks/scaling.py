"""Time how the cost of a round grows with clients, local steps and runs that are trained together.

    python -m benchmarks.scaling [digits cifar10 ...] [--norm ln] [--threads 1] [--json]

The executor is the one that ``auto`` selects. The three sizes of a series take turns in one process.
"""

from __future__ import annotations

from benchmarks.common import Row, Settings, engine_options, measure_workloads
from benchmarks.executors import fused
from benchmarks.workloads import WORKLOADS, Workload
from flbench.bench.timing import Note, Spread, Variant, alone, take_turns, trainer_of
from flbench.engine.setup import executor_for, matmul_precision_restored

#: Multiples of a workload's clients, local steps and runs.
FACTORS = (1, 2, 4)


def measure(workload: Workload, settings: Settings, note: Note) -> list[Row]:
    """Return a row for each size: the milliseconds of a round of all runs, and the same relative to the first size."""
    first, data, device = settings.experiment(workload), settings.data_of(workload), settings.device
    rounds, rows = settings.turn(workload), list[Row]()

    def larger(name: str, field: str) -> list[tuple[int, Variant]]:
        numbers = [getattr(first, field) * factor for factor in FACTORS]
        experiments = [settings.experiment(workload, **{field: number}) for number in numbers]
        made = [trainer_of(one, data, device, pool=settings.threads) for one in experiments]
        return [(number, alone(f"{name}: {number}", one, rounds)) for number, one in zip(numbers, made, strict=True)]

    with matmul_precision_restored():
        series = {name: larger(name, name.replace(" ", "_")) for name in ("clients", "local steps")}
        if executor_for(first, data, device=device, wanted="auto") == "stacked":
            series["fused runs"] = [(runs, fused(first, data, device, runs, rounds)) for runs in FACTORS]
        for name, variants in series.items():
            a_run = take_turns([variant for _, variant in variants], repeats=settings.repeats, note=note)
            seconds = [[variant.runs * s for s in a_run[variant.name]] for _, variant in variants]
            for factor, (number, _), own in zip(FACTORS, variants, seconds, strict=True):
                steps = first.clients * (first.local_steps or 1) * factor
                rows.append(
                    {
                        "series": name,
                        "number": number,
                        "ms a round, all runs": Spread.of(own).times(1000),
                        "client steps/s": steps / Spread.of(own).median,
                        "x first": Spread.of_ratios(own, seconds[0]),
                    }
                )
    return rows


if __name__ == "__main__":
    measure_workloads("scaling", measure, engine_options(__doc__ or "", *WORKLOADS).parse_args())
