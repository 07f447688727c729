"""Golden numbers, invariants and mutations of FedACG."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.conformance.methods.cases import Case, assert_penalty_gradient, batch_of, context_of, parsed
from tests.conformance.problem import (
    ROUNDS,
    SHARE,
    W0,
    Array,
    Labels,
    assert_close,
    both_executors,
    gradient,
    local_sgd,
    mean,
    trained,
)
from tests.mutation.mutations import mutations_of

CASES = {"fedacg": Case([{"lam": 0.0, "beta": 0.0}], [{"lam": lam, "beta": 1 - lam} for lam in (0.85, 0.3, 0.0, 0.5)])}


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


def test_the_gradient_by_hand() -> None:
    """A parameter without x stays on the client."""
    w = {name: torch.linspace(-1, 2, 6, dtype=torch.float64) for name in ("shared", "own")}
    context = context_of({"shared": w["shared"].flip(0)})
    empty = torch.zeros(2, 3, dtype=torch.float64)
    assert_penalty_gradient(parsed("fedacg", beta=0.3), w, batch_of(empty, empty, [0, 1]), context)


MUTATIONS = mutations_of(
    "fedacg",
    ("starts behind", "a + self.server_lr * self.lam * m", "a - self.server_lr * self.lam * m"),
    ("starts at x", "a + self.server_lr * self.lam * m", "a"),
    ("starts too far ahead", "a + self.server_lr * self.lam * m", "a + self.server_lr * m"),
    ("starts without the server's rate", "a + self.server_lr * self.lam * m", "a + self.lam * m"),
    ("pulls twice, as the code", "self.beta / 2 * squared", "self.beta * squared"),
    ("pushes", "self.beta / 2 * squared", "-self.beta / 2 * squared"),
    ("pulls to 0", "((w[name] - x) ** 2)", "(w[name] ** 2)"),
    ("no momentum", "self.lam * m + d", "d"),
    ("momentum's weights add to 1", "self.lam * m + d", "self.lam * m + (1 - self.lam) * d"),
    (
        "x moves from the lookahead twice",
        "a + self.server_lr * m, x, m), m",
        "a + self.server_lr * (1 + self.lam) * m, x, m), m",
    ),
    ("server's rate dropped", "a + self.server_lr * m, x, m), m", "a + m, x, m), m"),
    ("momentum never moves", "x, m), m\n", "x, m), state\n"),
    ("lam by default", "= 0.85", "= 0.9"),
    ("beta by default", "Field(ge=0)] = 0.001", "Field(ge=0)] = 0.01"),
    ("m starts at x", "lambda a: 0 * a", "lambda a: a"),
    ("by hand: pulls to 0", "self.beta * (w[name] - x)", "self.beta * w[name]"),
    ("by hand: halved", "self.beta * (w[name] - x)", "self.beta / 2 * (w[name] - x)"),
    ("by hand: pushes", "self.beta * (w[name] - x)", "self.beta * (x - w[name])"),
)
