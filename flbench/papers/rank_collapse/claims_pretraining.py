"""Claims about ranks that are raised before training: figures 3 and 4 of Daneshmand et al. 2020."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from statistics import fmean

from flbench.papers.rank_collapse.arms import Arm, Setting
from flbench.report.claim_text import percent, points, sign, verdict
from flbench.report.claims import Claim
from flbench.report.stats import paired

PAPER = "Daneshmand et al. 2020"

#: A rank that training changes by no more than this factor keeps its magnitude.
SAME = 2.0

Finding = tuple[bool | None, str]


def claims(settings: Sequence[Setting]) -> list[Claim]:
    """All of them, also those that these runs do not cover."""
    sources = (
        ("Pre-training raises the rank of every layer", "section on optimization, 1", _raises),
        ("A pre-trained network without normalization outperforms batch normalization", "figure 3", _beats_batch_norm),
        ("It is the rank that helps, not the rescaling that comes with pre-training", "our control", _beats_control),
        ("The more pre-training, the better the training", "figure 4", _more_is_better),
        ("SGD keeps the magnitude of the last layer's rank", "figure 4, right", _preserved),
    )
    return [_claim(text, where, settings, find) for text, where, find in sources]


def _claim(text: str, where: str, settings: Sequence[Setting], find: Callable[[Setting], list[Finding]]) -> Claim:
    found = [finding for setting in settings for finding in find(setting)]
    return Claim(
        text, f"{PAPER}, {where}", verdict([outcome for outcome, _ in found]), "; ".join(said for _, said in found)
    )


def _pretrained(setting: Setting) -> list[Arm]:
    return [arm for arm in setting.arms if arm.pretrained]


def _beside(setting: Setting, arm: Arm, wanted: Callable[[Arm], bool]) -> Arm | None:
    """The arm of the same depth that one is compared with."""
    depth = arm.experiment.depth
    return next((one for one in setting.arms if one.experiment.depth == depth and wanted(one)), None)


def _raises(setting: Setting) -> list[Finding]:
    found: list[Finding] = []
    for arm in _pretrained(setting):
        bare = _beside(setting, arm, partial(_is_bare, init=arm.experiment.init))
        if bare is None:
            continue
        seeds = sorted(arm.initial.keys() & bare.initial.keys())
        factors = [
            [high / low for high, low in zip(arm.initial[seed]["ranks"], bare.initial[seed]["ranks"], strict=True)]
            for seed in seeds
        ]
        if factors:
            lasts = [fmean(one.initial_rank[seed] for seed in seeds) for one in (bare, arm)]
            lifted = sum(factor > 1 for one in factors for factor in one)
            total = sum(map(len, factors))
            said = f"{arm.name}: {lifted} of {total} layers, the last from {lasts[0]:.2f} to {lasts[1]:.2f}"
            found.append((lifted == total, f"{said} (n={len(seeds)})"))
    return found


def _is_bare(arm: Arm, init: str) -> bool:
    return arm.vanilla and arm.experiment.init == init


def _beats_batch_norm(setting: Setting) -> list[Finding]:
    return _against(setting, lambda one: one.usual_batch_norm)


def _beats_control(setting: Setting) -> list[Finding]:
    return _against(setting, _is_control)


def _is_control(arm: Arm) -> bool:
    request = arm.experiment
    return request.normalized == "none" and request.rescale and not request.pretrain_steps


def _against(setting: Setting, wanted: Callable[[Arm], bool]) -> list[Finding]:
    """Differences in training accuracy, paired by seed, at equal epochs; the last epoch decides."""
    found: list[Finding] = []
    for arm in _pretrained(setting):
        other = _beside(setting, arm, wanted)
        if other is None or not other.final or not any(trial.records for trial in arm.trials):
            continue
        if not arm.final:
            found.append((False if arm.lost else None, f"{arm.name}: {_fate(arm)}"))
            continue
        gaps = ((epoch, paired(arm.accuracy(epoch), other.accuracy(epoch))) for epoch in setting.shown_epochs())
        said = ", ".join(f"{epoch}: {points(gap)}" for epoch, gap in gaps if gap)
        last = paired(arm.final, other.final)
        lost = f", {_fate(arm)}" if any(trial.diverged for trial in arm.trials) else ""
        n = last.n if last else 0
        found.append((_won(sign(last)), f"{arm.name} less {other.name}, points by epoch: {said} (n={n}{lost})"))
    return found


def _won(direction: int) -> bool | None:
    return direction > 0 if direction else None


def _fate(arm: Arm) -> str:
    """How many of its runs diverged, over all learning rates."""
    return (
        f"{sum(trial.diverged for trial in arm.trials)} of {sum(len(trial.runs) for trial in arm.trials)} runs diverged"
    )


def _more_is_better(setting: Setting) -> list[Finding]:
    """Rescaled arms by their steps; what diverges at every learning rate is below all others."""
    found: list[Finding] = []
    for depth in setting.depths:
        arms = [arm for arm in setting.arms if arm.experiment.depth == depth and (_is_control(arm) or arm.pretrained)]
        scaled = [arm for arm in arms if arm.experiment.rescale and any(trial.records for trial in arm.trials)]
        if len(scaled) < 3:
            continue
        ends = [fmean(arm.final.values()) if arm.final else 0.0 for arm in scaled]
        said = ", ".join(
            f"{arm.experiment.pretrain_steps}: {percent(arm.final.values())} % ({_fate(arm)})" for arm in scaled
        )
        rises = [later > earlier for earlier, later in pairwise(ends)]
        found.append((all(rises), f"by steps, at the best rate: {said}"))
    return found


def _preserved(setting: Setting) -> list[Finding]:
    """Arms of the greatest depth that were trained, each at its best learning rate."""
    found: list[Finding] = []
    for arm in setting.deepest:
        trial = arm.best(arm.epochs)
        after = trial.at(arm.epochs, "rank") if trial else {}
        pairs = [(arm.initial_rank[seed], value) for seed, value in after.items() if seed in arm.initial_rank]
        if pairs:
            kept = [1 / SAME <= late / early <= SAME for early, late in pairs]
            means = (fmean(values) for values in zip(*pairs, strict=True))
            said = " to ".join(f"{mean:.1f}" for mean in means)
            found.append((all(kept), f"{arm.name}: {said} in {arm.epochs} epochs (n={len(pairs)})"))
    return found
