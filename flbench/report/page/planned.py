"""The short table of a section's planned comparisons."""

from __future__ import annotations

from collections.abc import Iterator

from flbench.metric_specs import METRICS
from flbench.report.blocks import Block, Entry, Grid, Heading, Paragraph, words
from flbench.report.board import Section
from flbench.report.planned import Planned
from flbench.report.wording import NONE, contrast_text


def planned_blocks(section: Section) -> Iterator[Block]:
    """Yield the table, a row a comparison and a column a column of the section; nothing without comparisons."""
    if not section.planned:
        return
    names = list(dict.fromkeys(one.name for one in section.planned))
    columns = list(dict.fromkeys(one.column for one in section.planned))
    metric = section.layout.metric
    entries = {(one.name, one.column): _entry(one, metric) for one in section.planned}
    rows = [(*words(name), *(entries.get((name, column), Entry(NONE)) for column in columns)) for name in names]
    yield Heading(3, "Planned comparisons")
    yield Paragraph(
        f"Named in the sweep file. Difference{' in points' if METRICS[metric].percent else ''} of cells that differ in "
        "this field alone, paired by seed and averaged over the given number of pairs, ± half-width of its 95 % "
        f"interval over seeds, on these test images; p: paired t-test, corrected for the {len(section.planned)} "
        "comparisons of this table alone (Holm). All other comparisons in this section are exploratory."
    )
    yield Grid(("comparison", *columns), tuple(rows), names=1)


def _entry(one: Planned, metric: str) -> Entry:
    text, below = contrast_text(one.contrast, metric)
    pairs = f"{one.cells} {'pair' if one.cells == 1 else 'pairs'}"
    missing = (f"{one.missing} left out",) if one.missing else ()
    return Entry(text, (below, pairs, *missing), order=one.contrast.difference.mean)
