"""Golden numbers, invariants and mutations of FedDyn."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from flbench.methods.base import Method, ServerContext, Tree, tmap
from tests.conformance.methods.cases import Case, cohort_of, context_of, parsed, values
from tests.conformance.problem import (
    SIZES,
    W0,
    Array,
    Labels,
    assert_close,
    both_executors,
    gradient,
    local_sgd,
    trainer_of,
)
from tests.mutation.mutations import mutations_of
from tests.toys import largest_difference, toy_trainer

CASES = {"feddyn": Case(values=values("alpha", 0.01, 0.1, 0.3, 0.01))}


DYN_SETTINGS: list[dict[str, Any]] = [{}, {"alpha": 0.4, "server_lr": 0.7}, {"alpha": 0.4, "weighting": "equal"}]


@both_executors
@pytest.mark.parametrize("settings", DYN_SETTINGS)
@pytest.mark.parametrize("participation", [1.0, 2 / 3])
def test_feddyn(executor: str, settings: dict[str, Any], participation: float) -> None:
    """The paper's own form: g_k is the gradient that client k has last seen, h = mean g_k over all clients.

    The authors' code: alpha_k is alpha over the client's samples, relative to the mean client's.
    """
    alpha, server_lr = settings.get("alpha", 0.01), settings.get("server_lr", 1.0)
    relative = np.ones(3) if settings.get("weighting") == "equal" else np.array(SIZES) / np.mean(SIZES)
    trainer = trainer_of({"name": "feddyn", **settings}, executor, participation=participation)
    x, g, h = W0.copy(), [np.zeros_like(W0) for _ in SIZES], np.zeros_like(W0)
    for round in range(5):
        cohort = [int(client) for client in trainer.run.cohort(trainer.round)]
        trainer.step()
        start, ends = x, []
        for k in cohort:

            def regularized(
                weights: Array, pixels: Array, labels: Labels, k: int = k, start: Array = start, g_k: Array = g[k]
            ) -> Array:
                return gradient(weights, pixels, labels) - g_k + alpha / relative[k] * (weights - start)

            end = local_sgd(x, k, round, regularized)
            g[k] = g[k] - alpha / relative[k] * (end - x)
            h = h - alpha / 3 * (end - x)
            ends.append(end)
        x = x + server_lr * (sum(ends) / len(ends) - h / alpha - x)
    assert_close(trainer.x["head.weight"], x)
    assert_close(trainer.server["head.weight"], -h / alpha)
    assert_close(trainer.states["head.weight"], np.stack([-g[k] * relative[k] / alpha for k in range(3)]))


SAMPLES = np.array([4.0, 6.0, 14.0])


CURVATURES = torch.tensor([[1.0, 0.2], [0.3, 2.0], [0.6, 0.5]], dtype=torch.float64)


CENTRES = torch.tensor([[1.0, -2.0], [-3.0, 0.5], [2.0, 4.0]], dtype=torch.float64)


def quadratic_optimum(weights: np.ndarray) -> torch.Tensor:
    """Return the minimum of sum_k weight_k/2 (x - centre_k)^T diag(curvature_k) (x - centre_k)."""
    weighted = torch.from_numpy(weights)[:, None] * CURVATURES
    return (weighted * CENTRES).sum(0) / weighted.sum(0)


def on_quadratics(method: Method, rounds: int, cohort: int, decay: float = 0.0) -> torch.Tensor:
    """Return x after rounds of 3 gradient steps on quadratics, with ``cohort`` of the 3 clients in each round."""
    x: Tree = {"w": torch.zeros(2, dtype=torch.float64)}
    server, clients = method.init_server(x), [method.init_client(x, {}) for _ in SAMPLES]
    context = context_of(x, lr=0.2, steps=3)
    draw = np.random.default_rng(0)
    for round in range(rounds):
        present = np.sort(draw.permutation(3)[:cohort])
        changes = []
        start, sent = method.broadcast(x, server)
        for k in present:
            own = replace(
                context,
                x=start,
                server=sent,
                client=clients[k],
                relative_size=float(SAMPLES[k] / SAMPLES.mean()),
                round=round,
            )
            w = start
            for _ in range(3):
                g = {"w": CURVATURES[k] * (w["w"] - CENTRES[k]) + decay * w["w"]}
                w = tmap(lambda w, d: w - 0.2 * d, w, method.direction(w, g, own))
            clients[k], _ = method.finish(w, own)
            changes.append(w["w"] - start["w"])
        share = SAMPLES[present] / SAMPLES[present].sum()
        weights = method.delta_weights(cohort_of(share))
        delta = {"w": sum(weight * change for weight, change in zip(weights, changes, strict=True))}
        seen = ServerContext(participation=cohort / 3, round=round, head="w")
        x, server = method.server_step(x, delta, {}, server, seen)
    return x["w"]


@pytest.mark.slow
@pytest.mark.parametrize(("alpha", "cohort"), [(1.0, 3), (1.0, 1), (0.1, 2)])
def test_feddyn_ends_at_the_optimum_of_the_global_loss(cohort: int, alpha: float) -> None:
    """With samples that differ, curvatures that differ, 3 local steps, and any participation."""
    feddyn = parsed("feddyn", alpha=alpha)
    rounds = 4000 if alpha == 0.1 else 1500
    assert (on_quadratics(feddyn, rounds, cohort) - quadratic_optimum(SAMPLES)).abs().max() < 1e-8


def test_the_weighting_of_feddyn_is_that_of_its_loss() -> None:
    """FedAvg, and FedDyn that weighs clients otherwise, end elsewhere."""
    optimum, of_equal = quadratic_optimum(SAMPLES), quadratic_optimum(np.ones(3))
    assert (optimum - of_equal).abs().max() > 0.5
    equal = parsed("feddyn", alpha=0.3, weighting="equal")
    assert (on_quadratics(equal, 2000, 2) - of_equal).abs().max() < 1e-8
    assert (on_quadratics(Method(), 2000, 3) - optimum).abs().max() > 0.1


def test_weight_decay_is_part_of_feddyns_loss() -> None:
    """It is in the gradient that the regularizer cancels."""
    weighted = torch.from_numpy(SAMPLES / SAMPLES.sum())[:, None] * CURVATURES
    optimum = (weighted * CENTRES).sum(0) / (weighted.sum(0) + 0.1)
    feddyn = parsed("feddyn", alpha=0.3)
    assert (on_quadratics(feddyn, 2000, 2, decay=0.1) - optimum).abs().max() < 1e-8


def test_feddyns_server_keeps_the_mean_of_all_clients() -> None:
    trainer = toy_trainer(parsed("feddyn"), participation=2 / 3)
    for _ in range(4):
        trainer.step()
        means = {name: leaf.mean(0) for name, leaf in trainer.states.items()}
        assert largest_difference(means, trainer.server) < 1e-14
    assert max(float(leaf.abs().max()) for leaf in trainer.server.values()) > 1e-3


_REGULARIZER = "(w - x).add_(c).mul_(alpha).add_(g)"
MUTATIONS = mutations_of(
    "feddyn",
    ("alpha not scaled by samples", '(1 / ctx.relative_size if self.weighting == "samples" else 1)', "1"),
    ("alpha times the samples", "1 / ctx.relative_size", "ctx.relative_size"),
    ("weightings swapped", 'if self.weighting == "samples"', 'if self.weighting != "samples"'),
    ("equal by default", '= "samples"\n', '= "equal"\n'),
    ("alpha by default", "Field(gt=0)] = 0.01", "Field(gt=0)] = 0.1"),
    ("no proximal part", _REGULARIZER, "g + alpha * c"),
    ("no linear part", _REGULARIZER, "g + alpha * (w - x)"),
    ("linear part's sign", _REGULARIZER, "g + alpha * (w - x - c)"),
    ("proximal part's sign", _REGULARIZER, "g + alpha * (x - w + c)"),
    ("no gradient", _REGULARIZER, "alpha * (w - x + c)"),
    ("c_k's sign", "c + (w - x), ctx", "c - (w - x), ctx"),
    ("c_k forgets", "c + (w - x), ctx", "w - x, ctx"),
    ("c_k never moves", "c + (w - x), ctx", "c, ctx"),
    ("changes weighed by samples", "[1 / len(cohort.share)] * len(cohort.share)", "cohort.share"),
    ("changes are summed", "[1 / len(cohort.share)] * len(cohort.share)", "[1.0] * len(cohort.share)"),
    ("h by the mean of the cohort", "h + ctx.participation * d", "h + d"),
    ("h backwards", "h + ctx.participation * d", "h - ctx.participation * d"),
    ("h forgets", "h + ctx.participation * d", "ctx.participation * d"),
    ("h before the round", "x, delta, h), h", "x, delta, state), h"),
    ("h not added", "self.server_lr * (d + h)", "self.server_lr * d"),
    ("h subtracted", "self.server_lr * (d + h)", "self.server_lr * (d - h)"),
    ("server learning rate dropped", "self.server_lr * (d + h)", "(d + h)"),
    ("server learning rate for the changes only", "self.server_lr * (d + h)", "self.server_lr * d + h"),
)
