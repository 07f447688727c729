"""Golden numbers: the server optimizers against independent numpy programs, float64, to 1e-12."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.conformance.problem import ROUNDS, W0, Array, assert_close, both_executors, fedavg_delta, trained

#: The next v from v, delta^2 and beta2.
SECOND_MOMENTS: dict[str, Callable[[Array, Array, float], Array]] = {
    "fedadagrad": lambda v, square, beta2: v + square,
    "fedadam": lambda v, square, beta2: beta2 * v + (1 - beta2) * square,
    "fedyogi": lambda v, square, beta2: v - (1 - beta2) * square * np.sign(v - square),
}
DEFAULTS = {"server_lr": 0.01, "beta1": 0.9, "beta2": 0.99, "tau": 1e-3, "v0": 1e-6}
#: v0 lies amid the squared changes, so that Yogi's sign takes both values.
OTHERS = {"server_lr": 0.2, "beta1": 0.3, "beta2": 0.6, "tau": 0.05, "v0": 3e-3}


@both_executors
@pytest.mark.parametrize("settings", [{}, OTHERS])
@pytest.mark.parametrize("method", SECOND_MOMENTS)
def test_adaptive_server(executor: str, method: str, settings: dict[str, float]) -> None:
    given = settings.copy()
    expected = {**DEFAULTS, **({"beta1": 0.0} if method == "fedadagrad" else {}), **settings}
    if method == "fedadagrad":
        given.pop("beta2", None)
    x, m, v = W0.copy(), np.zeros_like(W0), np.full_like(W0, expected["v0"])
    signs: set[float] = set()
    for round in range(ROUNDS):
        delta = fedavg_delta(x, round)
        signs |= set(np.sign(v - delta**2).ravel())
        m = expected["beta1"] * m + (1 - expected["beta1"]) * delta
        v = SECOND_MOMENTS[method](v, delta**2, expected["beta2"])
        x = x + expected["server_lr"] * m / (np.sqrt(v) + expected["tau"])
    trainer = trained({"name": method, **given}, executor)
    if (method, settings) == ("fedyogi", OTHERS):
        assert signs == {-1.0, 1.0}
    assert_close(trainer.x["head.weight"], x)
    assert_close(trainer.server["m/head.weight"], m)
    assert_close(trainer.server["v/head.weight"], v)


@both_executors
@pytest.mark.parametrize("settings", [{}, {"beta": 0.4, "server_lr": 0.7}])
def test_fedavgm(executor: str, settings: dict[str, float]) -> None:
    x, velocity = W0.copy(), np.zeros_like(W0)
    for round in range(ROUNDS):
        velocity = settings.get("beta", 0.9) * velocity + fedavg_delta(x, round)
        x = x + settings.get("server_lr", 1.0) * velocity
    trainer = trained({"name": "fedavgm", **settings}, executor)
    assert_close(trainer.x["head.weight"], x)
    assert_close(trainer.server["head.weight"], velocity)
