"""The report of a sweep as trackers show it: its leaderboard as a table, and its figures."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flbench.errors import UserError
from flbench.papers import papers
from flbench.report.figures.kinds import write_figures
from flbench.report.leaderboard import build
from flbench.report.paper import figure_kinds
from flbench.report.parts import options_of, parts_of
from flbench.report.write.json import to_json
from flbench.run_sources import StoreSource
from flbench.store import Store
from flbench.sweeps import Sweep
from flbench.tracking.sweep_view import SweepView, sweep_run_id


def sweep_view(store: Store, sweep: Sweep, folder: Path, say: Callable[[str], None]) -> SweepView:
    """Return a sweep's table and its figures, drawn into ``folder``; without matplotlib there are no figures."""
    board = build(parts_of(StoreSource(store), [sweep]), options_of([sweep]), papers())
    try:
        write_figures(board, folder, figure_kinds(papers()).values())
    except (UserError, OSError) as error:
        say(f"warning: some figures could not be drawn: {error}")
    cells = to_json(board)["cells"]
    values: dict[str, set[str]] = {"method": set(), "norm": set()}
    for cell in cells:
        for name, value in cell["experiment"].items():
            values.setdefault(name, set()).add(_text(value))
    # The table always shows method and norm, and the other fields in which its cells differ.
    fields = [name for name, found in values.items() if len(found) > 1 or (name in ("method", "norm") and found)]
    numbers = ("rounds", "metric", "mean", "sd", "ci_half_width", "n", "wished")
    return SweepView(
        sweep=sweep.name,
        run_id=sweep_run_id(sweep),
        config={"sweep": sweep.name, "spec_hash": sweep.spec_hash, "runs": len(sweep.experiments)},
        columns=[*fields, *numbers, "gaps", "best", "cell_id"],
        rows=[
            [
                *(_text(cell["experiment"].get(field)) for field in fields),
                *(cell[name] for name in numbers),
                ", ".join(f"{count} {why}" for why, count in cell["gaps"].items()),
                cell["best"],
                cell["cell_id"],
            ]
            for cell in cells
        ],
        figures=sorted(folder.glob("*.png")),
    )


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value)
