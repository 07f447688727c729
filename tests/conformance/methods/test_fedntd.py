"""Golden numbers, invariants and mutations of FedNTD."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from flbench.methods.base import Outputs
from tests.conformance.methods.cases import Case, assert_penalty_gradient, batch_of, context_of, parsed
from tests.conformance.problem import (
    NAMES,
    ROUNDS,
    SHARE,
    W0,
    Array,
    Labels,
    Normed,
    SoftmaxRegression,
    assert_close,
    both_executors,
    evaluated_features,
    local_sgd,
    mean,
    normed_rounds,
    softmax_error,
    trained,
)
from tests.mutation.mutations import mutations_of

CASES = {"fedntd": Case([{"beta": 0.0}], [{"beta": beta, "tau": 1 + beta} for beta in (1.0, 0.3, 0.0, 0.7)])}


def without_true(logits: Array, labels: Labels, tau: float) -> Array:
    """Return the softmax of logits / tau over the classes other than the label, which gets 0."""
    out = np.zeros_like(logits)
    for row, label in enumerate(labels):
        others = [c for c in range(logits.shape[1]) if c != label]
        exp = np.exp(logits[row, others] / tau)
        out[row, others] = exp / exp.sum()
    return out


NTD_SETTINGS: list[dict[str, float]] = [{}, {"beta": 0.3, "tau": 3.0}]


@both_executors
@pytest.mark.parametrize("settings", NTD_SETTINGS)
def test_fedntd(executor: str, settings: dict[str, float]) -> None:
    """The derivative of KL(q || p) with respect to z is (p - q) / tau."""
    beta, tau = settings.get("beta", 1.0), settings.get("tau", 1.0)
    x = W0.copy()
    for round in range(ROUNDS):
        server = x

        def distilled(weights: Array, pixels: Array, labels: Labels, server: Array = server) -> Array:
            logits = pixels @ weights.T
            apart = without_true(logits, labels, tau) - without_true(pixels @ server.T, labels, tau)
            return np.asarray((softmax_error(logits, labels) + beta / tau / len(labels) * apart).T @ pixels)

        x = mean(SHARE, [local_sgd(x, client, round, distilled) for client in range(3)])
    assert_close(trained({"name": "fedntd", **settings}, executor).x["head.weight"], x)


@both_executors
def test_fedntd_distils_from_the_server_in_evaluation_mode(executor: str) -> None:
    def term(
        features: Array, logits: Array, labels: Labels, pixels: Array, server: Normed, last: Normed
    ) -> tuple[Array, Array]:
        of_server = evaluated_features(server, pixels) @ server[2].T
        apart = without_true(logits, labels, 1.0) - without_true(of_server, labels, 1.0)
        return np.zeros_like(features), apart / len(labels)

    server, _ = normed_rounds(term)
    trainer = trained("fedntd", executor, network=SoftmaxRegression(batch_norm=True))
    for leaf, name in enumerate(NAMES):
        assert_close({**trainer.x, **trainer.buffers}[name], server[leaf])


def test_fedntd_ignores_the_true_class() -> None:
    """It is 0 where only the true logits differ, and has no gradient with respect to the true logit."""
    z = torch.tensor([[1.0, -2.0, 0.5], [0.3, 0.2, 4.0]], dtype=torch.float64, requires_grad=True)
    moved = z.detach() + torch.tensor([[9.0, 0.0, 0.0], [0.0, 0.0, -7.0]], dtype=torch.float64)
    f = torch.zeros(2, 2, dtype=torch.float64)
    ntd = parsed("fedntd")
    assert ntd.penalty({}, batch_of(f, z, [0, 2], server=Outputs(f, moved)), context_of({})).item() < 1e-15
    value = ntd.penalty({}, batch_of(f, z, [0, 1], server=Outputs(f, moved)), context_of({}))
    (g,) = torch.autograd.grad(value, z)
    assert value.item() > 0
    assert g[0, 0] == g[1, 1] == 0
    assert g.sum(1).abs().max() < 1e-15
    assert g.isfinite().all()


@pytest.mark.parametrize("settings", NTD_SETTINGS)
def test_fedntds_gradient_by_hand(settings: dict[str, float]) -> None:
    z = torch.tensor([[1.0, -2.0, 0.5], [0.3, 0.2, 4.0]], dtype=torch.float64)
    f = torch.zeros(2, 2, dtype=torch.float64)
    batch = batch_of(f, z, [0, 2], server=Outputs(f, z.flip(1)))
    assert_penalty_gradient(parsed("fedntd", **settings), {}, batch, context_of({}))
    two = batch_of(f, z[:, :2], [0, 1], server=Outputs(f, z[:, 1:]))  # the term of two classes is 0
    assert_penalty_gradient(parsed("fedntd", **settings), {}, two, context_of({}))


MUTATIONS = mutations_of(
    "fedntd",
    ("true class stays", '.masked_fill(true_BY, float("-inf"))', ""),
    ("true class gets 0", 'float("-inf")', "0.0", 0),
    ("only the true class", "batch.labels_B[:, None] ==", "batch.labels_B[:, None] !="),
    ("reverse divergence", "q_BY.exp() *", "-p_BY.exp() *"),
    ("cross-entropy's gradient of q", "q_BY.masked_fill(true_BY, 0) - p_BY", "p_BY.masked_fill(true_BY, 0) - p_BY"),
    ("sign", "return self.beta *", "return -self.beta *"),
    ("beta ignored", "return self.beta *", "return"),
    ("tau multiplied", "(z_BY / self.tau)", "(z_BY * self.tau)", 0),
    ("times tau^2, as the code", "return self.beta *", "return self.beta * self.tau**2 *"),
    ("mean over classes", ".sum(1).mean()", ".mean()"),
    ("sum over samples", ".sum(1).mean()", ".sum()"),
    ("over the batch", ".log_softmax(1)", ".log_softmax(0)"),
    ("by hand: true class gets 0", 'float("-inf")', "0.0", 1),
    ("by hand: tau multiplied", "(z_BY / self.tau)", "(z_BY * self.tau)", 1),
    ("by hand: sign", "p_NYB.sub_(q_NYB)", "q_NYB.sub_(p_NYB)"),
    ("by hand: over the batch", ".softmax(1)\n", ".softmax(2)\n"),
    ("by hand: sum over samples", ".mul_(1 / len(difference_BY))", ""),
    ("by hand: beta ignored", ".mul_(self.beta)", ""),
    ("by hand: tau ignored", ".div_(self.tau)", ""),
    ("beta by default", "beta: Annotated[float, Field(ge=0)] = 1.0", "beta: Annotated[float, Field(ge=0)] = 0.5"),
    ("tau by default", "tau: Annotated[float, Field(gt=0)] = 1.0", "tau: Annotated[float, Field(gt=0)] = 3.0"),
)
