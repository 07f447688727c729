"""Refined sweeps: which rates workers try around the best ones, in any order and after any kill, and what is shown."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.text import Text

from flbench.cli.dry_run import finished_runs, summary
from flbench.cli.sweep_status import SweepStatus
from flbench.cli.targets import Targets, entries_of
from flbench.halving import Halving
from flbench.launch.inline import InlineLauncher
from flbench.orchestrate import Orchestrator
from flbench.planning import write_plan
from flbench.report.leaderboard import build
from flbench.report.parts import parts_of
from flbench.report.write.json import to_json
from flbench.report.write.terminal import to_terminal
from flbench.run_sources import StoreSource
from flbench.store import Lease, Plan, Races, Store
from flbench.sweeps import SpecError, Sweep, load_sweep
from flbench.worker import Options
from tests.faults.stub import OneByOne
from tests.refined import GRID, SWEEP, TRIED, go, train, tried
from tests.report.stores import unfolded_of


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    (tmp_path / "refined.yaml").write_text(SWEEP)
    return load_sweep(tmp_path / "refined.yaml")


def test_one_worker_tries_rates_around_the_best(store: Store, sweep: Sweep) -> None:
    assert go(store, sweep) == 24 + 2 * (4 + 4 + 2 + 2)
    assert tried(store) == TRIED
    assert go(store, sweep) == 0


def finish(store: Store, sweep: Sweep) -> Any:
    plan = "/".join(write_plan(store, sweep).parts[-2:])

    def launcher() -> InlineLauncher:
        return InlineLauncher(store, plan, sweep.experiments, Options(), load=lambda _: OneByOne(train))

    return Orchestrator(store, plan, sweep.experiments, launcher).run()


@pytest.mark.parametrize("case", range(3))
def test_no_order_of_workers_and_no_kill_changes_what_is_tried(store: Store, sweep: Sweep, case: int) -> None:
    chance = random.Random(case)
    assert sweep.search is not None
    for _ in range(12):
        races = Races(store, Plan.of(sweep.experiments), sweep.search, 99)
        races.refresh()
        index = chance.randrange(len(races.plan))
        # A worker claims a run and is killed.
        store.claim(races.plan[index].parse(), replace(Lease.here(), pid_start="not this process"))
        go(store, sweep, offset=chance.randrange(len(sweep.experiments)), most=chance.randrange(1, 9))
    go(store, sweep)
    assert tried(store) == TRIED


def test_the_report_chooses_among_all_rates_and_shows_equal_budgets(store: Store, sweep: Sweep) -> None:
    progress = finish(store, sweep).progress
    assert (progress.total, progress.done, progress.share, progress.to_come) == (48, 48, 1, 0)
    (part,) = parts_of(StoreSource(store), [sweep])
    board = build([part])
    found = to_json(board)
    assert [(one["chosen"], one["budget"]) for one in found["details"]] == [
        ("lr 0.03162, best of 7", 280),
        ("lr 0.01, best of 5", 200),
        ("lr 0.01, best of 7", 280),
        ("lr 0.001, best of 5", 200),
    ]
    text = unfolded_of(board)
    assert "with the best of the settings that it tried, as many as the other rows of the column" in text
    assert (
        "**Search:** each step tried two values of lr for every row of a column, halfway between its best by the mean "
        "`val_acc` and the neighbours, or beyond the end of the grid, until a step gained less than 1 point in every "
        "row, at most 3 steps; the tuning budget below is that of the grid alone. Budget of every row in a column, "
        "over all settings and seeds: 200 to 280 rounds, the same for all rows of a column."
    ) in text


def test_status_and_dry_run_say_that_runs_may_come(store: Store, sweep: Sweep, tmp_path: Path) -> None:
    directory = write_plan(store, sweep)
    most = 3 * 2 * 2 * 4  # steps, rates, seeds, rows of both columns
    facts = summary(sweep, finished_runs(sweep, tmp_path / "none"), 1)
    assert (facts["runs"], facts["search"]["added"], facts["search"]["to_come"]) == (24, 0, most)
    go(store, sweep, most=26)
    status = SweepStatus(store, directory)
    status.update(0)
    assert (status.progress.total, status.progress.done, status.json()["to_come"]) == (40, 26, most * 2 // 3)
    facts = summary(sweep, finished_runs(sweep, store.root), 1)
    assert (facts["runs"], facts["done"], facts["search"]["added"]) == (40, 26, 16)
    go(store, sweep)
    facts = summary(sweep, finished_runs(sweep, store.root), 1)
    assert (facts["runs"], facts["missing"], facts["search"]["to_come"]) == (48, 0, 0)


def test_added_runs_are_runs_of_the_plan(store: Store, sweep: Sweep) -> None:
    directory = write_plan(store, sweep)
    finish(store, sweep)
    ids = set(store.run_ids())
    assert store.planned_ids() == ids
    added = next(iter(ids - {run.run_id for run in sweep.experiments}))
    assert [entry.run_id for entry in store.planned(added)] == [added]
    assert {entry.run_id for entry in entries_of(store, Targets((directory,), ()))} == ids
    assert write_plan(store, sweep) == directory  # the same command again changes nothing
    assert store.planned_ids() == ids


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("search.axis=[lr,momentum]", "search.refine: expected one tuned field, got lr and momentum"),
        ("search.refine.margin=0", "search.refine.margin: expected a value greater than 0, got 0"),
        ("search.refine.margin=1", "search.refine.margin: expected a share below 1, got 1; one point is 0.01"),
        ("search.refine.max_steps=11", "search.refine.max_steps: expected a value of at most 10, got 11"),
        ("search.refine.until=dawn", "search.refine.until: expected 'gain' or 'flat', got 'dawn'"),
        ("search.refine.step=2", "search.refine.step: unknown key 'step'"),
        ("search.axis=batch_size", "search.axis: nothing to choose: no two cells differ in batch_size alone"),
        (
            "exclude=[{norm: ln, lr: 0.1}]",
            "search.refine: expected the same values of lr in all rows of a column, got [0.001, 0.01, 0.1] and "
            "[0.001, 0.01]",
        ),
        (
            "exclude=[{norm: ln, lr: [0.01, 0.1]}]",
            "search.refine: expected two or more values of lr in every row and column, got 0.001 alone",
        ),
    ],
)
def test_mistakes_are_named_with_their_place(sweep: Sweep, change: str, message: str) -> None:
    with pytest.raises(SpecError) as error:
        load_sweep(sweep.path, [change])
    assert message in str(error.value)


@pytest.mark.parametrize("field", ["weight_decay", "batch_size"])
def test_a_field_without_positive_real_numbers_cannot_be_refined(sweep: Sweep, field: str) -> None:
    values = {"weight_decay": "[0,0.1]", "batch_size": "[32,64]"}[field]
    with pytest.raises(SpecError) as error:
        load_sweep(sweep.path, [f"search.axis={field}", f"axes.{field}={values}", "axes.lr=[0.1]"])
    value = {"weight_decay": "0.0", "batch_size": "32"}[field]
    hint = f"expected a field of positive real numbers, such as lr; {field} has the value {value}"
    assert f"search.refine: {hint}" in str(error.value)


def test_another_field_is_refined_by_the_same_code(store: Store, sweep: Sweep) -> None:
    sets = ["search.axis=method.mu", "axes.lr=[0.1]", "axes.method=[{name: fedprox, mu: 0.1}, {name: fedprox, mu: 1}]"]
    found = load_sweep(
        sweep.path, [*sets, "report.rows=[norm]", "report.tune=[method.mu]", "search.refine.max_steps=1"]
    )
    assert go(store, found) == 2 * 2 * 2 * (2 + 2)
    experiments: list[Any] = [store.run(run_id).experiment() for run_id in store.run_ids()]
    assert {one.method.mu for one in experiments} == {
        0.01,
        0.1,
        0.316227766017,
        1.0,
    }  # equal values everywhere: the least is refined


def test_the_refinement_is_part_of_the_plans_name_and_rungs_stay_possible(sweep: Sweep) -> None:
    assert sweep.search is not None
    assert not sweep.search.halves
    assert sweep.search.rungs == ((20,),)
    halving = load_sweep(sweep.path, ["search.keep=1/2"])
    assert halving.search is not None
    assert halving.search.rungs == ((2, 8, 20),)
    assert Halving.from_json(json.loads(json.dumps(halving.search.to_json()))) == halving.search
    assert halving.spec_hash != sweep.spec_hash
    tail = load_sweep(sweep.path, ["search.select_by=val-tail"]).search
    assert tail is not None
    assert (tail.metric, tail.tail) == ("val_acc", 5)


def test_after_halving_the_best_of_those_that_are_left_is_refined(store: Store, sweep: Sweep) -> None:
    halved = load_sweep(sweep.path, ["search.rungs=[4, 20]", "search.keep=1/3"])
    go(store, halved)
    assert tried(store) == TRIED


def test_the_terminal_shows_the_best_settings_alone(store: Store, sweep: Sweep) -> None:
    finish(store, sweep)
    board = build(parts_of(StoreSource(store), [sweep]))
    texts = [one.plain for one in to_terminal(board, 200) if isinstance(one, Text)]
    (title,) = [text for text in texts if "digits" in text]
    assert title.startswith("digits, mlp, the best settings of each row: ")
    count = len(board.sections[0].tables)
    assert count > len(GRID) and f"{count} tables of single settings: flbench report --out FILE.md has them" in texts
