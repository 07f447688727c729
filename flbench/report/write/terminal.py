"""A leaderboard as tables for a terminal."""

from __future__ import annotations

from rich.console import RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from flbench.messages import counted
from flbench.metric_specs import METRICS
from flbench.report.board import Leaderboard, Section
from flbench.report.cells import Cell
from flbench.report.tables import Table
from flbench.report.ticks import axis_names
from flbench.report.wording import (
    BEST,
    NONE,
    TIED,
    code_text,
    column_head,
    gap_text,
    mean_text,
    row_labels,
    tied_text,
)
from flbench.report.write.columns import fitting


def to_terminal(board: Leaderboard, width: int) -> list[RenderableType]:
    """Return titles, tables and notes for a terminal of ``width`` columns; wide tables are split.

    Where each row has its best settings, the tables of single settings are left out if there are several: a line counts
    them.
    """
    shown: list[RenderableType] = []
    for section in board.sections:
        single = () if section.tuned and len(section.tables) > 1 else section.tables
        for table in (*single, *section.own_shard, *section.tuned):
            shown += [Text(_title(section, table), style="bold"), *_tables(table, width)]
            if table.ranked and any(cell.personal for cell in table.cells.values()):
                note = "¹ no shared model: mean over the clients' models on the whole test set"
                shown.append(Text(note, style="dim"))
            if any(cell.is_best for cell in table.cells.values()):
                shown.append(Text(f"{BEST} best of its column", style="dim"))
            if any(cell.is_tied for cell in table.cells.values()):
                shown.append(Text(f"{TIED} {tied_text(table.margin, METRICS[table.metric])}", style="dim"))
        if not single:
            count = counted(len(section.tables), "table")
            shown.append(Text(f"{count} of single settings: flbench report --out FILE.md has them", style="dim"))
    shown += [Text(line) for one in board.supplements for line in one.lines()]
    for chapter in board.chapters:
        if chapter.claims:
            claims = RichTable("claim", "verdict", "our measurement", title=chapter.title, title_justify="left")
            for claim in chapter.claims:
                claims.add_row(Text(f"{claim.text} ({claim.source})"), Text(claim.verdict), Text(claim.evidence))
            shown.append(claims)
    return shown


def _title(section: Section, table: Table) -> str:
    metric = METRICS[table.metric]
    where = ", ".join(filter(None, [section.title, table.title]))
    where += ", the best settings of each row" if table in section.tuned else ""
    return f"{where}: {metric.title}{' in %' if metric.percent else ''}, mean ± half-width of the 95 % interval"


def _tables(table: Table, width: int) -> list[RichTable]:
    labels = [row_labels(table, r) for r in range(len(table.rows))]
    heads = [column_head(table, col) for col in table.cols]
    texts = [[_text(table.cells.get((r, c))) for c in range(len(table.cols))] for r in range(len(table.rows))]
    sizes = [max(_width(head), *(_width(row[c].plain) for row in texts)) + 3 for c, head in enumerate(heads)]
    names = axis_names(table.row_axes)
    widths = [max(len(name), *(len(row[i]) for row in labels)) + 3 for i, name in enumerate(names)]
    parts = []
    for some in fitting(sizes, width - sum(widths) - 1):
        part = RichTable()
        for name in names:
            part.add_column(Text(name), no_wrap=True)
        for c in some:
            part.add_column(Text(heads[c]), justify="right")
        for r, row in enumerate(texts):
            if any((r, c) in table.cells for c in some):
                part.add_row(*map(Text, labels[r]), *(row[c] for c in some))
        parts.append(part)
    return parts


def _text(cell: Cell | None) -> Text:
    if cell is None:
        return Text(NONE, style="dim")
    value = mean_text(cell)
    text = Text(value, style="bold green" if cell.is_best else "green" if cell.is_tied else "")
    if mark := BEST if cell.is_best else TIED if cell.is_tied else "":
        text.append(f" {mark}", style="green")
    if cell.summary and cell.summary.half_width is None:
        text.append(f" n={cell.summary.n}", style="dim")
    if not cell.complete:
        text.append(("\n" if value else "") + gap_text(cell), style="yellow")
    for changed in code_text(cell):
        text.append(("\n" if text.plain else "") + changed, style="yellow")
    if cell.chosen:
        text.append("\n" + cell.chosen, style="dim")
    return text


def _width(text: str) -> int:
    return max(map(len, text.split("\n")))
