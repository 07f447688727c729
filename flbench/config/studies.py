"""Studies of the why: networks that are looked at, and perhaps trained, for what the papers predict of them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from flbench.config.base import BaseExperiment, Check, Rounds, Spelling, Whole
from flbench.registry import Component

Positive = Annotated[Whole, Field(ge=1)]


def _something_to_train(lr: float | None, rounds: int) -> str | None:
    return f"nothing trains without lr: rounds must be 0, got {rounds}" if lr is None and rounds else None


def _enough_outputs(normalized: str, outputs: int) -> str | None:
    # Over two outputs layer normalization only leaves their order, and the Fisher information is zero.
    return f"{normalized} needs at least 3 outputs, got {outputs}" if normalized == "ln-all" and outputs < 3 else None


def _enough_samples(normalized: str, samples: int | None, width: int) -> str | None:
    count = width if samples is None else samples
    over_samples = normalized.startswith(("mean", "bn"))
    return f"{normalized} is over samples, and there is only {count}" if over_samples and count < 2 else None


def _samples(samples: int | None, width: int) -> int | None:
    return None if samples == width else samples


def _if_pretrained(default: Any, value: Any, steps: int) -> Any:
    return value if steps else default


_SAMPLES = Spelling("samples", ("samples", "width"), _samples)


class Sharpness(BaseExperiment):
    """The Fisher information of a random network of equal widths, as drawn or followed through gradient descent.

    Karakida et al. 2019, The Normalization Method for Alleviating Pathological Sharpness in Wide Neural Networks. With
    ``lr`` a round is a step of full-batch gradient descent towards the outputs of a teacher, another such network.
    """

    checks: ClassVar[tuple[Check, ...]] = (
        *BaseExperiment.checks,
        Check(("lr", "rounds"), "rounds", _something_to_train),
        Check(("normalized", "outputs"), "outputs", _enough_outputs),
        Check(("normalized", "samples", "width"), "samples", _enough_samples),
    )
    spellings: ClassVar[tuple[Spelling, ...]] = (_SAMPLES,)

    kind: Literal["sharpness"] = "sharpness"
    rounds: Rounds = Field(default=0, ge=0, description="steps of gradient descent; 0: the network as it is drawn")
    activation: Literal["relu", "tanh", "linear", "erf", "sigmoid", "leaky-relu"] = Field(
        default="relu", description="activation function of the hidden layers"
    )
    normalized: Literal["none", "mean-last", "mean-middle", "bn-last", "bn-middle", "bn-all", "ln-all"] = Field(
        default="none",
        description="mean subtraction, batch or layer normalization, and in which layers",
    )
    width: Whole = Field(default=100, ge=1, description="units of every hidden layer, and inputs (M)")
    layers: Whole = Field(default=3, ge=1, description="layers of weights, the readout among them (L)")
    outputs: Whole = Field(default=1, ge=1, description="outputs (C)")
    samples: Positive | None = Field(default=None, description="Gaussian inputs (T); default: as many as the width")
    sigma_w2: float = Field(default=2.0, gt=0, description="variance of a weight times the width of the layer before")
    sigma_b2: float = Field(default=0.0, ge=0, description="variance of a bias")
    lr: float | None = Field(default=None, gt=0, description="learning rate; without one nothing trains")
    spectrum: bool = Field(default=False, description="compute all nonzero eigenvalues, not the largest alone")
    precision: Literal["fp64", "fp32"] = Field(default="fp64", description="arithmetic")

    @classmethod
    def headline_of(cls, raw: Mapping[str, Any]) -> str:
        """The largest eigenvalue of the Fisher information."""
        return "lambda_max"


class Rank(BaseExperiment):
    """Ranks over the depth of a random network on Gaussian inputs; a round is a layer.

    Daneshmand et al. 2020, Batch Normalization Provably Avoids Rank Collapse for Randomly Initialised Deep Networks.
    """

    checks: ClassVar[tuple[Check, ...]] = (
        *BaseExperiment.checks,
        Check(("normalized", "samples", "width"), "samples", _enough_samples),
    )
    spellings: ClassVar[tuple[Spelling, ...]] = (_SAMPLES,)

    kind: Literal["rank"] = "rank"
    rounds: Rounds = Field(default=32, ge=0, description="layers; raising it extends finished networks")
    activation: Literal["linear", "relu"] = Field(default="linear", description="activation function")
    normalized: Literal["none", "bn-rms", "bn"] = Field(
        default="none",
        description="batch normalization of every layer, or as in the paper without centring",
    )
    width: Whole = Field(default=32, ge=1, description="units of every layer, and inputs (d)")
    samples: Positive | None = Field(default=None, description="Gaussian inputs (N); default: as many as the width")
    gamma: float | None = Field(
        default=None, gt=0, description="strength of the layers beside a residual path; default: no such path"
    )

    @classmethod
    def headline_of(cls, raw: Mapping[str, Any]) -> str:
        """The effective rank after the last layer."""
        return "rank"


class Deep(BaseExperiment):
    """A deep ReLU MLP on a data set: the ranks of its layers as drawn, pre-trained, and trained; a round is an epoch.

    Daneshmand et al. 2020, figures 1, 3 and 4.
    """

    kind: Literal["deep"] = "deep"
    checks: ClassVar[tuple[Check, ...]] = (
        *BaseExperiment.checks,
        Check(("lr", "rounds"), "rounds", _something_to_train),
    )
    spellings: ClassVar[tuple[Spelling, ...]] = (
        Spelling("pretrain_optimizer", ("pretrain_optimizer", "pretrain_steps"), partial(_if_pretrained, "adam")),
        Spelling("pretrain_lr", ("pretrain_lr", "pretrain_steps"), partial(_if_pretrained, 1e-3)),
    )

    rounds: Rounds = Field(default=0, ge=0, description="epochs of training; 0: the network as it is drawn")
    dataset: Component = Field(default="digits", validate_default=True, description="data set")
    samples: Positive | None = Field(default=None, description="training samples used; default: all")
    normalized: Literal["none", "bn"] = Field(default="none", description="batch normalization before every ReLU")
    depth: Whole = Field(default=32, ge=1, description="hidden layers")
    width: Whole = Field(default=128, ge=1, description="units of every hidden layer")
    init: Literal["torch", "he"] = Field(default="torch", description="weights: U(-b, b), b = 1/sqrt(fan in), or He's")
    shift: float = Field(default=0.0, ge=0, description="moves torch's weights to U(-b + shift b, b + shift b)")
    pretrain_steps: Whole = Field(default=0, ge=0, description="steps that raise each layer's rank before training")
    pretrain_optimizer: Literal["adam", "sgd"] = Field(default="adam", description="optimizer of these steps")
    pretrain_lr: float = Field(default=1e-3, gt=0, description="step size of these steps")
    rescale: bool = Field(
        default=False, description="scale each layer to He's root mean square before training; alone it is the control"
    )
    lr: float | None = Field(default=None, gt=0, description="learning rate of SGD; without one nothing trains")
    batch_size: Whole = Field(default=128, ge=2, description="samples in a mini-batch")

    @classmethod
    def headline_of(cls, raw: Mapping[str, Any]) -> str:
        """Accuracy where the network is trained, else the effective rank of its last hidden layer."""
        return "rank" if raw.get("lr") is None else "test_acc"
