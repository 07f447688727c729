"""Golden numbers of averaging, SCAFFOLD and personal state, compared with independent numpy programs to 1e-12."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from tests.conformance.problem import (
    CLIENTS,
    EQUAL,
    LR,
    ROUNDS,
    SHARE,
    SIZES,
    STEPS,
    W0,
    Array,
    SoftmaxRegression,
    assert_close,
    batches,
    both_executors,
    fedavg_delta,
    gradient,
    local_sgd,
    mean,
    plus,
    softmax_error,
    trained,
    trainer_of,
)

#: Local steps of the clients where they differ.
UNEQUAL = (2, 3, 1)


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
@pytest.mark.parametrize("momentum", [0.0, 0.8])
def test_fednova(executor: str, momentum: float) -> None:
    """Count a_k: the sum of the factors of all gradients in the last weights, without the learning rate."""
    a = []
    for steps in UNEQUAL:
        velocity = total = 0.0
        for _ in range(steps):
            velocity = momentum * velocity + 1
            total += velocity
        a.append(total)
    x = W0.copy()
    for round in range(ROUNDS):
        ends = [local_sgd(x, k, round, steps=UNEQUAL[k], momentum=momentum) for k in range(3)]
        normalised = [(end - x) / a_k for end, a_k in zip(ends, a, strict=True)]
        x = x + 0.9 * sum(SHARE * a) * mean(SHARE, normalised)
    trainer = trained({"name": "fednova", "server_lr": 0.9}, executor, steps=UNEQUAL, momentum=momentum)
    assert_close(trainer.x["head.weight"], x)


@both_executors
@pytest.mark.parametrize(
    ("variant", "of_delta", "of_controls"),
    [("original", EQUAL, EQUAL), ("text", SHARE, EQUAL), ("code", SHARE, SHARE)],
)
@pytest.mark.parametrize("steps", [(STEPS,) * 3, UNEQUAL])
def test_scaffold(executor: str, variant: str, of_delta: Array, of_controls: Array, steps: tuple[int, ...]) -> None:
    x, c, controls = W0.copy(), np.zeros_like(W0), [np.zeros_like(W0) for _ in SIZES]
    for round in range(ROUNDS):
        ends = [local_sgd(x, k, round, plus(c - controls[k]), steps=steps[k]) for k in range(3)]
        fresh = [controls[k] - c + (x - ends[k]) / (steps[k] * LR) for k in range(3)]
        c = c + mean(of_controls, [fresh[k] - controls[k] for k in range(3)])
        controls = fresh
        x = x + 0.8 * (mean(of_delta, ends) - x)
    method = {"name": "scaffold", "server_lr": 0.8, "variant": variant}
    trainer = trained(method, executor, steps=steps)
    assert_close(trainer.x["head.weight"], x)
    assert_close(trainer.server["head.weight"], c)
    assert_close(trainer.states["head.weight"], np.stack(controls))
    assert np.abs(c).max() > 0.01  # with constant controls the method would equal FedAvg


@both_executors
def test_scaffold_is_the_original_by_default(executor: str) -> None:
    original = trained({"name": "scaffold", "variant": "original"}, executor)
    assert_close(trained("scaffold", executor).x["head.weight"], original.x["head.weight"].numpy())


@both_executors
def test_scaffold_corrects_before_momentum(executor: str) -> None:
    x, c, controls = W0.copy(), np.zeros_like(W0), [np.zeros_like(W0) for _ in SIZES]
    for round in range(ROUNDS):
        ends = [local_sgd(x, k, round, plus(c - controls[k]), momentum=0.5) for k in range(3)]
        fresh = [controls[k] - c + (x - ends[k]) / (STEPS * LR) for k in range(3)]
        c = c + mean(EQUAL, [fresh[k] - controls[k] for k in range(3)])
        controls = fresh
        x = mean(EQUAL, ends)
    assert_close(trained("scaffold", executor, momentum=0.5).x["head.weight"], x)


@both_executors
@pytest.mark.parametrize(("variant", "of_controls"), [("niid-bench", EQUAL), ("flower", SHARE)])
def test_scaffold_corrects_after_momentum_as_niid_bench_does(executor: str, variant: str, of_controls: Array) -> None:
    x, c, controls = W0.copy(), np.zeros_like(W0), [np.zeros_like(W0) for _ in SIZES]
    for round in range(ROUNDS):
        ends = []
        for k in range(3):
            weights, velocity = x.copy(), np.zeros_like(x)
            for pixels, labels in batches(k, round, UNEQUAL[k]):
                velocity = 0.9 * velocity + gradient(weights, pixels, labels)
                weights = weights - LR * velocity
                weights = weights - LR * (c - controls[k])
            ends.append(weights)
        fresh = [controls[k] - c + (x - ends[k]) / (UNEQUAL[k] * LR) for k in range(3)]
        c = c + mean(of_controls, [fresh[k] - controls[k] for k in range(3)])
        controls = fresh
        x = mean(SHARE, ends)
    trainer = trained({"name": "scaffold", "variant": variant}, executor, steps=UNEQUAL, momentum=0.9)
    assert_close(trainer.x["head.weight"], x)
    assert_close(trainer.server["head.weight"], c)
    assert_close(trainer.states["head.weight"], np.stack(controls))


@both_executors
def test_scaffold_with_two_of_three_clients(executor: str) -> None:
    trainer = trainer_of("scaffold", executor, participation=2 / 3)
    x, c, controls = W0.copy(), np.zeros_like(W0), [np.zeros_like(W0) for _ in SIZES]
    seen = set()
    for round in range(5):
        cohort = [int(client) for client in trainer.run.cohort(trainer.round)]
        seen.add(tuple(cohort))
        trainer.step()
        ends = {i: local_sgd(x, i, round, plus(c - controls[i])) for i in cohort}
        fresh = {i: controls[i] - c + (x - ends[i]) / (STEPS * LR) for i in cohort}
        c = c + sum(fresh[i] - controls[i] for i in cohort) / 3  # |S|/N times the mean over S
        for i in cohort:
            controls[i] = fresh[i]
        x = sum(ends.values()) / 2
    assert len(seen) > 1, "the cohort must change for this test to say something"
    assert_close(trainer.x["head.weight"], x)
    assert_close(trainer.server["head.weight"], c)
    assert_close(trainer.states["head.weight"], np.stack(controls))


@both_executors
def test_local_only(executor: str) -> None:
    ends = [W0.copy() for _ in SIZES]
    for round in range(ROUNDS):
        ends = [local_sgd(ends[k], k, round, steps=UNEQUAL[k], momentum=0.5) for k in range(3)]
    trainer = trained("local-only", executor, steps=UNEQUAL, momentum=0.5)
    assert trainer.x == trainer.buffers == {}
    assert_close(trainer.local["head.weight"], np.stack(ends))
    assert trainer.bytes_up == trainer.bytes_down == 0


@dataclass
class NormState:
    """The batch normalization of a client: scale g, shift b, running mean and (unbiased) variance."""

    g: Array
    b: Array
    mean: Array
    var: Array


def local_sgd_with_batch_norm(
    start: Array, norm: NormState, client: int, round: int, steps: int = STEPS
) -> tuple[Array, NormState]:
    """Dz = softmax error; dW = dz^T f, dg = sum(dz W * p_hat), db = sum(dz W); the statistics do not depend on W."""
    weights, g, b, mean, var = start.copy(), norm.g.copy(), norm.b.copy(), norm.mean.copy(), norm.var.copy()
    for pixels, labels in batches(client, round, steps):
        centre, spread = pixels.mean(axis=0), pixels.var(axis=0)
        unit = (pixels - centre) / np.sqrt(spread + 1e-5)
        features = unit * g + b
        error = softmax_error(features @ weights.T, labels)
        back = error @ weights
        weights, g, b = weights - LR * error.T @ features, g - LR * (back * unit).sum(axis=0), b - LR * back.sum(axis=0)
        mean, var = 0.9 * mean + 0.1 * centre, 0.9 * var + 0.1 * pixels.var(axis=0, ddof=1)
    return weights, NormState(g, b, mean, var)


def fresh_norm() -> NormState:
    return NormState(np.ones(2), np.zeros(2), np.zeros(2), np.ones(2))


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


def test_the_problem_has_clients_of_different_sizes() -> None:
    assert [len(rows) for rows in CLIENTS.train] == list(SIZES)
