"""``flbench sweep``: launch what is missing, adopt what runs, end with the leaderboard."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flbench.cli.options import DEFAULT_STORE, Backend, DataOption, JsonOption, StoreOption
from flbench.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from flbench.launch import Launcher
    from flbench.orchestrate import Outcome
    from flbench.store import Store
    from flbench.sweep import Sweep

#: Columns of the tables where there is no terminal.
PIPE_WIDTH = 160

#: Failures told in full; more are counted.
MOST_FAILURES = 10


def sweep(
    spec: Annotated[Path, typer.Argument(help="The sweep file (YAML).")],
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
    workers: Annotated[
        int | None, typer.Option(min=1, help="How many; default: as many as cores and GPUs have room for.")
    ] = None,
    store: StoreOption = DEFAULT_STORE,
    data: DataOption = None,
    set_: Annotated[
        list[str], typer.Option("--set", metavar="PATH=VALUE", help="Change the file, e.g. axes.lr=[0.1,0.3].")
    ] = [],  # noqa: B006  Typer reads it and never changes it
    only: Annotated[
        list[str], typer.Option("--only", metavar="FIELD=VALUE", help="Keep the cells that match, e.g. norm=ln.")
    ] = [],  # noqa: B006
    limit: Annotated[int | None, typer.Option(help="Keep the first so many runs.")] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Start the workers and return (exit code 3).")] = False,
    as_json: JsonOption = False,
) -> None:
    """Run a sweep file: launch what is missing, adopt what is running, end with the leaderboard.

    Calling it again is always safe: finished runs are never repeated, interrupted ones go on where they stopped.
    Exit codes: 0 all done, 1 some runs failed, 2 bad spec or usage, 3 incomplete or detached, 4 store unusable,
    130 interrupted.

    Example: flbench sweep sweeps/quickstart.yaml

    Example: flbench sweep sweeps/lr_robustness.yaml --set axes.lr=[0.1,0.3] --only method=fedavg --dry-run
    """
    from flbench.sweep import load_sweep

    loaded = load_sweep(spec, set_, only, limit)
    if dry_run:
        from flbench.cli.dry_run import print_dry_run

        print_dry_run(loaded, store, as_json=as_json)
        return
    chosen = backend or Backend(loaded.spec.backend.kind)
    if detach and chosen is Backend.inline:
        raise UserError("--detach needs workers of their own: use --backend local")
    raise typer.Exit(_run(loaded, chosen, workers, store, data, detach=detach, as_json=as_json))


def _run(
    loaded: Sweep, backend: Backend, workers: int | None, root: Path, data: Path | None, *, detach: bool, as_json: bool
) -> int:
    from rich.console import Console

    from flbench.cli.live import view_for
    from flbench.orchestrate import Orchestrator, write_plan
    from flbench.store import Store

    began = time.monotonic()
    console = Console(stderr=as_json)
    store = Store(root)
    directory = write_plan(store, loaded)
    plan = str(directory.relative_to(store.root / "sweeps"))

    def launcher() -> Launcher:
        return _launcher(store, plan, loaded, backend, workers, data)

    with view_for(console) as view:
        orchestrator = Orchestrator(
            store,
            plan,
            loaded.experiments,
            launcher,
            max_attempts=loaded.spec.retry.max_attempts,
            show=view.show,
        )
        outcome = orchestrator.run(detach=detach)
    board = None
    if not detach and not outcome.interrupted:
        board = _leaderboard(console, store, loaded, directory, outcome)
    seconds = time.monotonic() - began
    _conclude(console, loaded, directory, board, outcome, seconds)
    if as_json:
        summary = _summary(store, loaded, directory, board, outcome, seconds)
        print(json.dumps(summary, indent=1))
    return outcome.exit_code


def _launcher(
    store: Store, plan: str, loaded: Sweep, backend: Backend, workers: int | None, data: Path | None
) -> Launcher:
    from flbench.launch.inline import InlineLauncher
    from flbench.launch.local import LocalLauncher
    from flbench.worker import Options

    resources = loaded.spec.resources
    options = Options(
        data_root=data,
        device="cuda" if resources.gpus else "cpu",
        pool=resources.cpus,
        max_attempts=loaded.spec.retry.max_attempts,
    )
    if backend is Backend.inline:
        return InlineLauncher(store, plan, loaded.experiments, options)
    if backend is Backend.slurm:
        raise UserError("the slurm backend comes with a later version; use --backend local")
    wanted = workers or getattr(loaded.spec.backend, "workers", None)
    return LocalLauncher(store, plan, options, workers=wanted, cpus=resources.cpus, gpus=resources.gpus)


def _leaderboard(console: Console, store: Store, loaded: Sweep, directory: Path, outcome: Outcome) -> Path:
    from flbench.cli.live import say
    from flbench.orchestrate import leaderboard

    width = console.width if console.is_terminal else PIPE_WIDTH
    path, text = leaderboard(store, loaded, directory, outcome.fingerprint, width)
    say(console, text.rstrip())
    return path


def _conclude(
    console: Console, loaded: Sweep, directory: Path, board: Path | None, outcome: Outcome, seconds: float
) -> None:
    """What was done, what failed and why, what to do next."""
    from flbench.cli.live import duration, news_line, say

    progress = outcome.progress
    for seen in outcome.failures[:MOST_FAILURES]:
        say(console, f"failed: {news_line(seen)}")
    hidden = len(outcome.failures) - MOST_FAILURES
    if hidden > 0:
        say(console, f"and {hidden} more; `flbench status {loaded.path}` lists them")
    if outcome.failures:
        attempts = loaded.spec.retry.max_attempts
        say(console, f"Runs are tried {attempts} times; to try these again: --set retry.max_attempts={2 * attempts}")
    started = f"{outcome.launched} workers started" if outcome.launched else "nothing to launch"
    took = f" in {duration(seconds)}" if outcome.launched else ""
    adopted = f", {outcome.adopted} adopted" if outcome.adopted else ""
    diverged = f" ({progress.diverged} diverged)" if progress.diverged else ""
    failed = f", {progress.failed} failed" if progress.failed else ""
    ended = f"{progress.done} of {progress.total} runs done{diverged}{failed}{took}"
    say(console, f"{loaded.name}: {ended}; {started}{adopted}.")
    if not progress.finished:
        say(console, "Call the same command again to go on.")
    say(console, f"{'Leaderboard: ' + str(board) if board else 'Plan: ' + str(directory)}")


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
