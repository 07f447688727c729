"""``flbench report``: runs to a leaderboard, a table and figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flbench.cli.options import DEFAULT_STORE, StoreOption
from flbench.errors import UserError

if TYPE_CHECKING:
    from flbench.report.frames import Collection, Source
    from flbench.report.leaderboard import Leaderboard


def report(
    specs: Annotated[
        list[str] | None, typer.Argument(metavar="[SPEC]...", help="Sweep files; without any, every run there is.")
    ] = None,
    store: StoreOption = DEFAULT_STORE,
    results: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE...", help="Exported files (or folders of them) instead of a store; repeatable."),
    ] = None,
    out: Annotated[Path, typer.Option(help="The leaderboard to write.")] = Path("leaderboard.md"),
    csv: Annotated[Path | None, typer.Option(help="Write one row a run, too.")] = None,
    figures: Annotated[Path | None, typer.Option(help="Draw the curves into this folder, too (SVG and PNG).")] = None,
    metric: Annotated[str | None, typer.Option(help="What to rank by; default: as the sweep says, else acc.")] = None,
    published: Annotated[
        bool, typer.Option("--published", help="List every number of the label-skew paper, also what was not run.")
    ] = False,
    tolerance: Annotated[
        float | None,
        typer.Option(metavar="POINTS", min=0, help="What a published number may differ by (default: 1 point)."),
    ] = None,
    sets: Annotated[
        list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help="Change the sweep, as in `flbench sweep`.")
    ] = None,
    only: Annotated[list[str] | None, typer.Option(metavar="FIELD=VALUE", help="Only matching cells.")] = None,
    limit: Annotated[int | None, typer.Option(help="Only the first so many runs of each sweep.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the cells as JSON and write no leaderboard.")] = False,
) -> None:
    """Write leaderboard.md from a store or from exported files.

    Missing, failed and diverged runs are shown as such; the same runs give the same bytes. Where the label-skew paper
    published numbers for a data set and model among the runs, they stand beside ours, each with a verdict.
    """
    from flbench.report import frames, leaderboard, write_text
    from flbench.sweep import load_sweep

    files = [Path(spec) for spec in specs or () if spec.endswith(".parquet")]
    sweeps = [load_sweep(spec, sets or (), only or (), limit) for spec in specs or () if not spec.endswith(".parquet")]
    if not sweeps and (sets or only or limit):
        raise UserError("--set, --only and --limit change a sweep: name its file")
    source, named = _source(store, [*(results or ()), *files], given=results is not None or bool(files))
    arguments = [word for name in named for word in ("--results", name)]
    arguments += ["--metric", metric] if metric else []
    arguments += ["--published"] if published else []
    arguments += ["--tolerance", f"{tolerance:g}"] if tolerance is not None else []
    given = {"metric": metric, "published": published or None, "tolerance": tolerance}
    changes = {name: value for name, value in given.items() if value is not None}
    options = leaderboard.options_of(sweeps, arguments, **changes)
    wishes = [experiment for sweep in sweeps for experiment in sweep.experiments] if sweeps else None
    collection = frames.collect(source, wishes, select_by=options.select_by, metric=options.metric)
    if not collection.runs:
        raise UserError(
            f"nothing to report in {', '.join(named) or store}: run `flbench sweep sweeps/quickstart.yaml` first"
        )
    board = leaderboard.build(collection, options)
    if csv is not None:
        csv.parent.mkdir(parents=True, exist_ok=True)
        frames.tidy(collection.runs).to_csv(csv, index=False, lineterminator="\n")
    drawn = _draw(board, source, figures)
    if as_json:
        print(json.dumps(board.json(), indent=1, ensure_ascii=False, allow_nan=False))
        return
    write_text(out, board.markdown())
    _show(board, collection, [out, *([csv] if csv else []), *drawn])


def _source(store: Path, results: list[Path], *, given: bool) -> tuple[Source, list[str]]:
    """Where the runs come from, and the names of the files if they come from files."""
    from flbench.report.exchange import FilesSource
    from flbench.report.frames import StoreSource
    from flbench.store import Store

    if not given:
        return StoreSource(Store(store, create=False)), []
    files = [file for path in results for file in (sorted(path.glob("*.parquet")) if path.is_dir() else [path])]
    if not files:
        raise UserError(f"no exported runs (*.parquet) in {', '.join(map(str, results))}; `flbench export` writes them")
    return FilesSource(files), [path.name if path.is_absolute() else path.as_posix() for path in results]


def _draw(board: Leaderboard, source: Source, directory: Path | None) -> list[Path]:
    if directory is None:
        return []
    from flbench.report.figures import write_curves

    return write_curves(board, source, directory)


def _show(board: Leaderboard, collection: Collection, written: list[Path]) -> None:
    from rich.console import Console

    console = Console()
    for part in board.tables(console.width):
        console.print(part)
    for note in collection.left_out:
        console.print(f"left out: {note}", markup=False)
    console.print(f"wrote {', '.join(map(str, written))}", markup=False, highlight=False, soft_wrap=True)
