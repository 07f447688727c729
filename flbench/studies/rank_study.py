"""Ranks over the depth of random networks: a round is a layer.

Daneshmand et al. 2020, Batch Normalization Provably Avoids Rank Collapse, eqs. 1 to 4 and figure 2. With a residual
path H <- BN(H + gamma W phi(H)), without one H <- BN(sqrt(g / d) W phi(H)); W is N(0, 1). The paper's network is the
linear one, phi(H) = H. H is measured before the activation: after it, the mean direction of a plain ReLU network hides
all others.

Shape suffixes: D features, N samples.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from flbench.streams import stream
from flbench.studies.base import Record, Study
from flbench.studies.choices import RowNorm
from flbench.studies.gaussian_network import ACTIVATIONS
from flbench.theory import rank

#: Thresholds of the soft rank that are recorded.
TAUS = (1e-3, 1e-2, 0.1, 0.5)


class RankOverDepth(Study):
    """One random network on Gaussian inputs, with one layer per round.

    ``width`` is d and ``samples`` N; ``norm`` normalizes the rows of H after each layer; ``gamma`` is the strength of
    the layers next to the residual path, None without such a path.
    """

    def __init__(
        self,
        *,
        width: int,
        samples: int,
        activation: str,
        norm: RowNorm,
        gamma: float | None,
        seed: int,
        device: str = "cpu",
    ) -> None:
        inputs = torch.from_numpy(stream(seed, "gaussian inputs").standard_normal((width, samples)))
        super().__init__({"H": inputs.to(device)})
        self._phi, self._norm, self._gamma, self._seed = ACTIVATIONS[activation], norm, gamma, seed

    def _train(self) -> float:
        h_DN = self.x["H"]
        width = len(h_DN)
        weight = torch.from_numpy(stream(self._seed, "layer", self.round).standard_normal((width, width)))
        signal = weight.to(h_DN.device) @ self._phi(h_DN)
        h_DN = signal / math.sqrt(width) if self._gamma is None else h_DN + self._gamma * signal
        self.x = {"H": normalize_rows(h_DN, self._norm)}
        return 0.0

    def _measure(self) -> Record:
        return ranks(self.x["H"])


def normalize_rows(h_DN: Tensor, norm: RowNorm) -> Tensor:
    """Normalize every feature over the samples; ``none`` divides H by its root mean square: ranks ignore the scale."""
    if norm == "none":
        return h_DN / h_DN.square().mean().sqrt()
    if norm == "bn":
        h_DN = h_DN - h_DN.mean(1, keepdim=True)
    return h_DN / h_DN.square().mean(1, keepdim=True).sqrt()


def ranks(h_DN: Tensor) -> Record:
    """Return the effective rank r(H), soft ranks, and the first singular value's share of all, squared.

    They are NaN where H is not finite (the network diverged) or zero (all units are dead).
    """
    h_DN = h_DN.detach().double().cpu()
    if not torch.isfinite(h_DN).all() or not h_DN.any():
        return dict.fromkeys(("rank", "first_share", *(f"soft_rank_{tau:g}" for tau in TAUS)), math.nan)
    values = rank.eigenvalues(h_DN.numpy())
    record: dict[str, Any] = {"rank": rank.effective_rank(values), "first_share": float(values[-1] / values.sum())}
    return record | {f"soft_rank_{tau:g}": rank.soft_rank(values, tau) for tau in TAUS}
