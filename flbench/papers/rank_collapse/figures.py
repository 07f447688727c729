"""Figures of Daneshmand et al. 2020: random networks (figure 2, theorem 2) and trained ones (figures 1, 3 and 4)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

from flbench.papers.evidence import by, exponent_text, fit_exponent
from flbench.papers.rank_collapse.networks import FEWEST_WIDTHS, NET, NORMS, draws, layers, path_name
from flbench.papers.rank_collapse.training import Arm, Record, Setting, settings_of
from flbench.report.board import Leaderboard
from flbench.report.figures.drawing import Drawing, file_name
from flbench.report.figures.style import (
    BAND,
    GREY,
    SMALL,
    legend,
    legend_of,
    line_style,
    panels,
    plot_mean,
    set_log_ticks,
    set_title,
)
from flbench.report.stats import summarize
from flbench.report.wording import in_words

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Recorded layers that a line needs.
FEWEST_LAYERS = 3

#: Layers drawn a decade, and points from one marker to the next.
_PER_DECADE, _MARK_EVERY = 25, 8

#: Layers from one marker to the next, of trained networks.
_MARK_EVERY_LAYER = 6

_TICKS = (1, 2, 5, 10, 20, 50, 100)
_NAMES = {"none": "no norm", "bn-rms": "batch norm, not centred (the paper's)", "bn": "batch norm, centred"}
_STYLES = {norm: line_style(place, place) for place, norm in enumerate(NORMS)}
_ROOT: dict[str, Any] = {"color": GREY, "linewidth": 0.9, "linestyle": (0, (1, 1))}

#: The values of all seeds or draws, by x.
Series = Mapping[int, Sequence[float]]


def rank(board: Leaderboard) -> Iterator[Drawing]:
    """Draw r of random networks over depth at one width, and over the width."""
    runs = [run for run in board.collection.runs if run.experiment.kind == "rank"]
    recorded = layers(runs, board.collection)
    lines = recorded[recorded.groupby([*NET, "seed"], observed=True).layer.transform("size") >= FEWEST_LAYERS]
    if len(lines):
        # The width of most networks, the largest of equals.
        counts = lines.drop_duplicates(list(NET)).width.value_counts()
        width = max(counts.index[counts == counts.max()])
        yield _over_layers(recorded[recorded.width == width].merge(lines[list(NET)].drop_duplicates()), width)
    drawn = draws(runs, recorded)
    fitted = drawn[drawn.deep & drawn.late.notna() & (drawn.widths >= FEWEST_WIDTHS)]
    if len(fitted):
        yield _over_width(fitted)


def _over_layers(recorded: pd.DataFrame, width: int) -> Drawing:
    figure, places = _family_panels(recorded, "layer")
    for (activation, gamma, norm, *_), own in by(recorded, *NET):
        _draw_net(places[activation, gamma], own, norm)
    for panel in places.values():
        panel.axhline(math.sqrt(width), **_ROOT)
        panel.set_xscale("log")
        _rank_scale(panel, [tick for tick in _TICKS if tick <= width])
    figure.supylabel("effective rank r(H)", fontsize="medium")
    set_title(figure, f"Rank over depth, d = {width}: mean over draws, least to greatest shaded")
    _norm_legend(figure, set(recorded.normalized), f"√d = {math.sqrt(width):.2f}")
    most = recorded.groupby(list(NET), observed=True).seed.nunique().max()
    caption = (
        f"Effective rank r(H) of the representation over the layers of random networks of width d = {width} on "
        f"Gaussian inputs, before the activation; plain: without a residual path, γ: the strength of the layers beside "
        f"one. Mean over up to {most} draws; shaded from the least to the greatest; dotted: √d."
    )
    return Drawing("rank-depth", caption, figure, ("study", "rank"))


def _draw_net(panel: Axes, recorded: pd.DataFrame, norm: str) -> None:
    known = recorded[(recorded.layer > 0) & recorded["rank"].notna()]
    ranks = known.groupby("layer")["rank"].agg(["mean", "min", "max"])
    if ranks.empty:
        return
    # Equally many layers a decade: all of them would be noise at the end of a logarithmic axis.
    steps = {round(_PER_DECADE * math.log10(layer)): layer for layer in ranks.index}
    shown = ranks.loc[sorted({*steps.values(), ranks.index.max()})]
    panel.plot(shown.index, shown["mean"], **_STYLES[norm], markevery=(NORMS.index(norm), _MARK_EVERY))
    panel.fill_between(shown.index, shown["min"], shown["max"], color=_STYLES[norm]["color"], alpha=BAND, linewidth=0)


def _over_width(fitted: pd.DataFrame) -> Drawing:
    figure, places = _family_panels(fitted, "width d")
    for (activation, gamma, norm), own in by(fitted, *NET[:3]):
        late = own.groupby("width").late
        places[activation, gamma].errorbar(
            late.mean().index, late.mean(), yerr=late.std().fillna(0.0), capsize=2, **_STYLES[norm]
        )
    widths = sorted(fitted.width.unique())
    for (activation, gamma), panel in places.items():
        panel.plot(widths, [math.sqrt(width) for width in widths], **_ROOT)
        set_log_ticks(panel, widths)
        _rank_scale(panel, [tick for tick in _TICKS if tick <= 2 * math.sqrt(widths[-1])])
        same = fitted[(fitted.activation == activation) & (fitted.gamma == gamma) & (fitted.normalized != "none")]
        exponents = []
        for norm, own in by(same, "normalized"):
            found = fit_exponent({width: some.late.tolist() for width, some in by(own, "width")})
            exponents.append(f"{'centred' if norm == 'bn' else 'not centred'}: exponent {exponent_text(found)}")
        panel.text(0.03, 0.98, "\n".join(exponents), transform=panel.transAxes, ha="left", va="top", fontsize=SMALL)
    figure.supylabel("effective rank r(H), mean over the second half of the layers", fontsize="medium")
    set_title(figure, "Rank that is left at large depth, over the width: mean ± sd over draws")
    _norm_legend(figure, set(fitted.normalized), "√d")
    caption = (
        "Effective rank r(H), mean over the second half of the layers of random networks on Gaussian inputs, over "
        "their width d, before the activation; plain: without a residual path, γ: the strength of the layers beside "
        "one. Mean ± sd over draws; dotted: √d. In the panels: fitted exponents, their 95 % intervals; by theorem 2 "
        "that of linear residual networks is ½ at least."
    )
    return Drawing("rank-width", caption, figure, ("study", "rank"))


def _family_panels(nets: pd.DataFrame, xlabel: str) -> tuple[Figure, dict[tuple[str, float], Axes]]:
    """Return a panel for each family: a row an activation, a column a residual path."""
    activations, gammas = sorted(nets.activation.unique()), sorted(nets.gamma.unique())
    families, places = set(zip(nets.activation, nets.gamma, strict=True)), list(product(activations, gammas))
    figure, axes = panels(len(places), across=len(gammas), height=2.1, sharex=True, sharey=True)
    found = {place: panel for place, panel in zip(places, axes, strict=True) if place in families}
    for (activation, gamma), panel in zip(places, axes, strict=True):
        if (activation, gamma) in families:
            panel.set_title(f"{'ReLU' if activation == 'relu' else activation}, {path_name(gamma)}")
            panel.set_xlabel(xlabel if activation == activations[-1] else "")
        else:
            panel.set_axis_off()
    return figure, found


def _rank_scale(panel: Axes, ticks: Sequence[int]) -> None:
    """Give a panel a logarithmic rank axis from about 1, with plain numbers."""
    panel.set_yscale("log")
    panel.set_yticks(ticks, [str(tick) for tick in ticks])
    panel.set_yticks([], minor=True)
    panel.set_ylim(bottom=0.9)


def _norm_legend(figure: Figure, norms: set[str], root: str) -> None:
    legend(figure, {**{_NAMES[norm]: _STYLES[norm] for norm in NORMS if norm in norms}, root: _ROOT})


def deep(board: Leaderboard) -> Iterator[Drawing]:
    """Draw each setting of trained networks: over depth, over layers and epochs, over shifts."""
    for setting in settings_of(
        [run for run in board.collection.runs if run.experiment.kind == "deep"], board.collection
    ):
        yield from _over_depth(setting)
        yield from _raised(setting)
        yield from _over_shift(setting)


def _over_depth(setting: Setting) -> Iterator[Drawing]:
    """Figure 1: arms of several depths."""
    arms = {name: same for name, same in setting.by_name().items() if len(same) > 1 and any(a.initial for a in same)}
    if not arms:
        return
    figure, (left, right) = panels(2)
    for place, (name, same) in enumerate(arms.items()):
        _draw(left, {arm.experiment.depth: list(arm.initial_rank.values()) for arm in same}, place, _in_words(name))
        _draw(right, {arm.experiment.depth: _percent(arm.final.values()) for arm in same}, place, name)
    depths = sorted({arm.experiment.depth for same in arms.values() for arm in same})
    for panel in (left, right):
        set_log_ticks(panel, depths)
        panel.set_xlabel("hidden layers")
    _rank_axis(left, "last hidden layer's rank before training")
    _accuracy_axis(right, f"training accuracy after {setting.arms[0].epochs} epochs")
    caption = (
        f"{setting.title}: rank of the last hidden layer before training (left) and accuracy on the training set after "
        "it (right), over the depth of the network."
    )
    yield _finished(figure, setting, "depth", "Rank and accuracy over depth", caption, left)


def _raised(setting: Setting) -> Iterator[Drawing]:
    """Figures 3 and 4: centred arms of the greatest depth, where some had their ranks raised."""
    arms = [arm for arm in setting.deepest if not arm.experiment.shift and arm.initial]
    if not any(arm.is_pretrained for arm in arms):
        return
    figure, (accuracy, last_rank, before, after) = panels(4, across=2)
    for place, arm in enumerate(arms):
        epochs, name = [0, *arm.recorded], f"{_in_words(arm.name)}{' (diverged)' if arm.has_diverged else ''}"
        _draw(accuracy, {epoch: _percent(arm.at_best(epoch).values()) for epoch in epochs}, place, name)
        best, ranks = arm.best(arm.epochs), {0: list(arm.initial_rank.values())}
        ranks |= {epoch: list(best.at(epoch, "rank").values()) for epoch in arm.recorded} if best else {}
        _draw(last_rank, ranks, place, name)
        _draw(before, _over_layer(list(arm.initial.values())), place, name, every=_MARK_EVERY_LAYER)
        _draw(after, _over_layer(_ends(arm)), place, name, every=_MARK_EVERY_LAYER)
    _accuracy_axis(accuracy, "training accuracy")
    _rank_axis(last_rank, "last hidden layer's rank")
    _rank_axis(before, "ranks before training")
    _rank_axis(after, f"ranks after {arms[0].epochs} epochs")
    for panel, name in ((accuracy, "epoch"), (last_rank, "epoch"), (before, "hidden layer"), (after, "hidden layer")):
        panel.set_xlabel(name)
    diverged = [arm.name for arm in arms if arm.has_diverged]
    caption = (
        f"{setting.title}, {setting.depths[-1]} hidden layers: accuracy on the training set and rank of the last "
        "hidden layer over epochs, ranks of all layers before and after training."
        + (f" Diverged at every rate: {', '.join(diverged)}." if diverged else "")
    )
    yield _finished(figure, setting, "pretraining", "Ranks raised before training", caption, before)


def _ends(arm: Arm) -> list[Record]:
    """The records after training, at the best learning rate."""
    best = arm.best(arm.epochs)
    return [epochs[arm.epochs] for epochs in best.records.values() if arm.epochs in epochs] if best else []


def _over_layer(records: Sequence[Record]) -> Series:
    """The ranks of all seeds by layer, from 1."""
    layers = zip(*(record["ranks"] for record in records), strict=True)
    return {layer: [rank for rank in ranks if rank is not None] for layer, ranks in enumerate(layers, start=1)}


def _over_shift(setting: Setting) -> Iterator[Drawing]:
    """Figure 4, dashed: arms of the greatest depth with batch normalization."""
    arms = [arm for arm in setting.deepest if arm.experiment.normalized == "bn" and arm.initial]
    shifts = sorted({arm.experiment.shift for arm in arms})
    if len(shifts) < 2:
        return
    figure, (ranks, accuracies) = panels(2)
    # Evenly spaced: the shifts grow by uneven steps.
    placed = [(shifts.index(arm.experiment.shift), arm) for arm in arms]
    _draw(ranks, {x: list(arm.initial_rank.values()) for x, arm in placed}, 0, "at initialization")
    _draw(ranks, {x: [end["rank"] for end in _ends(arm)] for x, arm in placed}, 1, "after training")
    for place, (name, title) in enumerate((("train_acc", "training set"), ("test_acc", "test set")), start=2):
        _draw(accuracies, {x: _percent(arm.at_best(arm.epochs, name).values()) for x, arm in placed}, place, title)
    _rank_axis(ranks, "last hidden layer's rank")
    _accuracy_axis(accuracies, f"accuracy after {arms[0].epochs} epochs")
    for panel in (ranks, accuracies):
        panel.set_xticks(range(len(shifts)), [f"{shift:g}" for shift in shifts])
        panel.set_xlabel("shift s of the weights, U(-b + sb, b + sb)")
        panel.legend()
    caption = (
        f"{setting.title}, {setting.depths[-1]} hidden layers with batch normalization: rank of the last hidden layer "
        "and accuracy over how far off centre the weights are drawn."
    )
    yield _finished(figure, setting, "shift", "Batch normalization and weights off centre", caption, None)


def _draw(panel: Axes, series: Series, place: int, name: str, *, every: int = 1) -> None:
    """Draw a line with a band, and a marker after ``every`` points, at other points for other places."""
    found = [(x, summary) for x, values in sorted(series.items()) if (summary := summarize(values))]
    means, sds = [one.mean for _, one in found], [one.sd for _, one in found]
    mark = (place % every, every)
    plot_mean(panel, [x for x, _ in found], means, sds, line_style(place, place), label=name, markevery=mark)


def _in_words(name: str) -> str:
    """Return the name of an arm for a legend."""
    return name.replace("BN", "batch norm")


def _percent(values: Iterable[float]) -> list[float]:
    return [100 * value for value in values]


def _rank_axis(panel: Axes, title: str) -> None:
    panel.set_title(title)
    panel.set_ylabel("effective rank r(H)")
    _rank_scale(panel, _TICKS)
    panel.set_ylim(top=max(12.0, panel.get_ylim()[1]))


def _accuracy_axis(panel: Axes, title: str) -> None:
    panel.set_title(title)
    panel.set_ylabel("accuracy (%)")
    panel.set_ylim(0, 102)


def _finished(figure: Figure, setting: Setting, name: str, title: str, caption: str, key: Axes | None) -> Drawing:
    """Return the figure with a title, and the names in the panel ``key`` in a legend."""
    set_title(figure, f"{title}: {in_words(setting.title)}")
    if key is not None:
        legend_of(figure, *key.get_legend_handles_labels())
    caption += " Mean ± sd over seeds; accuracy at the best of the learning rates, the same for all."
    return Drawing(file_name(f"deep-{name}", setting.title), caption, figure, ("study", "deep"))
