"""A check for authors of methods, here or in another package: ``flbench.testing.check_method(MyMethod)``.

Shape suffixes: M samples, C channels, H, W pixels.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch

from flbench.data.shards import Shards
from flbench.engine.device_data import DeviceData
from flbench.engine.executors import LoopExecutor, StackedExecutor
from flbench.engine.federated import FederatedTrainer, step_together
from flbench.engine.optimizers import Sgd
from flbench.engine.run import TrainingSetup
from flbench.engine.stack_bits import same_bits_together
from flbench.methods.base import Method, Tree
from flbench.models.frozen import initial_trees
from flbench.models.initial_weights import build
from flbench.models.masks import mask_keys
from flbench.registry import MODELS, NORMS

#: Rounds of each training.
ROUNDS = 2

#: Samples of each client. The first client has no sample of the last class, the second none of the first.
SIZES, CLASSES = (20, 14, 26), 3

#: Clients, and samples of each, with which a stack on a CPU has no rests (``engine/stack_bits.py``), and runs in it.
_FULL, _FULL_SIZE, _FUSED = 32, 16, 5

#: How stacks are made; without a chunk the executor is the loop.
_STACKED: dict[str, Any] = {"chunk": None}
_IN_CHUNKS: dict[str, Any] = {"chunk": 2}

#: Problems, each with something that a method can get wrong.
_PROBLEMS: dict[str, dict[str, Any]] = {
    "momentum and weight decay": {"norm": "ln", "sgd": Sgd(0.1, 0.5, 0.01)},
    "batch normalization, partial participation and kept momentum": {
        "norm": "bn",
        "sgd": Sgd(0.01, 0.5, kept=True),
        "participation": 0.67,
    },
    "unequal numbers of local steps": {"norm": "none", "sgd": Sgd(0.1, 0.5), "steps": (3, 1, 4)},
}

#: A problem in which only the method can give runs trained together other bits than the runs alone.
_ALIGNED: dict[str, Any] = {
    "norm": "ln",
    "sgd": Sgd(0.1, 0.5, 0.01),
    "sizes": (_FULL_SIZE,) * _FULL,
    "batch_size": _FULL_SIZE,
    "widths": [16, 16],
    "dtype": torch.float32,
    "steps": (2,) * _FULL,
}


def check_method(
    method: type[Method] | Method, *, off: Mapping[str, Any] | None = None, tolerance: float = 1e-10
) -> None:
    """Check a method on tiny problems in float64, in a few seconds.

    The loop over clients, a stack, a stack in chunks and a stack with another run agree; hooks return what the engine
    can use and modify none of their inputs; a run continues from its checkpoint. The other run has other values in all
    fields that are numbers and not ``static``. In float32 a run has every bit of the run alone beside others.

    Args:
        method: the method's class, used with its defaults, or an instance.
        off: fields with which the method is FedAvg; without them it must not be.
        tolerance: largest difference between two ways to compute the same.

    Raises:
        AssertionError: two ways to compute the same differ.
        UserError: a hook raised an error, or returned what the engine cannot use.
    """
    chosen = method() if isinstance(method, type) else method
    for problem, settings in _PROBLEMS.items():
        _check_executors(chosen, problem, settings, tolerance)
        _check_inputs_and_resumption(chosen, problem, settings)
    _check_bits(chosen)
    if off is not None:
        settings = _PROBLEMS["momentum and weight decay"]
        fedavg = _trained(Method(), settings)
        _same(_trained(replace(chosen, **off), settings), fedavg, f"with {dict(off)} it is not FedAvg", tolerance)
        _, difference = largest_difference(_trained(chosen, settings), fedavg)
        assert difference > tolerance, f"it is FedAvg without {dict(off)} as well"


def _check_executors(method: Method, problem: str, settings: dict[str, Any], tolerance: float) -> None:
    if method.trains:
        return  # the loop is the only way
    loop = _trained(method, settings)
    for way, stacked in {"a stack of clients": _STACKED, "a stack in chunks": _IN_CHUNKS}.items():
        _same(_trained(method, settings, **stacked), loop, f"{way} and the loop differ, with {problem}", tolerance)
    other = _varied(method)
    pair = [_trainer(method, settings, **_STACKED), _trainer(other, _beside(settings), **_STACKED)]
    for _ in range(ROUNDS):
        step_together(pair, [False, False])
    why = f"a run trained with another one and the run alone differ, with {problem}"
    _same(_state(pair[0]), loop, why, tolerance)
    _same(_state(pair[1]), _trained(other, _beside(settings)), why, tolerance)


def _check_bits(method: Method) -> None:
    """Check that numbers which are tensors in a stack of several runs round as the Python numbers of a run alone do."""
    numbers = [each.name for each in reversed(fields(method)) if _varied(method, 1, {each.name}) != method]  # own first
    if method.trains or not (found := _other_bits(method, numbers)):
        return
    suspects = {"a number of the context, such as ctx.lr,": [], **{f"the field {name!r}": [name] for name in numbers}}
    culprit = next((one for one, names in suspects.items() if _other_bits(method, names)), "one of its numbers")
    raise AssertionError(
        f"a run trained with others and the run alone differ in float32: {found}; {culprit} is a Python number alone "
        "and a tensor in such a stack, and torch rounds 1 - number, number / tensor and tensor ** number differently "
        "for the two. Write number * (1 / tensor) or tensor - number * tensor, or name a field in `static` "
        "(flbench docs extending)"
    )


def _other_bits(method: Method, numbers: Iterable[str]) -> str:
    """Return how a run beside others differs from the run alone; empty if all have their bits, or train one by one.

    Args:
        method: of the first run.
        numbers: fields that have other values in the others, in all of which a fault of rounding is unlikely to hide.
    """
    methods = [_varied(method, count, numbers) for count in range(_FUSED)]
    together, alone = (
        [_trainer(each, _beside(_ALIGNED, count), chunk=_FUSED * _FULL) for count, each in enumerate(methods)]
        for _ in range(2)
    )
    if len(same_bits_together(together)) > 1:
        return ""
    for trainer in (together[0], alone[0]):
        trainer.step()  # the number of its round differs, too
    for _ in range(ROUNDS):
        step_together(together, [False] * _FUSED)
        for trainer in alone:
            trainer.step()
    for found, expected in zip(together, alone, strict=True):
        name, difference = largest_difference(_state(found), _state(expected))
        if not difference <= 0:
            return f"by {difference:.2g} in {name}"
    return ""


def _beside(settings: dict[str, Any], count: int = 1) -> dict[str, Any]:
    """The settings of a run's neighbour in a stack: another rate and seed."""
    return {**settings, "sgd": replace(settings["sgd"], lr=settings["sgd"].lr / (1 + count)), "seed": count}


def _check_inputs_and_resumption(method: Method, problem: str, settings: dict[str, Any]) -> None:
    trainer, resumed = _trainer(method, settings), _trainer(method, settings)
    trainer.step()
    shared = {**trainer.x, **{f"server/{name}": leaf for name, leaf in trainer.server.items()}}
    before, saved = {name: leaf.clone() for name, leaf in shared.items()}, copy.deepcopy(trainer.state())
    trainer.step()
    _same(shared, before, f"a hook modifies its inputs, with {problem}", 0)
    resumed.load(saved)
    resumed.step()
    _same(_state(resumed), _state(trainer), f"a resumed run differs from one that was not stopped, with {problem}", 0)


def _trained(method: Method, settings: dict[str, Any], **way: Any) -> Tree:
    trainer = _trainer(method, settings, **way)
    for _ in range(ROUNDS):
        trainer.step()
    return _state(trainer)


def _state(trainer: FederatedTrainer) -> Tree:
    """All tensors of the state and of the evaluated model."""
    params, buffers = trainer.model(0)
    trees = {**trainer.state()["trees"], "evaluated": {**params, **buffers}}
    return {f"{tree}/{name}": leaf for tree, leaves in trees.items() for name, leaf in leaves.items()}


def _same(found: Tree, expected: Tree, why: str, tolerance: float) -> None:
    name, difference = largest_difference(found, expected)
    assert difference <= tolerance, f"{why}: by {difference:.2g} in {name}"


def largest_difference(found: Tree, expected: Tree) -> tuple[str, float]:
    """Return the leaf of ``expected`` that differs most, and by how much; NaN is the largest difference.

    Raises:
        AssertionError: a leaf is missing in ``found``.
    """
    assert expected.keys() <= found.keys(), f"{sorted(expected.keys() - found.keys())[0]} is missing"
    sizes = {name: float((found[name] - leaf).abs().max()) for name, leaf in expected.items() if leaf.numel()}
    name = max(sizes, key=lambda name: (math.isnan(sizes[name]), sizes[name]), default="")
    return name, sizes.get(name, 0.0)


def _varied(method: Method, count: int = 1, numbers: Iterable[str] | None = None) -> Method:
    """The method with other values in these fields, by default all that are numbers and not ``static``, if it can."""
    for name in numbers if numbers is not None else [field.name for field in fields(method)]:
        value = getattr(method, name)
        if type(value) in (int, float) and name not in method.static:
            other = value + count if isinstance(value, int) else (1 - 0.001 * count) * value or 0.001 * count
            with suppress(ValueError):
                method = replace(method, **{name: other})
    return method


def _trainer(method: Method, settings: dict[str, Any], **way: Any) -> FederatedTrainer:
    """A trainer of a few clients with an MLP; a stack if ``way`` has a ``chunk``."""
    sizes: tuple[int, ...] = settings.get("sizes", SIZES)
    dtype = settings.get("dtype", torch.float64)
    count = sum(sizes)  # exact: whole numbers
    generator = np.random.default_rng(7)
    pixels_MCHW = torch.from_numpy(generator.integers(0, 17, size=(count, 1, 4, 4), dtype=np.uint8))
    classes = (lambda n: n % 2, lambda n: 1 + n % 2, lambda n: n % 3)
    labels_M = torch.cat([classes[k % 3](torch.arange(size)) for k, size in enumerate(sizes)])
    images = DeviceData(pixels_MCHW, labels_M, pixels_MCHW, labels_M, CLASSES, 16, dtype, augment=False)
    model = MODELS.parse({"name": "mlp", "widths": settings.get("widths", [8, 6])})
    norm = NORMS.parse(settings["norm"])
    # Batch normalization cancels a bias: its gradient would be rounding alone, whose sign differs from way to way.
    bias = settings["norm"] != "bn"
    network = build(model, (1, 4, 4), CLASSES, norm, bias, seed=3, dtype=dtype)
    executor = StackedExecutor(network, None, way["chunk"]) if way else LoopExecutor([network], None)
    rows = tuple(np.arange(end - size, end) for size, end in zip(sizes, np.cumsum(sizes), strict=True))
    params, buffers = initial_trees(network)
    setup = TrainingSetup(
        sgd=settings["sgd"],
        autocast=None,
        batch_size=settings.get("batch_size", 5),
        images=images,
        executor=executor,
        params=params,
        buffers=buffers,
        masked=bool(mask_keys(network)),
        seed=settings.get("seed", 0),
    )
    return FederatedTrainer(
        setup,
        method=method,
        network=network,
        shards=Shards(train=rows, val=tuple(np.arange(0) for _ in rows), test=rows, server=np.arange(0, count, 5)),
        steps=settings.get("steps", (3,) * len(sizes)),
        participation=settings.get("participation", 1.0),
    )
