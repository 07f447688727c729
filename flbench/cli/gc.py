"""``flbench gc``: remove what nobody needs."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flbench.cli.options import DEFAULT_STORE, JsonOption, StoreOption
from flbench.errors import UserError
from flbench.report.literal import visible

if TYPE_CHECKING:
    from flbench.store.garbage import Garbage


def gc(
    store: StoreOption = DEFAULT_STORE,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be removed; remove nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    orphans: Annotated[bool, typer.Option("--orphans", help="Also unfinished runs that no sweep names.")] = False,
    last_checkpoints: Annotated[
        bool,
        typer.Option(
            "--last-checkpoints",
            help="Also the last checkpoint of each finished run: to extend one then means to begin it again.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Remove superseded checkpoints, damaged and unfinished files, and heartbeats of the dead; it says what, and asks.

    Results, metrics, logs, and whatever a live worker holds are never touched.

    Example: flbench gc --dry-run

    Example: flbench gc --orphans --yes
    """
    from flbench.store import Store
    from flbench.store.garbage import find, remove

    opened = Store(store, create=False)
    found = list(find(opened, last_checkpoints=last_checkpoints, orphans=orphans, warn=_warn))
    if not as_json:
        _tell(found)
    if found and not dry_run and not yes:
        _ask()
    gone = [] if dry_run else remove(opened, found, last_checkpoints=last_checkpoints, orphans=orphans)
    if as_json:
        summary = {"schema": 1, "store": str(opened.root), "found": _by_kind(found), "removed": _by_kind(gone)}
        typer.echo(json.dumps(summary, indent=1))
    elif gone:
        typer.echo(f"removed {len(gone)}, freed {readable(sum(one.bytes for one in gone))}")


def _warn(line: str) -> None:
    typer.echo(visible(line), err=True)


def _ask() -> None:
    if not sys.stdin.isatty():
        raise UserError("nobody is there to be asked: say --yes to remove this, or --dry-run to look only")
    if not typer.confirm("Remove this?", err=True):
        raise typer.Exit(0)


def _tell(found: Sequence[Garbage]) -> None:
    from flbench.store.garbage import KINDS

    for kind, counted in _by_kind(found).items():
        if counted["number"]:
            typer.echo(f"{counted['number']:>8} {readable(counted['bytes']):>10}  {KINDS[kind]}")
    if not found:
        typer.echo("nothing to remove")


def _by_kind(found: Sequence[Garbage]) -> dict[Any, dict[str, int]]:
    from flbench.store.garbage import KINDS

    of_kind = {kind: [one.bytes for one in found if one.kind == kind] for kind in KINDS}
    return {kind: {"number": len(sizes), "bytes": sum(sizes)} for kind, sizes in of_kind.items()}


def readable(size: float) -> str:
    """Bytes for people: 512 B, 3.4 MiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
