"""Golden numbers, invariants and mutations of the server optimizers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from flbench.errors import InvalidComponent
from flbench.registry import METHODS
from tests.conformance.methods.cases import Case, values
from tests.conformance.problem import (
    ROUNDS,
    W0,
    Array,
    assert_close,
    both_executors,
    fedavg_delta,
    trained,
)
from tests.mutation.mutations import mutations_of

#: The adaptive optimizers equal FedAvg if tau is much larger than the changes: sqrt(v) then stays tau, or vanishes if v
#: decays from its initial value, and server_lr is sqrt(v) + tau.
CASES = {
    "fedavgm": Case([{"beta": 0.0}], values("beta", 0.9, 0.1, 0.5, 0.9)),
    "fedadagrad": Case([{"beta1": 0.0, "tau": 1e15, "server_lr": 2e15}], tolerance=1e-12),
    "fedadam": Case([{"beta1": 0.0, "beta2": 0.0, "tau": 1e15, "server_lr": 1e15}], tolerance=1e-12),
    "fedyogi": Case(
        [{"beta1": 0.0, "tau": 1e15, "server_lr": 2e15}],
        values("server_lr", 0.01, 0.1, 0.03, 0.01),
        tolerance=1e-12,
    ),
}


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


_AVGM = "tmap(lambda a, v: a + self.server_lr * v, x, v), v"
_M = 'self.beta1 * state[f"m/{name}"] + (1 - self.beta1) * d'
_YOGI = "v - (1 - self.beta2) * squared * (v - squared).sign()"
MUTATIONS = mutations_of(
    "fedopt",
    ("avgm: no momentum", "self.beta * v + d", "d"),
    ("avgm: sign of delta", "self.beta * v + d", "self.beta * v - d"),
    ("avgm: moving mean", "self.beta * v + d", "self.beta * v + (1 - self.beta) * d"),
    ("avgm: beta on delta", "self.beta * v + d", "v + self.beta * d"),
    ("avgm: beta by default", "Field(ge=0, lt=1)] = 0.9", "Field(ge=0, lt=1)] = 0.5", 0),
    ("avgm: velocity not kept", _AVGM, _AVGM[:-1] + "state"),
    ("avgm: steps along delta", _AVGM, "tmap(lambda a, v: a + self.server_lr * v, x, delta), v"),
    ("avgm: learning rate dropped", _AVGM, "tmap(lambda a, v: a + v, x, v), v"),
    ("avgm: backwards", _AVGM, "tmap(lambda a, v: a - self.server_lr * v, x, v), v"),
    ("m is a sum", _M, 'self.beta1 * state[f"m/{name}"] + d'),
    ("m without memory", _M, "(1 - self.beta1) * d"),
    ("m's weights swapped", _M, '(1 - self.beta1) * state[f"m/{name}"] + self.beta1 * d'),
    ("delta not squared", "d * d)", "d.abs())"),
    ("v for its root", "v.sqrt() + self.tau", "v + self.tau"),
    ("tau under the root", "(v.sqrt() + self.tau)", "(v + self.tau).sqrt()"),
    ("tau dropped", "(v.sqrt() + self.tau)", "v.sqrt()"),
    ("learning rate dropped", "self.server_lr * m /", "m /"),
    ("backwards", "a + self.server_lr * m", "a - self.server_lr * m"),
    ("m not kept", '{f"m/{name}": a for name, a in m.items()}', '{f"m/{name}": state[f"m/{name}"] for name in m}'),
    ("v not kept", '{f"v/{name}": a for name, a in v.items()}', '{f"v/{name}": state[f"v/{name}"] for name in v}'),
    ("v0 ignored", "0 * a + self.v0", "0 * a"),
    ("m starts at x", '{f"m/{name}": 0 * a for', '{f"m/{name}": a for'),
    ("server_lr by default", "server_lr: Annotated[float, Field(gt=0)] = 0.01", "server_lr: float = 0.1"),
    ("beta1 by default", "beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9", "beta1: float = 0.99"),
    ("tau by default", "= 1e-3", "= 1e-2"),
    ("v0 by default", '"v0", self.tau * self.tau', '"v0", self.tau'),
    ("adagrad: with momentum", "beta1: Annotated[float, Field(ge=0, lt=1)] = 0.0", "beta1: float = 0.9"),
    ("adagrad: without memory", "return v + squared", "return squared"),
    ("adagrad: a mean", "return v + squared", "return (v + squared) / 2"),
    ("adam: a sum", "self.beta2 * v + (1 - self.beta2) * squared", "self.beta2 * v + squared"),
    ("adam: beta1 for beta2", "self.beta2 * v + (1 - self.beta2)", "self.beta1 * v + (1 - self.beta1)"),
    ("adam: weights swapped", "self.beta2 * v + (1 - self.beta2)", "(1 - self.beta2) * v + self.beta2"),
    ("adam: beta2 by default", "Field(ge=0, lt=1)] = 0.99", "Field(ge=0, lt=1)] = 0.999", 0),
    ("yogi: sign before v", _YOGI, _YOGI.replace("v - (1", "v + (1")),
    ("yogi: sign of the distance", _YOGI, _YOGI.replace("(v - squared)", "(squared - v)")),
    ("yogi: distance for its sign", _YOGI, _YOGI.replace(".sign()", "")),
    ("yogi: not scaled by delta^2", _YOGI, _YOGI.replace("* squared *", "*")),
    ("yogi: Adam", _YOGI, "self.beta2 * v + (1 - self.beta2) * squared"),
    ("yogi: always down", _YOGI, "v - (1 - self.beta2) * squared"),
    ("yogi: beta2 for 1 - beta2", _YOGI, _YOGI.replace("(1 - self.beta2)", "self.beta2")),
    ("yogi: beta2 by default", "Field(ge=0, lt=1)] = 0.99", "Field(ge=0, lt=1)] = 0.999", 1),
)
