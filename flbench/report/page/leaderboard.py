"""A leaderboard as a document: the first table, the sections, the chapters, how to read it, where it comes from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from flbench.choices import SelectBy
from flbench.halving import Halving
from flbench.metric_specs import METRICS
from flbench.report.blocks import Block, Code, Entry, Figure, Fold, Grid, Heading, Items, Paragraph, words
from flbench.report.board import Leaderboard, Picture, Section
from flbench.report.cells import COLLAPSE, CONFIDENCE, FAR, gap_text, lines_below, listing, mean_text
from flbench.report.claims import claims_grid
from flbench.report.literal import literal
from flbench.report.page.details import detail_blocks
from flbench.report.page.planned import planned_blocks
from flbench.report.runs import TAIL
from flbench.report.stats import LEVEL, RESAMPLES
from flbench.report.summary import Overall, Standing
from flbench.report.supplement import Place
from flbench.report.tables import MAX_COLUMNS, POINT, Position, Table
from flbench.report.wording import NONE, TIED, column_head, marked, row_labels, row_name

#: Most rows of the first table; the others are in the sections.
MOST_ROWS = 20

#: Tables with more lines than this are folded.
MOST_LINES = 24

NO_SHARED_MODEL = (
    "¹ Parts of the model stay on the clients, so there is no shared model: ranked by the mean over clients of the "
    "client's own model on the *whole* test set."
)

#: Which round counts, and how hyperparameters are chosen, by the rule.
_WHEN: Mapping[SelectBy, str] = {
    "last": "after the last round",
    "tail": f"mean of the last {TAIL} evaluations",
    "val": "at the round with the best validation accuracy",
    "val-tail": f"mean of the last {TAIL} evaluations",
    "oracle": "at the best round on the test data, which is an upper bound and no result",
}
_CHOSEN: Mapping[SelectBy, str] = {
    "last": "by the mean on the test data after the last round, which favours every row slightly "
    "(`select_by: val` chooses on held-out training data)",
    "tail": f"by the mean of the last {TAIL} evaluations on the test data, which favours every row slightly",
    "val": "by the mean accuracy on held-out training data",
    "val-tail": f"by the mean of the last {TAIL} accuracies on held-out training data",
    "oracle": "by the mean on the test data, an upper bound and no result",
}


def document(board: Leaderboard) -> list[Block]:
    """Return all blocks in reading order."""
    return [
        Heading(1, board.options.title),
        *_opening(board),
        *_sections(board),
        *_chapters(board),
        *(_reading(board) if board.sections else ()),
        *_provenance(board),
    ]


def _opening(board: Leaderboard) -> Iterator[Block]:
    if board.sections:
        yield Paragraph(_introduction(board))
    if board.unfinished:
        studies = sum(len(chapter.runs) for chapter in board.chapters)
        total, requested = sum(board.unfinished.values()), board.provenance.requested - studies
        # A diverged run is finished: divergence is its result, although it has no value.
        word = "Diverged" if board.unfinished.keys() == {"diverged"} else "Incomplete"
        text = f"{total:,} of {requested:,} runs have no value: {literal(listing(board.unfinished))}."
        yield Paragraph(f"**{word}:** {text}", warning=True)
    for note in board.collection.left_out:
        yield Paragraph(f"Left out: {literal(note)}.", warning=True)
    constants = {section.title: section.constants for section in board.sections}
    for found in board.overall:
        if found.title:
            yield Paragraph(f"**{literal(found.title)}**: {literal(constants[found.title])}.")
        yield from _overall(found)
    for supplement in board.supplements:
        yield from supplement.opening()
    yield from _pictures(picture for picture in board.pictures if picture.place is None)


def _introduction(board: Leaderboard) -> str:
    """Return what the numbers are."""
    shown = []
    for name, select_by in dict.fromkeys((one.layout.metric, one.layout.select_by) for one in board.sections):
        metric = METRICS[name]
        unit = ", in percent" if metric.percent else ""
        better = "lower is better" if metric.lower_is_better else "higher is better"
        shown.append(f"`{name}`: {metric.what}, {_WHEN[select_by]}{unit}; {better}.")
    return (
        f"{' '.join(shown)} Mean ± half-width of its 95 % interval, over seeds and test images. **Bold**: the best of "
        f"its column, and {TIED} what is shown to be at most a little worse. [How to read this](#how-to-read-this)."
    )


def _overall(found: Overall) -> Iterator[Block]:
    """Yield the first table: the cells where there are few columns, else counts over all of them."""
    shown, of = found.rows[:MOST_ROWS], len(found.columns)
    few, compared = of <= MAX_COLUMNS, of > 1 and found.ranked > 1
    metric = METRICS[found.metric]
    heads = [*found.row_axes, *(found.columns if few else [])]
    heads += [f"mean of {of}", "mean rank"] if compared else []
    heads += ["complete in", "best or tied in"] if not few else []
    rows = []
    for row in shown:
        entries = [*words(*marked([at.label for at in row.row], personal=row.is_without_shared_model))]
        entries += [_standing(one) for one in row.standings] if few else []
        if compared and row.mean is not None:
            interval = [f"{metric.text(row.interval[0])} to {metric.text(row.interval[1])}"] if row.interval else []
            entries.append(Entry(metric.text(row.mean), tuple(interval), bold=row is found.rows[0], order=row.mean))
            entries.append(Entry(f"{row.rank:.2f}", order=row.rank))
        elif compared:
            entries += words(NONE, NONE)
        if not few:
            entries += [Entry(f"{row.complete}/{of}", order=row.complete), Entry(f"{row.best}/{of}", order=row.best)]
        rows.append(tuple(entries))
    yield Grid(tuple(heads), tuple(rows), len(found.row_axes))
    if hidden := len(found.rows) - len(shown):
        yield Paragraph(f"{hidden} more rows are in the sections below.")
    if any(row.is_without_shared_model for row in shown):
        yield Paragraph(NO_SHARED_MODEL)


def _standing(standing: Standing | None) -> Entry:
    if standing is None:
        return Entry(NONE)
    cell = standing.cell
    without_interval = cell.summary is not None and cell.summary.half_width is None
    below = [f"n={cell.summary.n}"] if cell.summary and without_interval else []
    below += [gap_text(cell)] if not cell.complete else []
    below += [cell.chosen] if cell.chosen else []
    return _entry(standing.table, standing.at, below)


def _entry(table: Table, at: Position, below: Sequence[str]) -> Entry:
    """Return a cell with its marks; the tip lists its runs."""
    cell = table.cells[at]
    metric = METRICS[cell.metric]
    values = ((run, cell.by_seed.get(run.experiment.seed)) for run in cell.runs)
    same = [f"= {row_name(table.rows[table.twins[at][0]])}"] if at in table.twins else []
    marks = [TIED] if at in table.tied else []
    marks += ["²"] if len(cell.numerics) > 1 else []
    return Entry(
        text=mean_text(cell),
        below=(*below, *same),
        bold=at in table.best | table.tied,
        mark=" ".join(marks),
        order=cell.summary.mean if cell.summary else None,
        tip=tuple(
            f"seed {run.experiment.seed}: {run.state if value is None else metric.text(value)}, run {run.run_id}"
            for run, value in values
        ),
    )


def _sections(board: Leaderboard) -> Iterator[Block]:
    """Yield the sections; what supplements and pictures show of a data set and model follows its last section."""
    places = [section.place for section in board.sections]
    in_chapters = {kind for one in board.supplements for kind in one.figure_kinds}
    for index, section in enumerate(board.sections):
        yield from _section(section)
        if section.place not in places[index + 1 :]:
            for supplement in board.supplements:
                yield from supplement.of_section(section.place)
            own = (picture for picture in board.pictures if picture.place == section.place)
            yield from _pictures(picture for picture in own if picture.kind not in in_chapters)
    for supplement in board.supplements:
        yield from supplement.sections(set(places))


def _section(section: Section) -> Iterator[Block]:
    yield Heading(2, section.title)
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
            "Each row and column with the best of the settings that all rows of the column tried, chosen "
            f"{_CHOSEN[section.layout.select_by]}. A cell names their number if there are several.{_edge_text(section)}"
        )
        if section.layout.search is not None:
            yield Paragraph(_search_text(section, section.layout.search))
        yield from _tables(section.tuned, 4)
        yield Fold(f"All {sum(len(table.cells) for table in section.tables)} cells", everything)
    else:
        yield from everything
    if section.own_shard:
        yield Heading(3, "Own shard")
        yield Paragraph(
            "Accuracy of each client's own model on the client's own test shard. It is not ranked: with one class per "
            "client a constant answer scores 100 %."
        )
        yield from _tables(section.own_shard, 4)
    yield from detail_blocks(section, MOST_LINES)


def _edge_text(section: Section) -> str:
    """Return in how many cells a better setting may be outside the grid; empty for none."""
    if not section.at_edge:
        return ""
    cells = sum(len(table.cells) for table in section.tuned)
    return f" In {section.at_edge} of {cells} cells it is at the edge of the grid: a better one may lie outside."


def _search_text(section: Section, search: Halving) -> str:
    """Return how settings were dropped, and the budget of the rows."""
    budgets = {costs.budget or 0 for details in section.details for costs in details.costs.values()}
    least, most = min(budgets), max(budgets)
    given = f"{most:,} rounds" if least == most else f"{least:,} to {most:,} rounds (more where settings tie at a rung)"
    *early, last = map(str, search.rungs)
    return (
        f"**Search:** after {', '.join(early)} of {last} rounds the best {search.keep} of the settings of a row and "
        f"column by their mean `{search.metric}` went on, and the others were dropped. Budget of every row in a "
        f"column, over all settings and seeds: {given}."
    )


def _tables(tables: Sequence[Table], level: int) -> Iterator[Block]:
    previous = ""
    for table in tables:
        if table.title != previous:
            yield Heading(level, table.title)
        previous = table.title
        rows = []
        for r in range(len(table.rows)):
            entries = [
                _entry(table, (r, c), lines_below(table.cells[r, c])) if (r, c) in table.cells else Entry(NONE)
                for c in range(len(table.cols))
            ]
            rows.append((*words(*row_labels(table, r)), *entries))
        heads = (*table.row_axes, *(column_head(table, col) for col in table.cols))
        yield Grid(heads, tuple(rows), len(table.row_axes))
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


def _pictures(pictures: Iterable[Picture]) -> Iterator[Block]:
    """Yield the first picture, and the others folded."""
    figures = [_figure(picture) for picture in pictures]
    yield from figures[:1]
    if others := figures[1:]:
        yield Fold(f"{len(others)} more {'figure' if len(others) == 1 else 'figures'}", tuple(others))


def _figure(picture: Picture) -> Figure:
    return Figure(picture.caption, picture.link, picture.svg)


def _chapters(board: Leaderboard) -> Iterator[Block]:
    for supplement in board.supplements:
        shown: dict[Place, list[Figure]] = {}
        for picture in board.pictures:
            if picture.kind in supplement.figure_kinds and picture.place is not None:
                shown.setdefault(picture.place, []).append(_figure(picture))
        yield from supplement.chapter(shown)
    for chapter in board.chapters:
        yield Heading(2, chapter.title)
        if chapter.introduction:
            yield Paragraph(chapter.introduction)
        if gap := sum(run.result is None for run in chapter.runs):  # a diverged run has a result
            yield Paragraph(f"**Incomplete:** {gap} of {len(chapter.runs)} runs have no value.", warning=True)
        if chapter.claims:
            yield claims_grid(chapter.claims)
        yield from (_figure(picture) for picture in board.pictures if picture.place == chapter.place)
        if chapter.blocks:
            yield Fold("The measurements", chapter.blocks)


def _reading(board: Leaderboard) -> Iterator[Block]:
    confidence, level = f"{100 * CONFIDENCE:g} %", f"{100 * LEVEL:g} %"
    texts = [
        f"± is the half-width of the {confidence} interval of the mean, for other seeds and other test images: "
        "Student's t over seeds, and for accuracies the binomial error of the test set, which all seeds share (of 355 "
        "images one is 0.28 points). Fewer than three seeds have none. `sd`: sample standard deviation over seeds "
        "(ddof 1), `n`: seeds. `1/5 collapsed, worst 41.20`: seeds that are below the cell's median by "
        f"{100 * COLLAPSE:g} points and by {FAR:g} times the usual deviation.",
        "`2/3: 1 failed (oom)`: how many of the requested seeds have a value, and why the others have none; "
        "`1/3 diverged`: how many of them stopped at a number that was not finite; `–`: not requested. Such cells are "
        "never the best.",
        f"{TIED}: a one-sided paired t-test over seeds (all cells of a seed share partition, initial weights and test "
        f"images) shows at {level} that the cell is less than {_margins(board)} worse than the best of its column. Of "
        "cells that are worse by that or more, at most 5 of 100 have the mark. A cell without it may be worse or "
        "undecided: the table of differences tells which. p-values there are corrected for the different cells of the "
        "column (Holm) and exploratory; planned comparisons have a table of their own.",
    ]
    compared = [found for found in board.overall if len(found.columns) > 1 and found.ranked > 1]
    if compared:
        columns = " or ".join(dict.fromkeys(str(len(found.columns)) for found in compared))
        rows = " or ".join(dict.fromkeys(str(found.ranked) for found in compared))
        texts.append(
            f"mean of {columns}: mean over the columns, below it its {confidence} interval by a bootstrap of "
            f"{RESAMPLES:,} resamples of seeds, stratified by column, and of test images; mean rank: among the {rows} "
            "rows that are complete in every column, 1 is the best."
        )
    yield Heading(2, "How to read this")
    yield Items((*texts, *(text for one in board.supplements for text in one.reading())))


def _margins(board: Leaderboard) -> str:
    """Return ``1 point``, or the margins of several layouts."""
    texts = []
    for layout in dict.fromkeys(section.layout for section in board.sections):
        percent, margin = METRICS[layout.metric].percent, layout.tie_margin
        texts.append(f"{100 * margin:g} {'point' if margin == POINT else 'points'}" if percent else f"{margin:g}")
    return " or ".join(dict.fromkeys(texts))


def _provenance(board: Leaderboard) -> Iterator[Block]:
    made = board.provenance
    lines = [
        f"Runs: {made.requested}, {made.finished} finished",
        f"Seeds: {_numbers_text(made.seeds)}",
        f"Rounds: {_numbers_text(made.rounds)}",
    ]
    for title, counts in made.facts.items():
        parts = [f"{text} ({count} {'run' if count == 1 else 'runs'})" for text, count in counts.items()]
        if counts:
            shared = list(counts.values()) == [made.finished]
            lines.append(f"{title}: {literal(next(iter(counts)) if shared else '; '.join(parts))}")
    lines += [f"Spec: {literal(name)} `{literal(spec_hash)}`" for name, spec_hash in board.options.specs]
    yield Heading(2, "Provenance")
    yield Items(tuple(lines))
    yield Paragraph("Regenerate with:")
    yield Code(board.options.command)


def _numbers_text(numbers: Sequence[int]) -> str:
    """Return ``0, 1, 2``; for more than three in a row ``0 to 19``."""
    if len(numbers) > 3 and list(numbers) == list(range(numbers[0], numbers[0] + len(numbers))):
        return f"{numbers[0]} to {numbers[-1]}"
    return ", ".join(map(str, numbers))
