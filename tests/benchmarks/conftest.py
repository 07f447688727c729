from __future__ import annotations

import pytest

from flbench.bench import timing


@pytest.fixture(autouse=True)
def small_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns take a millisecond."""
    monkeypatch.setattr(timing, "TURN", 0.001)
