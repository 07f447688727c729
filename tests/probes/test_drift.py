"""Client drift by hand."""

from __future__ import annotations

import pytest
import torch

from flbench.probes import Observation
from flbench.probes.drift import Drift


def test_two_updates_by_hand() -> None:
    """From x = (1, 1): (3, 0) and (0, 4), weighed 1/4 and 3/4; their mean is (3/4, 3)."""
    clients = {"w": torch.tensor([[4.0, 1.0], [1.0, 5.0]])}
    x = {"w": torch.ones(2)}
    found = Drift().measure(Observation(1, x, x, clients, torch.tensor([0.25, 0.75]), None))
    assert found["update_norm"] == pytest.approx(3.5)
    assert found["mean_norm"] == pytest.approx((0.75**2 + 3**2) ** 0.5)
    assert found["agreement"] == pytest.approx((0.75**2 + 3**2) ** 0.5 / (0.25 * 3 + 0.75 * 4))
    assert found["cosine"] == pytest.approx(0.0)


def test_there_is_no_drift_without_messages() -> None:
    assert Drift().measure(Observation(1, {}, {}, {}, torch.tensor([0.5, 0.5]), None)) == {}
