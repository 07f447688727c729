"""Checks that nothing in a run draws from generators that flbench does not key.

Such draws depend on the executor and on what the process did before, so that one run id would have several results.
"""

from __future__ import annotations

import ctypes
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import nn

from flbench.errors import UserError, out_of_memory
from flbench.messages import reason
from flbench.models.frozen import initial_trees
from flbench.models.layers import StackableLayer
from flbench.models.network import pure_forward, stacked_forward
from flbench.models.sites import Shape
from flbench.models.token_layers import blank_batch

#: What to do instead.
ADVICE = "two runs of one id would differ; draw from flbench.streams.stream(seed, purpose, ...) instead"


#: Bytes of a Mersenne Twister: 624 words and the position.
TWISTER = 625 * 4


def generator_states() -> dict[str, Any]:
    """Return the state of every default generator by its name; of a GPU's its seed and offset."""
    states: dict[str, Any] = {}
    # The bytes of its state, read without an operation of torch, which a mode such as that of fake tensors refuses.
    of_torch = torch.default_generator.get_state()
    states["torch's default generator"] = ctypes.string_at(of_torch.data_ptr(), of_torch.numel())
    # The memory of a Mersenne Twister: numpy's own copy of it takes a hundred times as long.
    of_numpy = np.random.get_bit_generator()  # type: ignore[attr-defined]
    is_twister = isinstance(of_numpy, np.random.MT19937)
    states["numpy's global generator"] = (
        ctypes.string_at(_address(of_numpy), TWISTER) if is_twister else repr(of_numpy.state)
    )
    # The same of CPython's, which follows the head of the object.
    of_python = random.random.__self__  # type: ignore[attr-defined]
    is_cpython = sys.implementation.name == "cpython"
    states["Python's random module"] = (
        ctypes.string_at(id(of_python) + object.__basicsize__, TWISTER) if is_cpython else of_python.getstate()
    )
    if torch.cuda.is_initialized():
        for number, one in enumerate(torch.cuda.default_generators):
            states[f"torch's default generator of cuda:{number}"] = one.initial_seed(), one.get_offset()
    return states


@lru_cache(maxsize=1)  # to ask for it takes longer than to read the memory
def _address(generator: Any) -> int:
    return int(generator.ctypes.state_address)


def moved(before: dict[str, Any]) -> str | None:
    """Return the name of a generator whose state is another one than ``before``; None if all are as before."""
    now = generator_states()
    return next((name for name, state in before.items() if now[name] != state), None)


@contextmanager
def without_draws(what: str) -> Iterator[None]:
    """Fail if a default generator moves.

    Raises:
        UserError: it names ``what`` was running, and the generator.
    """
    before = generator_states()
    yield
    if (name := moved(before)) is not None:
        raise UserError(f"{what} draws random numbers from {name}: {ADVICE}")


def check_same_weights(first: nn.Module, again: nn.Module, what: str) -> None:
    """Raise UserError where a model that builds itself has returned other weights for the same seed."""
    pairs = zip(first.named_parameters(), again.named_parameters(), strict=True)
    for (name, leaf), (_, other) in pairs:
        if not torch.equal(leaf.detach().cpu(), other.detach().cpu()):
            raise UserError(
                f"{what}: build returns another {name} each time, so that two runs of one id would differ; draw from "
                "the default generators of torch, numpy or Python, which the run's seed keys, or from a fixed seed"
            )


def check_network(network: nn.Module, image: Shape, what: str, *, stacked: bool) -> None:
    """Try a pass of a network in training mode that is not made of flbench's own layers alone.

    Args:
        network: on its device; its tensors stay as they are.
        image: shape of a sample, as (C, H, W).
        what: names the model in errors.
        stacked: whether the pass is mapped over a stack of clients.

    Raises:
        UserError: a module draws random numbers, or cannot be mapped; it is named.
    """
    if all(isinstance(one, StackableLayer | nn.Sequential) for one in network.modules()):
        return
    network.train()
    names = {id(module): name or "the network itself" for name, module in network.named_modules()}
    trees = initial_trees(network)
    like = next(network.parameters())
    images = blank_batch(2, image, like)
    with torch.no_grad(), _named_draws(network, names, what):
        params, buffers = ({name: leaf.clone() for name, leaf in tree.items()} for tree in trees)
        pure_forward(network)(params, buffers, images)
        if not stacked:
            return
        twice = [{name: torch.stack([leaf, leaf]) for name, leaf in tree.items()} for tree in trees]
        try:
            stacked_forward(network)(twice[0], twice[1], torch.stack([images, images]))
        except Exception as error:
            if out_of_memory(error):
                raise
            raise UserError(
                f"{what}: {_innermost(error, names)} cannot be trained as a stack of clients ({reason(error)}); "
                "use --executor loop"
            ) from error


@contextmanager
def _named_draws(network: nn.Module, names: dict[int, str], what: str) -> Iterator[None]:
    """Fail as soon as a module draws; the innermost one returns first, so it is the one that is named."""
    before: list[dict[str, Any]] = []

    def enter(module: nn.Module, inputs: Any) -> None:
        before.append(generator_states())

    def leave(module: nn.Module, inputs: Any, outputs: Any) -> None:
        if (name := moved(before.pop())) is not None:
            raise UserError(
                f"{what}: the module {names[id(module)]} ({type(module).__qualname__}) draws random numbers from "
                f"{name} in training; for dropout use torch.nn.Dropout modules, whose masks flbench draws"
            )

    handles = [
        handle
        for module in network.modules()
        for handle in (module.register_forward_pre_hook(enter), module.register_forward_hook(leave))
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _innermost(error: BaseException, names: dict[int, str]) -> str:
    """The module in whose code an error was raised."""
    found, trace = "the network", error.__traceback__
    while trace is not None:
        if (name := names.get(id(trace.tb_frame.f_locals.get("self")))) is not None:
            found = f"the module {name} ({type(trace.tb_frame.f_locals['self']).__qualname__})"
        trace = trace.tb_next
    return found
