"""How many samples of each class each client holds, as numbers and as a picture. Shapes: K clients, C classes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flbench.data.arrays import Data, Ints
from flbench.data.partition import Shards
from flbench.errors import UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Dark and light, so that they differ in grey too, and for every kind of colour blindness (Okabe and Ito 2008).
_TRAIN, _TEST = "#0072B2", "#E69F00"
#: Inches a cell of the picture may measure, and the inches that all cells together may take.
_CELL, _WIDEST, _HIGHEST = 0.36, 12.0, 16.0
_FORMATS = (".png", ".svg", ".pdf")


@dataclass(frozen=True)
class Histogram:
    """Samples per client and class, and the domains each client's training samples come from (of a set with some)."""

    class_names: tuple[str, ...]
    train_KC: Ints
    test_KC: Ints
    domains_K: tuple[tuple[str, ...], ...] = ()

    def client_names(self) -> tuple[str, ...]:
        """Each client's number, with the name of its domain where it has just one."""
        single = [f" {names[0]}" if len(names) == 1 else "" for names in self.domains_K] or [""] * len(self.train_KC)
        return tuple(f"{client}{domain}" for client, domain in enumerate(single))


def count(data: Data, shards: Shards) -> Histogram:
    """Count the classes of each client's training rows and test rows."""
    train, test = (
        np.stack([np.bincount(np.asarray(labels)[mine], minlength=data.classes) for mine in rows])
        for labels, rows in ((data.train.labels, shards.train), (data.test.labels, shards.test))
    )
    return Histogram(data.class_names, train, test, _domains(data, shards))


def _domains(data: Data, shards: Shards) -> tuple[tuple[str, ...], ...]:
    if data.train.domains is None:
        return ()
    held = (np.unique(data.train.domains[mine]) for mine in shards.train)
    return tuple(tuple(data.domain_names[number] for number in numbers) for numbers in held)


def draw(histogram: Histogram, title: str, path: Path) -> None:
    """Write a picture: a disc for each client and class, its area the samples; beside it the sizes of the clients.

    Raises:
        UserError: the ending of ``path`` is no known format, or it cannot be written.
    """
    if path.suffix.lower() not in _FORMATS:
        raise UserError(f"cannot draw {path}: expected a name that ends in {', '.join(_FORMATS)}, got {path.suffix!r}")
    import matplotlib as mpl

    with mpl.rc_context({"svg.hashsalt": "flbench", "font.size": 9}):
        figure = figure_of(histogram, title)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            metadata = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(path.suffix.lower())
            figure.savefig(path, dpi=160, bbox_inches="tight", metadata=metadata)
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror or error}") from error


def figure_of(histogram: Histogram, title: str) -> Figure:
    """A disc for each client and class, its area the samples; beside them the sizes of the clients."""
    from matplotlib.figure import Figure

    clients, classes = histogram.train_KC.shape
    cell_width, cell_height = min(_CELL, _WIDEST / classes), min(_CELL, _HIGHEST / clients)
    width, height = max(cell_width * classes, 1.6), max(cell_height * clients, 1.2)
    figure = Figure(figsize=(width + 3.4, height + 1.6))
    discs, sizes = figure.subplots(1, 2, sharey=True, width_ratios=(width, 1.7), gridspec_kw={"wspace": 0.12 / width})
    # In narrow cells a disc may reach into its neighbours, or it could not be seen.
    largest = min(2 * min(cell_width, cell_height), max(cell_width, cell_height))
    _draw_discs(discs, histogram, diameter=0.92 * 72 * largest)
    _draw_sizes(sizes, histogram)
    discs.set_title(title, loc="left", fontsize=10, pad=26)  # above the legend of the sizes
    return figure


def _draw_discs(axes: Any, histogram: Histogram, diameter: float) -> None:
    counts_KC = histogram.train_KC
    clients, classes = counts_KC.shape
    largest = max(1, int(counts_KC.max()))
    rows, columns = np.nonzero(counts_KC)
    areas = _areas(counts_KC[rows, columns], largest, diameter)
    axes.scatter(columns, rows, s=areas, color=_TRAIN, alpha=0.85, linewidths=0)
    axes.set(xlim=(-0.6, classes - 0.4), ylim=(clients - 0.4, -0.6), xlabel="class", ylabel="client")
    slanted = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"}
    axes.set_xticks(*_ticks(histogram.class_names), **(slanted if max(map(len, histogram.class_names)) > 2 else {}))
    axes.set_yticks(*_ticks(histogram.client_names()))
    axes.grid(color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)
    _bare(axes)
    for example in _examples(largest):
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


def _draw_sizes(axes: Any, histogram: Histogram) -> None:
    places = np.arange(len(histogram.train_KC))
    train_K, test_K = histogram.train_KC.sum(axis=1), histogram.test_KC.sum(axis=1)
    axes.barh(places, train_K, height=0.7, color=_TRAIN, label="train")
    axes.barh(places, test_K, height=0.7, left=train_K, color=_TEST, label="test")
    axes.set_xlabel("samples of a client")
    axes.xaxis.set_major_locator(_locator())
    axes.tick_params(axis="y", length=0)
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, frameon=False, handlelength=1, columnspacing=1)
    _bare(axes)


def _areas(counts: Ints, largest: int, diameter: float) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Areas in points squared; a single sample still shows as a dot."""
    return np.maximum(diameter**2 * counts / largest, 1.5)


def _examples(largest: int) -> list[int]:
    return sorted({max(1, largest // 10), max(1, largest // 2), largest})


def _ticks(names: tuple[str, ...]) -> tuple[list[int], list[str]]:
    """Positions and names; of many, the numbers of every second, fifth, tenth ..."""
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100, 200, 500, len(names)) if len(names) / step <= 50)
    places = list(range(0, len(names), step))
    return places, list(map(str, places)) if step > 1 else [_short(name) for name in names]


def _short(name: str) -> str:
    return name if len(name) <= 16 else name[:15] + "…"


def _locator() -> Any:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(nbins=2, integer=True)


def _bare(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
