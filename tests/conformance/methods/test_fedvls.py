"""Golden numbers, invariants and mutations of FedVLS."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from flbench.data.batches import federated_rows
from flbench.methods.base import Method, Outputs
from tests.conformance.methods.cases import (
    Case,
    after,
    assert_penalty_gradient,
    batch_of,
    context_of,
    parsed,
    toy_skewed_images,
)
from tests.conformance.problem import (
    BATCH,
    CLIENTS,
    LR,
    PIXELS,
    ROUNDS,
    SHARE,
    STEPS,
    W0,
    Array,
    Labels,
    assert_close,
    both_executors,
    images,
    mean,
    trained,
)
from tests.mutation.mutations import mutations_of
from tests.toys import largest_difference, toy_clients

CASES = {
    "fedvls": Case(values=[{"lam": lam, "suppression": lam / 10} for lam in (0.1, 0.3, 0.0, 1.0)]),
}

#: The first client lacks two classes, the second holds all, the third lacks one.
LABELS = np.array([0, 0, 0, 0, 1, 0, 2, 1, 2, 2, 2, 0, 2, 2])
COUNTS = np.array([[4, 0, 0], [1, 2, 3], [1, 0, 3]])


def softmax(z: Array, axis: int) -> Array:
    exp = np.exp(z - z.max(axis=axis, keepdims=True))
    return np.asarray(exp / exp.sum(axis=axis, keepdims=True))


def error(z: Array, server: Array, labels: Labels, counts: Labels, settings: dict[str, Any]) -> Array:
    """Return the derivative of the local loss with respect to the logits, class by class."""
    lam, weight, code = settings.get("lam", 0.1), settings.get("suppression", 0.005), "variant" in settings
    p = counts / counts.sum()
    with np.errstate(divide="ignore"):
        log_p = np.log(p + 1e-9) if code else np.log(p)
    out = (softmax(z + log_p, 1) - np.eye(3)[labels]) / len(labels)
    vacant = [c for c in range(3) if not counts[c]]
    if len(vacant) > 1:
        out[:, vacant] += lam / len(labels) * (softmax(z[:, vacant], 1) - softmax(server[:, vacant], 1))
    for c in range(3):
        others = labels != c
        if code:
            shifted = np.where(others, z[:, c] - log_p[c] + np.log(1 / 3), 0)
            out[:, c] += weight * p[c] * softmax(shifted, 0) * others
        elif others.any():
            out[others, c] += weight * p[c] * softmax(z[others, c], 0)
    return np.asarray(out)


@both_executors
@pytest.mark.parametrize(
    "settings",
    [{}, {"lam": 0.7, "suppression": 0.3}, {"variant": "code"}, {"variant": "code", "suppression": 0.3}],
    ids=str,
)
def test_fedvls(executor: str, settings: dict[str, Any]) -> None:
    """Weight decay moves the client of one class, whose cross-entropy has no gradient, away from the server's model."""
    x = W0.copy()
    for round in range(ROUNDS):
        ends = []
        for k in range(3):
            w = x
            rows = federated_rows(CLIENTS.train[k], seed=0, client=k, round=round, steps=STEPS, batch_size=BATCH)
            for pixels, labels in ((PIXELS[step] / 16.0, LABELS[step]) for step in rows):
                logits = error(pixels @ w.T, pixels @ x.T, labels, COUNTS[k], settings)
                w = w - LR * (logits.T @ pixels + 0.3 * w)
            ends.append(w)
        x = mean(SHARE, ends)
    labels = replace(images(), train_labels_M=torch.from_numpy(LABELS))
    assert_close(trained({"name": "fedvls", **settings}, executor, images=labels, weight_decay=0.3).x["head.weight"], x)


OFF = {"lam": 0.0, "suppression": 0.0}


def test_without_its_terms_fedvls_is_balanced_softmax() -> None:
    images, balanced = toy_skewed_images(), parsed("balanced-softmax")
    assert largest_difference(after(parsed("fedvls", **OFF), images=images), after(balanced, images=images)) < 1e-14
    clients = toy_clients((18, 12, 30))  # with equally many samples of each class
    for variant in ("original", "code"):
        found = after(parsed("fedvls", variant=variant, **OFF), clients=clients)
        assert largest_difference(found, after(Method(), clients=clients)) < 1e-14


@pytest.mark.parametrize(("counts", "labels"), [([6, 0, 0], [0, 0]), ([2, 2, 2], [0, 1]), ([0, 3, 3], [2, 2])])
@pytest.mark.parametrize("variant", ["original", "code"])
def test_the_terms_are_finite_for_all_vacant_classes(variant: str, counts: list[int], labels: list[int]) -> None:
    """With one class, all classes, and a batch of one class; the true logit is neither distilled nor suppressed."""
    z = torch.tensor([[1.0, -2.0, 0.5], [0.3, 40.0, 4.0]], dtype=torch.float64, requires_grad=True)
    context, features = context_of({}, counts_Y=torch.tensor(counts)), torch.zeros(2, 2, dtype=torch.float64)
    batch = batch_of(features, z, labels, server=Outputs(features, z.detach().flip(1)))
    method = parsed("fedvls", variant=variant)
    value = method.penalty({}, batch, context)
    (g,) = torch.autograd.grad(value, z)
    assert torch.isfinite(value)
    assert g.isfinite().all()
    assert g[torch.arange(2), torch.tensor(labels)].abs().max() == 0
    assert_penalty_gradient(parsed("fedvls", variant=variant, lam=0.7, suppression=0.3), {}, batch, context)
    only = parsed("fedvls", variant=variant, suppression=0.0).penalty({}, batch, context)
    assert bool(only > 0) == (counts.count(0) > 1)


_DISTILLED = "(q_BY.exp() * (q_BY - p_BY)).masked_fill(held_Y, 0)"
MUTATIONS = mutations_of(
    "fedvls",
    ("shares subtracted", "z_BY + self._log_shares", "z_BY - self._log_shares"),
    ("shares for their logarithms", "shares.p_Y + EPS).log()", "shares.p_Y + EPS)"),
    (
        "original with EPS",
        'if self.variant == "original" else shares.p_Y + EPS',
        'if self.variant == "" else shares.p_Y + EPS',
    ),
    ("EPS", "EPS = 1e-9", "EPS = 1e-3"),
    ("distils the held classes", "held_Y = ~shares.vacant_Y", "held_Y = shares.vacant_Y"),
    ("held classes stay in the softmax", 'z_BY.masked_fill(held_Y, float("-inf")).log', "z_BY.log"),
    ("reverse divergence", _DISTILLED, "(p_BY.exp() * (p_BY - q_BY)).masked_fill(held_Y, 0)"),
    ("divergence's sign", _DISTILLED, "(q_BY.exp() * (p_BY - q_BY)).masked_fill(held_Y, 0)"),
    ("mean over classes", "terms_BY.sum(1).mean()", "terms_BY.mean()"),
    ("sum over samples", "terms_BY.sum(1).mean()", "terms_BY.sum()"),
    ("lam ignored", "self.lam * terms", "0.1 * terms"),
    ("not distilled", "self._distilled(batch, shares) + ", ""),
    ("not suppressed", " + self._suppressed(batch, shares)", ""),
    ("true classes suppressed", "[:, None] == torch", "[:, None] != torch"),
    ("true classes stay", 'z_BY.masked_fill(true_BY, float("-inf"))', "z_BY"),
    ("batches of one class", "mean_Y.masked_fill(true_BY.all(0), 0)", "mean_Y"),
    ("equal weights of classes", "(shares.p_Y * mean_Y).sum()", "mean_Y.mean()"),
    ("over classes", ".logsumexp(0) - size", ".logsumexp(1).mean() - size"),
    ("suppression ignored", "self.suppression * (shares.p_Y * mean_Y)", "0.005 * (shares.p_Y * mean_Y)"),
    ("shares not shifted", "z_BY - self._log_shares(shares) -", "z_BY -"),
    ("no shift by the number of classes", " - math.log(z_BY.shape[1])", ""),
    ("as original in code", ".masked_fill(true_BY, 0)\n", '.masked_fill(true_BY, float("-inf"))\n'),
    ("by hand: distils the held classes", "held_NY1 = ~shares", "held_NY1 = shares"),
    ("by hand: held classes stay in the softmax", 'each.masked_fill(held_NY1, float("-inf"))', "each"),
    ("by hand: divergence's sign", "p_NYB.sub_(q_NYB)", "q_NYB.sub_(p_NYB)"),
    ("by hand: held classes are undefined", ".masked_fill_(held_NY1, 0)", ""),
    ("by hand: sum over samples", ".mul_(1 / z_NYB.shape[2])", ""),
    ("by hand: lam ignored", ".mul_(self.lam)", ".mul_(0.1)"),
    ("by hand: true classes suppressed", ".softmax(2).scatter_(1, labels_N1B, 0.0)", ".softmax(2)"),
    ("by hand: over classes", ".softmax(2)", ".softmax(1)"),
    ("by hand: distilled over the batch", ".softmax(1) for", ".softmax(2) for"),
    ("by hand: true classes stay", 'z_NYB.scatter(1, labels_N1B, float("-inf"))', "z_NYB"),
    ("by hand: code's true classes leave", "- offset_NY1).scatter_(1, labels_N1B, 0.0)", "- offset_NY1)"),
    ("by hand: shares not shifted", "(self._log_shares(shares) + math.log(z", "(0 * shares.p_Y + math.log(z"),
    ("by hand: no shift by the number of classes", " + math.log(z_NYB.shape[1])", ""),
    (
        "by hand: forms swapped",
        'if self.variant == "original":\n            spread',
        'if self.variant == "code":\n            spread',
    ),
    ("by hand: equal weights of classes", "self.suppression * shares.p_Y, supp", "self.suppression / shares.p_Y, supp"),
    ("by hand: suppression ignored", "self.suppression * shares.p_Y, supp", "shares.p_Y, supp"),
    ("counts for shares", " / ctx.counts_Y.sum(0), ctx", ", ctx"),
    ("lam by default", "lam: Annotated[float, Field(ge=0)] = 0.1", "lam: Annotated[float, Field(ge=0)] = 1.0"),
    ("suppression by default", "= 0.005", "= 1.0"),
    ("code by default", '= "original"\n', '= "code"\n'),
)
