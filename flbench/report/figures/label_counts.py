"""How many samples of each class each client holds: figures 8 and 9 of Zhang et al. 2024 (arXiv 2308.09565v2).

Shapes: K clients, C classes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flbench.config import Federated
from flbench.data.arrays import Ints
from flbench.data.datasets import load_named
from flbench.data.shards import LabelCounts, Shards, count_labels, shards_of
from flbench.errors import UserError
from flbench.report.board import Leaderboard
from flbench.report.figures.drawing import FIGURES, FORMATS, Drawing, file_name, save_as
from flbench.report.figures.style import STYLE, matplotlib_style
from flbench.report.ticks import tick
from flbench.report.wording import in_words

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Dark and light, so that they differ in grey too, and for every kind of colour blindness (Okabe and Ito 2008).
_TRAIN, _TEST = "#0072B2", "#E69F00"
#: Inches a cell of the picture may measure, and the inches that all cells together may take.
_CELL, _WIDEST, _HIGHEST = 0.36, 12.0, 16.0


@FIGURES.register(
    "labels", "samples of each class at each client", requires="the data on this machine", order=80, reads_data=True
)
def labels(board: Leaderboard, root: Path | None = None) -> Iterator[Drawing]:
    """Yield one figure per partition, of its first seed; partitions of data that are not in ``root`` are omitted.

    Training samples include those that are held out: experiments that differ in their share have one figure.
    """
    partitions: dict[tuple[Any, ...], Federated] = {}
    for run in sorted(board.collection.runs, key=lambda run: run.experiment.seed):
        one = run.experiment
        if isinstance(one, Federated):
            key = (one.dataset.label(), one.partition.label(), one.clients, one.min_size)
            partitions.setdefault(key, one)
    for _, experiment in sorted(partitions.items(), key=lambda item: item[0]):
        dataset: Any = experiment.dataset
        try:
            data = load_named(dataset, root)
            counts = count_labels(data, _with_held_out(shards_of(experiment, data)))
        except UserError:  # the data are not here, or cannot be split like this: the runs report why
            continue
        names = tick("dataset", dataset).label, tick("partition", experiment.partition).label
        what = f"{', '.join(names)}, {experiment.clients} clients"
        if experiment.min_size > 1:
            what += f", min_size {experiment.min_size}"
        caption = (
            f"{in_words(what)}: training samples of each class that each client holds, with those it holds out, "
            f"seed {experiment.seed}."
        )
        place = (dataset.name, experiment.model.name)
        picture = figure_of(counts, f"{in_words(what)}, seed {experiment.seed}")
        yield Drawing(file_name("labels", what), caption, picture, place, tight=True)


def _with_held_out(shards: Shards) -> Shards:
    train = tuple(np.concatenate(both) for both in zip(shards.train, shards.val, strict=True))
    return Shards(train, shards.val, shards.test)


def write_figure(counts: LabelCounts, title: str, path: Path) -> None:
    """Write the figure of ``figure_of`` to a .png, .svg or .pdf file.

    Raises:
        UserError: ``path`` has another suffix, or cannot be written.
    """
    if path.suffix.lower() not in FORMATS:
        raise UserError(f"cannot draw {path}: expected a name that ends in {', '.join(FORMATS)}, got {path.suffix!r}")
    with matplotlib_style(STYLE):
        drawing = Drawing(path.stem, title, figure_of(counts, title), tight=True)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            save_as(drawing, path)
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror or error}") from error


def figure_of(counts: LabelCounts, title: str) -> Figure:
    """Draw a disc for each client and class, its area the number of samples, and bars of the clients' sizes beside."""
    from matplotlib.figure import Figure

    clients, classes = counts.train_KC.shape
    cell_width, cell_height = min(_CELL, _WIDEST / classes), min(_CELL, _HIGHEST / clients)
    width, height = max(cell_width * classes, 1.6), max(cell_height * clients, 1.2)
    figure = Figure(figsize=(width + 3.4, height + 1.6))
    discs, sizes = figure.subplots(1, 2, sharey=True, width_ratios=(width, 1.7), gridspec_kw={"wspace": 0.12 / width})
    # In narrow cells a disc may reach into its neighbours, or it could not be seen.
    largest = min(2 * min(cell_width, cell_height), max(cell_width, cell_height))
    _draw_discs(discs, counts, diameter=0.92 * 72 * largest)
    _draw_sizes(sizes, counts)
    discs.set_title(title, loc="left", fontsize=10, pad=26)  # above the legend of the sizes
    return figure


def _draw_discs(axes: Any, counts: LabelCounts, diameter: float) -> None:
    counts_KC = counts.train_KC
    clients, classes = counts_KC.shape
    largest = max(1, int(counts_KC.max()))
    rows, columns = np.nonzero(counts_KC)
    areas = _areas(counts_KC[rows, columns], largest, diameter)
    axes.scatter(columns, rows, s=areas, color=_TRAIN, alpha=0.85, linewidths=0)
    axes.set(xlim=(-0.6, classes - 0.4), ylim=(clients - 0.4, -0.6), xlabel="class", ylabel="client")
    slanted = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"}
    axes.set_xticks(*_ticks(counts.class_names), **(slanted if max(map(len, counts.class_names)) > 2 else {}))
    axes.set_yticks(*_ticks(counts.client_names()))
    axes.grid(color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    for example in sorted({max(1, largest // 10), max(1, largest // 2), largest}):
        area = _areas(np.array([example]), largest, diameter)
        axes.scatter([], [], s=area, color=_TRAIN, alpha=0.85, linewidths=0, label=f"{example:,}")
    axes.legend(
        title="training samples",
        loc="upper left",
        bbox_to_anchor=(1, 1),
        bbox_transform=axes.figure.axes[1].transAxes,
        frameon=False,
        labelspacing=max(0.5, diameter / 12),
        borderpad=1,
        handletextpad=max(0.4, diameter / 30),
        alignment="left",
    )


def _draw_sizes(axes: Any, counts: LabelCounts) -> None:
    from matplotlib.ticker import MaxNLocator

    places = np.arange(len(counts.train_KC))
    train_K, test_K = counts.train_KC.sum(axis=1), counts.test_KC.sum(axis=1)
    axes.barh(places, train_K, height=0.7, color=_TRAIN, label="train")
    axes.barh(places, test_K, height=0.7, left=train_K, color=_TEST, label="test")
    axes.set_xlabel("samples of a client")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=2, integer=True))
    axes.tick_params(axis="y", length=0)
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, frameon=False, handlelength=1, columnspacing=1)
    axes.spines[["top", "right"]].set_visible(False)


def _areas(counts: Ints, largest: int, diameter: float) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Areas in points squared; a single sample still shows as a dot."""
    return np.maximum(diameter**2 * counts / largest, 1.5)


def _ticks(names: tuple[str, ...]) -> tuple[list[int], list[str]]:
    """Positions and names; of many, the numbers of every second, fifth, tenth ..."""
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100, 200, 500, len(names)) if len(names) / step <= 50)
    places = list(range(0, len(names), step))
    return places, list(map(str, places)) if step > 1 else [
        name if len(name) <= 16 else name[:15] + "…" for name in names
    ]
