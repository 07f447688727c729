"""Over training: the headline metric over rounds, and over the data seen, where federated meets centralized training.

The latter are figures 4 and 6 of Zhang et al. 2024 (arXiv 2308.09565v2).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flbench.config import Federated, Training
from flbench.metric_specs import value_of
from flbench.report.board import Leaderboard, Section
from flbench.report.cells import Cell, Tick
from flbench.report.figures.drawing import Drawing, file_name
from flbench.report.figures.style import (
    BAND,
    PANEL,
    Look,
    entitle,
    is_lowest,
    legend,
    looks,
    metric_label,
    name_panel,
    panels,
    place_name,
    scale_of,
    tell_gaps,
    title_of,
)
from flbench.report.runs import Collection
from flbench.report.stats import summarize
from flbench.report.tables import Table
from flbench.report.wording import row_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Markers along a line, so that they tell lines apart without hiding them.
_MARKS = 8

Points = list[tuple[float, float, float]]  # x, mean, sd


def over_rounds(board: Leaderboard) -> Iterator[Drawing]:
    """One figure a table: a panel a column, a line a row, a band of one standard deviation over seeds."""
    for section in board.sections:
        seen: Counter[str] = Counter()
        for details in section.details:
            table = details.table
            if any(run.has_curve for cell in table.cells.values() for run in cell.runs):
                name = file_name("curves", title_of(section, table))
                seen[name] += 1
                name += f"-part{seen[name]}" if seen[name] > 1 else ""
                yield _draw_table(section, table, board.collection, name)


def _draw_table(section: Section, table: Table, collection: Collection, name: str) -> Drawing:
    from matplotlib.ticker import MaxNLocator

    alike = [other.rows for other in section.tables if other.row_axes == table.row_axes]
    styles = looks(table.rows, [row for rows in alike for row in rows])
    as_long = len({cell.training.rounds for cell in table.cells.values()}) == 1
    figure, axes = panels(len(table.cols), sharex=as_long, sharey=True)
    for c, (panel, col) in enumerate(zip(axes, table.cols, strict=True)):
        cells = [(r, table.cells[r, c]) for r in range(len(table.rows)) if (r, c) in table.cells]
        for r, cell in cells:
            _draw_line(panel, _points(cell, collection, lambda _: 1), styles[r], r, scale_of(table.metric))
        tell_gaps(panel, [(row_name(table.rows[r]), cell) for r, cell in cells if not cell.complete])
        name_panel(panel, place_name(table.col_axes, col), PANEL[0])
        if scale_of(table.metric) == 100:
            panel.set_ylim(0, 101)
        panel.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
        if is_lowest(c, len(axes)):
            panel.set_xlabel("round")
    figure.supylabel(metric_label(table.metric), fontsize="medium")
    entitle(figure, f"{title_of(section, table)}: mean ± sd over seeds")
    legend(figure, table.rows, styles, table.row_axes)
    caption = f"{title_of(section, table)}: {metric_label(table.metric)} over rounds, mean ± sd over seeds."
    return Drawing("curves", name, caption, figure, section.place)


def over_data(board: Leaderboard) -> Iterator[Drawing]:
    """One figure a section with centralized runs: a panel a column, and one of centralized training, over samples seen.

    A round shows clients x participation x local steps x batch size samples to federated training, and local steps x
    batch size to centralized training. Runs of whole local epochs have no such number and are left out.
    """
    for section in board.sections:
        tables = [details.table for details in section.details]
        shown = [lines for table in tables for lines in _columns(table) if lines.cells]
        if any(table.kind == "centralized" for table in tables) and shown:
            yield _draw_data(section, shown, board.collection)


@dataclass(frozen=True)
class _Lines:
    """What a panel over the samples seen shows: cells by a name and the last of the row's names."""

    title: str
    cells: Mapping[tuple[str, Tick], Cell]


def _columns(table: Table) -> Iterator[_Lines]:
    """The table's cells with a value, column by column."""
    kind = "centralized" if table.kind == "centralized" else ""
    for c, col in enumerate(table.cols):
        cells = {
            (f"{kind} {row_name(row)}".strip(), row[-1]): table.cells[r, c]
            for r, row in enumerate(table.rows)
            if (r, c) in table.cells and table.cells[r, c].values and _samples(table.cells[r, c].training)
        }
        yield _Lines(", ".join(filter(None, [kind, place_name(table.col_axes, col)])), cells)


def _draw_data(section: Section, shown: Sequence[_Lines], collection: Collection) -> Drawing:
    from matplotlib.lines import Line2D
    from matplotlib.ticker import EngFormatter, MaxNLocator

    # The kind of line tells who trains, the colour the normalization.
    keys = list(dict.fromkeys(key for lines in shown for key in lines.cells))
    groups = {name: index for index, name in enumerate(dict.fromkeys(_group(*key) for key in keys))}
    styles = dict(zip(keys, looks([(Tick((groups[_group(*key)],), ""), key[1]) for key in keys]), strict=True))
    metric = next(iter(shown[0].cells.values())).metric
    as_long = len({_fed(cell.training) for lines in shown for cell in lines.cells.values()}) == 1
    figure, axes = panels(len(shown), sharex=as_long, sharey=True)
    for c, (panel, lines) in enumerate(zip(axes, shown, strict=True)):
        for number, (key, cell) in enumerate(lines.cells.items()):
            _draw_line(panel, _points(cell, collection, _samples), styles[key], number, scale_of(metric))
        tell_gaps(panel, [(name, cell) for (name, _), cell in lines.cells.items() if not cell.complete])
        name_panel(panel, lines.title, PANEL[0])
        panel.xaxis.set_major_locator(MaxNLocator(nbins=5))
        panel.xaxis.set_major_formatter(EngFormatter(sep=""))
        panel.set_xlim(left=0)
        if is_lowest(c, len(axes)):
            panel.set_xlabel("training samples seen")
    figure.supylabel(metric_label(metric), fontsize="medium")
    entitle(figure, f"{section.title}: mean ± sd over seeds")
    handles = [Line2D([], [], **look) for look in styles.values()]
    figure.legend(handles, [name for name, _ in keys], loc="outside right center", handlelength=3.5)
    caption = f"{section.title}: federated and centralized training over the samples seen, mean ± sd over seeds."
    return Drawing("data", file_name("data", section.title), caption, figure, section.place)


def _group(name: str, hue: Tick) -> str:
    """A line's name without its normalization."""
    return name.replace(hue.label, "", 1)


def _samples(experiment: Training) -> float:
    """Training samples that a round feeds; 0 where it depends on the clients' data."""
    clients = experiment.cohort_size if isinstance(experiment, Federated) else 1
    return float(clients * (experiment.local_steps or 0) * experiment.batch_size)


def _fed(experiment: Training) -> float:
    """Training samples that all its rounds feed."""
    return experiment.rounds * _samples(experiment)


def _draw_line(panel: Axes, points: Points, look: Look, number: int, scale: int) -> None:
    if not points:
        return
    at = [x for x, _, _ in points]
    # Marks of different lines stand at different rounds, so that none hides another.
    every = max(1, len(points) // _MARKS)
    panel.plot(at, [scale * mean for _, mean, _ in points], **look, markevery=(number % every, every))
    low, high = ([scale * (mean + sign * sd) for _, mean, sd in points] for sign in (-1, 1))
    panel.fill_between(at, low, high, color=look["color"], alpha=BAND, linewidth=0)


def _points(cell: Cell, collection: Collection, per_round: Callable[[Training], float]) -> Points:
    """Mean and sd over the seeds that are in the cell's mean, at the rounds that all of them recorded."""
    seeds = []
    for run in cell.runs:
        if run.state == "done":
            values = {record["round"]: value_of(record, cell.metric) for record in collection.records(run)}
            seeds.append({at: value for at, value in values.items() if value is not None})
    common = sorted(set.intersection(*(set(values) for values in seeds))) if seeds else []
    summaries = [(at * per_round(cell.training), summarize([values[at] for values in seeds])) for at in common]
    return [(x, summary.mean, summary.sd or 0.0) for x, summary in summaries if summary]
