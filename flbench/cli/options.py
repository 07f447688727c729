"""Options that several commands share, so that they are named and explained alike."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

StoreOption = Annotated[
    Path, typer.Option("--store", envvar="FLBENCH_STORE", show_envvar=True, help="Directory of the store.")
]
DataOption = Annotated[
    Path | None,
    typer.Option("--data", help="Folder of the data sets; default: $FLBENCH_DATA, else the user's cache folder."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print a machine-readable summary on standard output.")]

RerunOption = Annotated[
    bool,
    typer.Option("--rerun", help="Execute finished runs again; their earlier results are kept, and no longer count."),
]

#: Threads, workers or repetitions at most: beyond them a number is a slip of the keyboard.
MOST_AT_ONCE = 10_000

#: Runs at most that an option can count.
MOST_RUNS = 10**9

DEFAULT_STORE = Path("runs")


def public_path(path: Path) -> str:
    """Return a path without the directories of this machine, for documents."""
    return path.name if path.is_absolute() else path.as_posix()
