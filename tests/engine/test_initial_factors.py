"""The factors of ``scale``: what they are, what they depend on, and that training with them is plain training."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from flbench.config import parse_experiment
from flbench.data.arrays import Data
from flbench.data.datasets import load
from flbench.engine.federated import FederatedTrainer, step_together
from flbench.engine.initial_factors import SAMPLES
from flbench.engine.model_access import ModelAccess
from flbench.engine.setup import make_network, make_trainer
from flbench.engine.trainer import Trainer
from flbench.errors import UserError
from flbench.methods.base import Method
from flbench.registry import METHODS
from flbench.streams import stream
from tests.toys import everything, largest_difference, record_of, same_bits, toy_trainer, train

MLP = {"name": "mlp", "widths": [20, 12, 16]}


def trainer_of(executor: str = "stacked", **fields: Any) -> Trainer:
    experiment = parse_experiment({"model": MLP, "norm": "scale", "E": 3, **fields})
    return make_trainer(experiment, digits(), device="cpu", executor=executor, pool=1)[0]  # type: ignore[arg-type]


def digits() -> Data:
    return load(parse_experiment({}).dataset)  # type: ignore[attr-defined]


def factors(trainer: Trainer) -> list[float]:
    return [float(leaf) for name, leaf in trainer.buffers.items() if name.endswith("factor")]


def batch(seed: int) -> NDArray[np.float64]:
    data = digits()
    rows = stream(seed, "scale").permutation(len(data.train.labels))[:256]
    return data.train.images[rows].astype(np.float64) / data.white


@pytest.mark.parametrize("seed", [0, 7])
def test_golden_numbers(seed: int) -> None:
    """A program in numpy: mean length of each layer's activations, the earlier factors in place."""
    x = batch(seed).reshape(256, -1)
    plain, expected = x, []
    weights = [leaf.double().numpy() for leaf in trainer_of(seed=seed).x.values()]
    for weight in weights[:3]:
        x, plain = np.maximum(x @ weight.T, 0), np.maximum(plain @ weight.T, 0)
        mean_length = sum(np.sqrt(sum(row**2)) for row in x) / len(x)
        expected.append(np.sqrt(len(weight)) / mean_length)
        x = x * expected[-1]
    assert factors(trainer_of(seed=seed, norm="scale-layerwise")) == pytest.approx(expected, rel=1e-5)
    whole = 4 / np.linalg.norm(plain, axis=1).mean()
    assert factors(trainer_of(seed=seed)) == pytest.approx([whole], rel=1e-5)


@pytest.mark.parametrize("norm", ["scale", "scale-layerwise"])
@pytest.mark.parametrize(
    "model", [{"name": "resnet18", "width": 4, "blocks": [1, 1]}, {"name": "simple-vit", "depth": 1}]
)
def test_features_have_the_length_of_feature_normalization(model: Any, norm: str) -> None:
    """In every model, one that builds itself included; an FN network's features are sqrt(d) long, each of them."""
    experiment = parse_experiment({"model": model, "norm": norm})
    network = make_network(experiment, digits(), "cpu").eval()  # type: ignore[arg-type]
    with torch.no_grad():
        lengths = network(torch.from_numpy(batch(0)).float())[0].norm(dim=1)
    width = 8 if model["name"] == "resnet18" else 64
    assert float(lengths.mean()) == pytest.approx(width**0.5, rel=1e-4)
    assert float(lengths.std()) > 0 or model["name"] == "simple-vit"


def test_the_factor_depends_on_the_seed_the_network_and_the_data_alone() -> None:
    same: list[dict[str, Any]] = [
        {"executor": "loop"},
        {"method": "scaffold", "partition": "dirichlet:0.3", "clients": 5, "participation": 0.5},
        {"precision": "fp64", "batch_size": 8, "lr": 0.1, "val_fraction": 0.2},
        {"precision": "bf16"},
        {"head": "frozen"},
        {"kind": "centralized"},
    ]
    for norm in ("scale", "scale-layerwise"):
        (reference,) = {tuple(np.float32(factors(trainer_of(norm=norm, **fields)))) for fields in ({}, *same[:5])}
        assert tuple(np.float32(factors(trainer_of(norm=norm, **same[5])))) == reference
        other: list[dict[str, Any]] = [{"seed": 1}, {"bias": True}, {"model": {"name": "mlp", "widths": [20, 12, 8]}}]
        assert all(tuple(factors(trainer_of(norm=norm, **fields))) != reference for fields in other)
    data = digits()
    darker = replace(data, train=replace(data.train, images=data.train.images // 2), fingerprint="darker")
    experiment = parse_experiment({"model": MLP, "norm": "scale"})
    (factor,) = make_network(experiment, darker, "cpu").buffers()  # type: ignore[arg-type]
    assert float(factor) > 1.5 * factors(trainer_of())[0]


def test_a_given_factor_is_not_measured() -> None:
    given = trainer_of(norm={"name": "scale-layerwise", "factor": 3.5})
    assert factors(given) == [3.5, 3.5, 3.5]
    measured = factors(trainer_of())[0]
    number = trainer_of(norm={"name": "scale", "factor": float(f"{measured:.6g}")})
    plain = trainer_of()
    train(2, number, plain)
    assert same_bits(number, plain)


@pytest.mark.parametrize("norm", ["scale", "scale-layerwise"])
@pytest.mark.parametrize("executor", ["loop", "stacked"])
def test_with_the_factor_1_it_is_the_plain_network(executor: str, norm: str) -> None:
    """In a toy trainer nothing is measured, and the layer multiplies by 1."""
    ours, plain = (
        toy_trainer(METHODS.parse("scaffold"), norm=each, executor=executor, model="toy-cnn", image=(2, 8, 8))
        for each in (norm, "none")
    )
    train(2, ours, plain)
    assert all(torch.equal(ours.x[name], leaf) for name, leaf in plain.x.items())
    other = toy_trainer(METHODS.parse("scaffold"), norm=norm, executor=executor, model="toy-cnn", image=(2, 8, 8))
    for leaf in other.buffers.values():
        leaf.fill_(3)
    train(2, other)
    assert largest_difference(other.x, plain.x) > 1e-3


def test_it_is_neither_trained_nor_sent() -> None:
    ours, plain = trainer_of(partition="classes:1"), trainer_of(partition="classes:1", norm="none")
    before = factors(ours)
    train(3, ours, plain)
    assert factors(ours) == before
    assert record_of(ours)["bytes_up"] == record_of(plain)["bytes_up"]
    assert record_of(ours)["bytes_down"] == record_of(plain)["bytes_down"]


def test_every_way_to_train_agrees_and_resumes() -> None:
    """Runs of several seeds in one stack keep their own factors."""
    fields = {"norm": "scale-layerwise", "precision": "fp64", "method": "fedbn", "lr": 0.05}
    together = [trainer_of(seed=seed, **fields) for seed in range(3)]
    alone = [trainer_of(seed=seed, executor="loop", **fields) for seed in range(3)]
    assert len({tuple(factors(trainer)) for trainer in together}) == 3
    for _ in range(2):
        step_together([one for one in together if isinstance(one, FederatedTrainer)], [False] * 3)
    for one, other in zip(together, alone, strict=True):
        train(2, other)
        assert largest_difference(everything(one), everything(other)) < 1e-10
    resumed = trainer_of(seed=2, executor="loop", **fields)
    resumed.load(alone[2].state())
    train(1, resumed, alone[2])
    assert same_bits(resumed, alone[2])


def test_probes_see_the_same_features() -> None:
    experiment = parse_experiment({"model": MLP, "norm": "scale"})
    trainer = trainer_of()
    access = ModelAccess(trainer, make_network(experiment, digits(), "cpu"), 0.1)  # type: ignore[arg-type]
    features, _ = access.forward(*access.model(), torch.from_numpy(batch(0)).float(), training=False)
    assert float(features.norm(dim=1).mean()) == pytest.approx(4, rel=1e-4)


def test_features_of_length_zero_are_an_error() -> None:
    data = digits()
    black = replace(data, train=replace(data.train, images=0 * data.train.images), fingerprint="black")
    experiment = parse_experiment({"model": MLP, "norm": "scale"})
    with pytest.raises(UserError, match=f"norm scale: the mean length of the initial features of {SAMPLES} .* is 0"):
        make_trainer(experiment, black, device="cpu", executor="loop", pool=1)  # type: ignore[arg-type]
    assert toy_trainer(Method(), norm="scale").buffers["feature.factor"].tolist() == [1.0]


def test_a_head_that_does_not_see_lengths_is_refused() -> None:
    assert parse_experiment({"norm": "scale-layerwise", "head": "cosine"})
    with pytest.raises(UserError, match=r"scale only scales the features, .* use norm: none"):
        parse_experiment({"norm": "scale", "head": "cosine"})
