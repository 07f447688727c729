"""The report's chapters about studies of kinds ``rank`` (random networks) and ``deep`` (trained ones)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from flbench.literal import literal
from flbench.messages import format_scalar
from flbench.papers.evidence import claim, exponent_text, mean_text, percent_text
from flbench.papers.rank_collapse import PAPER, claims_depth, claims_networks, claims_pretraining
from flbench.papers.rank_collapse.networks import DEEP_ENOUGH, Growth, Net, growths, nets_of, path_name
from flbench.papers.rank_collapse.training import Arm, Setting, settings_of
from flbench.report.blocks import Block, Entry, Grid, Paragraph, words
from flbench.report.claims import Chapter
from flbench.report.runs import Collection, Run

_SOURCE = "@daneshmand2020rank"

_RANK = (
    "Random networks on Gaussian inputs, layer by layer: r(H) = Tr(M)² / ‖M‖² with M = HHᵀ/N is 1 where all samples "
    "lie on one line and d where all directions are alike; H is what enters the activation. bn-rms divides every "
    "feature by its root mean square, as the paper does, bn also subtracts its mean, as networks do. ± is the "
    "half-width of the 95 % interval of the mean over draws (n)."
)
_DEEP = (
    "Deep ReLU networks of equal width under plain SGD; r is the effective rank of what enters the last ReLU. "
    "Accuracies are those on the training set, as in the paper, at the learning rate that is best at that epoch; all "
    "arms of a setting have the same rates. ± is the half-width of the 95 % interval of the mean over seeds."
)


def rank_chapter(runs: Sequence[Run], collection: Collection) -> Chapter:
    """Return the verdicts on random networks, and the measurements."""
    nets = nets_of(runs, collection)
    claims = claims_networks.claims(nets)
    fitted = [one for one in growths(nets) if one.exponent]
    head = ("activation", "path", "normalization", "d", "layers", "r at the end", "r, second half")
    rest = ("least r, second half", "r / √d", "soft rank (τ 0.5)", "n", "remarks")
    over_depth = Grid((*head, *rest), tuple(map(_net_row, nets)), names=3, remarks=1)
    tables = (over_depth, _width_table(fitted)) if fitted else (over_depth,)
    return Chapter("rank", "Ranks over depth", _RANK, tuple(claims), tables, tuple(runs), _SOURCE)


def _net_row(net: Net) -> tuple[Entry, ...]:
    experiment, late = net.experiment, net.late()
    missing = len(net.runs) - len(net.at_end)
    remarks = [f"{missing} of {len(net.runs)} draws unfinished, or of rank 0"] if missing else []
    remarks += [] if net.is_deep_enough else [f"not deep enough ({net.folds:.1f} of {DEEP_ENOUGH:g} e-foldings)"]
    return words(
        *(experiment.activation, path_name(experiment.gamma), experiment.normalized),
        *(str(experiment.width), str(net.layers)),
        mean_text(net.at_end),
        mean_text(late),
        "–" if net.least is None else f"{net.least:.2f}",
        mean_text([value / math.sqrt(experiment.width) for value in late]),
        mean_text(net.late("soft_rank_0.5"), 1),
        str(len(net.at_end)),
        "; ".join(remarks),
    )


def _width_table(grown: Sequence[Growth]) -> Grid:
    widths = sorted({width for one in grown for width in one.ranks})
    rows = tuple(
        words(
            one.net.experiment.activation,
            path_name(one.net.experiment.gamma),
            one.net.experiment.normalized,
            *(mean_text(one.ranks.get(width, ())) for width in widths),
            exponent_text(one.exponent),
        )
        for one in grown
    )
    head = ("activation", "path", "normalization", *(f"r at d = {width}" for width in widths), "exponent")
    return Grid(head, rows, names=3)


def deep_chapter(runs: Sequence[Run], collection: Collection) -> Chapter:
    """Return the verdicts on trained networks, and the measurements."""
    settings = settings_of(runs, collection)
    claims = tuple(
        claim(text, f"{PAPER}, {source}", [finding for setting in settings for finding in judge(setting)])
        for text, source, judge in (*claims_depth.CLAIMS, *claims_pretraining.CLAIMS)
    )
    blocks = tuple(block for setting in settings for block in _setting_table(setting))
    return Chapter("deep", "Deep networks", _DEEP, claims, blocks, tuple(runs), _SOURCE)


def _setting_table(setting: Setting) -> Iterator[Block]:
    epochs = setting.shown_epochs()
    rates = ", ".join(map(format_scalar, setting.rates))
    trained = f"; learning rates {rates}" if rates else ", not trained"
    yield Paragraph(f"**{literal(setting.title)}**{trained}")
    accuracies = [f"accuracy at {epoch} (%)" for epoch in epochs]
    head = ("arm", "layers", "initial r", "final r", *accuracies, "test (%)", "best lr", "n", "remarks")
    yield Grid(head, tuple(_arm_row(arm, epochs) for arm in setting.arms), names=1, remarks=1)


def _arm_row(arm: Arm, epochs: Sequence[int]) -> tuple[Entry, ...]:
    best = arm.best(arm.epochs)
    diverged = [
        f"{trial.diverged}/{len(trial.runs)} at lr {format_scalar(trial.lr)}" for trial in arm.trials if trial.diverged
    ]
    remarks = [f"diverged: {', '.join(diverged)}"] if diverged else []
    remarks += [f"{arm.unfinished} unfinished"] if arm.unfinished else []
    return words(
        arm.name,
        str(arm.experiment.depth),
        arm.initial_rank_text,
        mean_text(list(arm.at_best(arm.epochs, "rank").values())),
        *(percent_text(arm.at_best(epoch).values()) for epoch in epochs),
        percent_text(arm.at_best(arm.epochs, "test_acc").values()),
        format_scalar(best.lr) if best and best.lr else "–",
        str(len(arm.final)),
        "; ".join(remarks),
    )
