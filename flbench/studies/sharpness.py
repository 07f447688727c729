"""The kind ``sharpness``: lambda_max of the Fisher information of wide random networks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from flbench.config.base import Check, Experiment, Rounds, Spelling, Whole
from flbench.config.kinds import KINDS
from flbench.studies.choices import Activation, Arithmetic, Normalized
from flbench.studies.experiment import ENOUGH_SAMPLES, SAMPLES, TRAINS, Positive, StudyExperiment

if TYPE_CHECKING:
    from flbench.data.arrays import Data
    from flbench.studies.base import Study


#: Over two outputs layer normalization only leaves their order, and the Fisher information is zero.
_ENOUGH_OUTPUTS = Check(
    ("normalized", "outputs"),
    "outputs",
    lambda norm, outputs: (
        f"{norm} needs at least 3 outputs, got {outputs}" if norm == "ln-all" and outputs < 3 else None
    ),
)


@KINDS.register
class Sharpness(StudyExperiment):
    """The Fisher information of a random network of equal widths, as drawn or followed through gradient descent.

    Karakida et al. 2019, The Normalization Method for Alleviating Pathological Sharpness in Wide Neural Networks. With
    ``lr`` a round is a step of full-batch gradient descent towards the outputs of a teacher, another such network.
    """

    checks: ClassVar[tuple[Check, ...]] = (*StudyExperiment.checks, TRAINS, _ENOUGH_OUTPUTS, ENOUGH_SAMPLES)
    spellings: ClassVar[tuple[Spelling, ...]] = (SAMPLES,)
    problem: ClassVar[frozenset[str]] = Experiment.problem | {
        *("activation", "width", "layers", "outputs", "samples", "sigma_w2", "sigma_b2")
    }
    lists: ClassVar[Mapping[str, int]] = {"sigmas": 1, "spectrum": 1}

    kind: Literal["sharpness"] = "sharpness"
    rounds: Rounds = Field(default=0, ge=0, description="steps of gradient descent; 0: the network as it is drawn")
    activation: Activation = Field(default="relu", description="activation function of the hidden layers")
    normalized: Normalized = Field(
        default="none", description="mean subtraction, batch or layer normalization, and in which layers"
    )
    width: Whole = Field(default=100, ge=1, description="units of every hidden layer, and inputs (M)")
    layers: Whole = Field(default=3, ge=1, description="layers of weights, the readout among them (L)")
    outputs: Whole = Field(default=1, ge=1, description="outputs (C)")
    samples: Positive | None = Field(default=None, description="Gaussian inputs (T); default: as many as the width")
    sigma_w2: float = Field(default=2.0, gt=0, description="variance of a weight times the width of the layer before")
    sigma_b2: float = Field(default=0.0, ge=0, description="variance of a bias")
    lr: float | None = Field(default=None, gt=0, description="learning rate; without one nothing trains")
    spectrum: bool = Field(default=False, description="compute all nonzero eigenvalues, not the largest alone")
    precision: Arithmetic = Field(default="fp64", description="arithmetic")

    @classmethod
    def headline_of(cls, raw: Mapping[str, Any]) -> str:
        return "lambda_max"

    @property
    def arithmetic(self) -> Arithmetic:
        return self.precision

    def study(self, data: Data | None, device: str) -> Study:
        import torch

        from flbench.studies.gaussian_network import GaussianNetwork
        from flbench.studies.sharpness_study import SharpnessOfDraw

        network = GaussianNetwork(
            widths=(*[self.width] * self.layers, self.outputs),
            activation=self.activation,
            normalized=self.normalized,
            sigma_w2=self.sigma_w2,
            sigma_b2=self.sigma_b2,
        )
        return SharpnessOfDraw(
            network,
            samples=self.samples or self.width,
            lr=self.lr,
            spectrum=self.spectrum,
            seed=self.seed,
            dtype=torch.float64 if self.precision == "fp64" else torch.float32,
            device=device,
        )
