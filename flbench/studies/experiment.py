"""What the experiments of all kinds of study share."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from flbench.config.base import Check, Experiment, Spelling, Whole
from flbench.studies.choices import Arithmetic

if TYPE_CHECKING:
    from flbench.data.arrays import Data
    from flbench.studies.base import Study

Positive = Annotated[Whole, Field(ge=1)]


class StudyExperiment(Experiment):
    """Base of the kinds of study: an experiment that makes its own study."""

    @property
    @abstractmethod
    def arithmetic(self) -> Arithmetic:
        """The precision that the study computes in."""

    @abstractmethod
    def study(self, data: Data | None, device: str) -> Study:
        """Return the study before its first round; ``data`` is the decoded set of a field ``dataset``."""


def _enough_samples(normalized: str, samples: int | None, width: int) -> str | None:
    count = width if samples is None else samples
    over_samples = normalized.startswith(("mean", "bn"))
    return f"{normalized} is over samples, and there is only {count}" if over_samples and count < 2 else None


#: Rounds train, and need a learning rate.
TRAINS = Check(
    ("lr", "rounds"),
    "rounds",
    lambda lr, rounds: f"nothing trains without lr: rounds must be 0, got {rounds}" if lr is None and rounds else None,
)
#: Statistics over samples need two of them.
ENOUGH_SAMPLES = Check(("normalized", "samples", "width"), "samples", _enough_samples)
#: As many samples as units are the default.
SAMPLES = Spelling("samples", ("samples", "width"), lambda samples, width: None if samples == width else samples)
