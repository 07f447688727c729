"""Figures of a leaderboard, by kind; each kind draws what the runs support, and nothing where they do not."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from flbench.errors import UserError
from flbench.messages import by_similarity
from flbench.papers.label_skew import figure2 as overfit
from flbench.papers.label_skew import figure3 as features
from flbench.papers.label_skew import figure_mechanisms as why
from flbench.papers.label_skew import figure_published as published
from flbench.papers.rank_collapse import figure_training as deep
from flbench.papers.rank_collapse import figures as rank
from flbench.papers.sharpness import figures as sharpness
from flbench.report.figures import axes, cost, curves, heatmap, labels
from flbench.report.figures.style import STYLE, Drawing, save
from flbench.report.leaderboard import Leaderboard, Picture
from flbench.report.runs import Collection

#: What draws a kind of figure, and what it shows.
Draw = Callable[[Leaderboard, Collection], Iterator[Drawing]]
KINDS: Mapping[str, tuple[Draw, str]] = {
    "curves": (curves.over_rounds, "the metric over rounds, with bands"),
    "lr": (axes.over_lr, "the metric over the learning rate"),
    "dirichlet": (axes.over_beta, "the metric over Dirichlet's beta"),
    "data": (curves.over_data, "centralized and federated training over the samples seen"),
    "heatmap": (heatmap.heatmap, "method x norm as colours"),
    "published": (published.published, "ours against the published numbers"),
    "cost": (cost.cost, "bytes until the target"),
    "labels": (labels.labels, "samples of each class that each client holds"),
    "why": (why.why, "accuracy against what probes saw: features, sharpness"),
    "overfit": (overfit.overfit, "class accuracies before and after local steps on one client"),
    "features": (features.features, "the features' norms and singular values over rounds"),
    "sharpness": (sharpness.sharpness, "lambda_max over the width, and losses over width and learning rate"),
    "rank": (rank.rank, "ranks over the depth of random networks"),
    "deep": (deep.deep, "ranks and accuracy of deep networks over depth and epochs"),
}


def draw(board: Leaderboard, collection: Collection, kind: str, data_root: Path | None = None) -> Iterator[Drawing]:
    """The figures of one kind; raises UserError for an unknown kind."""
    if kind not in KINDS:
        raise UserError(f"unknown kind of figure {kind!r}; known: {', '.join(by_similarity(kind, KINDS))}")
    from matplotlib import rc_context

    maker = partial(labels.labels, root=data_root) if kind == "labels" else KINDS[kind][0]
    with rc_context(STYLE):
        for drawing in maker(board, collection):
            # A layout takes the sizes of titles and labels from the drawing before: one pass lets titles overlap.
            drawing.figure.draw_without_rendering()
            yield drawing


def write_figures(
    board: Leaderboard, collection: Collection, directory: Path, data_root: Path | None = None
) -> tuple[Picture, ...]:
    """Draw every kind that the runs support as SVG and PNG into ``directory``; the pictures have no links yet."""
    directory.mkdir(parents=True, exist_ok=True)
    pictures = []
    for kind in KINDS:
        for drawing in draw(board, collection, kind, data_root):
            svg, _ = save(drawing, directory)
            pictures.append(Picture(kind, drawing.caption, svg, drawing.place))
    return tuple(pictures)


def with_links(pictures: tuple[Picture, ...], leaderboard: Path) -> tuple[Picture, ...]:
    """The pictures with links to their SVG files, seen from where the leaderboard lies."""
    here = leaderboard.resolve().parent
    return tuple(dataclasses.replace(one, link=_relative(one.svg.resolve(), here)) for one in pictures)


def _relative(path: Path, start: Path) -> str:
    return Path(os.path.relpath(path, start)).as_posix()
