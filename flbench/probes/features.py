"""The features of the global model: their norms and their spectrum."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import Field

from flbench.probes.base import Observation, Probe
from flbench.registry import PROBES


@PROBES.register("features")
@dataclass(frozen=True)
class Features(Probe):
    """Whether features collapse (the label-skew paper, figure 3), on test samples of all classes in equal numbers.

    ``norm`` and ``norm_sd``: mean and standard deviation of the features' Euclidean norms; ``head_norms``: norms of the
    class embeddings, the rows of the head's weight; ``singular``: the largest singular values of the feature matrix
    (``samples`` x D); ``first_share``: the first one's square as a share of all squares; ``rank``: the effective rank
    Tr(M)^2 / ||M||_F^2, M = H H^T / N, and ``soft_rank``, the number of eigenvalues of M of at least half their mean.
    Neither is centred, as in the papers. There are no numbers where a feature is not
    finite, and only ``norm`` where all are 0.
    """

    lists: ClassVar[Mapping[str, int] | None] = {"singular": 1, "head_norms": 1}
    source = "@zhang2024labelskew, figure 3; @daneshmand2020rank (rank)"
    samples: Annotated[int, Field(ge=2)] = 200
    values: Annotated[int, Field(ge=1)] = 20

    def measure(self, seen: Observation) -> dict[str, Any]:
        import numpy as np
        import torch

        from flbench.theory import rank

        access = seen.access
        images, _ = access.mixed_test_samples(self.samples)
        params, buffers = access.model()
        with torch.no_grad():
            features_MD = access.forward(params, buffers, images, training=False)[0].double()
        if not features_MD.isfinite().all():
            return {}
        norms_M = features_MD.norm(dim=1)
        singular = torch.linalg.svdvals(features_MD).cpu().numpy()
        if not singular[0] > 0:  # every unit is dead
            return {"norm": 0.0}
        spectrum = np.zeros(features_MD.shape[1])
        # Over a power of two, which changes no digit: squares of large numbers overflow.
        spectrum[: len(singular)] = np.ldexp(singular, -np.frexp(singular[0])[1]) ** 2
        return {
            "norm": norms_M.mean().item(),
            "norm_sd": norms_M.std().item(),
            "head_norms": params["head.weight"].double().norm(dim=1).tolist() if "head.weight" in params else None,
            "singular": singular[: self.values].tolist(),
            "first_share": float(spectrum[0] / spectrum.sum()),
            "rank": rank.effective_rank(spectrum),
            "soft_rank": rank.soft_rank(spectrum),
        }
