"""Golden numbers: each method against an independent numpy program, float64, to 1e-12.

The problem: 3 clients of 4, 6 and 4 samples, 2 pixels, 3 classes, 3 rounds of 3 local steps, batches of 2. The model
is softmax regression z = W p without a bias (6 weights), for FedBN with a batch normalization of the pixels before it.
Its gradient is worked by hand: with s = softmax(z), dL/dW = (s - onehot(y))^T p / B. The numpy programs share with
flbench nothing but the rows of each batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from flbench.data.batches import federated_rows
from flbench.engine.local import Sgd
from flbench.engine.rounds import FederatedTrainer, Images
from flbench.methods.base import Method
from flbench.methods.fedbn import FedBN
from flbench.methods.fedopt import FedYogi
from flbench.methods.scaffold import Scaffold
from flbench.models.layers import Dense, StackableLayer
from flbench.models.norm_layers import BatchNorm
from tests.toys import toy_clients, toy_trainer

SIZES, STEPS, BATCH, ROUNDS, LR = (4, 6, 4), 3, 2, 3, 0.5
CLIENTS = toy_clients(SIZES, test=6)
PIXELS = np.array(
    [
        [3, 14],
        [1, 9],
        [16, 2],
        [7, 7],
        [5, 12],
        [0, 16],
        [11, 4],
        [8, 1],
        [2, 2],
        [15, 13],
        [6, 0],
        [9, 10],
        [4, 8],
        [13, 3],
    ]
)
LABELS = np.array([0, 0, 1, 0, 1, 1, 2, 1, 2, 2, 2, 0, 1, 2])
W0 = np.array([[0.3, -0.2], [-0.5, 0.4], [0.1, 0.25]])
Array = NDArray[np.float64]


class SoftmaxRegression(StackableLayer):
    """Logits W p of the pixels p, batch-normalized first if asked."""

    def __init__(self, batch_norm: bool) -> None:
        super().__init__()
        self.norm = BatchNorm(2, eps=1e-5) if batch_norm else nn.Sequential()
        self.head = Dense(2, 3, bias=False)
        if isinstance(self.norm, BatchNorm):
            self.norm.reset_parameters()
        with torch.no_grad():
            self.head.weight.copy_(torch.from_numpy(W0))
        self.double()
        with torch.no_grad():
            self.head.weight.copy_(torch.from_numpy(W0))

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        features = self.norm(images.flatten(-3))
        return features, self.head(features)


def images() -> Images:
    pixels = torch.from_numpy(PIXELS.astype(np.uint8)).view(-1, 1, 1, 2)
    labels = torch.from_numpy(LABELS)
    return Images(pixels, labels, pixels[:6], labels[:6], 3, 16, torch.float64, augment=False)


def trained(method: Method, executor: str, *, batch_norm: bool = False, **kwargs: float) -> FederatedTrainer:
    sgd = Sgd(LR, momentum=kwargs.get("momentum", 0.0), weight_decay=kwargs.get("weight_decay", 0.0))
    trainer = toy_trainer(
        method,
        executor=executor,
        network=SoftmaxRegression(batch_norm),
        images=images(),
        clients=CLIENTS,
        sgd=sgd,
        steps=STEPS,
        batch_size=BATCH,
        participation=kwargs.get("participation", 1.0),
    )
    for _ in range(ROUNDS):
        trainer.step()
    return trainer


def batches(client: int, round: int) -> list[tuple[Array, NDArray[np.int64]]]:
    rows = federated_rows(CLIENTS.train[client], seed=0, client=client, round=round, steps=STEPS, batch_size=BATCH)
    return [(PIXELS[step] / 16.0, LABELS[step]) for step in rows]


def softmax_error(logits: Array, labels: NDArray[np.int64]) -> Array:
    """dL/dz of the mean cross-entropy: (softmax(z) - onehot(y)) / B."""
    exp = np.exp(logits - logits.max(axis=1, keepdims=True))
    out = exp / exp.sum(axis=1, keepdims=True)
    out[np.arange(len(labels)), labels] -= 1
    return np.asarray(out / len(labels))


def gradient(weights: Array, pixels: Array, labels: NDArray[np.int64]) -> Array:
    return softmax_error(pixels @ weights.T, labels).T @ pixels


def local_sgd(start: Array, client: int, round: int, correction: Array | float = 0.0) -> Array:
    weights = start.copy()
    for pixels, labels in batches(client, round):
        weights = weights - LR * (gradient(weights, pixels, labels) + correction)
    return weights


SHARE = np.array(SIZES) / sum(SIZES)
both_executors = pytest.mark.parametrize("executor", ["loop", "stacked"])


def assert_close(tensor: Tensor, expected: Array) -> None:
    np.testing.assert_allclose(tensor.numpy(), expected, rtol=0, atol=1e-12)


@both_executors
def test_fedavg(executor: str) -> None:
    x = W0.copy()
    for round in range(ROUNDS):
        x = sum(share * local_sgd(x, client, round) for client, share in enumerate(SHARE))
    assert_close(trained(Method(), executor).x["head.weight"], x)


@both_executors
def test_fedavg_server_learning_rate(executor: str) -> None:
    x = W0.copy()
    for round in range(ROUNDS):
        mean = sum(share * local_sgd(x, client, round) for client, share in enumerate(SHARE))
        x = x + 0.7 * (mean - x)
    assert_close(trained(Method(server_lr=0.7), executor).x["head.weight"], x)


@both_executors
def test_momentum_and_weight_decay_start_afresh_each_round(executor: str) -> None:
    x = W0.copy()
    for round in range(ROUNDS):
        mean = np.zeros_like(x)
        for client, share in enumerate(SHARE):
            weights, velocity = x.copy(), np.zeros_like(x)
            for pixels, labels in batches(client, round):
                velocity = 0.9 * velocity + gradient(weights, pixels, labels) + 0.01 * weights
                weights = weights - LR * velocity
            mean += share * weights
        x = mean
    assert_close(trained(Method(), executor, momentum=0.9, weight_decay=0.01).x["head.weight"], x)


@both_executors
def test_scaffold(executor: str) -> None:
    x, c, controls = W0.copy(), np.zeros_like(W0), [np.zeros_like(W0) for _ in SIZES]
    for round in range(ROUNDS):
        ends = [local_sgd(x, client, round, c - controls[client]) for client in range(3)]
        fresh = [controls[i] - c + (x - ends[i]) / (STEPS * LR) for i in range(3)]
        c = c + sum(fresh[i] - controls[i] for i in range(3)) / 3
        controls = fresh
        x = sum(share * end for share, end in zip(SHARE, ends, strict=True))
    trainer = trained(Scaffold(), executor)
    assert_close(trainer.x["head.weight"], x)
    assert_close(trainer.server["head.weight"], c)
    assert_close(trainer.states["head.weight"], np.stack(controls))
    assert np.abs(c).max() > 0.01  # a control that never moves would be FedAvg


@both_executors
def test_scaffold_with_two_of_three_clients(executor: str) -> None:
    trainer = toy_trainer(
        Scaffold(), executor=executor, network=SoftmaxRegression(False), images=images(), clients=CLIENTS,
        sgd=Sgd(LR), steps=STEPS, batch_size=BATCH, participation=2 / 3,
    )  # fmt: skip
    x, c, controls = W0.copy(), np.zeros_like(W0), [np.zeros_like(W0) for _ in SIZES]
    seen = set()
    for round in range(5):
        cohort = [int(client) for client in trainer.cohort()]
        seen.add(tuple(cohort))
        trainer.step()
        ends = {i: local_sgd(x, i, round, c - controls[i]) for i in cohort}
        fresh = {i: controls[i] - c + (x - ends[i]) / (STEPS * LR) for i in cohort}
        c = c + sum(fresh[i] - controls[i] for i in cohort) / 3  # |S|/N times the mean over S
        for i in cohort:
            controls[i] = fresh[i]
        total = sum(SIZES[i] for i in cohort)
        x = sum(SIZES[i] / total * ends[i] for i in cohort)
    assert len(seen) > 1, "the cohort must change for this test to say something"
    assert_close(trainer.x["head.weight"], x)
    assert_close(trainer.server["head.weight"], c)
    assert_close(trainer.states["head.weight"], np.stack(controls))


@both_executors
def test_fedyogi(executor: str) -> None:
    x, m, v = W0.copy(), np.zeros_like(W0), np.full_like(W0, 1e-6)
    for round in range(ROUNDS):
        delta = sum(share * local_sgd(x, client, round) for client, share in enumerate(SHARE)) - x
        m = 0.9 * m + 0.1 * delta
        v = v - 0.01 * delta**2 * np.sign(v - delta**2)
        x = x + 0.01 * m / (np.sqrt(v) + 1e-3)
    trainer = trained(FedYogi(), executor)
    assert_close(trainer.x["head.weight"], x)
    assert_close(trainer.server["m/head.weight"], m)
    assert_close(trainer.server["v/head.weight"], v)


@dataclass
class NormState:
    """A client's batch normalization: scale g and shift b, running mean and (unbiased) variance."""

    g: Array
    b: Array
    mean: Array
    var: Array


def local_sgd_with_batch_norm(start: Array, norm: NormState, client: int, round: int) -> tuple[Array, NormState]:
    """Dz = softmax error; dW = dz^T f, dg = sum(dz W * p_hat), db = sum(dz W); the statistics do not see W at all."""
    weights, g, b, mean, var = start.copy(), norm.g.copy(), norm.b.copy(), norm.mean.copy(), norm.var.copy()
    for pixels, labels in batches(client, round):
        centre, spread = pixels.mean(axis=0), pixels.var(axis=0)
        unit = (pixels - centre) / np.sqrt(spread + 1e-5)
        features = unit * g + b
        error = softmax_error(features @ weights.T, labels)
        back = error @ weights
        weights, g, b = weights - LR * error.T @ features, g - LR * (back * unit).sum(axis=0), b - LR * back.sum(axis=0)
        mean, var = 0.9 * mean + 0.1 * centre, 0.9 * var + 0.1 * pixels.var(axis=0, ddof=1)
    return weights, NormState(g, b, mean, var)


def fresh_norm() -> NormState:
    return NormState(np.ones(2), np.zeros(2), np.zeros(2), np.ones(2))


@both_executors
def test_fedavg_averages_batch_norm_and_its_statistics(executor: str) -> None:
    x, norm = W0.copy(), fresh_norm()
    for round in range(ROUNDS):
        ends = [local_sgd_with_batch_norm(x, norm, client, round) for client in range(3)]
        x = sum(share * end[0] for share, end in zip(SHARE, ends, strict=True))
        norm = NormState(
            *(
                sum(share * getattr(end[1], field) for share, end in zip(SHARE, ends, strict=True))
                for field in ("g", "b", "mean", "var")
            )
        )
    trainer = trained(Method(), executor, batch_norm=True)
    assert_close(trainer.x["head.weight"], x)
    assert_close(trainer.x["norm.weight"], norm.g)
    assert_close(trainer.x["norm.bias"], norm.b)
    assert_close(trainer.buffers["norm.running_mean"], norm.mean)
    assert_close(trainer.buffers["norm.running_var"], norm.var)


@both_executors
def test_fedbn(executor: str) -> None:
    x, norms = W0.copy(), [fresh_norm() for _ in SIZES]
    for round in range(ROUNDS):
        ends = [local_sgd_with_batch_norm(x, norms[client], client, round) for client in range(3)]
        x = sum(share * end[0] for share, end in zip(SHARE, ends, strict=True))
        norms = [end[1] for end in ends]
    trainer = trained(FedBN(), executor, batch_norm=True)
    assert trainer.x.keys() == {"head.weight"}
    assert not trainer.buffers
    assert_close(trainer.x["head.weight"], x)
    assert_close(trainer.local["norm.weight"], np.stack([norm.g for norm in norms]))
    assert_close(trainer.local["norm.bias"], np.stack([norm.b for norm in norms]))
    assert_close(trainer.local["norm.running_mean"], np.stack([norm.mean for norm in norms]))
    assert_close(trainer.local["norm.running_var"], np.stack([norm.var for norm in norms]))
