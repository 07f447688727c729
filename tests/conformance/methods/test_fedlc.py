"""Golden numbers, invariants and mutations of FedLC."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from flbench.methods.base import Method
from flbench.registry import METHODS
from tests.conformance.methods.cases import Case, after, toy_skewed_images, values
from tests.conformance.problem import (
    COUNTS,
    ROUNDS,
    SHARE,
    W0,
    Array,
    Gradient,
    Labels,
    assert_close,
    both_executors,
    local_sgd,
    mean,
    softmax_error,
    trained,
)
from tests.mutation.mutations import mutations_of
from tests.toys import largest_difference, toy_clients, toy_images, toy_trainer

#: The margins vanish with tau.
CASES = {"fedlc": Case([{"tau": 0.0}], values("tau", 1, 0.5, 0.1, 1))}


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


@pytest.mark.parametrize("executor", ["loop", "stacked"])
def test_fedlc_gives_missing_classes_no_gradient(executor: str) -> None:
    """Client 0 has classes 0 and 1: after a round of this client, the head's row of class 2 has not changed."""
    images = toy_skewed_images()
    alone = toy_clients((20,))
    trainer = toy_trainer(METHODS.parse("fedlc"), images=images, clients=alone, executor=executor)
    before = trainer.x["head.weight"].clone()
    trainer.step()
    moved = (trainer.x["head.weight"] - before).abs().sum(1)
    assert moved[2] == 0
    assert moved[:2].min() > 1e-3


@pytest.mark.parametrize("tau", [0.0, 1.0])
def test_fedlc_of_one_class_trains_nothing(tau: float) -> None:
    images = toy_images()
    images = replace(images, train_labels_M=torch.arange(60) // 20)
    clients = toy_clients((20, 20, 20))
    trainer = toy_trainer(METHODS.parse({"name": "fedlc", "tau": tau}), images=images, clients=clients)
    before = {name: leaf.clone() for name, leaf in trainer.x.items()}
    assert trainer.step().loss == 0
    assert largest_difference(trainer.x, before) == 0


def test_fedlc_without_margin_is_a_softmax_over_the_clients_own_classes() -> None:
    """If a client lacks a class, the limit of small tau is not FedAvg."""
    images = toy_skewed_images()
    off, tiny = (after(METHODS.parse({"name": "fedlc", "tau": tau}), images=images) for tau in (0.0, 1e-9))
    assert 0 < largest_difference(off, tiny) < 1e-7
    assert largest_difference(off, after(Method(), images=images)) > 1e-4


MUTATIONS = mutations_of(
    "fedlc",
    ("sign of the margin", "self.tau * ctx", "-self.tau * ctx"),
    ("square root for fourth", "** -0.25", "** -0.5"),
    ("power not inverse", "** -0.25", "** 0.25"),
    ("tau ignored", "self.tau * ctx", "ctx"),
    ("tau by default", "= 1.0", "= 0.5"),
    ("missing classes stay at tau = 0", '.masked_fill(ctx.counts_Y == 0, float("inf"))', ".nan_to_num(nan=0.0)"),
    ("missing classes get 0", 'float("inf")', "0.0"),
    ("missing classes win", 'float("inf")', 'float("-inf")'),
    ("held classes leave", "ctx.counts_Y == 0", "ctx.counts_Y > 0"),
    ("rare classes leave too", "ctx.counts_Y == 0", "ctx.counts_Y < 2"),
    ("shares for counts", "ctx.counts_Y.to(z_BY.dtype)", "(ctx.counts_Y.to(z_BY.dtype) / ctx.counts_Y.sum())"),
)
