"""What the tests of all papers share."""

from __future__ import annotations

import pytest

from tests.papers.in_memory import Memory


@pytest.fixture
def store() -> Memory:
    """Return a source without runs."""
    return Memory()
