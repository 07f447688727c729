"""Deep networks that were trained: arms that are compared, each at the best of its learning rates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean
from typing import Any

from flbench.messages import format_scalar
from flbench.papers.evidence import mean_text
from flbench.report.cells import grouped
from flbench.report.runs import Collection, Run
from flbench.report.ticks import tick
from flbench.studies.choices import Init
from flbench.studies.deep import PRETRAIN_STEPS, Deep

#: The initializations, as arms name them.
INITS: Mapping[Init, str] = {"torch": "torch's init", "he": "He's init", "glorot": "Glorot's init"}

#: Epochs of the paper's networks, on all samples.
PAPER_EPOCHS = 75

#: An accuracy that gains more than this in the last third of its epochs still rises.
RISE = 0.01

Record = Mapping[str, Any]
BySeed = Mapping[int, float]


@dataclass(frozen=True)
class Trial:
    """All seeds of one network at one learning rate, or at none if nothing was trained."""

    runs: tuple[Run, ...]  # one a seed
    records: Mapping[int, Mapping[int, Record]]  # by seed and epoch; diverged seeds end early

    @property
    def lr(self) -> float | None:
        """The learning rate."""
        return experiment_of(self.runs[0]).lr

    @property
    def diverged(self) -> int:
        """The number of seeds that diverged."""
        return sum(run.state == "diverged" for run in self.runs)

    def at(self, epoch: int, name: str) -> dict[int, float]:
        """Return a recorded number after an epoch, by seed."""
        found = {seed: epochs[epoch].get(name) for seed, epochs in self.records.items() if epoch in epochs}
        return {seed: value for seed, value in found.items() if value is not None}


@dataclass(frozen=True)
class Arm:
    """One way to initialize and normalize a network of one depth, at several learning rates."""

    trials: tuple[Trial, ...]

    @property
    def experiment(self) -> Deep:
        """Any of its experiments: they differ by seed and learning rate."""
        return experiment_of(self.trials[0].runs[0])

    @property
    def epochs(self) -> int:
        """The number of epochs it was to train."""
        return self.trials[0].runs[0].rounds

    @property
    def name(self) -> str:
        """Its name without its depth: ``He's init``, ``25 steps on the rank``, ``BN``, ``BN, shift 0.1``."""
        experiment = self.experiment
        init = INITS[experiment.init]
        if experiment.pretrain_steps:
            is_text, (optimizer, lr) = (
                experiment.pretrain_variant == "text",
                PRETRAIN_STEPS[experiment.pretrain_variant],
            )
            parts, usual = [f"{experiment.pretrain_steps} steps on the rank"], "he" if is_text else "glorot"
            parts += [] if is_text else ["as in the code"]
            parts += [] if experiment.pretrain_optimizer == optimizer else [experiment.pretrain_optimizer]
            parts += [] if experiment.pretrain_lr == lr else [f"step size {format_scalar(experiment.pretrain_lr)}"]
            parts += [] if experiment.rescale is is_text else ["rescaled" if experiment.rescale else "not rescaled"]
        elif experiment.rescale:
            parts, usual = ["rescaled only"], "he"
        elif experiment.normalized == "bn":
            parts, usual = ["BN"], "torch"
        else:
            parts, usual = [init], experiment.init
        parts += [] if experiment.init == usual else [init]
        parts += ["BN"] if experiment.normalized == "bn" and parts[0] != "BN" else []
        parts += [f"shift {format_scalar(experiment.shift)}"] if experiment.shift else []
        return ", ".join(parts)

    @property
    def way_of_pretraining(self) -> tuple[str, str, float, bool, str]:
        """What arms that differ by their steps on the rank alone have in common."""
        one = self.experiment
        return one.pretrain_variant, one.pretrain_optimizer, one.pretrain_lr, one.rescale, one.init

    @property
    def is_pretrained(self) -> bool:
        """Whether its ranks were raised before training."""
        return self.experiment.pretrain_steps > 0

    @property
    def is_plain(self) -> bool:
        """Whether it has no normalization, and weights as drawn and centred."""
        return self.experiment.normalized == "none" and self._is_as_drawn

    @property
    def is_batch_norm(self) -> bool:
        """Whether it has batch normalization, and weights as drawn and centred."""
        return self.experiment.normalized == "bn" and self._is_as_drawn

    @property
    def is_control(self) -> bool:
        """Whether it is rescaled like the pre-trained arms, and not pre-trained."""
        experiment = self.experiment
        return experiment.normalized == "none" and experiment.rescale and not experiment.pretrain_steps

    def is_without_pretraining_of(self, other: Arm) -> bool:
        """Whether it is like a pre-trained arm but for the pre-training."""
        one, of = self.experiment, other.experiment
        is_like = (one.normalized, one.shift, one.init, one.rescale) == (of.normalized, of.shift, of.init, of.rescale)
        return is_like and not one.pretrain_steps

    @property
    def _is_as_drawn(self) -> bool:
        return not (self.experiment.pretrain_steps or self.experiment.rescale or self.experiment.shift)

    @cached_property
    def initial(self) -> Mapping[int, Record]:
        """Each seed's record before training, which depends on no learning rate."""
        found: dict[int, Record] = {}
        for trial in self.trials:
            found |= {seed: epochs[0] for seed, epochs in trial.records.items() if 0 in epochs}
        return found

    @property
    def initial_rank(self) -> dict[int, float]:
        """Each seed's r of the last hidden layer before training."""
        return {seed: one["rank"] for seed, one in self.initial.items() if one.get("rank") is not None}

    @property
    def initial_rank_text(self) -> str:
        """The mean over seeds of that r, with its interval."""
        return mean_text(list(self.initial_rank.values()))

    def best(self, epoch: int) -> Trial | None:
        """Return the trial of the highest mean training accuracy after an epoch, among those with most seeds left."""
        scored = [(trial, values) for trial in self.trials if (values := trial.at(epoch, "train_acc"))]
        if not scored:
            return None
        return max(scored, key=lambda pair: (len(pair[1]), fmean(pair[1].values())))[0]

    def at_best(self, epoch: int, name: str = "train_acc") -> BySeed:
        """Return a number of each seed after an epoch, at the learning rate that is best then."""
        best = self.best(epoch)
        return best.at(epoch, name) if best else {}

    @property
    def final(self) -> BySeed:
        """Each seed's training accuracy at the end."""
        return self.at_best(self.epochs)

    @property
    def still_rises(self) -> bool:
        """Whether training is shorter than the paper's and the accuracy still rises: where it ends is not known."""
        earlier = [epoch for epoch in [0, *self.recorded] if 3 * epoch <= 2 * self.epochs]
        before = self.at_best(earlier[-1])
        if (self.experiment.samples is None and self.epochs >= PAPER_EPOCHS) or not (before and self.final):
            return False
        return fmean(self.final.values()) - fmean(before.values()) > RISE

    @property
    def is_recorded(self) -> bool:
        """Whether some run has records."""
        return any(trial.records for trial in self.trials)

    @property
    def unfinished(self) -> int:
        """The number of runs without a result."""
        return sum(run.result is None for trial in self.trials for run in trial.runs)

    @property
    def has_diverged(self) -> bool:
        """Whether all its runs diverged."""
        return not self.final and not self.unfinished and any(trial.diverged for trial in self.trials)

    @property
    def recorded(self) -> list[int]:
        """The epochs after which some seed recorded."""
        found = {epoch for trial in self.trials for epochs in trial.records.values() for epoch in epochs}
        return sorted(found - {0})


@dataclass(frozen=True)
class Setting:
    """Arms on the same data, trained for as long, with the same learning rates."""

    arms: tuple[Arm, ...]  # by depth, then in the order of tables
    trained_longer: frozenset[str] = frozenset()  # names of arms that another setting trains longer, at several depths

    @property
    def key(self) -> tuple[Any, ...]:
        """What its runs share: data set, samples, width, batch size and, last, epochs."""
        return _setting_key(self.arms[0].trials[0].runs[0])

    @property
    def title(self) -> str:
        """``fashion_mnist, 4096 samples, width 128, 15 epochs``, and batches of another size than usual."""
        first = self.arms[0].experiment
        samples = f"{first.samples} samples" if first.samples else "all samples"
        usual = type(first).model_fields["batch_size"].default
        batches = [] if first.batch_size == usual else [f"batches of {first.batch_size}"]
        parts = [tick("dataset", first.dataset).label, samples, *batches, f"width {first.width}"]
        return ", ".join([*parts, f"{self.arms[0].epochs} epochs"])

    @property
    def rates(self) -> list[float]:
        """The learning rates."""
        return sorted({trial.lr for arm in self.arms for trial in arm.trials if trial.lr is not None})

    @property
    def depths(self) -> list[int]:
        """The depths, in order."""
        return sorted({arm.experiment.depth for arm in self.arms})

    def at_depth(self, depth: int) -> list[Arm]:
        """Return the arms of a depth."""
        return [arm for arm in self.arms if arm.experiment.depth == depth]

    @property
    def deepest(self) -> list[Arm]:
        """The arms of the greatest depth."""
        return self.at_depth(self.depths[-1])

    def shown_epochs(self) -> list[int]:
        """Return up to five of the recorded epochs, the last among them."""
        recorded = sorted({epoch for arm in self.arms for epoch in arm.recorded})
        usual = [epoch for epoch in recorded if epoch in (5, 10, 20, 30, 50, 75)]
        return sorted({*usual[:4], *recorded[-1:]})

    def by_name(self) -> dict[str, list[Arm]]:
        """Return the arms by name; those of one name differ by their depth alone."""
        found: dict[str, list[Arm]] = {}
        for arm in self.arms:
            found.setdefault(arm.name, []).append(arm)
        return found


def experiment_of(run: Run) -> Deep:
    """Return the experiment of a run of this kind."""
    assert isinstance(run.experiment, Deep)
    return run.experiment


def settings_of(runs: Sequence[Run], collection: Collection) -> list[Setting]:
    """Return the settings; learning rates that not all arms of a depth were to have are left out."""
    found = []
    for members in grouped(runs, _setting_key):
        arms = []
        for at_depth in grouped(members, lambda run: experiment_of(run).depth):
            by_arm = grouped(at_depth, lambda run: _arm_order(experiment_of(run)))
            rates = [{experiment_of(run).lr for run in same} for same in by_arm]
            kept = set.intersection(*rates) or set.union(*rates)
            for same in by_arm:
                by_rate = grouped(same, lambda run: experiment_of(run).lr or 0.0)
                trials = [_trial(one, collection) for one in by_rate if experiment_of(one[0]).lr in kept]
                arms.append(Arm(tuple(trials)))
        found.append(Setting(tuple(arms)))
    return [replace(one, trained_longer=_trained_longer(one, found)) for one in found]


def _trained_longer(setting: Setting, others: Sequence[Setting]) -> frozenset[str]:
    *where, epochs = setting.key
    longer = [one for one in others if [*one.key[:-1]] == where and one.key[-1] > epochs]
    return frozenset(
        name for one in longer for name, arms in one.by_name().items() if sum(bool(arm.final) for arm in arms) > 1
    )


def _setting_key(run: Run) -> tuple[Any, ...]:
    experiment = experiment_of(run)
    return experiment.dataset.label(), experiment.samples or 0, experiment.width, experiment.batch_size, run.rounds


def _trial(runs: Sequence[Run], collection: Collection) -> Trial:
    done = [run for run in runs if run.result is not None]
    records = {run.experiment.seed: {record["round"]: record for record in collection.records(run)} for run in done}
    return Trial(tuple(runs), records)


def _arm_order(experiment: Deep) -> tuple[Any, ...]:
    """Arms of one depth: without normalization, rescaled, pre-trained, with batch normalization, shifted."""
    steps = experiment.pretrain_steps
    kind = (experiment.pretrain_variant, experiment.pretrain_optimizer, experiment.pretrain_lr)
    raised = (steps, *kind) if steps else (0, "", "", 0.0)
    init = list(INITS).index(experiment.init)
    return experiment.normalized == "bn", experiment.shift, experiment.rescale, *raised, init
