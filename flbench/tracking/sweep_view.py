"""What trackers show of a sweep: its leaderboard as a table, and its figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flbench.store import Store
from flbench.sweeps import Sweep


@dataclass(frozen=True)
class SweepView:
    """A sweep as trackers show it, as a run of its own."""

    sweep: str
    run_id: str
    config: Mapping[str, Any]
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    figures: Sequence[Path]


#: Makes the view of a sweep: figures are drawn into the folder, and what cannot be drawn is reported to the user.
MakeSweepView = Callable[[Store, Sweep, Path, Callable[[str], None]], SweepView]


def sweep_run_id(sweep: Sweep) -> str:
    """Return the id of the run that shows a sweep."""
    return f"sweep-{sweep.spec_hash}"
