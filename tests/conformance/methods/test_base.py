"""Golden numbers, invariants and mutations of FedAvg."""

from __future__ import annotations

import numpy as np
import pytest

from tests.conformance.methods.cases import Case, cohort_of, parsed
from tests.conformance.problem import (
    CLIENTS,
    COUNTS,
    LABELS,
    ROUNDS,
    SHARE,
    SIZES,
    STEPS,
    UNEQUAL,
    W0,
    Array,
    NormState,
    SoftmaxRegression,
    assert_close,
    both_executors,
    fedavg_delta,
    fresh_norm,
    gradient,
    local_sgd,
    local_sgd_with_batch_norm,
    mean,
    trained,
)
from tests.mutation.mutations import mutations_of

CASES = {"fedavg": Case(has_effect=False)}


@both_executors
def test_fedavg(executor: str) -> None:
    x = W0.copy()
    for round in range(ROUNDS):
        x = mean(SHARE, [local_sgd(x, client, round) for client in range(3)])
    assert_close(trained("fedavg", executor).x["head.weight"], x)


@both_executors
def test_fedavg_server_learning_rate(executor: str) -> None:
    x = W0.copy()
    for round in range(ROUNDS):
        x = x + 0.7 * fedavg_delta(x, round)
    assert_close(trained({"name": "fedavg", "server_lr": 0.7}, executor).x["head.weight"], x)


@both_executors
def test_fedavg_on_unequal_steps(executor: str) -> None:
    x = W0.copy()
    for round in range(ROUNDS):
        x = mean(SHARE, [local_sgd(x, k, round, steps=UNEQUAL[k], momentum=0.9) for k in range(3)])
    trainer = trained("fedavg", executor, steps=UNEQUAL, momentum=0.9)
    assert_close(trainer.x["head.weight"], x)


@both_executors
def test_momentum_is_reset_and_weight_decay_applied_each_round(executor: str) -> None:
    def decayed(weights: Array, pixels: Array, labels: np.ndarray) -> Array:
        return gradient(weights, pixels, labels) + 0.01 * weights

    x = W0.copy()
    for round in range(ROUNDS):
        x = mean(SHARE, [local_sgd(x, client, round, decayed, momentum=0.9) for client in range(3)])
    assert_close(trained("fedavg", executor, momentum=0.9, weight_decay=0.01).x["head.weight"], x)


@both_executors
@pytest.mark.parametrize("steps", [(STEPS,) * 3, UNEQUAL])
@pytest.mark.parametrize("method", ["fedavg", "fednova"])
def test_batch_norm_is_averaged_and_its_statistics_by_samples(
    executor: str, steps: tuple[int, ...], method: str
) -> None:
    x, norm = W0.copy(), fresh_norm()
    weights = SHARE if method == "fedavg" else SHARE / np.array(steps) * sum(SHARE * np.array(steps))
    for round in range(ROUNDS):
        ends = [local_sgd_with_batch_norm(x, norm, k, round, steps[k]) for k in range(3)]
        norm = NormState(
            g=norm.g + mean(weights, [end.g - norm.g for _, end in ends]),
            b=norm.b + mean(weights, [end.b - norm.b for _, end in ends]),
            mean=mean(SHARE, [end.mean for _, end in ends]),
            var=mean(SHARE, [end.var for _, end in ends]),
        )
        x = x + mean(weights, [end - x for end, _ in ends])
    trainer = trained(method, executor, network=SoftmaxRegression(batch_norm=True), steps=steps)
    assert_close(trainer.x["head.weight"], x)
    assert_close(trainer.x["norm.weight"], norm.g)
    assert_close(trainer.x["norm.bias"], norm.b)
    assert_close(trainer.buffers["norm.running_mean"], norm.mean)
    assert_close(trainer.buffers["norm.running_var"], norm.var)


def test_messages_are_averaged_over_clients_of_any_size() -> None:
    assert parsed("fedavg").message_weights(cohort_of([0.5, 0.3, 0.2])) == [1 / 3] * 3


def test_the_problem_has_clients_of_different_sizes() -> None:
    assert [len(rows) for rows in CLIENTS.train] == list(SIZES)


def test_the_counts_are_those_of_the_labels() -> None:
    ends = np.cumsum(SIZES)
    held = [LABELS[end - size : end] for size, end in zip(SIZES, ends, strict=True)]
    assert [np.bincount(labels, minlength=3).tolist() for labels in held] == COUNTS.tolist()


MUTATIONS = mutations_of(
    "base",
    ("server learning rate dropped", "a + self.server_lr * d", "a + d"),
    ("server steps backwards", "a + self.server_lr * d", "a - self.server_lr * d"),
    ("server steps backwards at a rate of one", "lambda a, d: a + d,", "lambda a, d: a - d,"),
    ("server learning rate off by default", "server_lr: Annotated[float, Field(gt=0)] = 1.0", "server_lr: float = 0.9"),
    (
        "clients weighed equally",
        "return cohort.share\n",
        "return [1 / len(cohort.share)] * len(cohort.share)\n",
    ),
    ("clients are summed", "return cohort.share\n", "return [1.0] * len(cohort.share)\n"),
    ("messages are summed", "return [1 / len(cohort.share)] * len(cohort.share)", "return [1.0] * len(cohort.share)"),
    ("messages weighed by samples", "return [1 / len(cohort.share)] * len(cohort.share)", "return cohort.share"),
    ("logits negated", "return z_BY\n", "return -z_BY\n"),
    ("a penalty by default", "        return 0.0\n", "        return sum((leaf**2).sum() for leaf in w.values())\n"),
    ("direction negated", "        return g\n", "        return {name: -leaf for name, leaf in g.items()}\n"),
)
