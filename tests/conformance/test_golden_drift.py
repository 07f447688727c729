"""Golden numbers of FedDyn, FedCM, FedSAM, MoFedSAM, FedACG, FedExP and FedAwS, against numpy programs to 1e-12."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from typing import Any

import numpy as np
import pytest

from flbench.registry import METHODS
from tests.conformance.problem import (
    COUNTS,
    H0,
    LR,
    ROUNDS,
    SHARE,
    SIZES,
    STEPS,
    V0,
    W0,
    Array,
    Labels,
    SoftmaxRegression,
    TwoLayers,
    assert_close,
    batches,
    both_executors,
    gradient,
    local_sgd,
    mean,
    softmax_error,
    trained,
    trainer_of,
)

UNEQUAL = (2, 3, 1)
DYN_SETTINGS: list[dict[str, Any]] = [{}, {"alpha": 0.4, "server_lr": 0.7}, {"alpha": 0.4, "weighting": "equal"}]


@both_executors
@pytest.mark.parametrize("settings", DYN_SETTINGS)
@pytest.mark.parametrize("participation", [1.0, 2 / 3])
def test_feddyn(executor: str, settings: dict[str, Any], participation: float) -> None:
    """The paper's own form: g_k is the gradient that client k has last seen, h = mean g_k over all clients.

    The authors' code: alpha_k is alpha over the client's samples, relative to the mean client's.
    """
    alpha, server_lr = settings.get("alpha", 0.01), settings.get("server_lr", 1.0)
    relative = np.ones(3) if settings.get("weighting") == "equal" else np.array(SIZES) / np.mean(SIZES)
    trainer = trainer_of({"name": "feddyn", **settings}, executor, participation=participation)
    x, g, h = W0.copy(), [np.zeros_like(W0) for _ in SIZES], np.zeros_like(W0)
    for round in range(5):
        cohort = [int(client) for client in trainer.run.cohort(trainer.round)]
        trainer.step()
        start, ends = x, []
        for k in cohort:

            def regularized(
                weights: Array, pixels: Array, labels: Labels, k: int = k, start: Array = start, g_k: Array = g[k]
            ) -> Array:
                return gradient(weights, pixels, labels) - g_k + alpha / relative[k] * (weights - start)

            end = local_sgd(x, k, round, regularized)
            g[k] = g[k] - alpha / relative[k] * (end - x)
            h = h - alpha / 3 * (end - x)
            ends.append(end)
        x = x + server_lr * (sum(ends) / len(ends) - h / alpha - x)
    assert_close(trainer.x["head.weight"], x)
    assert_close(trainer.server["head.weight"], -h / alpha)
    assert_close(trainer.states["head.weight"], np.stack([-g[k] * relative[k] / alpha for k in range(3)]))


@both_executors
@pytest.mark.parametrize("settings", [{}, {"alpha": 0.6, "server_lr": 0.7}])
@pytest.mark.parametrize("steps", [(STEPS,) * 3, UNEQUAL])
def test_fedcm(executor: str, settings: dict[str, float], steps: tuple[int, ...]) -> None:
    alpha, server_lr = settings.get("alpha", 0.1), settings.get("server_lr", 1.0)
    x, moving = W0.copy(), np.zeros_like(W0)
    for round in range(ROUNDS):

        def mixed(weights: Array, pixels: Array, labels: Labels, moving: Array = moving) -> Array:
            return alpha * gradient(weights, pixels, labels) + (1 - alpha) * moving

        ends = [local_sgd(x, k, round, mixed, steps=steps[k]) for k in range(3)]
        moving = mean(SHARE, [(x - ends[k]) / (LR * steps[k]) for k in range(3)])
        x = x + server_lr * (mean(SHARE, ends) - x)
    trainer = trained({"name": "fedcm", **settings}, executor, steps=steps)
    assert_close(trainer.x["head.weight"], x)
    assert_close(trainer.server["head.weight"], moving)


Pair = tuple[Array, Array]


def two_gradients(v: Array, h: Array, pixels: Array, labels: Labels) -> Pair:
    """Return dL/dV and dL/dH of the logits H V p."""
    error = softmax_error(pixels @ v.T @ h.T, labels)
    return (error @ h).T @ pixels, error.T @ (pixels @ v.T)


def sharp_gradients(v: Array, h: Array, pixels: Array, labels: Labels, rho: float) -> Pair:
    """Return the gradients at the ascent point: both leaves move along one unit vector."""
    dv, dh = two_gradients(v, h, pixels, labels)
    length = np.linalg.norm(np.concatenate([dv.ravel(), dh.ravel()]))
    return two_gradients(v + rho * dv / length, h + rho * dh / length, pixels, labels)


def two_layer_rounds(of: Callable[[Array, Array, Array, Labels, Pair], Pair]) -> Pair:
    """Return V and H after all rounds; ``of`` also sees the mean step of the last round."""
    hidden, head, moving = V0.copy(), H0.copy(), (np.zeros_like(V0), np.zeros_like(H0))
    for round in range(ROUNDS):
        ends = []
        for client in range(3):
            v, h = hidden, head
            for pixels, labels in batches(client, round):
                dv, dh = of(v, h, pixels, labels, moving)
                v, h = v - LR * dv, h - LR * dh
            ends.append((v, h))
        after = mean(SHARE, [v for v, _ in ends]), mean(SHARE, [h for _, h in ends])
        moving = (hidden - after[0]) / (LR * STEPS), (head - after[1]) / (LR * STEPS)
        hidden, head = after
    return hidden, head


@both_executors
@pytest.mark.parametrize("rho", [None, 0.3])
def test_fedsam(executor: str, rho: float | None) -> None:
    """Weight decay pulls the weights themselves, and does not perturb them."""

    def sharp(v: Array, h: Array, pixels: Array, labels: Labels, _: Pair) -> Pair:
        dv, dh = sharp_gradients(v, h, pixels, labels, 0.05 if rho is None else rho)
        return dv + 0.02 * v, dh + 0.02 * h

    hidden, head = two_layer_rounds(sharp)
    settings = {} if rho is None else {"rho": rho}
    trainer = trained({"name": "fedsam", **settings}, executor, network=TwoLayers(), weight_decay=0.02)
    assert_close(trainer.x["hidden.weight"], hidden)
    assert_close(trainer.x["head.weight"], head)


@both_executors
@pytest.mark.parametrize("settings", [{}, {"rho": 0.3, "alpha": 0.4}])
def test_mofedsam(executor: str, settings: dict[str, float]) -> None:
    rho, alpha = settings.get("rho", 0.05), settings.get("alpha", 0.1)

    def mixed(v: Array, h: Array, pixels: Array, labels: Labels, moving: Pair) -> Pair:
        dv, dh = sharp_gradients(v, h, pixels, labels, rho)
        return alpha * dv + (1 - alpha) * moving[0], alpha * dh + (1 - alpha) * moving[1]

    hidden, head = two_layer_rounds(mixed)
    trainer = trained({"name": "mofedsam", **settings}, executor, network=TwoLayers())
    assert_close(trainer.x["hidden.weight"], hidden)
    assert_close(trainer.x["head.weight"], head)


def normed_gradients(
    scale: Array, shift: Array, weights: Array, pixels: Array, labels: Labels
) -> tuple[Array, Array, Array]:
    """Return the gradients of a batch-normalized softmax regression."""
    unit = (pixels - pixels.mean(axis=0)) / np.sqrt(pixels.var(axis=0) + 1e-5)
    error = softmax_error((unit * scale + shift) @ weights.T, labels)
    back = error @ weights
    return (back * unit).sum(axis=0), back.sum(axis=0), error.T @ (unit * scale + shift)


@both_executors
def test_fedsam_moves_batch_statistics_once(executor: str) -> None:
    rho = 0.3
    leaves, centre, spread = [np.ones(2), np.zeros(2), W0.copy()], np.zeros(2), np.ones(2)
    for round in range(ROUNDS):
        ends: list[Any] = []
        for client in range(3):
            own, running = leaves, (centre, spread)
            for pixels, labels in batches(client, round):
                first = normed_gradients(*own, pixels, labels)
                length = np.sqrt(sum((leaf**2).sum() for leaf in first))
                there = [leaf + rho * g / length for leaf, g in zip(own, first, strict=True)]
                second = normed_gradients(*there, pixels, labels)
                own = [leaf - LR * g for leaf, g in zip(own, second, strict=True)]
                moved = pixels.mean(axis=0), pixels.var(axis=0, ddof=1)
                running = 0.9 * running[0] + 0.1 * moved[0], 0.9 * running[1] + 0.1 * moved[1]
            ends.append((*own, *running))
        *leaves, centre, spread = (mean(SHARE, parts) for parts in zip(*ends, strict=True))
    trainer = trained({"name": "fedsam", "rho": rho}, executor, network=SoftmaxRegression(batch_norm=True))
    for name, expected in zip(("norm.weight", "norm.bias", "head.weight"), leaves, strict=True):
        assert_close(trainer.x[name], expected)
    assert_close(trainer.buffers["norm.running_mean"], centre)
    assert_close(trainer.buffers["norm.running_var"], spread)


@both_executors
@pytest.mark.parametrize("settings", [{}, {"lam": 0.5, "beta": 0.3, "server_lr": 0.7}])
def test_fedacg(executor: str, settings: dict[str, float]) -> None:
    lam, beta, server_lr = settings.get("lam", 0.85), settings.get("beta", 0.001), settings.get("server_lr", 1.0)
    x, momentum = W0.copy(), np.zeros_like(W0)
    for round in range(ROUNDS):
        ahead = x + server_lr * lam * momentum

        def proximal(weights: Array, pixels: Array, labels: Labels, ahead: Array = ahead) -> Array:
            return gradient(weights, pixels, labels) + beta * (weights - ahead)

        momentum = lam * momentum + mean(SHARE, [local_sgd(ahead, k, round, proximal) for k in range(3)]) - ahead
        x = x + server_lr * momentum
    trainer = trained({"name": "fedacg", **settings}, executor)
    assert_close(trainer.x["head.weight"], x)
    assert_close(trainer.server["head.weight"], momentum)


def test_fedacg_with_the_learning_rate_1_starts_from_the_papers_lookahead() -> None:
    """The server's next parameters are then the mean of the clients' weights."""
    x = W0.copy()
    momentum = np.zeros_like(W0)
    for round in range(ROUNDS):
        ahead = x + 0.85 * momentum
        x_next = mean(SHARE, [local_sgd(ahead, k, round) for k in range(3)])
        momentum, x = x_next - x, x_next
    assert_close(trained({"name": "fedacg", "beta": 0.0}, "loop").x["head.weight"], x)


@both_executors
@pytest.mark.parametrize("settings", [{}, {"eps": 0.02}])
def test_fedexp(executor: str, settings: dict[str, float]) -> None:
    """Clients without a common class pull apart, so that the step exceeds 1 in some rounds."""
    eps = settings.get("eps", 1e-3)
    x, before, steps = W0.copy(), W0.copy(), []
    for round in range(6):
        changes = [local_sgd(x, k, round) - x for k in range(3)]
        delta = mean(SHARE, changes)
        lengths = [np.linalg.norm(change) ** 2 for change in changes]
        steps.append(max(1.0, float(SHARE @ lengths) / (2 * (np.linalg.norm(delta) ** 2 + eps))))
        before, x = x, x + steps[-1] * delta
    assert max(steps) > 1.05, steps
    trainer = trainer_of({"name": "fedexp", **settings}, executor)
    for _ in range(6):
        trainer.step()
    assert_close(trainer.x["head.weight"], x)
    method = METHODS.parse({"name": "fedexp", **settings})
    assert_close(method.evaluated(trainer.x, trainer.server)["head.weight"], (x + before) / 2)


def hinge_gradients(v: Array, h: Array, pixels: Array, labels: Labels, margin: float) -> Pair:
    """Return dL/dV and dL/dH of the mean of max(0, margin - cos(V p, row y of H))^2, one sample after the other."""
    dv, dh = np.zeros_like(v), np.zeros_like(h)
    for p, y in zip(pixels, labels, strict=True):
        f, w = v @ p, h[y]
        lf, lw = np.linalg.norm(f), np.linalg.norm(w)
        cos = f @ w / (lf * lw)
        slope = -2 * max(0.0, margin - cos) / len(labels)
        dv += slope * np.outer(w / (lf * lw) - cos * f / lf**2, p)
        dh[y] += slope * (f / (lf * lw) - cos * w / lw**2)
    return dv, dh


def spread_out(rows: Array, nu: float, rate: float) -> Array:
    """Return unit rows after one step that lowers the sum over ordered pairs of max(0, nu - 1 + cos)^2."""
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    slope = np.zeros_like(unit)
    for c, d in permutations(range(len(rows)), 2):
        excess = max(0.0, nu - 1 + unit[c] @ unit[d])
        slope[c] += 2 * excess * unit[d]
        slope[d] += 2 * excess * unit[c]
    moved = unit - rate * slope
    return np.asarray(moved / np.linalg.norm(moved, axis=1, keepdims=True))


AWS_SETTINGS: list[dict[str, float]] = [{}, {"margin": 0.6, "nu": 1.3, "spread": 0.05, "server_lr": 0.7}]


@both_executors
@pytest.mark.parametrize("settings", AWS_SETTINGS)
def test_fedaws(executor: str, settings: dict[str, float]) -> None:
    """Weight decay acts on V, and on the rows that a client holds."""
    margin, nu, rate = settings.get("margin", 0.9), settings.get("nu", 0.9), settings.get("spread", 0.1)
    server_lr, decay = settings.get("server_lr", 1.0), 0.02
    hidden, head = V0.copy(), H0.copy()
    for round in range(ROUNDS):
        ends = []
        for client in range(3):
            v, h = hidden, head
            for pixels, labels in batches(client, round):
                dv, dh = hinge_gradients(v, h, pixels, labels, margin)
                held = (COUNTS[client] > 0)[:, None]
                v, h = v - LR * (dv + decay * v), h - LR * held * (dh + decay * h)
            ends.append((v, h))
        hidden = hidden + server_lr * (mean(SHARE, [v for v, _ in ends]) - hidden)
        rows = head.copy()
        for c in range(3):
            holders = [k for k in range(3) if COUNTS[k, c]]
            samples = sum(SIZES[k] for k in holders)
            rows[c] += server_lr * sum(SIZES[k] / samples * (ends[k][1][c] - head[c]) for k in holders)
        head = spread_out(rows, nu, rate)
    trainer = trained({"name": "fedaws", **settings}, executor, network=TwoLayers(), weight_decay=decay)
    assert_close(trainer.x["hidden.weight"], hidden)
    assert_close(trainer.x["head.weight"], head)
