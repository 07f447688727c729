"""The kind ``deep``: deep ReLU MLPs on a data set, as drawn, pre-trained and trained."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from flbench.config.base import Check, Derived, Experiment, Rounds, Spelling, Whole
from flbench.config.kinds import KINDS
from flbench.registry import Component
from flbench.studies.choices import Arithmetic, DeepNorm, Init, Optimizer, PretrainVariant
from flbench.studies.experiment import TRAINS, Positive, StudyExperiment

if TYPE_CHECKING:
    from flbench.data.arrays import Data
    from flbench.studies.base import Study

#: Optimizer and step size of each variant of pre-training; the poster names neither.
PRETRAIN_STEPS: Mapping[PretrainVariant, tuple[Optimizer, float]] = {"text": ("adam", 1e-3), "code": ("sgd", 0.1)}


def _if_pretrained(default: Any, value: Any, steps: int) -> Any:
    return value if steps else default


@KINDS.register
class Deep(StudyExperiment):
    """A deep ReLU MLP on a data set: the ranks of its layers as drawn, pre-trained, and trained; a round is an epoch.

    Daneshmand et al. 2020, figures 1, 3 and 4.
    """

    kind: Literal["deep"] = "deep"
    checks: ClassVar[tuple[Check, ...]] = (*StudyExperiment.checks, TRAINS)
    derived: ClassVar[tuple[Derived, ...]] = (
        Derived("pretrain_optimizer", "pretrain_variant", lambda variant: PRETRAIN_STEPS[variant][0]),
        Derived("pretrain_lr", "pretrain_variant", lambda variant: PRETRAIN_STEPS[variant][1]),
    )
    spellings: ClassVar[tuple[Spelling, ...]] = (
        Spelling("pretrain_variant", ("pretrain_variant", "pretrain_steps"), partial(_if_pretrained, "text")),
        Spelling("pretrain_optimizer", ("pretrain_optimizer", "pretrain_steps"), partial(_if_pretrained, "adam")),
        Spelling("pretrain_lr", ("pretrain_lr", "pretrain_steps"), partial(_if_pretrained, 1e-3)),
    )
    problem: ClassVar[frozenset[str]] = Experiment.problem | {"dataset", "samples", "depth", "width"}
    lists: ClassVar[Mapping[str, int]] = {"ranks": 1}
    arithmetic: ClassVar[Arithmetic] = "fp32"

    rounds: Rounds = Field(default=0, ge=0, description="epochs of training; 0: the network as it is drawn")
    dataset: Component = Field(default="digits", validate_default=True, description="data set")
    samples: Positive | None = Field(default=None, description="training samples used; default: all")
    normalized: DeepNorm = Field(default="none", description="batch normalization before every ReLU")
    depth: Whole = Field(default=32, ge=1, description="hidden layers")
    width: Whole = Field(default=128, ge=1, description="units of every hidden layer")
    init: Init = Field(default="torch", description="weights: U(-b, b), b = 1/sqrt(fan in); He's, or Glorot's")
    shift: float = Field(default=0.0, ge=0, description="moves torch's weights to U(-b + shift b, b + shift b)")
    pretrain_steps: Whole = Field(default=0, ge=0, description="steps that raise each layer's rank before training")
    pretrain_variant: PretrainVariant = Field(
        default="text", description="each layer alone; or as the authors' code: every fourth, with all before it"
    )
    pretrain_optimizer: Optimizer = Field(default="adam", description="optimizer of these steps; default of code: sgd")
    pretrain_lr: float = Field(default=1e-3, gt=0, description="step size of these steps; default of code: 0.1")
    rescale: bool = Field(
        default=False, description="scale each layer to He's root mean square before training; alone it is the control"
    )
    lr: float | None = Field(default=None, gt=0, description="learning rate of SGD; without one nothing trains")
    batch_size: Whole = Field(default=128, ge=2, description="samples in a mini-batch")

    @classmethod
    def headline_of(cls, raw: Mapping[str, Any]) -> str:
        """Return accuracy where the network is trained, else the effective rank of its last hidden layer."""
        return "rank" if raw.get("lr") is None else "test_acc"

    def study(self, data: Data | None, device: str) -> Study:
        """Return the network, pre-trained where that is asked for."""
        import torch

        from flbench.studies.deep_study import DeepMlp, DeepTraining, Pretraining, standardized

        assert data is not None
        train, test = standardized(data.train.images[: self.samples], data.test.images)
        # Copies: the data set's own arrays are read-only.
        train_labels, test_labels = (
            torch.from_numpy(labels.astype("int64")).to(device)
            for labels in (data.train.labels[: self.samples], data.test.labels)
        )
        pretraining = Pretraining(
            self.pretrain_steps, self.pretrain_variant, self.pretrain_optimizer, self.pretrain_lr, self.rescale
        )
        return DeepTraining(
            DeepMlp(self.depth, self.width, self.normalized, self.init, self.shift),
            pretraining if self.pretrain_steps or self.rescale else None,
            train=(train.to(device), train_labels),
            test=(test.to(device), test_labels),
            classes=data.classes,
            lr=self.lr,
            batch_size=self.batch_size,
            seed=self.seed,
        )
