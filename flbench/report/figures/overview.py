"""The planned comparisons of the first page in one figure: panels of a section in a row, of a reference in a column."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from flbench.metric_specs import METRICS
from flbench.report.board import Leaderboard, Section
from flbench.report.cells import grouped
from flbench.report.figures.drawing import FIGURES, Drawing
from flbench.report.figures.gains import draw_panel, height_of, legend_styles, legend_text, styles_of
from flbench.report.figures.style import legend, no_math, panels, set_title, spelled
from flbench.report.headline import answers, headline
from flbench.report.planned import Planned

#: Fewest sections: the comparisons of one are drawn as ``gains``.
FEWEST = 2


@FIGURES.register(
    "overview",
    "planned comparisons of the first page, of all data sets",
    requires="`report.contrasts` in two sections, against the same values",
    order=3,
    on_first_page=True,
)
def overview(board: Leaderboard) -> Iterator[Drawing]:
    """Draw comparisons of the first compared field, with those of its values that several sections compare others with.

    Yields:
        One figure, if several sections with the same metric compare with the same value.
    """
    found = answers(board.sections, headline(board.sections))
    shown: dict[str, list[Planned]] = {}
    for answer in found:
        shown.setdefault(answer.section.title, []).extend(answer.shown)
    if len(shown) < FEWEST or len({answer.section.layout.metric for answer in found}) > 1:
        return
    field = found[0].planned[0].pair.field
    references = [dict.fromkeys(one.against for one in some if one.pair.field == field) for some in shown.values()]
    counts = Counter(name for one in references for name in one)
    shared = [name for name, count in counts.items() if count >= FEWEST]
    drawn = [
        (answer.section, [one for one in answer.shown if one.pair.field == field and one.against in shared])
        for answer in found
    ]
    if shared:
        rows = [(section, same) for section, some in drawn for same in grouped(some, lambda one: one.among)]
        yield _draw(rows, shared)


def _draw(rows: Sequence[tuple[Section, Sequence[Planned]]], references: Sequence[str]) -> Drawing:
    styles = styles_of([one for _, some in rows for one in some])
    heights = [height_of(some, styles) for _, some in rows]
    across = len(references)
    figure, axes = panels(len(rows) * across, across=across, height=heights, sharex="col", sharey="row")
    lines = [axes[first : first + across] for first in range(0, len(axes), across)]
    for row, (section, some) in zip(lines, rows, strict=True):
        for panel, name in zip(row, references, strict=True):
            if group := [one for one in some if one.against == name]:
                draw_panel(panel, section, group, styles)
            else:
                panel.set_axis_off()
        names = filter(None, [section.name, some[0].among, some[0].between])
        row[0].set_title(no_math(", ".join(names)), loc="left")
    for column, name in zip(zip(*lines, strict=True), references, strict=True):
        lowest = [panel for panel in column if panel.axison][-1]
        lowest.set_xlabel(no_math(f"against {spelled(name)}"))
        lowest.tick_params(labelbottom=True)
    legend(figure, legend_styles(styles))
    first = rows[0][0]
    metric = METRICS[first.layout.metric]
    unit = " (points)" if metric.percent else ""
    set_title(figure, f"Planned comparisons: differences in {metric.title}{unit}")
    title = f"Planned comparisons against {' and '.join(references)}"
    return Drawing("overview", f"{title}, {legend_text(first)}", figure)
