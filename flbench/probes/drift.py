"""Client drift."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from flbench.probes.base import Observation, Probe
from flbench.registry import PROBES


@PROBES.register("drift")
@dataclass(frozen=True)
class Drift(Probe):
    """How far the clients' updates d_k = w_k - x point apart.

    ``update_norm``: mean_k ||d_k||; ``mean_norm``: ||sum_k p_k d_k||; ``agreement``: the latter over sum_k p_k ||d_k||,
    1 when all clients pull one way and near 0 when they cancel; ``cosine``: mean cosine between pairs of updates. There
    are no numbers where clients send nothing.
    """

    lists: ClassVar[Mapping[str, int] | None] = {}
    source: ClassVar[str] = ""

    needs_clients: ClassVar[bool] = True

    def measure(self, seen: Observation) -> dict[str, Any]:
        import torch

        if seen.client_params is None or seen.weights_S is None:
            raise ValueError("the drift probe needs the clients' models")
        if not seen.before:
            return {}
        updates_SP = torch.cat(
            [(seen.client_params[name] - leaf).flatten(1) for name, leaf in seen.before.items()], dim=1
        ).double()
        weights = seen.weights_S.double()
        norms = updates_SP.norm(dim=1)
        mean = torch.linalg.vector_norm(weights @ updates_SP)
        unit = updates_SP / norms.clamp_min(1e-300)[:, None]
        count = len(norms)
        cosine = (
            ((unit.sum(0).square().sum() - (norms > 0).sum()) / (count * (count - 1))).item() if count > 1 else None
        )
        return {
            "update_norm": norms.mean().item(),
            "mean_norm": mean.item(),
            "agreement": (mean / (weights @ norms).clamp_min(1e-300)).item(),
            "cosine": cosine,
        }
