"""The small problem of the golden numbers, with its gradients derived by hand in numpy.

3 clients of 4, 6 and 4 samples, 2 pixels, 3 classes, 3 rounds of 3 local steps, batches of 2. The first client lacks
class 2, the second lacks class 0. The model is softmax regression z = W p without a bias (6 weights), for FedBN with a
batch normalization of the pixels before it, for FedDecorr with a linear layer of 3 features before it. With
s = softmax(z), dL/dz = (s - onehot(y)) / B and dL/dW = (dL/dz)^T p. The numpy programs share only the rows of each
batch with flbench.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from flbench.data.batches import federated_rows
from flbench.engine.device_data import DeviceData
from flbench.engine.federated import FederatedTrainer
from flbench.engine.optimizers import Sgd
from flbench.methods.base import Method
from flbench.models.layers import Dense, StackableLayer
from flbench.models.norm_layers import BatchNorm
from flbench.registry import METHODS
from tests.toys import toy_clients, toy_trainer, train

Array = NDArray[np.float64]
Labels = NDArray[np.int64]

SIZES, STEPS, BATCH, ROUNDS, LR = (4, 6, 4), 3, 2, 3, 0.5
#: Local steps of the clients where they differ.
UNEQUAL = (2, 3, 1)
SHARE = np.array(SIZES) / sum(SIZES)
EQUAL = np.full(3, 1 / 3)
CLIENTS = toy_clients(SIZES, test=6)
# fmt: off
PIXELS = np.array([
    [3, 14], [1, 9], [16, 2], [7, 7],
    [5, 12], [0, 16], [11, 4], [8, 1], [2, 2], [15, 13],
    [6, 0], [9, 10], [4, 8], [13, 3],
])
# fmt: on
LABELS = np.array([0, 0, 1, 0, 1, 1, 2, 1, 2, 2, 2, 0, 1, 2])
COUNTS = np.array([[3, 1, 0], [0, 3, 3], [1, 1, 2]])
W0 = np.array([[0.3, -0.2], [-0.5, 0.4], [0.1, 0.25]])
V0 = np.array([[0.7, -0.4], [0.2, 0.9], [-0.6, 0.35]])
H0 = np.array([[0.3, -0.2, 0.15], [-0.5, 0.4, 0.05], [0.1, 0.25, -0.35]])

both_executors = pytest.mark.parametrize("executor", ["loop", "stacked"])


class SoftmaxRegression(StackableLayer):
    """Logits W p of the pixels p, batch-normalized first if asked."""

    def __init__(self, batch_norm: bool = False) -> None:
        super().__init__()
        self.norm = BatchNorm(2, eps=1e-5) if batch_norm else nn.Sequential()
        self.head = Dense(2, 3, bias=False)
        _start(self.double(), {"head": W0})

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        features = self.norm(images.flatten(-3))
        return features, self.head(features)


class TwoLayers(StackableLayer):
    """Features V p of the pixels p, and logits H V p."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.head = Dense(2, 3, bias=False), Dense(3, 3, bias=False)
        _start(self.double(), {"hidden": V0, "head": H0})

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        features = self.hidden(images.flatten(-3))
        return features, self.head(features)


def _start(network: nn.Module, weights: dict[str, Array]) -> None:
    with torch.no_grad():
        for name, value in weights.items():
            network.get_submodule(name).weight.copy_(torch.from_numpy(value))  # type: ignore[operator, union-attr]


def images() -> DeviceData:
    pixels = torch.from_numpy(PIXELS.astype(np.uint8)).view(-1, 1, 1, 2)
    labels = torch.from_numpy(LABELS)
    return DeviceData(pixels, labels, pixels[:6], labels[:6], 3, 16, torch.float64, augment=False)


def trainer_of(method: str | dict[str, Any] | Method, executor: str, **kwargs: Any) -> FederatedTrainer:
    """Return a trainer of the problem before its first round; ``method`` is given as in YAML."""
    sgd = Sgd(LR, momentum=kwargs.pop("momentum", 0.0), weight_decay=kwargs.pop("weight_decay", 0.0))
    settings = {"network": SoftmaxRegression(), "images": images(), "clients": CLIENTS, "steps": STEPS}
    chosen: Method = method if isinstance(method, Method) else METHODS.parse(method)
    return toy_trainer(chosen, executor=executor, sgd=sgd, **{**settings, "batch_size": BATCH, **kwargs})


def trained(method: str | dict[str, Any] | Method, executor: str, **kwargs: Any) -> FederatedTrainer:
    """Return a trainer of the problem after ``ROUNDS`` rounds."""
    trainer = trainer_of(method, executor, **kwargs)
    train(ROUNDS, trainer)
    return trainer


def batches(client: int, round: int, steps: int = STEPS, batch_size: int = BATCH) -> list[tuple[Array, Labels]]:
    rows = federated_rows(CLIENTS.train[client], seed=0, client=client, round=round, steps=steps, batch_size=batch_size)
    return [(PIXELS[step] / 16.0, LABELS[step]) for step in rows]


def softmax_error(logits: Array, labels: Labels) -> Array:
    """dL/dz of the mean cross-entropy: (softmax(z) - onehot(y)) / B."""
    exp = np.exp(logits - logits.max(axis=1, keepdims=True))
    out = exp / exp.sum(axis=1, keepdims=True)
    out[np.arange(len(labels)), labels] -= 1
    return np.asarray(out / len(labels))


def gradient(weights: Array, pixels: Array, labels: Labels) -> Array:
    return softmax_error(pixels @ weights.T, labels).T @ pixels


Gradient = Callable[[Array, Array, Labels], Array]


def local_sgd(
    start: Array, client: int, round: int, of: Gradient = gradient, *, steps: int = STEPS, momentum: float = 0.0
) -> Array:
    """Return a client's weights after a round of SGD along the gradient ``of``."""
    weights, velocity = start.copy(), np.zeros_like(start)
    for pixels, labels in batches(client, round, steps):
        velocity = momentum * velocity + of(weights, pixels, labels)
        weights = weights - LR * velocity
    return weights


def plus(correction: Array) -> Gradient:
    """Return the gradient function with a constant added."""
    return lambda weights, pixels, labels: gradient(weights, pixels, labels) + correction


def mean(share: Sequence[float] | Array, leaves: Sequence[Array]) -> Array:
    return np.asarray(sum(part * leaf for part, leaf in zip(share, leaves, strict=True)))


def fedavg_delta(x: Array, round: int) -> Array:
    """Return the mean change of the weights in a round of FedAvg."""
    return mean(SHARE, [local_sgd(x, client, round) for client in range(3)]) - x


def assert_close(tensor: Tensor, expected: Array) -> None:
    np.testing.assert_allclose(tensor.numpy(), expected, rtol=0, atol=1e-12)


@dataclass
class NormState:
    """The batch normalization of a client: scale g, shift b, running mean and (unbiased) variance."""

    g: Array
    b: Array
    mean: Array
    var: Array


def local_sgd_with_batch_norm(
    start: Array, norm: NormState, client: int, round: int, steps: int = STEPS
) -> tuple[Array, NormState]:
    """Dz = softmax error; dW = dz^T f, dg = sum(dz W * p_hat), db = sum(dz W); the statistics do not depend on W."""
    weights, g, b, mean, var = start.copy(), norm.g.copy(), norm.b.copy(), norm.mean.copy(), norm.var.copy()
    for pixels, labels in batches(client, round, steps):
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


#: A batch-normalized softmax regression: scale, shift, W, running mean and (unbiased) variance.
Normed = tuple[Array, Array, Array, Array, Array]
#: The names of its parts.
NAMES = ("norm.weight", "norm.bias", "head.weight", "norm.running_mean", "norm.running_var")


def evaluated_features(model: Normed, pixels: Array) -> Array:
    """Return the features in evaluation mode, with running statistics."""
    scale, shift, _, centre, spread = model
    return np.asarray((pixels - centre) / np.sqrt(spread + 1e-5) * scale + shift)


def normed_rounds(term: Callable[[Array, Array, Labels, Array, Normed, Normed], tuple[Array, Array]]) -> Sequence[Any]:
    """Return server's model and the clients' last ones after all rounds of SGD on a batch-normalized regression.

    ``term`` returns the gradient of the method's loss with respect to features and logits, from features, logits,
    labels, pixels, the server's model and the client's previous one.
    """
    start: Normed = (np.ones(2), np.zeros(2), W0.copy(), np.zeros(2), np.ones(2))
    server, last = start, [start for _ in SIZES]
    for round in range(ROUNDS):
        ends: list[Normed] = []
        for client in range(3):
            scale, shift, weights, centre, spread = server
            for pixels, labels in batches(client, round):
                unit = (pixels - pixels.mean(axis=0)) / np.sqrt(pixels.var(axis=0) + 1e-5)
                features = unit * scale + shift
                logits = features @ weights.T
                of_features, of_logits = term(features, logits, labels, pixels, server, last[client])
                error = softmax_error(logits, labels) + of_logits
                back = error @ weights + of_features
                weights = weights - LR * error.T @ features
                scale, shift = scale - LR * (back * unit).sum(axis=0), shift - LR * back.sum(axis=0)
                centre = 0.9 * centre + 0.1 * pixels.mean(axis=0)
                spread = 0.9 * spread + 0.1 * pixels.var(axis=0, ddof=1)
            ends.append((scale, shift, weights, centre, spread))
        last = ends
        server = tuple(mean(SHARE, leaves) for leaves in zip(*ends, strict=True))  # type: ignore[assignment]
    return server, last
