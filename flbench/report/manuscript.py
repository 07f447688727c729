"""A report for a paper: a folder with tables, figures, captions and sources, and a document of all of them."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from flbench.report.bibliography import bibliography
from flbench.report.board import Leaderboard
from flbench.report.figures.drawing import Drawing, FigureKind, save_as
from flbench.report.figures.in_paper import fit
from flbench.report.figures.kinds import draw
from flbench.report.figures.style import PAPER
from flbench.report.output import check_replaceable, write_commented
from flbench.report.page.floats import figure_caption, tables_of
from flbench.report.write.latex import escape, figure, to_latex

_DOCUMENT = r"""\documentclass[10pt,twocolumn]{{article}}
\usepackage[letterpaper,textwidth=6.9in,columnsep=0.3in,textheight=9.2in]{{geometry}}
\usepackage{{booktabs,graphicx}}
\graphicspath{{{{figures/}}}}
\setcounter{{topnumber}}{{4}}\setcounter{{dbltopnumber}}{{4}}
\renewcommand{{\topfraction}}{{0.95}}\renewcommand{{\dbltopfraction}}{{0.95}}
\renewcommand{{\floatpagefraction}}{{0.5}}\renewcommand{{\dblfloatpagefraction}}{{0.5}}
\title{{{title}}}
\author{{flbench}}\date{{}}
\begin{{document}}
\maketitle
Tables and figures of this report, each in a file of its own.
{inputs}
\clearpage
\nocite{{*}}
\bibliographystyle{{plain}}
\bibliography{{references}}
\end{{document}}
"""


#: What a table or a figure needs.
_NEEDS = r"needs \usepackage{booktabs,graphicx}; figures are found with \graphicspath"


def write_manuscript(
    board: Leaderboard, folder: Path, kinds: Iterable[FigureKind], data_root: Path | None, *, replace: bool
) -> int:
    """Write tables, figures and sources into a folder, with ``main.tex``, which shows all of them.

    Returns:
        The number of files.

    Raises:
        UserError: a file is there that is no report with this title, and ``replace`` is false; nothing is written.
    """
    texts = {f"tables/{table.name}.tex": to_latex(table) for table in tables_of(board)}
    drawings = (drawing for kind in kinds for drawing in draw(board, kind, data_root, PAPER))
    with tempfile.TemporaryDirectory() as drawn:  # which files there will be is known when all figures are drawn
        pictures = list(_write_pictures(board, drawings, Path(drawn)))
        texts |= {f"figures/{name}.tex": text for name, text in pictures}
        texts["main.tex"] = _DOCUMENT.format(
            title=escape(board.options.title), inputs="\n".join(f"\\input{{{name}}}" for name in texts)
        )
        texts["references.bib"] = bibliography(board)
        for name in () if replace else texts:
            check_replaceable(folder / name, board.options.title)
        shutil.copytree(drawn, folder / "figures", dirs_exist_ok=True)
    for name, text in texts.items():
        write_commented(board, folder / name, text, _NEEDS if "/" in name else "")
    return len(texts) + len(pictures)


def _write_pictures(board: Leaderboard, drawings: Iterable[Drawing], folder: Path) -> Iterator[tuple[str, str]]:
    """Write drawings as PDF files, and yield the name and the float of each."""
    for drawing in drawings:
        width = fit(drawing)
        save_as(drawing, folder / f"{drawing.name}.pdf")
        yield drawing.name, figure(drawing.name, figure_caption(board, drawing), width)
