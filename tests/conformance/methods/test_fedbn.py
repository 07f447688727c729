"""Golden numbers, invariants and mutations of FedBN."""

from __future__ import annotations

import numpy as np
from torch import nn

from flbench.methods.base import Method
from flbench.methods.fedbn import FedBN
from flbench.registry import METHODS
from tests.conformance.methods.cases import Case, after
from tests.conformance.problem import (
    ROUNDS,
    SHARE,
    SIZES,
    W0,
    SoftmaxRegression,
    assert_close,
    both_executors,
    fresh_norm,
    local_sgd_with_batch_norm,
    mean,
    trained,
)
from tests.mutation.mutations import mutations_of
from tests.toys import largest_difference, toy_network, toy_trainer, train

#: It is FedAvg without batch normalization.
CASES = {"fedbn": Case(has_effect=False)}


@both_executors
def test_fedbn(executor: str) -> None:
    x, norms = W0.copy(), [fresh_norm() for _ in SIZES]
    for round in range(ROUNDS):
        ends = [local_sgd_with_batch_norm(x, norms[client], client, round) for client in range(3)]
        x = mean(SHARE, [end for end, _ in ends])
        norms = [norm for _, norm in ends]
    trainer = trained("fedbn", executor, network=SoftmaxRegression(batch_norm=True))
    assert trainer.x.keys() == {"head.weight"}
    assert not trainer.buffers
    assert_close(trainer.x["head.weight"], x)
    assert_close(trainer.local["norm.weight"], np.stack([norm.g for norm in norms]))
    assert_close(trainer.local["norm.bias"], np.stack([norm.b for norm in norms]))
    assert_close(trainer.local["norm.running_mean"], np.stack([norm.mean for norm in norms]))
    assert_close(trainer.local["norm.running_var"], np.stack([norm.var for norm in norms]))


def test_fedbn_is_fedavg_without_batch_norm_only() -> None:
    for norm in ("none", "fn", "ln", "gn"):
        assert largest_difference(after(FedBN(), norm=norm), after(Method(), norm=norm)) == 0
    fedavg = {name: leaf for name, leaf in after(Method(), norm="bn").items() if "after" not in name}
    assert largest_difference(after(FedBN(), norm="bn"), fedavg) > 1e-4


def test_fedbn_finds_batch_norm_by_type_not_by_name() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bn_like_name = nn.Linear(2, 2)
            self.shortcut = nn.BatchNorm1d(2)
            self.group = nn.GroupNorm(1, 2)

    fedbn = METHODS.parse("fedbn")
    kept = fedbn.local_names(Odd())
    assert kept == {f"shortcut.{n}" for n in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")}
    ours = fedbn.local_names(toy_network(norm="bn"))
    layers = ("trunk.after1", "trunk.after2")
    assert ours == {f"{at}.{n}" for at in layers for n in ("weight", "bias", "running_mean", "running_var")}


def test_fedbn_norm_layers_never_leave_the_client() -> None:
    trainer = toy_trainer(FedBN(), norm="bn")
    train(2, trainer)
    assert not trainer.buffers
    assert all("after" not in name for name in trainer.x)
    spread = trainer.local["trunk.after1.running_mean"].std(0).max()
    assert spread > 1e-4, "every client has statistics of its own"
    assert set(trainer.evaluate()) >= {"acc_personal", "acc_global"}


_OF_TORCH = 'isinstance(module, __import__("torch").nn.modules.batchnorm._BatchNorm)'
_BOTH = "[*dict(module.named_parameters()), *dict(module.named_buffers())]"
MUTATIONS = mutations_of(
    "fedbn",
    ("statistics are averaged", _BOTH, "dict(module.named_parameters())"),
    ("affine maps are averaged", _BOTH, "dict(module.named_buffers())"),
    ("torch's layers are forgotten", "is_batch_norm(module)", f"is_batch_norm(module) and not {_OF_TORCH}"),
    ("flbench's layers are forgotten", "is_batch_norm(module)", _OF_TORCH),
    ("found by name", "is_batch_norm(module)", '"bn" in path'),
)
