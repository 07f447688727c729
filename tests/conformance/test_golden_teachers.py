"""Golden numbers of methods that compare with other models' outputs, against independent numpy programs to 1e-12."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from tests.conformance.problem import (
    H0,
    LR,
    ROUNDS,
    SHARE,
    SIZES,
    V0,
    W0,
    Array,
    Labels,
    SoftmaxRegression,
    TwoLayers,
    assert_close,
    batches,
    both_executors,
    local_sgd,
    mean,
    softmax_error,
    trained,
)

#: A batch-normalized softmax regression: scale, shift, W, running mean and (unbiased) variance.
Normed = tuple[Array, Array, Array, Array, Array]


def cosine(a: Array, b: Array) -> tuple[Array, Array]:
    """Return the cosine of each row of a with that of b, and its derivative with respect to a."""
    length = np.sqrt((a * a).sum(axis=1, keepdims=True))
    unit, other = a / length, b / np.sqrt((b * b).sum(axis=1, keepdims=True))
    value = (unit * other).sum(axis=1, keepdims=True)
    return value[:, 0], (other - value * unit) / length


def contrast(features: Array, server: Array, previous: Array, mu: float, tau: float) -> Array:
    """Return d/df of mu/B sum -log(e^(s/tau) / (e^(s/tau) + e^(p/tau))), from the softmax over the two cosines."""
    s, into_s = cosine(features, server)
    p, into_p = cosine(features, previous)
    wrong = np.exp(p / tau) / (np.exp(s / tau) + np.exp(p / tau))  # the softmax's probability of "previous"
    return np.asarray(mu / tau / len(features) * wrong[:, None] * (into_p - into_s))


MOON_SETTINGS: list[dict[str, float]] = [{}, {"mu": 3.0, "tau": 0.2}]


@both_executors
@pytest.mark.parametrize("settings", MOON_SETTINGS)
def test_moon(executor: str, settings: dict[str, float]) -> None:
    """Features V p and logits H V p; the previous weights of a client are those it ended its last round with."""
    mu, tau = settings.get("mu", 1.0), settings.get("tau", 0.5)
    hidden, head, last = V0.copy(), H0.copy(), [V0.copy() for _ in SIZES]
    for round in range(ROUNDS):
        ends = []
        for client in range(3):
            v, h = hidden.copy(), head.copy()
            for pixels, labels in batches(client, round):
                features = pixels @ v.T
                error = softmax_error(features @ h.T, labels)
                into = error @ h + contrast(features, pixels @ hidden.T, pixels @ last[client].T, mu, tau)
                v, h = v - LR * into.T @ pixels, h - LR * error.T @ features
            ends.append((v, h))
        last = [v for v, _ in ends]
        hidden, head = mean(SHARE, last), mean(SHARE, [h for _, h in ends])
    trainer = trained({"name": "moon", **settings}, executor, network=TwoLayers())
    assert_close(trainer.x["hidden.weight"], hidden)
    assert_close(trainer.x["head.weight"], head)
    assert_close(trainer.states["hidden.weight"], np.stack(last))


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


NAMES = ("norm.weight", "norm.bias", "head.weight", "norm.running_mean", "norm.running_var")


@both_executors
def test_moon_compares_with_teachers_in_evaluation_mode(executor: str) -> None:
    """The previous model has the client's own running statistics, the server's has the server's."""

    def term(
        features: Array, logits: Array, labels: Labels, pixels: Array, server: Normed, last: Normed
    ) -> tuple[Array, Array]:
        teachers = evaluated_features(server, pixels), evaluated_features(last, pixels)
        return contrast(features, *teachers, mu=2.0, tau=0.5), np.zeros_like(logits)

    server, last = normed_rounds(term)
    trainer = trained({"name": "moon", "mu": 2.0}, executor, network=SoftmaxRegression(batch_norm=True))
    for leaf, name in enumerate(NAMES):
        assert_close({**trainer.x, **trainer.buffers}[name], server[leaf])
        assert_close(trainer.states[name], np.stack([own[leaf] for own in last]))


def without_true(logits: Array, labels: Labels, tau: float) -> Array:
    """Return the softmax of logits / tau over the classes other than the label, which gets 0."""
    out = np.zeros_like(logits)
    for row, label in enumerate(labels):
        others = [c for c in range(logits.shape[1]) if c != label]
        exp = np.exp(logits[row, others] / tau)
        out[row, others] = exp / exp.sum()
    return out


NTD_SETTINGS: list[dict[str, float]] = [{}, {"beta": 0.3, "tau": 3.0}]


@both_executors
@pytest.mark.parametrize("settings", NTD_SETTINGS)
def test_fedntd(executor: str, settings: dict[str, float]) -> None:
    """The derivative of KL(q || p) with respect to z is (p - q) / tau."""
    beta, tau = settings.get("beta", 1.0), settings.get("tau", 1.0)
    x = W0.copy()
    for round in range(ROUNDS):
        server = x

        def distilled(weights: Array, pixels: Array, labels: Labels, server: Array = server) -> Array:
            logits = pixels @ weights.T
            apart = without_true(logits, labels, tau) - without_true(pixels @ server.T, labels, tau)
            return np.asarray((softmax_error(logits, labels) + beta / tau / len(labels) * apart).T @ pixels)

        x = mean(SHARE, [local_sgd(x, client, round, distilled) for client in range(3)])
    assert_close(trained({"name": "fedntd", **settings}, executor).x["head.weight"], x)


@both_executors
def test_fedntd_distils_from_the_server_in_evaluation_mode(executor: str) -> None:
    def term(
        features: Array, logits: Array, labels: Labels, pixels: Array, server: Normed, last: Normed
    ) -> tuple[Array, Array]:
        of_server = evaluated_features(server, pixels) @ server[2].T
        apart = without_true(logits, labels, 1.0) - without_true(of_server, labels, 1.0)
        return np.zeros_like(features), apart / len(labels)

    server, _ = normed_rounds(term)
    trainer = trained("fedntd", executor, network=SoftmaxRegression(batch_norm=True))
    for leaf, name in enumerate(NAMES):
        assert_close({**trainer.x, **trainer.buffers}[name], server[leaf])
