"""``flbench report``: write a leaderboard, a page, a table and figures of runs."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flbench.choices import DEFAULT_STORE
from flbench.cli.boundary import print_json
from flbench.cli.options import (
    RANKING,
    Choice,
    DataOption,
    LimitOption,
    MetricOption,
    OnlyOption,
    ResultsOption,
    SelectOption,
    SetsOption,
    SpecsArgument,
    StoreOption,
    TargetOption,
    parted,
    public_path,
)
from flbench.cli.screen import wide_console
from flbench.errors import UserError
from flbench.messages import counted
from flbench.store import Store
from flbench.sweeps import collection_paused, load_sweeps

if TYPE_CHECKING:
    from flbench.report.board import Leaderboard
    from flbench.run_sources import Source

TuneOption = Annotated[
    list[str] | None,
    typer.Option(
        rich_help_panel=RANKING,
        metavar="FIELD",
        help="Hyperparameter of which each row shows its best value; repeatable (default: lr).",
    ),
]

#: Options that the command in a leaderboard omits: it has the sweep files and their changes anyway, and the last
#: two do not change the leaderboard.
_NOT_REPEATED = frozenset({"specs", "sets", "only", "limit", "force", "as_json"})

#: Options that name a file or a folder; documents do not show the directories of this machine.
_PATHS = frozenset(
    {"store", "results", "out", "details", "html", "csv", "figures", "latex", "bibtex", "data", "opening"}
)

#: Titles of further groups of options in the help.
_WRITES, _PUBLISHED = "Files to write", "Further parts"

#: Endings of file names.
_ENDINGS: Mapping[str, tuple[str, ...]] = {
    "--out": (".md",),
    "--html": (".html", ".htm"),
    "--csv": (".csv",),
    "--bibtex": (".bib",),
}


def report(
    context: typer.Context,
    specs: SpecsArgument = None,
    store: StoreOption = DEFAULT_STORE,
    results: ResultsOption = None,
    out: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel=_WRITES,
            metavar="FILE.md",
            help="The leaderboard to write; default: named after the sweep or store.",
        ),
    ] = None,
    details: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel=_WRITES,
            metavar="FOLDER",
            help="Write the details as a page for each data set, paper and study into this folder, and a first page.",
        ),
    ] = None,
    title: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Title of the report; default: the names of the sweeps.")
    ] = None,
    opening: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            exists=True,
            dir_okay=False,
            help="Markdown that begins the first page; planned comparisons are folded below the values.",
        ),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel=_WRITES, metavar="FILE.html", help="Also write it as one page with sortable tables."
        ),
    ] = None,
    csv: Annotated[
        Path | None, typer.Option(rich_help_panel=_WRITES, metavar="FILE.csv", help="Also write a table of all runs.")
    ] = None,
    figures: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel=_WRITES, help="Also draw all figures that the runs support, into this folder (SVG and PNG)."
        ),
    ] = None,
    latex: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel=_WRITES,
            metavar="FOLDER",
            help="Also write what a paper needs into this folder: tables (booktabs), figures (PDF as wide as a column "
            "or page), captions and sources; its main.tex shows all of them.",
        ),
    ] = None,
    bibtex: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel=_WRITES,
            metavar="FILE.bib",
            help="Also write the sources of what the report uses and compares.",
        ),
    ] = None,
    metric: MetricOption = None,
    select_by: SelectOption = None,
    tune: TuneOption = None,
    target: TargetOption = None,
    published: Annotated[
        bool,
        typer.Option(
            "--published",
            rich_help_panel=_PUBLISHED,
            help="List all numbers of the label-skew paper, including those without runs.",
        ),
    ] = False,
    tolerance: Annotated[
        float | None,
        typer.Option(
            rich_help_panel=_PUBLISHED,
            metavar="POINTS",
            min=0,
            help="Widest interval, to either side, that confirms a published number (default: 5 points).",
        ),
    ] = None,
    why: Annotated[
        bool,
        typer.Option(
            "--why",
            rich_help_panel=_PUBLISHED,
            help="Show accuracy beside what probes measured (features, sharpness, drift), and what explains it.",
        ),
    ] = False,
    sets: SetsOption = None,
    only: OnlyOption = None,
    limit: LimitOption = None,
    data: DataOption = None,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite files that are not earlier reports on the same sweeps.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the cells as JSON and write no leaderboard.")] = False,
) -> None:
    """Write a leaderboard from a store or from exported files: quickstart.md for sweeps/quickstart.yaml.

    It begins with a first page (answers, one table, few figures); --details writes the rest into pages of their own.
    Missing, failed and diverged runs are shown as such; the same runs give the same bytes. Where a run has the
    settings of a number of the label-skew paper or NIID-Bench, the published ones are shown beside ours, with verdicts.

    Example: flbench report quickstart --html report.html --figures figures

    Example: flbench report quickstart --latex paper
    """
    # Imports numpy, which help does not need.
    from flbench.papers import papers
    from flbench.report.bibliography import bibliography
    from flbench.report.dataframes import write_csv
    from flbench.report.figures.kinds import write_figures
    from flbench.report.manuscript import write_manuscript
    from flbench.report.output import check_replaceable, targets, write_commented, write_text, written
    from flbench.report.page.document import document
    from flbench.report.paper import figure_kinds
    from flbench.report.write.html import to_html
    from flbench.report.write.json import to_json

    for option, path in (("--out", out), ("--html", html), ("--csv", csv), ("--bibtex", bibtex)):
        check_ending(option, path)
    names, changes = parted(specs, sets)
    choice = Choice(names, store, results, changes, only or (), limit)
    layout = {"metric": metric, "select_by": select_by, "tune": tuple(tune) if tune else None, "target": target}
    compared = {"published": published or None, "tolerance": tolerance, "why": why or None}
    with collection_paused():
        board = gather(choice, layout, compared, _typed(context))
    if title is not None:
        board = dataclasses.replace(board, options=dataclasses.replace(board.options, title=title))
    if opening is not None:
        text = opening.read_text(encoding="utf-8", errors="replace").strip()
        board = dataclasses.replace(board, options=dataclasses.replace(board.options, opening=text))
    first, *more = [name for name, _ in board.options.specs] or choice.names
    out = out or Path(f"{first}-and-{len(more)}-more.md" if more else f"{first}.md")
    for path in () if force else (html, bibtex, *(() if as_json else targets(board, out, details))):
        check_replaceable(path, board.options.title)
    with ExitStack() as stack:
        stack.enter_context(writing())
        if latex is not None:  # the first, because it checks its files when its figures are drawn
            count = write_manuscript(board, latex, figure_kinds(papers()).values(), data, replace=force)
        if csv is not None:
            write_csv(csv, board.collection.runs)
        if figures is not None or html is not None:
            folder = figures or Path(stack.enter_context(tempfile.TemporaryDirectory()))
            pictures = write_figures(board, folder, figure_kinds(papers()).values(), data)
            board = dataclasses.replace(board, pictures=pictures)
        if html is not None:
            write_text(html, to_html(document(board), board.options.title))
        if bibtex is not None:
            write_commented(board, bibtex, bibliography(board))
        shown = board if figures is not None else dataclasses.replace(board, pictures=())
        pages = {} if as_json else written(shown, out, details)
        for path, text in pages.items():
            write_text(path, text)
    if as_json:
        print_json(to_json(board))
        return
    files = [str(path) for path in (out, html, csv, bibtex) if path is not None]
    if details is not None:
        files.insert(1, f"{counted(len(pages) - 1, 'page')} in {details}")
    if figures is not None:
        files.append(f"{counted(len(board.pictures), 'figure')} in {figures} (SVG and PNG)")
    if latex is not None:
        files.append(f"{counted(count, 'file')} in {latex} (see main.tex)")
    _show(board, files)
    if html is not None:
        print(page_line(html))


def check_ending(option: str, path: Path | None) -> None:
    """Raise UserError for a file whose name does not end as the files of an option do."""
    if path is not None and path.suffix not in _ENDINGS[option]:
        known = ", ".join(f"{', '.join(endings)} ({name})" for name, endings in _ENDINGS.items())
        wanted = " or ".join(_ENDINGS[option])
        raise UserError(f"{option} {path}: expected a name that ends in {wanted}; known: {known}")


def page_line(path: Path) -> str:
    """Return the line with the address of a page, which most terminals open on a click."""
    return f"page: {path.resolve().as_uri()}"


def gather(
    choice: Choice,
    layout: Mapping[str, Any],
    compared: Mapping[str, Any] = MappingProxyType({}),
    arguments: Sequence[str] = (),
) -> Leaderboard:
    """Return the leaderboard of the runs that the user chose.

    Args:
        choice: which runs.
        layout: report options that replace those of every sweep, unless they are None.
        compared: options of the comparison with papers, unless they are None.
        arguments: more arguments of the command that makes the leaderboard again.

    Raises:
        UserError: there is nothing to report, or an option does not apply.
    """
    from flbench.exchange.transfer import FilesSource
    from flbench.papers import papers
    from flbench.report.leaderboard import build
    from flbench.report.parts import options_of, parts_of
    from flbench.run_sources import StoreSource

    exported = [spec for spec in choice.specs if spec.endswith(".parquet")]
    names = [spec for spec in choice.specs if spec not in exported]
    sweeps = load_sweeps(names, choice.sets, choice.only, choice.limit)
    source: Source
    if choice.results is None and not exported:
        source, place = StoreSource(Store(choice.store, create=False)), str(choice.store)
    else:
        paths, place = choice.files, ", ".join(map(public_path, choice.files))
        files = [file for path in paths for file in (sorted(path.glob("*.parquet")) if path.is_dir() else [path])]
        if not files:
            given = ", ".join(map(str, paths))
            raise UserError(f"no exported runs (*.parquet) in {given}; `flbench export` writes them")
        source = FilesSource(files)
    parts = parts_of(source, sweeps, **_without_none(layout))
    if not any(part.collection.runs for part in parts):
        raise UserError(f"nothing to report in {place}: run `flbench sweep quickstart` first")
    options = options_of(sweeps, [*(public_path(Path(spec)) for spec in exported), *arguments])
    if not sweeps:
        options = dataclasses.replace(options, title=f"{options.title}: {', '.join(choice.names)}")
    return build(parts, options, papers(**_without_none(compared)))


def _without_none(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


@contextmanager
def writing() -> Iterator[None]:
    """Report a file that cannot be written as a UserError."""
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot write {error.filename or 'a file'}: {error.strerror or error}") from error


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


def _show(board: Leaderboard, written: Sequence[str]) -> None:
    from flbench.report.runs import code_notes_of
    from flbench.report.write.terminal import to_terminal

    console = wide_console()
    for part in to_terminal(board, console.width):
        console.print(part)
    for note in code_notes_of(board.collection.runs):
        console.print(note, markup=False, highlight=False, soft_wrap=True)
    for note in board.collection.left_out:
        console.print(f"left out: {note}", markup=False)
    console.print(f"wrote {', '.join(written)}", markup=False, highlight=False, soft_wrap=True)
