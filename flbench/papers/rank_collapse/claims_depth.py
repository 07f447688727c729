"""Figures 1 and 4 (dashed) of Daneshmand et al. 2020: rank and accuracy over depth, and weights off centre."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from statistics import fmean

from flbench.messages import format_scalar
from flbench.papers.evidence import Finding, Outcome, direction, percent_text, points_text
from flbench.papers.rank_collapse.training import PAPER_EPOCHS, Arm, Setting
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


def _ranks_over_depth(setting: Setting) -> list[Finding]:
    """At the greatest of several depths: every seed's rank with batch normalization against those without."""
    if len(setting.depths) < 2:
        return []
    arms = [arm for arm in setting.deepest if arm.initial_rank]
    found: list[Finding] = []
    for plain in (arm for arm in arms if arm.is_plain):
        for normalized in (arm for arm in arms if arm.is_batch_norm):
            highest, lowest = max(plain.initial_rank.values()), min(normalized.initial_rank.values())
            evidence = (
                f"{setting.depths[-1]} layers: r = {plain.initial_rank_text} ({plain.name}), "
                f"{normalized.initial_rank_text} ({normalized.name}), n={len(plain.initial_rank)}"
            )
            found.append((highest < COLLAPSED and lowest > 2 * highest, evidence))
    return found


def _accuracy_over_depth(
    setting: Setting, chosen: Callable[[Arm], bool], judge: Callable[[Arm, Arm], Outcome]
) -> list[Finding]:
    """Each kind of arm at its greatest depth against its least, unless another setting trains it longer."""
    found: list[Finding] = []
    for name, arms in setting.by_name().items():
        trained = [arm for arm in arms if arm.final and chosen(arm)]
        if len(trained) < 2 or name in setting.trained_longer:
            continue
        first, last = trained[0], trained[-1]
        by_depth = ", ".join(f"{arm.experiment.depth}: {percent_text(arm.final.values())}" for arm in trained)
        change = points_text(paired(last.final, first.final))
        evidence = f"{name}: {by_depth} % by depth (change {change} points, n={len(last.final)}, {_length(last)})"
        found.append((judge(first, last), evidence))
    return found


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


def _rank_predicts(setting: Setting) -> list[Finding]:
    """Return the rank correlation of the deepest arms, and the arms of any depth that contradict the claim.

    The unit is an arm, with its means over seeds. Depth changes both quantities, and arms of one name at several depths
    are no independent units: the correlation over all depths is a description, without an interval.
    """
    arms = [arm for arm in setting.arms if arm.final and arm.initial_rank]
    deepest = [arm for arm in arms if arm.experiment.depth == setting.depths[-1]]
    if len(deepest) < FEWEST_ARMS:
        return []
    found = _correlation(deepest)
    evidence = f"{setting.title}: rank correlation of the {len(deepest)} arms with {setting.depths[-1]} layers "
    evidence += f"{found[0]:.2f} (exact permutation test: p = {found[1]:.2g})" if found else "undefined"
    if len(arms) > len(deepest) and (overall := _correlation(arms)):
        evidence += f", of all {len(arms)} arms and depths {overall[0]:.2f} (not tested: depth changes both)"
    against = []
    for arm in arms:
        # Shown by its interval: it trains on a collapsed rank, or not on a high one, by the best arm of its depth.
        rank, accuracy = fmean(arm.initial_rank.values()), summarize(list(arm.final.values()))
        if accuracy is None or accuracy.half_width is None:
            continue
        low, high = accuracy.mean - accuracy.half_width, accuracy.mean + accuracy.half_width
        best = max(fmean(one.final.values()) for one in arms if one.experiment.depth == arm.experiment.depth)
        if low > best - CLOSE if rank < COLLAPSED else rank > HIGH and high < best / 2:
            against.append((arm, f"{percent_text(arm.final.values())} %"))
    if lost := [arm for arm in setting.arms if arm.has_diverged]:
        named = ", ".join(f"{arm.name} at {arm.experiment.depth} layers, r = {arm.initial_rank_text}" for arm in lost)
        evidence += f"; diverged at every rate, so without an accuracy: {named}"
    if against:
        evidence += "; against it: " + ", ".join(
            f"{arm.name} at {arm.experiment.depth} layers, r = {arm.initial_rank_text}, {end}" for arm, end in against
        )
    rho, p = found or (0.0, 1.0)
    if p < LEVEL and rho > 0:
        return [("in part" if against else "holds", evidence)]
    return [("does not hold" if against or p < LEVEL else "inconclusive", evidence)]


def _correlation(arms: Sequence[Arm]) -> tuple[float, float] | None:
    """Return the rank correlation of the arms' mean ranks before training and accuracies, and its p-value."""
    ranks = [round(fmean(arm.initial_rank.values()), _DECIMALS) for arm in arms]
    return exact_spearman(ranks, [fmean(arm.final.values()) for arm in arms])


def _shift_breaks(setting: Setting) -> list[Finding]:
    """The greatest shift against none, at each depth; the evidence lists all shifts."""
    found: list[Finding] = []
    for depth in setting.depths:
        arms = [
            arm
            for arm in setting.at_depth(depth)
            if arm.experiment.normalized == "bn" and arm.final and arm.initial_rank
        ]
        centred = next((arm for arm in arms if arm.is_batch_norm), None)
        shifted = [arm for arm in arms if arm.experiment.shift > 0]
        if centred is None or not shifted:
            continue
        last, change = shifted[-1], paired(shifted[-1].final, centred.final)
        is_lower = max(last.initial_rank.values()) < min(COLLAPSED, *centred.initial_rank.values())
        way = direction(change)
        doses = "; ".join(
            f"{format_scalar(arm.experiment.shift)}: r = {arm.initial_rank_text}, {percent_text(arm.final.values())} %"
            for arm in [centred, *shifted]
        )
        size = f"{depth} layers, n={len(centred.final)}, {_length(last)}"
        evidence = f"shift {doses} (change {points_text(change)} points, {size})"
        found.append((is_lower and way < 0 if (way and not last.still_rises) or not is_lower else None, evidence))
    return found


#: The claims, each with its source and what judges it in a setting.
CLAIMS: tuple[tuple[str, str, Callable[[Setting], list[Finding]]], ...] = (
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
)
