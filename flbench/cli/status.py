"""``flbench status``: how the sweeps of a store stand, from its files alone."""

from __future__ import annotations

import shlex
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flbench.choices import DEFAULT_STORE
from flbench.cli.boundary import ends_quietly, print_json
from flbench.cli.completion import sweeps
from flbench.cli.curves import Curves
from flbench.cli.options import JsonOption, StoreOption, public_path
from flbench.cli.screen import screen
from flbench.cli.status_tables import status_parts
from flbench.cli.sweep_status import SingleRuns, SweepStatus, rounded
from flbench.cli.targets import expect_plans
from flbench.errors import StoreUnusable
from flbench.run_names import SINGLE
from flbench.store import Store

if TYPE_CHECKING:
    from flbench.cli.status_page import StatusPage

#: Seconds between two reads of ``--watch``.
PERIOD = 2.0


def status(
    spec: Annotated[
        str | None,
        typer.Argument(
            help="A sweep file, or the name of a sweep in the store; default: all of them.", autocompletion=sweeps
        ),
    ] = None,
    store: StoreOption = DEFAULT_STORE,
    watch: Annotated[bool, typer.Option("--watch", help="Repeat every two seconds until all runs have ended.")] = False,
    html: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.html",
            help="Also write a page with curves, a map of the leaderboard, settings against results and links to logs; "
            "with --watch the page in the browser follows the runs.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show sweep progress and active workers: states, rounds, leading cells, and the last failures of each kind.

    It only reads the store, so it works while a sweep runs, after it, and from any machine that sees the store. With
    --json, each sweep has: sweep, spec_hash, directory, problem, cancelled, runs, the number of runs in each state,
    rounds_done, rounds_total, rounds_per_second and seconds_left (null without workers), active, errors (by kind) and
    failures (each with run_id, label, state, metric and its value, message, log). The runs of `flbench run` are counted
    together, under single; its problem names those that cannot be read. Exit code 4 if a plan cannot be read.

    Example: flbench status sweeps/quickstart.yaml --watch

    Example: flbench status quickstart --watch --html live.html

    Example: flbench status lr_robustness --json
    """
    opened = Store(store, create=False)
    directories = opened.sweep_dirs() if spec is None else expect_plans(opened, spec)
    watched = [SweepStatus(opened, directory) for directory in directories]
    single, curves = SingleRuns(opened), Curves(opened)
    with (
        ends_quietly(),
        screen(redraws=watch and not as_json) as (console, show),
        _page(opened, watched, html, spec) as page,
    ):
        while True:
            began = time.monotonic()
            live = opened.live_workers()
            workers = Counter(worker.plan for worker in live)
            for one in watched:
                one.update(workers[one.name])
            if spec is None:
                single.update(sum(worker.plan.startswith(SINGLE) for worker in live))
            shown = [*watched, single] if single.progress.total or single.problem else watched
            if as_json:
                leases = [
                    {
                        "token": worker.lease.token,
                        "host": worker.lease.host,
                        "pid": worker.lease.pid,
                        "slurm_job": worker.lease.slurm_job,
                        "plan": worker.plan,
                        "heartbeat_age": rounded(opened.liveness.heartbeat_age(worker.lease)),
                    }
                    for worker in live
                ]
                facts = {"schema": 1, "store": str(opened.root), "workers": leases}
                facts |= {"sweeps": [one.json() for one in watched]}
                print_json(facts | ({"single": single.json()} if spec is None else {}))
            else:
                parts = status_parts(opened, shown, curves, width=console.width)
                show(parts if html is None else [*parts, f"page: {html}"])
            if page is not None:
                page.read(shown)
            if not watch or not any(one.goes_on for one in shown):
                break
            # Reading a large store takes long: leave the disk to the workers for most of the time.
            pause = max(PERIOD, 5 * (time.monotonic() - began))
            if page is not None:
                page.write(pause)
            time.sleep(pause)
    if any(one.problem for one in watched):
        raise typer.Exit(StoreUnusable.exit_code)


@contextmanager
def _page(store: Store, watched: list[SweepStatus], path: Path | None, spec: str | None) -> Iterator[StatusPage | None]:
    """Yield the page, if one is requested; however the command ends, its last page does not load itself again."""
    if path is None:
        yield None
        return
    from flbench.cli.status_page import StatusPage  # imports the report

    words = ["flbench", "status", *([] if spec is None else [public_path(Path(spec))]), "--html", public_path(path)]
    page = StatusPage(store, watched, path, shlex.join(words))
    try:
        yield page
    finally:
        page.write(None)
