"""Choose how the stacks of a run convolve, by timing whole rounds on the device.

The ways give the same result up to rounding. Their speeds differ by factors that depend on shapes, precision and GPU,
and on what stands between the convolutions: layouts, and kernels that run side by side.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Mapping

import torch
from torch import nn

from flbench.engine.cuda_graph import Recorder, Trial
from flbench.models.convolutions import CONVOLUTIONS
from flbench.models.layers import Conv

_log = logging.getLogger(__name__)

#: Launches of each way that are timed.
LAUNCHES = 3

#: Returns the seconds of a number of launches.
Clock = Callable[[Callable[[], object], int], float]


class ConvTuner:
    """Times a round in every way once for each kind of round."""

    def __init__(self, record: Recorder, clock: Clock) -> None:
        self.record = record
        self._clock = clock
        self._fastest: dict[Hashable, str] = {}

    def tune(self, network: nn.Module, kind: Hashable, trial: Trial) -> Mapping[str, str]:
        """Set all convolutions of a network to the way in which a round is fastest.

        Args:
            network: the network of the stack.
            kind: all that the speed of a round depends on.
            trial: records a round of that kind.

        Returns:
            The way of each layer, by the layer's name.
        """
        layers = convolutions_of(network)
        if not layers:
            return {}
        if kind not in self._fastest:
            seconds = {way: self._seconds(layers, way, trial) for way in CONVOLUTIONS}
            self._fastest[kind] = min(seconds, key=lambda way: seconds[way])
            times = ", ".join(f"{way} {1000 * each / LAUNCHES:.3g} ms" for way, each in seconds.items())
            _log.info("convolutions: %s (a round: %s)", self._fastest[kind], times)
        return convolve(layers, self._fastest[kind])

    def _seconds(self, layers: Mapping[str, Conv], way: str, trial: Trial) -> float:
        """Seconds of one way; infinite if it fails."""
        convolve(layers, way)
        try:
            return self._clock(trial(), LAUNCHES)
        except Exception as error:
            _log.info("%s convolutions are out: %s", way, str(error).partition("\n")[0])
            return float("inf")


def convolutions_of(network: nn.Module) -> dict[str, Conv]:
    """Return the convolutions of a network by their names."""
    return {name: layer for name, layer in network.named_modules() if isinstance(layer, Conv)}


def convolve(layers: Mapping[str, Conv], way: str) -> dict[str, str]:
    """Set the way of all layers, and return it by their names."""
    for layer in layers.values():
        layer.stacked_as = way
    return dict.fromkeys(layers, way)


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
