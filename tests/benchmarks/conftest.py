from __future__ import annotations

import pytest
import torch

from flbench.bench import timing


@pytest.fixture(autouse=True)
def small_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns take a millisecond, on one thread: tiny problems are too small for several."""
    torch.set_num_threads(1)
    monkeypatch.setattr(timing, "TURN", 0.001)
