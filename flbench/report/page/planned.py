"""The short tables of a section's planned comparisons: differences, and interactions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from flbench.choices import Measure
from flbench.metric_specs import METRICS
from flbench.report.blocks import BOLD, Block, Entry, Grid, Heading, Paragraph, words
from flbench.report.board import Section
from flbench.report.planned import Planned, full_name, in_groups
from flbench.report.stats import LEVEL
from flbench.report.wording import NONE, checked_text, last_text, margin_text, planned_text, verdict_text

#: Most columns of a table that has a row a comparison; with more, columns and comparisons change places.
MOST_COLUMNS = 10

_MARKS = {
    "±": "half-width of the 95 % interval of the difference, over seeds",
    BOLD: f"a difference is shown at {100 * LEVEL:g} %, after Holm's correction, and passes all checks",
}


def planned_blocks(section: Section) -> Iterator[Block]:
    """Yield a table of differences and one of interactions; nothing without comparisons."""
    if not section.planned:
        return
    metric, margin = METRICS[section.layout.metric], section.layout.tie_margin
    close = (
        f" **equivalent within {margin_text(margin, metric)}**: two one-sided t-tests, corrected in the same way."
        if margin
        else ""
    )
    tested = sum(one.contrast.p is not None for one in section.planned)
    yield Heading(3, "Planned comparisons")
    yield Paragraph(
        f"Named in the sweep file. Difference{' in points' if metric.percent else ''} of cells that differ in this "
        "field alone, paired by seed and averaged over the given number of pairs, ± half-width of its 95 % interval "
        f"over seeds, on these test images{last_note(section.planned)}. **more**, **less**: p, of the paired t-test, "
        f"is below {LEVEL:g} after Holm's correction over all of this section that have a test ({tested}).{close} "
        "**open**: neither is shown. **but**: the checks that it does not pass. All other comparisons in this section "
        "are exploratory."
    )
    for some in in_groups(section.planned):
        if some[0].between or some[0].pair.measure != "far":
            yield Paragraph(_INTERACTIONS if some[0].between else _OF_RANKS[some[0].pair.measure])
        yield _grid(section, some)


_INTERACTIONS = "Interactions: the difference in the first column minus that in the second, of the same seed."

#: What the tables of comparisons by ranks show, and how they are tested.
_OF_RANKS: Mapping[Measure, str] = {
    "fast": "How fast: the median ratio of the rounds to the level of the column, seed by seed. **faster**, "
    "**slower**: by the exact permutation test of ranks, paired by seed; a seed that does not get there ranks last.",
    "easy": "How easy: the mean difference of the widths of the learning rates that work with each seed. **easier**, "
    "**harder**: by the exact permutation test of their ranks, paired by seed.",
}


def last_note(some: Iterable[Planned]) -> str:
    """Return what ``last`` is beside differences of means over evaluations; empty where there are none."""
    return "; last: the same difference in the last evaluation alone" if any(one.last for one in some) else ""


def _grid(section: Section, some: Sequence[Planned]) -> Grid:
    columns = list(dict.fromkeys(one.column for one in some))
    if len(columns) <= MOST_COLUMNS:
        return planned_grid(section, some, columns, _entry)
    names = list(dict.fromkeys(one.name for one in some))
    entries = {(one.column, one.name): _entry(section, one) for one in some}
    rows = [(*words(column), *(entries.get((column, name), Entry(NONE)) for name in names)) for column in columns]
    return Grid(("column", *names), tuple(rows), 1, marks=_MARKS)


def planned_grid(
    section: Section,
    some: Sequence[Planned],
    columns: Sequence[str],
    entry: Callable[[Section, Planned], Entry],
    counts: Mapping[str, str] | None = None,
) -> Grid:
    """Return a table with a row a comparison and some columns; ``counts``: the texts of a last column by comparison.

    The first head says among which cells and between which columns the comparisons are, where it is the same for all.
    """
    every = len({one.column for one in some})
    among, between = _shared(one.among for one in some), _shared(one.between for one in some)
    entries = {(one.name, one.column): entry(section, one) for one in some if one.column in columns}
    labels = {
        one.name: full_name(one.short_name, "" if among else one.among, "" if between else one.between) for one in some
    }
    rows = [
        (*words(label), *(entries.get((name, column), Entry(NONE)) for column in columns), *words(*last))
        for name, label in labels.items()
        for last in [[counts[name]] if counts else []]
    ]
    heads = [column or METRICS[section.layout.metric].title for column in columns]
    last_head = [f"all {every} columns"] if counts else []
    return Grid((full_name("comparison", among, between), *heads, *last_head), tuple(rows), 1, marks=_MARKS)


def _shared(texts: Iterable[str]) -> str:
    """Return the text if all are equal, else an empty one."""
    different = set(texts)
    return different.pop() if len(different) == 1 else ""


def _entry(section: Section, one: Planned) -> Entry:
    text, below = planned_text(one, section.layout.metric)
    verdict = checked_text(verdict_text(one, section.layout), one.but)
    pairs = f"{one.cells} {'pair' if one.cells == 1 else 'pairs'}"
    missing = (f"{one.missing} left out",) if one.missing else ()
    last = last_text(one.last, section.layout.metric)
    return Entry(text, (verdict, below, *last, pairs, *missing), order=one.contrast.difference.mean)
