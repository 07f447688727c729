"""Figures of one class a client: features over rounds and class accuracies (figures 2 and 3 of Zhang et al. 2024)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flbench.papers.label_skew.probe_cells import probes_of
from flbench.report.board import Details, Leaderboard, Section
from flbench.report.cells import Cell, grouped
from flbench.report.figures.drawing import Drawing, file_name
from flbench.report.figures.style import BAND, COLORS, LineStyle, legend, row_styles, set_title
from flbench.report.runs import Collection
from flbench.report.ticks import place_label
from flbench.report.wording import row_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = NDArray[np.float64]

#: A colour map of steadily rising lightness, for every kind of colour blindness and in grey.
_COLORS = "cividis"

#: Inches of an accuracy; maps side by side; most classes whose accuracies are written.
_CELL, _ACROSS, _MOST_WRITTEN = 0.29, 4, 12


def overfit(board: Leaderboard) -> Iterator[Drawing]:
    """One figure a column of a table whose cells have the overfit probe: a map a row."""
    for section in board.sections:
        for details in section.details:
            for c in range(len(details.table.cols)):
                maps = _maps(details, c)
                if maps:
                    yield _class_maps(section, details, c, maps)


def _maps(details: Details, c: int) -> Mapping[str, Array]:
    """Class accuracies (seeds, 1 + clients, classes) of each row with a global model: as it is, after each client."""
    table = details.table
    cells = {
        row_name(table.rows[r]): cell
        for (r, col), cell in sorted(table.cells.items())
        if col == c and not cell.personal
    }
    return {name: found for name, cell in cells.items() if (found := _accuracies(cell)) is not None}


def _accuracies(cell: Cell) -> Array | None:
    seen = [probes_of(run.record).get("overfit", {}) for run in cell.runs if run.state == "done"]
    matrices = [np.array([one["before"], *one["after"]], dtype=np.float64) for one in seen if one.get("after")]
    same = [matrix for matrix in matrices if matrix.shape == matrices[0].shape]
    return np.stack(same) if same else None


def _class_maps(section: Section, details: Details, c: int, maps: Mapping[str, Array]) -> Drawing:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

    down = -(-len(maps) // _ACROSS)
    across = -(-len(maps) // down)
    _, tall, wide = next(iter(maps.values())).shape
    size = (max(4.2, (_CELL * wide + 0.5) * across + 1.6), (_CELL * tall + 0.75) * down + 0.9)
    figure = Figure(figsize=size, layout="constrained")
    axes = list(figure.subplots(down, across, squeeze=False, sharex=True, sharey=True).ravel())
    shade = Normalize(0, 100)
    for panel, (name, seeds) in zip(axes, maps.items(), strict=False):
        _draw_map(panel, 100 * seeds[0], shade)
        before, after = 100 * np.nanmean(seeds[:, 0]), 100 * np.nanmean(seeds[:, 1:])
        panel.set_title(f"{name}\nmean {before:.0f} → {after:.0f} %", fontsize=8)
    for spare in axes[len(maps) :]:
        spare.set_axis_off()
    figure.supxlabel("class", fontsize="medium")
    figure.colorbar(ScalarMappable(shade, _COLORS), ax=axes, label="accuracy on the class (%)", fraction=0.05)
    where = ", ".join(filter(None, [section.title, details.table.title, _column_name(details, c)]))
    steps = _steps(details, c)
    set_title(figure, f"{where}: the global model, and after {steps} local steps on one client", "medium")
    caption = (
        f"{where}: accuracy on each class of the global model at the end (first line) and after {steps} local steps on "
        "the data of a single client (one line per client), first seed; above each map the mean over classes, clients "
        "and all seeds, before and after. Figure 2 of Zhang et al. 2024 shows client 0."
    )
    return Drawing(file_name("overfit", where), caption, figure, section.place)


def _column_name(details: Details, c: int) -> str:
    return place_label(details.table.col_axes, details.table.cols[c])


def _steps(details: Details, c: int) -> int:
    """Local steps of the probe."""
    for (_, col), cell in sorted(details.table.cells.items()):
        probes: Sequence[Any] = getattr(cell.experiment, "probes", ())
        for probe in probes:
            if col == c and probe.name == "overfit":
                return int(probe.steps)
    return 0


def _draw_map(panel: Axes, percent: Array, shade: Any) -> None:
    panel.imshow(percent, cmap=_COLORS, norm=shade, aspect="auto")
    panel.axhline(0.5, color="white", linewidth=3)
    rows, classes = percent.shape
    panel.set_xticks(range(classes))
    panel.set_yticks(range(rows), ["global", *(f"client {k}" for k in range(rows - 1))])
    panel.tick_params(length=0, labelsize=7)
    panel.grid(visible=False)
    panel.spines[:].set_visible(False)
    if classes > _MOST_WRITTEN:
        return
    for (y, x), value in np.ndenumerate(percent):
        if np.isfinite(value):
            color = "white" if value < 50 else "black"
            panel.text(x, y, f"{value:.0f}", ha="center", va="center", color=color, fontsize=6)


#: Drawn first where there are more norms than colours.
_FIRST = ("none", "fn", "ln")

_PANEL = (2.6, 2.5)

#: Mean, lower and upper end, by round (or by index).
_Line = tuple[list[int], Array, Array, Array]
_Probe = Mapping[str, Any]


def features(board: Leaderboard) -> Iterator[Drawing]:
    """One figure a method with one class a client (or else in the first column): local training, and the baseline."""
    for section in board.sections:
        cells = [
            cell for table in section.tables if table.kind == "federated" for _, cell in sorted(table.cells.items())
        ]
        tuned = [
            cell
            for details in section.details
            if details.table.kind == "federated"
            for _, cell in sorted(details.table.cells.items())
        ]
        methods = dict.fromkeys(["local-only", _method(section)])
        for method in methods:
            for chosen in _groups(cells if method == "local-only" else tuned, method):
                lines = {cell.tick("norm").label: seen for cell in chosen if (seen := _seen(cell, board.collection))}
                if lines:
                    yield _features(section, [cell for cell in chosen if cell.tick("norm").label in lines], lines)


def _method(section: Section) -> str:
    """The baseline's method."""
    return next(
        (text.partition("=")[2].strip('"') for text in section.layout.baseline if text.startswith("method=")), ""
    )


def _groups(cells: Sequence[Cell], method: str) -> Iterator[list[Cell]]:
    """Cells of a method that differ by their norm alone, or by it and a learning rate chosen for each."""
    own = [cell for cell in cells if cell.tick("method").label == method and cell.complete and _has_features(cell)]
    skewed = [cell for cell in own if cell.tick("partition").label == "classes:1"]
    some = skewed or [cell for cell in own if cell.tick("partition") == own[0].tick("partition")]
    for column in grouped(some, lambda cell: cell.tick("local_steps")):
        by_norm = {norm[0].tick("norm").label: norm for norm in grouped(column, lambda cell: cell.tick("norm"))}
        names = sorted(by_norm, key=lambda name: (name not in _FIRST, list(by_norm).index(name)))[: len(COLORS)]
        common = set.intersection(*({cell.training.lr for cell in by_norm[name]} for name in names))
        rates = {name: max(common or {cell.training.lr for cell in by_norm[name]}) for name in names}
        yield [cell for name in names for cell in by_norm[name] if cell.training.lr == rates[name]][: len(names)]


def _has_features(cell: Cell) -> bool:
    return all("features" in probes_of(run.record) for run in cell.runs)


def _seen(cell: Cell, collection: Collection) -> list[dict[int, _Probe]]:
    """The records of the features probe of each seed, by round."""
    seeds = []
    for run in cell.runs:
        records = {record["round"]: probes_of(record).get("features") for record in collection.records(run)}
        seeds.append({at: seen for at, seen in records.items() if seen})
    return [seed for seed in seeds if len(seed) > 1]


def _features(section: Section, cells: Sequence[Cell], lines: Mapping[str, list[dict[int, _Probe]]]) -> Drawing:
    from matplotlib.figure import Figure

    rows = [(cell.tick("norm"),) for cell in cells]
    styles = row_styles(rows)
    figure = Figure(figsize=(4 * _PANEL[0] + 1.1, _PANEL[1] + 0.7), layout="constrained")
    spectrum, share, norms, heads = figure.subplots(1, 4)
    for number, (seeds, look) in enumerate(zip(lines.values(), styles, strict=True)):
        _line(spectrum, _spectrum(seeds), look, number)
        _line(share, _over_rounds(seeds, lambda seen: _number(seen, "first_share", 100)), look, number)
        _line(norms, _over_rounds(seeds, lambda seen: _number(seen, "norm")), look, number)
        _line(heads, _over_rounds(seeds, _longest), look, number)
        _line(heads, _over_rounds(seeds, _others), {**look, "linestyle": ":", "marker": ""}, number)
    for panel, title in (
        (spectrum, "singular values / the first"),
        (share, "share of the first, squared (%)"),
        (norms, "norm of a feature"),
        (heads, "class embeddings: longest, others"),
    ):
        panel.set_title(title, fontsize=9)
        panel.set_xlabel("round")
    spectrum.set_xlabel("number of the singular value")
    spectrum.set_yscale("log")
    norms.set_yscale("log")
    legend(figure, rows, styles, ["norm"])
    where = _where(section, cells)
    set_title(figure, where, "medium")
    caption = (
        f"{where}. Features of the {_whose(cells[0])} on test samples of all classes, uncentred, from left to right: "
        "singular values of their matrix at the end, over the first; the first one's square in percent of all squares; "
        "mean Euclidean norm of a feature; norm of the longest class embedding, and (dotted) mean norm of the others. "
        "Mean ± sd over seeds. Compare figure 3 of Zhang et al. 2024."
    )
    return Drawing(file_name("features", where), caption, figure, section.place)


def _where(section: Section, cells: Sequence[Cell]) -> str:
    first = cells[0]
    rates = sorted({cell.training.lr for cell in cells})
    rate = f"lr {rates[0]:.4g}" if len(rates) == 1 else "each norm at its best lr"
    steps = f"E {first.tick('local_steps').label}"
    parts = (first.tick("method").label, first.tick("partition").label, steps, rate)
    return f"{section.title}: {', '.join(parts)}"


def _whose(cell: Cell) -> str:
    return "model of client 0" if cell.tick("method").label == "local-only" else "global model"


def _spectrum(seeds: Sequence[Mapping[int, _Probe]]) -> _Line:
    last = [np.array(seed[max(seed)].get("singular", ()), dtype=np.float64) for seed in seeds]
    values = np.array([one[: min(map(len, last))] / one[:1] for one in last])
    return _summary(list(range(1, values.shape[1] + 1)), values)


def _number(seen: _Probe, name: str, factor: float = 1) -> float | None:
    """A recorded number; None where it is missing, or was not finite."""
    value = seen.get(name)
    return None if value is None else factor * float(value)


def _head_norms(seen: _Probe) -> list[float]:
    """The norms of the class embeddings in ascending order; none where one is missing."""
    norms = seen.get("head_norms") or []
    return [] if None in norms else sorted(norms)


def _longest(seen: _Probe) -> float | None:
    return max(_head_norms(seen), default=None)


def _others(seen: _Probe) -> float | None:
    """Mean norm of all class embeddings but the longest."""
    norms = _head_norms(seen)[:-1]
    return sum(norms) / len(norms) if norms else None


def _over_rounds(seeds: Sequence[Mapping[int, _Probe]], value: Callable[[_Probe], float | None]) -> _Line:
    """Mean and sd over seeds at the rounds that all of them recorded; nothing where a value is missing."""
    rounds = sorted(set.intersection(*(set(seed) for seed in seeds)))
    values = [[value(seed[at]) for at in rounds] for seed in seeds]
    if any(number is None for row in values for number in row):
        rounds, values = [], [[]]
    return _summary(rounds, np.array(values, dtype=np.float64))


def _summary(at: list[int], values: Array) -> _Line:
    middle = values.mean(0)
    sd = values.std(0, ddof=1) if len(values) > 1 else np.zeros_like(middle)
    return at, middle, middle - sd, middle + sd


def _line(panel: Axes, line: _Line, look: LineStyle, number: int) -> None:
    at, middle, low, high = line
    if len(at):
        every = max(1, len(at) // 6)
        panel.plot(at, middle, **look, markevery=(number % every, every))
        panel.fill_between(at, np.maximum(low, 1e-12), high, color=look["color"], alpha=BAND, linewidth=0)
