"""``flbench report``: runs to a leaderboard, a page, a table and figures."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flbench.choices import SelectBy
from flbench.cli.completion import conditions, sweep_files
from flbench.cli.options import DEFAULT_STORE, MOST_RUNS, DataOption, StoreOption, public_path
from flbench.errors import UserError

if TYPE_CHECKING:
    from flbench.report.board import Leaderboard
    from flbench.report.sources import Source


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
    SelectBy | None,
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
    context: typer.Context,
    specs: SpecsArgument = None,
    store: StoreOption = DEFAULT_STORE,
    results: ResultsOption = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE.md", help="The leaderboard to write; default: named after the sweep or store."),
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Also write it as one page with sortable tables.")
    ] = None,
    csv: Annotated[Path | None, typer.Option(metavar="FILE.csv", help="Also write one row a run.")] = None,
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
    force: Annotated[
        bool, typer.Option("--force", help="Replace files that are not an earlier report on the same sweeps.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the cells as JSON and write no leaderboard.")] = False,
) -> None:
    """Write a leaderboard from a store or from exported files: quickstart.md for sweeps/quickstart.yaml.

    Missing, failed and diverged runs are shown as such; the same runs give the same bytes. Where the label-skew paper
    published numbers for a data set and model among the runs, they stand beside ours, each with a verdict.

    Example: flbench report sweeps/quickstart.yaml --html report.html --figures figures
    """
    from flbench.report import check_replaceable, write_text
    from flbench.report.dataframes import write_csv
    from flbench.report.page.leaderboard import document
    from flbench.report.write.html import to_html
    from flbench.report.write.json import to_json
    from flbench.report.write.markdown import to_markdown
    from flbench.sweeps import collection_paused

    for option, path in (("--out", out), ("--html", html), ("--csv", csv)):
        _check_ending(option, path)

    choice = Choice(specs or (), store, results, sets or (), only or (), limit)
    layout = {
        "metric": metric,
        "select_by": select_by,
        "tune": tuple(tune) if tune else None,
        "target": target,
    }
    compared = {"published": published or None, "tolerance": tolerance, "why": why or None}
    with collection_paused():
        board = gather(choice, layout, compared, _typed(context))
    out = out or Path(f"{_name_of(board, choice)}.md")
    for path in () if force else (None if as_json else out, html):
        check_replaceable(path, board.options.title)
    with ExitStack() as stack:
        stack.enter_context(writing())
        if csv is not None:
            write_csv(csv, board.collection.runs)
        if figures is not None or html is not None:
            folder = figures or Path(stack.enter_context(tempfile.TemporaryDirectory()))
            board = _with_figures(board, folder, out if figures else None, data)
        if html is not None:
            write_text(html, to_html(document(board), board.options.title))
        if not as_json:
            write_text(out, to_markdown(document(board)))
    if as_json:
        print(json.dumps(to_json(board), indent=1, allow_nan=False))
        return
    written = [str(path) for path in (out, html, csv) if path is not None]
    if figures is not None:
        written.append(f"{len(board.pictures)} figures in {figures} (SVG and PNG)")
    _show(board, written)


def gather(
    choice: Choice,
    layout: Mapping[str, Any],
    compared: Mapping[str, Any] = MappingProxyType({}),
    arguments: Sequence[str] = (),
) -> Leaderboard:
    """Return the leaderboard of the runs that the user chose.

    Args:
        choice: which runs.
        layout: report options that replace those of every sweep; None where the user gave none.
        compared: options of the comparison with papers, likewise.
        arguments: more arguments, for the command that makes the leaderboard again.

    Raises:
        UserError: there is nothing to report, or an option fits nothing.
    """
    from flbench.papers import papers
    from flbench.report.leaderboard import build
    from flbench.report.parts import options_of, parts_of
    from flbench.sweeps import load_sweeps

    files = [Path(spec) for spec in choice.specs if spec.endswith(".parquet")]
    names = [spec for spec in choice.specs if not spec.endswith(".parquet")]
    sweeps = load_sweeps(names, choice.sets, choice.only, choice.limit)
    is_given = choice.results is not None or bool(files)
    source, named = _source(choice.store, [*(choice.results or ()), *files], given=is_given)
    words = [*map(public_path, files), *arguments]
    parts = parts_of(source, sweeps, **_given(layout))
    if not any(part.collection.runs for part in parts):
        raise UserError(
            f"nothing to report in {', '.join(named) or choice.store}: run `flbench sweep sweeps/quickstart.yaml` first"
        )
    options = options_of(sweeps, words)
    if not sweeps:
        options = dataclasses.replace(options, title=f"{options.title}: {', '.join(_names(choice))}")
    return build(parts, options, papers(**_given(compared)))


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


@contextmanager
def writing() -> Iterator[None]:
    """Let a file that cannot be written be the user's mistake."""
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot write {error.filename or 'a file'}: {error.strerror or error}") from error


#: Options that the command at a leaderboard's end does not repeat: it has the sweep files and their changes anyway, and
#: the last two make no other leaderboard.
_NOT_REPEATED = frozenset({"specs", "sets", "only", "limit", "force", "as_json"})

#: Options that name a file or a folder, of which no document shows the directories of this machine.
_PATHS = frozenset({"store", "results", "out", "html", "csv", "figures", "data"})

#: What the names of files must end in.
_ENDINGS: Mapping[str, tuple[str, ...]] = {"--out": (".md",), "--html": (".html", ".htm"), "--csv": (".csv",)}


def _check_ending(option: str, path: Path | None) -> None:
    if path is not None and path.suffix not in _ENDINGS[option]:
        known = ", ".join(f"{', '.join(endings)} ({name})" for name, endings in _ENDINGS.items())
        wanted = " or ".join(_ENDINGS[option])
        raise UserError(f"{option} {path}: expected a name that ends in {wanted}; known: {known}")


def _typed(context: typer.Context) -> list[str]:
    """Return the options of the command line, to be typed again elsewhere."""
    words = []
    for option in context.command.params:
        name = str(option.name)
        source = context.get_parameter_source(name)
        if source is None or source.name != "COMMANDLINE" or name in _NOT_REPEATED:
            continue
        flag, value = max(option.opts, key=len), context.params[name]
        if value is True:
            words.append(flag)
            continue
        for one in value if isinstance(value, list | tuple) else [value]:
            words += [flag, public_path(Path(one)) if name in _PATHS else str(one)]
    return words


def _names(choice: Choice) -> list[str]:
    """Return the names of the exported files, or of the store."""
    files = [*(choice.results or ()), *(Path(spec) for spec in choice.specs if spec.endswith(".parquet"))]
    return [path.stem for path in files] or [choice.store.resolve().name]


def _name_of(board: Leaderboard, choice: Choice) -> str:
    """Return a report's name: that of its first sweep, file or store, and how many more there are."""
    first, *more = [name for name, _ in board.options.specs] or _names(choice)
    return f"{first}-and-{len(more)}-more" if more else first


def _source(store: Path, results: list[Path], *, given: bool) -> tuple[Source, list[str]]:
    """Where the runs come from, and the names of the files if they come from files."""
    from flbench.report.sources import FilesSource, StoreSource
    from flbench.store import Store

    if not given:
        return StoreSource(Store(store, create=False)), []
    files = [file for path in results for file in (sorted(path.glob("*.parquet")) if path.is_dir() else [path])]
    if not files:
        raise UserError(f"no exported runs (*.parquet) in {', '.join(map(str, results))}; `flbench export` writes them")
    return FilesSource(files), [public_path(path) for path in results]


def _with_figures(board: Leaderboard, directory: Path, out: Path | None, data: Path | None) -> Leaderboard:
    """The leaderboard with its figures in ``directory``; it links to them where it is itself written to ``out``."""
    from flbench.papers import papers
    from flbench.report.figures.kinds import with_links, write_figures

    pictures = write_figures(board, directory, papers(), data)
    return dataclasses.replace(board, pictures=with_links(pictures, out) if out else pictures)


def _show(board: Leaderboard, written: Sequence[str]) -> None:
    from rich.console import Console

    from flbench.report.write.terminal import to_terminal

    console = Console()
    for part in to_terminal(board, console.width):
        console.print(part)
    for note in board.collection.left_out:
        console.print(f"left out: {note}", markup=False)
    console.print(f"wrote {', '.join(written)}", markup=False, highlight=False, soft_wrap=True)
