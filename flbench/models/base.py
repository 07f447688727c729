"""The contract of a model: a row of stages and a head, or a ``build`` of its own."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from flbench.errors import UserError
from flbench.models.heads.base import Head
from flbench.models.norms.base import Norm
from flbench.models.sites import Shape, Site, described
from flbench.models.stages import Stage, Step
from flbench.registry import Component

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Model(Component):
    """Base of the models; a subclass defines its stages, or a ``build`` of its own."""

    def stages(self) -> tuple[Stage, ...]:
        """The stages before the head, in order; at least one, unless the model builds itself."""
        if not self._builds_itself():
            raise NotImplementedError(f"{type(self).__name__} must define stages()")
        return ()

    def identity(self) -> dict[str, Any]:
        """Return the identity of a component, with ``weights: build`` if the model initializes itself."""
        return super().identity() | ({"weights": "build"} if self.initialized_by() == "build" else {})

    def initialized_by(self) -> Literal["layers", "build"]:
        """Return who draws the initial weights: every layer's ``reset_parameters``, or the model's own ``build``.

        Each layer draws with a key of its own, so that layers which two networks share start equal. A model that builds
        itself starts from what its ``build`` returns, such as trained weights.
        """
        return "build" if self._builds_itself() else "layers"

    def own_name(self, name: str) -> str:
        """Return the name in this network of a tensor in other weights, such as torchvision's; by default the same."""
        return name

    def weights_at(self, weights: str | None) -> Path:
        """Return the file of torchvision's weights on this machine, by their name; None: the default ones.

        Raises:
            UserError: torchvision has no such weights for this network, or they are not on this machine.
        """
        raise UserError(f"torchvision has no weights for model {self.label()}; use model: torchvision:ARCH")

    def package_weights(self) -> Path:
        """Return the file of the weights that a package ships for this network.

        Raises:
            UserError: no package does, or it is not installed.
        """
        raise UserError(
            f"no package ships weights for model {self.label()}; use model: efficientnet-lite0, or init: file:PATH"
        )

    def head_has_bias(self, bias: bool) -> bool:
        """Whether the head has a bias, given the experiment's ``bias``; by default the same."""
        return bias

    def steps(self, image: Shape) -> Iterator[Step]:
        """Yield every stage with the shape of its input, for images of shape (C, H, W)."""
        shape: Shape = image
        stages = self.stages()
        final = max((number for number, stage in enumerate(stages) if stage.activates), default=-1)
        for number, stage in enumerate(stages):
            yield Step(stage, shape, last=number == final)
            shape = stage.output(shape)

    def output(self, image: Shape) -> Shape:
        """Return the shape of one sample after the last stage; flattened, it is the head's input."""
        shape: Shape = image
        for stage in self.stages():
            shape = stage.output(shape)
        return shape

    def sites(self, image: Shape) -> Iterator[Site]:
        """Yield every place for a normalization up to the feature, in forward order.

        The place at the logits follows; it alone depends on the number of classes.
        """
        for step in self.steps(image):
            yield from step.stage.sites(step.shape, step.last)
        yield Site("feature", (math.prod(self.output(image)),))

    def norm_problem(self, norm: Norm, image: Shape, classes: int) -> str | None:
        """Return why a norm cannot be used in this network (it does not fit, or would change nothing), or None.

        A model that builds itself is built with the norm and without, to find out whether its layers differ.
        """
        if type(norm) is Norm:
            return None
        sites = tuple(self.sites(image))
        if problem := norm.problem(sites):
            return problem
        if norm.lock_step and self._builds_itself():
            return "its clients take each step together, in a stack, and the model's own layers know no stack"
        if self._builds_itself():
            return _unchanged_by(self, norm, image, classes)
        if norm.changes((*sites, Site("logits", (classes,)))):
            return None
        return "no layer of the network has a place for it, so that it would change nothing: use norm: none"

    def head_problem(self, head: Head, image: Shape, classes: int) -> str | None:
        """Return why a head cannot be used in this network, or None."""
        if type(head) is Head:
            return None
        if self._builds_itself():
            return "the model builds its own head: use head: linear"
        return head.problem(head.width(math.prod(self.output(image))), classes)

    def train_problem(self, train: str, image: Shape, classes: int, norm: Norm, bias: bool, head: Head) -> str | None:
        """Return why these parts of the network cannot be trained alone (``models.trained_parts``), or None."""
        return _untrainable(self, train, image, classes, norm, bias, head)

    def has_batch_norm(self, image: Shape | None, classes: int) -> bool:
        """Return whether the network has batch normalization of its own: only a model that builds itself can have it.

        Also true if the network cannot be built here, or the shape of the images is unknown.
        """
        return self._builds_itself() and (image is None or _has_batch_norm(self, image, classes))

    def _builds_itself(self) -> bool:
        return type(self).build is not Model.build

    def problem(self, image: Shape) -> str | None:
        """Return why samples of this shape do not fit, or None."""
        shape: Shape = image
        for number, stage in enumerate(self.stages(), start=1):
            if len(shape) not in stage.axes:
                return unfit(image)
            shape = stage.output(shape)
            if min(shape) < 1:
                small = f"images of {image[1]}x{image[2]} pixels" if len(image) == 3 else described(image)
                return f"{small} are too small (nothing is left after layer {number})"
        return None

    def build(self, image: Shape, classes: int, norm: Norm, bias: bool) -> nn.Module:
        """Return the module from a batch to (features (B, D), logits (B, classes)), with a linear head.

        A batch is (B, C, H, W) of images, (B, D) of features, or int32 (B, T) of tokens, for which ``image`` is (T, V).
        """
        return self.network(image, classes, norm, bias, Head())

    def network(self, image: Shape, classes: int, norm: Norm, bias: bool, head: Head) -> nn.Module:
        """Return the torch module of the stages with any head."""
        from flbench.models.network import Network

        steps, head_bias = tuple(self.steps(image)), self.head_has_bias(bias)
        return Network(steps, self.output(image), classes, norm, head, bias=bias, head_bias=head_bias)


def unfit(shape: Shape) -> str:
    """Return that samples are not of the kind that a network takes, and which networks take them."""
    fitting = {1: "mlp", 2: "text (or, if these are numbers, dtype: float32 in the data set)", 3: "cnn or mlp"}
    return f"the data are {described(shape)}, which it does not take; use model: {fitting[len(shape)]}"


@lru_cache(1000)  # requested for every experiment of a sweep
def _unchanged_by(model: Model, norm: Norm, image: Shape, classes: int) -> str | None:
    """Return why a network that its model builds itself cannot have a norm: its modules are the same, or an error."""
    import torch

    try:
        with torch.random.fork_rng(devices=[]):
            networks = [model.build(image, classes, one, False) for one in (norm, Norm())]
    except (ValueError, RuntimeError) as error:
        return f"the network cannot be built with it: {error}"
    # By name: a class that ``build`` itself defines is another one each time.
    with_norm, without = ([(name, type(one).__qualname__) for name, one in net.named_modules()] for net in networks)
    same = "the network has the same layers without it, so that it would change nothing: use norm: none"
    return same if with_norm == without else None


@lru_cache(1000)
def _untrainable(
    model: Model, train: str, image: Shape, classes: int, norm: Norm, bias: bool, head: Head
) -> str | None:
    import torch

    from flbench.models.trained_parts import train_only

    try:
        with torch.random.fork_rng(devices=[]):
            plain = type(head) is Head
            made = model.build(image, classes, norm, bias) if plain else model.network(image, classes, norm, bias, head)
        train_only(made, train, seed=0)
    except UserError as error:
        return str(error).removeprefix("train: ")
    except Exception:  # an error of the model's own code, which its runs report
        return None
    return None


@lru_cache(1000)
def _has_batch_norm(model: Model, image: Shape, classes: int) -> bool:
    import torch

    from flbench.models.norm_layers import is_batch_norm

    try:
        with torch.random.fork_rng(devices=[]):
            network = model.build(image, classes, Norm(), False)
    except Exception:  # an error of the model's own code, which its runs report
        return True
    return any(map(is_batch_norm, network.modules()))
