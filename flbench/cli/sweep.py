"""``flbench sweep``: launch what is missing, adopt what runs, end with the leaderboard."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flbench.cli.completion import conditions, sweep_files
from flbench.cli.options import (
    DEFAULT_STORE,
    MOST_AT_ONCE,
    MOST_RUNS,
    Backend,
    DataOption,
    JsonOption,
    RerunOption,
    StoreOption,
)
from flbench.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from flbench.launch import Launcher
    from flbench.launch.slurm import Request
    from flbench.orchestrate import Outcome, Seen
    from flbench.store import Store
    from flbench.sweeps import Sweep
    from flbench.worker import Options

#: Columns of the tables where there is no terminal.
PIPE_WIDTH = 160

#: Failed runs named at most; further ones are counted.
MOST_FAILURES = 100


def sweep(
    spec: Annotated[Path, typer.Argument(help="The sweep file (YAML).", autocompletion=sweep_files)],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done, from the file and the store; do nothing.")
    ] = False,
    backend: Annotated[
        Backend | None,
        typer.Option(
            envvar="FLBENCH_BACKEND",
            show_envvar=True,
            help="Where workers run; default: what the file says, else local.",
        ),
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(metavar="NAME|FILE", help="What jobs ask SLURM for; NAME stands for slurm/profiles/NAME.yaml."),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MOST_AT_ONCE,
            help="How many; default: as many as cores and GPUs have room for; on SLURM, max_jobs.",
        ),
    ] = None,
    store: StoreOption = DEFAULT_STORE,
    data: DataOption = None,
    set_: Annotated[
        list[str], typer.Option("--set", metavar="PATH=VALUE", help="Change the file, e.g. axes.lr=[0.1,0.3].")
    ] = [],  # noqa: B006  Typer reads it and never changes it
    only: Annotated[
        list[str],
        typer.Option(
            "--only",
            metavar="FIELD=VALUE",
            help="Keep the cells that match, e.g. norm=ln.",
            autocompletion=conditions,
        ),
    ] = [],  # noqa: B006
    limit: Annotated[int | None, typer.Option(max=MOST_RUNS, help="Keep the first so many runs.")] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Start the workers and return (exit code 3).")] = False,
    rerun: RerunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Run a sweep file: launch what is missing, adopt what is running, end with the leaderboard.

    Calling it again is always safe: finished runs are never repeated, interrupted ones go on where they stopped.
    Ctrl-C or SIGTERM lets the workers finish their round, a second one kills them; neither counts as a failed attempt.
    Where SIGINT is ignored, as in a script's background job, it stays so: use SIGTERM or `flbench cancel`.

    Exit codes: 0 all done, 1 some runs failed, 2 bad spec or usage, 3 incomplete or detached, 4 store unusable,
    130 interrupted.

    Example: flbench sweep sweeps/quickstart.yaml

    Example: flbench sweep sweeps/lr_robustness.yaml --set axes.lr=[0.1,0.3] --only method=fedavg --dry-run
    """
    from flbench.config import require_device
    from flbench.planning import name_data_of
    from flbench.sweeps import load_sweep

    given = load_sweep(spec, set_, only, limit)
    wanted = _wanted(given, backend, profile, workers, data)
    require_device(given.experiments, lambda: wanted.options.device)
    elsewhere = wanted.backend is Backend.slurm
    loaded = name_data_of(given, store, data, "nothing" if dry_run else "content" if elsewhere else "data")
    if dry_run:
        from flbench.cli.dry_run import print_dry_run

        print_dry_run(loaded, store, workers=wanted.workers, rerun=rerun, as_json=as_json)
        if wanted.request is not None and not as_json:
            _print_script(loaded, wanted, store)
        return
    if detach and wanted.backend is Backend.inline:
        raise UserError("--detach needs workers of their own: use --backend local")
    raise typer.Exit(_run(loaded, wanted, store, detach=detach, rerun=rerun, as_json=as_json))


@dataclass(frozen=True)
class Wanted:
    """Which workers a sweep is to have; ``request`` is what each asks SLURM for."""

    backend: Backend
    workers: int | None
    options: Options
    request: Request | None


def _wanted(
    loaded: Sweep, backend: Backend | None, profile: str | None, workers: int | None, data: Path | None
) -> Wanted:
    from flbench.worker import Options

    resources, given = loaded.spec.resources, loaded.spec.backend
    chosen = backend or Backend(given.kind)
    options = Options(
        data_root=data,
        device="cuda" if resources.gpus else "cpu",
        pool=resources.cpus,
        fuse=resources.fuse,
        max_attempts=loaded.spec.retry.max_attempts,
    )
    if chosen is not Backend.slurm:
        if profile is not None:
            raise UserError(f"--profile {profile}: profiles are for --backend slurm")
        return Wanted(chosen, workers or getattr(given, "workers", None), options, None)
    from flbench.sweeps.profile import load_profile

    name = profile or getattr(given, "profile", None)
    if name is None:
        raise UserError("--backend slurm needs --profile NAME|FILE, or backend.profile in the sweep")
    request = load_profile(name, resources)
    options = replace(options, device="cuda" if request.has_gpus else "cpu", pool=request.cpus)
    return Wanted(chosen, workers or getattr(given, "max_jobs", 64), options, request)


def _run(loaded: Sweep, wanted: Wanted, root: Path, *, detach: bool, rerun: bool, as_json: bool) -> int:
    from rich.console import Console

    from flbench.cli.live import say, view_for
    from flbench.cli.overview import Overview
    from flbench.orchestrate import Orchestrator, write_plan
    from flbench.planning import begin
    from flbench.store import Store
    from flbench.tracking.process import MirrorProcess

    began = time.monotonic()
    console = Console(stderr=as_json)
    store = Store(root)
    directory = write_plan(store, loaded)
    plan = str(directory.relative_to(store.root / "sweeps"))
    for line in begin(store, loaded.experiments, rerun=rerun):
        say(console, line)

    def launcher() -> Launcher:
        return _launcher(store, plan, loaded, wanted)

    mirror = MirrorProcess.start(loaded.spec.wandb.mode, store.root, directory, detach=detach)
    view = view_for(console, lambda: Overview.of(store, loaded.experiments))
    attempts = loaded.spec.retry.max_attempts
    orchestrator = Orchestrator(store, plan, loaded.experiments, launcher, max_attempts=attempts, show=view.show)
    try:
        with view:
            outcome = orchestrator.run(detach=detach)
    except UserError:
        _report_failures(console, store, loaded, orchestrator.failures())
        raise
    board = None
    if not detach and not outcome.interrupted:
        board = _leaderboard(console, store, loaded, directory, outcome)
    seconds = time.monotonic() - began
    _conclude(console, store, loaded, directory, board, outcome, seconds)
    if outcome.launched + outcome.adopted and (note := mirror.end()):
        say(console, f"W&B: {note}", fold=True)
    _report_failures(console, store, loaded, outcome.failures)
    if as_json:
        summary = _summary(store, loaded, directory, board, outcome, seconds)
        print(json.dumps(summary, indent=1))
    return outcome.exit_code


def _launcher(store: Store, plan: str, loaded: Sweep, wanted: Wanted) -> Launcher:
    from flbench.launch.inline import InlineLauncher
    from flbench.launch.local import LocalLauncher
    from flbench.launch.slurm import SlurmLauncher

    if wanted.backend is Backend.inline:
        return InlineLauncher(store, plan, loaded.experiments, wanted.options)
    if wanted.request is not None:
        return SlurmLauncher(store, plan, wanted.options, wanted.request, workers=wanted.workers or 1)
    resources = loaded.spec.resources
    return LocalLauncher(store, plan, wanted.options, workers=wanted.workers, cpus=resources.cpus, gpus=resources.gpus)


def _print_script(loaded: Sweep, wanted: Wanted, store: Path) -> None:
    """The script that sbatch gets: one array of as many jobs as there are runs, or as are wanted."""
    from flbench.launch.slurm import script

    assert wanted.request is not None
    tasks = min(wanted.workers or 1, len(loaded.experiments))
    typer.echo(script(store, f"{loaded.name}/{loaded.spec_hash}", wanted.options, wanted.request, tasks))


def _leaderboard(console: Console, store: Store, loaded: Sweep, directory: Path, outcome: Outcome) -> Path:
    from flbench.cli.live import say
    from flbench.orchestrate import leaderboard

    width = console.width if console.is_terminal else PIPE_WIDTH
    path, text = leaderboard(store, loaded, directory, outcome.fingerprint, width)
    say(console, text.rstrip())
    return path


def _conclude(
    console: Console,
    store: Store,
    loaded: Sweep,
    directory: Path,
    board: Path | None,
    outcome: Outcome,
    seconds: float,
) -> None:
    """Print what was done, what to do next, and where everything is."""
    from flbench.cli.live import say
    from flbench.cli.numbers import duration

    progress = outcome.progress
    started = f"{outcome.launched} workers started" if outcome.launched else "nothing to launch"
    took = f" in {duration(seconds)}" if outcome.launched else ""
    adopted = f", {outcome.adopted} adopted" if outcome.adopted else ""
    diverged = f" ({progress.diverged} diverged)" if progress.diverged else ""
    failed = f", {progress.failed} failed" if progress.failed else ""
    ended = f"{progress.done} of {progress.total} runs done{diverged}{failed}{took}"
    say(console, f"{loaded.name}: {ended}; {started}{adopted}.")
    if not progress.finished:
        cancelled = "Cancelled; c" if store.mark(f"{loaded.name}/{loaded.spec_hash}").is_put() else "C"
        begin = "Interrupted; c" if outcome.interrupted else cancelled
        say(console, f"{begin}all the same command again to go on.")
    _tell_places(console, store, loaded, directory, board)


def _report_failures(console: Console, store: Store, loaded: Sweep, failures: Sequence[Seen]) -> None:
    """Print what to do about failed runs, then each of them below its reason, the most frequent reason first.

    Call it last: whoever keeps only the end of the output shall know why a sweep failed.
    """
    from flbench.cli.live import say

    if any(seen.state.mendable for seen in failures):
        say(console, "Once the reasons below are fixed, the same command tries the runs that failed for them again.")
    if any(not seen.state.mendable for seen in failures):
        attempts = loaded.spec.retry.max_attempts
        again = f"--set retry.max_attempts={2 * attempts}, or first flbench retry {loaded.name}{_elsewhere(store)}"
        say(console, f"Runs are tried {attempts} times; to try these again: {again}", fold=True)
    by_reason: dict[str, list[Seen]] = {}
    for seen in failures:
        by_reason.setdefault(f"{seen.outcome}: {seen.state.message or 'no message'}", []).append(seen)
    room = MOST_FAILURES
    for reason, found in sorted(by_reason.items(), key=lambda item: -len(item[1])):
        say(console, f"{len(found)} failed: {reason}")
        for seen in found[:room]:
            say(console, f"  {seen.label} (run {seen.run_id}{f', log: {seen.log}' if seen.log else ''})")
        room -= len(found[:room])
    if len(failures) > MOST_FAILURES:
        say(console, f"{len(failures) - MOST_FAILURES} more: flbench status {loaded.name} --json{_elsewhere(store)}")


def _tell_places(console: Console, store: Store, loaded: Sweep, directory: Path, board: Path | None) -> None:
    """Where everything lies, and which commands show it."""
    from flbench.cli.live import say

    elsewhere = _elsewhere(store)
    options = "".join(f" {shlex.quote(word)}" for option in loaded.options for word in option.split(" ", 1))
    spec = f"{shlex.quote(str(loaded.path))}{options}{elsewhere}"
    say(console, f"Leaderboard: {board}" if board else f"Plan:        {directory / 'plan.jsonl'}")
    say(console, f"Runs:        {store.root / 'runs'}")
    if board:
        say(console, f"Pictures:    flbench report {spec} --figures figures --html report.html")
    say(console, f"More:        flbench status {loaded.name}{elsewhere}; flbench logs {loaded.name}{elsewhere}")


def _elsewhere(store: Store) -> str:
    """The option that names the store, where it is not the one that commands look for by themselves."""
    return "" if store.root == DEFAULT_STORE else f" --store {shlex.quote(str(store.root))}"


def _summary(
    store: Store, loaded: Sweep, directory: Path, board: Path | None, outcome: Outcome, seconds: float
) -> dict[str, Any]:
    progress = outcome.progress
    return {
        "schema": 1,
        "sweep": loaded.name,
        "spec_hash": loaded.spec_hash,
        "store": str(store.root),
        "directory": str(directory),
        "leaderboard": str(board) if board else None,
        "total": progress.total,
        "done": progress.done,
        "diverged": progress.diverged,
        "failed": progress.failed,
        "running": len(progress.active),
        "pending": progress.pending,
        "launched": outcome.launched,
        "adopted": outcome.adopted,
        "interrupted": outcome.interrupted,
        "failures": [
            {
                "run_id": seen.run_id,
                "label": seen.label,
                "kind": seen.outcome,
                "message": seen.state.message,
                "log": str(seen.log) if seen.log else None,
            }
            for seen in outcome.failures
        ],
        "seconds": round(seconds, 3),
        "exit_code": outcome.exit_code,
    }
