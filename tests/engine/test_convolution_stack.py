"""Convolutions in compiled code against their slow twin, torch's own functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from flbench.choices import Executor
from flbench.config import parse_experiment
from flbench.data.arrays import Arrays, Data
from flbench.engine import convolution_stack
from flbench.engine.convolution_stack import Convolution, ConvolutionStack, NativeConvolutions
from flbench.engine.federated import FederatedTrainer
from flbench.engine.native_stack import NativeStack
from flbench.engine.optimizers import Adam, Sgd
from flbench.engine.setup import executor_for, native_network
from flbench.errors import UserError
from flbench.methods.base import Tree, tmap
from flbench.models.base import Model
from flbench.models.initial_weights import build
from flbench.models.layers import PooledConv
from flbench.models.network import pure_forward
from flbench.models.stages import Conv, Dense, NarrowConv, Stage
from flbench.native.build import native
from flbench.registry import METHODS, MODELS, NORMS
from tests.engine.test_native_stack import CALM
from tests.native.test_products import compiled_for
from tests.samples import fast
from tests.toys import everything, same_bits, toy_clients, toy_images, toy_trainer, train

pytest.importorskip("numba")

#: Channels and pixels of the images, channels of the layers.
SIZES: list[tuple[int, int, list[int]]] = [
    (1, 28, [6, 16]),  # LeNet
    (3, 32, [6, 16]),
    (2, 15, [7]),  # odd pixels before the pooling, and features that do not fill registers
    (1, 48, [3, 11, 1]),
]


def layers_of(channels: int, outs: Sequence[int], *, bias: bool) -> list[tuple[str, PooledConv]]:
    every = []
    for number, out in enumerate(outs):
        every.append((f"conv{number}", PooledConv(channels, out, 5, 0, 2, bias=bias)))
        channels = out
    return every


def params_of(layers: Sequence[tuple[str, PooledConv]], clients: int, *, whole: bool = False) -> Tree:
    """Parameters of a stack; ``whole``: small whole numbers, with which float32 computes exactly."""
    generator = torch.Generator().manual_seed(1)
    params = {}
    for path, layer in layers:
        for name, leaf in layer.named_parameters():
            shape = clients, *leaf.shape
            given = torch.randint(-1, 2, shape, generator=generator).float()
            params[f"{path}.{name}"] = (
                given if whole else torch.randn(shape, generator=generator) * leaf.abs().max().item()
            )
    return params


def images_of(clients: int, batch: int, channels: int, side: int, *, whole: bool = False) -> Tensor:
    generator, shape = torch.Generator().manual_seed(2), (clients, batch, channels, side, side)
    return (
        torch.randint(-2, 3, shape, generator=generator).float() if whole else torch.randn(shape, generator=generator)
    )


def native_passes(found: ConvolutionStack, params: Tree, images: Tensor) -> tuple[Tensor, Tree]:
    """Features, and the gradients for ``weights_of`` the features as their gradient."""
    features = found.forward(params, {}, images).clone()
    grads = found.backward(filled(gradient_of(features)))
    return features, {name: grads[name].clone() for name in params}


def gradient_of(features: Tensor) -> Tensor:
    return torch.linspace(-2, 2, features[0].numel()).round().view(features.shape[1:]).expand(features.shape)


def filled(gradient_NBD: Tensor) -> Tensor:
    """As the compiled pass reads it: (N, D, B), filled up."""
    return F.pad(gradient_NBD.mT, (0, -gradient_NBD.shape[1] % 16)).contiguous()


def torch_passes(layers: Sequence[tuple[str, PooledConv]], params: Tree, images: Tensor) -> tuple[Tensor, Tree]:
    """The same by torch in the dtype of the images, client by client."""
    leaves = {name: leaf.to(images.dtype).requires_grad_() for name, leaf in params.items()}
    every = []
    for n, x in enumerate(images):
        for path, layer in layers:
            bias = None if layer.bias is None else leaves[f"{path}.bias"][n]
            x = F.relu(F.max_pool2d(F.conv2d(x, leaves[f"{path}.weight"][n], bias), 2))
        every.append(x.flatten(1))
    features = torch.stack(every)
    grads = torch.autograd.grad(features, list(leaves.values()), gradient_of(features).to(images.dtype))
    return features.detach(), dict(zip(params, grads, strict=True))


def declared(layers: Sequence[tuple[str, PooledConv]]) -> list[Convolution]:
    return [Convolution(path, layer) for path, layer in layers]


def made(layers: Sequence[tuple[str, PooledConv]]) -> ConvolutionStack:
    forward, backward = (native("convolutions", name) for name in ("forward", "backward"))
    assert forward is not None and backward is not None
    return ConvolutionStack(NativeConvolutions((forward, backward), declared(layers), frozenset()))


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("batch", [1, 16, 37])
def test_passes_agree_with_torch_in_float64(size: tuple[int, int, list[int]], batch: int) -> None:
    channels, side, outs = size
    layers = layers_of(channels, outs, bias=batch != 16)
    params, images = params_of(layers, 2), images_of(2, batch, channels, side)
    features, grads = native_passes(made(layers), params, images)
    exact_features, exact = torch_passes(layers, params, images.double())
    torch.testing.assert_close(features.double(), exact_features, rtol=1e-5, atol=1e-5)
    for name, leaf in exact.items():
        assert (grads[name] - leaf).abs().max() <= 1e-5 * leaf.abs().max(), name


@pytest.mark.parametrize("size", SIZES[:3], ids=str)
def test_ties_are_resolved_as_by_torch(size: tuple[int, int, list[int]]) -> None:
    """With whole numbers many pixels of a window are equal, and nothing is rounded."""
    channels, side, outs = size
    layers = layers_of(channels, outs[:1], bias=True)
    params, images = params_of(layers, 2, whole=True), images_of(2, 20, channels, side, whole=True)
    features, grads = native_passes(made(layers), params, images)
    exact_features, exact = torch_passes(layers, params, images)
    assert torch.equal(features, exact_features)
    assert all(torch.equal(grads[name], leaf) for name, leaf in exact.items())


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_a_client_has_the_same_bits_in_every_stack(size: tuple[int, int, list[int]]) -> None:
    """Alone, in the memory of another stack, and beside samples with a gradient of 0."""
    channels, side, outs = size
    layers = layers_of(channels, outs, bias=True)
    params, images = params_of(layers, 3), images_of(3, 21, channels, side)
    found = made(layers)
    features, grads = native_passes(found, params, images)
    alone = native_passes(found, {name: leaf[1:2] for name, leaf in params.items()}, images[1:2])
    assert torch.equal(alone[0], features[1:2])
    assert all(torch.equal(alone[1][name], leaf[1:2]) for name, leaf in grads.items())
    gradient, rest = gradient_of(features), torch.zeros_like(features)
    fewer, of_fewer = (
        found.forward(params, {}, images[:, :9]).clone(),
        tmap(torch.clone, found.backward(filled(gradient[:, :9]))),
    )
    assert torch.equal(fewer, features[:, :9])
    rest[:, :9] = gradient[:, :9]
    found.forward(params, {}, images)
    assert all(torch.equal(leaf, of_fewer[name]) for name, leaf in found.backward(filled(rest)).items())


@pytest.mark.slow
@pytest.mark.parametrize("cpu", ["8 floats", "4 floats"])
def test_registers_of_other_widths_have_the_same_bits(cpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layers = layers_of(2, [7, 5], bias=True)
    params, images = params_of(layers, 2), images_of(2, 18, 2, 20)
    features, grads = native_passes(made(layers), params, images)
    passes = []
    for name in ("forward", "backward"):
        with monkeypatch.context() as patch:
            passes.append(compiled_for(cpu, patch, "convolutions", name))
    of_other_cpu = NativeConvolutions((passes[0], passes[1]), declared(layers), frozenset())
    narrow, of_narrow = native_passes(ConvolutionStack(of_other_cpu), params, images)
    assert torch.equal(narrow, features)
    assert all(torch.equal(of_narrow[name], leaf) for name, leaf in grads.items())


@pytest.mark.slow
@pytest.mark.parametrize("cpu", ["8 floats", "4 floats"])
def test_statistics_of_a_batch_have_the_same_bits_on_other_registers(cpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of pixels and of neurons."""
    first = native_network(build(MODELS.parse("lenet"), IMAGE, 3, NORMS.parse("bn"), True, seed=3), IMAGE)
    assert first is not None and first.convolutions is not None
    functions = []
    for module, name in (("convolutions", "forward"), ("convolutions", "backward"), ("mlp", "run")):
        with monkeypatch.context() as patch:
            functions.append(compiled_for(cpu, patch, module, name))
    convolutions = replace(first.convolutions, passes=(functions[0], functions[1]))
    both = [trainer(norm="bn", batch_size=18, clients=toy_clients((20, 20, 20))) for _ in range(2)]
    executor: Any = both[1].executor
    executor._passes = replace(executor._passes, native=replace(first, run=functions[2], convolutions=convolutions))
    train(1, *both)
    assert same_bits(*both)


@pytest.mark.parametrize("norm", ["ln", "ln-before", "ln-static", "ln-channel", "gn", "rms", "fn-layerwise", "bn"])
@pytest.mark.parametrize("image", [(3, 32, 32), (1, 25, 25)], ids=str)
def test_gradients_with_norms_are_those_of_float64(norm: str, image: tuple[int, int, int]) -> None:
    """Of LeNet; with 25 pixels the last row and column count in the statistics and are not pooled."""
    nets = [
        build(MODELS.parse("lenet"), image, 10, NORMS.parse(norm), bias=True, seed=0, dtype=dtype)
        for dtype in (torch.float32, torch.float64)
    ]
    compiled, generator = native_network(nets[0], image), torch.Generator().manual_seed(0)
    assert compiled is not None
    params = {
        name: leaf.detach() + 0.05 * torch.randn(2, *leaf.shape, generator=generator)
        for name, leaf in nets[0].named_parameters()
    }
    images, labels = torch.randn(2, 21, *image, generator=generator), torch.arange(42).view(2, 21) % 10
    buffers = {name: leaf.expand(2, *leaf.shape).clone() for name, leaf in nets[0].named_buffers()}
    stack = NativeStack(compiled)
    _, logits = stack.forward(params, buffers, images)
    grads = stack.backward(params, stack.cross_entropy(logits, (labels, None))[1])
    for n in range(2):
        leaves = {name: leaf[n].double().requires_grad_() for name, leaf in params.items()}
        moved = {name: leaf.clone() for name, leaf in nets[1].named_buffers()}
        _, exact = pure_forward(nets[1])(leaves, moved, images[n].double())
        for name, leaf in moved.items():
            torch.testing.assert_close(buffers[name][n].double(), leaf, rtol=1e-5, atol=1e-6)
        every = torch.autograd.grad(F.cross_entropy(exact, labels[n]), list(leaves.values()))
        for name, leaf in zip(leaves, every, strict=True):
            assert (grads[name][n] - leaf).abs().max() <= (1e-4 if norm == "bn" else 2e-5) * leaf.abs().max(), name


def test_not_a_number_stays_one() -> None:
    layers = layers_of(1, [6, 16], bias=True)
    params, images = params_of(layers, 1), images_of(1, 17, 1, 28)
    images[0, 3, 0, 12, 13] = float("nan")
    features, _ = native_passes(made(layers), params, images)
    assert features[0, 3].isnan().any()
    assert not torch.cat([features[0, :3], features[0, 4:]]).isnan().any()


@pytest.mark.parametrize(
    ("model", "norm", "count"),
    [
        ("lenet", "none", 2),
        ("lenet", "fn", 2),
        ("cnn", "none", 2),
        ("cnn-table7", "fn", 2),
        ("lenet", "ln", 2),
        ("cnn", "gn", 2),
        ("cnn", "rms", 2),
        ("lenet", "in", 2),
        ("lenet", "dyt", 0),
        ("cnn", "bn", 2),
        ("cnn", "fixbn", 0),
        ("mlp", "none", 0),
        ("resnet18", "none", 0),
    ],
)
def test_the_network_decides_which_layers_are_compiled(model: str, norm: str, count: int) -> None:
    network = build(MODELS.parse(model), (3, 32, 32), 10, NORMS.parse(norm), bias=True, seed=0)
    found = NativeConvolutions.of(network, (3, 32, 32))
    assert count == (0 if found is None else len(found.layers))
    assert NativeConvolutions.of(network, (3, 32, 36)) is None


@pytest.mark.parametrize("other", [{"kernel": 3}, {"padding": 2}, {"pool": 3}, {"stride": 2}], ids=str)
@pytest.mark.parametrize("stage", [Conv, NarrowConv])
def test_other_windows_are_left_to_torch(stage: type[Conv], other: dict[str, Any]) -> None:
    @dataclass(frozen=True)
    class Other(Model):
        def stages(self) -> tuple[Stage, ...]:
            return stage(6, **{"kernel": 5, "padding": 0, "pool": 2} | other), Dense(7)

    network = build(Other(), (1, 28, 28), 10, NORMS.parse("none"), bias=True, seed=0)
    assert NativeConvolutions.of(network, (1, 28, 28)) is None


IMAGE = (1, 20, 20)


def trainer(method: str = "fedavg", executor: str = "native", norm: str = "none", **given: Any) -> FederatedTrainer:
    """Of a small LeNet."""
    network = build(MODELS.parse("lenet"), IMAGE, 3, NORMS.parse(norm), bias=True, seed=3, dtype=torch.float32)
    images = replace(toy_images(IMAGE), dtype=torch.float32)
    known: dict[str, Any] = {"network": network, "images": images, "image": IMAGE, "sgd": Sgd(0.05, momentum=0.9)}
    return toy_trainer(METHODS.parse(method), executor=executor, **known | given)


SETTINGS: dict[str, dict[str, Any]] = {
    "equal steps": {},
    "plain": {"sgd": Sgd(0.05)},
    "decay": {"sgd": Sgd(0.05, momentum=0.9, weight_decay=0.01, nesterov=True)},
    "adam": {"sgd": Adam(0.001)},
    "unequal steps": {"steps": [3, 1, 5]},
    "partial batches": {"drop_last": False, "steps": [4, 3, 6]},
    "fn": {"norm": "fn"},
    "scale": {"norm": "scale"},
    "ln": {"norm": "ln"},
    "ln before": {"norm": "ln-before", "drop_last": False, "steps": [4, 3, 6]},
    "gn": {"norm": "gn", "sgd": Sgd(0.05)},
    "rms": {"norm": "rms"},
    "fn-layerwise": {"norm": "fn-layerwise"},
    "scale-layerwise": {"norm": "scale-layerwise"},
    "bn": {**CALM, "steps": [3, 1, 5]},
    "silobn": {**CALM, "norm": "silobn", "steps": [2, 2, 2]},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_runs_agree_with_those_of_torch(settings: dict[str, Any]) -> None:
    """Within the rounding of two rounds."""
    both = [trainer(executor=executor, **settings) for executor in ("native", "stacked")]
    train(2, *both)
    ours, theirs = map(everything, both)
    for name, leaf in theirs.items():
        assert float((ours[name] - leaf).abs().max()) < 1e-4 * max(1.0, float(leaf.abs().max())), name


@pytest.mark.parametrize("method", fast(METHODS.classes, "fedprox", "scaffold", "moon", "fedsam"))
def test_every_method_has_the_numbers_of_torch(method: str) -> None:
    # FedDecorr divides by deviations of features that are almost 0 here: after two rounds at the rate 0.05 torch's own
    # numbers are 0.07 from those in float64.
    sgd = Sgd(1e-4 if method == "feddecorr" else 0.05)
    for settings in ({"sgd": sgd}, CALM):
        both = [trainer(method, executor, **settings) for executor in ("native", "stacked")]
        train(2, *both)
        ours, theirs = map(everything, both)
        for name, leaf in theirs.items():
            allowed = (5e-4 if settings is CALM else 1e-4) * max(1.0, float(leaf.abs().max()))  # some divide by rates
            assert float((ours[name] - leaf).abs().max()) < allowed, (settings, name)


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_runs_have_the_same_bits_in_other_stacks_and_threads(settings: dict[str, Any]) -> None:
    """Of three clients, of two and one, and alone."""
    one = trainer(**settings)
    others = [trainer(**settings, chunk=2), trainer(**settings, chunk=1, pool=3)]
    alone_steps = settings["steps"][:1] if "steps" in settings else 4
    alone = trainer(**{**settings, "steps": alone_steps}, clients=toy_clients((20,)))
    sent = [each.step(keep_clients=True).client_params for each in (one, alone)]
    assert sent[0] is not None and sent[1] is not None
    assert all(torch.equal(leaf[0], sent[1][name][0]) for name, leaf in sent[0].items())
    train(1, *others)
    assert all(same_bits(one, other) for other in others)


def test_auto_chooses_by_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = Arrays(np.zeros((200, 3, 32, 32), np.uint8), np.arange(200) % 10)
    data = Data(arrays, arrays, 10, tuple("0123456789"), 255, "")

    def chosen(model: str, wanted: Executor = "auto", **fields: Any) -> str:
        known = {"dataset": "cifar10", "model": model, "clients": 2, "partition": "iid"} | fields
        return executor_for(parse_experiment(known), data, device="cpu", wanted=wanted)  # type: ignore[arg-type]

    assert [chosen("lenet", batch_size=size) for size in (1, 17, 64)] == ["native"] * 3
    assert [chosen("cnn", batch_size=size) for size in (1, 8, 20)] == ["stacked", "loop", "loop-onednn"]
    assert [chosen("cnn", batch_size=size) for size in (12, 32)] == ["native"] * 2
    assert chosen("cnn", "native", batch_size=1) == "native"
    assert chosen("lenet", norm="bn") == "native"
    assert chosen("lenet", norm="bn", local_epochs=1, drop_last=False) == chosen("lenet", norm="fixbn") == "loop"
    assert chosen("lenet", precision="bf16") == "loop"
    monkeypatch.setattr(convolution_stack, "native", lambda *_: None)
    assert chosen("lenet") == "loop"
    with pytest.raises(UserError, match=r"executor native: .* use auto"):
        chosen("lenet", "native")
