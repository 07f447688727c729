"""``flbench init``: write a commented sweep file to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flbench.errors import UserError
from flbench.messages import counted
from flbench.sweeps import FOLDER, load_sweep
from flbench.sweeps.spec import NAME

#: The file that is written; ``{name}`` is the sweep's name.
TEMPLATE = """\
# The sweep {name}.   Check it: flbench sweep {name} --dry-run   Run it: flbench sweep {name}
version: 1
name: {name}

# What all runs share. flbench show kind federated lists every field with its default.
base:
  dataset: digits                          # flbench data list; other data: flbench data download cifar10
  model: {{name: mlp, widths: [64, 64]}}     # flbench show models
  clients: 10
  rounds: 100
  E: 10                                    # local steps of each client in a round
  eval_every: 10

# What is compared: every combination of these values is a cell, and every cell has all seeds.
axes:
  method: [fedavg, {{name: fedprox, mu: 0.1}}]       # flbench show methods
  norm: [none, fn, ln]                             # flbench show norms
  partition: ["classes:1", "dirichlet:0.1"]        # flbench show partitions; flbench partition show draws one
  lr: [0.01, 0.1]                                  # or {{logspace: [1.0e-3, 1, 7]}}
seeds: [0, 1, 2]                                   # at least three: fewer have no interval

# Leave out cells, or change single ones. A rule that affects no cell is an error.
# exclude:
#   - {{method: fedprox, norm: fn}}
# overrides:
#   - {{if: {{partition: "classes:1"}}, set: {{rounds: 200}}}}

# How the leaderboard is laid out: flbench report {name}. Each row shows its best value of the fields in tune.
report:
  metric: acc
  rows: [method, norm]
  cols: [partition]
  tune: [lr]
  baseline: {{method: fedavg, norm: none}}
"""


def init(
    name: Annotated[str, typer.Argument(help="Name of the sweep.", show_default=False)],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE.yaml", help="The file to write; default: sweeps/NAME.yaml.")
    ] = None,
) -> None:
    """Write a sweep file to start from, with a comment on every part. It never overwrites a file.

    Example: flbench init my_norms
    """
    if not NAME.fullmatch(name):
        raise UserError(f"flbench init {name}: expected letters, digits, '.', '_' and '-', as in my_norms")
    path = out or FOLDER / f"{name}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(TEMPLATE.format(name=name))
    except FileExistsError:
        raise UserError(f"{path} exists; choose another name, or --out FILE.yaml") from None
    count = load_sweep(path).arithmetic
    given = name if path == FOLDER / f"{name}.yaml" else path
    sizes = f"{counted(count.cells, 'cell')}, {counted(count.runs, 'run')}"
    typer.echo(f"wrote {path}: {sizes}; next: flbench sweep {given} --dry-run")
