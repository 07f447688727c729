"""The examples in docstrings of pure functions are true."""

from __future__ import annotations

import doctest
import importlib

import pytest


@pytest.mark.parametrize(
    "name",
    [
        "config.base", "config.evaluations", "config.training", "data.batches", "data.partition.base", "data.shards",
        "messages", "metrics", "registry", "streams", "sweeps.source", "sweeps.spec", "theory.fisher",
        "theory.gaussian", "theory.order", "theory.rank",
    ],
)  # fmt: skip
def test_examples(name: str) -> None:
    found = doctest.testmod(importlib.import_module(f"flbench.{name}"))
    assert found.attempted > 0
    assert found.failed == 0
