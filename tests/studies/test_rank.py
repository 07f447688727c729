"""Ranks of random networks over depth: collapse without normalization, sqrt(d) with it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from flbench.studies.choices import RowNorm
from flbench.studies.rank_study import RankOverDepth, normalize_rows, ranks


def network(norm: RowNorm, *, width: int = 32, activation: str = "linear", gamma: float | None = 0.5, seed: int = 0):  # type: ignore[no-untyped-def]
    return RankOverDepth(width=width, samples=4 * width, activation=activation, norm=norm, gamma=gamma, seed=seed)


def after(study: RankOverDepth, layers: int) -> float:
    while study.round < layers:
        study.step()
    return float(study.evaluate()["rank"])


def mean_rank(study: RankOverDepth, begin: int, end: int) -> float:
    return float(np.mean([after(study, layer) for layer in range(begin, end, 10)]))


@pytest.mark.parametrize("gamma", [0.1, 0.5, 1.0])
def test_unnormalized_linear_networks_collapse_to_rank_one(gamma: float) -> None:
    study = network("none", gamma=gamma)
    assert after(study, 0) > 25
    assert after(study, 1500) == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize(("gamma", "expected"), [(0.1, 5.13), (0.5, 4.87), (1.0, 4.88)])
def test_batch_norm_keeps_the_rank_of_linear_networks(gamma: float, expected: float) -> None:
    """At d = 32, against means over many more layers of an independent implementation."""
    assert mean_rank(network("bn-rms", gamma=gamma), 500, 2500) == pytest.approx(expected, rel=0.08)


def test_the_rank_grows_like_the_root_of_the_width() -> None:
    """Means over layers 300 to 1200 at gamma = 0.5 and d = 8 to 64: exponent 0.5 within 0.1."""
    widths = [8, 16, 32, 64]
    found = [mean_rank(network("bn-rms", width=d), 300, 1200) for d in widths]
    assert np.polyfit(np.log(widths), np.log(found), 1)[0] == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize(
    ("norm", "gamma", "expected"), [("bn-rms", 0.1, 6.11), ("bn-rms", 1.0, 4.14), ("bn", 0.1, 8.52), ("bn", 1.0, 6.73)]
)
def test_residual_relu_networks(norm: RowNorm, gamma: float, expected: float) -> None:
    assert mean_rank(network(norm, activation="relu", gamma=gamma), 500, 2000) == pytest.approx(expected, rel=0.1)


def test_relu_networks_collapse_too() -> None:
    assert after(network("none", activation="relu"), 300) == pytest.approx(1, abs=0.05)
    assert after(network("none", activation="relu", gamma=None), 100) == pytest.approx(1, abs=0.05)
    assert mean_rank(network("bn", activation="relu", gamma=None), 100, 200) > 4


def test_rows_are_normalized_by_each_norm() -> None:
    h = torch.tensor([[1.0, 3.0], [-2.0, 2.0]], dtype=torch.float64)
    torch.testing.assert_close(normalize_rows(h, "bn-rms"), h / torch.tensor([[5**0.5], [2.0]], dtype=torch.float64))
    torch.testing.assert_close(normalize_rows(h, "bn"), torch.tensor([[-1.0, 1], [-1, 1]], dtype=torch.float64))
    torch.testing.assert_close(normalize_rows(h, "none"), h / 4.5**0.5)


def test_ranks_by_hand() -> None:
    record = ranks(torch.tensor([[1.0, -1, 1, -1], [2, 2, -2, -2]]))  # eigenvalues 1 and 4
    assert record["rank"] == pytest.approx(25 / 17)
    assert record["first_share"] == pytest.approx(0.8)
    assert (record["soft_rank_0.1"], record["soft_rank_0.5"]) == (2, 1)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), 0.0])
def test_ranks_of_zero_or_non_finite_features_are_nan(number: float) -> None:
    record = ranks(torch.full((3, 4), number))
    assert record.keys() == ranks(torch.ones(3, 4)).keys()
    assert np.isnan(list(record.values())).all()
