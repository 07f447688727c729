"""Options and arguments that several commands share, so that they have the same names and help."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from flbench.choices import SelectBy
from flbench.cli.completion import conditions, sweep_files

#: Threads, workers or repetitions at most: a larger number is a typing mistake.
MOST_AT_ONCE = 10_000

#: Titles of groups of options in help texts; all other options follow under "Options".
WHICH_RUNS, WORKERS, RANKING, NETWORK = "Which runs", "Workers", "Ranking", "Network"

#: Runs at most that an option can count.
MOST_RUNS = 10**9

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
    typer.Option("--rerun", help="Execute finished runs again; earlier results are kept, but no longer count."),
]

SpecsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="SPEC",
        help="Sweep files, or NAMEs of sweeps/NAME.yaml or of `flbench show sweeps`; default: every run. PATH=VALUE is "
        "a change, as with --set.",
        autocompletion=sweep_files,
    ),
]
ResultsOption = Annotated[
    list[Path] | None,
    typer.Option(
        rich_help_panel=WHICH_RUNS,
        metavar="FILE...",
        help="Exported files (or folders of them) instead of a store; repeatable.",
    ),
]
MetricOption = Annotated[
    str | None, typer.Option(rich_help_panel=RANKING, help="Metric to rank by; default: that of the sweep, else acc.")
]
SelectOption = Annotated[
    SelectBy | None,
    typer.Option(
        "--select-by",
        rich_help_panel=RANKING,
        help="Which round counts: last, tail (the mean of the last five evaluations), val (the best on held-out data), "
        "val-tail (as tail, with settings chosen on held-out data) or oracle (the best on the test data).",
    ),
]
TargetOption = Annotated[
    float | None,
    typer.Option(
        rich_help_panel=RANKING,
        help="Value to which rounds and bytes are counted, 0.9 for 90 %; default: 95 % of the column's lowest plateau.",
    ),
]
SetsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        rich_help_panel=WHICH_RUNS,
        metavar="[NAME:]PATH=VALUE",
        help="Change a sweep file, e.g. axes.lr=[0.1,0.3]; with NAME: only the file NAME.yaml.",
    ),
]
ChangesArgument = Annotated[
    list[str] | None, typer.Argument(metavar="PATH=VALUE", help="Changes of the sweep file, the same as --set.")
]
FieldSetsOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="FIELD=VALUE", help="A field, the same as FIELD=VALUE without --set; repeatable."),
]
OnlyOption = Annotated[
    list[str] | None,
    typer.Option(
        "--only",
        rich_help_panel=WHICH_RUNS,
        metavar="FIELD=VALUE",
        help="Only the cells that match, e.g. norm=ln.",
        autocompletion=conditions,
    ),
]
LimitOption = Annotated[
    int | None, typer.Option(rich_help_panel=WHICH_RUNS, max=MOST_RUNS, help="Keep only the first N runs of a sweep.")
]


@dataclass(frozen=True)
class Choice:
    """Which runs a command reads, as the user gave them."""

    specs: Sequence[str]
    store: Path
    results: Sequence[Path] | None
    sets: Sequence[str]
    only: Sequence[str]
    limit: int | None

    @property
    def files(self) -> list[Path]:
        """The exported files, or folders of them, that are read instead of the store: of --results, and by suffix."""
        return [*(self.results or ()), *(Path(spec) for spec in self.specs if spec.endswith(".parquet"))]

    @property
    def names(self) -> list[str]:
        """The names of the exported files, or of the store."""
        return [path.stem for path in self.files] or [self.store.resolve().name]


def parted(specs: Sequence[str] | None, sets: Sequence[str] | None) -> tuple[list[str], list[str]]:
    """Return sweep files, and changes of them: those of ``--set`` and each argument ``PATH=VALUE`` that is no file."""
    changes = [one for one in specs or () if "=" in one and not Path(one).exists()]
    return [one for one in specs or () if one not in changes], [*changes, *(sets or ())]


def public_path(path: Path) -> str:
    """Return a path without the directories of this machine, for documents."""
    return path.name if path.is_absolute() else path.as_posix()
