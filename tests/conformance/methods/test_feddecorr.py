"""Golden numbers, invariants and mutations of FedDecorr."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from flbench.errors import InvalidComponent
from flbench.methods.base import Batch
from flbench.registry import METHODS
from tests.conformance.methods.cases import Case, assert_penalty_gradient, batch_of, context_of, parsed
from tests.conformance.problem import (
    H0,
    LR,
    ROUNDS,
    SHARE,
    V0,
    Array,
    TwoLayers,
    assert_close,
    batches,
    both_executors,
    mean,
    softmax_error,
    trained,
)
from tests.mutation.mutations import Mutation, mutations_of
from tests.toys import toy_context

CASES = {"feddecorr": Case([{"coefficient": 0.0, "variant": variant} for variant in ("original", "text")])}


def standardised(features: Array, ddof: int) -> tuple[Array, Array, Array]:
    """Return the centred columns c, their deviations s with eps = 1e-8 under the root, and u = c / s."""
    c = features - features.mean(axis=0)
    s = np.sqrt((c**2).sum(axis=0) / (len(c) - ddof) + 1e-8)
    return c, s, c / s


def back_to_features(into_u: Array, features: Array, ddof: int) -> Array:
    """Return dL/df from dL/du, with ds/dc = c / ((n - ddof) s), minus the mean of each column."""
    c, s, u = standardised(features, ddof)
    into_c = into_u / s - (into_u * u).sum(axis=0) / s * c / ((len(c) - ddof) * s)
    return np.asarray(into_c - into_c.mean(axis=0))


def correlation_gradient(features: Array, variant: str, coefficient: float) -> Array:
    """Return dL_D/df, derived by hand.

    Original: L = c/d^2 sum_jk K_jk^2 with K = u^T u / n, so dL/du = 4c/(d^2 n) u K. Text and code:
    L = c/(n d (d-1)) sum_{j != k} G_jk^2 with G = u^T u, so dL/du = 4c/(n d (d-1)) u (G without its diagonal).
    """
    n, d = features.shape
    if variant == "original":
        _, _, u = standardised(features, ddof=0)
        return back_to_features(4 * coefficient / (d**2 * n) * u @ (u.T @ u / n), features, ddof=0)
    _, _, u = standardised(features, ddof=1)
    gram = u.T @ u
    off = gram - np.diag(np.diag(gram))
    return back_to_features(4 * coefficient / (n * d * (d - 1)) * u @ off, features, ddof=1)


#: The settings given, and the form and the coefficient that they mean.
FEDDECORR_CASES: list[tuple[dict[str, float | str], str, float]] = [
    ({}, "original", 0.5),
    ({"variant": "original", "coefficient": 2.0}, "original", 2.0),
    ({"variant": "text"}, "text", 0.5),
    ({"variant": "text", "coefficient": 0.3}, "text", 0.3),
    ({"variant": "code"}, "code", 0.1),
]


@both_executors
@pytest.mark.parametrize(("settings", "variant", "coefficient"), FEDDECORR_CASES)
def test_feddecorr(executor: str, settings: dict[str, float | str], variant: str, coefficient: float) -> None:
    """Use batches of 4, because all correlations of two samples are 1; f = V p, z = H f, both layers are trained."""
    hidden, head = V0.copy(), H0.copy()
    for round in range(ROUNDS):
        ends = []
        for client in range(3):
            v, h = hidden.copy(), head.copy()
            for pixels, labels in batches(client, round, steps=3, batch_size=4):
                features = pixels @ v.T
                error = softmax_error(features @ h.T, labels)
                into_features = error @ h + correlation_gradient(features, variant, coefficient)
                v, h = v - LR * into_features.T @ pixels, h - LR * error.T @ features
            ends.append((v, h))
        hidden, head = mean(SHARE, [v for v, _ in ends]), mean(SHARE, [h for _, h in ends])
    trainer = trained({"name": "feddecorr", **settings}, executor, network=TwoLayers(), batch_size=4)
    assert_close(trainer.x["hidden.weight"], hidden)
    assert_close(trainer.x["head.weight"], head)


@pytest.mark.parametrize(
    ("variant", "one_feature_twice", "two_features"),
    [("original", 0.5, 0.5 / 2), ("text", 0.5 * 9 / 4, 0.0), ("code", 0.1 * 9 / 4, 0.0)],
)
def test_feddecorr_counts_correlations(variant: str, one_feature_twice: float, two_features: float) -> None:
    """With n = 4 and all correlations 1: 0.5 ||K||^2 / d^2 = 0.5, or coefficient (n - 1)^2 / n."""
    method = METHODS.parse({"name": "feddecorr", "variant": variant})
    same = torch.tensor([[0.0, 5.0], [2.0, 9.0], [4.0, 13.0], [9.0, 23.0]], dtype=torch.float64)
    apart = torch.tensor([[1.0, 3.0], [1.0, 1.0], [-1.0, 3.0], [-1.0, 1.0]], dtype=torch.float64)
    for features, expected in ((same, one_feature_twice), (apart, two_features)):
        batch = Batch(torch.zeros(4), features, features, {})
        assert float(method.penalty({}, batch, toy_context())) == pytest.approx(expected, rel=1e-7)


def test_the_code_of_feddecorr_takes_no_coefficient() -> None:
    with pytest.raises(InvalidComponent, match=r"has the fixed coefficient 0\.1"):
        METHODS.parse({"name": "feddecorr", "variant": "code", "coefficient": 0.3})


@pytest.mark.parametrize(("settings", "variant", "coefficient"), FEDDECORR_CASES)
def test_feddecorrs_gradient_by_hand(settings: dict[str, float | str], variant: str, coefficient: float) -> None:
    """Also of a feature that is the same for all samples, and of more features than samples."""
    features = torch.randn(4, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    features[:, 2] = 1.5
    batch = batch_of(features, torch.zeros(4, 3, dtype=torch.float64), [0, 1, 2, 0])
    assert_penalty_gradient(parsed("feddecorr", **settings), {}, batch, context_of({}))


MUTATIONS = (
    *mutations_of(
        "feddecorr",
        ("not centred", "batch.features_BD - batch.features_BD.mean(0)", "batch.features_BD"),
        ("centred by sample", "batch.features_BD.mean(0)", "batch.features_BD.mean(1, keepdim=True)"),
        ("original: deviation of the sum", "(centred**2).mean(0) + EPS", "(centred**2).sum(0) + EPS"),
        ("original: variance for deviation", "((centred**2).mean(0) + EPS).sqrt()", "((centred**2).mean(0) + EPS)"),
        ("original: deviation has no gradient", "(centred**2).mean(0)", "(centred.detach() ** 2).mean(0)"),
        ("original: not divided by n", "(u.T @ u / n) ** 2", "(u.T @ u) ** 2"),
        ("original: norm not squared", "((u.T @ u / n) ** 2).sum()", "((u.T @ u / n) ** 2).sum().sqrt()"),
        ("original: correlations not squared", "(u.T @ u / n) ** 2", "(u.T @ u / n)"),
        ("original: d for d^2", "/ d**2", "/ d"),
        ("original: sign flipped", "return self.coefficient / d**2", "return -self.coefficient / d**2"),
        ("code: biased deviation", "(n - 1) + EPS", "n + EPS"),
        ("code: with the diagonal", "(squares.sum() - squares.diagonal().sum())", "squares.sum()"),
        ("code: mean over all entries", "max(1, d * (d - 1))", "d**2"),
        ("code: not divided by n", "self._coefficient() / n *", "self._coefficient() *"),
        ("code: divided by n twice", "squares = (u.T @ u) ** 2", "squares = (u.T @ u / n) ** 2"),
        ("code: between samples", "squares = (u.T @ u) ** 2", "squares = (u @ u.T) ** 2"),
        ("code: not squared", "squares = (u.T @ u) ** 2", "squares = (u.T @ u).abs()"),
        ("code: sign flipped", "return self._coefficient() / n", "return -self._coefficient() / n"),
        ("eps of normalizations", "EPS = 1e-8", "EPS = 1e-5"),
        ("forms swapped", 'if self.variant == "original"', 'if self.variant != "original"'),
        ("text has the code's coefficient", 'self.variant == "code" else', 'self.variant == "text" else'),
        (
            "the code has the text's coefficient",
            'return 0.1 if self.variant == "code" else self.coefficient',
            "return self.coefficient",
        ),
        (
            "the code's coefficient for both",
            'return 0.1 if self.variant == "code" else self.coefficient',
            "return 0.1",
        ),
        ("coefficient ignored", "else self.coefficient", "else 0.5"),
        ("original: coefficient ignored", "return self.coefficient / d**2", "return 0.5 / d**2"),
        ("by hand: forms swapped", 'biased = self.variant == "original"', 'biased = self.variant != "original"'),
        ("by hand: not centred", "f_NBD - f_NBD.mean(1, keepdim=True)", "f_NBD + 0"),
        ("by hand: biased deviation", "divisor = n if biased else n - 1", "divisor = n"),
        ("by hand: half", "4 * self._coefficient() / (d * n)", "2 * self._coefficient() / (d * n)"),
        ("by hand: d for d^2", "(d * n) ** 2", "(d * n * n)"),
        ("by hand: n for n^2", "(d * n) ** 2", "(d * d * n)"),
        ("by hand, code: half", "4 * self._coefficient() / (n", "2 * self._coefficient() / (n"),
        ("by hand, code: mean over all entries", "max(d * (d - 1), 1)", "d**2"),
        ("by hand, code: not divided by n", "(n * max(", "(max("),
        ("by hand, code: with the diagonal", "addcmul_(u_NBD, u_NBD.square", "addcmul(u_NBD, u_NBD.square"),
        ("by hand: deviation has no gradient", "into_NBD.addcmul_(u_NBD, along_N1D, value=-1).mul_", "into_NBD.mul_"),
        ("by hand: not divided by the deviation", ".mul_(scale_N1D.mul_(factor))", ".mul_(factor)"),
        ("coefficient by default", "Field(ge=0)] = 0.5", "Field(ge=0)] = 0.1"),
    ),
    Mutation(
        "feddecorr",
        "original: between samples",
        "(u.T @ u / n) ** 2",
        "(u @ u.T / n) ** 2",
        equivalent="u^T u and u u^T have the same eigenvalues but zeros, so the same Frobenius norm",
    ),
)
