"""Claims about depth, rank and weights off centre: Daneshmand et al. 2020, figure 1, and figure 4, dashed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from flbench.messages import format_scalar
from flbench.papers.rank_collapse.arms import Arm, Setting
from flbench.report.claim_text import interval, percent, points, sign, spread, verdict
from flbench.report.claims import Claim, Holding
from flbench.report.stats import paired

if TYPE_CHECKING:
    from flbench.report.correlation import Correlation

PAPER = "Daneshmand et al. 2020"

#: A first rank below this is a collapsed one, and one above the other is not.
COLLAPSED, HIGH = 1.5, 5.0

#: How near to the best arm of its depth an accuracy has to be so that the network trains, as a fraction.
NEAR = 0.1

#: A fall of accuracy that is none, as a fraction.
NO_FALL = 0.01

Finding = tuple[bool | None, str]


def claims(settings: Sequence[Setting]) -> list[Claim]:
    """All of them, also those that these runs do not cover."""
    return [
        _claim(
            "Rank collapses with depth at random initialization, but not under batch normalization",
            f"{PAPER}, figure 1, left",
            [finding for setting in settings for finding in _ranks(setting)],
        ),
        _claim(
            "Without normalization accuracy falls with depth",
            f"{PAPER}, figure 1, right",
            [finding for setting in settings for finding in _falls(setting, lambda arm: arm.vanilla, _fallen)],
        ),
        _claim(
            "With batch normalization accuracy does not fall with depth",
            f"{PAPER}, figure 1, right",
            [finding for setting in settings for finding in _falls(setting, lambda arm: arm.usual_batch_norm, _kept)],
        ),
        _crucial(settings),
        _claim(
            "Weights off centre break batch normalization: ranks and accuracy fall",
            f"{PAPER}, figure 4, dashed",
            [finding for setting in settings for finding in _breaks(setting)],
        ),
    ]


def _claim(text: str, source: str, findings: Sequence[Finding]) -> Claim:
    return Claim(text, source, verdict([outcome for outcome, _ in findings]), "; ".join(said for _, said in findings))


def _ranks(setting: Setting) -> list[Finding]:
    """At the greatest depth of several: every seed's rank with batch normalization against those without."""
    if len(setting.depths) < 2:
        return []
    found: list[Finding] = []
    normalized = [arm for arm in setting.deepest if arm.usual_batch_norm and arm.initial_rank]
    for bare in (arm for arm in setting.deepest if arm.vanilla and arm.initial_rank):
        for other in normalized:
            low, high = max(bare.initial_rank.values()), min(other.initial_rank.values())
            said = (
                f"{setting.depths[-1]} layers: r = {_ranks_of(bare)} ({bare.name}), {_ranks_of(other)} ({other.name}), "
                f"n={len(bare.initial_rank)}"
            )
            found.append((low < COLLAPSED and high > 2 * low, said))
    return found


def _ranks_of(arm: Arm) -> str:
    return spread(list(arm.initial_rank.values()))


def _falls(setting: Setting, wanted: Callable[[Arm], bool], judge: Callable[[Arm, Arm], bool | None]) -> list[Finding]:
    """Each kind of arm at its greatest depth against its least."""
    found: list[Finding] = []
    for name, arms in setting.by_name().items():
        trained = [arm for arm in arms if arm.final and wanted(arm)]
        if len(trained) < 2:
            continue
        first, last = trained[0], trained[-1]
        said = ", ".join(f"{arm.experiment.depth}: {percent(arm.final.values())}" for arm in trained)
        change = points(paired(last.final, first.final))
        found.append((judge(first, last), f"{name}: {said} % by depth (change {change} points, n={len(last.final)})"))
    return found


def _fallen(first: Arm, last: Arm) -> bool | None:
    direction = sign(paired(last.final, first.final))
    return direction < 0 if direction else None


def _kept(first: Arm, last: Arm) -> bool | None:
    found = paired(last.final, first.final)
    if found is None:
        return None
    if found.mean >= -NO_FALL:
        return True
    return False if sign(found) < 0 else None


def _crucial(settings: Sequence[Setting]) -> Claim:
    """Rank against accuracy over all arms and depths of a setting, and the arms that contradict it."""
    text = "A high rank at initialization is crucial for training: rank predicts accuracy"
    said, holdings = [], []
    for setting in settings:
        arms = [arm for arm in setting.arms if arm.final and arm.initial_rank]
        if len(arms) < 3:
            continue
        lost = [arm for arm in setting.arms if arm.lost and min(arm.initial_rank.values(), default=0.0) > HIGH]
        holding, evidence = _predicts(arms, lost)
        holdings.append(holding)
        said.append(f"{setting.title}: {evidence}")
    holding = holdings[0] if len(set(holdings)) == 1 else ("in part" if holdings else "not run")
    return Claim(text, f"{PAPER}, contributions", holding, "; ".join(said))


def _predicts(arms: Sequence[Arm], lost: Sequence[Arm]) -> tuple[Holding, str]:
    from flbench.report.correlation import spearman

    pairs = [
        (arm.initial_rank[seed], accuracy, place, arm.experiment.depth)
        for place, arm in enumerate(arms)
        for seed, accuracy in arm.final.items()
        if seed in arm.initial_rank
    ]
    ranks, accuracies, places, depths = zip(*pairs, strict=True)
    found = spearman(ranks, accuracies, places)
    low, high = found.interval or (None, None)
    against = [_told(arm) for arm in [*(arm for arm in arms if _contradicts(arm, arms)), *lost]]
    evidence = f"rank correlation {_rho(found)} (n={found.n} in {found.groups} arms)"
    if len(set(depths)) > 1:
        evidence += f", among arms of equal depth {_rho(spearman(ranks, accuracies, places, strata=depths))}"
    if against:
        evidence += f"; against it: {', '.join(against)}"
    positive = low is not None and low > 0
    if positive:
        return ("in part" if against else "holds"), evidence
    if against or (high is not None and high < 0):
        return "does not hold", evidence
    return "inconclusive", evidence


def _rho(found: Correlation) -> str:
    return "undefined" if found.rho is None else f"{found.rho:.2f}{interval(*(found.interval or (None, None)))}"


def _contradicts(arm: Arm, arms: Sequence[Arm]) -> bool:
    """Trains on a collapsed rank, or does not on a high one, beside the best arm of its depth."""
    rank, accuracy = fmean(arm.initial_rank.values()), fmean(arm.final.values())
    best = max(fmean(one.final.values()) for one in arms if one.experiment.depth == arm.experiment.depth)
    return accuracy > best - NEAR if rank < COLLAPSED else rank > HIGH and accuracy < best / 2


def _told(arm: Arm) -> str:
    end = "diverged" if arm.lost else f"{percent(arm.final.values())} %"
    return f"{arm.name} at {arm.experiment.depth} layers, r = {_ranks_of(arm)}, {end}"


def _breaks(setting: Setting) -> list[Finding]:
    """The greatest shift against none; all of them are told."""
    found: list[Finding] = []
    for depth in setting.depths:
        arms = [
            arm
            for arm in setting.arms
            if arm.experiment.depth == depth and arm.experiment.normalized == "bn" and arm.final and arm.initial_rank
        ]
        usual, shifted = [a for a in arms if a.usual_batch_norm], [a for a in arms if a.experiment.shift > 0]
        if not usual or not shifted:
            continue
        first, last = usual[0], shifted[-1]
        lower = max(last.initial_rank.values()) < min(COLLAPSED, *first.initial_rank.values())
        direction = sign(paired(last.final, first.final))
        outcome = lower and direction < 0 if direction or not lower else None
        doses = "; ".join(
            f"{format_scalar(arm.experiment.shift)}: r = {_ranks_of(arm)}, {percent(arm.final.values())} %"
            for arm in [first, *shifted]
        )
        change = points(paired(last.final, first.final))
        found.append((outcome, f"shift {doses} (change {change} points, {depth} layers, n={len(first.final)})"))
    return found
