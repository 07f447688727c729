"""Figures 3 and 4 of Daneshmand et al. 2020: ranks that are raised before training."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from statistics import fmean

from flbench.messages import format_scalar
from flbench.papers.evidence import Finding, direction, percent_text, points_text
from flbench.papers.rank_collapse.training import Arm, Setting
from flbench.report.cells import grouped
from flbench.report.stats import paired

#: A rank that training changes by no more than this factor keeps its magnitude.
SAME = 2.0


def _raises(setting: Setting) -> list[Finding]:
    """Every layer's rank against that of the same network as drawn."""
    found: list[Finding] = []
    for arm in setting.arms:
        others = [one for one in setting.at_depth(arm.experiment.depth) if one.is_plain]
        plain = next((one for one in others if one.experiment.init == arm.experiment.init), None)
        if not arm.is_pretrained or plain is None:
            continue
        seeds = sorted(arm.initial.keys() & plain.initial.keys())
        factors = [
            high / low
            for seed in seeds
            for high, low in zip(arm.initial[seed]["ranks"], plain.initial[seed]["ranks"], strict=True)
        ]
        if factors:
            raised = sum(factor > 1 for factor in factors)
            before, after = (fmean(one.initial_rank[seed] for seed in seeds) for one in (plain, arm))
            evidence = (
                f"{arm.name}: {raised} of {len(factors)} layers, the last from {before:.2f} to {after:.2f} "
                f"(n={len(seeds)})"
            )
            found.append((raised == len(factors), evidence))
    return found


def _outperforms(setting: Setting, is_other: Callable[[Arm], bool]) -> list[Finding]:
    """Differences in training accuracy, paired by seed, at equal epochs; the last epoch decides."""
    found: list[Finding] = []
    for arm in setting.arms:
        other = next(filter(is_other, setting.at_depth(arm.experiment.depth)), None)
        if not arm.is_pretrained or other is None or not other.final or not any(trial.records for trial in arm.trials):
            continue
        if not arm.final:
            # It has no accuracy to compare: smaller rates may train it.
            found.append((None, f"{arm.name}: {_divergence(arm)}"))
            continue
        gaps = ((epoch, paired(arm.at_best(epoch), other.at_best(epoch))) for epoch in setting.shown_epochs())
        by_epoch = ", ".join(f"{epoch}: {points_text(gap)}" for epoch, gap in gaps if gap)
        last = paired(arm.final, other.final)
        way, n = direction(last), last.n if last else 0
        diverged = f", {_divergence(arm)}" if any(trial.diverged for trial in arm.trials) else ""
        evidence = f"{arm.name} less {other.name}, points by epoch: {by_epoch} (n={n}{diverged})"
        lower = other if way > 0 else arm
        evidence += f"; {lower.name} still rises after {arm.epochs} epochs" if way and lower.still_rises else ""
        found.append((way > 0 if way and not lower.still_rises else None, evidence))
    return found


def _divergence(arm: Arm) -> str:
    """The number of its runs that diverged, over all learning rates."""
    diverged, runs = (
        sum(counts) for counts in zip(*((one.diverged, len(one.runs)) for one in arm.trials), strict=True)
    )
    rates = [trial.lr for trial in arm.trials if trial.lr is not None]
    smallest = f" at rates from {format_scalar(min(rates))}" if diverged == runs and rates else ""
    return f"{diverged} of {runs} runs diverged{smallest}"


def _more_is_better(setting: Setting) -> list[Finding]:
    """Arms pre-trained in one way, each against that with fewer steps; those that always diverge decide nothing."""
    found: list[Finding] = []
    for depth in setting.depths:
        arms = [arm for arm in setting.at_depth(depth) if any(trial.records for trial in arm.trials)]
        for pretrained in grouped([arm for arm in arms if arm.is_pretrained], _way_of_pretraining):
            without = [arm for arm in arms if arm.is_without_pretraining_of(pretrained[0])]
            if len(by_steps := [*without, *pretrained]) < 3:
                continue
            listed = ", ".join(
                f"{arm.experiment.pretrain_steps}: {percent_text(arm.final.values())} % ({_divergence(arm)})"
                for arm in by_steps
            )
            ways = [direction(paired(more.final, fewer.final)) for fewer, more in pairwise(by_steps)]
            outcome = True if all(way > 0 for way in ways) else False if any(way < 0 for way in ways) else None
            way = pretrained[0].name.partition(", ")[2]
            found.append((outcome, f"{way and f'{way}, '}by steps, at the best rate: {listed}"))
    return found


def _way_of_pretraining(arm: Arm) -> tuple[str, str, float, bool, str]:
    one = arm.experiment
    return one.pretrain_variant, one.pretrain_optimizer, one.pretrain_lr, one.rescale, one.init


def _keeps_rank(setting: Setting) -> list[Finding]:
    """Trained arms of the greatest depth, each at its best learning rate."""
    found: list[Finding] = []
    # An arm with less than half the accuracy of the best one has not trained: that its rank stays is no evidence.
    best = max((fmean(arm.final.values()) for arm in setting.deepest if arm.final), default=0.0)
    for arm in setting.deepest:
        early, late = arm.initial_rank, arm.at_best(arm.epochs, "rank")
        pairs = [(early[seed], late[seed]) for seed in late if seed in early]
        if pairs and fmean(arm.final.values()) >= best / 2:
            before, after = (fmean(ranks) for ranks in zip(*pairs, strict=True))
            factors = [last / first for first, last in pairs]
            evidence = (
                f"{arm.name}: {before:.1f} to {after:.1f} in {arm.epochs} epochs (by {min(factors):.2f} to "
                f"{max(factors):.2f}, n={len(pairs)})"
            )
            found.append((all(1 / SAME <= factor <= SAME for factor in factors), evidence))
    return found


#: The claims, each with its source and what judges it in a setting.
CLAIMS: tuple[tuple[str, str, Callable[[Setting], list[Finding]]], ...] = (
    ("Pre-training raises the rank of every layer", "section on optimization, 1", _raises),
    (
        "A pre-trained network without normalization outperforms batch normalization",
        "figure 3",
        partial(_outperforms, is_other=lambda arm: arm.is_batch_norm),
    ),
    (
        "It is the rank that helps, not the rescaling that comes with pre-training",
        "our control",
        partial(_outperforms, is_other=lambda arm: arm.is_control),
    ),
    ("The more pre-training, the better the training", "figure 4", _more_is_better),
    ("SGD keeps the magnitude of the last layer's rank", "figure 4, right", _keeps_rank),
)
