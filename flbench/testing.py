"""A check for authors of methods, here or in another package: ``flbench.testing.check_method(MyMethod)``.

Shape suffixes: M samples, C channels, H, W pixels.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
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
from flbench.methods.base import Method, Tree
from flbench.models.frozen import initial_trees
from flbench.models.initial_weights import build
from flbench.models.masks import mask_keys
from flbench.registry import MODELS, NORMS

#: Rounds of each training.
ROUNDS = 2

#: Samples of each client. The first client has no sample of the last class, the second none of the first.
SIZES, CLASSES = (20, 14, 26), 3

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


def check_method(
    method: type[Method] | Method, *, off: Mapping[str, Any] | None = None, tolerance: float = 1e-10
) -> None:
    """Check a method on tiny problems in float64, in a few seconds.

    The loop over clients, a stack, a stack in chunks and a stack with another run agree; hooks return what the engine
    can use and modify none of their inputs; a run continues from its checkpoint. The other run has slightly different
    values in all fields that are floats and not ``static``.

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
    other = {**settings, "sgd": replace(settings["sgd"], lr=settings["sgd"].lr / 2), "seed": 1}
    pair = [_trainer(method, settings, **_STACKED), _trainer(_varied(method), other, **_STACKED)]
    for _ in range(ROUNDS):
        step_together(pair, [False, False])
    why = f"a run trained with another one and the run alone differ, with {problem}"
    _same(_state(pair[0]), loop, why, tolerance)
    _same(_state(pair[1]), _trained(_varied(method), other), why, tolerance)


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


def _varied(method: Method) -> Method:
    """The method with other values in its fields that are floats, as far as it accepts them."""
    values = {field.name: getattr(method, field.name) for field in fields(method)}
    for name, value in values.items():
        if isinstance(value, float) and name not in method.static:
            try:
                method = replace(method, **{name: 0.999 * value})
            except ValueError:
                continue
    return method


def _trainer(method: Method, settings: dict[str, Any], **way: Any) -> FederatedTrainer:
    """A trainer of three clients with an MLP; a stack if ``way`` has a ``chunk``."""
    generator = np.random.default_rng(7)
    pixels_MCHW = torch.from_numpy(generator.integers(0, 17, size=(sum(SIZES), 1, 4, 4), dtype=np.uint8))
    labels_M = torch.cat([torch.arange(20) % 2, 1 + torch.arange(14) % 2, torch.arange(26) % 3])
    images = DeviceData(pixels_MCHW, labels_M, pixels_MCHW, labels_M, CLASSES, 16, torch.float64, augment=False)
    model, norm = MODELS.parse({"name": "mlp", "widths": [8, 6]}), NORMS.parse(settings["norm"])
    # Batch normalization cancels a bias: its gradient would be rounding alone, whose sign differs from way to way.
    bias = settings["norm"] != "bn"
    network = build(model, (1, 4, 4), CLASSES, norm, bias, seed=3, dtype=torch.float64)
    executor = StackedExecutor(network, None, way["chunk"]) if way else LoopExecutor([network], None)
    rows = tuple(np.arange(end - size, end) for size, end in zip(SIZES, np.cumsum(SIZES), strict=True))
    params, buffers = initial_trees(network)
    setup = TrainingSetup(
        sgd=settings["sgd"],
        autocast=None,
        batch_size=5,
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
        shards=Shards(train=rows, val=tuple(np.arange(0) for _ in rows), test=rows, server=np.arange(0, sum(SIZES), 5)),
        steps=settings.get("steps", (3, 3, 3)),
        participation=settings.get("participation", 1.0),
    )
