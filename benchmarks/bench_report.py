"""Time to report a store of many finished runs.

    uv run python benchmarks/bench_report.py [--runs 5000]

Fills a temporary store with made-up results through its own interface, then times ``flbench report`` as a process.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from processes import report, seconds_of

from flbench.config import parse_experiment
from flbench.store import Lease, Store

TARGET = 5.0
NUMERICS = {"device": "cpu", "executor": "stacked", "precision": "fp32", "torch": "2.15.0"}


def fill(store: Store, runs: int) -> None:
    lease = Lease.here()
    for number in range(runs):
        fields = {"lr": (number // 10 + 1) / 1000, "seed": number % 5, "rounds": 200, "eval_every": 10}
        wish = parse_experiment({**fields, "partition": ("iid", "classes:1")[number // 5 % 2]})
        attempt = store.claim(wish, lease)
        assert attempt is not None
        attempt.adopt(None)
        for round in sorted(wish.evaluated_rounds()):
            attempt.record({"round": round, "acc": 0.9, "acc_global": 0.9, "clients": [0.9] * 10, "loss": 0.3})
        attempt.publish(status="done", rounds=200, seconds=1.0, fingerprint="0123456789abcdef", numerics=NUMERICS)
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
