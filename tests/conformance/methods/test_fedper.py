"""Golden numbers, invariants and mutations of FedPer."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from flbench.errors import UserError
from flbench.models.network import head_names
from flbench.registry import METHODS
from tests.conformance.methods.cases import Case
from tests.conformance.problem import (
    ROUNDS,
    SHARE,
    SIZES,
    W0,
    NormState,
    SoftmaxRegression,
    assert_close,
    both_executors,
    fresh_norm,
    local_sgd_with_batch_norm,
    mean,
    trained,
)
from tests.mutation.mutations import mutations_of
from tests.toys import record_of, toy_network, toy_trainer, train

#: There is no shared head to compare.
CASES = {"fedper": Case(has_effect=False)}


@both_executors
def test_fedper(executor: str) -> None:
    """The body, here a batch normalization with its statistics, is averaged; the heads are not."""
    norm, heads = fresh_norm(), [W0.copy() for _ in SIZES]
    for round in range(ROUNDS):
        ends = [local_sgd_with_batch_norm(heads[client], norm, client, round) for client in range(3)]
        heads = [head for head, _ in ends]
        norm = NormState(*(mean(SHARE, [getattr(own, name) for _, own in ends]) for name in ("g", "b", "mean", "var")))
    trainer = trained("fedper", executor, network=SoftmaxRegression(batch_norm=True))
    assert trainer.local.keys() == {"head.weight"}
    assert_close(trainer.local["head.weight"], np.stack(heads))
    for name, value in {"weight": norm.g, "bias": norm.b, "running_mean": norm.mean, "running_var": norm.var}.items():
        assert_close({**trainer.x, **trainer.buffers}[f"norm.{name}"], value)


def test_every_part_of_the_head_stays_on_the_client() -> None:
    network = toy_network(bias=True, head={"name": "cosine", "learned": True})
    expected = {name for name, _ in network.named_parameters() if name.startswith("head.")}
    trainer = toy_trainer(METHODS.parse("fedper"), network=network)
    assert trainer.local.keys() == expected and len(expected) > 1
    train(2, trainer)
    for leaf in trainer.local.values():
        assert not torch.equal(leaf[0], leaf[1])
    record = record_of(trainer)
    own = [value for value in record["clients_personal"] if value is not None]
    assert record["acc_personal_worst"] == min(own) <= record["acc_personal"] == pytest.approx(sum(own) / len(own))


def test_a_network_without_a_head_is_refused() -> None:
    with pytest.raises(UserError, match="no head that flbench can find, which the method needs"):
        head_names(nn.Linear(2, 3))
    assert METHODS.parse("fedper").is_personal


MUTATIONS = mutations_of(
    "fedper",
    ("the head is averaged", "return head_names(model)", "return frozenset()"),
    ("nothing is averaged", "return head_names(model)", "return frozenset(dict(model.named_parameters()))"),
    (
        "the body stays",
        "return head_names(model)",
        "return frozenset(dict(model.named_parameters())) - head_names(model)",
    ),
    ("the weight alone stays", "return head_names(model)", 'return frozenset({"head.weight"})'),
)
