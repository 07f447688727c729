"""Features and tokens through the engine: golden steps, stack and loop, partial batches, several runs, resumed runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from flbench.config import parse_experiment
from flbench.data.arrays import Arrays, Data
from flbench.data.batches import federated_rows
from flbench.engine.optimizers import Sgd
from flbench.engine.partial_batches import stacks_partial_batches
from flbench.engine.setup import make_network, make_trainer
from flbench.engine.stack_size import client_bytes
from flbench.methods.base import Method
from flbench.models.flops import sample_flops
from flbench.models.initial_weights import build
from flbench.models.network import pure_forward, stacked_forward
from flbench.models.token_layers import Embedding
from flbench.registry import METHODS, MODELS, NORMS
from tests.toys import (
    everything,
    largest_difference,
    record_of,
    resumes,
    toy_images,
    toy_model,
    toy_network,
    toy_trainer,
    train,
    train_together,
)

#: Model and shape of a sample: features (D,), or T tokens of V.
INPUTS = [("mlp", (7,)), ("toy-text", (6, 9)), ("toy-text-conv", (6, 9))]


@pytest.mark.parametrize(("model", "shape"), INPUTS)
def test_loop_and_stack_agree(model: str, shape: tuple[int, ...]) -> None:
    for method, norm in [("fedavg", "none"), ("scaffold", "ln"), ("moon", "bn"), ("fedprox", "fn"), ("fedavg", "gn")]:
        if NORMS.parse(norm).problem(tuple(toy_model(model).sites(shape))):
            continue
        settings: dict[str, Any] = {"model": model, "norm": norm, "image": shape, "sgd": Sgd(0.05, momentum=0.5)}
        loop, stacked = (toy_trainer(METHODS.parse(method), executor=way, **settings) for way in ("loop", "stacked"))
        start = everything(loop)
        train(2, loop, stacked)
        assert largest_difference(everything(loop), everything(stacked)) < 1e-10, (method, norm)
        assert largest_difference(start, everything(loop)) > 1e-3
        assert record_of(loop)["acc"] == record_of(stacked)["acc"]


@pytest.mark.parametrize(("model", "shape"), INPUTS)
def test_partial_batches_resumed_runs_and_runs_side_by_side(model: str, shape: tuple[int, ...]) -> None:
    def trainer(**given: Any) -> Any:
        return toy_trainer(METHODS.parse("fedavg"), **{"model": model, "image": shape, "executor": "stacked", **given})

    assert stacks_partial_batches(Method(), toy_network(model, image=shape), shape)
    assert not stacks_partial_batches(Method(), toy_network(model, "bn", image=shape), shape)
    loop, stacked = (trainer(executor=way, drop_last=False, steps=[4, 3, 6]) for way in ("loop", "stacked"))
    train(2, loop, stacked)
    assert largest_difference(everything(loop), everything(stacked)) < 1e-10
    assert resumes(trainer(), trainer())
    alone, together = [trainer(seed=seed) for seed in (0, 1)], [trainer(seed=seed) for seed in (0, 1)]
    train(2, *alone)
    train_together(2, together)
    assert all(largest_difference(everything(a), everything(b)) < 1e-12 for a, b in zip(alone, together, strict=True))


def test_a_step_on_features_is_that_of_numpy() -> None:
    """Softmax regression after one ReLU layer, in float64."""
    images = toy_images((7,))
    trainer = toy_trainer(METHODS.parse("fedavg"), model="mlp", image=(7,), steps=1, batch_size=5, participation=1.0)
    before = {name: leaf.numpy().copy() for name, leaf in trainer.x.items()}
    x, y = images.train_MCHW.numpy().astype(np.float64), images.train_labels_M.numpy()
    moved = {name: np.zeros_like(leaf) for name, leaf in before.items()}
    for client, rows in enumerate(trainer.run.rows):
        batch = federated_rows(rows, seed=0, client=client, round=0, steps=1, batch_size=5)[0]
        share = len(rows) / 60
        layers = [before["trunk.dense1.weight"], before["trunk.dense2.weight"], before["head.weight"]]
        a = [x[batch]]
        for weight in layers[:-1]:
            a.append(np.maximum(a[-1] @ weight.T, 0))
        logits = a[-1] @ layers[-1].T
        p = np.exp(logits - logits.max(1, keepdims=True))
        g = (p / p.sum(1, keepdims=True) - np.eye(3)[y[batch]]) / len(batch)
        for name, inputs, weight in zip(reversed(before), reversed(a), reversed(layers), strict=True):
            moved[name] -= share * 0.1 * g.T @ inputs
            g = (g @ weight) * (inputs > 0)
    train(1, trainer)
    for name, leaf in trainer.x.items():
        assert np.allclose(leaf.numpy() - before[name], moved[name], rtol=0, atol=1e-12), name


@pytest.mark.parametrize("kernel", [None, 3])
def test_the_text_model_is_that_of_numpy(kernel: int | None) -> None:
    model = MODELS.parse({"name": "text", "width": 4, "kernel": kernel, "hidden": [5]})
    network = build(model, (6, 9), 3, NORMS.parse("none"), False, seed=1, dtype=torch.float64)
    weights = {name: leaf.detach().numpy() for name, leaf in network.named_parameters()}
    tokens = np.random.default_rng(0).integers(0, 9, (8, 6))
    embedded_BTD = weights["trunk.embedding1.weight"][tokens]
    if kernel is None:
        pooled = embedded_BTD.mean(1)
    else:
        windows_BPkD = np.stack([embedded_BTD[:, at : at + kernel] for at in range(6 - kernel + 1)], 1)
        filters = weights["trunk.conv2.weight"][:, :, 0]  # (out, D, k)
        pooled = np.maximum(np.einsum("BPkD,oDk->BPo", windows_BPkD, filters), 0).max(1)
    hidden = np.maximum(pooled @ weights["trunk.dense3.weight"].T, 0)
    features, logits = network(torch.from_numpy(tokens.astype(np.int32)))
    assert np.allclose(features.detach(), hidden, atol=1e-12)
    assert np.allclose(logits.detach(), hidden @ weights["head.weight"].T, atol=1e-12)


def test_embeddings_of_a_stack_and_of_one_hot_vectors() -> None:
    layer = Embedding(9, 4).double()
    weights = torch.randn(3, 9, 4, dtype=torch.float64)
    tokens = torch.randint(9, (3, 5, 6), dtype=torch.int32)
    forward, stacked = pure_forward(layer), stacked_forward(layer)
    each = torch.stack([forward({"weight": w}, {}, t) for w, t in zip(weights, tokens, strict=True)])  # type: ignore[call-overload]
    assert torch.equal(stacked({"weight": weights}, {}, tokens), each)  # type: ignore[arg-type]
    one_hot = torch.nn.functional.one_hot(tokens.long(), 9).double()
    assert torch.allclose(stacked({"weight": weights}, {}, one_hot), each)  # type: ignore[arg-type]


def test_costs_are_counted_on_the_inputs_kind() -> None:
    text = toy_network("toy-text", image=(6, 9))
    assert sample_flops(text, (6, 9), backward=False) == 2 * (6 * 5 + 5 * 3)  # a look-up is no product
    assert sample_flops(toy_network("mlp", image=(7,)), (7,), backward=False) == 2 * (7 * 8 + 8 * 6 + 6 * 3)
    assert client_bytes(text, (6, 9), 5, Method()) > 8 * 9 * 6


def data(images: np.ndarray, vocabulary: int = 0) -> Data:
    half = Arrays(images, np.arange(len(images)) % 3)
    return Data(half, half, 3, ("a", "b", "c"), 1, "0" * 16, vocabulary=vocabulary)


@pytest.mark.parametrize(
    ("model", "samples"),
    [
        ("mlp", data(np.random.default_rng(0).normal(size=(60, 7)).astype(np.float32))),
        ("text", data(np.random.default_rng(0).integers(0, 9, (60, 6), dtype=np.int32), 9)),
    ],
)
def test_factors_are_measured_on_such_samples(model: str, samples: Data) -> None:
    """The factor of ``scale`` makes the features of the initial network as long as asked for."""
    fields = {
        "dataset": "arrays:x.npz",
        "model": model,
        "norm": "scale",
        "clients": 3,
        "partition": "iid",
        "E": 2,
        "rounds": 1,
    }
    experiment: Any = parse_experiment({**fields, "batch_size": 5, "lr": 0.01, "probes": ["features", "overfit"]})
    network = make_network(experiment, samples, "cpu")
    (factor,) = [leaf for name, leaf in network.named_buffers() if name.endswith("factor")]
    with torch.no_grad():
        features = network(torch.from_numpy(samples.train.images))[0]
    assert float(features.norm(dim=1).mean()) == pytest.approx(features.shape[1] ** 0.5, rel=1e-4)
    assert float(factor) != 1.0
    trainer, _ = make_trainer(experiment, samples, device="cpu", executor="auto", pool=1)
    trainer.step()
    assert 0 <= trainer.evaluate()["acc"] <= 1
    for way in ("loop", "stacked"):
        other, _ = make_trainer(experiment, samples, device="cpu", executor=way, pool=1)  # type: ignore[arg-type]
        other.step()
        assert largest_difference(everything(trainer), everything(other)) < 1e-5
