"""A whole round on a GPU that is only imagined: torch follows devices and shapes, and nothing is computed.

It finds whatever is left on the CPU, or is read there. Torch's engine for backward passes needs a real device: here the
graph is walked in Python, with torch's own backward functions and those of flbench.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.function import BackwardCFunction
from torch.utils._python_dispatch import TorchDispatchMode

from flbench.engine.cuda_round import RoundFunction
from flbench.engine.executors import StackedExecutor
from flbench.engine.federated import FederatedTrainer
from flbench.engine.optimizers import Sgd
from flbench.engine.run import RoundInputs, Run
from flbench.engine.server_round import RunGroup
from flbench.errors import UserError
from flbench.methods.base import Method, ServerContext, Tree
from flbench.models import convolutions
from flbench.models.convolutions import CONVOLUTIONS
from flbench.models.layers import Conv, StackedProduct
from flbench.registry import METHODS
from tests.engine.test_cuda_graph import group
from tests.hook_methods import METHODS as HOOK_METHODS
from tests.hook_methods import label, varied
from tests.toys import largest_difference, toy_clients, toy_images, toy_network, toy_trainer

IMAGE = (2, 8, 8)


def imagined(leaf: Tensor) -> Tensor:
    return torch.empty(leaf.shape, dtype=leaf.dtype, device="cuda")


def tree_of(tree: Tree) -> Tree:
    return {name: imagined(leaf) for name, leaf in tree.items()}


def moved(trainer: FederatedTrainer, autocast: torch.dtype | None) -> Run:
    """The trainer's constants on the device."""
    run, images = trainer.run, trainer.images
    names = ("train_MCHW", "train_labels_M", "test_MCHW", "test_labels_M")
    on_gpu = replace(images, **{name: imagined(getattr(images, name)) for name in names})
    return replace(run, setup=replace(run.setup, images=on_gpu, autocast=autocast), counts_NY=imagined(run.counts_NY))


@torch.no_grad()
def gradients(
    outputs: Tensor, inputs: Sequence[Tensor], grad_outputs: Tensor, materialize_grads: bool = False, **_: Any
) -> tuple[Tensor, ...]:
    """What ``torch.autograd.grad`` computes, on devices that are not there; each gradient fits what it belongs to."""
    assert outputs.grad_fn is not None and grad_outputs.shape == outputs.shape
    waiting: dict[Any, dict[int, Tensor]] = {outputs.grad_fn: {outputs.output_nr: grad_outputs}}
    found: dict[int, Tensor] = {}
    for node in backward_order(outputs.grad_fn):
        own = [waiting.get(node, {}).get(number) for number in range(len(node._input_metadata))]
        if all(gradient is None for gradient in own):
            continue
        if hasattr(node, "variable"):
            found[id(node.variable)] = own[0]  # type: ignore[assignment]
            continue
        of_inputs = node.apply(*own) if isinstance(node, BackwardCFunction) else node(*own)
        of_inputs = of_inputs if isinstance(of_inputs, tuple) else (of_inputs,)
        assert not any(of_inputs[len(node.next_functions) :]), "arguments that are no tensors come last"
        for gradient, (before, number) in zip(of_inputs, node.next_functions, strict=False):
            if gradient is not None and before is not None:
                fitted = fitting(gradient, before._input_metadata[number], node)
                sums = waiting.setdefault(before, {})
                sums[number] = sums[number] + fitted if number in sums else fitted
    zeros = torch.zeros_like if materialize_grads else None
    return tuple(found[id(leaf)] if id(leaf) in found or zeros is None else zeros(leaf) for leaf in inputs)


def backward_order(last: Any) -> list[Any]:
    """All functions of a graph, each after those that it waits for."""
    order, seen, stack = [], set(), [(last, False)]
    while stack:
        node, is_done = stack.pop()
        if is_done:
            order.append(node)
        elif node not in seen:
            seen.add(node)
            stack += [(node, True), *((before, False) for before, _ in node.next_functions if before is not None)]
    return order[::-1]


def fitting(gradient: Tensor, wanted: Any, node: Any) -> Tensor:
    """In the shape and dtype that are wanted, as torch's engine makes it; flbench's own must be so by themselves."""
    shape = torch.Size(wanted.shape)
    assert gradient.device == wanted.device, f"{node}: {gradient.device} instead of {wanted.device}"
    if isinstance(node, BackwardCFunction):
        assert (gradient.shape, gradient.dtype) == (shape, wanted.dtype)
    return gradient.sum_to_size(shape).to(wanted.dtype)


@pytest.fixture(autouse=True)
def streams(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Stubs of CUDA's streams, which note who waits for whom and what is computed where."""
    notes: list[str] = []
    current = ["own"]

    class Stub:
        def __init__(self, name: str) -> None:
            self.name = name

        def wait_stream(self, other: Stub) -> None:
            notes.append(f"{self.name} waits for {other.name}")

    @contextmanager
    def stream(entered: Stub) -> Iterator[None]:
        current.append(entered.name)
        notes.append(f"on {entered.name}")
        yield
        current.pop()

    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: Stub(current[-1]))
    monkeypatch.setattr(torch.cuda, "stream", stream)
    monkeypatch.setattr(convolutions, "_streams", lambda device: [Stub(f"side {number}") for number in range(2)])
    return notes


class Products(TorchDispatchMode):
    """Notes each operation and the dtype of its first tensor."""

    def __init__(self, seen: set[tuple[str, torch.dtype]]) -> None:
        super().__init__()
        self._seen = seen

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if args and isinstance(args[0], Tensor):
            self._seen.add((str(func), args[0].dtype))
        return func(*args, **(kwargs or {}))


def round_on_gpu(
    trainers: Sequence[FederatedTrainer],
    monkeypatch: pytest.MonkeyPatch,
    chunk: int,
    autocast: torch.dtype | None = None,
) -> list[Tree]:
    runs = [trainer.run for trainer in trainers]
    drawn = RoundInputs.draw(runs, [0] * len(trainers), torch.device("cpu")).tree()
    states = [trainer.run_state() for trainer in trainers]
    executor = trainers[0].executor
    assert isinstance(executor, StackedExecutor)
    executor.chunk = chunk

    monkeypatch.setattr(torch.autograd, "grad", gradients)
    with FakeTensorMode(allow_non_fake_inputs=False):
        group = RunGroup(tuple(moved(trainer, autocast) for trainer in trainers))
        function = RoundFunction(group, executor)
        return function([tree_of(tree) for tree in [drawn, *(tree for state in states for tree in state.trees())]])


def expect(outputs: Sequence[Tree], trainers: Sequence[FederatedTrainer]) -> None:
    """Everything is on the device, and the state as it was in names, shapes and kinds."""
    assert all(leaf.device.type == "cuda" for tree in outputs for leaf in tree.values())
    before = [tree for trainer in trainers for tree in trainer.run_state().trees()]
    for old, new in zip(before, outputs[1:], strict=True):
        assert {name: (leaf.shape, leaf.dtype) for name, leaf in old.items()} == {
            name: (leaf.shape, leaf.dtype) for name, leaf in new.items()
        }


@pytest.mark.parametrize("participation", [0.67, pytest.param(1.0, marks=pytest.mark.slow)])
@pytest.mark.parametrize("method", METHODS.classes)
def test_every_method_stays_on_the_device(method: str, participation: float, monkeypatch: pytest.MonkeyPatch) -> None:
    images = replace(toy_images(), augment=True)
    settings: dict[str, Any] = {"norm": "bn", "participation": participation, "images": images}
    trainer = toy_trainer(METHODS.parse(method), executor="stacked", sgd=Sgd(0.1, 0.9, 0.01), **settings)
    expect(round_on_gpu([trainer], monkeypatch, chunk=2), [trainer])


@pytest.mark.parametrize("method", METHODS.classes)
def test_runs_trained_together_stay_on_the_device(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    trainers = group(method, norm="ln")
    expect(round_on_gpu(trainers, monkeypatch, chunk=4), trainers)


@pytest.mark.parametrize("method", HOOK_METHODS, ids=label)
def test_every_hook_stays_on_the_device(method: Method, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = toy_trainer(method, executor="stacked", sgd=Sgd(0.1, 0.9, 0.01), norm="bn", participation=0.67)
    expect(round_on_gpu([trainer], monkeypatch, chunk=2), [trainer])


@pytest.mark.parametrize("method", HOOK_METHODS, ids=label)
def test_hooks_of_runs_trained_together_stay_on_the_device(method: Method, monkeypatch: pytest.MonkeyPatch) -> None:
    own = [varied(method, factor) for factor in (1.0, 0.5)]
    trainers = [toy_trainer(one, executor="stacked", seed=seed, norm="ln") for seed, one in enumerate(own)]
    expect(round_on_gpu(trainers, monkeypatch, chunk=4), trainers)


def test_unequal_steps_stay_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = toy_trainer(METHODS.parse("scaffold"), executor="stacked", steps=[1, 3, 2], norm="bn")
    expect(round_on_gpu([trainer], monkeypatch, chunk=3), [trainer])


@pytest.mark.parametrize("norm", ["none", "fn", "ln", "gn", "bn", "in", "rms"])
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
        *(("grouped", norm) for norm in ("fn", "ln", "gn", "bn", "rms", "bn-last")),
    ],
)
def test_mixed_precision_on_the_device(way: str, norm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Products are in bfloat16; statistics, weights and their gradients in float32."""
    monkeypatch.setattr(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
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
