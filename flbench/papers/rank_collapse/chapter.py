"""The report's chapters about studies of kinds ``rank`` (random networks) and ``deep`` (trained ones)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from flbench.literal import literal
from flbench.messages import format_scalar
from flbench.papers.declared import declared, judge
from flbench.papers.evidence import by, combined, exponent_text, fit_exponent, mean_text, percent_text, two_decimals
from flbench.papers.rank_collapse.claims_deep import CLAIMS
from flbench.papers.rank_collapse.networks import DEEP_ENOUGH, FEWEST_WIDTHS, NET, draws, layers, soft_ranks
from flbench.papers.rank_collapse.training import Arm, Setting, settings_of
from flbench.report.blocks import Block, Entry, Grid, Paragraph, words
from flbench.report.claims import Chapter, Claim
from flbench.report.runs import Collection, Run

if TYPE_CHECKING:
    import pandas as pd

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
    recorded = layers(runs, collection)
    drawn = draws(runs, recorded)
    frames = {"draws": drawn, "soft": soft_ranks(recorded)}
    claims = judge(declared(__package__), frames, {"DEEP_ENOUGH": DEEP_ENOUGH}, separator="; ")
    head = ("activation", "path", "normalization", "d", "layers", "r at the end", "r, second half")
    rest = ("least r, second half", "r / √d", "soft rank (τ 0.5)", "n", "remarks")
    nets = tuple(_net_row(own) for _, own in by(drawn, *NET))
    tables = [Grid((*head, *rest), nets, names=3, remarks=1)]
    fitted = drawn[drawn.deep & drawn.late.notna() & (drawn.widths >= FEWEST_WIDTHS)]
    tables += [] if fitted.empty else [_width_table(fitted)]
    return Chapter("rank", "Ranks over depth", _RANK, claims, tuple(tables), tuple(runs), _SOURCE)


def _net_row(own: pd.DataFrame) -> tuple[Entry, ...]:
    """The draws of one network."""
    first, late, ended = own.iloc[0], own.late.dropna(), own.end.dropna()
    missing = len(own) - len(ended)
    remarks = [f"{missing} of {len(own)} draws unfinished, or of rank 0"] if missing else []
    remarks += [] if first.deep else [f"not deep enough ({first.folds:.1f} of {DEEP_ENOUGH:g} e-foldings)"]
    return words(
        *(first.activation, first.path, first.normalized, str(first.width), str(first.layers)),
        mean_text(ended.tolist()),
        mean_text(late.tolist()),
        "–" if late.empty else two_decimals(own.least.min()),
        mean_text((late / first.width**0.5).tolist()),
        mean_text(own.soft.dropna().tolist(), 1),
        str(len(ended)),
        "; ".join(remarks),
    )


def _width_table(fitted: pd.DataFrame) -> Grid:
    """A row for each kind of network, with its mean rank at each width."""
    widths = sorted(fitted.width.unique())
    rows = []
    for (activation, _, normalized, path), own in by(fitted, *NET[:3], "path"):
        ranks = {width: same.late.tolist() for width, same in by(own, "width")}
        means = (mean_text(ranks.get(width, ())) for width in widths)
        rows.append(words(activation, path, normalized, *means, exponent_text(fit_exponent(ranks))))
    head = ("activation", "path", "normalization", *(f"r at d = {width}" for width in widths), "exponent")
    return Grid(head, tuple(rows), names=3)


def deep_chapter(runs: Sequence[Run], collection: Collection) -> Chapter:
    """Return the verdicts on trained networks, and the measurements."""
    settings = settings_of(runs, collection)
    claims = []
    for text, source, findings in CLAIMS:
        outcomes, evidence = [], []
        for outcome, said in (finding for setting in settings for finding in findings(setting)):
            outcomes.append(outcome)
            evidence.append(said)
        claims.append(Claim(text, f"Daneshmand et al. 2020, {source}", combined(outcomes), "; ".join(evidence)))
    blocks = tuple(block for setting in settings for block in _setting_table(setting))
    return Chapter("deep", "Deep networks", _DEEP, tuple(claims), blocks, tuple(runs), _SOURCE)


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
