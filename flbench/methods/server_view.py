"""What the server's hooks see of a round besides its context."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Cohort:
    """The participants of a round, ascending: what the weights of their changes may depend on.

    Attributes:
        share: the share of each in their samples, m_k / sum_j m_j.
        steps: its number of local steps.
        counts: its training samples of each class (n, Y).
        momentum: of the local optimizer.
    """

    share: Sequence[float]
    steps: Sequence[int]
    counts: NDArray[np.int64]
    momentum: float
