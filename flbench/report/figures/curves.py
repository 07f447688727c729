"""Over training: the metric over rounds, and over the samples seen, where federated meets centralized training.

The latter are figures 4 and 6 of Zhang et al. 2024 (arXiv 2308.09565v2).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flbench.config import Federated, Training
from flbench.config.local_steps import mean_steps
from flbench.metric_specs import value_of
from flbench.report.board import Leaderboard, Section
from flbench.report.cells import Cell, grouped
from flbench.report.figures.drawing import FIGURES, Drawing, file_name, titles_of
from flbench.report.figures.rows import MOST_LINES, lacking_text, leading, shown_text, spread_text
from flbench.report.figures.style import (
    LineStyle,
    annotate_gaps,
    is_lowest,
    legend,
    limit_values,
    metric_label,
    named,
    panels,
    plot_mean,
    row_label,
    row_styles,
    scale_of,
    set_panel_title,
    set_plain_numbers,
    set_title,
    spelled,
)
from flbench.report.runs import Collection
from flbench.report.stats import summarize
from flbench.report.tables import Table
from flbench.report.ticks import Tick, place_label
from flbench.report.wording import in_words, row_name
from flbench.sweeps.layout import Layout

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Markers along a line: enough to tell lines apart, too few to hide them.
_MARKS = 8


@FIGURES.register("curves", "the metric over rounds, mean ± sd", requires="runs with a curve", order=10)
def over_rounds(board: Leaderboard) -> Iterator[Drawing]:
    """Draw one figure a table: a panel a column, a line a row, a band of one standard deviation over seeds."""
    for section in board.sections:
        seen: Counter[str] = Counter()
        for table in section.details:
            if any(run.has_curve for cell in table.cells.values() for run in cell.runs):
                name = file_name("curves", section.title, table.short_title)
                seen[name] += 1
                name += f"-part{seen[name]}" if seen[name] > 1 else ""
                yield _draw_rounds(section, table, board.collection, name)


def _draw_rounds(section: Section, table: Table, collection: Collection, name: str) -> Drawing:
    alike = [one for one in section.details if one.row_axes == table.row_axes]
    lines = [
        (other.rows[r], cell, cell.summary.mean if cell.summary else None)
        for other in alike
        for (r, _), cell in other.cells.items()
    ]
    rows = leading(lines, section.layout)
    styles = row_styles(rows, table.row_axes)
    as_long = len({cell.experiment.rounds for cell in table.cells.values()}) == 1
    figure, axes = panels(len(table.cols), sharex=as_long, sharey=True)
    for c, (panel, col) in enumerate(zip(axes, table.cols, strict=True)):
        cells = [
            (row, table.cells[r, c]) for r, row in enumerate(table.rows) if row in styles and (r, c) in table.cells
        ]
        for row, cell in cells:
            _draw_line(panel, cell, collection, 1, styles[row], rows.index(row))
        annotate_gaps(panel, [(row_label(row, table.row_axes), cell) for row, cell in cells])
        set_panel_title(panel, in_words(place_label(table.col_axes, col)))
        limit_values(panel, table.metric)
        panel.set_xscale("log")  # methods differ most in the first rounds
        panel.margins(x=0.02)
        set_plain_numbers(panel.xaxis)
        panel.xaxis.set_major_formatter("{x:,g}")
        if is_lowest(panel):
            panel.set_xlabel("round (log scale)")
    figure.supylabel(metric_label(table.metric), fontsize="medium")
    title = titles_of(section, table)
    spread = spread_text(table.cells.values())
    shown = [{table.rows[r] for r, c in table.cells if c == column} for column in range(len(table.cols))]
    set_title(figure, f"{title}: {spread}{lacking_text(rows, shown)}")
    legend(figure, named(styles, table.row_axes))
    caption = f"{title}: {metric_label(table.metric)} over rounds, {spread}."
    caption += shown_text(len(rows), len({row for row, *_ in lines}))
    return Drawing(name, caption, figure, section.place)


@dataclass(frozen=True)
class _Column:
    """A panel over the samples seen: cells by the name of their row, and by its norm."""

    title: str
    cells: Mapping[tuple[str, Tick], Cell]


@FIGURES.register(
    "data", "federated and centralized training over the samples seen", requires="centralized runs", order=40
)
def over_data(board: Leaderboard) -> Iterator[Drawing]:
    """Yield one figure per section with centralized runs: a panel per column, and one of centralized training.

    A round uses clients x participation x local steps x batch size samples in federated training, and local steps x
    batch size in centralized training. Runs of whole local epochs are omitted, since their number depends on the data.
    """
    for section in board.sections:
        tables = section.details
        columns = [column for table in tables for column in _columns(table) if column.cells]
        if any(table.kind == "centralized" for table in tables) and columns:
            yield _draw_data(section, _of_leading_rows(columns, section.layout), board.collection)


def _columns(table: Table) -> Iterator[_Column]:
    """Yield the columns of a table with its cells that have a value."""
    kind = "centralized" if table.kind == "centralized" else ""
    for c, col in enumerate(table.cols):
        cells = {
            (f"{kind} {row_name(row)}".strip(), row[-1]): table.cells[r, c]
            for r, row in enumerate(table.rows)
            if (r, c) in table.cells and table.cells[r, c].values and _samples_per_round(table.cells[r, c].experiment)
        }
        yield _Column(", ".join(filter(None, [kind, in_words(place_label(table.col_axes, col))])), cells)


def _of_leading_rows(columns: Sequence[_Column], layout: Layout) -> list[_Column]:
    """Return the columns with the leading rows of federated and of centralized training."""
    kinds = grouped(
        [(key, cell) for column in columns for key, cell in column.cells.items()], lambda one: one[1].experiment.kind
    )
    rows = {
        row
        for lines in kinds
        for row in leading([(key, cell, cell.summary.mean if cell.summary else None) for key, cell in lines], layout)
    }
    shown = [{key: cell for key, cell in column.cells.items() if key in rows} for column in columns]
    return [_Column(column.title, cells) for column, cells in zip(columns, shown, strict=True) if cells]


def _draw_data(section: Section, columns: Sequence[_Column], collection: Collection) -> Drawing:
    from matplotlib.ticker import EngFormatter, MaxNLocator

    # The dashes show the method (a row's name without its norm), the colour the norm.
    keys = {key: key[0].replace(key[1].label, "", 1) for column in columns for key in column.cells}
    methods = list(dict.fromkeys(keys.values()))
    ticks = {key: (Tick((methods.index(method),), ""), key[1]) for key, method in keys.items()}
    styles = row_styles(list(ticks.values()), ("method", "norm"))
    everything = [cell for column in columns for cell in column.cells.values()]
    totals = {cell.experiment.rounds * _samples_per_round(cell.experiment) for cell in everything}
    figure, axes = panels(len(columns), sharex=len(totals) == 1, sharey=True)
    for panel, column in zip(axes, columns, strict=True):
        for number, (key, cell) in enumerate(column.cells.items()):
            _draw_line(panel, cell, collection, _samples_per_round(cell.experiment), styles[ticks[key]], number)
        annotate_gaps(panel, [(name, cell) for (name, _), cell in column.cells.items()])
        set_panel_title(panel, column.title)
        panel.xaxis.set_major_locator(MaxNLocator(nbins=5))
        panel.xaxis.set_major_formatter(EngFormatter(sep=""))
        panel.set_xlim(left=0)
        if is_lowest(panel):
            panel.set_xlabel("training samples seen")
    figure.supylabel(metric_label(everything[0].metric), fontsize="medium")
    kinds = grouped(columns, lambda column: next(iter(column.cells.values())).experiment.kind)
    texts = (lacking_text({key for one in same for key in one.cells}, [one.cells for one in same]) for same in kinds)
    lacking = next(filter(None, texts), "")
    set_title(figure, f"{section.words}: {spread_text(everything)}{lacking}")
    names = {key: ", ".join([key[0].removesuffix(key[1].label).strip(), spelled(key[1].label)]) for key in keys}
    legend(figure, {name: styles[ticks[key]] for key, name in names.items()})
    caption = f"{section.words}: federated and centralized training over the samples seen, {spread_text(everything)}."
    return Drawing(file_name("data", section.title), caption, figure, section.place)


def _samples_per_round(experiment: Training) -> float:
    """Return the training samples of a round; 0 where the number depends on the clients' data."""
    clients = experiment.cohort_size if isinstance(experiment, Federated) else 1
    steps = 0.0 if experiment.local_steps is None else mean_steps(experiment.local_steps)
    return clients * steps * experiment.batch_size


def _draw_line(
    panel: Axes, cell: Cell, collection: Collection, per_round: float, style: LineStyle, number: int
) -> None:
    """Draw the metric over rounds x ``per_round``, at the rounds that all seeds in the cell's mean recorded.

    A cell of which a seed has no curve has no line.
    """
    seeds, done = [], [run for run in cell.runs if run.state == "done"]
    if all(run.has_curve for run in done):
        for run in done:
            values = {record["round"]: value_of(record, cell.metric) for record in collection.records(run)}
            seeds.append({at: value for at, value in values.items() if value is not None})
    common = sorted(set.intersection(*(set(values) for values in seeds))) if seeds else []
    summaries = [summary for at in common if (summary := summarize([values[at] for values in seeds]))]
    if not summaries:
        return
    # Markers are equally far apart, also on a logarithmic axis; those of different lines start at different places.
    every = 1 / _MARKS
    at, means, sds = [at * per_round for at in common], [one.mean for one in summaries], [one.sd for one in summaries]
    plot_mean(panel, at, means, sds, style, scale=scale_of(cell.metric), markevery=(every * number / MOST_LINES, every))
