"""Time ``flbench --help``, or ``flbench sweep --dry-run`` of 100,000 runs, as whole processes.

    python -m benchmarks.commands help|dry-run [--repeats 5] [--rates 40]

The exit code is 1 if the median misses its target: 0.3 s and 5 s. One process more than counted warms the caches.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks.common import parser_of
from benchmarks.processes import flbench, machine_line

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

#: Seconds that each command may take.
TARGETS = {"help": 0.3, "dry-run": 5.0}


def main() -> None:
    parser = parser_of(__doc__ or "")
    parser.add_argument("command", choices=TARGETS)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rates", type=int, default=40, help="learning rates of the sweep, with 2,500 runs each")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        (spec := Path(folder) / "spec.yaml").write_text(SPEC.replace("RATES", str(given.rates)))
        sweep = ["sweep", spec, "--dry-run", "--store", Path(folder) / "store"]
        costs = [flbench(*(["--help"] if given.command == "help" else sweep)) for _ in range(1 + given.repeats)][1:]
    wall, target = [cost.wall for cost in costs], TARGETS[given.command]
    what = "--help" if given.command == "help" else f"sweep --dry-run, {2500 * given.rates:,} runs"
    median, cpu = statistics.median(wall), statistics.median(cost.cpu for cost in costs)
    print(f"flbench {what}: median {median:.2f} s wall ({min(wall):.2f} to {max(wall):.2f}, n={len(wall)}), ", end="")
    print(f"{cpu:.2f} s CPU; target {target} s")
    print(machine_line("flbench", "pydantic", "ruamel.yaml", "typer", "rich"))
    sys.exit(median > target)


if __name__ == "__main__":
    main()
