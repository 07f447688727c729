"""What hooks see besides their context: outputs of networks, batches, the cohort, and the server's data.

Shape suffixes: B batch, M samples, Y classes, D features; n participants.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

Tree = dict[str, Any]  # of tensors


@dataclass(frozen=True)
class Outputs:
    """The outputs of a network on a batch; the features are the input of the head."""

    features_BD: Tensor
    logits_BY: Tensor


@dataclass(frozen=True)
class Batch:
    """What the loss terms of a local step see.

    Attributes:
        labels_B: the labels.
        features_BD, logits_BY: the network's outputs in training mode at the weights of the step.
        teachers: the outputs of the weights that the hook ``teachers`` names, in evaluation mode, without gradient.
    """

    labels_B: Tensor
    features_BD: Tensor
    logits_BY: Tensor
    teachers: Mapping[str, Outputs]


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


class ServerData(Protocol):
    """The part of the training set that the server holds (``server_fraction``)."""

    @property
    def labels_M(self) -> Tensor:
        """The labels of all of its samples."""

    def outputs(self, w: Tree, buffers: Tree | None = None, samples: slice = slice(None)) -> Outputs:
        """Return the network's outputs on the samples in evaluation mode, differentiable in ``w``.

        Args:
            w: all parameters of the network.
            buffers: batch statistics and others; by default the server's, after this round's averaging.
            samples: those of a mini-batch.

        Raises:
            flbench.errors.UserError: a tensor is missing, because it stays on the clients.
        """
