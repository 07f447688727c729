"""Small networks in float64 that the tests of this folder share."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from flbench.models.initial_weights import build
from flbench.models.network import Network
from flbench.registry import HEADS, MODELS, NORMS

#: Small versions of every kind of network, with the images they take.
SMALL: dict[str, tuple[Any, tuple[int, int, int]]] = {
    "mlp": ({"name": "mlp", "widths": [8, 10, 6]}, (1, 4, 4)),
    "cnn": ("cnn", (1, 16, 16)),
    "resnet18": ({"name": "resnet18", "width": 4, "blocks": [1, 2]}, (2, 6, 6)),
}


def fitting(norm: str) -> list[str]:
    """The small networks that a norm fits."""
    return [
        model
        for model, (spec, image) in SMALL.items()
        if NORMS.parse(norm).problem(tuple(MODELS.parse(spec).sites(image))) is None
    ]


def small(
    model: str, norm: Any = "none", *, head: Any = "linear", bias: bool = False, seed: int = 0, classes: int = 3
) -> Network:
    """A small network; ``norm`` is a YAML form or a norm, ``head`` a YAML form."""
    spec, image = SMALL[model]
    normalization = NORMS.parse(norm) if isinstance(norm, (str, dict)) else norm
    options: dict[str, Any] = {"seed": seed, "dtype": torch.float64, "head": HEADS.parse(head)}
    network = build(MODELS.parse(spec), image, classes, normalization, bias, **options)
    assert isinstance(network, Network)
    return network


def images_for(model: str, count: int, seed: int = 1) -> Tensor:
    """Images with pixels in [0, 1]."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(count, *SMALL[model][1], generator=generator, dtype=torch.float64)
