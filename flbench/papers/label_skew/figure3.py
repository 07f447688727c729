"""The features over rounds: their spectrum, the first singular value's share, norms (figure 3 of Zhang et al. 2024)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flbench.papers.label_skew.probe_cells import probes_of
from flbench.report.board import Leaderboard, Section
from flbench.report.cells import Cell, grouped
from flbench.report.figures.drawing import Drawing, file_name
from flbench.report.figures.style import BAND, COLORS, LineStyle, legend, row_styles, set_title
from flbench.report.runs import Collection

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Drawn first where there are more norms than colours.
_FIRST = ("none", "fn", "ln")

_PANEL = (2.6, 2.5)

#: Mean, lower and upper end, by round (or by index).
_Line = tuple[list[int], NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]
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
                    yield _draw(section, [cell for cell in chosen if cell.tick("norm").label in lines], lines)


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
    """What the features probe saw of each seed, by round."""
    seeds = []
    for run in cell.runs:
        records = {record["round"]: probes_of(record).get("features") for record in collection.records(run)}
        seeds.append({at: seen for at, seen in records.items() if seen})
    return [seed for seed in seeds if len(seed) > 1]


def _draw(section: Section, cells: Sequence[Cell], lines: Mapping[str, list[dict[int, _Probe]]]) -> Drawing:
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


def _summary(at: list[int], values: NDArray[np.float64]) -> _Line:
    middle = values.mean(0)
    sd = values.std(0, ddof=1) if len(values) > 1 else np.zeros_like(middle)
    return at, middle, middle - sd, middle + sd


def _line(panel: Axes, line: _Line, look: LineStyle, number: int) -> None:
    at, middle, low, high = line
    if len(at):
        every = max(1, len(at) // 6)
        panel.plot(at, middle, **look, markevery=(number % every, every))
        panel.fill_between(at, np.maximum(low, 1e-12), high, color=look["color"], alpha=BAND, linewidth=0)
