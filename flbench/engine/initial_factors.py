"""The factors of the norms ``scale`` and ``scale-layerwise``, measured on the initial network.

A factor depends on the initial weights (so on the seed), on the norm and on the images alone: not on the method, the
partition, the head, the device, the precision or the executor. It is computed on a CPU in float64 and rounded to six
digits, in which the order of sums does not show.

Shape suffixes: B samples, C channels, H, W pixels.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from flbench.data.arrays import Data
from flbench.engine.device_data import as_input, normalization
from flbench.errors import UserError
from flbench.models.base import Model
from flbench.models.initial_weights import build
from flbench.models.norm_layers import Factor
from flbench.models.norms import Norm
from flbench.models.starts import Start
from flbench.models.weight_files import start_from
from flbench.streams import stream

#: Training images on which factors are measured, drawn from the whole set without augmentation.
SAMPLES = 256


@dataclass(frozen=True)
class Measured:
    """What measured factors depend on; the data are compared by their fingerprint and normalization."""

    model: Model
    init: Start
    norm: Norm
    bias: bool
    seed: int
    fingerprint: str
    normalize: tuple[tuple[float, ...], tuple[float, ...]] | None
    data: Data = field(compare=False, repr=False)


def set_factors(network: nn.Module, start: Measured) -> None:
    """Set the factors of a network's layers that are not given as numbers.

    Raises:
        UserError: the features of all images are zero, or some are not finite.
    """
    if layers := _measured_layers(network):
        for layer, factor in zip(layers, _factors(start), strict=True):
            layer.factor.fill_(factor)


@lru_cache(maxsize=8)  # a run builds its network several times
def _factors(start: Measured) -> tuple[float, ...]:
    """Measure in forward order, in evaluation mode; each layer sees activations that the earlier factors scaled."""
    images = start.data.train.images
    options: dict[str, Any] = {"seed": start.seed, "dtype": torch.float64}
    network = build(start.model, start.data.shape, start.data.classes, start.norm, start.bias, **options)
    start_from(network, start.init, start.model)
    rows = stream(start.seed, "scale").permutation(len(images))[:SAMPLES]
    normalize = normalization(start.data, torch.float64)
    batch = as_input(torch.from_numpy(images[rows]), start.data.white, torch.float64, normalize)
    layers = _measured_layers(network)

    def measure(layer: Factor, inputs: tuple[Tensor, ...]) -> None:
        length = float(torch.linalg.vector_norm(inputs[0].flatten(1), dim=1).mean())
        if not 0 < length < float("inf"):
            raise UserError(
                f"norm {start.norm.label()}: the mean length of the initial features of {len(batch)} training "
                f"images is {length:g}, so that no factor gives them another one; give the factor as a number"
            )
        layer.factor.fill_(float(f"{layer.length / length:.6g}"))

    for layer in layers:
        layer.register_forward_pre_hook(measure)
    network.eval()
    with torch.no_grad():
        network(batch)
    return tuple(layer.factor.item() for layer in layers)


def _measured_layers(network: nn.Module) -> list[Factor]:
    return [layer for layer in network.modules() if isinstance(layer, Factor) and layer.given is None]
