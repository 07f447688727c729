"""``flbench gc``: delete superseded checkpoints and stale files."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from flbench.choices import DEFAULT_STORE
from flbench.cli.boundary import print_json
from flbench.cli.numbers import file_size
from flbench.cli.options import JsonOption, StoreOption
from flbench.errors import UserError
from flbench.literal import visible
from flbench.store import Store
from flbench.store.garbage import KINDS, Garbage, find, remove


def gc(
    store: StoreOption = DEFAULT_STORE,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be deleted; delete nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    orphans: Annotated[bool, typer.Option("--orphans", help="Also unfinished runs that belong to no sweep.")] = False,
    last_checkpoints: Annotated[
        bool,
        typer.Option(
            "--last-checkpoints",
            help="Also the last checkpoint of each finished run: extending a run then starts it over.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Delete superseded checkpoints, damaged and unfinished files, and heartbeats of dead workers, after asking.

    Results, metrics, logs, and the files of live workers are never touched.

    Example: flbench gc --dry-run

    Example: flbench gc --orphans --yes
    """
    opened = Store(store, create=False)

    def warn(line: str) -> None:
        typer.echo(visible(line), err=True)

    found = list(find(opened, last_checkpoints=last_checkpoints, orphans=orphans, warn=warn))
    if not as_json:
        for kind, counted in _by_kind(found).items():
            if counted["number"]:
                typer.echo(f"{counted['number']:>8} {file_size(counted['bytes']):>10}  {KINDS[kind]}")
        if not found:
            typer.echo("nothing to remove")
    if found and not dry_run and not yes:
        if not sys.stdin.isatty():
            raise UserError("standard input is no terminal: confirm with --yes, or only list the files with --dry-run")
        if not typer.confirm("Delete these files?", err=True):
            raise typer.Exit(0)
    gone = [] if dry_run else remove(opened, found, last_checkpoints=last_checkpoints, orphans=orphans)
    if as_json:
        print_json({"schema": 1, "store": str(opened.root), "found": _by_kind(found), "removed": _by_kind(gone)})
    elif gone:
        typer.echo(f"removed {len(gone)}, freed {file_size(sum(one.bytes for one in gone))}")


def _by_kind(found: Sequence[Garbage]) -> dict[Any, dict[str, int]]:
    of_kind = {kind: [one.bytes for one in found if one.kind == kind] for kind in KINDS}
    return {kind: {"number": len(sizes), "bytes": sum(sizes)} for kind, sizes in of_kind.items()}
