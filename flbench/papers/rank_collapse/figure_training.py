"""Figures of studies of kind ``deep``: accuracy and rank over depth, pre-training and shifts (figures 1, 3 and 4)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flbench.papers.rank_collapse.arms import Arm, Record, Setting, settings_of
from flbench.papers.rank_collapse.panels_training import accuracy_axis, draw, finished, panels, percent, rank_axis
from flbench.report.board import Leaderboard
from flbench.report.figures.drawing import Drawing

#: Layers from one marker to the next.
_MARK_EVERY = 6


def deep(board: Leaderboard) -> Iterator[Drawing]:
    """What the runs of each setting support: over depth, over layers and epochs, over shifts."""
    for setting in settings_of(
        [run for run in board.collection.runs if run.experiment.kind == "deep"], board.collection
    ):
        yield from _over_depth(setting)
        yield from _over_layers(setting)
        yield from _over_shift(setting)


def _over_depth(setting: Setting) -> Iterator[Drawing]:
    """Arms of several depths, on centre."""
    arms = {name: same for name, same in setting.by_name().items() if len(same) > 1 and any(a.initial for a in same)}
    if not arms:
        return
    figure, (left, right) = panels(1)
    for place, (name, same) in enumerate(arms.items()):
        draw(left, {arm.experiment.depth: list(arm.initial_rank.values()) for arm in same}, place, name)
        draw(right, {arm.experiment.depth: percent(arm.final.values()) for arm in same}, place, name)
    depths = sorted({arm.experiment.depth for same in arms.values() for arm in same})
    for panel in (left, right):
        panel.set_xscale("log")
        panel.set_xticks(depths, [str(depth) for depth in depths])
        panel.minorticks_off()
        panel.set_xlabel("hidden layers")
    rank_axis(left, "last hidden layer's rank before training")
    accuracy_axis(right, f"training accuracy after {setting.arms[0].epochs} epochs")
    caption = (
        f"{setting.title}: rank of the last hidden layer before training (left) and accuracy on the training set after "
        "it (right), over the depth of the network."
    )
    yield finished(figure, setting, "depth", "Rank and accuracy over depth", caption, left)


def _over_layers(setting: Setting) -> Iterator[Drawing]:
    """Arms of the greatest depth on centre, where some had their ranks raised."""
    arms = [arm for arm in setting.deepest if not arm.experiment.shift and arm.initial]
    if not any(arm.pretrained for arm in arms):
        return
    figure, (accuracy, last_rank, before, after) = panels(2)
    for place, arm in enumerate(arms):
        epochs = [0, *arm.recorded]
        draw(accuracy, {epoch: percent(arm.accuracy(epoch).values()) for epoch in epochs}, place, arm.name)
        draw(last_rank, _ranks_over_epochs(arm), place, arm.name)
        draw(before, _ranks_over_layers(list(arm.initial.values())), place, arm.name, every=_MARK_EVERY)
        draw(after, _ranks_over_layers(_ends(arm)), place, arm.name, every=_MARK_EVERY)
    accuracy_axis(accuracy, "training accuracy")
    rank_axis(last_rank, "last hidden layer's rank")
    rank_axis(before, "ranks before training")
    rank_axis(after, f"ranks after {arms[0].epochs} epochs")
    for panel, name in ((accuracy, "epoch"), (last_rank, "epoch"), (before, "hidden layer"), (after, "hidden layer")):
        panel.set_xlabel(name)
    gone = [arm.name for arm in arms if arm.lost]
    caption = (
        f"{setting.title}, {setting.depths[-1]} hidden layers: accuracy on the training set and rank of the last "
        "hidden layer over epochs, ranks of all layers before and after training."
        + (f" Diverged at every rate: {', '.join(gone)}." if gone else "")
    )
    yield finished(figure, setting, "pretraining", "Ranks raised before training", caption, before)


def _ends(arm: Arm) -> list[Record]:
    """The records after training, at the best learning rate."""
    best = arm.best(arm.epochs)
    return [epochs[arm.epochs] for epochs in best.records.values() if arm.epochs in epochs] if best else []


def _ranks_over_epochs(arm: Arm) -> dict[int, list[float]]:
    """The last layer's, at the learning rate that is best in the end; what diverged has the first alone."""
    best, first = arm.best(arm.epochs), {0: list(arm.initial_rank.values())}
    return first | ({epoch: list(best.at(epoch, "rank").values()) for epoch in arm.recorded} if best else {})


def _ranks_over_layers(records: Sequence[Record]) -> dict[int, list[float]]:
    """By layer from 1."""
    layers = zip(*(record["ranks"] for record in records), strict=True)
    return {layer: [rank for rank in ranks if rank is not None] for layer, ranks in enumerate(layers, start=1)}


def _over_shift(setting: Setting) -> Iterator[Drawing]:
    """Arms of the greatest depth with batch normalization."""
    arms = [arm for arm in setting.deepest if arm.experiment.normalized == "bn" and arm.initial]
    shifts = sorted({arm.experiment.shift for arm in arms})
    if len(shifts) < 2:
        return
    figure, (ranks, accuracies) = panels(1)
    # Places, not sizes: the shifts grow by uneven steps.
    placed = [(shifts.index(arm.experiment.shift), arm) for arm in arms]
    draw(ranks, {x: list(arm.initial_rank.values()) for x, arm in placed}, 0, "at initialization")
    draw(ranks, {x: [end["rank"] for end in _ends(arm)] for x, arm in placed}, 1, "after training")
    for place, (name, title) in enumerate((("train_acc", "training set"), ("test_acc", "test set")), start=2):
        draw(accuracies, {x: percent(arm.accuracy(arm.epochs, name).values()) for x, arm in placed}, place, title)
    rank_axis(ranks, "last hidden layer's rank")
    accuracy_axis(accuracies, f"accuracy after {arms[0].epochs} epochs")
    for panel in (ranks, accuracies):
        panel.set_xticks(range(len(shifts)), [f"{shift:g}" for shift in shifts])
        panel.set_xlabel("shift s of the weights, U(-b + sb, b + sb)")
        panel.legend()
    caption = (
        f"{setting.title}, {setting.depths[-1]} hidden layers with batch normalization: rank of the last hidden layer "
        "and accuracy over how far off centre the weights are drawn."
    )
    yield finished(figure, setting, "shift", "Batch normalization and weights off centre", caption, None)
