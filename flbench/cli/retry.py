"""``flbench retry``: reset failures, so that the next sweep retries the runs."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

import typer

from flbench.choices import DEFAULT_STORE
from flbench.cli.boundary import print_json
from flbench.cli.options import JsonOption, OnlyOption, StoreOption
from flbench.cli.targets import TargetsArgument, entries_of, find_targets
from flbench.errors import UserError
from flbench.literal import visible
from flbench.messages import counted
from flbench.store import Store
from flbench.sweeps import condition


def retry(
    names: TargetsArgument,
    store: StoreOption = DEFAULT_STORE,
    failed: Annotated[
        list[str] | None,
        typer.Option("--failed", metavar="KIND", help="Only this kind of failure, e.g. oom, error, lost; repeatable."),
    ] = None,
    only: OnlyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Retry failed, lost and cancelled runs on the next `flbench sweep`.

    Their attempts and logs are kept, but no longer count. Diverged runs are results, and are never repeated.

    Example: flbench retry lr_robustness --failed oom --failed cuda_oom

    Example: flbench retry lr_robustness --only method=scaffold
    """
    opened = Store(store, create=False)
    wanted = condition(only or ())
    found = []
    for entry in entries_of(opened, find_targets(opened, names)):
        state = opened.run(entry.run_id).state(entry.request())
        if state.status not in ("failed", "lost") or not (state.failures or state.user_fixable):
            continue
        if state.unreadable:
            typer.echo(visible(f"left out: run {entry.run_id} cannot be read: {state.message}"), err=True)
        else:
            found.append((entry, state.kind or state.status))
    if failed and (unknown := sorted({*failed} - {kind for _, kind in found})):
        there = ", ".join(sorted({kind for _, kind in found})) or "no failures at all"
        raise UserError(f"--failed {unknown[0]}: nothing here failed so; there are: {there}")
    chosen = [
        (entry, kind) for entry, kind in found if (not failed or kind in failed) and (not only or wanted(entry.parse()))
    ]
    for entry, _ in chosen:
        opened.run(entry.run_id).reset_failures()
    if as_json:
        runs = [{"run_id": entry.run_id, "kind": kind} for entry, kind in chosen]
        print_json({"schema": 1, "store": str(opened.root), "forgiven": runs})
        return
    kinds = ", ".join(f"{count} {kind}" for kind, count in Counter(kind for _, kind in chosen).most_common())
    if chosen:
        typer.echo(f"{counted(len(chosen), 'run')} may be tried again ({kinds}): call `flbench sweep` for it")
    else:
        typer.echo("nothing failed that could be tried again")
