"""Deep networks as a report sees them: arms that are compared, each at the best of its learning rates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Any

from flbench.messages import format_scalar
from flbench.report.cells import grouped, public
from flbench.report.runs import Collection, Run
from flbench.studies.deep import Deep

Record = Mapping[str, Any]
BySeed = Mapping[int, float]


@dataclass(frozen=True)
class Trial:
    """All seeds of one network at one learning rate (or none: then nothing was trained).

    Attributes:
        runs: one a seed.
        records: by seed and epoch, of those that have a result; diverged ones end early.
    """

    runs: tuple[Run, ...]
    records: Mapping[int, Mapping[int, Record]]

    @property
    def lr(self) -> float | None:
        """Its learning rate."""
        return _deep(self.runs[0]).lr

    @property
    def diverged(self) -> int:
        """How many seeds diverged."""
        return sum(run.state == "diverged" for run in self.runs)

    def at(self, epoch: int, name: str) -> dict[int, float]:
        """A number of every seed that has it after an epoch."""
        found = {seed: epochs[epoch].get(name) for seed, epochs in self.records.items() if epoch in epochs}
        return {seed: value for seed, value in found.items() if value is not None}


@dataclass(frozen=True)
class Arm:
    """One way to initialize and normalize a network of one depth, at several learning rates."""

    trials: tuple[Trial, ...]

    @property
    def experiment(self) -> Deep:
        """Any of its experiments: they differ by seed and learning rate."""
        return _deep(self.trials[0].runs[0])

    @property
    def epochs(self) -> int:
        """How long it was to train."""
        return self.trials[0].runs[0].rounds

    @property
    def name(self) -> str:
        """What it is called, its depth apart."""
        return arm_name(self.experiment)

    @property
    def pretrained(self) -> bool:
        """Whether its ranks were raised before training."""
        return self.experiment.pretrain_steps > 0

    @property
    def vanilla(self) -> bool:
        """Whether it is as drawn, on centre, and without normalization."""
        request = self.experiment
        return request.normalized == "none" and not (request.pretrain_steps or request.rescale or request.shift)

    @property
    def usual_batch_norm(self) -> bool:
        """Whether it has batch normalization and weights on centre."""
        request = self.experiment
        return request.normalized == "bn" and not (request.pretrain_steps or request.rescale or request.shift)

    @cached_property
    def initial(self) -> Mapping[int, Record]:
        """Each seed's record before training: no learning rate matters to it."""
        found: dict[int, Record] = {}
        for trial in self.trials:
            found |= {seed: epochs[0] for seed, epochs in trial.records.items() if 0 in epochs}
        return found

    @property
    def initial_rank(self) -> dict[int, float]:
        """Each seed's r of the last hidden layer before training."""
        return {seed: one["rank"] for seed, one in self.initial.items() if one.get("rank") is not None}

    def best(self, epoch: int) -> Trial | None:
        """The trial of the highest mean training accuracy after an epoch, among those with most seeds left."""
        scored = [(trial, values) for trial in self.trials if (values := trial.at(epoch, "train_acc"))]
        if not scored:
            return None
        return max(scored, key=lambda pair: (len(pair[1]), fmean(pair[1].values())))[0]

    def accuracy(self, epoch: int, name: str = "train_acc") -> BySeed:
        """Each seed's accuracy after an epoch, at the learning rate that is best then."""
        best = self.best(epoch)
        return best.at(epoch, name) if best else {}

    @property
    def final(self) -> BySeed:
        """Each seed's training accuracy in the end."""
        return self.accuracy(self.epochs)

    @property
    def unfinished(self) -> int:
        """Runs without a result."""
        return sum(run.result is None for trial in self.trials for run in trial.runs)

    @property
    def lost(self) -> bool:
        """Whether nothing of it is left in the end: all that was run diverged."""
        return not self.final and not self.unfinished and any(trial.diverged for trial in self.trials)

    @property
    def recorded(self) -> list[int]:
        """Epochs that some seed recorded, the beginning apart."""
        found = {epoch for trial in self.trials for epochs in trial.records.values() for epoch in epochs}
        return sorted(found - {0})


@dataclass(frozen=True)
class Setting:
    """Arms on the same data for as long, with the same learning rates.

    Attributes:
        arms: by depth, then in the order of tables.
    """

    arms: tuple[Arm, ...]

    @property
    def title(self) -> str:
        """``fashion_mnist, 4096 samples, width 128, 15 epochs``."""
        request = self.arms[0].experiment
        samples = f"{request.samples} samples" if request.samples else "all samples"
        return f"{public(request.dataset.label())}, {samples}, width {request.width}, {self.arms[0].epochs} epochs"

    @property
    def rates(self) -> list[float]:
        """The learning rates."""
        return sorted({trial.lr for arm in self.arms for trial in arm.trials if trial.lr is not None})

    @property
    def depths(self) -> list[int]:
        """The depths, in order."""
        return sorted({arm.experiment.depth for arm in self.arms})

    @property
    def deepest(self) -> list[Arm]:
        """The arms of the greatest depth."""
        return [arm for arm in self.arms if arm.experiment.depth == self.depths[-1]]

    def shown_epochs(self) -> list[int]:
        """Up to four of the recorded epochs, the last among them."""
        recorded = sorted({epoch for arm in self.arms for epoch in arm.recorded})
        usual = [epoch for epoch in recorded if epoch in (5, 10, 20, 30, 50, 75)]
        return sorted({*usual[:4], *recorded[-1:]})

    def by_name(self) -> dict[str, list[Arm]]:
        """Arms that differ in their depth alone, by depth."""
        found: dict[str, list[Arm]] = {}
        for arm in self.arms:
            found.setdefault(arm.name, []).append(arm)
        return found


def settings_of(runs: Sequence[Run], collection: Collection) -> list[Setting]:
    """What was compared; learning rates that not all arms of a depth were to have are left out."""
    found = []
    for members in grouped(runs, _setting):
        arms = [_arm(same, collection) for same in grouped(members, lambda run: _place(_deep(run)))]
        depths = grouped(arms, lambda arm: arm.experiment.depth)
        found.append(Setting(tuple(arm for same in depths for arm in _at_common_rates(same))))
    return found


def _at_common_rates(arms: Sequence[Arm]) -> list[Arm]:
    """The arms with equal chances; as they are where they have no rate in common."""
    common = set.intersection(*({trial.lr for trial in arm.trials} for arm in arms))
    if not common:
        return list(arms)
    return [Arm(tuple(trial for trial in arm.trials if trial.lr in common)) for arm in arms]


def _arm(runs: Sequence[Run], collection: Collection) -> Arm:
    trials = []
    for same in grouped(runs, lambda run: _deep(run).lr or 0.0):
        done = [run for run in same if run.result is not None]
        records = {run.experiment.seed: {record["round"]: record for record in collection.records(run)} for run in done}
        trials.append(Trial(tuple(same), records))
    return Arm(tuple(trials))


def _deep(run: Run) -> Deep:
    assert isinstance(run.experiment, Deep)
    return run.experiment


def _setting(run: Run) -> tuple[Any, ...]:
    request = _deep(run)
    return request.dataset.label(), request.samples or 0, request.width, request.batch_size, run.rounds


def _place(request: Deep) -> tuple[Any, ...]:
    """Where an arm stands: without normalization, rescaled, pre-trained, with batch normalization, shifted."""
    raised = (
        (request.pretrain_steps, request.pretrain_optimizer, request.pretrain_lr)
        if request.pretrain_steps
        else (0, "", 0.0)
    )
    return request.depth, request.normalized == "bn", request.shift, request.rescale, *raised, request.init == "he"


def arm_name(request: Deep) -> str:
    """``He's init``, ``rescaled only``, ``25 steps on the rank``, ``BN``, ``BN, shift 0.1``."""
    init = "He's init" if request.init == "he" else "torch's init"
    if request.pretrain_steps:
        parts = [f"{request.pretrain_steps} steps on the rank"]
        parts += [] if request.pretrain_optimizer == "adam" else [request.pretrain_optimizer]
        parts += [] if request.pretrain_lr == 1e-3 else [f"step size {format_scalar(request.pretrain_lr)}"]
        parts += [] if request.rescale else ["not rescaled"]
        usual = "he"
    elif request.rescale:
        parts, usual = ["rescaled only"], "he"
    else:
        parts, usual = (["BN"], "torch") if request.normalized == "bn" else ([init], request.init)
    parts += [] if request.init == usual else [init]
    parts += ["BN"] if request.normalized == "bn" and parts[0] != "BN" else []
    return ", ".join([*parts, *([f"shift {format_scalar(request.shift)}"] if request.shift else [])])
