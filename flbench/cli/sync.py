"""``flbench sync``: mirror what is in the store to W&B, TensorBoard or another tracker, now or next to a sweep."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Self

import typer
from rich.console import Console

from flbench.choices import DEFAULT_STORE, TrackingMode
from flbench.cli.boundary import ends_quietly, print_json
from flbench.cli.completion import sweeps as complete_sweeps
from flbench.cli.options import JsonOption, StoreOption
from flbench.cli.screen import can_redraw
from flbench.cli.targets import expect_plans
from flbench.errors import UserError
from flbench.literal import visible
from flbench.store import Store, plan_name
from flbench.store.secrets import redact
from flbench.sweeps import Sweep
from flbench.tracking.sink import SweepView, read_tracker

#: Seconds before the first text; seconds between two drawings on a terminal; longest pause between lines elsewhere.
AFTER, REDRAW, LONGEST_PAUSE = 2.0, 0.2, 60.0


def sync(
    sweeps: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SWEEP",
            help="Sweep files, or names of sweeps in the store; default: all of them.",
            autocompletion=complete_sweeps,
        ),
    ] = None,
    store: StoreOption = DEFAULT_STORE,
    mode: Annotated[
        TrackingMode | None,
        typer.Option(help="For W&B: offline writes files for `wandb sync`; default: what the sweep file says."),
    ] = None,
    to: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TRACKER",
            help="wandb, wandb:PROJECT, tensorboard or tensorboard:DIR; repeatable; default: what the sweep file says.",
        ),
    ] = None,
    as_json: JsonOption = False,
    beside: Annotated[
        bool,
        typer.Option("--beside", hidden=True, help="Continue until standard input closes; used by `flbench sweep`."),
    ] = False,
) -> None:
    """Mirror finished runs, and each sweep's table and figures, to W&B, TensorBoard or another tracker.

    Safe to repeat: only runs that the tracker does not have as they are now are sent. `flbench sweep` does the same on
    its own while it runs. Exit codes: 0 all finished runs are mirrored, 1 some are not, 2 bad usage, 4 store unusable.

    Example: flbench sync

    Example: flbench sync quickstart --mode offline

    Example: flbench sync quickstart --to tensorboard:logs
    """
    # Imports numpy, which help does not need.
    from flbench.tracking.jobs import job_of_plan, job_of_runs, unplanned_runs
    from flbench.tracking.sync import sync_job

    given = [read_tracker(text) for text in to or ()]
    opened = Store(store, create=False)
    plans = [path for name in sweeps for path in expect_plans(opened, name)] if sweeps else opened.sweep_dirs()
    jobs = {plan_name(plan): partial(job_of_plan, plan, sweep_view) for plan in plans}
    if not sweeps and (unplanned := unplanned_runs(opened)):
        jobs["runs of no sweep"] = partial(job_of_runs, opened, unplanned)
    if not jobs:
        raise UserError(f"nothing to mirror in {store}: run `flbench sweep quickstart` first")

    def say(line: str) -> None:
        print(redact(line), file=sys.stderr if as_json else sys.stdout, flush=True)

    with ends_quietly(), Waiting(say, quiet=beside).shown() as output:
        results = [
            result
            for name, make in jobs.items()
            for result in sync_job(opened, name, make, given, mode, output, beside=beside)
        ]
    ok = all(result.ok for result in results)
    if as_json:
        print_json({"schema": 1, "store": str(store), "ok": ok, "sweeps": [result.json() for result in results]})
    raise typer.Exit(int(not ok))


class Waiting:
    """Shows the present step on standard error, also while that step blocks; lines of the result go to ``write``.

    With ``quiet`` no steps are shown.
    """

    def __init__(self, write: Callable[[str], None], *, quiet: bool = False) -> None:
        self._write, self._doing, self._drawn = write, "", False
        self._console = Console(stderr=True)
        self._lock, self._over, self._quiet = threading.Lock(), threading.Event(), quiet

    @contextmanager
    def shown(self) -> Iterator[Self]:
        """Show the steps until the end of the context."""
        thread = threading.Thread(target=self._over.wait if self._quiet else self._show_steps, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._over.set()
            thread.join()
            self._clear()

    def say(self, line: str) -> None:
        """Write a line of the result."""
        with self._lock:
            self._clear()
            self._write(line)

    def show(self, doing: str) -> None:
        """Show a step in place of the one before."""
        self._doing = doing

    def _show_steps(self) -> None:
        redraws, pause = can_redraw(self._console), AFTER
        while not self._over.wait(pause):
            pause = REDRAW if redraws else min(2 * pause, LONGEST_PAUSE)
            with self._lock:
                self._clear()
                self._drawn = redraws
                text = visible(self._doing)
                sys.stderr.write(text[: self._console.width - 1] if redraws else f"{text}\n")
                sys.stderr.flush()

    def _clear(self) -> None:
        if self._drawn:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._drawn = False


def sweep_view(store: Store, sweep: Sweep, folder: Path, say: Callable[[str], None]) -> SweepView:
    """Return a sweep's table and its figures, drawn into ``folder``; without matplotlib there are no figures."""
    # Imports numpy, which help does not need.
    from flbench.papers import papers
    from flbench.report.figures.kinds import write_figures
    from flbench.report.leaderboard import build
    from flbench.report.paper import figure_kinds
    from flbench.report.parts import options_of, parts_of
    from flbench.report.write.json import to_json
    from flbench.run_sources import StoreSource
    from flbench.tracking.sync import sweep_run_id

    board = build(parts_of(StoreSource(store), [sweep]), options_of([sweep]), papers())
    try:
        write_figures(board, folder, figure_kinds(papers()).values())
    except (UserError, OSError) as error:
        say(f"warning: some figures could not be drawn: {error}")
    cells = to_json(board)["cells"]
    values: dict[str, set[str]] = {"method": set(), "norm": set()}
    for cell in cells:
        for name, value in cell["experiment"].items():
            values.setdefault(name, set()).add(_text(value))
    # The table always shows method and norm, and the other fields in which its cells differ.
    fields = [name for name, found in values.items() if len(found) > 1 or (name in ("method", "norm") and found)]
    numbers = ("rounds", "metric", "mean", "sd", "ci_half_width", "n", "wished")
    return SweepView(
        sweep=sweep.name,
        run_id=sweep_run_id(sweep),
        config={"sweep": sweep.name, "spec_hash": sweep.spec_hash, "runs": len(sweep.experiments)},
        columns=[*fields, *numbers, "gaps", "best", "cell_id"],
        rows=[
            [
                *(_text(cell["experiment"].get(field)) for field in fields),
                *(cell[name] for name in numbers),
                ", ".join(f"{count} {why}" for why, count in cell["gaps"].items()),
                cell["best"],
                cell["cell_id"],
            ]
            for cell in cells
        ],
        figures=sorted(folder.glob("*.png")),
    )


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value)
