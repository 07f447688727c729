"""``flbench bench``: time the user's own experiment by flbench and by careful plain PyTorch loops."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer
from rich.console import Console
from rich.progress import Progress

from flbench.cli.boundary import print_json
from flbench.cli.completion import fields as complete_fields
from flbench.cli.numbers import handy, spread_text
from flbench.cli.options import MOST_AT_ONCE, DataOption, FieldSetsOption, JsonOption
from flbench.cli.screen import can_redraw, plain_table, say, wide_console
from flbench.config import Federated
from flbench.errors import UserError
from flbench.launch.resources import usable_cores
from flbench.launchers import used_device
from flbench.messages import counted
from flbench.sweeps import experiment_from
from flbench.worker import environment

if TYPE_CHECKING:
    from flbench.bench.timing import Note

#: Seconds between two lines of progress without a terminal.
QUIET = 2.0

#: Load per usable core at the start above which the user is warned.
BUSY = 0.25


def bench(
    fields: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FIELD=VALUE",
            help="Fields of the experiment, as of flbench run, e.g. dataset=cifar10 model=cnn norm=ln.",
            autocompletion=complete_fields,
        ),
    ] = None,
    sets: FieldSetsOption = None,
    repeats: Annotated[int, typer.Option(min=1, max=MOST_AT_ONCE, help="Turns of each, after a warm-up.")] = 5,
    device: Annotated[
        Literal["auto", "cpu", "cuda"],
        typer.Option(help="Device to compute on; auto selects CUDA if available, else the CPU."),
    ] = "auto",
    threads: Annotated[
        int,
        typer.Option(
            min=1,
            max=MOST_AT_ONCE,
            help="Threads of the loop executor and of the plain loops; 1 is the work of one core.",
        ),
    ] = 1,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Time training rounds of an experiment by flbench and by two careful plain PyTorch loops, in turns.

    One loop has torch's default layout of images, the other channels last and the fused optimizer. Both train the same
    networks, clients and local steps with images in memory, and average as FedAvg does, whatever the method; bf16 they
    compute by autocast. Speeds are medians with minimum and maximum, relative to the faster loop of the same turn. If
    clients are stacked, as many runs as fill a stack are also trained together.

    If the files of a data set are missing, random images replace them: they cost the same. Evaluation, checkpoints and
    start-up are not included. Use an idle machine: under other load, several threads wait for each other.

    Example: flbench bench dataset=cifar10 model=cnn norm=ln

    Example: flbench bench model.widths=[128] clients=100 E=1 --repeats 9 --json
    """
    experiment = experiment_from([*(fields or ()), *(sets or ())])
    if not isinstance(experiment, Federated):
        raise UserError(f"kind={experiment.kind}: flbench bench times federated training only")
    if data is not None and not data.is_dir():
        raise UserError(f"--data {data}: there is no such folder")
    used = used_device(device)

    from flbench.bench.timing import Spread, compare  # imports torch, which takes seconds
    from flbench.data.datasets import Dataset
    from flbench.data.random_images import load_or_random

    facts, console = machine(used), wide_console()
    if not as_json:
        for line in header(facts):
            say(console, line)
    images = load_or_random(cast(Dataset, experiment.dataset), data)
    with progress() as note:
        done = compare(experiment, images, device=used, threads=threads, repeats=repeats, note=note)
    facts["load_after"] = load()
    if as_json:
        settings = {"device": used, "threads": threads, "repeats": repeats}
        report = {"schema": 2, "machine": facts, "settings": settings, "experiment": experiment.to_json()}
        print_json({**report, "data": images.fingerprint, **asdict(done)})
        return
    say(console, f"{described(experiment)}; data: {images.fingerprint}")
    say(console, f"executor {done.executor}, {counted(threads, 'thread')}; n = {repeats} turns, medians (min to max)")
    table = plain_table(["trained by"], ["ms a round and run", "times as fast as the faster plain loop"])
    for name, seconds in done.seconds.items():
        speed = spread_text(done.speed[name]) if name in done.speed else ""
        table.add_row(name, spread_text(Spread.of(seconds).times(1000)), speed)
    console.print(table)


def described(experiment: Federated) -> str:
    """Return the components and sizes of an experiment in one line."""
    components: Any = (experiment.dataset, experiment.model, experiment.norm, experiment.method, experiment.partition)
    names, epochs = ", ".join(component.label() for component in components), experiment.local_epochs
    clients = f"{experiment.cohort_size} of {counted(experiment.clients, 'client')}"
    work = f"E={experiment.local_steps}" if epochs is None else f"{epochs} local epoch{'s' * (epochs != 1)}"
    return f"{names}: {clients}, {work}, batch {experiment.batch_size}"


def machine(device: str) -> dict[str, Any]:
    """Return the machine, versions and load, without names of hosts or users."""
    known = environment(device)
    names = ("flbench", "git_commit", "git_dirty", "python", "torch", "system", "cpu", "gpu")
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        **{name: known[name] for name in names},
        "device": device,
        "usable_cores": usable_cores(),
        "load_before": load(),
    }


def load() -> float | None:
    """Return the load of the last minute, where the system knows it."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def header(facts: Mapping[str, Any]) -> Iterator[str]:
    """Yield lines about the machine, the last a warning if it is busy."""
    names, busy = ", ".join(filter(None, [facts["cpu"], facts["gpu"]])), facts["load_before"]
    text = "unknown" if busy is None else handy(busy)
    yield f"{facts['date']}, {names}, {facts['usable_cores']} usable cores, load {text}, device {facts['device']}"
    yield f"flbench {facts['flbench']}, python {facts['python']}, torch {facts['torch']}, {facts['system']}"
    if (busy or 0) > BUSY * facts["usable_cores"]:
        yield "warning: other work keeps this machine busy; timings are unreliable, most of all with several threads"


@contextmanager
def progress() -> Iterator[Note]:
    """Show progress on standard error: a bar on a terminal, otherwise a line every few seconds."""
    console = Console(stderr=True)
    if can_redraw(console):
        with Progress(console=console, transient=True) as bar:
            task = bar.add_task("preparing", total=None)
            yield lambda what, done, total: bar.update(task, description=what, completed=done, total=total)
        return
    last = time.monotonic()

    def print_line(what: str, done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last > QUIET:
            last = time.monotonic()
            say(console, f"{what}: turn {done + 1} of {total}")

    yield print_line
