"""A workload that takes milliseconds."""

from __future__ import annotations

from typing import Any

from benchmarks.common import Case, data_of, experiment_of


def tiny(setting: str = "", **options: Any) -> Case:
    """Return a case of an MLP on digits with other fields."""
    experiment = experiment_of(f"model=mlp model.widths=[4] {setting or 'clients=2 E=2'}")
    return Case("tiny", experiment, data_of(experiment, None), **options)


def silent(what: str, done: int, total: int) -> None:
    """Show no progress."""
