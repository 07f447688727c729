"""Tables, figures and documents for LaTeX."""

from __future__ import annotations

import dataclasses
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from flbench.cli.options import Choice
from flbench.cli.report import gather
from flbench.errors import UserError
from flbench.papers import papers
from flbench.report.blocks import Entry, Grid, words
from flbench.report.board import Leaderboard
from flbench.report.figures.drawing import Drawing
from flbench.report.figures.in_paper import COLUMN, PAGE, fit
from flbench.report.manuscript import write_manuscript
from flbench.report.page.floats import BEST, Table, tables_of
from flbench.report.paper import figure_kinds
from flbench.report.wording import TIED
from flbench.report.write.latex import escape, to_latex
from tests.report.stores import draw
from tests.report.test_planned import GAIN, INTERACTION, VALUES, planned_board

ROOT = Path(__file__).parents[2]

GOLDEN = r"""\begin{table}[t]
\centering\footnotesize
\setlength{\abovecaptionskip}{0pt}\setlength{\belowcaptionskip}{4pt}
\caption{Accuracy in \%, $\pm$ its interval.}
\label{tab:values}
\begin{tabular}{@{}llrr@{}}
\toprule
 &  & \multicolumn{2}{c}{classes:1} \\
\cmidrule(lr){3-4}
method & norm & \multicolumn{1}{c}{E 1} & \multicolumn{1}{c}{E 10} \\
\midrule
fedavg & none & $74.87 \pm 15.41$\rlap{\textsuperscript{a}} & $-1.50$\rlap{\textsuperscript{b}} \\
 & ln\_x & $\mathbf{97.21} \pm \phantom{0}2.17$\rlap{\textsuperscript{c,d}} & -- \\
\addlinespace
fedbn\textsuperscript{e} & none & $9.00 \pm \phantom{0}1.00$ & $1.2\cdot 10^{-5}$ \\
\bottomrule
\end{tabular}
\par\smallskip
\parbox{\linewidth}{\raggedright
\textsuperscript{a}\,the best.
\textsuperscript{b}\,2/3 diverged.
\textsuperscript{c}\,close.
\textsuperscript{d}\,n = 2, no interval.
\textsuperscript{e}\,no shared model.
}
\end{table}
"""


def test_a_table_as_it_is_written() -> None:
    rows = (
        (*words("fedavg", "none"), Entry("74.87 ± 15.41", mark=BEST), Entry("-1.50", ("2/3 diverged",))),
        (*words("fedavg", "ln_x"), Entry("97.21 ± 2.17", ("n = 2, no interval",), True, TIED), Entry("–")),
        (Entry("fedbn", mark="¹"), *words("none", "9.00 ± 1.00", "1.2e-05")),
    )
    legend = {BEST: "the best", TIED: "close", "¹": "no shared model"}
    grid = Grid(("method", "norm", "classes:1\nE 1", "classes:1\nE 10"), rows, names=2)
    found = to_latex(Table("values", "Accuracy in %, ± its interval.", grid, legend))
    assert found == GOLDEN


@pytest.mark.parametrize(
    ("text", "written"),
    [
        (r"a_b & 5 % #1 $x$ {y} ~ ^", r"a\_b \& 5 \% \#1 \$x\$ \{y\} \textasciitilde{} \textasciicircum{}"),
        (r"\input{/etc/passwd}", r"\textbackslash{}input\{/etc/passwd\}"),
        ('<a|b> "q" --affine', r"\textless{}a\textbar{}b\textgreater{} ''q'' -{}-affine"),
        ("β ≈ 0.1 ± 2, λ √d, Agüera", r"$\beta$ $\approx$ 0.1 $\pm$ 2, $\lambda$ $\surd$d, Agüera"),
        ("标", "[U+6807]"),
        ("two\nlines\x1b[2J", r"two lines\textbackslash{}x1b[2J"),
    ],
)
def test_text_is_shown_as_it_is(text: str, written: str) -> None:
    assert escape(text) == written


def test_bold_is_what_is_shown_and_ties_have_notes() -> None:
    """The runs of the board have too few evaluations for the checks; here the gains pass them, interactions do not."""
    board: Leaderboard = planned_board(VALUES, contrasts=(GAIN, INTERACTION))
    (section,) = board.sections
    planned = tuple(one if one.between else dataclasses.replace(one, doubts=()) for one in section.planned)
    board = dataclasses.replace(board, sections=(dataclasses.replace(section, planned=planned),))
    tables = {one.name: one for one in tables_of(board)}
    assert list(tables) == ["planned-digits-mlp", "interactions-digits-mlp", "all-digits-mlp"]
    shown = {(one.name, one.column) for one in planned if one.is_different}
    notes = {line for row in tables["interactions-digits-mlp"].grid.rows for entry in row for line in entry.below}
    assert "more, but slope not known, not tuned, window not known" in notes
    bold = {
        (row[0].text + grid.head[0].removeprefix("comparison"), head)
        for grid in (tables["planned-digits-mlp"].grid, tables["interactions-digits-mlp"].grid)
        for row in grid.rows
        for head, entry in zip(grid.head, row, strict=True)
        if entry.bold
    }
    assert bold == shown and 0 < len(shown) < len(planned)
    values = tables["all-digits-mlp"].grid
    rows = {row[1].text: dict(zip(values.head, row, strict=True)) for row in values.rows}
    gained = {head for head, entry in rows["ln"].items() if entry.bold}
    assert gained == {column.replace(", ", "\n") for name, column in shown if name == "ln against none"}
    assert not any(entry.bold for entry in rows["none"].values())
    assert {entry.mark for entry in rows["ln"].values()} == {"", BEST}


def test_wide_and_long_tables_become_several() -> None:
    heads = ("norm", *(f"partition {number:02}" for number in range(12)))
    rows = tuple((Entry(f"n{r}"), *(Entry("97.21 ± 2.17") for _ in range(12))) for r in range(50))
    text = to_latex(Table("values", "A caption.", Grid(heads, rows, 1), {}))
    assert re.findall(r"\\label\{(.*)\}", text) == ["tab:values", "tab:values-2", "tab:values-3", "tab:values-4"]
    assert text.count(r"\begin{table*}") == 4 and "(Part 4 of 4.)" in text
    assert all(text.count(f"partition {number:02}") == 2 for number in range(12)), "by rows"


def test_figures_have_the_width_of_a_column_or_a_page() -> None:
    board = planned_board(VALUES, contrasts=(GAIN,))
    (gains,) = draw(board, "gains")
    assert fit(gains) == "column" and gains.figure.get_figwidth() == COLUMN
    assert not gains.figure.get_suptitle()
    beside = Figure(figsize=(6, 3))
    beside.subplots(1, 2)
    assert fit(Drawing("beside", "two panels beside each other", beside)) == "page"
    assert beside.get_figwidth() == PAGE
    below = Figure(figsize=(7, 3), layout="constrained")
    lines = [below.subplots().plot([1, 2], label="a long name of a method")[0] for _ in range(4)]
    below.legend(lines, [line.get_label() for line in lines], loc="outside lower center", ncols=4)
    assert fit(Drawing("below", "a legend below", below)) == "column"
    (legend,) = below.legends
    assert legend.get_window_extent().width <= below.bbox.width and len(legend.get_texts()) == 4


def test_a_manuscript_replaces_only_its_own_files(tmp_path: Path) -> None:
    board = planned_board(VALUES, contrasts=(GAIN,))

    def write(**options: Any) -> None:
        write_manuscript(board, tmp_path, (), None, **{"replace": False, **options})

    write()
    first = {path.name: path.read_bytes() for path in tmp_path.rglob("*.*")}
    write()
    assert {path.name: path.read_bytes() for path in tmp_path.rglob("*.*")} == first, "the same bytes"
    (tmp_path / "main.tex").write_text("My paper.\n")
    (tmp_path / "references.bib").unlink()
    with pytest.raises(UserError, match=r"main\.tex is no report"):
        write()
    assert not (tmp_path / "references.bib").exists(), "nothing is written"
    assert (tmp_path / "main.tex").read_text() == "My paper.\n"
    write(replace=True)
    assert (tmp_path / "main.tex").read_bytes() == first["main.tex"]


@pytest.mark.slow
@pytest.mark.skipif(
    not all(map(shutil.which, ("pdflatex", "bibtex", "pdffonts"))), reason="needs a TeX engine and poppler"
)
@pytest.mark.parametrize("sweep", ["quickstart", "plateau"])
def test_the_document_compiles_as_it_is(sweep: str, tmp_path: Path) -> None:
    runs = ROOT / "results" / f"{sweep}.parquet"
    board = gather(Choice((str(ROOT / "sweeps" / f"{sweep}.yaml"),), Path("runs"), [runs], (), (), None), {})
    kinds = [kind for kind in figure_kinds(papers()).values() if kind.name in ("gains", "curves", "heatmap", "budget")]
    write_manuscript(board, tmp_path, kinds, None, replace=False)

    def run(*command: str) -> str:
        return subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout

    latex = ("pdflatex", "-interaction=nonstopmode", "-halt-on-error", "main")
    run(*latex)
    assert not re.search("warning|error", run("bibtex", "main"), re.IGNORECASE)
    run(*latex)
    log = run(*latex)
    assert not re.search(r"Overfull|undefined|Float too large|multiply defined", log), log
    for document in [tmp_path / "main.pdf", *tmp_path.glob("figures/*.pdf")]:
        fonts = [line.split() for line in run("pdffonts", str(document)).splitlines()[2:]]
        assert fonts and all("Type 3" not in " ".join(font) and font[-5] == "yes" for font in fonts), document
