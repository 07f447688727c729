"""Spectra of the Fisher information of random networks, where all eigenvalues were computed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, cast

from flbench.papers.sharpness.draws import Family, predict
from flbench.report.cells import grouped
from flbench.report.figures.drawing import Drawing, file_name
from flbench.report.figures.style import panels
from flbench.report.runs import Run
from flbench.studies.sharpness import Sharpness

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Bars a decade, and eigenvalues below this share of the largest, which are rounding.
_BARS, _NOTHING = 8, 1e-10

#: The least that is drawn, as a share of the largest.
_REACH = 1e-5


def spectra(runs: Sequence[Run]) -> Iterator[Drawing]:
    """One figure for each kind of network and width: a histogram for each normalization."""
    known = [run for run in runs if run.record is not None and "spectrum" in run.record and _experiment(run).lr is None]
    for group in grouped(known, _figure_of):
        yield _figure(grouped(group, lambda run: Family.of(_experiment(run))))


def _experiment(run: Run) -> Sharpness:
    return cast(Sharpness, run.experiment)


def _figure_of(run: Run) -> tuple[Family, int]:
    family = Family.of(_experiment(run))
    return Family(**{**vars(family), "normalized": "none"}), _experiment(run).width


def _figure(groups: Sequence[Sequence[Run]]) -> Drawing:
    width, family = _experiment(groups[0][0]).width, Family.of(_experiment(groups[0][0]))
    title = f"{family.network}, M = {width}, T = {family.samples_at(width)}, C = {family.outputs}"
    figure, axes = panels(len(groups), panel=(3.0, 2.2), sharex=True, sharey=True)
    highest = max(max(_values(run)) for group in groups for run in group)
    for panel, group in zip(axes, groups, strict=True):
        _draw(panel, group, highest)
    figure.supxlabel("eigenvalue of the Fisher information", fontsize="medium")
    figure.supylabel("eigenvalues of a draw", fontsize="medium")
    figure.suptitle(f"Spectra of random networks: {title}", fontsize="medium")
    counts = sorted({len(group) for group in groups})
    draws = " to ".join(str(count) for count in (counts[0], counts[-1])) if len(counts) > 1 else str(counts[0])
    caption = (
        f"Nonzero eigenvalues of the Fisher information of {title}: how many of a draw lie in each bar, mean over "
        f"{draws} draws; dashed: lambda_max of theory (theorem 2.2), dotted: its lower bound (theorems 3.3 and 3.4)."
    )
    return Drawing("sharpness", file_name("sharpness spectrum", title), caption, figure, ("study", "sharpness"))


def _values(run: Run) -> list[float]:
    assert run.record is not None
    found: list[float] = run.record["spectrum"]
    return found


def _draw(panel: Axes, group: Sequence[Run], highest: float) -> None:
    import numpy as np

    family, width = Family.of(_experiment(group[0])), _experiment(group[0]).width
    values = np.concatenate([_values(run) for run in group])
    kept = values[values > _NOTHING * highest]
    low, high = np.log10(max(kept.min(), _REACH * highest)), np.log10(2 * highest)
    edges = np.logspace(low, high, int((high - low) * _BARS) + 2).tolist()
    panel.hist(kept, bins=edges, weights=np.full(len(kept), 1 / len(group)), color="#56B4E9", edgecolor="#0072B2")
    predicted = predict(family, width, {})
    if predicted is not None:
        value, style = (predicted.lower, ":") if predicted.value is None else (predicted.value, "--")
        if value is not None:
            panel.axvline(value, color="#000000", linestyle=style, linewidth=1.3)
    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.set_title(family.normalized)
