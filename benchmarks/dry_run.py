"""Time ``flbench sweep --dry-run`` for a grid of 100,000 runs, as whole processes. Target: under 5 s.

python -m benchmarks.dry_run [--rates 40] [--repeats 5]
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from benchmarks.processes import report, seconds_of

#: 2,500 runs for each learning rate.
SPEC = """
version: 1
name: bench_dry_run
axes:
  method: [fedavg, scaffold, fedyogi, fedbn]
  norm: [none, fn, ln, gn, bn]
  partition: ["classes:1", "classes:2", "dirichlet:0.1", "dirichlet:1", iid]
  lr: {logspace: [1e-4, 1, RATES]}
  E: [1, 5, 10, 20, 50]
  batch_size: [8, 16, 32, 64, 128]
overrides: [{if: {partition: iid, E: [1, 5]}, set: {eval_every: 5}}]
seeds: [0]
"""

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rates", type=int, default=40, help="learning rates, with 2,500 runs each")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        spec = Path(folder) / "spec.yaml"
        spec.write_text(SPEC.replace("RATES", str(arguments.rates)))
        command = ["sweep", str(spec), "--dry-run", "--store", str(Path(folder) / "store")]
        what = f"flbench sweep --dry-run, {2500 * arguments.rates:,} runs"
        report(what, seconds_of(command, arguments.repeats), 5.0)
