from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flbench.cli.curves import Curves, mixed_sparklines, sparklines
from flbench.cli.progress_tables import leading, names
from flbench.config import KINDS, Experiment, parse_experiment, problem_of
from flbench.progress import Cell, RunSnapshot, Watch
from flbench.run_names import common_fields
from flbench.store import Entry, Lease, RunState, Store

PLAN = [
    parse_experiment(raw)
    for raw in (
        {"norm": "ln", "seed": 0},
        {"norm": "ln", "seed": 1},
        {"norm": "none", "seed": 0},
        {"kind": "centralized", "norm": "ln"},
    )
]


def done(index: int, accuracy: float | None) -> RunSnapshot:
    return RunSnapshot(PLAN[index].run_id, "", 200, RunState("done", result=None), 200, accuracy)


def cells_of(store: Store, plan: Sequence[Experiment], *values: float) -> list[Cell]:
    """The cells of a plan whose runs have ended with these numbers."""
    cells = list(Watch(store, [Entry.of(one) for one in plan], 1).update().cells)
    by_id = {one.cell_id: cell for one, cell in zip(plan, cells, strict=True)}
    for one, value in zip(plan, values, strict=True):
        by_id[one.cell_id].add(RunSnapshot(one.run_id, "", one.rounds, RunState("done"), one.rounds, value))
    return cells


def test_cells_count_runs_that_have_ended() -> None:
    cell = Cell(0, "x", planned=5)
    for seen in (done(1, 0.5), done(0, 0.25), replace(done(2, 0.9), dropped=True)):
        cell.add(seen)
    cell.add(RunSnapshot("id", "", 200, RunState("failed", "oom")))
    assert (cell.values, cell.run_ids, cell.mean) == ([0.5, 0.25], [PLAN[1].run_id, PLAN[0].run_id], 0.375)
    assert cell.progress == "2/5, 1 failed", "one that was dropped has too few rounds to be compared"


def cell(problem: str, *accuracies: float) -> Cell:
    return Cell(0, problem, values=list(accuracies))


def test_the_best_of_each_problem() -> None:
    cells = [cell("x", 0.1), cell("x", 0.9, 0.5), cell("y", 0.2), cell("x", 0.8), cell("y"), cell("z")]
    assert [(one.problem, one.mean) for one in leading(cells, 5)[0]] == [("x", 0.8), ("x", 0.7), ("y", 0.2)]
    assert [(one.problem, one.mean) for one in leading(cells, 2)[0]] == [("x", 0.8), ("y", 0.2)]
    assert (len(leading(cells, 1)[0]), leading(cells, 1)[1]) == (1, 1)
    assert leading([], 6) == ([], 0)


def test_studies_are_ranked_by_their_own_metrics(store: Store) -> None:
    plan = [
        parse_experiment(raw)
        for raw in (
            {"kind": "sharpness", "width": 50},
            {"kind": "sharpness", "width": 50, "normalized": "mean-last"},
            {"kind": "sharpness", "width": 80},
            {"kind": "rank"},
            {"kind": "rank", "normalized": "bn"},
        )
    ]
    cells = cells_of(store, plan, 20.0, 5.0, 40.0, 1.5, 6.0)
    leaders, _ = leading(cells, 5)
    # The least sharp and the highest rank first; networks of different widths do not compete.
    assert [(cell.metric, cell.mean) for cell in leaders] == [("lambda_max", 5.0), ("lambda_max", 40.0), ("rank", 6.0)]
    assert [cell.mean for cell in leading(cells, 6)[0]] == [5.0, 20.0, 40.0, 6.0, 1.5]
    common = common_fields(map(Entry.of, plan))
    assert names(plan[1].to_json(), common) == ("sharpness width=50", "mean-last")
    assert names(plan[4].to_json(), common) == ("rank", "bn")


def test_work_that_differs_is_another_problem(store: Store) -> None:
    """As in the report: cells with more local steps or rounds, or held-out data, are not ranked with the others."""
    works: list[dict[str, Any]] = [
        {"E": 1},
        {"E": 50},
        {"E": 50, "rounds": 500, "lr": 0.1},
        {"E": 50, "val_fraction": 0.1},
    ]
    plan = [parse_experiment({"norm": norm, **work}) for work in works for norm in ("none", "ln")]
    cells = cells_of(store, plan, *(0.1 + index / 20 for index in range(len(plan))))
    common = common_fields(map(Entry.of, plan))
    leaders = [names(plan[one.first].to_json(), common) for one in leading(cells, 8)[0]]
    assert [problem for problem, _ in leaders[::2]] == [
        "E=1 rounds=200 val_fraction=0",
        "E=50 rounds=200 val_fraction=0",
        "E=50 rounds=500 val_fraction=0",
        "E=50 rounds=200 val_fraction=0.1",
    ]
    assert [problem for problem, _ in leaders[::2]] == [problem for problem, _ in leaders[1::2]]
    assert [contender for _, contender in leaders[4:6]] == ["fedavg ln lr=0.1", "fedavg none lr=0.1"]


def test_every_kind_declares_fields_that_it_has() -> None:
    for kind, model in KINDS.items():
        assert model.problem <= model.model_fields.keys(), kind
        assert problem_of({"kind": kind, "seed": 3, "rounds": 7})["rounds"] == 7


def test_cells_are_named_by_problem_and_contender() -> None:
    common = common_fields(map(Entry.of, PLAN[:3]))
    agreed = set(common["federated"])
    assert {"partition", "dataset", "kind", "lr", "rounds"} <= agreed and "norm" not in agreed
    assert names(PLAN[0].to_json(), common) == ("", "fedavg ln")
    common = common_fields(map(Entry.of, PLAN))
    assert "kind" not in common["federated"] and "partition" in common["federated"]
    assert names(PLAN[3].to_json(), common) == ("centralized", "ln")
    assert names(PLAN[0].to_json(), common) == ("federated", "fedavg ln")


@pytest.mark.parametrize(
    ("curves", "options", "scale", "bars"),
    [
        # Steps of an eighth of 0.2 to 1.0.
        ([[0.2, 0.29, 0.31], [], [0.61, 0.99, 1.0]], {}, "from 20 to 100 %", ["▁▁▂", "", "▅██"]),
        ([[0.90, 0.91]], {}, "from 86 to 91 %", ["▇█"]),  # small differences stay small
        ([[0.0, 0.01]], {}, "from 0 to 5 %", ["▁▂"]),
        ([[], []], {}, "over rounds", ["", ""]),
        ([[10.0, 20.0], [40.0]], {"metric": "lambda_max"}, "from 10 to 40", ["▁▃", "█"]),
        ([[100.0, 101.0]], {"metric": "rank"}, "from 96 to 101", ["▇█"]),  # a twentieth of the greatest
        ([[0.0]], {"metric": "lambda_max"}, "from 0 to 1", ["▁"]),
        ([[0.1, 0.0, 0.5, 0.3, 1.0]], {"width": 2}, "from 0 to 100 %", ["▁█"]),  # the last value of each share
    ],
)
def test_bars_fill_the_range_of_all_curves(
    curves: list[list[float]], options: dict[str, Any], scale: str, bars: list[str]
) -> None:
    assert sparklines(curves, **options) == (scale, bars)


def test_curves_of_several_metrics_have_scales_of_their_own() -> None:
    mixed = [("acc", [0.2, 1.0]), ("lambda_max", [10.0, 40.0]), ("acc", [0.61])]
    assert mixed_sparklines(mixed) == ("over rounds", ["▁█", "▁█", "▅"])
    assert mixed_sparklines(mixed[:1]) == ("from 20 to 100 %", ["▁█"])


def test_curves_are_read_again_only_after_progress_and_means_end_with_the_shortest(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    curves, first = Curves(store), PLAN[0].run_id
    for experiment, accuracies in ((PLAN[0], (0.0, 0.5, 1.0)), (PLAN[1], (0.5, 1.0))):
        attempt = store.claim(experiment, Lease.here())
        assert attempt is not None
        assert curves.of_run(experiment.run_id, 0) == []
        for round, accuracy in enumerate(accuracies, 1):
            attempt.record({"round": round, "acc": accuracy})
    assert (curves.of_run(first, 0), curves.of_run(first, 3)) == ([], [0.0, 0.5, 1.0])
    assert Curves(store).of_runs([first, PLAN[1].run_id]) == [0.25, 0.75]
