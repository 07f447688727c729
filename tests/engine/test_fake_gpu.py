"""A whole round on a GPU that is only imagined (``tests.imagined_gpu``) finds whatever is left or read on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from flbench.engine.executors import StackedExecutor
from flbench.engine.federated import FederatedTrainer
from flbench.engine.optimizers import Sgd
from flbench.engine.server_round import RoundOutcome
from flbench.errors import UserError
from flbench.methods.base import Method, ServerContext, Tree
from flbench.models.convolutions import CONVOLUTIONS
from flbench.models.layers import Conv, StackedProduct
from flbench.registry import METHODS
from tests.engine.test_cuda_graph import group
from tests.hook_methods import METHODS as HOOK_METHODS
from tests.hook_methods import label, varied
from tests.imagined_gpu import (
    NEEDS_CUDA_BUILD,
    allow_bf16,
    gradients,
    imagined,
    moved,
    round_on_gpu,
    stub_streams,
    tree_of,
)
from tests.samples import fast
from tests.toys import largest_difference, toy_clients, toy_images, toy_network, toy_trainer

pytestmark = NEEDS_CUDA_BUILD

IMAGE = (2, 8, 8)


@pytest.fixture(autouse=True)
def streams(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return stub_streams(monkeypatch)


class Products(TorchDispatchMode):
    """Notes each operation and the dtype of its first tensor."""

    def __init__(self, seen: set[tuple[str, torch.dtype]]) -> None:
        super().__init__()
        self._seen = seen

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if args and isinstance(args[0], Tensor):
            self._seen.add((str(func), args[0].dtype))
        return func(*args, **(kwargs or {}))


def expect(outputs: Sequence[Tree], trainers: Sequence[FederatedTrainer]) -> None:
    """Everything is on the device, and the state as it was in names, shapes and kinds."""
    assert all(leaf.device.type == "cuda" for tree in outputs for leaf in tree.values())
    before = [tree for trainer in trainers for tree in trainer.run_state().trees()]
    for old, new in zip(before, outputs[1:], strict=True):
        assert {name: (leaf.shape, leaf.dtype) for name, leaf in old.items()} == {
            name: (leaf.shape, leaf.dtype) for name, leaf in new.items()
        }


@pytest.mark.parametrize("participation", [0.67, pytest.param(1.0, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("method", fast(METHODS.classes, "fedavg", "scaffold"))
def test_every_method_stays_on_the_device(method: str, participation: float, monkeypatch: pytest.MonkeyPatch) -> None:
    images = replace(toy_images(), augment=True)
    settings: dict[str, Any] = {"norm": "bn", "participation": participation, "images": images}
    trainer = toy_trainer(METHODS.parse(method), executor="stacked", sgd=Sgd(0.1, 0.9, 0.01), **settings)
    expect(round_on_gpu([trainer], monkeypatch, chunk=2), [trainer])


@pytest.mark.parametrize("method", fast(METHODS.classes, "fedavg", "scaffold"))
def test_runs_trained_together_stay_on_the_device(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    trainers = group(method, norm="ln")
    expect(round_on_gpu(trainers, monkeypatch, chunk=4), trainers)


@pytest.mark.parametrize("method", fast(HOOK_METHODS, "Taught", "Statistical", "Learned", name=label))
def test_every_hook_stays_on_the_device(method: Method, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = toy_trainer(method, executor="stacked", sgd=Sgd(0.1, 0.9, 0.01), norm="bn", participation=0.67)
    expect(round_on_gpu([trainer], monkeypatch, chunk=2), [trainer])


@pytest.mark.parametrize("method", fast(HOOK_METHODS, "Taught", "Statistical", "Learned", name=label))
def test_hooks_of_runs_trained_together_stay_on_the_device(method: Method, monkeypatch: pytest.MonkeyPatch) -> None:
    own = [varied(method, factor) for factor in (1.0, 0.5)]
    trainers = [toy_trainer(one, executor="stacked", seed=seed, norm="ln") for seed, one in enumerate(own)]
    expect(round_on_gpu(trainers, monkeypatch, chunk=4), trainers)


def test_unequal_steps_stay_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = toy_trainer(METHODS.parse("scaffold"), executor="stacked", steps=[1, 3, 2], norm="bn")
    expect(round_on_gpu([trainer], monkeypatch, chunk=3), [trainer])


@pytest.mark.parametrize("norm", fast(["none", "fn", "ln", "gn", "bn", "in", "rms"], "none", "bn"))
@pytest.mark.parametrize("model", ["toy-cnn", "toy-resnet18"])
def test_networks_of_convolutions_stay_on_the_device(model: str, norm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings: dict[str, Any] = {"model": model, "norm": norm, "image": IMAGE, "images": toy_images(IMAGE)}
    trainer = toy_trainer(METHODS.parse("fedavg"), executor="stacked", batch_size=3, clients=toy_clients(), **settings)
    expect(round_on_gpu([trainer], monkeypatch, chunk=3), [trainer])


@dataclass(frozen=True)
class Careless(Method):
    """A method that makes a tensor where nobody said."""

    def server_step(self, x: Tree, delta: Tree, message: Tree, state: Tree, ctx: ServerContext) -> tuple[Tree, Tree]:
        return {name: leaf + torch.ones(leaf.shape, dtype=leaf.dtype) for name, leaf in x.items()}, state


def test_tensors_left_on_the_cpu_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        UserError, match=r"the hook server_step of the method 'Careless' raised .*(same device|Device Propagation)"
    ):
        round_on_gpu([toy_trainer(Careless(), executor="stacked")], monkeypatch, chunk=3)


@pytest.mark.parametrize("model", ["toy-cnn", "toy-resnet18"])
@pytest.mark.parametrize("way", sorted(CONVOLUTIONS))
def test_every_way_to_convolve_stays_on_the_device(way: str, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings: dict[str, Any] = {"model": model, "image": IMAGE, "images": toy_images(IMAGE)}
    trainer = toy_trainer(METHODS.parse("fedavg"), executor="stacked", batch_size=3, **settings)
    assert isinstance(trainer.executor, StackedExecutor)
    for layer in trainer.executor._network.modules():
        if isinstance(layer, Conv):
            layer.stacked_as = way
    expect(round_on_gpu([trainer], monkeypatch, chunk=3), [trainer])


def test_what_a_round_reports_of_its_clients_is_on_the_device() -> None:
    trainer = toy_trainer(METHODS.parse("fedavg"), executor="stacked")
    with FakeTensorMode(allow_non_fake_inputs=False):
        trainer.images = moved(trainer, None).setup.images
        outcome = RoundOutcome(trainer.run_state(), imagined(torch.zeros(())), 0, tree_of(trainer.x))
        report = trainer.close_round(outcome, 0.0)
    assert report.weights_S is not None and report.client_params is not None
    assert {leaf.device.type for leaf in (report.weights_S, *report.client_params.values())} == {"cuda"}


@pytest.mark.parametrize("of_x", [True, False])
@pytest.mark.parametrize("way", sorted(CONVOLUTIONS))
def test_both_passes_of_a_convolution_on_the_device(way: str, of_x: bool, streams: list[str]) -> None:
    with FakeTensorMode():
        x = torch.empty(3, 2, 4, 8, 8, device="cuda", requires_grad=of_x)
        weight = torch.empty(3, 5, 4, 3, 3, device="cuda", requires_grad=True)
        out = CONVOLUTIONS[way](x, weight, (2, 2), (1, 1))
        assert (out.shape, out.device.type) == ((3, 2, 5, 4, 4), "cuda")
        leaves = [x, weight] if of_x else [weight]
        for leaf, gradient in zip(leaves, gradients(out, leaves, torch.ones_like(out)), strict=True):
            assert (gradient.shape, gradient.dtype, gradient.device) == (leaf.shape, leaf.dtype, leaf.device)
    fork, join = ([f"{a} waits for {b}" for a, b in pairs] for pairs in (SIDES, [pair[::-1] for pair in SIDES]))
    one_pass = [*fork, "on side 0", "on side 1", "on side 0", *join]
    assert streams == (2 * one_pass if way == "streamed" else []), "either pass forks from its stream and joins it"


SIDES = [("side 0", "own"), ("side 1", "own")]


@pytest.mark.parametrize("outputs", [5, 50])
def test_both_passes_of_a_product_on_the_device(outputs: int) -> None:
    with FakeTensorMode():
        x = torch.empty(3, 4, 8, device="cuda", requires_grad=True)
        weight = torch.empty(3, outputs, 8, device="cuda", requires_grad=True)
        out = StackedProduct.apply(x, weight)
        found = gradients(out, [x, weight], torch.ones_like(out))
    assert [(leaf.shape, leaf.device.type) for leaf in found] == [((3, 4, 8), "cuda"), ((3, outputs, 8), "cuda")]


def test_a_backward_pass_that_leaves_the_device_is_found() -> None:
    class Careless(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return 2 * x

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return torch.full(gradient.shape, 2.0)

    with FakeTensorMode():
        x = torch.empty(3, device="cuda", requires_grad=True)
        out = Careless.apply(x)
        with pytest.raises(AssertionError, match="cpu instead of cuda"):
            gradients(out, [x], torch.ones_like(out))


def test_the_walk_computes_what_the_engine_of_torch_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    walked, expected = (
        toy_trainer(METHODS.parse("feddecorr"), executor="stacked", norm="bn", batch_size=6) for _ in range(2)
    )
    expected.step()
    monkeypatch.setattr(torch.autograd, "grad", gradients)
    walked.step()
    assert largest_difference(walked.x, expected.x) < 1e-12


@pytest.mark.parametrize(
    ("way", "norm"),
    [
        ("streamed", "bn"),
        ("unfolded", "bn"),
        ("grouped", "ln"),
        *(pytest.param("grouped", norm, marks=pytest.mark.slow) for norm in ("fn", "gn", "bn", "rms", "bn-last")),
    ],
)
def test_mixed_precision_on_the_device(way: str, norm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Products are in bfloat16; statistics, weights and their gradients in float32."""
    allow_bf16(monkeypatch)
    network = toy_network("toy-cnn", norm, IMAGE).float()
    for layer in network.modules():
        if isinstance(layer, Conv):
            layer.stacked_as = way
    images = replace(toy_images(IMAGE), dtype=torch.float32)
    trainer = toy_trainer(METHODS.parse("feddecorr"), executor="stacked", network=network, images=images, batch_size=6)
    seen: set[tuple[str, torch.dtype]] = set()
    with Products(seen):
        trees = round_on_gpu([trainer], monkeypatch, chunk=3, autocast=torch.bfloat16)
    expect(trees, [trainer])
    assert {dtype for name, dtype in seen if name.startswith(("aten.convolution", "aten.bmm"))} >= {torch.bfloat16}
    assert {dtype for name, dtype in seen if "var_mean" in name or "vector_norm" in name or "_norm" in name} <= {
        torch.float32
    }
