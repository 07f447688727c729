"""A network of another library in the form of flbench's: its body, a head of its own, normalizations of ``norm``.

Shape suffixes: B batch, C channels, H, W pixels, D features, Y classes, ... any axes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from flbench.errors import UserError
from flbench.messages import reason
from flbench.models.norms.base import Norm
from flbench.models.sites import Shape, Site
from flbench.models.transformer import per_token


class BodyNetwork(nn.Module):
    """images_BCHW to (features_BD, logits_BY).

    Args:
        label: of the model, for messages.
        network: the classification network; its last dense layer is taken off.
        image: (C, H, W).
        classes: outputs of the head.
        norm: replaces the network's normalizations if ``replaces``; at the feature and at the logits in any case.
        replaces: whether it does.
        size: side of the images inside, or None.
    """

    def __init__(
        self, label: str, network: nn.Module, image: Shape, classes: int, norm: Norm, replaces: bool, size: int | None
    ) -> None:
        super().__init__()
        path = last_dense(network, label)
        width: Any = network.get_submodule(path).in_features
        put(network, path, nn.Identity())
        self.size = size
        self.body = network
        if replaces:
            shapes = self._shapes(label, image)
            for number, (path, shape) in enumerate(shapes.items(), start=1):
                at = (Site(position, shape, last=number == len(shapes)) for position in ("after", "before"))
                layer = next(filter(None, map(norm.layer, at)), None)
                put(self.body, path, per_token(layer) if layer and len(shape) == 1 else layer or nn.Identity())
        self.feature = norm.layer(Site("feature", (width,))) or nn.Identity()
        self.head = nn.Linear(width, classes)
        self.logits = norm.layer(Site("logits", (classes,))) or nn.Identity()

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        features = self.feature(self.body(self._prepared(images)))
        return features, self.logits(self.head(features))

    def sites(self, label: str, image: Shape, replaced: bool) -> Iterator[Site]:
        """Yield the places of the body's normalizations, if they are ``replaced``, and the feature."""
        shapes = self._shapes(label, image).values() if replaced else ()
        for number, shape in enumerate(shapes, start=1):
            yield Site("before", shape, last=number == len(shapes))
            yield Site("after", shape, last=number == len(shapes))
        yield Site("feature", (self.head.in_features,))

    def _prepared(self, images: Tensor) -> Tensor:
        """Three channels, and the size that the body sees."""
        if images.shape[1] == 1:
            images = images.expand(-1, 3, -1, -1)
        if self.size is None or images.shape[-2:] == (self.size, self.size):
            return images
        return nn.functional.interpolate(images, (self.size, self.size), mode="bilinear")

    def _shapes(self, label: str, image: Shape) -> dict[str, Shape]:
        """The shape of a sample, or of a token, at every normalization of the body by its path, in forward order."""
        found: dict[str, Shape] = {}

        def note(path: str, module: nn.Module, x: Tensor) -> None:
            tokens = type(module) is nn.LayerNorm
            found[path] = tuple(module.normalized_shape) if tokens else tuple(x.shape[1:])  # type: ignore[arg-type]

        handles = [
            one.register_forward_pre_hook(lambda module, inputs, path=path: note(path, module, inputs[0]))
            for path, one in self.body.named_modules()
            if isinstance(one, _BatchNorm | nn.LayerNorm | nn.GroupNorm)
        ]
        was = self.training
        self.eval()
        try:
            with torch.no_grad():
                self.body(self._prepared(torch.zeros(2, *image)))
        except (RuntimeError, AssertionError) as error:
            pixels = f"{image[1]}x{image[2]}"
            raise UserError(
                f"model {label}: images of {pixels} pixels do not fit ({reason(error)}); give size: 224"
            ) from None
        finally:
            self.train(was)
            for handle in handles:
                handle.remove()
        return found


def sites_of(
    label: str, network: Callable[[], nn.Module], image: Shape, size: int | None, replaced: bool
) -> tuple[Site, ...]:
    """Return the places of normalizations, those of the body if they are ``replaced``; builds the network."""
    with torch.random.fork_rng(devices=[]):
        made = BodyNetwork(label, network(), image, 2, Norm(), False, size)
    return tuple(made.sites(label, image, replaced))


def last_dense(network: nn.Module, label: str) -> str:
    """Return the path of the last dense layer; raises UserError if the network ends otherwise."""
    layers = [(path, one) for path, one in network.named_modules() if isinstance(one, nn.Linear | nn.Conv2d)]
    path, last = str(layers[-1][0]), layers[-1][1]
    if not isinstance(last, nn.Linear):
        raise UserError(f"model {label}: its last layer is no dense layer")
    return path


def put(network: nn.Module, path: str, module: nn.Module) -> None:
    """Replace the module at a path."""
    parent, _, name = path.rpartition(".")
    setattr(network.get_submodule(parent), name, module)
