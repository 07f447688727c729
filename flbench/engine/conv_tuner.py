"""Choose the fastest way of convolving a stack of clients for each layer, by measuring on the device.

The ways give the same result up to rounding. Their speeds differ by factors that depend on shapes, precision and GPU.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from flbench.engine.cuda_graph import Recorder
from flbench.methods.base import Tree
from flbench.models.convolutions import CONVOLUTIONS, Pair
from flbench.models.layers import Conv

_log = logging.getLogger(__name__)

#: Launches of each way that are timed.
LAUNCHES = 10

#: Returns the seconds of a number of launches.
Clock = Callable[[Callable[[], object], int], float]


@dataclass(frozen=True)
class ConvShape:
    """All that the speed of a stacked convolution depends on.

    Attributes:
        x: (N, B, C, H, W). ``weight``: (N, O, C, kernel).
        of_x: whether the gradient of x is computed; the first layer needs none of its images.
        tf32: whether convolutions may use TF32.
    """

    x: tuple[int, ...]
    weight: tuple[int, ...]
    stride: Pair
    padding: Pair
    dtype: torch.dtype
    of_x: bool
    tf32: bool


class ConvTuner:
    """Times every way once for each shape, recorded in a graph as in training."""

    def __init__(self, record: Recorder, clock: Clock, device: str) -> None:
        self.record = record
        self._clock, self._device = clock, device
        self._fastest: dict[ConvShape, str] = {}

    def tune(
        self, network: nn.Module, clients: int, images_BCHW: tuple[int, ...], autocast: torch.dtype | None
    ) -> Mapping[str, str]:
        """Set each convolution of the network to the fastest way for stacks of that many clients.

        Returns:
            The way of each layer, by the layer's name.
        """
        layers = {name: layer for name, layer in network.named_modules() if isinstance(layer, Conv)}
        chosen = {}
        for name, (x, of_x) in _inputs(network, images_BCHW).items():
            layer = layers[name]
            shape = ConvShape(
                x=(clients, images_BCHW[0], *x),
                weight=(clients, *layer.weight.shape),
                stride=layer.window[0],
                padding=layer.window[1],
                dtype=autocast or layer.weight.dtype,
                of_x=of_x,
                tf32=torch.backends.cudnn.allow_tf32,
            )
            if shape not in self._fastest:
                self._fastest[shape] = self._measure(name, shape)
            chosen[name] = layer.stacked_as = self._fastest[shape]
        return chosen

    def _measure(self, layer: str, shape: ConvShape) -> str:
        seconds = {way: self._seconds(way, shape) for way in CONVOLUTIONS}
        fastest = min(seconds, key=lambda way: seconds[way])
        times = ", ".join(f"{way} {1e6 * each / LAUNCHES:.0f} us" for way, each in seconds.items())
        _log.info("%s %s: %s (%s)", layer, list(shape.x), fastest, times)
        return fastest

    def _seconds(self, way: str, shape: ConvShape) -> float:
        """Seconds of one way; infinite if it fails."""
        options: dict[str, Any] = {"dtype": shape.dtype, "device": self._device}
        try:
            inputs = torch.rand(shape.x, **options), torch.rand(shape.weight, **options)
            launch, _ = self.record(lambda: _both_passes(way, shape, *inputs))
            return self._clock(launch, LAUNCHES)
        except RuntimeError as error:
            _log.info("%s convolutions of %s are out: %s", way, list(shape.x), str(error).partition("\n")[0])
            return float("inf")


def _both_passes(way: str, shape: ConvShape, x: Tensor, weight: Tensor) -> list[Tree]:
    """Output and gradients."""
    leaves = x.detach().requires_grad_(shape.of_x), weight.detach().requires_grad_()
    out = CONVOLUTIONS[way](*leaves, shape.stride, shape.padding)
    wanted = leaves if shape.of_x else leaves[1:]
    gradients = torch.autograd.grad(out, wanted, torch.ones_like(out))
    return [{str(number): leaf for number, leaf in enumerate((out.detach(), *gradients))}]


def _inputs(network: nn.Module, images_BCHW: tuple[int, ...]) -> dict[str, tuple[tuple[int, ...], bool]]:
    """The shape (C, H, W) of each convolution's input, and whether that input needs a gradient."""
    network = copy.deepcopy(network)  # batch normalization updates its statistics
    inputs_of: dict[str, tuple[tuple[int, ...], bool]] = {}
    for name, layer in network.named_modules():
        if isinstance(layer, Conv):

            def note(_: nn.Module, inputs: tuple[Tensor], name: str = name) -> None:
                inputs_of[name] = tuple(inputs[0].shape[1:]), inputs[0].requires_grad

            layer.register_forward_pre_hook(note)
    like = next(network.parameters())
    network(torch.zeros(2, *images_BCHW[1:], dtype=like.dtype, device=like.device))
    return inputs_of


def cuda_clock(launch: Callable[[], object], times: int) -> float:
    """Return the seconds of the launches on the GPU, after one launch that is not counted."""
    launch()
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    began.record()
    for _ in range(times):
        launch()
    ended.record()
    ended.synchronize()
    return float(began.elapsed_time(ended)) / 1000
