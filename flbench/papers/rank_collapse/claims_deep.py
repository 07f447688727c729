"""The claims of Daneshmand et al. 2020 on trained networks: depth, weights off centre, ranks raised before training."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from statistics import fmean

from flbench.messages import format_scalar
from flbench.papers.evidence import Outcome, direction, percent_text, points_text
from flbench.papers.rank_collapse.training import PAPER_EPOCHS, Arm, Setting
from flbench.report.cells import grouped
from flbench.report.correlation import exact_spearman
from flbench.report.stats import LEVEL, paired, summarize

#: An initial rank below the first is collapsed, one above the second is not.
COLLAPSED, HIGH = 1.5, 5.0

#: A network whose accuracy is this close to the best arm of its depth trains.
CLOSE = 0.1

#: A smaller loss of accuracy is no fall.
NO_FALL = 0.01

#: With fewer arms no order of them is significant: the least two-sided p-value of 4 is 2 / 4!.
FEWEST_ARMS = 5

#: Ranks before training that differ by less are equal: what is left of collapsed ones is rounding.
_DECIMALS = 6

#: A rank that training changes by no more than this factor keeps its magnitude.
SAME = 2.0

#: What a setting says of a claim: an outcome and its evidence for each comparison in it.
Findings = Iterator[tuple[Outcome, str]]


def _ranks_over_depth(setting: Setting) -> Findings:
    """At the greatest of several depths: every seed's rank with batch normalization against those without."""
    arms = [arm for arm in setting.deepest if arm.initial_rank and len(setting.depths) > 1]
    for plain in (arm for arm in arms if arm.is_plain):
        for normalized in (arm for arm in arms if arm.is_batch_norm):
            highest, lowest = max(plain.initial_rank.values()), min(normalized.initial_rank.values())
            yield (
                highest < COLLAPSED and lowest > 2 * highest,
                f"{setting.depths[-1]} layers: r = {plain.initial_rank_text} ({plain.name}), "
                f"{normalized.initial_rank_text} ({normalized.name}), n={len(plain.initial_rank)}",
            )


def _accuracy_over_depth(
    setting: Setting, chosen: Callable[[Arm], bool], judge: Callable[[Arm, Arm], Outcome]
) -> Findings:
    """Each kind of arm at its greatest depth against its least, unless another setting trains it longer."""
    for name, arms in setting.by_name().items():
        trained = [arm for arm in arms if arm.final and chosen(arm)]
        if len(trained) < 2 or name in setting.trained_longer:
            continue
        first, last = trained[0], trained[-1]
        by_depth = ", ".join(f"{arm.experiment.depth}: {percent_text(arm.final.values())}" for arm in trained)
        change = points_text(paired(last.final, first.final))
        evidence = f"{name}: {by_depth} % by depth (change {change} points, n={len(last.final)}, {_length(last)})"
        yield judge(first, last), evidence


def _length(arm: Arm) -> str:
    """``15 epochs of 75``, the paper's, and whether its accuracy still rises."""
    paper = f" of {PAPER_EPOCHS}" if arm.epochs < PAPER_EPOCHS else ""
    return f"{arm.epochs} epochs{paper}" + (", still rising" if arm.still_rises else "")


def _falls(first: Arm, last: Arm) -> bool | None:
    """An arm whose accuracy still rises may end as high as the other."""
    way = direction(paired(last.final, first.final))
    return way < 0 if way and not last.still_rises else None


def _stays(first: Arm, last: Arm) -> bool | None:
    """No fall: the interval of the change is above ``-NO_FALL``; a fall: it is below, and accuracy no longer rises."""
    change = paired(last.final, first.final)
    if change is None or change.half_width is None:
        return None
    if change.mean - change.half_width >= -NO_FALL:
        return True
    return False if change.mean + change.half_width < -NO_FALL and not last.still_rises else None


def _rank_predicts(setting: Setting) -> Findings:
    """The rank correlation of the deepest arms, and the arms of any depth that contradict the claim."""
    # The unit is an arm, with its means over seeds. Depth changes both quantities, and arms of one name at several
    # depths are no independent units: the correlation over all depths is a description, without an interval.
    arms = [arm for arm in setting.arms if arm.final and arm.initial_rank]
    deepest = [arm for arm in arms if arm.experiment.depth == setting.depths[-1]]
    if len(deepest) < FEWEST_ARMS:
        return
    found = _correlation(deepest)
    evidence = f"{setting.title}: rank correlation of the {len(deepest)} arms with {setting.depths[-1]} layers "
    evidence += f"{found[0]:.2f} (exact permutation test: p = {found[1]:.2g})" if found else "undefined"
    if len(arms) > len(deepest) and (overall := _correlation(arms)):
        evidence += f", of all {len(arms)} arms and depths {overall[0]:.2f} (not tested: depth changes both)"
    if lost := [_at_depth(arm) for arm in setting.arms if arm.has_diverged]:
        evidence += f"; diverged at every rate, so without an accuracy: {', '.join(lost)}"
    against = [f"{_at_depth(arm)}, {percent_text(arm.final.values())} %" for arm in arms if _contradicts(arm, arms)]
    if against:
        evidence += f"; against it: {', '.join(against)}"
    rho, p = found or (0.0, 1.0)
    if p < LEVEL and rho > 0:
        yield "in part" if against else "holds", evidence
    else:
        yield "does not hold" if against or p < LEVEL else "inconclusive", evidence


def _correlation(arms: Sequence[Arm]) -> tuple[float, float] | None:
    """Return the rank correlation of the arms' mean ranks before training and accuracies, and its p-value."""
    ranks = [round(fmean(arm.initial_rank.values()), _DECIMALS) for arm in arms]
    return exact_spearman(ranks, [fmean(arm.final.values()) for arm in arms])


def _contradicts(arm: Arm, arms: Sequence[Arm]) -> bool:
    """Whether an arm is shown to train on a collapsed rank, or not on a high one, by the best arm of its depth."""
    rank, accuracy = fmean(arm.initial_rank.values()), summarize(list(arm.final.values()))
    if accuracy is None or accuracy.half_width is None:
        return False
    best = max(fmean(one.final.values()) for one in arms if one.experiment.depth == arm.experiment.depth)
    if rank < COLLAPSED:
        return accuracy.mean - accuracy.half_width > best - CLOSE
    return rank > HIGH and accuracy.mean + accuracy.half_width < best / 2


def _at_depth(arm: Arm) -> str:
    return f"{arm.name} at {arm.experiment.depth} layers, r = {arm.initial_rank_text}"


def _shift_breaks(setting: Setting) -> Findings:
    """The greatest shift against none, at each depth; the evidence lists all shifts."""
    for depth in setting.depths:
        normalized = [arm for arm in setting.at_depth(depth) if arm.experiment.normalized == "bn"]
        arms = [arm for arm in normalized if arm.final and arm.initial_rank]
        centred = next((arm for arm in arms if arm.is_batch_norm), None)
        shifted = [arm for arm in arms if arm.experiment.shift > 0]
        if centred is None or not shifted:
            continue
        last, change = shifted[-1], paired(shifted[-1].final, centred.final)
        is_lower = max(last.initial_rank.values()) < min(COLLAPSED, *centred.initial_rank.values())
        doses = "; ".join(
            f"{format_scalar(arm.experiment.shift)}: r = {arm.initial_rank_text}, {percent_text(arm.final.values())} %"
            for arm in [centred, *shifted]
        )
        size = f"{depth} layers, n={len(centred.final)}, {_length(last)}"
        yield (
            _falls(centred, last) if is_lower else False,
            f"shift {doses} (change {points_text(change)} points, {size})",
        )


def _raises(setting: Setting) -> Findings:
    """Every layer's rank against that of the same network as drawn."""
    for arm in setting.arms:
        others = [one for one in setting.at_depth(arm.experiment.depth) if one.is_plain]
        plain = next((one for one in others if one.experiment.init == arm.experiment.init), None)
        if not arm.is_pretrained or plain is None:
            continue
        seeds = sorted(arm.initial.keys() & plain.initial.keys())
        ranks = ((arm.initial[seed]["ranks"], plain.initial[seed]["ranks"]) for seed in seeds)
        raised = [high / low > 1 for both in ranks for high, low in zip(*both, strict=True)]
        if raised:
            before, after = (fmean(one.initial_rank[seed] for seed in seeds) for one in (plain, arm))
            yield (
                all(raised),
                f"{arm.name}: {sum(raised)} of {len(raised)} layers, the last from {before:.2f} to {after:.2f} "
                f"(n={len(seeds)})",
            )


def _outperforms(setting: Setting, is_other: Callable[[Arm], bool]) -> Findings:
    """Differences in training accuracy, paired by seed, at equal epochs; the last epoch decides."""
    for arm in setting.arms:
        other = next(filter(is_other, setting.at_depth(arm.experiment.depth)), None)
        if not arm.is_pretrained or other is None or not other.final or not arm.is_recorded:
            continue
        if not arm.final:
            # It has no accuracy to compare: smaller rates may train it.
            yield None, f"{arm.name}: {_divergence(arm)}"
            continue
        gaps = ((epoch, paired(arm.at_best(epoch), other.at_best(epoch))) for epoch in setting.shown_epochs())
        by_epoch = ", ".join(f"{epoch}: {points_text(gap)}" for epoch, gap in gaps if gap)
        last = paired(arm.final, other.final)
        way, n = direction(last), last.n if last else 0
        diverged = f", {_divergence(arm)}" if any(trial.diverged for trial in arm.trials) else ""
        evidence = f"{arm.name} less {other.name}, points by epoch: {by_epoch} (n={n}{diverged})"
        lower = other if way > 0 else arm
        evidence += f"; {lower.name} still rises after {arm.epochs} epochs" if way and lower.still_rises else ""
        yield way > 0 if way and not lower.still_rises else None, evidence


def _divergence(arm: Arm) -> str:
    """The number of its runs that diverged, over all learning rates."""
    diverged, runs = sum(one.diverged for one in arm.trials), sum(len(one.runs) for one in arm.trials)
    rates = [trial.lr for trial in arm.trials if trial.lr is not None]
    smallest = f" at rates from {format_scalar(min(rates))}" if diverged == runs and rates else ""
    return f"{diverged} of {runs} runs diverged{smallest}"


def _more_is_better(setting: Setting) -> Findings:
    """Arms pre-trained in one way, each against that with fewer steps; those that always diverge decide nothing."""
    for depth in setting.depths:
        arms = [arm for arm in setting.at_depth(depth) if arm.is_recorded]
        for pretrained in grouped([arm for arm in arms if arm.is_pretrained], lambda arm: arm.way_of_pretraining):
            without = [arm for arm in arms if arm.is_without_pretraining_of(pretrained[0])]
            if len(by_steps := [*without, *pretrained]) < 3:
                continue
            listed = ", ".join(
                f"{arm.experiment.pretrain_steps}: {percent_text(arm.final.values())} % ({_divergence(arm)})"
                for arm in by_steps
            )
            ways = [direction(paired(more.final, fewer.final)) for fewer, more in pairwise(by_steps)]
            outcome = True if min(ways) > 0 else False if min(ways) < 0 else None
            way = pretrained[0].name.partition(", ")[2]
            yield outcome, f"{way and f'{way}, '}by steps, at the best rate: {listed}"


def _keeps_rank(setting: Setting) -> Findings:
    """Trained arms of the greatest depth, each at its best learning rate."""
    # An arm with less than half the accuracy of the best one has not trained: that its rank stays is no evidence.
    best = max((fmean(arm.final.values()) for arm in setting.deepest if arm.final), default=0.0)
    for arm in setting.deepest:
        early, late = arm.initial_rank, arm.at_best(arm.epochs, "rank")
        pairs = [(early[seed], late[seed]) for seed in late if seed in early]
        if pairs and fmean(arm.final.values()) >= best / 2:
            before, after = (fmean(ranks) for ranks in zip(*pairs, strict=True))
            factors = [last / first for first, last in pairs]
            yield (
                all(1 / SAME <= factor <= SAME for factor in factors),
                f"{arm.name}: {before:.1f} to {after:.1f} in {arm.epochs} epochs (by {min(factors):.2f} to "
                f"{max(factors):.2f}, n={len(pairs)})",
            )


#: The claims, each with its source and what judges it in a setting.
CLAIMS: tuple[tuple[str, str, Callable[[Setting], Findings]], ...] = (
    (
        "Rank collapses with depth at random initialization, but not under batch normalization",
        "figure 1, left",
        _ranks_over_depth,
    ),
    (
        "Without normalization accuracy falls with depth",
        "figure 1, right",
        partial(_accuracy_over_depth, chosen=lambda arm: arm.is_plain, judge=_falls),
    ),
    (
        "With batch normalization accuracy does not fall with depth",
        "figure 1, right",
        partial(_accuracy_over_depth, chosen=lambda arm: arm.is_batch_norm, judge=_stays),
    ),
    (
        "A high rank at initialization is crucial for training: rank predicts accuracy",
        "contributions",
        _rank_predicts,
    ),
    ("Weights off centre break batch normalization: ranks and accuracy fall", "figure 4, dashed", _shift_breaks),
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
