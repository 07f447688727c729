"""A workload that takes milliseconds."""

from __future__ import annotations

from benchmarks.workloads import Workload

TINY = Workload(
    "tiny", "digits, a tiny MLP", {"model": {"name": "mlp", "widths": [4]}, "clients": 2, "local_steps": 2}, rounds=1
)


def silent(what: str, done: int, total: int) -> None:
    """Show no progress."""
