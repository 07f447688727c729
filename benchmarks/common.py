"""What the scripts share: options, settings, clocks, and how they print what they measured."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, fields
from functools import wraps
from pathlib import Path
from typing import Any, Self, cast, get_args
from unittest import mock

import torch

from benchmarks.processes import machine_line
from benchmarks.workloads import WORKLOADS, Workload, data_of
from flbench.bench.timing import Note, Spread
from flbench.choices import Device, Precision, UsedDevice
from flbench.cli.bench import header, load, machine, progress
from flbench.cli.numbers import handy, spread_text
from flbench.cli.screen import plain_table, wide_console
from flbench.config import Federated
from flbench.data.arrays import Data
from flbench.engine.setup import executor_for
from flbench.errors import UserError
from flbench.launch.resources import usable_cores
from flbench.launchers import used_device
from flbench.messages import unknown

#: A row of a table: a number has about three digits, a spread also its minimum and maximum.
Row = Mapping[str, Any]

#: The functions of each part, as (owner, name).
Parts = Mapping[str, Sequence[tuple[Any, str]]]


@dataclass(frozen=True)
class Settings:
    """How a script measures the engine.

    Attributes:
        rounds: rounds in a turn; None: the workload's own number.
        repeats: turns of each variant.
        threads: threads of the loop executor, and of torch in the plain loops.
        fuse: runs that are trained together; None: as many as fill one stack.
        norm: normalization of the network.
        data: folder of the data sets; None: the default one.
    """

    rounds: int | None = None
    repeats: int = 5
    device: UsedDevice = "cpu"
    precision: Precision = "fp32"
    threads: int = 1
    fuse: int | None = None
    norm: str = "none"
    data: Path | None = None

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> Self:
        """Return the settings on a command line, which may have some of them only."""
        given = vars(arguments)
        return cls(**{field.name: given[field.name] for field in fields(cls) if field.name in given})

    def experiment(self, workload: Workload, **changes: Any) -> Federated:
        """Return a workload's experiment."""
        return workload.experiment(self.device, **{"norm": self.norm, "precision": self.precision, **changes})

    def to_json(self) -> dict[str, Any]:
        """Return the settings without the folder, which is this machine's."""
        return {name: value for name, value in asdict(self).items() if name != "data"}

    def data_of(self, workload: Workload) -> Data:
        """Return a workload's data."""
        return data_of(workload.experiment(self.device), self.data)

    def turn(self, workload: Workload) -> int:
        """Return the rounds in a turn."""
        return self.rounds or workload.turn(self.device)


def parser_of(about: str) -> argparse.ArgumentParser:
    """Return a parser whose help is a script's docstring."""
    return argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)


def options(about: str, *workloads: str, repeats: int = 5) -> argparse.ArgumentParser:
    """Return a parser of the options of all scripts that measure workloads; the arguments are defaults."""
    parser = parser_of(about)
    default = [WORKLOADS[name] for name in workloads]
    parser.add_argument("workloads", nargs="*", type=_workload, default=default, help=f"of {', '.join(WORKLOADS)}")
    parser.add_argument("--repeats", type=int, default=repeats, help="counted turns")
    parser.add_argument("--data", type=Path, help="folder of the data sets; default: $FLBENCH_DATA")
    return parser


def engine_options(about: str, *workloads: str) -> argparse.ArgumentParser:
    """Return a parser of the options of scripts that measure the engine on a CPU or a GPU."""
    parser = options(about, *workloads)
    parser.add_argument("--rounds", type=int, help="rounds in a turn; default: the workload's own number")
    parser.add_argument("--device", type=_device, default="auto", metavar="auto|cpu|cuda")
    parser.add_argument("--precision", choices=get_args(Precision), default="fp32")
    parser.add_argument("--threads", type=int, default=usable_cores(), help="of the loop executor and plain loops")
    parser.add_argument("--fuse", type=int, help="runs trained together; default: as many as fill a stack")
    parser.add_argument("--norm", default="none", help="normalization of the networks, as in sweeps")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    return parser


def _workload(name: str) -> Workload:
    if name not in WORKLOADS:
        raise argparse.ArgumentTypeError(unknown("workload", name, WORKLOADS))
    return WORKLOADS[name]


def _device(name: str) -> UsedDevice:
    if name not in ("auto", "cpu", "cuda"):
        raise argparse.ArgumentTypeError(unknown("device", name, ("auto", "cpu", "cuda")))
    try:
        return used_device(cast(Device, name))
    except UserError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def measure_workloads(
    kind: str, measure: Callable[[Workload, Settings, Note], Sequence[Row]], arguments: argparse.Namespace
) -> None:
    """Measure each workload, and print its table, or all as JSON with the machine and the settings."""
    settings = Settings.of(arguments)
    with reported(kind, settings, as_json=arguments.json) as report:
        for workload in arguments.workloads:
            experiment, data = settings.experiment(workload), settings.data_of(workload)
            auto = executor_for(experiment, data, device=settings.device, wanted="auto")
            with progress() as note:
                rows = measure(workload, settings, _naming(workload, note))
            sizes = f"{experiment.clients} clients, E={experiment.local_steps}, batch {experiment.batch_size}"
            title = f"{workload.what}, norm {settings.norm}: {sizes}; data {data.fingerprint}; executor auto: {auto}"
            report(title, {"workload": workload.name, "data": data.fingerprint, "executor": auto, "rows": rows})


def _naming(workload: Workload, note: Note) -> Note:
    return lambda what, done, total: note(f"{workload.name}: {what}", done, total)


@contextmanager
def reported(kind: str, settings: Settings, *, as_json: bool) -> Iterator[Callable[[str, Any], None]]:
    """Print the machine and then what is reported with a title; or all of it as JSON at the end."""
    facts, found = machine(settings.device), []
    for line in header(facts):
        print(line, file=sys.stderr if as_json else sys.stdout)

    def report(title: str, result: Any) -> None:
        found.append(result)
        if not as_json:
            print(f"\n{title}; n = {settings.repeats} turns, medians (min to max)")
            show(result["rows"])

    with ending_in_messages():
        yield report
    if as_json:
        print_json({"machine": {**facts, "load_after": load()}, "settings": settings.to_json(), kind: found})


@contextmanager
def ending_in_messages() -> Iterator[None]:
    """Exit with one message where the user can fix an error."""
    try:
        yield
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None


def print_json(report: Any) -> None:
    """Print a report as JSON; a dataclass is an object."""
    print(json.dumps({"schema": 2, **report}, indent=1, default=asdict))


def show(rows: Sequence[Row]) -> None:
    """Print a table; the columns are those of the first row, where text is left-aligned."""
    left = [name for name, cell in rows[0].items() if isinstance(cell, str)]
    table = plain_table(left, [name for name in rows[0] if name not in left])
    for row in rows:
        table.add_row(*(_text(row.get(str(column.header))) for column in table.columns))
    console = wide_console()
    console.print(table)


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


def measure_parts(
    measure: Callable[[Workload, argparse.Namespace], None], arguments: argparse.Namespace, turn: str
) -> None:
    """Measure each workload on one torch thread, below the machine and what ``n`` counts (``turn``: "20 rounds")."""
    torch.set_num_threads(1)
    print(machine_line("torch"))
    print(f"n = {arguments.repeats} turns of {turn}; medians, min to max")
    for workload in arguments.workloads:
        measure(workload, arguments)
