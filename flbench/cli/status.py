"""``flbench status``: how the sweeps of a store stand, from its files alone."""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flbench.cli.options import DEFAULT_STORE, JsonOption, StoreOption
from flbench.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from flbench.orchestrate import Progress, Seen, Watch
    from flbench.store import Store

#: Failures told in full.
MOST_FAILURES = 20

#: Seconds between two looks of ``--watch``.
PERIOD = 2.0

#: The states a run can be in, as the columns of the table.
STATES = ("done", "diverged", "running", "pending", "failed", "lost")


def status(
    spec: Annotated[
        str | None, typer.Argument(help="A sweep file, or the name of a sweep in the store; default: all of them.")
    ] = None,
    store: StoreOption = DEFAULT_STORE,
    watch: Annotated[bool, typer.Option("--watch", help="Look again every two seconds, until all is done.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show how sweeps stand: states, rounds, and every failure with its reason and log.

    Example: flbench status sweeps/quickstart.yaml --watch
    """
    from flbench.cli.live import say, wide_console
    from flbench.store import Store

    opened = Store(store, create=False)
    console = wide_console()
    watched = [SweepStatus.open(opened, directory) for directory in _directories(opened, spec)]
    while True:
        for one in watched:
            one.look()
        if as_json:
            print(json.dumps(_plain(opened, watched), indent=1))
        else:
            console.print(_table(watched))
            _tell_failures(console, watched)
            say(console, _foot(opened, watched if spec is None else None))
        if not watch or all(one.progress.finished for one in watched):
            return
        time.sleep(PERIOD)


@dataclass
class SweepStatus:
    """One sweep, looked at."""

    directory: Path
    watch: Watch
    progress: Progress

    @classmethod
    def open(cls, store: Store, directory: Path) -> SweepStatus:
        """Look at a sweep for the first time."""
        from flbench.orchestrate import Watch
        from flbench.store import read_plan

        # No attempt is left to a run that failed: whether there will be another is for `sweep` to say.
        watch = Watch(store, read_plan(directory / "plan.jsonl"), max_attempts=0)
        return cls(directory, watch, watch.look())

    def look(self) -> None:
        """Bring the status up to date."""
        self.progress = self.watch.look()

    @property
    def name(self) -> str:
        """The sweep's name and the hash of its plan."""
        return "/".join(self.directory.parts[-2:])

    def counts(self) -> dict[str, int]:
        """How many runs are in each state."""
        ended = Counter(
            "failed" if seen.state.status == "failed" else seen.outcome for seen in self.watch.ended.values()
        )
        ended.update(running=len(self.progress.active), pending=self.progress.pending)
        return {state: ended[state] for state in STATES}


def _directories(store: Store, spec: str | None) -> list[Path]:
    directories = store.sweep_dirs()
    if spec is None:
        return directories
    if Path(spec).suffix in (".yaml", ".yml") or Path(spec).is_file():
        from flbench.sweep import load_sweep

        sweep = load_sweep(spec)
        directory = store.sweep_dir(sweep.name, sweep.spec_hash)
        if directory in directories:
            return [directory]
        raise UserError(f"{spec}: this sweep was not started in {store.root}; start it with: flbench sweep {spec}")
    named = [directory for directory in directories if spec in (directory.parent.name, "/".join(directory.parts[-2:]))]
    if not named:
        known = ", ".join(sorted({directory.parent.name for directory in directories})) or "none"
        raise UserError(f"{spec}: expected a sweep file or the name of a sweep in {store.root}; there are: {known}")
    return named


def _table(watched: list[SweepStatus]) -> RenderableType:
    from rich.table import Table

    from flbench.cli.live import duration

    table = Table(box=None, pad_edge=False, padding=(0, 2), header_style="bold")
    table.add_column("sweep", overflow="fold")
    for title in ("runs", *STATES, "rounds", "left"):
        table.add_column(title, justify="right")
    for one in watched:
        counts, progress = one.counts(), one.progress
        table.add_row(
            one.name,
            str(progress.total),
            *(str(counts[state] or "–") for state in STATES),
            f"{progress.rounds_done}/{progress.rounds_total}",
            duration(progress.eta) if progress.eta else "–",
        )
    return table


def _tell_failures(console: Console, watched: list[SweepStatus]) -> None:
    from flbench.cli.live import news_line, say

    failures = [(one, seen) for one in watched for seen in one.watch.failures()]
    for one, seen in failures[:MOST_FAILURES]:
        say(console, f"{one.name} {seen.run_id}: {news_line(seen)}")
    if len(failures) > MOST_FAILURES:
        say(console, f"and {len(failures) - MOST_FAILURES} more failures; --json lists all")


def _foot(store: Store, everything: list[SweepStatus] | None) -> str:
    """Workers, the store, and what it holds besides sweeps."""
    parts = [f"{len(store.live_workers())} workers alive"]
    if everything is not None:
        planned = {run_id for one in everything for run_id in one.watch.run_ids()}
        single = sum(run_id not in planned for run_id in store.run_ids())
        parts += [f"{single} runs belong to no sweep"] if single else []
    return ", ".join([*parts, f"store: {store.root}"])


def _plain(store: Store, watched: list[SweepStatus]) -> dict[str, Any]:
    return {
        "schema": 1,
        "store": str(store.root),
        "workers": [
            {"token": worker.lease.token, "host": worker.lease.host, "pid": worker.lease.pid, "plan": worker.plan}
            for worker in store.live_workers()
        ],
        "sweeps": [
            {
                "sweep": one.directory.parent.name,
                "spec_hash": one.directory.name,
                "directory": str(one.directory),
                "runs": one.progress.total,
                **one.counts(),
                "rounds_done": one.progress.rounds_done,
                "rounds_total": one.progress.rounds_total,
                "active": [_seen(seen) for seen in one.progress.active],
                "failures": [_seen(seen) for seen in one.watch.failures()],
            }
            for one in watched
        ],
    }


def _seen(seen: Seen) -> dict[str, Any]:
    return {
        "run_id": seen.run_id,
        "label": seen.label,
        "state": seen.outcome,
        "round": seen.round,
        "rounds": seen.rounds,
        "acc": seen.acc,
        "message": seen.state.message,
        "log": str(seen.log) if seen.log else None,
    }
