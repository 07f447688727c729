"""``flbench bench``: time the engine against plain loops and the machine's peak."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from flbench.bench.workloads import WORKLOADS
from flbench.choices import Device, Precision
from flbench.cli.acceptance import print_acceptance
from flbench.cli.boundary import print_json
from flbench.cli.numbers import handy, spread_text
from flbench.cli.options import MOST_AT_ONCE, DataOption, JsonOption
from flbench.cli.screen import can_redraw, plain_table, say, wide_console
from flbench.errors import UserError
from flbench.launch.resources import usable_cores
from flbench.launchers import used_device
from flbench.messages import unknown
from flbench.worker import environment

if TYPE_CHECKING:
    from flbench.bench.compare import Comparison, Settings
    from flbench.bench.measure import Note
    from flbench.bench.methods import MethodCosts
    from flbench.bench.probes import ProbeCosts

#: Seconds between two lines of progress without a terminal.
QUIET = 2.0

#: Workloads on which probes and methods are timed by default.
SMALLER = ("digits", "cifar10")

#: Workloads that a GPU is accepted with by default.
LARGER = ("cifar10", "resnet18")

#: Load per usable core at the start above which the user is warned.
BUSY = 0.25


def bench(
    context: typer.Context,
    workloads: Annotated[
        list[str] | None,
        typer.Argument(metavar="[digits|mlp|lenet|cifar10|resnet18]...", help="Workloads to train; default: all."),
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option(
            min=1, max=MOST_AT_ONCE, help="Rounds in a turn; default: 20 of the MLPs, 2 of LeNet, 1 of the others."
        ),
    ] = None,
    repeats: Annotated[
        int, typer.Option(min=1, max=MOST_AT_ONCE, help="Turns of each variant, after one warm-up round.")
    ] = 5,
    device: Annotated[
        Device, typer.Option(help="Device to compute on; auto selects CUDA if available, else the CPU.")
    ] = "auto",
    precision: Annotated[Precision, typer.Option(help="Arithmetic; with bf16 the plain loops stay in fp32.")] = "fp32",
    threads: Annotated[
        int | None,
        typer.Option(
            min=1, max=MOST_AT_ONCE, help="Threads of the loop executor and of plain loops; default: all usable cores."
        ),
    ] = None,
    fuse: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MOST_AT_ONCE,
            help="Runs trained together; default: as many as fill a stack, if auto stacks clients.",
        ),
    ] = None,
    norm: Annotated[str, typer.Option(help="Normalization of the networks, as in sweeps.")] = "none",
    scaling: Annotated[
        bool, typer.Option("--scaling", help="Also time more clients, local steps and fused runs.")
    ] = False,
    probes: Annotated[
        bool, typer.Option("--probes", help="Time the probes instead; default workloads: digits and cifar10.")
    ] = False,
    methods: Annotated[
        str | None,
        typer.Option(metavar="NAME,...", help="Time these methods instead; default workloads: digits and cifar10."),
    ] = None,
    acceptance: Annotated[
        bool,
        typer.Option(
            "--acceptance",
            help="Check a GPU in ten minutes instead; default workloads: cifar10 and resnet18.",
        ),
    ] = False,
    readme: Annotated[
        bool,
        typer.Option(
            "--readme",
            help="Measure docs/engine.md's tables instead, with other frameworks; only --data and --json go with it.",
        ),
    ] = False,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Time training rounds of each executor, of fused runs and of plain PyTorch loops, in turns.

    Speeds are medians with minimum and maximum; ratios are taken within a turn. The peak is the fastest of several
    matrix products and a convolution on as many cores, timed in the same turns. If the files of a data set are missing,
    random images replace them: they cost the same. Evaluation, checkpoints and start-up are not included. On a GPU,
    rounds are timed as one CUDA graph each, and as single kernels.

    With --probes: the time of a measurement of each probe, also in rounds of training, and its share of the time of a
    run that measures every 50 rounds. Rounds between two measurements cost as much as without probes.

    With --methods: the time of a round of each method, also in rounds of FedAvg, per executor on one core.

    With --acceptance, on a GPU and from a checkout: the tests that need a GPU, the time of a round in each way at 10
    and 30 clients, a profile of one round, and the projected time of 10,000 rounds. A part that fails does not lose the
    others; exit code 1 if any failed.

    With --readme: train the same rounds in turns on one core, digits by flbench, plain loops, pfl-research, fluke and
    Flower, and two CNNs by flbench and plain loops. Print the tables, write them into docs/engine.md, their ratios
    into README.md, and the measurement into benchmarks/speed.json. This takes about four minutes, in a checkout of
    flbench's repository. uv makes an environment for each framework; the first time it downloads up to 5 GB.

    Example: flbench bench digits --threads 1

    Example: flbench bench cifar10 --norm ln --precision bf16 --repeats 9

    Example: flbench bench digits cifar10 --scaling --json > speed.json

    Example: flbench bench digits --probes

    Example: flbench bench digits cifar10 --methods feddyn,fedsam,moon

    Example: flbench bench --device cuda --acceptance --json > acceptance.json

    Example: flbench bench --readme
    """
    from flbench.bench.acceptance import accept
    from flbench.bench.compare import Settings, compare  # imports torch, which takes seconds
    from flbench.bench.methods import MethodCosts, method_costs
    from flbench.bench.probes import ProbeCosts, probe_costs

    if readme:
        _readme(context, data, as_json)
        return
    if probes + acceptance + (methods is not None) > 1:
        raise UserError("--probes, --methods and --acceptance are different measurements: give one of them")
    for name in workloads or ():
        if name not in WORKLOADS:
            raise UserError(unknown("workload", name, WORKLOADS))
    if device == "mps":
        raise UserError("--device mps: flbench bench times CPUs and CUDA GPUs only")
    used = used_device(device)
    if acceptance and used == "cpu":
        raise UserError("--acceptance checks a GPU: no CUDA device is in use; run `flbench doctor` to see what works")
    settings = Settings(
        rounds=rounds,
        repeats=repeats,
        device=used,
        precision=precision,
        threads=threads or usable_cores(),
        fuse=fuse,
        norm=norm,
        data_root=data,
    )
    machine, console = _machine(settings), wide_console()
    if not as_json:
        console.print("\n".join(_header(machine, settings)), markup=False, highlight=False)
    if acceptance:
        with _progress() as note:
            parts = accept([WORKLOADS[name] for name in workloads or LARGER], settings, note=note)
        if as_json:
            print_json({**_report(machine, settings), "acceptance": [asdict(part) for part in parts]})
        else:
            print_acceptance(console, parts)
        raise typer.Exit(int(any(part.status == "failed" for part in parts)))
    kind = "probes" if probes else "workloads" if methods is None else "methods"
    measured: list[dict[str, Any]] = []
    for name in dict.fromkeys(workloads or (WORKLOADS if kind == "workloads" else SMALLER)):
        workload = WORKLOADS[name]
        with _progress() as note:
            done: ProbeCosts | MethodCosts | Comparison
            if probes:
                done = probe_costs(workload, settings, note=note)
            elif methods is not None:
                done = method_costs(workload, settings, methods.split(","), note=note)
            else:
                done = compare(workload, settings, scaling=scaling, note=note)
        measured.append(asdict(done))
        if not as_json:
            if isinstance(done, ProbeCosts):
                _print_probes(console, done)
            elif isinstance(done, MethodCosts):
                _print_methods(console, done)
            else:
                _print_comparison(console, done)
    if as_json:
        print_json({**_report(machine, settings), kind: measured})
    else:
        console.print(f"\nload at the end: {_load_text(_load())}", markup=False, highlight=False)


def _readme(context: typer.Context, data: Path | None, as_json: bool) -> None:
    from flbench.bench.compare import Settings  # imports torch, which takes seconds
    from flbench.bench.speed_table import speed_tables
    from flbench.cli.speed_readme import measure_tables, write_tables

    for name in context.params.keys() - {"readme", "data", "as_json"}:
        if getattr(context.get_parameter_source(name), "name", None) == "COMMANDLINE":
            raise UserError(f"--readme measures what the tables of docs/engine.md have: leave out {name!r}")
    settings, errors = Settings(threads=1, data_root=data), Console(stderr=True)
    machine = _machine(settings)
    for line in _header(machine, settings):
        say(errors, line)
    tasks = measure_tables(data, _progress)
    kept = ("date", "cpu", "flbench", "git_commit", "git_dirty", "python", "torch", "load_before")
    described = {**{name: machine[name] for name in kept}, "load_after": _load()}
    measured = {"schema": 1, "machine": described, "tasks": tasks}
    if as_json:
        print_json(measured)
    else:
        print(speed_tables(measured))
    write_tables(measured)
    say(errors, "wrote docs/engine.md, README.md and benchmarks/speed.json")


def _machine(settings: Settings) -> dict[str, Any]:
    """Machine, versions and load, without names of hosts or users."""
    known = environment(settings.device)
    names = ("flbench", "git_commit", "git_dirty", "python", "torch", "system", "cpu", "gpu")
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        **{name: known[name] for name in names},
        "usable_cores": usable_cores(),
        "load_before": _load(),
    }


def _report(machine: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    """What every report in JSON begins with."""
    used = {name: value for name, value in asdict(settings).items() if name != "data_root"}
    return {"schema": 1, "machine": {**machine, "load_after": _load()}, "settings": used}


def _load() -> float | None:
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def _header(machine: Mapping[str, Any], settings: Settings) -> Iterator[str]:
    names, cores = ", ".join(filter(None, [machine["cpu"], machine["gpu"]])), machine["usable_cores"]
    yield f"{machine['date']}, {names}, {cores} usable cores, load {_load_text(machine['load_before'])}"
    yield f"flbench {machine['flbench']}, python {machine['python']}, torch {machine['torch']}, {machine['system']}"
    yield f"device {settings.device}, precision {settings.precision}, threads {settings.threads}"
    if (machine["load_before"] or 0) > BUSY * cores:
        yield "warning: other work keeps this machine busy; timings are unreliable, most of all with several threads"


@contextmanager
def _progress() -> Iterator[Note]:
    """Show progress on standard error: a bar on a terminal, otherwise a line every few seconds."""
    console = Console(stderr=True)
    if can_redraw(console):
        with Progress(console=console, transient=True) as progress:
            task = progress.add_task("preparing", total=None)
            yield lambda what, done, total: progress.update(task, description=what, completed=done, total=total)
        return
    last = time.monotonic()

    def print_line(what: str, done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last > QUIET:
            last = time.monotonic()
            say(console, f"{what}: turn {done + 1} of {total}")

    yield print_line


def _print_comparison(console: Console, done: Comparison) -> None:
    say(
        console,
        f"\n{done.what}, norm {done.norm}: {done.clients} clients, E={done.local_steps}, batch {done.batch_size}, "
        f"{done.flops_per_sample / 1e6:.4g} MFLOP per sample (forward and backward), data {done.data}",
    )
    peaks = []
    for peak in done.peaks:
        where = "the GPU" if done.device == "cuda" else f"{peak.cores} core{'s' * (peak.cores > 1)}"
        peaks.append(f"{peak.flops_per_s / 1e9:.4g} GFLOP/s {peak.precision} on {where} ({peak.by})")
    n, rounds = done.rows[0].rounds_per_s.n, f"{done.rounds} round{'s' * (done.rounds > 1)}"
    say(console, f"peak (best of {n}): {'; '.join(peaks)}. n = {n} turns of {rounds}, medians")
    say(console, f"executor auto selects {done.auto} here")
    references = [f"x {name}" for name in done.rows[0].speedup]
    rows = (
        [
            *(row.variant, row.precision, str(row.cores), spread_text(row.rounds_per_s)),
            *map(handy, (row.client_steps_per_s, row.samples_per_s, row.flops_per_s / 1e9)),
            f"{row.peak_fraction:.1%}",
            *map(spread_text, row.speedup.values()),
        ]
        for row in done.rows
    )
    columns = ["rounds/s (min to max)", "client steps/s", "samples/s", "GFLOP/s", "of peak", *references]
    _print_table(console, plain_table(["variant", "precision", "cores"], columns), rows)
    if done.scaling:
        say(console, f"cost of a round at larger sizes, {done.auto}; x first: relative to the first of its series")
        points = (
            [
                *(point.series, str(point.value), spread_text(point.seconds.times(1000))),
                *(handy(point.client_steps_per_s), spread_text(point.cost)),
            ]
            for point in done.scaling
        )
        columns = ["number", "ms per round, all runs (min to max)", "client steps/s", "x first"]
        _print_table(console, plain_table(["series"], columns), points)


def _print_probes(console: Console, done: ProbeCosts) -> None:
    say(console, f"\n{done.what}, norm {done.norm}, executor {done.executor}, data {done.data}")
    n = done.round_s.n
    say(console, f"a round without probes: {spread_text(done.round_s.times(1000))} ms. n = {n} turns, medians")
    say(console, f"a round of a run with probes, between two measurements: x {spread_text(done.between)}")
    say(console, f"a round that keeps the clients' models for a probe: x {spread_text(done.keeping)}")
    rows = [
        [
            *(cost.probe, spread_text(cost.seconds.times(1000)), spread_text(cost.rounds)),
            *(str(cost.every), f"{cost.share:.2%}"),
        ]
        for cost in done.looks
    ]
    columns = ["ms per measurement (min to max)", "in rounds", "every", "share of the time"]
    _print_table(console, plain_table(["probe"], columns), [*rows, ["all", "", "", "", f"{done.share:.2%}"]])


def _print_methods(console: Console, done: MethodCosts) -> None:
    say(console, f"\n{done.what}, norm {done.norm}, data {done.data}")
    n, rounds = done.rows[0].factor.n, f"{done.rounds} round{'s' * (done.rounds > 1)}"
    say(console, f"n = {n} turns of {rounds}, medians; executor auto selects {done.auto} here")
    rows = (
        [row.executor, row.method, spread_text(row.round_s.times(1000)), spread_text(row.factor)] for row in done.rows
    )
    _print_table(console, plain_table(["executor", "method"], ["ms a round (min to max)", "x fedavg"]), rows)


def _print_table(console: Console, table: Table, rows: Iterable[Sequence[str]]) -> None:
    for row in rows:
        table.add_row(*row)
    console.print(table)


def _load_text(load: float | None) -> str:
    return "unknown" if load is None else handy(load)
