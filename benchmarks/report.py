"""Time ``flbench report`` on a store of many finished runs.

    python -m benchmarks.report [--runs 5000]

Fills a temporary store with made-up results through its own interface, then times the command as a process.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from itertools import product
from pathlib import Path

from benchmarks.processes import report, seconds_of
from flbench.config import parse_experiment
from flbench.store import Lease, Store

TARGET = 5.0
NUMERICS = {"device": "cpu", "executor": "stacked", "precision": "fp32", "torch": "2.15.0"}


ROWS = list(product(("fedavg", "scaffold", "fedyogi", "fedprox", "fedadam"), ("none", "fn", "ln", "gn", "rms")))
SEEDS = 5


def fill(store: Store, runs: int) -> None:
    """Write cells of five seeds, in 25 rows and as many columns as needed."""
    lease = Lease.here()
    for number in range(runs):
        cell, seed = divmod(number, SEEDS)
        column, row = divmod(cell, len(ROWS))
        method, norm = ROWS[row]
        fields = {"method": method, "norm": norm, "E": column + 1, "seed": seed, "rounds": 200, "eval_every": 10}
        experiment = parse_experiment(fields)
        attempt = store.claim(experiment, lease)
        assert attempt is not None
        attempt.adopt(None)
        draw = random.Random(number)
        for round in sorted(experiment.evaluated_rounds()):
            acc = 0.8 + 0.002 * row + draw.gauss(0, 0.01)
            lists = {"clients": [acc] * 10, "recall": [acc] * 10}
            numbers = {
                "acc_global": acc,
                "acc_worst": acc,
                "acc_sd": 0.1,
                "loss": 0.3,
                "bytes_up": round,
                "bytes_down": round,
            }
            attempt.record({"round": round, "acc": acc, **numbers, **lists})
        attempt.publish(status="done", rounds=200, seconds=1.0, fingerprint="e3713c9c6ae47b99", numerics=NUMERICS)
        attempt.end("ok")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5000)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        fill(Store(Path(folder) / "store"), arguments.runs)
        words = ["report", "--store", f"{folder}/store", "--out", f"{folder}/leaderboard.md"]
        measured = seconds_of(words, arguments.repeats)
    report(f"flbench report, {arguments.runs:,} runs of 20 evaluations", measured, TARGET)


if __name__ == "__main__":
    main()
