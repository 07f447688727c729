"""A round on a GPU that is only imagined: torch follows devices, shapes and layouts, and nothing is computed.

Torch's engine for backward passes needs a real device: here the graph is walked in Python, with torch's own backward
functions and those of flbench.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.function import BackwardCFunction

from flbench.engine.cuda_round import RoundFunction
from flbench.engine.executors import StackedExecutor
from flbench.engine.federated import FederatedTrainer
from flbench.engine.run import RoundInputs, Run
from flbench.engine.server_round import RunGroup
from flbench.methods.base import Tree
from flbench.models import convolutions

#: The CPU builds of torch, and those for Macs, have no CUDA to be traced.
NEEDS_CUDA_BUILD = pytest.mark.skipif(not torch.backends.cuda.is_built(), reason="this torch was built without CUDA")


def imagined(leaf: Tensor) -> Tensor:
    return torch.empty(leaf.shape, dtype=leaf.dtype, device="cuda")


def tree_of(tree: Tree) -> Tree:
    return {name: imagined(leaf) for name, leaf in tree.items()}


def moved(trainer: FederatedTrainer, autocast: torch.dtype | None) -> Run:
    """The trainer's constants on the device."""
    run, images = trainer.run, trainer.images
    names = ("train_MCHW", "train_labels_M", "test_MCHW", "test_labels_M")
    on_gpu = replace(images, **{name: imagined(getattr(images, name)) for name in names})
    own_NM = None if run.own_NM is None else imagined(run.own_NM)
    setup = replace(run.setup, images=on_gpu, autocast=autocast)
    held = run.server_data and replace(
        run.server_data, images=on_gpu, rows_M=imagined(run.server_data.rows_M), autocast=autocast
    )
    return replace(run, setup=setup, server_data=held, counts_NY=imagined(run.counts_NY), own_NM=own_NM)


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
    every = [(leaf, found.get(id(leaf))) for leaf in inputs]
    return tuple(torch.zeros_like(leaf) if own is None and materialize_grads else own for leaf, own in every)  # type: ignore[misc]


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


def stub_streams(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replace CUDA's streams, and return the list that notes which waits for which and where work is done."""
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


def round_on_gpu(
    trainers: Sequence[FederatedTrainer],
    monkeypatch: pytest.MonkeyPatch,
    chunk: int,
    autocast: torch.dtype | None = None,
    watch: AbstractContextManager[object] | None = None,
) -> list[Tree]:
    """Compute a round of all trainers together; ``watch`` is entered around it, on the device."""
    runs = [trainer.run for trainer in trainers]
    drawn = RoundInputs.draw(runs, [0] * len(trainers), torch.device("cpu")).tree()
    states = [trainer.run_state() for trainer in trainers]
    executor = trainers[0].executor
    assert isinstance(executor, StackedExecutor)
    executor.chunk, executor.pixels_last = chunk, True  # as ``engine.setup`` makes it for a GPU

    monkeypatch.setattr(torch.autograd, "grad", gradients)
    with FakeTensorMode(allow_non_fake_inputs=False):
        group = RunGroup(tuple(moved(trainer, autocast) for trainer in trainers))
        function = RoundFunction(group, executor)
        inputs = [tree_of(tree) for tree in [drawn, *(tree for state in states for tree in state.trees())]]
        with watch or nullcontext():
            return function(inputs)


def allow_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let torch believe that the GPU can compute in bfloat16."""
    monkeypatch.setattr(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
