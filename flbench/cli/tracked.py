"""What W&B is told of runs and sweeps by the rooms above the mirror: names, tables, figures."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flbench.errors import UserError

if TYPE_CHECKING:
    from flbench.report.frames import Collection
    from flbench.report.leaderboard import Leaderboard
    from flbench.store import Store
    from flbench.sweeps import Sweep
    from flbench.tracking.view import Board

#: Fields that a run's name on W&B always has; others only where they are not what they are by default.
NAMED = frozenset({"method", "norm", "partition", "lr", "local_steps", "seed"})


def sweeps_of(store: Store) -> Mapping[str, Sequence[str]]:
    """By run, the names of all sweeps that name it."""
    sweeps: dict[str, dict[str, None]] = {}
    for directory, run_ids in store.readable_plans():
        for run_id in run_ids:
            sweeps.setdefault(run_id, {})[directory.parent.name] = None
    return {run_id: tuple(names) for run_id, names in sweeps.items()}


def name_of(experiment: Mapping[str, Any]) -> str:
    """A run's name on W&B; it says the same in every sweep."""
    from flbench.orchestrate import label

    kind = str(experiment.get("kind", "federated"))
    usual = {**_defaults(kind), "kind": "federated"}
    return label(experiment, {kind: {name for name, value in usual.items() if experiment.get(name) == value} - NAMED})


@cache
def _defaults(kind: str) -> dict[str, Any]:
    from flbench.config import parse_experiment

    return parse_experiment({"kind": kind}).to_json()


def board_id(sweep: Sweep) -> str:
    """The id of the run that shows a sweep."""
    return f"sweep-{sweep.spec_hash}"


def board_of(store: Store, sweep: Sweep, folder: Path, say: Callable[[str], None]) -> Board:
    """The sweep's table and figures, from the report."""
    from flbench.report import frames, leaderboard
    from flbench.tracking.view import Board

    options = leaderboard.options_of([sweep])
    collection = frames.collect(
        frames.StoreSource(store), sweep.experiments, select_by=options.select_by, metric=options.metric
    )
    board = leaderboard.build(collection, options)
    cells = board.json()["cells"]
    fields = _varying([cell["experiment"] for cell in cells])
    numbers = ("mean", "sd", "ci_half_width", "n", "wished")
    return Board(
        sweep=sweep.name,
        run_id=board_id(sweep),
        config={"sweep": sweep.name, "spec_hash": sweep.spec_hash, "runs": len(sweep.experiments)},
        columns=[*fields, "rounds", "metric", *numbers, "gaps", "best", "cell_id"],
        rows=[
            [
                *(_text(cell["experiment"].get(field)) for field in fields),
                *(cell[name] for name in ("rounds", "metric", *numbers)),
                ", ".join(f"{count} {why}" for why, count in cell["gaps"].items()),
                *(cell[name] for name in ("best", "cell_id")),
            ]
            for cell in cells
        ],
        figures=_figures(board, collection, folder, say),
    )


def _figures(board: Leaderboard, collection: Collection, folder: Path, say: Callable[[str], None]) -> list[Path]:
    """The figures that can be drawn here; the table goes without the others."""
    from flbench.report.figures import write_figures

    try:
        write_figures(board, collection, folder)
    except (UserError, OSError) as error:
        say(f"warning: not every figure could be drawn: {error}")
    return sorted(folder.glob("*.png"))


def _varying(experiments: Sequence[Mapping[str, Any]]) -> list[str]:
    """The fields of a table: method, norm, and what tells its cells apart."""
    values: dict[str, set[str]] = {"method": set(), "norm": set()}
    for experiment in experiments:
        for name, value in experiment.items():
            values.setdefault(name, set()).add(_text(value))
    return [name for name, different in values.items() if len(different) > (name not in ("method", "norm"))]


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value)
