"""Golden numbers, invariants and mutations of FedRep."""

from __future__ import annotations

import numpy as np
import pytest

from flbench.methods.base import Method
from flbench.registry import METHODS
from flbench.testing import check_method
from tests.conformance.methods.cases import Case, context_of
from tests.conformance.problem import (
    H0,
    LR,
    ROUNDS,
    SHARE,
    V0,
    TwoLayers,
    assert_close,
    batches,
    both_executors,
    mean,
    softmax_error,
    trained,
)
from tests.mutation.mutations import mutations_of

#: There is no shared head to compare.
CASES = {"fedrep": Case(has_effect=False)}

#: Local steps of the clients, and how many of them train the body where it has 0.4 of them.
STEPS, OF_BODY = (2, 6, 4), (1, 2, 2)


@both_executors
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_fedrep(executor: str, momentum: float) -> None:
    """The velocity of each part grows in its own steps alone."""
    hidden, heads = V0.copy(), [H0.copy() for _ in STEPS]
    for round in range(ROUNDS):
        ends = []
        for client in range(3):
            v, moved = hidden.copy(), {"head": 0.0 * H0, "hidden": 0.0 * V0}
            for step, (pixels, labels) in enumerate(batches(client, round, STEPS[client])):
                error = softmax_error(pixels @ v.T @ heads[client].T, labels)
                if step < STEPS[client] - OF_BODY[client]:
                    moved["head"] = momentum * moved["head"] + error.T @ (pixels @ v.T)
                    heads[client] = heads[client] - LR * moved["head"]
                else:
                    moved["hidden"] = momentum * moved["hidden"] + (error @ heads[client]).T @ pixels
                    v = v - LR * moved["hidden"]
            ends.append(v)
        hidden = mean(SHARE, ends)
    method = {"name": "fedrep", "body": 0.4}
    trainer = trained(method, executor, network=TwoLayers(), steps=STEPS, momentum=momentum)
    assert_close(trainer.x["hidden.weight"], hidden)
    assert_close(trainer.local["head.weight"], np.stack(heads))


@pytest.mark.parametrize(
    "name", ["head.weight", "head.bias", "head.scale", "projection.0.weight", "trunk.dense1.weight"]
)
def test_every_part_of_the_head_trains_before_the_body(name: str) -> None:
    method: Method = METHODS.parse("fedrep")
    rates = [method.rates(name, context_of({}, steps=10, step=step)) for step in range(10)]
    assert rates == [float(name.startswith("head.") == (step < 9)) for step in range(10)]


@pytest.mark.parametrize("body", [0.1, 0.95])
def test_each_part_has_at_least_one_step(body: float) -> None:
    """And a single step trains both."""
    method: Method = METHODS.parse({"name": "fedrep", "body": body})
    for steps in range(1, 5):
        of = {
            name: [method.rates(name, context_of({}, steps=steps, step=step)) for step in range(steps)]
            for name in ("head.weight", "trunk.dense1.weight")
        }
        assert all(1.0 in rates for rates in of.values())
        assert all(a + b == (2.0 if steps == 1 else 1.0) for a, b in zip(*of.values(), strict=True))


def test_fedrep_is_trained_alike_in_every_way() -> None:
    method: Method = METHODS.parse({"name": "fedrep", "body": 0.5})
    assert method.is_personal and method.static == {"body"}
    check_method(method)


MUTATIONS = mutations_of(
    "fedrep",
    ("the body first", "if is_of_head", "if not is_of_head"),
    ("the head trains to the end", "(is_early & (is_last ^ True))", "True"),
    ("the body trains from the start", "((is_early ^ True) & (is_first ^ True))", "True"),
    ("no least step of the head", "is_first | (is_early", "False | (is_early"),
    ("no least step of the body", "is_last | ((is_early", "False | ((is_early"),
    ("the body's share is the head's", "(1 - self.body) * ctx.steps", "self.body * ctx.steps"),
    (
        "rounded down",
        "steps_of_head = (1 - self.body) * ctx.steps",
        "steps_of_head = (1 - self.body) * ctx.steps - 0.49",
    ),
    ("the head's weight alone", "is_of_head(name)", "name == ctx.head"),
    ("body by default", "= 0.1", "= 0.2"),
    ("the body may differ in a stack", 'frozenset({"body"})', "frozenset()"),
)
