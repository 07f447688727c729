"""How many operations a further local step takes on a GPU, and how many bytes they read and write.

The step: 10 clients, batches of 32 augmented images of 3x32x32 pixels, 3 classes, fp32, no norm; gathering of the
images, forward, backward and update. Torch follows shapes and layouts on an imagined GPU. An operation counts as
reading each argument and writing each result once; what a kernel keeps in a cache or reads twice is not known here.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from flbench.config import parse_experiment
from flbench.data.random_images import random_data
from flbench.engine.optimizers import Sgd
from flbench.engine.setup import make_network
from flbench.methods.base import Method
from flbench.models.flops import sample_flops
from flbench.models.layers import Conv
from tests.imagined_gpu import NEEDS_CUDA_BUILD, round_on_gpu, stub_streams
from tests.test_documents import prose
from tests.toys import toy_clients, toy_images, toy_network, toy_trainer

pytestmark = NEEDS_CUDA_BUILD

#: The parts of a step by the beginnings of their operations' names.
PARTS = {
    "convolutions": ("aten.convolution",),
    "products": ("aten.bmm",),
    "pools": ("aten.max_pool2d", "aten.mean", "aten.div.Scalar"),
    "activations": ("aten.relu", "aten.threshold"),
    "sums": ("aten.add",),
    "update": ("aten._foreach",),
    "copies": ("aten.clone", "aten._to_copy", "aten.copy_", "aten.cat", "aten.stack"),
}

IMAGE = (3, 32, 32)

#: For a model, convolved by groups: the operations of each part, and the megabytes that they read and write.
GROUPED: dict[str, dict[str, tuple[int, float]]] = {
    "cnn": {
        # First layer: images 3.9, weights 0.2, output 64.2. Second: 16.1, 4.1, 8.2. Backward all of these again, and
        # their gradients, but for the images'.
        "convolutions": (4, 213.7),
        # Weights of 24.6 and 2.9 twice and their gradients once; the rest are features.
        "products": (9, 93.2),
        # Inputs 64.2 and 8.2, outputs 16.1 and 2.0, positions 32.1 and 4.1 (int64); backward the same, and gradients.
        "pools": (6, 325.9),
        # After each pool, of 16.1 and 2.0, and after the dense layers: two forward, three backward.
        "activations": (8, 94.2),
        "sums": (1, 0.0),
        # Weights of 31.9 read and written, gradients read.
        "update": (1, 95.5),
        # Pixels as numbers, with the channels of all clients side by side, 12.8; features in the dense layer's order.
        "copies": (5, 18.9),
        # Images gathered, cropped, mirrored and divided by their white, and the cross-entropy.
        "rest": (6, 19.3),
    },
    "resnet18": {
        # Five outputs of 83.9, five of 41.9, 21.0 and 10.5 each, and weights of 446.
        "convolutions": (40, 5467.9),
        "products": (3, 2.2),
        "pools": (4, 22.3),
        "activations": (34, 3565.2),
        # Of branch and shortcut, and of their gradients.
        "sums": (18, 2107.6),
        "update": (1, 1339.3),
        "copies": (4, 14.8),
        "rest": (7, 19.3),
    },
}

#: The same for each way to convolve. One convolution a client has its outputs (of the CNN 72.4) and gradients (16.1 and
#: 4.3) copied into stacks. Unfolded ones copy and multiply windows: of the CNN 75.3 and 204.8 in both passes, and 401.4
#: of the gradients of the second layer's outputs, which the rest pads.
BUDGETS = {
    **{(model, "grouped"): parts for model, parts in GROUPED.items()},
    ("cnn", "streamed"): GROUPED["cnn"] | {"convolutions": (40, 213.7), "copies": (9, 196.5)},
    ("resnet18", "streamed"): GROUPED["resnet18"] | {"convolutions": (400, 5467.9), "copies": (62, 4171.2)},
    ("cnn", "unfolded"): GROUPED["cnn"]
    | {"convolutions": (0, 0.0), "products": (14, 1228.3), "copies": (10, 1047.3), "rest": (8, 62.2)},
    ("resnet18", "unfolded"): GROUPED["resnet18"]
    | {"convolutions": (0, 0.0), "products": (62, 22509.3), "copies": (81, 22704.4), "rest": (85, 7226.6)},
}


class Meter(TorchDispatchMode):
    """Counts operations and bytes of each part. Views cost nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not func.is_view and not str(func).startswith(("prim.", "aten.detach", "aten._unsafe_view")):
            part = next((part for part, names in PARTS.items() if str(func).startswith(names)), "rest")
            written = args[0] if str(func).startswith("aten._foreach_add_") else out
            inputs, outputs = (list(map(own, tensors(value))) for value in ((args, kwargs), written))
            self.operations[part] += 1
            # A gather reads as much as it writes.
            self.bytes[part] += sum(outputs) + (sum(outputs) if "aten.index" in str(func) else sum(inputs))
            if part == "convolutions":
                self.bytes["copies"] += 2 * sum(map(own, other_layouts(tensors(args), tensors(out))))
        return out


def tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def own(leaf: Tensor) -> int:
    """The bytes of a tensor, without those that it repeats."""
    return min(leaf.numel() * leaf.element_size(), leaf.untyped_storage().nbytes())


def other_layouts(inputs: list[Tensor], outputs: list[Tensor]) -> list[Tensor]:
    """The inputs of a convolution that torch copies into the layout of its outputs."""
    last = all(leaf.is_contiguous(memory_format=torch.channels_last) for leaf in outputs)
    layout = torch.channels_last if last else torch.contiguous_format
    return [leaf for leaf in inputs if not leaf.is_contiguous(memory_format=layout)]


def a_step(model: str, way: str, monkeypatch: pytest.MonkeyPatch, norm: str = "none") -> dict[str, tuple[int, float]]:
    """What the second of two steps adds to each part."""
    stub_streams(monkeypatch)
    one, two = (measured(model, way, norm, steps, monkeypatch) for steps in (1, 2))
    return {
        part: (two.operations[part] - one.operations[part], round((two.bytes[part] - one.bytes[part]) / 1e6, 1))
        for part in (*PARTS, "rest")
    }


def measured(model: str, way: str, norm: str, steps: int, monkeypatch: pytest.MonkeyPatch) -> Meter:
    """A round of ``steps`` local steps."""
    network = toy_network(model, norm, IMAGE).float()
    for layer in network.modules():
        if isinstance(layer, Conv):
            layer.stacked_as = way
    images = replace(toy_images(IMAGE, train=320), dtype=torch.float32, augment=True)
    settings: dict[str, Any] = {"images": images, "clients": toy_clients((32,) * 10), "sgd": Sgd(0.1)}
    trainer = toy_trainer(Method(), executor="stacked", network=network, batch_size=32, steps=steps, **settings)
    meter = Meter()
    round_on_gpu([trainer], monkeypatch, chunk=10, watch=meter)
    return meter


@pytest.mark.parametrize(
    ("model", "way"),
    [
        ("cnn", "grouped"),
        ("cnn", "streamed"),
        ("cnn", "unfolded"),
        pytest.param("resnet18", "grouped", marks=pytest.mark.slow),
        pytest.param("resnet18", "streamed", marks=pytest.mark.nightly),
        pytest.param("resnet18", "unfolded", marks=pytest.mark.nightly),
    ],
)
def test_a_local_step_keeps_to_its_budget(model: str, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the operation and to 0.1 MB: a step that takes less gets a smaller budget."""
    assert a_step(model, way, monkeypatch) == BUDGETS[model, way]


@pytest.mark.slow
@pytest.mark.parametrize(("norm", "megabytes"), [("fn", 865), ("ln", 2397), ("gn", 2572), ("rms", 3614), ("bn", 3844)])
def test_a_step_with_a_norm_keeps_to_its_budget(norm: str, megabytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the CNN, in all: 861 MB without a norm. Norms of elements copy the layout, or take several passes."""
    found = a_step("cnn", "grouped", monkeypatch, norm)
    assert round(sum(moved for _, moved in found.values())) == megabytes


def test_the_arithmetic_of_a_step() -> None:
    """Of the CNN with ten classes: forward, and backward without the images' gradient; docs/engine.md has both sums."""
    experiment = parse_experiment({"dataset": "cifar10", "model": "cnn"})
    network = make_network(experiment, random_data(IMAGE, 10, train=10), "cpu")
    gflop = 10 * 32 * sample_flops(network, IMAGE, backward=True) / 1e9
    megabytes = sum(moved for _, moved in BUDGETS["cnn", "grouped"].values())
    said = f"step of 10 clients computes {gflop:.1f} GFLOP and moves {megabytes / 1000:.2f} GB"
    assert said in prose("docs/engine.md")


def test_the_traffic_of_ways_to_convolve() -> None:
    """Of a step in all, and the products that replace convolutions, as docs/engine.md has them."""
    gigabytes = {key: sum(megabytes for _, megabytes in parts.values()) / 1000 for key, parts in BUDGETS.items()}
    unfolded, streamed = (BUDGETS["cnn", way] for way in ("unfolded", "streamed"))
    products = unfolded["products"][0] - streamed["products"][0]
    cnn, resnet = (
        f"moves {gigabytes['cnn', 'unfolded']:.1f} GB (`streamed`: {gigabytes['cnn', 'streamed']:.1f} GB)",
        f"moves {gigabytes['resnet18', 'unfolded']:.0f} GB ({gigabytes['resnet18', 'streamed']:.0f} GB)",
    )
    fewer = f"in {products} products in place of {streamed['convolutions'][0]} convolutions"
    assert f"{cnn} {fewer}; one of ResNet-18 {resnet}" in prose("docs/engine.md")
