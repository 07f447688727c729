"""Tables and figures for LaTeX: booktabs, and graphicx for figures; notes below a table, its caption above.

A table is as wide as a column of a page with two, or as the page; a longer or wider one becomes several.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from string import ascii_lowercase

from flbench.literal import line
from flbench.report.blocks import Entry, Grid
from flbench.report.figures.in_paper import Width
from flbench.report.page.floats import Table
from flbench.report.write.columns import fitting

#: Room for characters in footnote size in a column and on a page, and what lies between two columns of a table.
COLUMN, PAGE, BETWEEN = 54, 112, 3

#: Most rows of a table, which a page has room for.
MOST_ROWS = 44

_GREEK = "alpha beta gamma delta epsilon eta mu lambda rho sigma tau"
_WRITTEN = {
    **{mark: f"\\{mark}" for mark in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",
    "“": "``",
    "”": "''",
    "’": "'",
    "–": "--",
    "±": r"$\pm$",
    "≈": r"$\approx$",
    "≥": r"$\geq$",
    "≤": r"$\leq$",
    "×": r"$\times$",
    "→": r"$\to$",
    "√": r"$\surd$",
    "‖": r"$\Vert$",
    "½": r"$1/2$",
    "¹": r"$^1$",
    "²": r"$^2$",
    "ᵀ": r"$^\top$",
    "…": r"\ldots{}",
    **{mark: f"$\\{name}$" for mark, name in zip("αβγδεημλρστ", _GREEK.split(), strict=True)},
    "\N{NO-BREAK SPACE}": "~",
}

#: A number, with the half-width of its interval.
_NUMBER = re.compile(r"([+-]?\d+(?:\.\d+)?(?:e[+-]?\d+)?)(?: ± (\d+)((?:\.\d+)?(?:e[+-]?\d+)?))?")


def escape(text: str) -> str:
    """Return a text that LaTeX shows as it is, on one line; letters that few fonts have become their code points."""
    text = re.sub(r"-(?=-)", "-{}", line(text).replace("\n", " "))
    return re.sub(r"-\{\}|.", lambda found: found[0] if found[0] == "-{}" else _written(found[0]), text)


def _written(mark: str) -> str:
    is_known = mark.isascii() or (ord(mark) < 0x180 and mark.isalpha())
    return _WRITTEN.get(mark) or (mark if is_known else f"[U+{ord(mark):04X}]")


def comment(text: str) -> str:
    """Return a comment line without @, after which BibTeX would read an entry even in a comment."""
    return f"% {line(text).replace('@', '(at)')}\n"


def to_latex(table: Table) -> str:
    """Return a table as floats, several where one would be too long or too wide."""
    parts = list(_parts(table.grid))
    texts = []
    for number, grid in enumerate(parts, start=1):
        part = f" (Part {number} of {len(parts)}.)" if len(parts) > 1 else ""
        label = table.name if number == 1 else f"{table.name}-{number}"
        texts.append(_float(dataclasses.replace(table, grid=grid, name=label, caption=table.caption + part)))
    return "\n".join(texts)


def figure(name: str, caption: str, width: Width) -> str:
    """Return the float of a PDF file."""
    environment, size = ("figure", "column") if width == "column" else ("figure*", "text")
    return "\n".join(
        [
            f"\\begin{{{environment}}}[t]",
            r"\centering",
            f"\\includegraphics[width=\\{size}width]{{{name}.pdf}}",
            f"\\caption{{{escape(caption)}}}",
            f"\\label{{fig:{name}}}",
            f"\\end{{{environment}}}\n",
        ]
    )


def _parts(grid: Grid) -> Iterator[Grid]:
    """Yield tables that fit on a page, each with the names of the rows."""
    sizes = [_size(grid, column) for column in range(len(grid.head))]
    names = sum(sizes[: grid.names])
    down = math.ceil(len(grid.rows) / math.ceil(len(grid.rows) / MOST_ROWS))
    across = math.ceil((len(grid.head) - grid.names) / len(fitting(sizes[grid.names :], PAGE - names)))
    for start in range(0, len(grid.rows), down):
        rows = grid.rows[start : start + down]
        for first in range(grid.names, len(grid.head), across):
            kept = [*range(grid.names), *range(first, min(first + across, len(grid.head)))]
            yield Grid(
                tuple(grid.head[column] for column in kept),
                tuple(tuple(row[column] for column in kept) for row in rows),
                grid.names,
            )


def _size(grid: Grid, column: int) -> int:
    """Return the width of a column in characters, with the space beside it."""
    # A line of a head that neighbours share lies above all of them.
    shared = {one for other in (column - 1, column + 1) if 0 <= other < len(grid.head) for one in _lines(grid, other)}
    own = [one for one in _lines(grid, column) if one not in shared]
    return BETWEEN + max(map(len, [*own, *(row[column].text for row in grid.rows)]))


def _lines(grid: Grid, column: int) -> list[str]:
    return grid.head[column].split("\n")


def _float(table: Table) -> str:
    grid = table.grid
    wide = "*" if sum(_size(grid, column) for column in range(len(grid.head))) > COLUMN else ""
    notes = _Notes(table.legend)
    columns = "".join("r" if grid.is_number(column) else "l" for column in range(len(grid.head)))
    rows = list(_rows(grid, notes))
    return "\n".join(
        [
            f"\\begin{{table{wide}}}[t]",
            r"\centering\footnotesize",
            r"\setlength{\abovecaptionskip}{0pt}\setlength{\belowcaptionskip}{4pt}",
            f"\\caption{{{escape(table.caption)}}}",
            f"\\label{{tab:{table.name}}}",
            f"\\begin{{tabular}}{{@{{}}{columns}@{{}}}}",
            r"\toprule",
            *_head(grid),
            r"\midrule",
            *rows,
            r"\bottomrule",
            r"\end{tabular}",
            *notes.lines(),
            f"\\end{{table{wide}}}\n",
        ]
    )


class _Notes:
    """Numbers the notes of a table by letters, in the order of their first use."""

    def __init__(self, legend: Mapping[str, str]) -> None:
        self._legend = legend
        self._letters: dict[str, str] = {}

    def of(self, entry: Entry) -> str:
        """Return the letters of an entry's marks and lower lines, as a superscript; empty for none."""
        texts = [*(self._legend.get(mark, mark) for mark in entry.mark.split()), *entry.below]
        letters = [self._letters.setdefault(text, _letter(len(self._letters))) for text in texts]
        return f"\\textsuperscript{{{','.join(letters)}}}" if letters else ""

    def lines(self) -> list[str]:
        """Return what the letters mean."""
        if not self._letters:
            return []
        texts = (f"\\textsuperscript{{{letter}}}\\,{escape(text)}." for text, letter in self._letters.items())
        return [r"\par\smallskip", r"\parbox{\linewidth}{\raggedright", *texts, "}"]


def _letter(number: int) -> str:
    """Return a, b, ..., z, aa, ab, ..."""
    more, last = divmod(number, len(ascii_lowercase))
    return (_letter(more - 1) if more else "") + ascii_lowercase[last]


def _head(grid: Grid) -> Iterator[str]:
    """Yield the lines of the head; neighbours with equal texts in a line and in all above it share one cell."""
    heads = [_lines(grid, column) for column in range(len(grid.head))]
    levels = max(map(len, heads))
    # Names of rows stand in the lowest line, other heads begin in the first one.
    padded = [
        [*[""] * (levels - len(one)), *one] if not grid.is_number(column) else [*one, *[""] * (levels - len(one))]
        for column, one in enumerate(heads)
    ]
    for level in range(levels):
        cells, rules, at = [], [], 1
        for shared, members in groupby(range(len(padded)), key=lambda column: _key(padded, grid, column, level)):
            count, text = len(list(members)), escape(shared[-1])
            cells.append(f"\\multicolumn{{{count}}}{{c}}{{{text}}}" if grid.is_number(at - 1) else text)
            rules += [f"\\cmidrule(lr){{{at}-{at + count - 1}}}"] if count > 1 and text else []
            at += count
        yield f"{' & '.join(cells)} \\\\"
        if rules:
            yield "".join(rules)


def _key(padded: Sequence[Sequence[str]], grid: Grid, column: int, level: int) -> tuple[str, ...]:
    """Return a key that is equal for columns with a common cell in a line of the head; none share the lowest."""
    is_alone = not grid.is_number(column) or level == len(padded[column]) - 1
    return (str(column) if is_alone else "", *padded[column][: level + 1])


def _rows(grid: Grid, notes: _Notes) -> Iterator[str]:
    """Yield the rows; where all rows of each first name are together, only the first of them shows it."""
    firsts = [row[0].text for row in grid.rows]
    blocks = [name for name, _ in groupby(firsts)]
    is_grouped = grid.names > 1 and len(blocks) == len(set(blocks)) < len(firsts)
    digits = [max(_digits(row[column]) for row in grid.rows) for column in range(len(grid.head))]
    for number, row in enumerate(grid.rows):
        before = grid.rows[number - 1][0] if is_grouped and number > 0 else None
        if before and before.text != row[0].text:
            yield r"\addlinespace"
        cells = [_cell(entry, digits[column], notes, grid.is_number(column)) for column, entry in enumerate(row)]
        yield f"{' & '.join(['' if row[0] == before else cells[0], *cells[1:]])} \\\\"


def _digits(entry: Entry) -> int:
    """Return the digits of a half-width before its point; 0 without one."""
    found = _NUMBER.fullmatch(entry.text)
    return len(found[2] or "") if found else 0


def _cell(entry: Entry, digits: int, notes: _Notes, is_number: bool) -> str:
    """Return a cell; the notes of a number take no room, so that numbers stay below each other."""
    letters = notes.of(entry)
    found = _NUMBER.fullmatch(entry.text)
    if found is None:
        text = escape(entry.text)
        text = f"\\textbf{{{text}}}" if entry.bold else text
    else:
        mean = f"\\mathbf{{{found[1]}}}" if entry.bold else found[1]
        space = r"\phantom{" + "0" * (digits - len(found[2])) + "}" if found[2] and len(found[2]) < digits else ""
        text = f"${mean} \\pm {space}{found[2]}{found[3]}$" if found[2] else f"${mean}$"
        text = re.sub(r"e([+-]\d+)", lambda power: f"\\cdot 10^{{{int(power[1])}}}", text)
    return text + (f"\\rlap{{{letters}}}" if letters and is_number else letters)
