"""What the scripts share: workloads, options, and how they print what they measured."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Any, cast
from unittest import mock

from flbench.bench.timing import Note, Spread, Variant, take_turns, trainer_of
from flbench.choices import Executor, UsedDevice
from flbench.cli.bench import described, header, load, machine, progress
from flbench.cli.numbers import handy, spread_text
from flbench.cli.screen import plain_table, wide_console
from flbench.config import Federated, parse_experiment
from flbench.data.arrays import Data
from flbench.data.datasets import Dataset
from flbench.data.random_images import load_or_random
from flbench.engine.federated import FederatedTrainer
from flbench.engine.setup import matmul_precision_restored
from flbench.errors import UserError
from flbench.launchers import used_device
from flbench.messages import unknown
from flbench.sweeps import experiment_from

#: What scripts measure by name. On a CPU a round of ResNet-18 takes minutes: add ``clients=4 E=1``.
WORKLOADS = {
    "digits": "model=mlp model.widths=[128]",
    "mlp": "model=mlp",
    "lenet": "dataset=fashion_mnist model=lenet bias=true batch_size=64 momentum=0.9 weight_decay=1e-5",
    "cifar10": "dataset=cifar10 model=cnn",
    "resnet18": "dataset=cifar10 model=resnet18",
}

#: A row of a table: a number has about three digits, a spread also its minimum and maximum.
Row = Mapping[str, Any]

#: The functions of each part, as (owner, name).
Parts = Mapping[str, Sequence[tuple[Any, str]]]


@dataclass(frozen=True)
class Case:
    """An experiment, and how it is measured.

    Attributes:
        threads: threads of the loop executor, and of torch in the plain loops.
        repeats: turns of each variant.
        note: called before every turn.
    """

    name: str
    experiment: Federated
    data: Data
    device: UsedDevice = "cpu"
    threads: int = 1
    repeats: int = 5
    note: Note = lambda *_: None

    def changed(self, **fields: Any) -> Case:
        """Return the case with other fields of the experiment."""
        experiment = parse_experiment({**self.experiment.to_json(), **fields})
        return replace(self, experiment=cast(Federated, experiment))

    def trainer(self, executor: Executor = "auto") -> FederatedTrainer:
        """Return the engine's trainer."""
        return trainer_of(self.experiment, self.data, self.device, executor=executor, pool=self.threads)

    def turns(
        self, variants: Sequence[Variant], clock: Callable[[], float] = time.perf_counter
    ) -> dict[str, list[float]]:
        """Return the seconds a round and run of each variant, a number a turn."""
        return take_turns(variants, repeats=self.repeats, note=self.note, clock=clock)


def experiment_of(setting: str) -> Federated:
    """Return the experiment of a setting, fields as ``flbench run`` takes them; the partition is iid if it has none."""
    iid = [] if "partition=" in setting else ["partition=iid"]  # the cost is the same
    return cast(Federated, experiment_from([*iid, *setting.split()]))


def data_of(experiment: Federated, root: Path | None) -> Data:
    """Return an experiment's data set, or random images if its files are missing."""
    return load_or_random(cast(Dataset, experiment.dataset), root)


def parser_of(about: str) -> argparse.ArgumentParser:
    """Return a parser whose help is a script's docstring."""
    return argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)


def options(about: str, *default: str) -> argparse.ArgumentParser:
    """Return a parser of the options of scripts that measure workloads, with names of those measured by default."""
    parser = parser_of(about)
    what = f"workloads ({', '.join(WORKLOADS)}; default: {', '.join(default)}), and fields of all of them: norm=ln"
    parser.set_defaults(default=default)
    parser.add_argument("given", nargs="*", metavar="NAME|FIELD=VALUE", help=what)
    parser.add_argument("--repeats", type=int, default=5, help="counted turns")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--threads", type=int, default=1, help="of the loop executor and plain loops")
    parser.add_argument("--data", type=Path, help="folder of the data sets; default: $FLBENCH_DATA")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    return parser


def cases(arguments: argparse.Namespace) -> Iterator[Case]:
    """Yield the chosen workloads with the given fields; raises UserError at an unknown name or field."""
    given, device = arguments.given, used_device(arguments.device)
    names, fields = [one for one in given if "=" not in one], [one for one in given if "=" in one]
    for name in names:
        if name not in WORKLOADS:
            raise UserError(unknown("workload", name, WORKLOADS))
    experiments = {name: experiment_of(" ".join([WORKLOADS[name], *fields])) for name in names or arguments.default}
    for name, experiment in experiments.items():
        data = data_of(experiment, arguments.data)
        yield Case(name, experiment, data, device, arguments.threads, arguments.repeats)


def measure_each(kind: str, measure: Callable[[Case], Sequence[Row]], arguments: argparse.Namespace) -> None:
    """Measure each case, and print its table, or all as JSON with the machine and the options."""
    with reported(kind, arguments) as found:
        for case in cases(arguments):
            with progress() as note, matmul_precision_restored():
                rows = measure(replace(case, note=note))
            found.append({"name": case.name, "data": case.data.fingerprint, "rows": rows})
            if not arguments.json:
                print(f"\n{case.name}: {described(case.experiment)}; data: {case.data.fingerprint}")
                show(rows)


@contextmanager
def reported(kind: str, arguments: argparse.Namespace) -> Iterator[list[Any]]:
    """Print the machine, or with ``--json`` at the end all that was found; an error of the user is one message."""
    found: list[Any] = []
    with ending_in_messages():
        facts = machine(used_device(arguments.device))
        text = sys.stderr if arguments.json else sys.stdout
        print(*header(facts), f"n = {arguments.repeats} turns, medians (min to max)", sep="\n", file=text)
        yield found
    if arguments.json:
        print(json_text(report_of(kind, facts, arguments, found)))


def report_of(kind: str, facts: Mapping[str, Any], arguments: argparse.Namespace, found: Any) -> dict[str, Any]:
    """Return what was found on a machine with which options, without names of folders."""
    hidden = ("data", "folder", "json", "default")
    known = {name: value for name, value in vars(arguments).items() if name not in hidden}
    return {"schema": 2, "machine": {**facts, "load_after": load()}, "options": known, kind: found}


@contextmanager
def ending_in_messages() -> Iterator[None]:
    """Exit with one message where the user can fix an error."""
    try:
        yield
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None


def json_text(report: Any) -> str:
    """Return a report as JSON; a dataclass is an object."""
    return json.dumps(report, indent=1, default=asdict)


def show(rows: Sequence[Row]) -> None:
    """Print a table; the columns are those of the first row, where text is left-aligned."""
    left = [name for name, cell in rows[0].items() if isinstance(cell, str)]
    table = plain_table(left, [name for name in rows[0] if name not in left])
    for row in rows:
        table.add_row(*(_text(row.get(str(column.header))) for column in table.columns))
    wide_console().print(table)


def _text(cell: Any) -> str:
    match cell:
        case None:
            return ""
        case Spread():
            return spread_text(cell)
        case float():
            return handy(cell)
    return f"{cell:,}" if isinstance(cell, int) else str(cell)


@contextmanager
def timed(parts: Parts, seconds: defaultdict[str, float]) -> Iterator[None]:
    """Add up the seconds of each part; a part inside another counts for the inner one only."""
    inside: list[float] = []

    def timing(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            inside.append(0.0)
            start = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                spent = time.perf_counter() - start
                seconds[part] += spent - inside.pop()
                if inside:
                    inside[-1] += spent

        return wrapper

    with ExitStack() as patches:
        for part, functions in parts.items():
            for owner, name in functions:
                patches.enter_context(mock.patch.object(owner, name, timing(part, getattr(owner, name))))
        yield
