"""Details: the tables of a data set and model, and the chapters about studies."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from flbench.choices import TAIL, SelectBy
from flbench.config import short_name
from flbench.halving import Halving
from flbench.literal import literal
from flbench.messages import counted, some_of
from flbench.metric_specs import METRICS
from flbench.report.blocks import BOLD, Block, Entry, Figure, Fold, Grid, Heading, Paragraph, shifted, words
from flbench.report.board import Leaderboard, Picture, Section
from flbench.report.cells import Cell
from flbench.report.claims import Chapter, claims_grid
from flbench.report.page.details import detail_blocks
from flbench.report.page.planned import planned_blocks
from flbench.report.summary import Overall
from flbench.report.supplement import Place
from flbench.report.tables import Table
from flbench.report.ticks import axis_names
from flbench.report.wording import (
    NONE,
    TIED,
    column_head,
    lines_below,
    margin_text,
    marked,
    mean_text,
    row_labels,
    row_name,
    tied_text,
)

#: Tables of details with more lines than this are folded.
MOST_LINES = 24

NO_SHARED_MODEL = (
    "¹ Parts of the model stay on the clients, so there is no shared model: ranked by the mean over clients of the "
    "client's own model on the *whole* test set."
)

#: Which round counts, and how hyperparameters are chosen, by the rule.
WHEN: Mapping[SelectBy, str] = {
    "last": "after the last round",
    "tail": f"mean of the last {TAIL} evaluations",
    "val": "at the round with the best validation accuracy",
    "val-tail": f"mean of the last {TAIL} evaluations",
    "oracle": "at the best round on the test data, which is an upper bound and no result",
}
CHOSEN: Mapping[SelectBy, str] = {
    "last": "by the mean on the test data after the last round, which favours every row slightly "
    "(`select_by: val` chooses on held-out training data)",
    "tail": f"by the mean of the last {TAIL} evaluations on the test data, which favours every row slightly",
    "val": "by the mean accuracy on held-out training data",
    "val-tail": f"by the mean of the last {TAIL} accuracies on held-out training data",
    "oracle": "by the mean on the test data, an upper bound and no result",
}


def _overall(found: Overall) -> Grid:
    """Return a row's mean, mean rank and counts over all columns."""
    of, metric = len(found.columns), METRICS[found.metric]
    rows = []
    for row in found.rows:
        entries = [*words(*marked([at.label for at in row.row], personal=row.personal))]
        if row.mean is None:
            entries += words(NONE, NONE)
        else:
            interval = [f"{metric.text(row.interval[0])} to {metric.text(row.interval[1])}"] if row.interval else []
            entries.append(Entry(metric.text(row.mean), tuple(interval), order=row.mean))
            entries.append(Entry(f"{row.rank:.2f}", order=row.rank))
        entries += [Entry(f"{row.complete}/{of}", order=row.complete), Entry(f"{row.best}/{of}", order=row.best)]
        rows.append(tuple(entries))
    heads = (*axis_names(found.row_axes), f"mean of {of}", "mean rank", "complete in", "best or tied in")
    return Grid(heads, tuple(rows), len(found.row_axes))


def _entry(table: Table, cell: Cell) -> Entry:
    """Return a cell with its marks; the tip lists its runs."""
    metric = METRICS[cell.metric]
    values = ((run, cell.by_seed.get(run.experiment.seed)) for run in cell.runs)
    same = [f"= {row_name(table.rows[cell.origin[0]])}"] if cell.origin != cell.at else []
    marks = [TIED] if cell.is_tied else []
    marks += ["²"] if len(cell.numerics) > 1 else []
    marks += ["³"] if cell.contributors else []
    return Entry(
        text=mean_text(cell),
        below=(*lines_below(cell), *same),
        bold=cell.is_best or cell.is_tied,
        mark=" ".join(marks),
        order=cell.summary.mean if cell.summary else None,
        tip=tuple(
            f"seed {run.experiment.seed}: {run.state if value is None else metric.text(value)}, run {run.run_id}"
            for run, value in values
        ),
    )


def place_blocks(board: Leaderboard, place: Place) -> Iterator[Block]:
    """Yield the sections on a data set and model, and what supplements and pictures show of it."""
    in_chapters = {kind for one in board.supplements for kind in one.figure_kinds}
    sections = [section for section in board.sections if section.place == place]
    yield Heading(2, ", ".join(place) if len(sections) > 1 else sections[0].title)
    for section in sections:
        if len(sections) == 1:
            yield from _section(section)
        else:
            yield Heading(3, section.title)
            yield from (shifted(block, 1) for block in _section(section))
    titles = {section.title for section in sections}
    is_last = board.sections[-1].place == place
    for found in board.overall:
        if len(found.columns) > 1 and found.ranked > 1 and (found.title in titles or (not found.title and is_last)):
            yield Fold(": ".join(filter(None, ["Means over all columns", found.title])), (_overall(found),))
    for supplement in board.supplements:
        yield from supplement.of_section(place)
    own = (picture for picture in board.pictures if picture.place == place)
    yield from _pictures(picture for picture in own if picture.kind not in in_chapters)


def chapter_blocks(chapter: Chapter, pictures: Iterable[Picture]) -> Iterator[Block]:
    """Yield what runs of one kind of study show."""
    yield Heading(2, chapter.title)
    if chapter.introduction:
        yield Paragraph(chapter.introduction)
    if gap := sum(run.result is None for run in chapter.runs):  # a diverged run has a result
        yield Paragraph(f"**Incomplete:** {some_of(gap, len(chapter.runs), 'run', 'has')} no value.", warning=True)
    if chapter.claims:
        yield claims_grid(chapter.claims)
    yield from (Figure(picture.caption, picture.svg) for picture in pictures if picture.place == chapter.place)
    if chapter.blocks:
        yield Fold("The measurements", chapter.blocks)


def _section(section: Section) -> Iterator[Block]:
    yield Paragraph(f"Everywhere: {literal(section.constants)}.")
    if len(section.fingerprints) > 1:
        names = ", ".join(f"`{literal(name)}`" for name in section.fingerprints)
        text = (
            f"**{len(section.fingerprints)} versions of the data** ({names}). "
            "Runs on different data are never averaged: they have rows of their own."
        )
        yield Paragraph(text, warning=True)
    yield from planned_blocks(section)
    everything = tuple(_tables(section.tables, 3))
    if section.tuned:
        yield Heading(3, f"Best {' and '.join(section.chosen)} of each row")
        yield Paragraph(
            f"Each row and column with the best of {_settings_text(section)}, chosen "
            f"{CHOSEN[section.layout.select_by]}. A cell names their number if there are several.{_edge_text(section)}"
        )
        if section.layout.search is not None:
            yield Paragraph(_search_text(section, section.layout.search))
        yield from _tables(section.tuned, 4)
        yield Fold(f"All {counted(sum(len(table.cells) for table in section.tables), 'cell')}", everything)
    else:
        yield from everything
    if section.own_shard:
        text = (
            "Accuracy of each client's own model on the client's own test shard. It is not ranked: with one class per "
            "client a constant answer scores 100 %."
        )
        tables = (Paragraph(text), *_tables(section.own_shard, 4))
        is_long = sum(len(table.rows) for table in section.own_shard) > MOST_LINES
        yield from (Fold("Own shard", tables),) if is_long else (Heading(3, "Own shard"), *tables)
    yield from detail_blocks(section, MOST_LINES)


def _edge_text(section: Section) -> str:
    """Return in how many cells a better setting may be outside the grid; empty for none."""
    if not section.at_edge:
        return ""
    cells = some_of(section.at_edge, section.choices, "cell")
    return f" In {cells} it is at the edge of the grid: a better one may lie outside."


def _settings_text(section: Section) -> str:
    """Return among which settings a row chose."""
    search = section.layout.search
    if search is None or search.refine is None:
        return "the settings that all rows of the column tried"
    return "the settings that it tried, as many as the other rows of the column"


def _search_text(section: Section, search: Halving) -> str:
    """Return how settings were dropped and added, and the budget of the rows."""
    parts = []
    if search.halves:
        rungs = "; ".join(f"{', '.join(map(str, early))} of {last}" for *early, last in search.rungs)
        parts.append(
            f"after {rungs} rounds the best {search.keep} of the settings of a row and column by their mean "
            f"`{search.metric}` went on, and the others were dropped"
        )
    if refine := search.refine:
        margin = margin_text(refine.margin, METRICS[search.metric])
        flat = " and both neighbours of each best were worse by less" if refine.until == "flat" else ""
        parts.append(
            f"each step tried two values of {short_name(refine.axis)} for every row of a column, halfway between its "
            f"best by the mean `{search.metric}` and the neighbours, or beyond the end of the grid, until a step "
            f"gained less than {margin} in every row{flat}, at most {counted(refine.max_steps, 'step')}; the tuning "
            "budget below is that of the grid alone"
        )
    return (
        f"**Search:** {'; then '.join(parts)}. Budget of every row in a column, over all settings and seeds: "
        f"{_budget_text(section)}.{_lost_text(section)}"
    )


def _budget_text(section: Section) -> str:
    """Return the rounds that the search gave to a row; rows of one column differ only where settings tied."""
    of_column: defaultdict[tuple[int, int], set[int]] = defaultdict(set)
    for number, table in enumerate(section.details):
        for (_, column), cell in table.cells.items():
            of_column[number, column].add(cell.costs.budget or 0)
    budgets = set[int]().union(*of_column.values())
    if len(budgets) == 1:
        return f"{budgets.pop():,} rounds"
    but = " but where settings tie at a rung" if any(len(of_rows) > 1 for of_rows in of_column.values()) else ""
    return f"{min(budgets):,} to {max(budgets):,} rounds, the same for all rows of a column{but}"


def _lost_text(section: Section) -> str:
    """Return in how many cells no setting kept all seeds to the end; empty for none."""
    if not section.lost:
        return ""
    said = f"In {some_of(section.lost, section.choices, 'cell')} every setting that went on diverged with a seed"
    return f" {said}: a larger `keep` takes more to the end."


def _tables(tables: Sequence[Table], level: int) -> Iterator[Block]:
    previous = ""
    for table in tables:
        if table.title != previous:
            yield Heading(level, table.title)
        previous = table.title
        rows = []
        for r in range(len(table.rows)):
            cells = (table.cells.get((r, c)) for c in range(len(table.cols)))
            entries = [_entry(table, cell) if cell else Entry(NONE) for cell in cells]
            rows.append((*words(*row_labels(table, r)), *entries))
        heads = (*axis_names(table.row_axes), *(column_head(table, col) for col in table.cols))
        tied = tied_text(table.margin, METRICS[table.metric])
        marks = {TIED: tied, BOLD: f"the best of its column, or {TIED}"}
        yield Grid(heads, tuple(rows), len(table.row_axes), marks=marks)
        yield from _footnotes(table)


def _footnotes(table: Table) -> Iterator[Block]:
    cells = list(table.cells.values())
    if table.ranked and any(cell.personal for cell in cells):
        yield Paragraph(NO_SHARED_MODEL)
    mixtures = sorted({cell.numerics for cell in cells if len(cell.numerics) > 1})
    for mixture in mixtures:
        text = literal("; ".join(mixture))
        yield Paragraph(f"² The seeds of this cell were computed with different numerics: {text}.")
    settings = sorted({one for cell in cells for one in cell.numerics})
    if len(settings) > 1 and not mixtures:
        text = literal("; ".join(settings))
        yield Paragraph(f"The cells of this table were computed with different numerics: {text}.")
    if contributors := sorted({one for cell in cells for one in cell.contributors}):
        yield Paragraph(f"³ This cell has seeds contributed by {literal(', '.join(contributors))}.")


def _pictures(pictures: Iterable[Picture]) -> Iterator[Block]:
    """Yield the first picture, and the others folded."""
    figures = [Figure(picture.caption, picture.svg) for picture in pictures]
    yield from figures[:1]
    if others := figures[1:]:
        yield Fold(counted(len(others), "more figure"), tuple(others))
