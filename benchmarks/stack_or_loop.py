"""How many times as fast a stack of ten clients is as the loop, by network and size of batches: the table of ``auto``.

    python -m benchmarks.stack_or_loop [--repeats 7] [--data FOLDER] [--write]

One core's work in CPU time, stack and loop in turns; five local steps of SGD a round. ``--write`` replaces
``flbench/engine/stack_or_loop.json``, by which ``auto`` chooses on a CPU. Afterwards new runs of experiments whose
executor changes have other bits, which their numerics say.
"""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.common import data_of, ending_in_messages, experiment_of, parser_of
from flbench.bench.timing import Spread, alone, take_turns, trainer_of
from flbench.choices import UsedExecutor
from flbench.cli.bench import load, machine
from flbench.cli.numbers import spread_text
from flbench.engine.setup import make_network
from flbench.engine.stack_or_loop import TABLE, Kind, kind_of
from flbench.models.flops import sample_flops
from flbench.models.onednn_products import has_large_products

#: Networks of each kind, from small to large, and sizes of batches.
NETWORKS: dict[Kind, tuple[str, ...]] = {
    "by hand": (
        "model=mlp model.widths=[64]",
        "model=mlp model.widths=[128,128]",
        "dataset=fashion_mnist model=mlp model.widths=[128]",
        "dataset=fashion_mnist model=mlp model.widths=[200,200]",
        "dataset=fashion_mnist model=mlp model.widths=[512,512]",
        "dataset=fashion_mnist model=mlp model.widths=[1024,1024]",
    ),
    "by autograd": (
        "dataset=fashion_mnist model=lenet",
        "dataset=cifar10 model=lenet",
        "dataset=cifar10 model=cnn",
    ),
}
BATCH_SIZES: dict[Kind, tuple[int, ...]] = {"by hand": (1, 8, 32, 128, 512), "by autograd": (1, 4, 16, 64)}


def measured(network: str, batch_size: int, repeats: int, data_root: Path | None) -> tuple[float, Spread]:
    """Return the operations of a sample's forward pass, and the speed of a stack relative to the loop."""
    experiment = experiment_of(f"{network} clients=10 E=5 batch_size={batch_size}")
    data = data_of(experiment, data_root)
    module = make_network(experiment, data, "cpu")
    assert network in NETWORKS[kind_of(module)]
    loop: UsedExecutor = "loop-onednn" if has_large_products(module, data.shape, batch_size) else "loop"
    trainers = {name: trainer_of(experiment, data, "cpu", executor=name) for name in (loop, "stacked")}
    variants = [alone(name, trainer) for name, trainer in trainers.items()]
    seconds = take_turns(variants, repeats=repeats, clock=time.process_time)
    return sample_flops(module, data.shape, backward=False), Spread.of_ratios(seconds[loop], seconds["stacked"])


def main() -> None:
    parser = parser_of(__doc__ or "")
    parser.add_argument("--repeats", type=int, default=7, help="counted turns")
    parser.add_argument("--data", type=Path, help="folder of the data sets; default: $FLBENCH_DATA")
    parser.add_argument("--write", action="store_true", help="replace the committed table")
    arguments = parser.parse_args()
    kinds: dict[str, Any] = {}
    with ending_in_messages():
        for kind, networks in NETWORKS.items():
            flops, speed = [], []
            for network in networks:
                found = [measured(network, size, arguments.repeats, arguments.data) for size in BATCH_SIZES[kind]]
                flops.append(found[0][0])
                speed.append([round(spread.median, 3) for _, spread in found])
                ratios = ", ".join(
                    f"{size}: {spread_text(spread)}" for size, (_, spread) in zip(BATCH_SIZES[kind], found, strict=True)
                )
                print(f"{network} ({found[0][0]:.0f} FLOPs a sample), speed by batch size: {ratios}", flush=True)
            kinds[kind] = {"networks": networks, "batch_sizes": BATCH_SIZES[kind], "flops": flops, "speed": speed}
    facts = machine("cpu")
    table = {
        "written_by": "python -m benchmarks.stack_or_loop --write",
        "date": datetime.now(UTC).date().isoformat(),
        "machine": {**facts, "load_after": load()},
        "repeats": arguments.repeats,
        "kinds": kinds,
    }
    if arguments.write:
        TABLE.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
