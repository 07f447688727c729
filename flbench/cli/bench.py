"""``flbench bench``: how fast the engine is, against plain loops and against the machine's own peak."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from flbench.cli.options import MOST_AT_ONCE, DataOption, Device, JsonOption
from flbench.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from flbench.bench.compare import Comparison, Peak, Settings
    from flbench.bench.measure import Note, Spread
    from flbench.bench.probes import ProbeCosts
    from flbench.bench.workloads import Workload

#: As in ``flbench.config``, which would make every ``--help`` wait for pydantic.
Precision = Literal["fp32", "tf32", "bf16", "fp64"]

#: Seconds between two lines of progress where there is no terminal; nothing is said before the first are over.
SILENCE = 2.0

#: Workloads on which probes are measured by default.
PROBED = ("digits", "cifar10")

#: Load per usable core, before anything is measured, above which the numbers say little.
BUSY = 0.25


def bench(
    workloads: Annotated[
        list[str] | None,
        typer.Argument(metavar="[digits|mlp|cifar10|resnet18]...", help="What to train; default: all of them."),
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option(min=1, max=MOST_AT_ONCE, help="Rounds in a turn; default: 20 of the small, 1 of the large."),
    ] = None,
    repeats: Annotated[
        int, typer.Option(min=1, max=MOST_AT_ONCE, help="Turns of each variant, after one round to warm up.")
    ] = 5,
    device: Annotated[
        Device, typer.Option(help="What to compute on; auto takes CUDA where there is any.")
    ] = Device.auto,
    precision: Annotated[Precision, typer.Option(help="Arithmetic; the plain loops have no bf16 and stay fp32.")] = (
        "fp32"
    ),
    threads: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MOST_AT_ONCE,
            help="Threads of the loop executor, torch threads of plain loops; default: usable cores.",
        ),
    ] = None,
    fuse: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MOST_AT_ONCE,
            help="Runs trained together; default: as many as fill a stack, where clients are stacked.",
        ),
    ] = None,
    norm: Annotated[str, typer.Option(help="Normalization of the networks, as in sweeps.")] = "none",
    scaling: Annotated[
        bool, typer.Option("--scaling", help="Also measure the cost with more clients, local steps and fused runs.")
    ] = False,
    probes: Annotated[
        bool, typer.Option("--probes", help="Measure the probes in place of all else; default: on digits and cifar10.")
    ] = False,
    project: Annotated[
        bool | None,
        typer.Option(
            "--project/--no-project",
            help="Also what 10,000 rounds take, evaluated every 100; default: on a GPU, there in fp32, tf32 and bf16.",
        ),
    ] = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Time training rounds of each executor, of fused runs and of plain PyTorch loops, in turns.

    Speeds are medians (with the least and the greatest), ratios are taken turn by turn. The peak is the fastest product
    of two large square matrices on as many cores, measured in the same turns. Where the files of a data set are
    missing, random images stand in for it: they cost the same. Evaluation, checkpoints and start-up are not in it.
    On a GPU rounds are launched as one CUDA graph each, beside the same kernels one by one.

    Example: flbench bench digits --threads 1

    Example: flbench bench cifar10 --norm ln --precision bf16 --repeats 9

    With --probes: what a look of each probe takes, in rounds of training too, and its share of the time of a run that
    looks every 50 rounds. A round after which no probe looks takes the same way as one without probes.

    Example: flbench bench digits cifar10 --scaling --json > speed.json

    Example: flbench bench digits --probes
    """
    from flbench.bench.compare import Settings, compare
    from flbench.bench.probes import probe_costs
    from flbench.cli.live import wide_console

    chosen = _chosen(workloads or (PROBED if probes else []))
    settings = Settings(
        rounds=rounds,
        repeats=repeats,
        device=_resolve(device),
        precision=precision,
        threads=threads or _usable_cores(),
        fuse=fuse,
        norm=norm,
        data_root=data,
    )
    about = _about(settings)
    console = wide_console()
    if not as_json:
        console.print("\n".join(_about_lines(about, settings)), markup=False, highlight=False)
    costs: list[ProbeCosts] = []
    done: list[Comparison] = []
    for workload in chosen:
        if probes:
            with _progress() as note:
                costs.append(probe_costs(workload, settings, note=note))
            if not as_json:
                _print_probes(console, costs[-1])
            continue
        with _progress() as note:
            projecting = settings.device == "cuda" if project is None else project
            done.append(compare(workload, settings, scaling=scaling, projecting=projecting, note=note))
        if not as_json:
            _print(console, done[-1])
    about["load_after"] = _load()
    if as_json:
        print(json.dumps(summary(about, settings, done, costs), indent=1))
    else:
        console.print(f"\nload at the end: {_number(about['load_after'])}", markup=False, highlight=False)


def summary(
    about: Mapping[str, Any], settings: Settings, done: Sequence[Comparison], costs: Sequence[ProbeCosts] = ()
) -> dict[str, Any]:
    """What ``--json`` prints: the fields of ``Settings``, ``Comparison`` and ``ProbeCosts`` by their names."""
    from dataclasses import asdict

    wished = {name: value for name, value in asdict(settings).items() if name != "data_root"}
    measured = {"probes": [asdict(one) for one in costs]} if costs else {"workloads": [asdict(one) for one in done]}
    return {"schema": 1, "machine": dict(about), "settings": wished, **measured}


def _chosen(names: Sequence[str]) -> list[Workload]:
    from flbench.bench.workloads import WORKLOADS
    from flbench.registry import unknown

    for name in names:
        if name not in WORKLOADS:
            raise UserError(unknown("workload", name, WORKLOADS))
    return [WORKLOADS[name] for name in dict.fromkeys(names or WORKLOADS)]


def _resolve(device: Device) -> Any:
    import torch

    if device is Device.cuda and not torch.cuda.is_available():
        raise UserError("there is no CUDA device here; 'flbench doctor' says what works")
    if device is Device.auto:
        return "cuda" if torch.cuda.is_available() else "cpu"
    return device.value


def _usable_cores() -> int:
    from flbench.launch.local import usable_cores

    return usable_cores()


def _about(settings: Settings) -> dict[str, Any]:
    """Machine, versions and load, without names of people or places."""
    from flbench.worker import environment

    known = environment(settings.device)
    names = ("flbench", "git_commit", "git_dirty", "python", "torch", "system", "cpu", "gpu")
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        **{name: known[name] for name in names},
        "usable_cores": _usable_cores(),
        "load_before": _load(),
        "load_after": None,
    }


def _load() -> float | None:
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def _about_lines(about: Mapping[str, Any], settings: Settings) -> Iterator[str]:
    machine = ", ".join(filter(None, [about["cpu"], about["gpu"]]))
    yield f"{about['date']}, {machine}, {about['usable_cores']} usable cores, load {_number(about['load_before'])}"
    yield f"flbench {about['flbench']}, python {about['python']}, torch {about['torch']}, {about['system']}"
    yield f"device {settings.device}, precision {settings.precision}, threads {settings.threads}"
    if (about["load_before"] or 0) > BUSY * about["usable_cores"]:
        yield "The machine is busy with other work: these numbers say little, those of several torch threads least."


@contextmanager
def _progress() -> Iterator[Note]:
    """A bar on standard error; a line now and then where that is no terminal."""
    from rich.console import Console
    from rich.progress import Progress

    from flbench.cli.live import say

    console = Console(stderr=True)
    if console.is_terminal and not console.is_dumb_terminal:
        with Progress(console=console, transient=True) as progress:
            task = progress.add_task("preparing", total=None)
            yield lambda what, done, total: progress.update(task, description=what, completed=done, total=total)
        return
    last = time.monotonic()

    def tell(what: str, done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last > SILENCE:
            last = time.monotonic()
            say(console, f"{what}: turn {done + 1} of {total}")

    yield tell


def _print(console: Console, done: Comparison) -> None:
    from flbench.cli.live import say

    say(
        console,
        f"\n{done.what}, norm {done.norm}: {done.clients} clients, E={done.local_steps}, batch {done.batch_size}, "
        f"{done.flops_per_sample / 1e6:.4g} MFLOP a sample (forward and backward), data {done.data}",
    )
    peaks = [f"{peak.flops_per_s / 1e9:.4g} GFLOP/s {peak.precision} on {_where(done, peak)}" for peak in done.peaks]
    n = done.rows[0].rounds_per_s.n
    say(console, f"gemm peak (best of {n}): {'; '.join(peaks)}. n = {n} turns of {_rounds(done.rounds)}, medians")
    say(console, f"executor auto means {done.auto} here")
    console.print(_comparison_table(done))
    if done.scaling:
        console.print(_scaling_table(done))
    if done.projections:
        console.print(_projection_table(done))
        table10 = [each for each in done.projections if each.what.startswith("Table 10")]
        if table10:
            cells, minutes = sum(each.runs for each in table10), sum(each.seconds for each in table10) / 60
            say(console, f"Table 10 whole: {cells} cells in {_number(minutes)} minutes, one GPU, group after group")


def _print_probes(console: Console, done: ProbeCosts) -> None:
    from rich.table import Table

    from flbench.cli.live import say

    say(console, f"\n{done.what}, norm {done.norm}, executor {done.executor}, data {done.data}")
    n = done.round_s.n
    say(console, f"a round without probes: {_spread(done.round_s.times(1000))} ms. n = {n} turns, medians")
    say(console, f"a round of a run with probes, between two looks: x {_spread(done.between)}")
    say(console, f"one that keeps what the clients sent, for a probe that looks at it: x {_spread(done.keeping)}")
    table = Table("probe", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("ms a look (min to max)", "rounds a look", "every", "share of the time"):
        table.add_column(column, justify="right")
    for look in done.looks:
        table.add_row(
            look.probe, _spread(look.seconds.times(1000)), _spread(look.rounds), str(look.every), f"{look.share:.2%}"
        )
    table.add_row("all", "", "", "", f"{done.share:.2%}")
    console.print(table)


def _comparison_table(done: Comparison) -> Table:
    from rich.table import Table

    references = list(done.rows[0].speedup)
    columns = ("rounds/s (min to max)", "client steps/s", "samples/s", "GFLOP/s", "of peak")
    table = Table("variant", "precision", "cores", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in (*columns, *(f"x {name}" for name in references)):
        table.add_column(column, justify="right")
    for row in done.rows:
        table.add_row(
            row.variant,
            row.precision,
            str(row.cores),
            _spread(row.rounds_per_s),
            _number(row.client_steps_per_s),
            _number(row.samples_per_s),
            _number(row.flops_per_s / 1e9),
            f"{row.peak_fraction:.1%}",
            *(_spread(row.speedup[name]) for name in references),
        )
    return table


def _scaling_table(done: Comparison) -> Table:
    from rich.table import Table

    title = f"cost of a round as things grow, {done.auto}; x first: relative to the first of its series"
    table = Table(
        "growing", title=title, title_justify="left", title_style="", box=None, pad_edge=False, padding=(0, 2, 0, 0)
    )
    for column in ("number", "ms a round, all runs (min to max)", "client steps/s", "x first"):
        table.add_column(column, justify="right")
    for point in done.scaling:
        table.add_row(
            point.series,
            str(point.value),
            _spread(point.seconds.times(1000)),
            _number(point.client_steps_per_s),
            _spread(point.cost),
        )
    return table


def _projection_table(done: Comparison) -> Table:
    from rich.table import Table

    title = "10,000 rounds, evaluated every 100: projected from measured rounds and evaluations"
    table = Table("what", "precision", title=title, title_justify="left", title_style="", box=None, pad_edge=False)
    for column in ("runs", "ms a round, all runs (min to max)", "ms an evaluation", "seconds a run", "GiB at most"):
        table.add_column(column, justify="right")
    for one in done.projections:
        table.add_row(
            one.what,
            one.precision,
            str(one.runs),
            _spread(one.round_s.times(1000)),
            _number(1000 * one.evaluation_s.median),
            _number(one.seconds / one.runs),
            "" if one.peak_bytes is None else _number(one.peak_bytes / 2**30),
        )
    return table


def _spread(spread: Spread) -> str:
    median, low, high = map(_number, (spread.median, spread.min, spread.max))
    return f"{median} ({low} to {high})"


def _number(value: float | None) -> str:
    """Three digits, and all those before the point."""
    if value is None:
        return "unknown"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _where(done: Comparison, peak: Peak) -> str:
    return "the GPU" if done.device == "cuda" else f"{peak.cores} core{'s' * (peak.cores > 1)}"


def _rounds(count: int) -> str:
    return f"{count} round{'s' * (count > 1)}"
