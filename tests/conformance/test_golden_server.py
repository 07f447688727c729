"""Golden numbers of the server optimizers, compared with independent numpy programs in float64 to 1e-12."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from flbench.errors import InvalidComponent
from flbench.registry import METHODS
from tests.conformance.problem import ROUNDS, W0, Array, assert_close, both_executors, fedavg_delta, trained

#: The next v from v, delta^2 and beta2.
SECOND_MOMENTS: dict[str, Callable[[Array, Array, float], Array]] = {
    "fedadagrad": lambda v, square, beta2: v + square,
    "fedadam": lambda v, square, beta2: beta2 * v + (1 - beta2) * square,
    "fedyogi": lambda v, square, beta2: v - (1 - beta2) * square * np.sign(v - square),
}
DEFAULTS = {"server_lr": 0.01, "beta1": 0.9, "beta2": 0.99, "tau": 1e-3}
#: v0 is among the squared changes, so that Yogi's sign takes both values.
OTHERS = {"server_lr": 0.2, "beta1": 0.3, "beta2": 0.6, "tau": 0.05, "v0": 3e-3}
#: With another tau alone, v0 follows it.
SETTINGS: list[dict[str, float]] = [{}, OTHERS, {"tau": 0.05, "server_lr": 0.2}]


@both_executors
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("method", SECOND_MOMENTS)
def test_adaptive_server(executor: str, method: str, settings: dict[str, float]) -> None:
    given = settings.copy()
    v0 = {"v0": settings.get("tau", 1e-3) ** 2}  # the smallest value that Algorithm 2 allows
    expected = {**DEFAULTS, **v0, **({"beta1": 0.0} if method == "fedadagrad" else {}), **settings}
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


@pytest.mark.parametrize("method", SECOND_MOMENTS)
def test_the_second_moment_starts_at_no_less_than_tau_squared(method: str) -> None:
    def parsed(**settings: float | None) -> Any:
        return METHODS.parse({"name": method, **settings})

    usual = parsed()
    assert usual.v0 == 1e-6
    assert usual.identity() == {"name": method, "version": 1}
    for same in (parsed(v0=1e-6), parsed(v0=None), replace(usual, v0=None)):
        assert (same, same.identity(), same.label()) == (usual, usual.identity(), method)
    assert parsed(tau=0.1).v0 == pytest.approx(0.01)
    assert parsed(tau=0.1).label() == f"{method}(tau=0.1)"
    assert parsed(tau=0.1).identity() == {"name": method, "version": 1, "tau": 0.1, "v0": "tau^2"}  # it was 1e-6
    assert parsed(tau=0.1, v0=0.01).identity() == parsed(tau=0.1).identity()
    assert parsed(tau=0.1, v0=0.5).identity() == {"name": method, "version": 1, "tau": 0.1, "v0": 0.5}
    with pytest.raises(InvalidComponent, match=r"v0 must be at least tau\^2 = 0.01, its default, got 1e-06"):
        parsed(tau=0.1, v0=1e-6)


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
