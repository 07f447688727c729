"""Local overfitting: what a few local steps on one client do to every class (figure 2 of Zhang et al. 2024)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flbench.papers.label_skew.probe_cells import probes_of
from flbench.report.board import Details, Leaderboard, Section
from flbench.report.cells import Cell
from flbench.report.figures.drawing import Drawing, file_name
from flbench.report.figures.style import set_title
from flbench.report.ticks import place_label
from flbench.report.wording import row_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Its lightness rises steadily, for every kind of colour blindness and in grey.
_COLORS = "cividis"

#: Inches of a position; most rows that are drawn; most classes whose numbers are written.
_CELL, _ACROSS, _MOST_WRITTEN = 0.29, 4, 12

Array = NDArray[np.float64]


def overfit(board: Leaderboard) -> Iterator[Drawing]:
    """One figure a column of a table whose cells have the overfit probe: a map a row."""
    for section in board.sections:
        for details in section.details:
            for c in range(len(details.table.cols)):
                maps = _maps(details, c)
                if maps:
                    yield _draw(section, details, c, maps)


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


def _draw(section: Section, details: Details, c: int, maps: Mapping[str, Array]) -> Drawing:
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
    where = ", ".join(filter(None, [section.title, details.table.title, _column(details, c)]))
    steps = _steps(details, c)
    set_title(figure, f"{where}: the global model, and after {steps} local steps on one client", "medium")
    caption = (
        f"{where}: accuracy on each class of the global model at the end (first line) and after {steps} local steps on "
        "the data of a single client (a line a client), first seed; above each map the mean over classes, clients and "
        "all seeds, before and after. Figure 2 of Zhang et al. 2024 shows client 0."
    )
    return Drawing(file_name("overfit", where), caption, figure, section.place)


def _column(details: Details, c: int) -> str:
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
