"""Golden numbers, invariants and mutations of training without communication."""

from __future__ import annotations

import numpy as np

from flbench.methods.base import Method
from flbench.registry import METHODS
from tests.conformance.methods.cases import Case
from tests.conformance.problem import (
    ROUNDS,
    SIZES,
    UNEQUAL,
    W0,
    assert_close,
    both_executors,
    local_sgd,
    trained,
)
from tests.mutation.mutations import mutations_of
from tests.toys import largest_difference, toy_clients, toy_trainer, train

#: There are no shared parameters to compare.
CASES = {"local-only": Case(has_effect=False)}


@both_executors
def test_local_only(executor: str) -> None:
    ends = [W0.copy() for _ in SIZES]
    for round in range(ROUNDS):
        ends = [local_sgd(ends[k], k, round, steps=UNEQUAL[k], momentum=0.5) for k in range(3)]
    trainer = trained("local-only", executor, steps=UNEQUAL, momentum=0.5)
    assert trainer.x == trainer.buffers == {}
    assert_close(trainer.local["head.weight"], np.stack(ends))
    assert trainer.bytes_up == trainer.bytes_down == 0


def test_local_only_does_not_depend_on_other_clients() -> None:
    """Every client equals the client of a federation of one, whatever the other clients do."""
    together = toy_trainer(METHODS.parse("local-only"), norm="bn", clients=toy_clients((20, 14, 26)))
    alone = toy_trainer(Method(), norm="bn", clients=toy_clients((20,)))
    train(3, together, alone)
    first = {name: leaf[0] for name, leaf in together.local.items()}
    assert largest_difference(first, {**alone.x, **alone.buffers}) < 1e-15
    assert together.diverged_in() is None
    record = together.evaluate()
    assert set(record) >= {"acc_personal", "acc_global"}
    assert record["bytes_up"] == record["bytes_down"] == 0


def test_diverged_personal_models_are_detected() -> None:
    trainer = toy_trainer(METHODS.parse("local-only"))
    trainer.step()
    assert trainer.diverged_in() is None
    trainer.local["head.weight"][1, 0, 0] = float("nan")
    trainer.step()
    assert trainer.diverged_in() == 2


MUTATIONS = mutations_of(
    "local_only",
    ("statistics are averaged", ", *dict(model.named_buffers())", ""),
    ("weights are averaged", "*dict(model.named_parameters()), ", ""),
)
