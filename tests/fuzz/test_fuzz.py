from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.fuzz import cases, world
from tests.fuzz.run import fuzz

SEED = 0

#: Number of cases, and seconds after which the run in CI stops.
CASES = 1500
SECONDS = 60


@pytest.mark.slow
def test_no_input_ends_in_a_traceback() -> None:
    found = [finding.text(SEED) for _, finding in fuzz(SEED, range(CASES), SECONDS) if finding is not None]
    assert not found, "\n\n".join(found)


def test_cases_follow_from_seed_and_number(tmp_path: Path) -> None:
    """The same seed and number make the same changes, and all kinds occur."""
    (tmp_path / "world").mkdir()
    world.build(tmp_path / "world")
    kinds = set()
    for number in range(20):
        made = []
        for attempt in ("a", "b"):
            copy = tmp_path / f"{number}{attempt}"
            shutil.copytree(tmp_path / "world", copy)
            made.append(cases.make(SEED, number, copy))
        assert made[0] == made[1]
        kinds.add(made[0].kind)
    assert kinds == set(cases.KINDS)
