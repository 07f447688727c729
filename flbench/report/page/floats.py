"""The tables and captions of a report for a paper: what LaTeX calls floats.

A caption says everything that a table or a figure needs beside its numbers: data set, model, settings, seeds, interval.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from flbench.metric_specs import METRICS
from flbench.report.blocks import Entry, Grid
from flbench.report.board import Leaderboard, Section
from flbench.report.cells import Cell
from flbench.report.figures.drawing import Drawing, file_name
from flbench.report.headline import Headline, Row, headline, whole
from flbench.report.page.first import settings_text
from flbench.report.page.planned import planned_grid
from flbench.report.planned import Planned
from flbench.report.stats import CONFIDENCE, LEVEL
from flbench.report.tables import kind_name
from flbench.report.ticks import Tick, axis_names
from flbench.report.wording import (
    NONE,
    TIED,
    checked_text,
    code_text,
    column_head,
    contrast_text,
    gap_text,
    margin_text,
    mean_text,
)

#: The mark of the best mean of a column.
BEST = "best"

_LEVEL = f"{100 * LEVEL:g} %"
_CONFIDENCE = f"{100 * CONFIDENCE:g} %"


@dataclass(frozen=True)
class Table:
    """A table with its caption."""

    name: str  # of its file and its label
    caption: str
    grid: Grid
    legend: Mapping[str, str]  # what the marks of its entries mean


def tables_of(board: Leaderboard) -> Iterator[Table]:
    """Yield the table of the first page, the planned comparisons of each section, and every section's tables."""
    everything = [
        whole(section, kind)
        for section in board.sections
        for kind in dict.fromkeys(table.kind for table in section.details)
    ]
    first = headline(board.sections)
    if first is not None and (first.left_out or len(everything) > 1):
        yield _values(first, "values")
    for section in board.sections:
        gains = [one for one in section.gains if not one.between]
        interactions = [one for one in section.gains if one.between]
        for name, some in (("planned", gains), ("interactions", interactions)):
            if some:
                yield _planned(section, some, file_name(name, section.title))
    for one in everything:
        section, kind = one.columns[0].section, one.columns[0].table.kind
        yield _values(one, file_name("all", section.title, kind_name(kind)))


def figure_caption(board: Leaderboard, drawing: Drawing) -> str:
    """Return the caption of a figure with the settings and seeds of the section that it is about, if it names one."""
    sections = (one for one in board.sections if one.place == drawing.place and one.title in drawing.caption)
    section = next(sections, None)
    if section is None:
        return drawing.caption
    cells = [cell for table in section.details for cell in table.cells.values()]
    return f"{drawing.caption} {_seeds(cells)}; {_settings(section)}."


def _values(found: Headline, name: str) -> Table:
    several = len({column.section.title for column in found.columns}) > 1
    heads, tables = [], [column.table for column in found.columns]
    for column, table in zip(found.columns, tables, strict=True):
        lines = [column.section.name if several else "", table.short_title]
        heads.append("\n".join([*filter(None, lines), column_head(table, table.cols[column.number])]))
    rows = tuple((*_names(row), *(_value(row, c) for c in range(len(found.columns)))) for row in found.rows)
    margins = {margin_text(one.margin, METRICS[one.metric]) for one in tables}
    legend = {
        "¹": "no shared model: mean over clients of their own models on the whole test set",
        BEST: "the best mean of its column",
        TIED: f"shown to be less than {' or '.join(sorted(margins))} worse than the best mean of its column (one-sided "
        f"paired t-test at {_LEVEL})",
    }
    return Table(
        name, _values_caption(found), Grid((*axis_names(found.row_axes), *heads), rows, len(found.row_axes)), legend
    )


def _names(row: Row) -> tuple[Entry, ...]:
    """Return the labels of a row, the first one marked where there is no shared model."""
    entries = []
    for i, at in enumerate(row.row):
        label, *same = _methods(at)
        below = (f"the same as {', '.join(same)}",) if same else ()
        entries.append(Entry(label, below, mark="¹" if row.is_personal and not i else ""))
    return tuple(entries)


def _methods(at: Tick) -> list[str]:
    """Return the label of a tick, and those of methods that compute the same."""
    return at.label.split(" = ")


def _value(row: Row, c: int) -> Entry:
    cell = row.cells[c]
    if cell is None:
        return Entry(NONE)
    marks = [BEST] if cell.is_best else [TIED] if cell.is_tied else []
    below = [f"n = {cell.summary.n}, no interval"] if cell.summary and cell.half_width is None else []
    below += [] if cell.complete else [gap_text(cell)]
    below += code_text(cell)
    below += ["seeds with different numerics"] if len(cell.numerics) > 1 else []
    return Entry(mean_text(cell) or NONE, tuple(below), bold=row.better[c], mark=" ".join(marks))


def _values_caption(found: Headline) -> str:
    sections = {column.section.title: column.section for column in found.columns}
    cells = [cell for row in found.rows for cell in row.cells if cell]
    over = "seeds and test images" if any(cell.images for cell in cells) else "seeds"
    texts = [
        f"{_metrics(list(sections.values()))} Mean ± half-width of its {_CONFIDENCE} interval over {over}; "
        f"{_seeds(cells)}."
    ]
    baseline = " ".join(_methods(at)[0] for at in found.baseline or ())
    if baseline and any(cell.half_width is not None for cell in cells):
        texts.append(
            f"Bold: shown to be better than {baseline} in the same column, by a planned comparison of the two cells "
            "that passes all checks."
        )
    if found.left_out:
        texts.append(f"Rows that are not shown: {found.left_out}.")
    if len(sections) == 1:
        return f"{next(iter(sections))}: {' '.join(texts)} Settings: {_settings(next(iter(sections.values())))}."
    return " ".join([*texts, *(f"{title}: {_settings(section)}." for title, section in sections.items())])


def _settings(section: Section) -> str:
    """Return the settings that all cells share, with their rounds, and how the others were chosen."""
    tables = section.details
    rounds = sorted({cell.rounds for table in tables for cell in table.cells.values()})
    is_named = "rounds" in section.constants or any("rounds" in table.col_axes for table in tables)
    return settings_text(section) if is_named else f"rounds {', '.join(map(str, rounds))}, {settings_text(section)}"


def _metrics(sections: Sequence[Section]) -> str:
    """Return ``Accuracy in % (definition).``, for every metric of some sections."""
    metrics = [METRICS[name] for name in dict.fromkeys(section.layout.metric for section in sections)]
    return " ".join(
        f"{one.title}{' in %' if one.percent else ''} ({one.what}{'; lower is better' if one.lower_is_better else ''})."
        for one in metrics
    )


def _seeds(cells: Sequence[Cell]) -> str:
    """Return ``n = 5 seeds``, or ``n = 3 to 5 seeds``; cells without a value do not count."""
    return f"n = {_count([len(cell.values) for cell in cells if cell.values], 'seed')}"


def _count(numbers: Sequence[int], what: str) -> str:
    """Return ``5 seeds``, or ``3 to 5 seeds``."""
    least, most = min(numbers, default=0), max(numbers, default=0)
    return f"{least if least == most else f'{least} to {most}'} {what}{'' if most == 1 else 's'}"


def _planned(section: Section, some: Sequence[Planned], name: str) -> Table:
    """Return planned comparisons, bold where a difference is shown; notes name the checks that others fail."""
    metric, margin = METRICS[section.layout.metric], section.layout.tie_margin
    seeds, pairs = [one.contrast.difference.n for one in some], [one.cells for one in some]
    averaged = f", averaged over {_count(pairs, 'pair')}" if max(pairs) > 1 else ""
    among = {one.pair.among for one in some}
    if len(among) == 1:  # then the caption says it
        some = [dataclasses.replace(one, pair=dataclasses.replace(one.pair, among=())) for one in some]
    where = ", ".join(one.name for one in next(iter(among))) if len(among) == 1 else ""
    kind = "differences of these differences between columns" if some[0].between else "differences"
    unit = f"{metric.title} (points)" if metric.percent else metric.title
    title = f"{section.title}: planned comparisons{f' with {where}' if where else ''}"
    caption = (
        f"{title}, {kind} in {unit} of cells that differ in one field alone, paired by seed{averaged}, on these test "
        f"images, ± half-width of the {_CONFIDENCE} interval over seeds; n = {_count(seeds, 'seed')}. Bold: the paired "
        f"t-test shows a difference at {_LEVEL} after Holm's correction over the {len(section.planned)} planned "
        "comparisons, and it passes the checks against rising curves, coarse grids of settings, the choice of "
        f"evaluations and collapsed seeds. Settings: {_settings(section)}."
    )
    within = f"shown to be within {margin_text(margin, metric)} of 0"
    legend = {TIED: f"{within} (two one-sided t-tests at {_LEVEL}, corrected in the same way)"}
    columns = list(dict.fromkeys(one.column for one in some))
    return Table(name, caption, planned_grid(section, some, columns, _gain), legend)


def _gain(section: Section, one: Planned) -> Entry:
    text, _ = contrast_text(one.contrast, section.layout.metric)
    below = [f"{one.missing} of {one.cells + one.missing} pairs left out"] if one.missing else []
    below += [checked_text(one.contrast.verdict, one.but)] if one.but else []
    return Entry(text, tuple(below), bold=one.is_different, mark=TIED if one.is_equivalent else "")
