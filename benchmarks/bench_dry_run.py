"""Time ``flbench sweep --dry-run`` for a grid of 100,000 runs, as whole processes. Target: under 5 s.

uv run python benchmarks/bench_dry_run.py [repeats]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from processes import report, seconds_of

SPEC = """
version: 1
name: bench_dry_run
axes:
  method: [fedavg, scaffold, fedyogi, fedbn]
  norm: [none, fn, ln, gn, bn]
  partition: ["classes:1", "classes:2", "dirichlet:0.1", "dirichlet:1", iid]
  lr: {logspace: [1e-4, 1, 40]}
  E: [1, 5, 10, 20, 50]
  batch_size: [8, 16, 32, 64, 128]
overrides: [{if: {partition: iid, E: [1, 5]}, set: {eval_every: 5}}]
seeds: [0]
"""

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        spec = Path(folder) / "spec.yaml"
        spec.write_text(SPEC)
        command = ["sweep", str(spec), "--dry-run", "--store", str(Path(folder) / "store")]
        report(
            "flbench sweep --dry-run, 100,000 runs", seconds_of(command, int(sys.argv[1]) if sys.argv[1:] else 5), 5.0
        )
