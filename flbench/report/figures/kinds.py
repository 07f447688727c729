"""How figures of any kind are drawn and written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flbench.errors import UserError
from flbench.messages import line_in, reason
from flbench.report.board import Leaderboard, Picture
from flbench.report.figures.drawing import FIGURES, Drawing, FigureKind, save
from flbench.report.figures.style import STYLE, matplotlib_style


def draw(board: Leaderboard, kind: FigureKind, data_root: Path | None = None, style: Any = STYLE) -> Iterator[Drawing]:
    """Draw the figures of one kind; ``data_root`` is the folder of the data sets (None: the usual one)."""
    with _mistakes_of(kind), matplotlib_style(style):
        for drawing in kind.draw(board, data_root) if kind.reads_data else kind.draw(board):
            # The first layout uses the sizes of titles and labels before it: a second one keeps titles apart.
            drawing.figure.draw_without_rendering()
            yield drawing


@contextmanager
def _mistakes_of(kind: FigureKind) -> Iterator[None]:
    """Report an error of a figure that a plug-in draws as a UserError with its file and line."""
    try:
        yield
    except (Exception, SystemExit) as error:
        if isinstance(error, UserError) or not FIGURES.source(kind.name):
            raise
        file = kind.draw.__code__.co_filename
        line = line_in(file, error) or kind.draw.__code__.co_firstlineno
        raise UserError(f"{file}:{line}: the figure {kind.name!r} raised {reason(error)}") from error


def write_figures(
    board: Leaderboard, directory: Path, kinds: Iterable[FigureKind], data_root: Path | None = None
) -> tuple[Picture, ...]:
    """Draw the kinds that the runs support as SVG and PNG into ``directory``."""
    directory.mkdir(parents=True, exist_ok=True)
    pictures = []
    for kind in kinds:
        for drawing in draw(board, kind, data_root):
            svg, _ = save(drawing, directory)
            pictures.append(Picture(kind.name, drawing.caption, svg, drawing.place, kind.on_first_page))
    return tuple(pictures)
