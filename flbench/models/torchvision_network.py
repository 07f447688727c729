"""Torchvision's networks as the model ``torchvision`` uses them."""

from __future__ import annotations

import warnings
from functools import lru_cache
from typing import Any

import torch
from torch import nn
from torchvision.models import get_model
from torchvision.ops import StochasticDepth

from flbench.models.body_network import last_dense, put, sites_of
from flbench.models.masks import SampleDropout
from flbench.models.sites import Shape, Site

#: Networks with a second output in training, and slow initial weights, unless they are told otherwise.
_PLAIN: dict[str, Any] = {"aux_logits": False, "init_weights": False}


def network(arch: str, small: bool) -> nn.Module:
    """Return a network by torchvision's name, with keyed masks; ``small``: its first layers keep the size of images."""
    made = _made(arch)
    for place, module in list(made.named_modules()):
        if isinstance(module, StochasticDepth):
            put(made, place, SampleDropout(module.p))
    if small:
        _keep_size(made)
    return made


@lru_cache(64)
def sites(arch: str, image: Shape, small: bool, size: int | None, replaced: bool) -> tuple[Site, ...]:
    """Return the places of normalizations, those of the body if they are ``replaced``; builds the network."""
    return sites_of(f"torchvision:{arch}", lambda: network(arch, small), image, size, replaced)


@lru_cache(64)
def head_path(arch: str) -> str:
    """Return torchvision's name of the last dense layer."""
    with torch.random.fork_rng(devices=[]):
        return last_dense(_made(arch), f"torchvision:{arch}")


def _made(arch: str) -> nn.Module:
    options = _PLAIN if arch in ("googlenet", "inception_v3") else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about initial weights of later versions
        made: nn.Module = get_model(arch, weights=None, **options)
    return made


def _keep_size(network: nn.Module) -> None:
    """Give the first convolution stride 1 and at most a 3x3 kernel, and drop the pooling that belongs to it."""
    path, first = next((p, one) for p, one in network.named_modules() if isinstance(one, nn.Conv2d))
    if first.kernel_size[0] > 3:
        bias = first.bias is not None
        put(network, path, nn.Conv2d(first.in_channels, first.out_channels, 3, padding=1, bias=bias))
    else:
        first.stride = (1, 1)
    for pool in ("maxpool", "features.pool0"):
        if pool in dict(network.named_modules()):
            put(network, pool, nn.Identity())
