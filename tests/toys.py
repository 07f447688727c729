"""Small problems and trainers for tests, without a store or a data set on disk."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from flbench import testing
from flbench.config.local_steps import distribution_of
from flbench.data.batches import Rows
from flbench.data.shards import Shards
from flbench.engine.conv_tuner import ConvTuner
from flbench.engine.cuda_graph import Recorder
from flbench.engine.device_data import DeviceData
from flbench.engine.executors import LoopExecutor, StackedExecutor, StacksInThreads
from flbench.engine.federated import FederatedTrainer, step_together
from flbench.engine.local_steps import numbers_of
from flbench.engine.optimizers import Sgd
from flbench.engine.run import TrainingSetup
from flbench.engine.setup import native_network
from flbench.engine.trainer import Trainer
from flbench.methods.base import Context, Method
from flbench.models.base import Model
from flbench.models.frozen import initial_trees
from flbench.models.initial_weights import build
from flbench.models.masks import mask_keys
from flbench.models.norms import Norm
from flbench.models.sites import Shape
from flbench.models.stages import Conv, Dense, Stage
from flbench.models.trained_parts import train_only
from flbench.registry import HEADS, MODELS, NORMS, SAMPLERS
from tests.own_models import OWN_MODELS


def toy_images(image: Shape = (1, 8, 8), train: int = 60, test: int = 30, classes: int = 3) -> DeviceData:
    """Return random images, features (D,) or tokens (T, V), whose labels cycle through the classes."""
    generator = np.random.default_rng(7)

    def pixels(count: int) -> Tensor:
        if len(image) == 1:
            return torch.from_numpy(generator.normal(size=(count, *image)).astype(np.float32))
        if len(image) == 2:
            return torch.from_numpy(generator.integers(0, image[1], size=(count, image[0]), dtype=np.int32))
        return torch.from_numpy(generator.integers(0, 17, size=(count, *image), dtype=np.uint8))

    return DeviceData(
        train_MCHW=pixels(train),
        train_labels_M=torch.arange(train) % classes,
        test_MCHW=pixels(test),
        test_labels_M=torch.arange(test) % classes,
        classes=classes,
        white=16,
        dtype=torch.float64,
        augment=False,
    )


def toy_clients(sizes: tuple[int, ...] = (20, 14, 26), test: int = 30) -> Shards:
    """Return clients with these numbers of consecutive rows; test rows go to the clients in turn."""
    ends = np.cumsum(sizes)
    train = tuple(np.arange(end - size, end) for size, end in zip(sizes, ends, strict=True))
    shards = tuple(np.arange(k, test, len(sizes)) for k in range(len(sizes)))
    return Shards(train=train, val=tuple(np.arange(0) for _ in sizes), test=shards, server=np.arange(0, 30, 4))


@dataclass(frozen=True)
class ToyCnn(Model):
    """The label-skew paper's CNN with a few channels: two convolutions, two dense layers."""

    def stages(self) -> tuple[Stage, ...]:
        return Conv(4, kernel=3, pool=2), Conv(6, kernel=2, pool=2), Dense(8), Dense(6)


#: Small versions of networks; all other names stand for the network itself.
TOY_MODELS: dict[str, Model] = {
    "mlp": MODELS.parse({"name": "mlp", "widths": [8, 6]}),
    "square": MODELS.parse({"name": "mlp", "widths": [6, 6, 6]}),
    "toy-cnn": ToyCnn(),
    "toy-text": MODELS.parse({"name": "text", "width": 6, "hidden": [5]}),
    "toy-text-conv": MODELS.parse({"name": "text", "width": 6, "kernel": 3, "hidden": [5]}),
    "toy-vit": MODELS.parse({"name": "simple-vit", "patch": 2, "width": 8, "depth": 2, "heads": 2}),
    "toy-resnet18": MODELS.parse({"name": "resnet18", "width": 4, "blocks": [1, 2]}),
    "narrow-resnet18": MODELS.parse({"name": "resnet18", "width": 8}),
    **OWN_MODELS,
}


def toy_model(model: str) -> Model:
    """Return the small version of this network, or the network itself."""
    spec: Model = TOY_MODELS.get(model) or MODELS.parse(model)
    return spec


def toy_network(model: str = "mlp", norm: str = "none", image: Shape = (1, 8, 8), **kwargs: Any) -> nn.Module:
    """Return an initialized network in float64."""
    spec = toy_model(model)
    normalization: Norm = NORMS.parse(norm)
    head = HEADS.parse(kwargs.pop("head", "linear"))
    seed, bias = kwargs.pop("weights", 3), kwargs.pop("bias", False)
    network = build(spec, image, 3, normalization, bias, seed=seed, dtype=torch.float64, head=head)
    train_only(network, kwargs.pop("train", "all"), seed)
    return network


def toy_trainer(
    method: Method,
    *,
    executor: str = "loop",
    pool: int = 1,
    model: str = "mlp",
    norm: str = "none",
    head: Any = "linear",
    trained: str = "all",
    image: Shape = (1, 8, 8),
    network: nn.Module | None = None,
    images: DeviceData | None = None,
    clients: Shards | None = None,
    sgd: Sgd | None = None,
    steps: int | str | Sequence[int] = 4,
    batch_size: int = 5,
    participation: float = 1.0,
    cohort: Any = "uniform",
    seed: int = 0,
    weights: int = 3,
    chunk: int | None = None,
    record: Recorder | None = None,
    tuner: ConvTuner | None = None,
    drop_last: bool = True,
    finetune: int = 0,
) -> FederatedTrainer:
    """Return a trainer of a small federated problem; a text of ``steps`` is a distribution, as in YAML."""

    def make() -> nn.Module:
        if network is not None:
            return network
        return toy_network(model, norm, image, head=head, weights=weights, train=trained)

    first = make()
    compiled = native_network(first, image) if executor == "native" else None
    assert executor != "native" or compiled is not None
    used: LoopExecutor | StackedExecutor
    if executor == "loop":
        used = LoopExecutor([make() for _ in range(pool)], None)
    elif compiled is not None and compiled.convolutions is not None:
        used = StacksInThreads([copy.deepcopy(first) for _ in range(pool)], compiled)
        used.chunk = chunk or used.chunk
    else:
        used = StackedExecutor(make(), None, chunk, record, tuner, pixels_last=record is not None, native=compiled)
    clients = clients or toy_clients()
    params, buffers = initial_trees(first)
    setup = TrainingSetup(
        sgd=sgd or Sgd(lr=0.1),
        autocast=None,
        batch_size=batch_size,
        images=images or toy_images(image),
        executor=used,
        params=params,
        buffers=buffers,
        masked=bool(mask_keys(first)),
        seed=seed,
        record=record,
        drop_last=drop_last,
    )
    count, draw = len(clients.train), None
    if isinstance(steps, str):
        distribution = distribution_of(steps)
        steps = distribution.most

        def draw(cohort: Rows, round: int) -> list[int]:
            return numbers_of(distribution, seed, round, cohort.tolist(), count)

    return FederatedTrainer(
        setup,
        method=method,
        network=first,
        shards=clients,
        steps=[steps] * count if isinstance(steps, int) else steps,
        participation=participation,
        sampler=SAMPLERS.parse(cohort),
        draw_steps=draw,
        finetune=finetune,
    )


def toy_context(**given: Any) -> Context:
    """Return the context of a client; what is not given is empty, zero or one."""
    empty: dict[str, Any] = {name: {} for name in ("x", "server", "client", "buffers")}
    plain = {"counts_Y": torch.ones(3), "lr": 0.1, "steps": 1, "relative_size": 1.0, "round": 0, "head": "head.weight"}
    return Context(**{**empty, **plain, **given})


def largest_difference(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    """Return the largest absolute difference between leaves of the same names."""
    assert a.keys() == b.keys()
    return testing.largest_difference(a, b)[1]


def everything(trainer: Trainer) -> dict[str, Tensor]:
    """Return all tensors of a trainer's state under one name each."""
    trees = trainer.state()["trees"]
    return {f"{tree}/{name}": leaf for tree, leaves in trees.items() for name, leaf in leaves.items()}


def same_bits(one: Trainer, other: Trainer) -> bool:
    """Return whether two trainers have the same state, to the bit."""
    pairs = zip(everything(one).items(), everything(other).items(), strict=True)
    return all(a == b and torch.equal(x, y) for (a, x), (b, y) in pairs)


def record_of(trainer: Trainer) -> dict[str, Any]:
    """Return an evaluation without its seconds."""
    return {name: value for name, value in trainer.evaluate().items() if name != "seconds"}


def train(rounds: int, *trainers: Trainer) -> None:
    """Train each for a number of rounds, in turns."""
    for _ in range(rounds):
        for trainer in trainers:
            trainer.step()


def train_together(rounds: int, trainers: Sequence[FederatedTrainer]) -> None:
    """Train all in one stack for a number of rounds."""
    for _ in range(rounds):
        step_together(trainers, [False] * len(trainers))


def resumes(trainer: Trainer, other: Trainer) -> bool:
    """Return whether another trainer that gets this one's state after a round continues it to the bit."""
    train(1, trainer)
    other.load(copy.deepcopy(trainer.state()))
    train(1, trainer, other)
    return same_bits(trainer, other)


#: Methods with functions whose bits depend on the place in a stack (``engine/stack_bits.py``).
PLACED = ("fedlc", "moon")


def check_every_way(make: Callable[..., FederatedTrainer], *, fused: bool = True) -> FederatedTrainer:
    """Check that loop, stack and chunks agree; to the bit threads, resumed runs and several runs in one stack.

    Args:
        make: returns a new trainer, given settings of ``toy_trainer``.
        fused: whether two runs in one stack have the bits of the runs alone.

    Returns:
        The trainer of the loop after two rounds.
    """
    loop, threads, *stacks = (
        make(executor=executor, **way)
        for executor, way in (("loop", {}), ("loop", {"pool": 3}), ("stacked", {}), ("stacked", {"chunk": 2}))
    )
    train(2, loop, threads, *stacks)
    assert same_bits(loop, threads)
    expected = everything(loop)
    for stacked in stacks:
        for name, leaf in everything(stacked).items():
            assert leaf.dtype == expected[name].dtype
            assert float((leaf.double() - expected[name].double()).abs().max()) < 1e-10, name
    for executor in ("loop", "stacked"):
        assert resumes(make(executor=executor), make(executor=executor, weights=5)), executor
    if fused and loop.run.method.name not in PLACED:
        together, alone = ([make(executor="stacked", seed=n, weights=n) for n in (0, 1)] for _ in range(2))
        train_together(2, together)
        train(2, *alone)
        assert all(map(same_bits, together, alone))
    return loop
