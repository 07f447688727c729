"""The torch module of the model ``torchvision``: its network with a head of its own and normalizations of ``norm``.

Shape suffixes: B batch, C channels, H, W pixels, D features, Y classes, ... any axes.
"""

from __future__ import annotations

import warnings
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torchvision.models import get_model
from torchvision.ops import StochasticDepth

from flbench.errors import UserError
from flbench.messages import reason
from flbench.models.masks import SampleDropout
from flbench.models.norms.base import Norm
from flbench.models.sites import Shape, Site
from flbench.models.transformer import per_token

#: Networks with a second output in training, and slow initial weights, unless they are told otherwise.
_PLAIN: dict[str, Any] = {"aux_logits": False, "init_weights": False}


class TorchvisionNetwork(nn.Module):
    """images_BCHW to (features_BD, logits_BY).

    Args:
        arch: torchvision's name.
        image: (C, H, W).
        classes: outputs of the head.
        norm: replaces the network's normalizations if ``replaces``; at the feature and at the logits in any case.
        replaces: whether it does.
        small: whether the first layers keep the size of the images.
        size: side of the images inside, or None.
    """

    def __init__(
        self, arch: str, image: Shape, classes: int, norm: Norm, replaces: bool, small: bool, size: int | None
    ) -> None:
        super().__init__()
        self.size = size
        self.body, width = _body(arch, small)
        if replaces:
            shapes = _shapes(self, arch, image)
            for number, (path, shape) in enumerate(shapes.items(), start=1):
                at = (Site(position, shape, last=number == len(shapes)) for position in ("after", "before"))
                layer = next(filter(None, map(norm.layer, at)), None)
                _put(self.body, path, per_token(layer) if layer and len(shape) == 1 else layer or nn.Identity())
        self.feature = norm.layer(Site("feature", (width,))) or nn.Identity()
        self.head = nn.Linear(width, classes)
        self.logits = norm.layer(Site("logits", (classes,))) or nn.Identity()

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        features = self.feature(self.body(self.prepared(images)))
        return features, self.logits(self.head(features))

    def prepared(self, images: Tensor) -> Tensor:
        """Three channels, and the size that the body sees."""
        if images.shape[1] == 1:
            images = images.expand(-1, 3, -1, -1)
        if self.size is None or images.shape[-2:] == (self.size, self.size):
            return images
        return nn.functional.interpolate(images, (self.size, self.size), mode="bilinear")


@lru_cache(64)
def places(arch: str, image: Shape, small: bool, size: int | None) -> tuple[tuple[Shape, ...], int]:
    """Return the shape of a sample, or of a token, at every normalization of the network, and the feature's width."""
    with torch.random.fork_rng(devices=[]):
        network = TorchvisionNetwork(arch, image, 2, Norm(), False, small, size)
    return tuple(_shapes(network, arch, image).values()), network.head.in_features


@lru_cache(64)
def head_path(arch: str) -> str:
    """Return torchvision's name of the last dense layer."""
    with torch.random.fork_rng(devices=[]):
        return _last_dense(_made(arch), arch)


def _made(arch: str) -> nn.Module:
    options = _PLAIN if arch in ("googlenet", "inception_v3") else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about initial weights of later versions
        network: nn.Module = get_model(arch, weights=None, **options)
    return network


def _last_dense(network: nn.Module, arch: str) -> str:
    layers = [(path, one) for path, one in network.named_modules() if isinstance(one, nn.Linear | nn.Conv2d)]
    path, last = str(layers[-1][0]), layers[-1][1]
    if not isinstance(last, nn.Linear):
        raise UserError(f"model torchvision:{arch}: its last layer is no dense layer")
    return path


def _body(arch: str, small: bool) -> tuple[nn.Module, int]:
    """Return the network without its last dense layer, and the width of what it returns."""
    network = _made(arch)
    path = _last_dense(network, arch)
    width: Any = network.get_submodule(path).in_features
    _put(network, path, nn.Identity())
    for place, module in list(network.named_modules()):
        if isinstance(module, StochasticDepth):
            _put(network, place, SampleDropout(module.p))
    if small:
        _keep_size(network)
    return network, width


def _keep_size(network: nn.Module) -> None:
    """Give the first convolution stride 1 and at most a 3x3 kernel, and drop the pooling that belongs to it."""
    path, first = next((p, one) for p, one in network.named_modules() if isinstance(one, nn.Conv2d))
    if first.kernel_size[0] > 3:
        bias = first.bias is not None
        _put(network, path, nn.Conv2d(first.in_channels, first.out_channels, 3, padding=1, bias=bias))
    else:
        first.stride = (1, 1)
    for pool in ("maxpool", "features.pool0"):
        if pool in dict(network.named_modules()):
            _put(network, pool, nn.Identity())


def _shapes(network: TorchvisionNetwork, arch: str, image: Shape) -> dict[str, Shape]:
    """Return the shape of a sample, or of a token, at every normalization of the body by its path, in forward order."""
    found: dict[str, Shape] = {}

    def note(path: str, module: nn.Module, x: Tensor) -> None:
        tokens = type(module) is nn.LayerNorm
        found[path] = tuple(module.normalized_shape) if tokens else tuple(x.shape[1:])  # type: ignore[arg-type]

    handles = [
        one.register_forward_pre_hook(lambda module, inputs, path=path: note(path, module, inputs[0]))
        for path, one in network.body.named_modules()
        if isinstance(one, _BatchNorm | nn.LayerNorm | nn.GroupNorm)
    ]
    was = network.training
    network.eval()
    try:
        with torch.no_grad():
            network.body(network.prepared(torch.zeros(2, *image)))
    except (RuntimeError, AssertionError) as error:
        pixels = f"{image[1]}x{image[2]}"
        raise UserError(
            f"model torchvision:{arch}: images of {pixels} pixels do not fit ({reason(error)}); give size: 224"
        ) from None
    finally:
        network.train(was)
        for handle in handles:
            handle.remove()
    return found


def _put(network: nn.Module, path: str, module: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(network.get_submodule(parent), name, module)
