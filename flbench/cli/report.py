"""``flbench report``: runs to a leaderboard, a page, a table and figures."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flbench.cli.completion import conditions, sweep_files
from flbench.cli.options import DEFAULT_STORE, MOST_RUNS, DataOption, StoreOption
from flbench.errors import UserError

if TYPE_CHECKING:
    from flbench.report.frames import Collection, Source
    from flbench.report.leaderboard import Leaderboard


class Rule(StrEnum):
    """By what a run's round, and hyper-parameters, are chosen."""

    last = "last"
    val = "val"
    oracle = "oracle"


SpecsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[SPEC]...", help="Sweep files; without any, every run there is.", autocompletion=sweep_files
    ),
]
ResultsOption = Annotated[
    list[Path] | None,
    typer.Option(metavar="FILE...", help="Exported files (or folders of them) instead of a store; repeatable."),
]
MetricOption = Annotated[str | None, typer.Option(help="What to rank by; default: as the sweep says, else acc.")]
SelectOption = Annotated[
    Rule | None,
    typer.Option(
        "--select-by", help="Which round counts: last, val (the best on held-out data) or oracle (on the test data)."
    ),
]
TuneOption = Annotated[
    list[str] | None,
    typer.Option(metavar="FIELD", help="Hyper-parameter of which each row shows its best; repeatable (default: lr)."),
]
TargetOption = Annotated[
    float | None,
    typer.Option(help="Value to which rounds and bytes are counted (default: what the baseline ends with)."),
]
SetsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="[NAME:]PATH=VALUE",
        help="Change the sweeps, as in `flbench sweep`, or only the one of the file NAME.yaml.",
    ),
]
OnlyOption = Annotated[
    list[str] | None,
    typer.Option(metavar="FIELD=VALUE", help="Only matching cells.", autocompletion=conditions),
]
LimitOption = Annotated[int | None, typer.Option(max=MOST_RUNS, help="Only the first so many runs of each sweep.")]


@dataclasses.dataclass(frozen=True)
class Choice:
    """Which runs a command is about, as the user gave them."""

    specs: Sequence[str]
    store: Path
    results: Sequence[Path] | None
    sets: Sequence[str]
    only: Sequence[str]
    limit: int | None


def report(
    specs: SpecsArgument = None,
    store: StoreOption = DEFAULT_STORE,
    results: ResultsOption = None,
    out: Annotated[Path, typer.Option(help="The leaderboard to write.")] = Path("leaderboard.md"),
    html: Annotated[Path | None, typer.Option(help="Write it as one page with sortable tables, too.")] = None,
    csv: Annotated[Path | None, typer.Option(help="Write one row a run, too.")] = None,
    figures: Annotated[
        Path | None, typer.Option(help="Draw the figures that the runs support into this folder, too (SVG and PNG).")
    ] = None,
    metric: MetricOption = None,
    select_by: SelectOption = None,
    tune: TuneOption = None,
    target: TargetOption = None,
    published: Annotated[
        bool, typer.Option("--published", help="List every number of the label-skew paper, also what was not run.")
    ] = False,
    tolerance: Annotated[
        float | None,
        typer.Option(metavar="POINTS", min=0, help="What a published number may differ by (default: 1 point)."),
    ] = None,
    why: Annotated[
        bool,
        typer.Option(
            "--why", help="Put accuracy beside what probes saw: features, sharpness, drift; and what explains it."
        ),
    ] = False,
    sets: SetsOption = None,
    only: OnlyOption = None,
    limit: LimitOption = None,
    data: DataOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the cells as JSON and write no leaderboard.")] = False,
) -> None:
    """Write leaderboard.md from a store or from exported files.

    Missing, failed and diverged runs are shown as such; the same runs give the same bytes. Where the label-skew paper
    published numbers for a data set and model among the runs, they stand beside ours, each with a verdict.

    Example: flbench report sweeps/quickstart.yaml --html report.html --figures figures
    """
    from flbench.report import frames, write_text
    from flbench.sweeps import collection_paused

    choice = Choice(specs or (), store, results, sets or (), only or (), limit)
    given = {
        "metric": metric,
        "select_by": select_by.value if select_by else None,
        "tune": tuple(tune) if tune else None,
        "target": target,
        "published": published or None,
        "tolerance": tolerance,
        "why": why or None,
    }
    with collection_paused():
        board, collection = gather(choice, given, [] if figures is None else ["--figures", _public(figures)])
    with ExitStack() as stack:
        stack.enter_context(writing())
        if csv is not None:
            csv.parent.mkdir(parents=True, exist_ok=True)
            frames.tidy(collection.runs).to_csv(csv, index=False, lineterminator="\n")
        if figures is not None or html is not None:
            folder = figures or Path(stack.enter_context(tempfile.TemporaryDirectory()))
            board = _with_figures(board, collection, folder, out if figures else None, data)
        if html is not None:
            write_text(html, board.html())
        if not as_json:
            write_text(out, board.markdown())
    if as_json:
        print(json.dumps(board.json(), indent=1, ensure_ascii=False, allow_nan=False))
        return
    written = [str(path) for path in (out, html, csv) if path is not None]
    if figures is not None:
        written.append(f"{len(board.pictures)} figures in {figures} (SVG and PNG)")
    _show(board, collection, written)


def gather(choice: Choice, given: dict[str, Any], arguments: Sequence[str] = ()) -> tuple[Leaderboard, Collection]:
    """The runs that the user chose, and their leaderboard.

    Args:
        choice: which runs.
        given: options of the leaderboard; None where the user gave none.
        arguments: more arguments, for the command that makes the leaderboard again.

    Raises:
        UserError: there is nothing to report, or an option fits nothing.
    """
    from flbench.report import frames, leaderboard
    from flbench.sweeps import load_sweeps

    files = [Path(spec) for spec in choice.specs if spec.endswith(".parquet")]
    names = [spec for spec in choice.specs if not spec.endswith(".parquet")]
    sweeps = load_sweeps(names, choice.sets, choice.only, choice.limit)
    is_given = choice.results is not None or bool(files)
    source, named = _source(choice.store, [*(choice.results or ()), *files], given=is_given)
    words = [word for name in named for word in ("--results", name)] + _arguments(given)
    changes = {name: value for name, value in given.items() if value is not None}
    options = leaderboard.options_of(sweeps, [*words, *arguments], **changes)
    wishes = [experiment for sweep in sweeps for experiment in sweep.experiments] if sweeps else None
    collection = frames.collect(source, wishes, select_by=options.select_by, metric=options.metric)
    if not collection.runs:
        raise UserError(
            f"nothing to report in {', '.join(named) or choice.store}: run `flbench sweep sweeps/quickstart.yaml` first"
        )
    return leaderboard.build(collection, options), collection


@contextmanager
def writing() -> Iterator[None]:
    """Let a file that cannot be written be the user's mistake."""
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot write {error.filename or 'a file'}: {error.strerror or error}") from error


def _arguments(given: dict[str, Any]) -> list[str]:
    """The options as the user would type them."""
    words = []
    for name, value in given.items():
        flag = f"--{name.replace('_', '-')}"
        if value is True:
            words.append(flag)
        elif value is not None:
            values = value if isinstance(value, tuple) else (value,)
            words += [word for one in values for word in (flag, f"{one:g}" if isinstance(one, float) else one)]
    return words


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
    return FilesSource(files), [_public(path) for path in results]


def _public(path: Path) -> str:
    """A path without the directories of this machine."""
    return path.name if path.is_absolute() else path.as_posix()


def _with_figures(
    board: Leaderboard, collection: Collection, directory: Path, out: Path | None, data: Path | None
) -> Leaderboard:
    """The leaderboard with its figures in ``directory``; it links to them where it is itself written to ``out``."""
    from flbench.report.figures import with_links, write_figures

    pictures = write_figures(board, collection, directory, data)
    return dataclasses.replace(board, pictures=with_links(pictures, out) if out else pictures)


def _show(board: Leaderboard, collection: Collection, written: Sequence[str]) -> None:
    from rich.console import Console

    console = Console()
    for part in board.tables(console.width):
        console.print(part)
    for note in collection.left_out:
        console.print(f"left out: {note}", markup=False)
    console.print(f"wrote {', '.join(written)}", markup=False, highlight=False, soft_wrap=True)
