"""Stateless randomness."""

from __future__ import annotations

import numpy as np
import pytest

from flbench.streams import stream


def test_same_key_same_numbers_and_golden_values() -> None:
    first, again = (stream(0, "batches", 1, 2).integers(1000, size=4).tolist() for _ in range(2))
    # Frozen: a change here changes every published number, and must raise the versions in the run id.
    assert first == again == [299, 373, 535, 735]


def test_every_part_of_the_key_matters() -> None:
    keys = [(0, "a", 0, 0), (1, "a", 0, 0), (0, "b", 0, 0), (0, "a", 1, 0), (0, "a", 0, 1), (0, "a", 0, 0, 1)]
    draws = {tuple(stream(*key).integers(2**60, size=2)) for key in keys}  # type: ignore[arg-type]
    assert len(draws) == len(keys)


def test_neighbouring_streams_do_not_overlap() -> None:
    """The draws of one stream advance only the lowest counter word, and never reach those of the next round."""
    first, second = (set(stream(0, "x", 0, round).integers(2**62, size=20_000).tolist()) for round in (0, 1))
    assert not first & second


def test_large_seeds_and_too_many_indices() -> None:
    assert isinstance(stream(2**63 - 1, "x", 2**63).random(), float)
    with pytest.raises(ValueError, match="three indices"):
        stream(0, "x", 1, 2, 3, 4)


def test_uniformity_over_rounds() -> None:
    firsts = np.array([stream(3, "cohort", round).random() for round in range(4000)])
    assert abs(firsts.mean() - 0.5) < 0.02
    assert abs(np.corrcoef(firsts[:-1], firsts[1:])[0, 1]) < 0.05
