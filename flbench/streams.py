"""Stateless randomness: every random choice is a pure function of (seed, purpose, indices).

The generator is Philox, which is counter-based: the key holds the seed and the purpose, the upper words of the counter
hold the indices (client, round, step). No state is carried from one choice to the next, so the order of execution
cannot matter, evaluation cannot disturb training, resuming needs no generator state, and two methods with one seed
see the same partition, cohorts and batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.random.bit_generator import ISeedSequence

from flbench.codes import code


@dataclass(frozen=True)
class _Key(ISeedSequence):
    """A key, given to a generator as it is; ``Philox(key=...)`` takes four times as long to gather unused entropy."""

    key: np.ndarray[Any, np.dtype[np.uint64]]

    def generate_state(self, n_words: int, dtype: Any = np.uint64) -> np.ndarray[Any, np.dtype[np.uint64]]:
        return self.key


@lru_cache(maxsize=1000)  # a round of a small network draws from a stream of each client
def _key(seed: int, purpose: str) -> Any:
    return _Key(np.array([seed, code(purpose)], dtype=np.uint64))


def stream(seed: int, purpose: str, *indices: int) -> np.random.Generator:
    """Return a new generator for one choice, which has at most three ``indices``, each in [0, 2**64).

    Raises:
        ValueError: more than three indices.

    >>> stream(0, "batches", 3, 1).integers(0, 100, 4).tolist()  # client 3, round 1
    [94, 45, 34, 98]
    """
    if len(indices) > 3:
        raise ValueError(f"at most three indices, got {indices}")
    counter = np.zeros(4, dtype=np.uint64)
    counter[1 : 1 + len(indices)] = indices  # word 0 counts the draws themselves
    return np.random.Generator(np.random.Philox(_key(seed, purpose), counter=counter))
