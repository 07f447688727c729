"""The figure of features over rounds, with one class a client (figure 3 of Zhang et al. 2024)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flbench.config import Federated
from flbench.papers.label_skew.frames import probes_of
from flbench.report.board import Leaderboard, Section
from flbench.report.cells import Cell, grouped, tick_of
from flbench.report.figures.axes import federated
from flbench.report.figures.drawing import Drawing, file_name
from flbench.report.figures.style import (
    BAND,
    COLORS,
    GREY,
    LineStyle,
    legend,
    named,
    panels,
    row_styles,
    set_panel_title,
    set_plain_numbers,
    set_title,
)
from flbench.report.runs import Collection
from flbench.report.wording import in_words
from flbench.sums import sum_in_order

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Norms that are drawn first where there are more norms than colours.
_FIRST = ("none", "fn", "ln")

#: Opacity of what is before training.
_PALE = 0.4

Array = NDArray[np.float64]
_Probe = Mapping[str, Any]


def features(board: Leaderboard) -> Iterator[Drawing]:
    """Draw local training and the baseline's method, with one class a client or else in the first column."""
    for section in board.sections:
        method = next((one.label for one in section.layout.baseline if one.field == "method"), "")
        cells = {
            method: federated(section.details),
            "local-only": federated(section.tables),
        }
        for name in dict.fromkeys(["local-only", method]):
            for chosen in _groups(cells[name], name):
                norms = {tick_of(cell, "norm").label: cell for cell in chosen}
                lines = {norm: seen for norm, cell in norms.items() if (seen := _seen(cell, board.collection))}
                if lines:
                    yield _features(section, [norms[norm] for norm in lines], lines)


def _groups(cells: Sequence[Cell], method: str) -> Iterator[list[Cell]]:
    """Cells of a method that differ by their norm alone, or by it and a learning rate chosen for each."""
    own = [
        cell
        for cell in cells
        if isinstance(cell.experiment, Federated)
        and cell.experiment.method.label() == method
        and cell.complete
        and all("features" in probes_of(run.record) for run in cell.runs)
    ]
    skewed = [cell for cell in own if tick_of(cell, "partition").label == "classes:1"]
    some = skewed or [cell for cell in own if tick_of(cell, "partition") == tick_of(own[0], "partition")]
    for column in grouped(some, lambda cell: tick_of(cell, "local_steps")):
        by_norm = {tick_of(norm[0], "norm").label: norm for norm in grouped(column, lambda cell: tick_of(cell, "norm"))}
        names = sorted(by_norm, key=lambda name: (name not in _FIRST, list(by_norm).index(name)))[: len(COLORS)]
        common = set.intersection(*({cell.experiment.lr for cell in by_norm[name]} for name in names))
        rates = {name: max(common or {cell.experiment.lr for cell in by_norm[name]}) for name in names}
        yield [cell for name in names for cell in by_norm[name] if cell.experiment.lr == rates[name]][: len(names)]


def _seen(cell: Cell, collection: Collection) -> list[dict[int, _Probe]]:
    """The records of the features probe of each seed, by round."""
    seeds = []
    for run in cell.runs:
        records = {record["round"]: probes_of(record).get("features") for record in collection.records(run)}
        seeds.append({at: seen for at, seen in records.items() if seen})
    return [seed for seed in seeds if len(seed) > 1]


def _features(section: Section, cells: Sequence[Cell], lines: Mapping[str, list[dict[int, _Probe]]]) -> Drawing:
    from matplotlib.ticker import MaxNLocator

    styles = row_styles([(tick_of(cell, "norm"),) for cell in cells], ("norm",))
    figure, (spectrum, share, norms, longest, others) = panels(5)
    others.sharey(longest)
    are_ends = all(len(_rounds(seeds)) == 2 for seeds in lines.values())
    for number, (seeds, style) in enumerate(zip(lines.values(), styles.values(), strict=True)):
        _draw_spectrum(spectrum, seeds, style, number)
        for panel, value in (
            (share, lambda seen: _scaled(seen, "first_share", 100)),
            (norms, lambda seen: _scaled(seen, "norm")),
            (longest, lambda seen: max(_embedding_norms(seen), default=None)),
            (others, _others),
        ):
            if (values := _values(seeds, value)) is None:
                continue
            if are_ends:
                _draw_ends(panel, values, style, number)
            else:
                _draw_mean(panel, _rounds(seeds), values, style, number)
    for panel, title in (
        (spectrum, "singular values / the first"),
        (share, "share of the first, squared (%)"),
        (norms, "mean norm of a feature"),
        (longest, "norm of the longest class embedding"),
        (others, "mean norm of the other class embeddings"),
    ):
        set_panel_title(panel, title)
        panel.set_xlabel("" if are_ends else "round")
        if are_ends and panel is not spectrum:
            panel.set_xticks([])
    spectrum.set_xlabel("number of the singular value")
    spectrum.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    spectrum.set_yscale("log")
    norms.set_yscale("log")
    set_plain_numbers(norms.yaxis)
    mark: LineStyle = {"color": GREY, "marker": "o", "linestyle": "none", "markersize": 5}
    ends = {"pale: before training": {**mark, "alpha": _PALE}, "full colour: after it": mark} if are_ends else {}
    legend(figure, named(styles, ("norm",)) | ends)
    experiment = cells[0].experiment
    assert isinstance(experiment, Federated)
    method = experiment.method.label()
    partition, steps = (tick_of(cells[0], axis).label for axis in ("partition", "local_steps"))
    rates = sorted({cell.experiment.lr for cell in cells})
    rate = f"lr {rates[0]:.4g}" if len(rates) == 1 else "each norm at its best lr"
    name = file_name("features", section.title, method, partition, f"E {steps}", rate)
    where = f"{section.words}: {method}, {in_words(partition)}, E {steps}, {rate}"
    set_title(figure, where)
    model = "model of client 0" if method == "local-only" else "global model"
    caption = (
        f"{where}. Features of the {model} on test samples of all classes, uncentred, in reading order: "
        "singular values of their matrix at the end, over the first; the first one's square in percent of all squares; "
        "mean Euclidean norm of a feature; norm of the longest class embedding; mean norm of the others. "
        f"{'Pale: before training. ' if are_ends else ''}Mean ± sd over seeds. Compare figure 3 of Zhang et al. 2024."
    )
    return Drawing(name, caption, figure, section.place)


def _scaled(seen: _Probe, name: str, factor: float = 1) -> float | None:
    """A recorded number; None where it is missing, or was not finite."""
    value = seen.get(name)
    return None if value is None else factor * float(value)


def _others(seen: _Probe) -> float | None:
    """The mean norm of all class embeddings but the longest."""
    norms = _embedding_norms(seen)[:-1]
    return sum_in_order(norms) / len(norms) if norms else None


def _embedding_norms(seen: _Probe) -> list[float]:
    """The norms of the class embeddings in ascending order; empty where one is missing."""
    norms = seen.get("head_norms") or []
    return [] if None in norms else sorted(norms)


def _draw_spectrum(panel: Axes, seeds: Sequence[Mapping[int, _Probe]], style: LineStyle, number: int) -> None:
    last = [np.array(seed[max(seed)].get("singular", ()), dtype=np.float64) for seed in seeds]
    count = min(map(len, last))
    _draw_mean(panel, range(1, count + 1), np.stack([one[:count] / one[:1] for one in last]), style, number)


def _rounds(seeds: Sequence[Mapping[int, _Probe]]) -> list[int]:
    """The rounds that all seeds recorded."""
    return sorted(set.intersection(*(set(seed) for seed in seeds)))


def _values(seeds: Sequence[Mapping[int, _Probe]], value: Callable[[_Probe], float | None]) -> Array | None:
    """A value (seeds, rounds) at the rounds that all seeds recorded; None where one is missing."""
    values = [[value(seed[at]) for at in _rounds(seeds)] for seed in seeds]
    return None if any(None in row for row in values) else np.array(values, dtype=np.float64)


def _draw_ends(panel: Axes, values: Array, style: LineStyle, number: int) -> None:
    """Draw mean ± sd over seeds before training (pale) and after it, side by side by row: two points are no line."""
    points = zip((number - 0.15, number + 0.15), *_mean_and_sd(values), (_PALE, 1), strict=True)
    for x, middle, sd, alpha in points:
        panel.errorbar(x, middle, sd, **{**style, "linestyle": "", "markersize": 5, "linewidth": 1}, alpha=alpha)


def _draw_mean(panel: Axes, at: Sequence[int], values: Array, style: LineStyle, number: int) -> None:
    """Draw mean ± sd over seeds, with six markers at points that differ by line."""
    middle, sd = _mean_and_sd(values)
    if len(at):
        every = max(1, len(at) // 6)
        panel.plot(at, middle, **style, markevery=(number % every, every))
        panel.fill_between(
            at, np.maximum(middle - sd, 1e-12), middle + sd, color=style["color"], alpha=BAND, linewidth=0
        )


def _mean_and_sd(values: Array) -> tuple[Array, Array]:
    """The mean over seeds and their standard deviation, 0 for a single seed."""
    middle = np.mean(values, axis=0)
    return middle, np.std(values, axis=0, ddof=1) if len(values) > 1 else np.zeros_like(middle)
