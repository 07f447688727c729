"""The chapter about studies of kind ``deep``: Daneshmand et al. 2020, figures 1, 3 and 4."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flbench.messages import format_scalar
from flbench.papers.rank_collapse import claims_depth as deep_depth
from flbench.papers.rank_collapse import claims_pretraining as deep_raised
from flbench.papers.rank_collapse.arms import Arm, Setting, settings_of
from flbench.report.blocks import Block, Entry, Grid, Paragraph, words
from flbench.report.claim_text import percent, spread
from flbench.report.claims import Chapter
from flbench.report.literal import literal
from flbench.report.runs import Collection, Run


def chapter(runs: Sequence[Run], collection: Collection) -> Chapter:
    """What the runs say."""
    settings = settings_of(runs, collection)
    claims = (*deep_depth.claims(settings), *deep_raised.claims(settings))
    introduction = (
        "Deep ReLU networks of equal width under plain SGD; r is the effective rank of what enters the last ReLU. "
        "Accuracies are those on the training set, as in the paper, at the learning rate that is best at that epoch; "
        "all arms of a setting have the same rates. ± is the half-width of the 95 % interval of the mean over seeds."
    )
    blocks = tuple(block for setting in settings for block in _table(setting))
    return Chapter("deep", "Deep networks", introduction, claims, blocks, tuple(runs))


def _table(setting: Setting) -> Iterator[Block]:
    epochs = setting.shown_epochs()
    rates = ", ".join(format_scalar(rate) for rate in setting.rates)
    yield Paragraph(
        f"**{literal(setting.title)}**; learning rates {rates}"
        if rates
        else f"**{literal(setting.title)}**, not trained"
    )
    accuracies = [f"accuracy at {epoch} (%)" for epoch in epochs]
    head = ("arm", "layers", "r at first", "r in the end", *accuracies, "test (%)", "best lr", "n", "remarks")
    yield Grid(head, tuple(_row(arm, epochs) for arm in setting.arms), names=1, remarks=1)


def _row(arm: Arm, epochs: Sequence[int]) -> tuple[Entry, ...]:
    best = arm.best(arm.epochs)
    after = list(best.at(arm.epochs, "rank").values()) if best else []
    return (
        *words(arm.name, str(arm.experiment.depth)),
        Entry(spread(list(arm.initial_rank.values()))),
        Entry(spread(after)),
        *(Entry(percent(arm.accuracy(epoch).values())) for epoch in epochs),
        Entry(percent(arm.accuracy(arm.epochs, "test_acc").values())),
        *words(format_scalar(best.lr) if best and best.lr else "–", str(len(arm.final)), _remarks(arm)),
    )


def _remarks(arm: Arm) -> str:
    diverged = [
        f"{trial.diverged}/{len(trial.runs)} at lr {format_scalar(trial.lr)}" for trial in arm.trials if trial.diverged
    ]
    parts = [f"diverged: {', '.join(diverged)}"] if diverged else []
    return "; ".join([*parts, *([f"{arm.unfinished} unfinished"] if arm.unfinished else [])])
