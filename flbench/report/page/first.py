"""The first page of a report: answers, one table, few figures."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from flbench.choices import ON_VALIDATION_DATA
from flbench.literal import literal
from flbench.messages import counted, some_of
from flbench.metric_specs import METRICS
from flbench.report.blocks import BOLD, Block, Entry, Figure, Fold, Grid, Heading, Items, Paragraph, words
from flbench.report.board import Leaderboard, Picture, Section
from flbench.report.cells import tick_of
from flbench.report.claims import MEANINGS, UNDECIDED, VERDICTS, Chapter, Claim
from flbench.report.headline import Answer, Column, Headline, Row, answers, headline
from flbench.report.page.planned import last_note, planned_grid
from flbench.report.page.sections import WHEN
from flbench.report.planned import Planned
from flbench.report.provenance import CONTRIBUTORS
from flbench.report.runs import code_notes_of
from flbench.report.stats import LEVEL, Verdict
from flbench.report.supplement import Place
from flbench.report.ticks import axis_names
from flbench.report.wording import (
    NONE,
    checked_text,
    code_text,
    gap_text,
    in_words,
    last_text,
    listing,
    margins_text,
    marked,
    mean_text,
    planned_text,
    rising_text,
    tail_text,
    verdict_text,
)

#: Most figures of the page.
MOST_FIGURES = 3

#: Most windows of evaluations that a line names.
MOST_WINDOWS = 6

#: The verdicts on planned comparisons in the order of a sentence.
ORDER: tuple[Verdict, ...] = ("more", "more, equivalent", "less", "less, equivalent", "equivalent", "open")

_NOT_SHOWN = (
    "Shown: the rows of planned comparisons, then those with values in most columns, the best by mean rank first. "
    "Rows that only the details show: {}."
)


#: What bold means in the table of values.
_BETTER = "shown to be better than the first row of the column"


def place_page(place: Place) -> str:
    """Return the name of the page on a data set and model."""
    return re.sub(r"[^a-z0-9]+", "-", "-".join(place).lower()).strip("-")


def pictures_of_first(board: Leaderboard) -> list[Picture]:
    """Return the pictures of the page: the first one of each kind that is for it."""
    found = headline(board.sections)
    places = [column.section.place for column in found.columns] if found else []
    for_it = [one for one in board.pictures if one.on_first_page and (one.place is None or one.place in places)]
    # The data set of the first column comes first.
    for_it.sort(key=lambda one: places.index(one.place) if one.place else -1)
    first = {one.kind: one for one in reversed(for_it)}
    most = 1 if board.options.opening else MOST_FIGURES
    return [one for one in board.pictures if first.get(one.kind) is one][:most]


def first_page(board: Leaderboard, links: Mapping[str, str]) -> Iterator[Block]:
    """Yield the page; ``links`` are the addresses of the pages of details by name."""
    yield Heading(1, board.options.title)
    opening = board.options.opening
    if opening:
        yield Paragraph(opening)
    yield Paragraph(_intro(board, links))
    yield from _gaps(board)
    found = headline(board.sections)
    answers = tuple(_answers(board, found, links))
    if answers and not opening:
        yield Heading(2, "Answers")
        yield from answers
    if found is not None:
        yield Heading(2, "Values")
        yield from _table(board, found, links)
    yield from (Figure(picture.caption, picture.svg) for picture in pictures_of_first(board))
    if answers and opening:
        yield Fold("Planned comparisons, published numbers and studies", answers, in_markdown=True)


def _intro(board: Leaderboard, links: Mapping[str, str]) -> str:
    """Return what was run."""
    studies = sum(len(chapter.runs) for chapter in board.chapters)
    trained = board.provenance.requested - studies
    datasets = list(dict.fromkeys(literal(section.place[0]) for section in board.sections))
    parts = [f"{counted(trained, 'training run')} on {', '.join(datasets)}"] if datasets else []
    parts += [f"{counted(studies, 'run')} of studies of networks"] if studies else []
    contributed = board.provenance.facts[CONTRIBUTORS]
    listed = ", ".join(f"{count:,} contributed by {literal(who)}" for who, count in contributed.items())
    return f"{' and '.join(parts)} ([provenance]({links['provenance']})){f', {listed}' if listed else ''}."


def _gaps(board: Leaderboard) -> Iterator[Block]:
    """Yield what is missing."""
    if board.unfinished:
        studies = sum(len(chapter.runs) for chapter in board.chapters)
        total, requested = sum(board.unfinished.values()), board.provenance.requested - studies
        # A diverged run is finished: divergence is its result, although it has no value.
        if board.unfinished.keys() == {"diverged"}:
            text = f"{some_of(total, requested, 'run')} diverged; {'it has' if total == 1 else 'they have'} no value."
        else:
            why = literal(listing(board.unfinished))
            text = f"**Incomplete:** {some_of(total, requested, 'run', 'has')} no value: {why}."
        yield Paragraph(text, warning=True)
    for note in code_notes_of(board.collection.runs):
        yield Paragraph(f"**Other code:** {literal(note)}", warning=True)
    for note in board.collection.left_out:
        yield Paragraph(f"Left out: {literal(note)}.", warning=True)


def _answers(board: Leaderboard, found: Headline | None, links: Mapping[str, str]) -> Iterator[Block]:
    """Yield a sentence for each planned comparison, claim and paper."""
    planned = answers(board.sections, found)
    if planned:
        margins = margins_text(one.section.layout for one in planned)
        every = [one for answer in planned for one in answer.planned]
        yield Paragraph(
            "**Planned comparisons** of the sweep files: differences of cells that differ in one field alone, paired "
            "by seed, on these test images, ± half-width of the 95 % interval over seeds"
            f"{last_note(every)}; *a minus b*: the difference with a minus that with b. More, less, equivalent "
            f"(within {margins}): shown at {100 * LEVEL:g} % by t-tests with Holm's correction over the section; "
            "open: neither. **But**: the checks that it fails (rising curves, coarse grids, windows of "
            "evaluations, collapsed seeds); bold: it passes all. "
            f"[Names and checks]({links['how-to-read-this']})."
        )
    for i, answer in enumerate(planned):
        yield from _planned(answer, links, continues=i > 0 and planned[i - 1].section is answer.section)
    for supplement in board.supplements:
        yield from supplement.opening()
        # With an opening of people, the chapters alone have the claims.
        if not board.options.opening and (texts := list(_claim_texts(board, supplement.claims()))):
            yield Paragraph(f"Claims, in bold, with their verdicts on these runs ({MEANINGS}):")
            yield Items(tuple(texts))
    if board.chapters:
        yield Items(tuple(_chapter_text(chapter, links) for chapter in board.chapters))


def _planned(answer: Answer, links: Mapping[str, str], *, continues: bool) -> Iterator[Block]:
    """Yield a table: the numbers of the columns of the page, and how many of all columns have which verdict.

    ``continues``: it follows another table of the same section.
    """
    section, some = answer.section, answer.planned
    metric = METRICS[section.layout.metric]
    unit = f"{metric.title} in points" if metric.percent else metric.title
    what = "differences of these gains between columns" if some[0].between else f"{unit}{_partitions_text(some)}"
    of_ranks = {"fast": "rounds to the level of the column", "easy": "width of the rates that work"}
    what = of_ranks.get(answer.measure, what)
    where = f"[{literal(section.name)}]({links[place_page(section.place)]}), "
    yield Paragraph(f"{what[0].upper()}{what[1:]}:" if continues else f"{where}{what}:")
    names = dict.fromkeys(one.name for one in some)
    counts = {name: _counts(section, [one for one in some if one.name == name]) for name in names}
    has_more = len({one.column for one in some}) > len(answer.columns)
    yield planned_grid(section, some, answer.columns, _gain, counts if has_more else None)


def _gain(section: Section, one: Planned) -> Entry:
    text, _ = planned_text(one, section.layout.metric)
    return Entry(
        text,
        (_verdict(section, one), *last_text(one.last, section.layout.metric)),
        bold=one.is_different,
        order=one.contrast.difference.mean,
    )


def _counts(section: Section, some: Sequence[Planned]) -> str:
    """Return ``more in 5, open in 3, fails in 2``."""
    of_verdict = {
        verdict: [one for one in some if one.contrast.verdict == verdict and not one.but] for verdict in ORDER
    }
    counts = {_plain_verdict(section, same[0]): len(same) for same in of_verdict.values() if same}
    counts |= {"fails": sum(bool(one.but) for one in some)}
    return ", ".join(f"{text} in {count}" for text, count in counts.items() if count)


def _verdict(section: Section, one: Planned) -> str:
    """Return the verdict, and the checks that it does not pass."""
    return checked_text(_plain_verdict(section, one), one.but_briefly)


def _plain_verdict(section: Section, one: Planned) -> str:
    """Return the verdict; it names a margin other than the default, since sections may have different ones."""
    layout, verdict = section.layout, one.contrast.verdict
    is_plain = one.pair.measure == "far" and layout.tie_margin == layout.default_margin
    text = verdict if is_plain else verdict_text(one, layout)
    return text.replace(", ", " and ")


def _partitions_text(some: Sequence[Planned]) -> str:
    """Return in which columns seeds vary the partition: by its name, where it is on an axis of theirs."""
    names: dict[bool | None, dict[str, None]] = {True: {}, False: {}, None: {}}
    for one in some:
        at = dict(zip(one.place.axes, one.place.ticks, strict=True))
        names[one.checks.varied][at["partition"].label if "partition" in at else one.column] = None
    if not names[False]:
        return "; each seed draws its own partition" if names[True] else ""
    where = f" in {', '.join(map(literal, names[False]))}" if names[True] else ""
    return f"; all seeds share one partition{where}"


def _claim_texts(board: Leaderboard, claims: Sequence[tuple[str, Claim]]) -> Iterator[str]:
    """Yield statements with their verdicts by data set; then, by name alone, those that no data set decides."""
    names = {section.title: literal(section.name) for section in board.sections}
    undecided: dict[str, list[str]] = {verdict: [] for verdict in UNDECIDED}
    for text in dict.fromkeys(claim.text for _, claim in claims):
        same = [(where, claim) for where, claim in claims if claim.text == text]
        decided = [
            f"{claim.verdict.capitalize()} on {names[where]}: {literal(claim.gist)}."
            for where, claim in same
            if claim.verdict not in UNDECIDED
        ]
        if decided:
            where = ", ".join(names[where] for where, claim in same if claim.verdict == "inconclusive")
            yield " ".join([f"**{literal(text)}.**", *decided, *([f"Inconclusive on {where}."] if where else [])])
        else:
            undecided[min((claim.verdict for _, claim in same), key=UNDECIDED.index)].append(_quoted(text))
    for verdict, texts in undecided.items():
        if texts:
            yield f"**{verdict.capitalize()}:** {', '.join(texts)}."


def _chapter_text(chapter: Chapter, links: Mapping[str, str]) -> str:
    """Return how many claims of a chapter hold, and the names of the others by verdict."""
    held = sum(claim.verdict == "holds" for claim in chapter.claims)
    parts = [f"{held} of {len(chapter.claims)} claims hold"]
    for verdict in VERDICTS:
        names = [_quoted(claim.text) for claim in chapter.claims if claim.verdict == verdict]
        if verdict != "holds" and names:
            parts.append(f"*{verdict}*: {', '.join(names)}")
    return f"[{literal(chapter.title)}]({links[chapter.kind]}): {'; '.join(parts)}."


def _quoted(text: str) -> str:
    """Return a statement as a name: in quotes, without its full stop."""
    return f"“{literal(text.rstrip('.'))}”"


def _table(board: Leaderboard, found: Headline, links: Mapping[str, str]) -> Iterator[Block]:
    """Yield the table and what its numbers are."""
    yield Paragraph(_what(board, found, links))
    heads = _heads(found)
    supplements = board.supplements
    rows = []
    for row in found.rows:
        # Methods that compute the same in a section's columns may differ in those of another one.
        labels = marked([at.label.split(" = ")[0] for at in row.row], personal=row.is_personal)
        entries = [
            _entry(row, c, [line for one in supplements if cell and (line := one.beside(cell))])
            for c, cell in enumerate(row.cells)
        ]
        rows.append((*words(*labels), *entries))
    yield Grid((*axis_names(found.row_axes), *heads), tuple(rows), len(found.row_axes), marks={BOLD: _BETTER})
    notes = [_NOT_SHOWN.format(found.left_out)] if found.left_out else []
    if any(row.is_personal for row in found.rows):
        notes.append("¹ No shared model: mean over clients of their own models on the *whole* test set.")
    sections = {column.section.title: column.section for column in found.columns}
    yield Items((*(literal(f"{title}: {settings_text(section)}.") for title, section in sections.items()), *notes))


def _what(board: Leaderboard, found: Headline, links: Mapping[str, str]) -> str:
    names = dict.fromkeys(column.section.layout.metric for column in found.columns)
    metrics = [METRICS[name] for name in names]
    texts = [
        f"`{name}`: {metric.what}{', in percent' if metric.percent else ''}; "
        f"{'lower' if metric.lower_is_better else 'higher'} is better."
        for name, metric in zip(names, metrics, strict=True)
    ]
    texts.append(
        "Mean ± half-width of its 95 % interval, over seeds and test images; without ± fewer than three seeds."
    )
    if found.baseline is not None:
        texts.append(f"**Bold**: {_BETTER}, by a planned comparison of the two cells that passes all checks.")
    texts.append(f"[How to read this]({links['how-to-read-this']}).")
    return " ".join(texts)


def _heads(found: Headline) -> tuple[str, ...]:
    """Return the heads of the columns: with several sections also data set, partition and rounds, in words."""
    if len({one.section.title for one in found.columns}) == 1:
        return tuple(column.name for column in found.columns)
    models: dict[str, set[str]] = {}
    for column in found.columns:
        models.setdefault(column.section.place[0], set()).add(column.section.place[1])
    heads = []
    for column in found.columns:
        data, model = column.section.place
        parts = dict.fromkeys([*_shared_by(column, "partition"), *filter(None, column.name.split(", "))])
        rounds = {f"{cell.experiment.rounds:,} rounds": None for cell in column.cells}
        parts |= rounds if len(rounds) == 1 else {}
        place = data if len(models[data]) == 1 else f"{data}, {model}"
        heads.append(f"{in_words(place)}\n{in_words(', '.join(parts))}")
    names = ["\n".join(filter(None, [column.section.name, column.name])) for column in found.columns]
    return tuple(names[at] if heads.count(head) > 1 else head for at, head in enumerate(heads))


def _shared_by(column: Column, axis: str) -> list[str]:
    """Return the place on an axis that all cells of a column share, if they do."""
    labels = {tick_of(cell, axis).label for cell in column.cells if hasattr(cell.experiment, axis)}
    return [*labels] if len(labels) == 1 else []


def _entry(row: Row, c: int, beside: Sequence[str]) -> Entry:
    cell = row.cells[c]
    if cell is None:
        return Entry(NONE)
    below = [f"n={cell.summary.n}"] if cell.summary and cell.summary.half_width is None else []
    below += [gap_text(cell)] if not cell.complete else []
    rising = (text.partition(",")[0] for text in rising_text(cell))  # the rounds are below the table
    below += [*code_text(cell), *tail_text(cell), *rising]
    order = cell.summary.mean if cell.summary else None
    return Entry(mean_text(cell), (*below, *beside), bold=row.better[c], order=order)


def settings_text(section: Section) -> str:
    """Return the settings that all cells share, which round counts, and how the others were chosen."""
    rule = section.layout.select_by
    texts = {cell.chosen for table in section.tuned for cell in table.cells.values()}
    data = "held-out training data" if rule in ON_VALIDATION_DATA else "the test data"
    if len(texts) > 1:
        texts = {f"the best {' and '.join(section.chosen)} of each row and column, chosen on {data}"}
    return "; ".join([section.constants, WHEN[rule] + _window_text(section), *texts])


def _window_text(section: Section) -> str:
    """Return the rounds over which the values are means: `` (rounds 60 to 100)``; empty where they are no means."""
    cells = (cell for table in section.tuned or section.tables for cell in table.cells.values())
    windows = sorted({(run.since, run.rounds) for cell in cells for run in cell.runs if run.since is not None})
    listed = ", ".join(f"{since:,} to {rounds:,}" for since, rounds in windows)
    return f" (rounds {listed})" if 0 < len(windows) <= MOST_WINDOWS else ""
