"""The kind ``rank``: ranks over the depth of random networks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from flbench.config.base import Check, Experiment, Rounds, Spelling, Whole
from flbench.config.kinds import KINDS
from flbench.studies.choices import Arithmetic, RowNorm
from flbench.studies.experiment import ENOUGH_SAMPLES, SAMPLES, Positive, StudyExperiment

if TYPE_CHECKING:
    from flbench.data.arrays import Data
    from flbench.studies.base import Study


@KINDS.register
class Rank(StudyExperiment):
    """Ranks over the depth of a random network on Gaussian inputs; a round is a layer.

    Daneshmand et al. 2020, Batch Normalization Provably Avoids Rank Collapse for Randomly Initialised Deep Networks.
    """

    checks: ClassVar[tuple[Check, ...]] = (*StudyExperiment.checks, ENOUGH_SAMPLES)
    spellings: ClassVar[tuple[Spelling, ...]] = (SAMPLES,)

    problem: ClassVar[frozenset[str]] = Experiment.problem | {"activation", "width", "samples", "gamma"}
    arithmetic: ClassVar[Arithmetic] = "fp64"

    kind: Literal["rank"] = "rank"
    rounds: Rounds = Field(default=32, ge=0, description="layers; raising it extends finished networks")
    activation: Literal["linear", "relu"] = Field(default="linear", description="activation function")
    normalized: RowNorm = Field(
        default="none", description="batch normalization of every layer, or as in the paper without centring"
    )
    width: Whole = Field(default=32, ge=1, description="units of every layer, and inputs (d)")
    samples: Positive | None = Field(default=None, description="Gaussian inputs (N); default: as many as the width")
    gamma: float | None = Field(
        default=None, gt=0, description="strength of the layers next to a residual path; default: no such path"
    )

    @classmethod
    def headline_of(cls, raw: Mapping[str, Any]) -> str:
        return "rank"

    def study(self, data: Data | None, device: str) -> Study:
        from flbench.studies.rank_study import RankOverDepth

        return RankOverDepth(
            width=self.width,
            samples=self.samples or self.width,
            activation=self.activation,
            norm=self.normalized,
            gamma=self.gamma,
            seed=self.seed,
            device=device,
        )
