"""The yardstick of the engine's speed: 56 settings, each by flbench alone, by runs together and by two plain loops.

    python -m benchmarks.settings [NAME|PATTERN ...] [--repeats 5] [--data FOLDER] [--json]
    python -m benchmarks.settings --write       # all of them, into docs/engine.md, README.md and settings.json

The table at the end has the slowest setting first. One core's work: one torch thread and one thread of the engine, in
CPU time, which waiting on a busy machine does not change. All ways take turns in one process. A ratio is the faster
plain loop's time over flbench's in the same turn. A setting is what ``flbench run`` and ``flbench bench`` take on the
command line; the partition is iid if it names none.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, TextIO, cast

from benchmarks.common import data_of, ending_in_messages, experiment_of, parser_of
from benchmarks.tables import ROOT, replaced, settings_sentence, settings_table, write_pages
from flbench.bench.timing import Comparison, Spread, compare
from flbench.cli.bench import header, load, machine
from flbench.cli.numbers import handy, spread_text
from flbench.data.datasets import Dataset
from flbench.data.datasets import load as load_data
from flbench.errors import UserError
from flbench.messages import unknown

_MLP128 = "model=mlp model.widths=[128]"
_MLP64 = "model=mlp model.widths=[64,64]"
_FMNIST = "dataset=fashion_mnist"
_LENET = f"{_FMNIST} model=lenet bias=true"
_CIFAR = "dataset=cifar10 model=cnn"
_EPOCH = "clients=100 participation=0.1 local_epochs=1"

#: Every setting by its name: networks, sizes, norms and optimizers, then one local epoch as papers' protocols have it.
SETTINGS = {
    "digits-mlp128": _MLP128,
    **{f"digits-mlp128-B{size}": f"{_MLP128} batch_size={size}" for size in (1, 8, 64, 128)},
    **{f"digits-mlp128-E{steps}": f"{_MLP128} E={steps}" for steps in (1, 50)},
    "digits-mlp128-N100": f"{_MLP128} clients=100 batch_size=10",
    "digits-mlp128-N500": f"{_MLP128} clients=500 batch_size=2",
    "digits-mlp128-bf16": f"{_MLP128} precision=bf16",
    "digits-mlp512": "model=mlp model.widths=[512,512]",
    "digits-mlp64": _MLP64,
    "digits-mlp64-adam": f"{_MLP64} optimizer=adam lr=0.001",
    "digits-mlp64-momentum": f"{_MLP64} momentum=0.9",
    "digits-mlp64-epochs2-partial": f"{_MLP64} partition=dirichlet:0.3 local_epochs=2 drop_last=false",
    "digits-mlp64-epochs2": f"{_MLP64} partition=dirichlet:0.3 local_epochs=2",
    "digits-mlp64-epochs5": f"{_MLP64} partition=dirichlet:0.1 local_epochs=5",
    **{f"digits-mlp64-{norm}": f"{_MLP64} norm={norm}" for norm in ("fn", "ln", "gn", "bn", "rms")},
    "digits-mlp64-ws": f"{_MLP64} norm=ws norm.layers=all",
    **{f"fmnist-mlp{width}": f"{_FMNIST} model=mlp model.widths=[{width},{width}]" for width in (128, 200, 512)},
    "fmnist-mlp128-B256": f"{_FMNIST} model=mlp model.widths=[128,128] batch_size=256",
    "fmnist-mlp128-N200": f"{_FMNIST} model=mlp model.widths=[128,128] clients=200 participation=0.1 batch_size=10",
    "fmnist-lenet": f"{_LENET} batch_size=64 momentum=0.9 weight_decay=1e-5",
    **{f"fmnist-lenet-B{size}": f"{_LENET} batch_size={size} E=5" for size in (8, 256)},
    "fmnist-lenet-E1": f"{_LENET} batch_size=64 E=1",
    "mnist-lenet-B10": "dataset=mnist model=lenet bias=true batch_size=10",
    **{f"cifar-cnn-E{steps}": f"{_CIFAR} E={steps}" for steps in (1, 2)},
    "cifar-cnn-B1": f"{_CIFAR} E=4 batch_size=1",
    "cifar-cnn-B8": f"{_CIFAR} E=2 batch_size=8",
    "cifar-cnn-B64": f"{_CIFAR} E=1 batch_size=64",
    "cifar-cnn-B256": f"{_CIFAR} E=1 batch_size=256 clients=4",
    "cifar-cnn-bf16": f"{_CIFAR} E=2 precision=bf16",
    "cifar-cnn-adam": f"{_CIFAR} E=2 optimizer=adam lr=0.001",
    **{f"cifar-cnn-{norm}": f"{_CIFAR} E=1 norm={norm}" for norm in ("fn", "ln", "gn", "bn")},
    "cifar-lenet": "dataset=cifar10 model=lenet bias=true batch_size=64 E=5",
    **{f"cifar-resnet18-{norm}": f"dataset=cifar10 model=resnet18 clients=2 E=1 norm={norm}" for norm in ("gn", "bn")},
    "cifar-resnet18-gn-B8": "dataset=cifar10 model=resnet18 clients=2 E=1 norm=gn batch_size=8",
    "cifar-simple-vit": "dataset=cifar10 model=simple-vit clients=4 E=1",
    "epoch-fmnist-mlp128-partial-dir0.5": f"{_FMNIST} {_MLP128} {_EPOCH} partition=dirichlet:0.5 drop_last=false",
    "epoch-fmnist-mlp128-partial-dir0.1": f"{_FMNIST} {_MLP128} {_EPOCH} partition=dirichlet:0.1 drop_last=false",
    "epoch-fmnist-mlp128-dir0.1": f"{_FMNIST} {_MLP128} {_EPOCH} partition=dirichlet:0.1",
    "epoch-fmnist-mlp128-iid": f"{_FMNIST} {_MLP128} {_EPOCH}",
    "epoch-fmnist-lenet-dir0.5": f"{_LENET} {_EPOCH} partition=dirichlet:0.5",
    "epoch-cifar-cnn-dir0.5": f"{_CIFAR} clients=100 participation=0.05 local_epochs=1 partition=dirichlet:0.5",
}


def chosen(patterns: Sequence[str]) -> list[str]:
    """Return the names that match any pattern, in their order; raises UserError if a pattern matches none."""
    for pattern in patterns:
        if not any(fnmatch(name, pattern) for name in SETTINGS):
            raise UserError(unknown("setting", pattern, SETTINGS))
    return [name for name in SETTINGS if any(fnmatch(name, pattern) for pattern in patterns)]


#: What ``--write`` writes from the measurement, by the page that has it.
PAGES = {"docs/engine.md": settings_table, "README.md": settings_sentence}


def line(name: str, done: Comparison) -> str:
    """Return a comparison in one line: milliseconds a round and run, and flbench's speed."""
    ms = [f"{way} {handy(1000 * Spread.of(own).median)}" for way, own in done.seconds.items()]
    speed = [f"{way} x {spread_text(spread)}" for way, spread in done.speed.items()]
    return f"{name} ({done.executor}), ms: {', '.join(ms)}; {', '.join(speed)}; load {load()}"


def main() -> None:
    parser = parser_of(__doc__ or "")
    parser.add_argument("names", nargs="*", default=["*"], help="settings, or patterns like 'cifar-*'; default: all")
    parser.add_argument("--repeats", type=int, default=5, help="counted turns")
    parser.add_argument("--data", type=Path, help="folder of the data sets; default: $FLBENCH_DATA")
    parser.add_argument("--json", action="store_true", help="print JSON on standard output, and lines on the other")
    parser.add_argument("--write", action="store_true", help=f"write {', '.join(PAGES)} and benchmarks/settings.json")
    arguments = parser.parse_args()
    text = sys.stderr if arguments.json else sys.stdout
    with ending_in_messages():
        names = chosen(arguments.names)
        if arguments.write:
            _require_writable(names, arguments.data)
        facts = machine("cpu")
        print(*header(facts), f"n = {arguments.repeats} turns, medians (min to max)", sep="\n", file=text)
        found = [_measured(name, arguments, text) for name in names]
        options = {"names": arguments.names, "repeats": arguments.repeats}
        measured = {"schema": 2, "machine": {**facts, "load_after": load()}, "options": options, "settings": found}
        print(json.dumps(measured, indent=1) if arguments.json else f"\n{settings_table(measured)}")
        if arguments.write:
            write_pages("settings", measured, PAGES, ROOT)


def _measured(name: str, arguments: argparse.Namespace, text: TextIO) -> dict[str, Any]:
    experiment = experiment_of(SETTINGS[name])
    data, options = data_of(experiment, arguments.data), {"repeats": arguments.repeats, "threads": 1}
    done = compare(experiment, data, device="cpu", clock=time.process_time, **options)
    print(f"{line(name, done)}; data {data.fingerprint}", flush=True, file=text)
    return {"name": name, "fields": SETTINGS[name], "data": data.fingerprint, "load": load(), **asdict(done)}


def _require_writable(names: Sequence[str], data: Path | None) -> None:
    """Refuse, before minutes of measuring, to write pages without places, some of the settings, or random images."""
    if len(names) < len(SETTINGS):
        raise UserError("--write measures all settings: leave the names out")
    for page in PAGES:
        replaced(ROOT / page, "settings", "")
    for dataset in dict.fromkeys(cast(Dataset, experiment_of(setting).dataset) for setting in SETTINGS.values()):
        load_data(dataset, data)


if __name__ == "__main__":
    main()
