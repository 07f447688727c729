"""``flbench cancel``: stop the workers of a sweep, or single runs, after their round."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated, Literal

import typer

from flbench.choices import DEFAULT_STORE
from flbench.cli.boundary import ends_quietly, print_json
from flbench.cli.options import JsonOption, StoreOption
from flbench.cli.targets import TargetsArgument, entry_of, find_targets
from flbench.launchers import cancel as cancel_plan
from flbench.messages import counted
from flbench.progress import Watch
from flbench.store import CANCELLED, CancelMark, Entry, Lease, Store, plan_name, read_plan, read_search

#: Seconds between two checks of stopping workers, and until a line says that the command waits for them.
PERIOD = 0.2
SILENCE = 2.0


def cancel(
    names: TargetsArgument,
    store: StoreOption = DEFAULT_STORE,
    wait: Annotated[bool, typer.Option(help="Wait until every worker has saved a checkpoint and exited.")] = True,
    as_json: JsonOption = False,
) -> None:
    """Stop the workers of sweeps, or single runs, after their current round; nothing is lost.

    Workers and orchestrators read a mark in the store, wherever they run; jobs still waiting in a queue are cancelled.
    `flbench sweep` removes the mark and resumes from the checkpoints.

    Example: flbench cancel lr_robustness

    Example: flbench cancel 3fa2 b7 --no-wait
    """
    opened = Store(store, create=False)
    targets = find_targets(opened, names)
    plans = [plan_name(directory) for directory in targets.plans]
    entries = [entry_of(opened, run_id) for run_id in targets.run_ids]
    finished = {plan for plan in plans if _is_finished(opened, plan)}
    done = {plan: cancel_plan(opened, plan) for plan in plans if plan not in finished}
    verdicts = {entry.run_id: cancel_run(opened, entry) for entry in entries}
    if not as_json:
        for plan in plans:
            if plan in finished:
                typer.echo(f"{plan}: done; nothing to cancel")
        for plan, lines in done.items():
            typer.echo(f"{plan}: cancelled{''.join(f'; {line}' for line in lines)}")
        for run_id, verdict in verdicts.items():
            typer.echo(f"{run_id}: {verdict}")
    with ends_quietly():
        if wait:
            _wait(opened, plans, entries, quiet=as_json)
        left = _busy(opened, plans, entries)
    if as_json:
        print_json({"schema": 1, "store": str(opened.root), "sweeps": plans, "runs": verdicts, "busy": left})


def cancel_run(store: Store, entry: Entry) -> Literal["cancelled", "stopping", "done", "not running"]:
    """Stop the worker that executes a run, or keep workers from starting it; ``flbench sweep`` or ``retry`` undo it."""
    run = store.run(entry.run_id)
    while True:
        state = run.state(entry.request())
        if state.status == "done":
            return "done"
        if state.status == "running":
            CancelMark(run.last_attempt().path).put("flbench cancel")
            return "stopping"
        if not state.claimable() or (state.status != "pending" and not store.live_workers()):
            return "not running"
        attempt = store.claim(entry.parse(), Lease.here())
        if attempt is not None:
            attempt.end(CANCELLED, "by `flbench cancel` before it began; `flbench sweep` starts it", user_fixable=True)
            return "cancelled"


def _is_finished(store: Store, plan: str) -> bool:
    """Return whether every run of a plan is done or was dropped by its search, and no worker is left on it."""
    if any(worker.plan == plan for worker in store.live_workers()):
        return False
    directory = store.sweeps / plan
    progress = Watch(store, read_plan(directory / "plan.jsonl"), 0, read_search(directory)).update()
    return progress.done + progress.dropped == progress.total


def _wait(store: Store, plans: Sequence[str], entries: Sequence[Entry], *, quiet: bool) -> None:
    """Wait until no worker executes what was cancelled; Ctrl-C ends the waiting, not the cancelling."""
    began, to_say = time.monotonic(), not quiet
    while busy := _busy(store, plans, entries):
        if to_say and time.monotonic() - began > SILENCE:
            typer.echo(
                f"waiting for {counted(busy, 'worker')} to end the round; Ctrl-C ends the waiting, not the cancelling"
            )
            to_say = False
        time.sleep(PERIOD)


def _busy(store: Store, plans: Sequence[str], entries: Sequence[Entry]) -> int:
    """Return how many workers still work on the plans, plus how many of the runs are still executed."""
    workers = sum(worker.plan in plans for worker in store.live_workers())
    running = sum(store.run(entry.run_id).state(entry.request()).status == "running" for entry in entries)
    return workers + running
