from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test has its own decoded cache and data root."""
    monkeypatch.setenv("FLBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("FLBENCH_DATA", str(tmp_path / "data"))
    return tmp_path / "cache"
