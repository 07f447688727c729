"""A leaderboard as a document: the answer first, then what it rests on, and where it comes from at the end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from flbench.metric_specs import METRICS
from flbench.report.blocks import Block, Code, Entry, Figure, Fold, Grid, Heading, Items, Paragraph, words
from flbench.report.board import Leaderboard, Picture, Section
from flbench.report.cells import Cell
from flbench.report.layout import Layout
from flbench.report.literal import literal
from flbench.report.page import chapters as compose_chapters
from flbench.report.page import details as compose_details
from flbench.report.provenance import Provenance
from flbench.report.runs import Run
from flbench.report.stats import CONFIDENCE, LEVEL, RESAMPLES
from flbench.report.summary import Overall, OverallRow
from flbench.report.summary import Place as Standing
from flbench.report.supplement import Place, Supplement
from flbench.report.tables import MAX_COLUMNS, Table
from flbench.report.wording import TIED, gap_text, head, listing, mean_text, numbers_text, parts, row_labels

#: Most rows of the first table; the others are in the sections.
MOST_ROWS = 20

#: Tables with more lines than this are folded.
MOST_LINES = 24

NO_SHARED_MODEL = (
    "¹ Parts of the model stay on the clients, so there is no shared model: ranked by the mean over clients of the "
    "client's own model on the *whole* test set."
)
OWN_SHARD = (
    "Score of each client's own model on the client's own test shard. It ranks nothing: with one class per client a "
    "constant answer would score 100 %."
)
MIXED_NUMERICS = "² The seeds of this cell were computed with different numerics:"

#: When a value counts, and how hyper-parameters are chosen, by the rule.
_WHEN: Mapping[str, str] = {
    "last": "after the last round",
    "val": "at the round with the best validation accuracy",
    "oracle": "at the best round on the test data, which is an upper bound and no result",
}
_CHOSEN: Mapping[str, str] = {
    "last": "by the mean on the test data after the last round, which flatters every row a little "
    "(`select_by: val` chooses on held-out training data)",
    "val": "by the mean accuracy on held-out training data",
    "oracle": "by the mean on the test data, an upper bound and no result",
}


def document(board: Leaderboard) -> list[Block]:
    """Everything, in reading order."""
    blocks: list[Block] = [Heading(1, board.options.title)]
    layouts = {(section.layout.metric, section.layout.select_by): section.layout for section in board.sections}
    blocks += [Paragraph(_introduction(layouts.values()))] if board.sections else []
    if board.unfinished:
        total, wished = sum(board.unfinished.values()), board.provenance.wished - len(_studies(board))
        # A run that diverged is over: it is a result, though no value.
        word = "Diverged" if board.unfinished.keys() == {"diverged"} else "Incomplete"
        text = f"{total:,} of {wished:,} runs have no value: {literal(listing(board.unfinished))}."
        blocks.append(Paragraph(f"**{word}:** {text}", warning=True))
    blocks += [Paragraph(f"Left out: {literal(note)}.", warning=True) for note in board.collection.left_out]
    constants = {section.title: section.constants for section in board.sections}
    for found in board.overall:
        blocks += [Paragraph(f"**{literal(found.title)}**: {literal(constants[found.title])}.")] if found.title else []
        blocks += _overall(found)
    blocks += (block for one in board.supplements for block in one.opening())
    blocks += _pictures(picture for picture in board.pictures if picture.place is None)
    for section, is_last in _sections(board):
        blocks += _section(board, section, is_last)
    shown = {section.place for section in board.sections}
    blocks += (block for one in board.supplements for block in one.sections(shown))
    blocks += (block for one in board.supplements for block in one.chapter(_pictures_of(board, one)))
    for chapter in board.chapters:
        pictures = [picture for picture in board.pictures if picture.place == chapter.place]
        blocks += compose_chapters.compose(chapter, [_figure(picture) for picture in pictures])
    return [*blocks, *(_reading(board) if board.sections else []), *_provenance(board)]


def _pictures_of(board: Leaderboard, supplement: Supplement) -> Mapping[Place, Sequence[Figure]]:
    """The pictures that a supplement's chapter shows, by data set and model."""
    found: dict[Place, list[Figure]] = {}
    for picture in board.pictures:
        if picture.kind in supplement.figure_kinds and picture.place is not None:
            found.setdefault(picture.place, []).append(_figure(picture))
    return found


def _studies(board: Leaderboard) -> list[Run]:
    return [run for chapter in board.chapters for run in chapter.runs]


def _introduction(layouts: Iterable[Layout]) -> str:
    """What is shown, and how."""
    shown = []
    for layout in layouts:
        metric = METRICS[layout.metric]
        unit = ", in percent" if metric.percent else ""
        better = "lower is better" if metric.lower_is_better else "higher is better"
        shown.append(f"`{layout.metric}`: {metric.what}, {_WHEN[layout.select_by]}{unit}; {better}.")
    return (
        f"{' '.join(shown)} Mean ± half-width of its 95 % interval over seeds. **Bold**: the best of its column, and "
        f"{TIED} what is not shown to be worse than it. [How to read this](#how-to-read-this)."
    )


def _overall(found: Overall) -> list[Block]:
    """The answer: values where few columns allow it, else what can be said over all of them."""
    shown = found.rows[:MOST_ROWS]
    few, several = len(found.columns) <= MAX_COLUMNS, len(found.columns) > 1
    compared = several and found.ranked > 1
    metric = METRICS[found.metric]
    heads = [*found.row_axes, *(found.columns if few else [])]
    heads += [f"mean of {len(found.columns)}", "mean rank"] if compared else []
    heads += ["complete in", "best or tied in"] if not few else []
    rows = []
    for row in shown:
        entries = [*words(*_overall_labels(row))]
        entries += [_overall_cell(place) for place in row.places] if few else []
        if compared and row.mean is not None:
            interval = (
                "" if row.interval is None else f"{metric.text(row.interval[0])} to {metric.text(row.interval[1])}"
            )
            below = (interval,) if interval else ()
            entries.append(Entry(metric.text(row.mean), below, bold=row is found.rows[0], order=row.mean))
            entries.append(Entry(f"{row.rank:.2f}", order=row.rank))
        elif compared:
            entries += words("–", "–")
        if not few:
            of = len(found.columns)
            entries += [Entry(f"{row.complete}/{of}", order=row.complete), Entry(f"{row.best}/{of}", order=row.best)]
        rows.append(tuple(entries))
    blocks: list[Block] = [Grid(tuple(heads), tuple(rows), len(found.row_axes))]
    if hidden := len(found.rows) - len(shown):
        blocks.append(Paragraph(f"{hidden} more rows are in the sections below."))
    if any(row.is_without_shared_model for row in shown):
        blocks.append(Paragraph(NO_SHARED_MODEL))
    return blocks


def _overall_labels(row: OverallRow) -> list[str]:
    labels = [at.label for at in row.row]
    return [f"{labels[0]} ¹", *labels[1:]] if row.is_without_shared_model else labels


def _overall_cell(place: Standing | None) -> Entry:
    if place is None:
        return Entry("–")
    cell = place.cell
    few = cell.summary is not None and cell.summary.half_width is None
    below = [f"n={cell.summary.n}"] if few and cell.summary else []
    below += [gap_text(cell)] if not cell.complete else []
    below += [cell.chosen] if cell.chosen else []
    return _entry(place.table, cell, place.at, below)


def _entry(table: Table, cell: Cell, at: tuple[int, int], below: Sequence[str]) -> Entry:
    """A cell with its marks, and its runs for whoever points at it."""
    marks = [TIED] if at in table.tied else []
    marks += ["²"] if len(cell.numerics) > 1 else []
    return Entry(
        text=mean_text(cell),
        below=tuple(below),
        bold=at in table.best | table.tied,
        mark=" ".join(marks),
        order=cell.summary.mean if cell.summary else None,
        tip=tuple(_tips(cell)),
    )


def _tips(cell: Cell) -> Iterator[str]:
    metric = METRICS[cell.metric]
    for run in cell.runs:
        value = cell.by_seed.get(run.experiment.seed)
        yield f"seed {run.experiment.seed}: {run.state if value is None else metric.text(value)}, run {run.run_id}"


def _sections(board: Leaderboard) -> Iterator[tuple[Section, bool]]:
    """Each section, and whether it is the last of its place (there published numbers and pictures stand)."""
    places = [section.place for section in board.sections]
    for index, section in enumerate(board.sections):
        yield section, section.place not in places[index + 1 :]


def _section(board: Leaderboard, section: Section, is_last: bool) -> list[Block]:
    blocks: list[Block] = [Heading(2, section.title), Paragraph(f"Everywhere: {literal(section.constants)}.")]
    if len(section.fingerprints) > 1:
        names = ", ".join(f"`{literal(name)}`" for name in section.fingerprints)
        text = (
            f"**{len(section.fingerprints)} versions of the data** ({names}). "
            "Runs on different data are never averaged: they stand in rows of their own."
        )
        blocks.append(Paragraph(text, warning=True))
    everything = _tables(section.tables, 3)
    if section.tuned:
        blocks += [Heading(3, f"Best {' and '.join(section.chosen)} of each row"), Paragraph(_tuning(section.layout))]
        blocks += _tables(section.tuned, 4)
        cells = sum(len(table.cells) for table in section.tables)
        blocks.append(Fold(f"All {cells} cells", tuple(everything)))
    else:
        blocks += everything
    if section.own_shard:
        blocks += [Heading(3, "Own shard"), Paragraph(OWN_SHARD), *_tables(section.own_shard, 4)]
    blocks += compose_details.blocks(section, MOST_LINES)
    if is_last:
        blocks += (block for one in board.supplements for block in one.of_section(section.place))
        elsewhere = {kind for one in board.supplements for kind in one.figure_kinds}
        own = (picture for picture in board.pictures if picture.place == section.place)
        blocks += _pictures(picture for picture in own if picture.kind not in elsewhere)
    return blocks


def _tuning(layout: Layout) -> str:
    return (
        "Each row and column with the best of the settings that all rows of the column tried, chosen "
        f"{_CHOSEN[layout.select_by]}. How many they are stands in the cell, where they are several."
    )


def _tables(tables: Sequence[Table], level: int) -> list[Block]:
    blocks: list[Block] = []
    previous = ""
    for table in tables:
        if table.title != previous:
            blocks.append(Heading(level, table.title))
        previous = table.title
        heads = [*table.row_axes, *("\n".join(head(table, col)) for col in table.cols)]
        rows = [
            (*words(*row_labels(table, r)), *(_table_cell(table, r, c) for c in range(len(table.cols))))
            for r in range(len(table.rows))
        ]
        blocks.append(Grid(tuple(heads), tuple(rows), len(table.row_axes)))
        blocks += _footnotes(table)
    return blocks


def _table_cell(table: Table, r: int, c: int) -> Entry:
    cell = table.cells.get((r, c))
    return Entry("–") if cell is None else _entry(table, cell, (r, c), parts(cell)[1])


def _footnotes(table: Table) -> list[Block]:
    notes = []
    cells = list(table.cells.values())
    if table.ranked and any(cell.personal for cell in cells):
        notes.append(NO_SHARED_MODEL)
    mixtures = sorted({cell.numerics for cell in cells if len(cell.numerics) > 1})
    notes += [f"{MIXED_NUMERICS} {literal('; '.join(mixture))}." for mixture in mixtures]
    ways = sorted({way for cell in cells for way in cell.numerics})
    if len(ways) > 1 and not mixtures:
        notes.append(f"The cells of this table were computed with different numerics: {literal('; '.join(ways))}.")
    return [Paragraph(note) for note in notes]


def _pictures(pictures: Iterable[Picture]) -> list[Block]:
    """The first picture, and the others behind a line."""
    figures = [_figure(picture) for picture in pictures]
    more = len(figures) - 1
    rest = [Fold(f"{more} more {'figure' if more == 1 else 'figures'}", tuple(figures[1:]))] if more > 0 else []
    return [*figures[:1], *rest]


def _figure(picture: Picture) -> Figure:
    return Figure(picture.caption, picture.link, picture.svg)


def _reading(board: Leaderboard) -> list[Block]:
    confidence, level = f"{100 * CONFIDENCE:g} %", f"{100 * LEVEL:g} %"
    texts = [
        f"± is the half-width of the {confidence} Student-t interval of the mean over seeds; fewer than three seeds "
        "have none. `sd`: sample standard deviation (ddof 1), `n`: seeds.",
        "`2/3: 1 failed (oom)`: how many of the seeds asked for have a value, and why not all; `1/3 diverged`: how "
        "many of them stopped at a number that was not finite; `–`: not asked for. Such cells are never the best.",
        f"{TIED}: a paired t-test over seeds (all cells of a seed share partition, initial weights and batches), "
        f"corrected for the number of cells in the column (Holm), does not tell the cell from the best at {level}; "
        "that is no proof of equality. With three seeds almost everything ties; five tell more apart.",
    ]
    compared = [found for found in board.overall if len(found.columns) > 1 and found.ranked > 1]
    if compared:
        columns, rows = (
            " or ".join(str(count) for count in dict.fromkeys(counts))
            for counts in ([len(found.columns) for found in compared], [found.ranked for found in compared])
        )
        texts.append(
            f"mean of {columns}: mean over the columns, below it its {confidence} interval by a bootstrap of "
            f"{RESAMPLES:,} resamples, stratified by column; mean rank: among the {rows} rows that are complete in "
            "every column, 1 is the best."
        )
    return [
        Heading(2, "How to read this"),
        Items((*texts, *(text for one in board.supplements for text in one.reading()))),
    ]


def _provenance(board: Leaderboard) -> list[Block]:
    made = board.provenance
    lines = [
        f"Runs: {made.wished}, {made.finished} finished",
        f"Seeds: {numbers_text(made.seeds)}",
        f"Rounds: {numbers_text(made.rounds)}",
        *(f"{title}: {literal(_facts(made, title))}" for title, counts in made.facts.items() if counts),
        *(f"Spec: {literal(name)} `{literal(spec_hash)}`" for name, spec_hash in board.options.specs),
    ]
    return [Heading(2, "Provenance"), Items(tuple(lines)), Paragraph("Regenerate with:"), Code(board.options.command)]


def _facts(made: Provenance, title: str) -> str:
    counts = made.facts[title]
    if list(counts.values()) == [made.finished]:
        return next(iter(counts))
    return "; ".join(f"{text} ({count} {'run' if count == 1 else 'runs'})" for text, count in counts.items())
