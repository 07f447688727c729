"""``flbench plot``: one kind of figure."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flbench.choices import DEFAULT_STORE
from flbench.cli.completion import figures
from flbench.cli.options import (
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
)
from flbench.cli.report import gather, writing
from flbench.errors import UserError
from flbench.messages import unknown


def plot(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="FIGURE",
            autocompletion=figures,
            help="A kind of figure; `flbench show figures` lists them with what they show and require.",
        ),
    ],
    specs: SpecsArgument = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="A .png, .svg or .pdf file (several figures are numbered), or a folder; default: here. A .pdf is for "
            "a paper: as wide as a column or page, with fonts embedded and without a title."
        ),
    ] = None,
    store: StoreOption = DEFAULT_STORE,
    results: ResultsOption = None,
    metric: MetricOption = None,
    select_by: SelectOption = None,
    target: TargetOption = None,
    sets: SetsOption = None,
    only: OnlyOption = None,
    limit: LimitOption = None,
    data: DataOption = None,
) -> None:
    """Draw one kind of figure from a store or from exported files.

    Example: flbench plot lr lr_robustness --out figure7.png

    Example: flbench plot curves quickstart --results results/quickstart.parquet
    """
    # Imports numpy, which help does not need.
    from flbench.papers import papers
    from flbench.report.figures.drawing import FORMATS, save, save_as
    from flbench.report.figures.in_paper import fit
    from flbench.report.figures.kinds import draw
    from flbench.report.figures.style import PAPER, STYLE
    from flbench.report.paper import figure_kinds

    if out is not None and out.suffix and out.suffix not in FORMATS and not out.is_dir():
        raise UserError(f"cannot draw {out}: expected a folder or a name that ends in {', '.join(FORMATS)}")
    known = figure_kinds(papers())
    if kind not in known:
        raise UserError(unknown("kind of figure", kind, known))
    names, changes = parted(specs, sets)
    choice = Choice(names, store, results, changes, only or (), limit)
    given = {"metric": metric, "select_by": select_by, "target": target}
    board = gather(choice, given)
    is_for_paper = out is not None and out.suffix == ".pdf"
    written: list[Path] = []
    with writing():
        for drawing in draw(board, known[kind], data, PAPER if is_for_paper else STYLE):
            if out is None or out.suffix not in FORMATS:
                folder = out or Path()
                folder.mkdir(parents=True, exist_ok=True)
                written += save(drawing, folder)
            else:
                numbered = out.with_name(f"{out.stem}-{len(written) + 1}{out.suffix}") if written else out
                numbered.parent.mkdir(parents=True, exist_ok=True)
                if is_for_paper:
                    fit(drawing)
                save_as(drawing, numbered)
                written.append(numbered)
    if not written:
        requires = f": it requires {known[kind].requires}" if known[kind].requires else ""
        raise UserError(f"these runs do not support a figure of {known[kind].shows}{requires}")
    for path in written:
        typer.echo(f"wrote {path}")
