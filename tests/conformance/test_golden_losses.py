"""Golden numbers of methods that change the local loss, compared with independent numpy programs to 1e-12."""

from __future__ import annotations

import numpy as np
import pytest

from tests.conformance.problem import (
    COUNTS,
    H0,
    LABELS,
    LR,
    ROUNDS,
    SHARE,
    SIZES,
    V0,
    W0,
    Array,
    Gradient,
    Labels,
    TwoLayers,
    assert_close,
    batches,
    both_executors,
    gradient,
    local_sgd,
    mean,
    softmax_error,
    trained,
)


def test_the_counts_are_those_of_the_labels() -> None:
    ends = np.cumsum(SIZES)
    held = [LABELS[end - size : end] for size, end in zip(SIZES, ends, strict=True)]
    assert [np.bincount(labels, minlength=3).tolist() for labels in held] == COUNTS.tolist()


@both_executors
@pytest.mark.parametrize("mu", [None, 0.3])
def test_fedprox(executor: str, mu: float | None) -> None:
    x = W0.copy()
    for round in range(ROUNDS):
        start = x

        def proximal(weights: Array, pixels: Array, labels: Labels, start: Array = start) -> Array:
            return gradient(weights, pixels, labels) + (0.01 if mu is None else mu) * (weights - start)

        x = mean(SHARE, [local_sgd(start, client, round, proximal) for client in range(3)])
    settings = {} if mu is None else {"mu": mu}
    assert_close(trained({"name": "fedprox", **settings}, executor).x["head.weight"], x)


@both_executors
@pytest.mark.parametrize("tau", [None, 0.4])
def test_fedlc(executor: str, tau: float | None) -> None:
    """The softmax of a client is over the classes that it has; the rows of W of other classes do not change."""

    def calibrated(counts: Labels) -> Gradient:
        held = counts > 0

        def of(weights: Array, pixels: Array, labels: Labels) -> Array:
            margin = (1.0 if tau is None else tau) / np.sqrt(np.sqrt(counts[held]))
            error = np.zeros((len(labels), 3))
            place = np.cumsum(held) - 1
            error[:, held] = softmax_error(pixels @ weights[held].T - margin, place[labels])
            return np.asarray(error.T @ pixels)

        return of

    x = W0.copy()
    for round in range(ROUNDS):
        x = mean(SHARE, [local_sgd(x, client, round, calibrated(COUNTS[client])) for client in range(3)])
    settings = {} if tau is None else {"tau": tau}
    assert_close(trained({"name": "fedlc", **settings}, executor).x["head.weight"], x)


@both_executors
def test_balanced_softmax(executor: str) -> None:
    """The probability of class c is n_c exp(z_c) over their sum."""

    def balanced(counts: Labels) -> Gradient:
        def of(weights: Array, pixels: Array, labels: Labels) -> Array:
            odds = counts * np.exp(pixels @ weights.T)
            error = odds / odds.sum(axis=1, keepdims=True) - np.eye(3)[labels]
            return np.asarray((error / len(labels)).T @ pixels)

        return of

    x = W0.copy()
    for round in range(ROUNDS):
        x = mean(SHARE, [local_sgd(x, client, round, balanced(COUNTS[client])) for client in range(3)])
    assert_close(trained("balanced-softmax", executor).x["head.weight"], x)


@both_executors
@pytest.mark.parametrize("alpha", [None, 0.2])
def test_fedrs(executor: str, alpha: float | None) -> None:
    def restricted(counts: Labels) -> Gradient:
        scale = np.where(counts == 0, 0.5 if alpha is None else alpha, 1.0)

        def of(weights: Array, pixels: Array, labels: Labels) -> Array:
            return np.asarray((scale * softmax_error(scale * (pixels @ weights.T), labels)).T @ pixels)

        return of

    x = W0.copy()
    for round in range(ROUNDS):
        x = mean(SHARE, [local_sgd(x, client, round, restricted(COUNTS[client])) for client in range(3)])
    settings = {} if alpha is None else {"alpha": alpha}
    assert_close(trained({"name": "fedrs", **settings}, executor).x["head.weight"], x)


def standardised(features: Array, ddof: int) -> tuple[Array, Array, Array]:
    """Return the centred columns c, their deviations s with eps = 1e-8 under the root, and u = c / s."""
    c = features - features.mean(axis=0)
    s = np.sqrt((c**2).sum(axis=0) / (len(c) - ddof) + 1e-8)
    return c, s, c / s


def back_to_features(into_u: Array, features: Array, ddof: int) -> Array:
    """Return dL/df from dL/du, with ds/dc = c / ((n - ddof) s), minus the mean of each column."""
    c, s, u = standardised(features, ddof)
    into_c = into_u / s - (into_u * u).sum(axis=0) / s * c / ((len(c) - ddof) * s)
    return np.asarray(into_c - into_c.mean(axis=0))


def correlation_gradient(features: Array, variant: str, coefficient: float) -> Array:
    """Return dL_D/df, derived by hand.

    Original: L = c/d^2 sum_jk K_jk^2 with K = u^T u / n, so dL/du = 4c/(d^2 n) u K. Text and code:
    L = c/(n d (d-1)) sum_{j != k} G_jk^2 with G = u^T u, so dL/du = 4c/(n d (d-1)) u (G without its diagonal).
    """
    n, d = features.shape
    if variant == "original":
        _, _, u = standardised(features, ddof=0)
        return back_to_features(4 * coefficient / (d**2 * n) * u @ (u.T @ u / n), features, ddof=0)
    _, _, u = standardised(features, ddof=1)
    gram = u.T @ u
    off = gram - np.diag(np.diag(gram))
    return back_to_features(4 * coefficient / (n * d * (d - 1)) * u @ off, features, ddof=1)


#: The settings given, and the form and the coefficient that they mean.
FEDDECORR_CASES: list[tuple[dict[str, float | str], str, float]] = [
    ({}, "original", 0.5),
    ({"variant": "original", "coefficient": 2.0}, "original", 2.0),
    ({"variant": "text"}, "text", 0.5),
    ({"variant": "text", "coefficient": 0.3}, "text", 0.3),
    ({"variant": "code"}, "code", 0.1),
]


@both_executors
@pytest.mark.parametrize(("settings", "variant", "coefficient"), FEDDECORR_CASES)
def test_feddecorr(executor: str, settings: dict[str, float | str], variant: str, coefficient: float) -> None:
    """Use batches of 4, because all correlations of two samples are 1; f = V p, z = H f, both layers are trained."""
    hidden, head = V0.copy(), H0.copy()
    for round in range(ROUNDS):
        ends = []
        for client in range(3):
            v, h = hidden.copy(), head.copy()
            for pixels, labels in batches(client, round, steps=3, batch_size=4):
                features = pixels @ v.T
                error = softmax_error(features @ h.T, labels)
                into_features = error @ h + correlation_gradient(features, variant, coefficient)
                v, h = v - LR * into_features.T @ pixels, h - LR * error.T @ features
            ends.append((v, h))
        hidden, head = mean(SHARE, [v for v, _ in ends]), mean(SHARE, [h for _, h in ends])
    trainer = trained({"name": "feddecorr", **settings}, executor, network=TwoLayers(), batch_size=4)
    assert_close(trainer.x["hidden.weight"], hidden)
    assert_close(trainer.x["head.weight"], head)
