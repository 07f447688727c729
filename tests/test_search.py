"""Searched sweeps: what workers train, in any order, and what status, dry runs and reports show of it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from flbench import api
from flbench.cli.dry_run import finished_runs, summary
from flbench.cli.sweep_status import SweepStatus
from flbench.config import content_of
from flbench.errors import StoreUnusable
from flbench.halving import Halving
from flbench.launch.inline import InlineLauncher
from flbench.orchestrate import Orchestrator
from flbench.planning import write_plan
from flbench.progress import Watch
from flbench.report.dataframes import tidy
from flbench.report.leaderboard import build
from flbench.report.parts import parts_of
from flbench.report.write.json import to_json
from flbench.run_sources import StoreSource
from flbench.store import Attempt, Lease, Plan, Races, Store, read_search
from flbench.sweeps import SpecError, Sweep, load_sweep
from flbench.worker import Options, work
from tests.faults.stub import Done, OneByOne, execute_search
from tests.report.stores import claim, unfolded_of

SWEEP = """
version: 1
name: search
base: {rounds: 20, eval_every: 2, val_fraction: 0.1, partition: "classes:2"}
axes: {norm: [none, ln], lr: [0.001, 0.01, 0.1, 0.5, 1]}
seeds: [0, 1]
search: {axis: lr, rungs: [2, 6, 20], keep: 1/2}
report: {cols: [partition]}
"""

#: The values at rounds 2, 6 and 20 of both seeds, by norm and learning rate; None where they diverge.
VALUES: dict[str, dict[float, tuple[float | None, ...]]] = {
    "none": {0.001: (0.1, 0.2, 0.9), 0.01: (0.3, 0.4, 0.5), 0.1: (0.5, 0.5, 0.6), 0.5: (0.4, 0.6, 0.8), 1: (0.2, 0, 0)},
    "ln": {0.001: (0.4, 0.3, 0.1), 0.01: (0.4, 0.2, 0.1), 0.1: (0.4, 0.4, 0.4), 0.5: (0.4, 0.1, 0.1), 1: (0.1, 0, 0)},
}
DIVERGING = ("ln", 1.0)


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    (tmp_path / "search.yaml").write_text(SWEEP)
    return load_sweep(tmp_path / "search.yaml")


def train(experiment: Any, attempt: Attempt, *, should_stop: Callable[[], bool]) -> Done:
    """Record the values of the table in no time, from the last checkpoint on."""
    checkpoint = next(iter(attempt.checkpoints()), None)
    records = attempt.adopt(checkpoint)
    began = records[-1]["round"] if records else 0
    norm, lr = experiment.norm.name, experiment.lr
    reached, status = experiment.rounds, "done"
    for round in sorted(experiment.evaluated_rounds()):
        if (norm, lr) == DIVERGING:
            reached, status = 1, "diverged"
            break
        if round > began:
            index = (round > 2) + (round > 6)
            value = VALUES[norm][lr][index]
            if value is None:
                reached, status = round, "diverged"
                break
            value += 0.01 * experiment.seed
            attempt.record({"round": round, "acc": value / 2, "val_acc": value})
    (attempt.path / "began").write_text(str(began))
    attempt.save_checkpoint(reached, lambda file: file.write(b"x"))
    attempt.publish(
        status=status,  # type: ignore[arg-type]
        rounds=reached, seconds=1.0, fingerprint=content_of(experiment.to_json()) or "toy", numerics={"device": "cpu"},
    )  # fmt: skip
    return Done(status, reached)


go = partial(execute_search, train)


def reached(store: Store, sweep: Sweep) -> dict[tuple[str, float], list[int]]:
    """Return the rounds that the seeds of each setting have reached."""
    found: dict[tuple[str, float], list[int]] = {}
    for run in sweep.experiments:
        results = store.run(run.run_id).results()
        found.setdefault((run.norm.name, run.lr), []).append(results[-1].rounds if results else 0)  # type: ignore[attr-defined]
    return found


#: Four of ln tie at the first rung; one of them is the best alone at the second, together with the diverged ones last.
REACHED = {
    ("none", 0.001): 2, ("none", 0.01): 6, ("none", 0.1): 20, ("none", 0.5): 20, ("none", 1): 2,
    ("ln", 0.001): 20, ("ln", 0.01): 6, ("ln", 0.1): 20, ("ln", 0.5): 6, ("ln", 1): 1,
}  # fmt: skip


def test_one_worker_trains_the_kept_settings_to_the_end(store: Store, sweep: Sweep) -> None:
    assert go(store, sweep) == 2 * (10 + 7 + 4)
    assert reached(store, sweep) == {setting: [rounds] * 2 for setting, rounds in REACHED.items()}
    assert go(store, sweep) == 0
    for attempt in store.run(sweep.experiments[4].run_id).attempts():  # each rung goes on where the last one ended
        assert (attempt.path / "began").read_text() == str((0, 2, 6)[attempt.number - 1])


def finish(store: Store, sweep: Sweep) -> tuple[int, int]:
    """Execute the sweep as ``flbench sweep --backend inline`` does; return how many runs are done and dropped."""
    plan = "/".join(write_plan(store, sweep).parts[-2:])

    def launcher() -> InlineLauncher:
        return InlineLauncher(store, plan, sweep.experiments, Options(), load=lambda _: OneByOne(train))

    outcome = Orchestrator(store, plan, sweep.experiments, launcher).run()
    assert (outcome.exit_code, outcome.progress.share) == (0, 1)
    return outcome.progress.done, outcome.progress.dropped


@pytest.mark.parametrize("case", range(3))
def test_no_order_of_workers_and_no_kill_changes_the_choice(store: Store, sweep: Sweep, case: int) -> None:
    chance, plan = random.Random(case), Plan.of(sweep.experiments)
    assert sweep.search is not None
    for _ in range(12):
        index = chance.randrange(len(plan))
        standing = Races(store, plan, sweep.search, 99).standing(index)
        # A worker claims a run and is killed.
        store.claim(plan[index].until(standing.rung).parse(), replace(Lease.here(), pid_start="not this process"))
        go(store, sweep, offset=chance.randrange(len(plan)), most=chance.randrange(1, 6))
    go(store, sweep)
    assert reached(store, sweep) == {setting: [rounds] * 2 for setting, rounds in REACHED.items()}


def test_results_from_before_the_search_change_no_choice(store: Store, sweep: Sweep) -> None:
    """A setting that has all rounds already is dropped all the same."""
    best_at_the_end = [run for run in sweep.experiments if (run.norm.name, run.lr) == ("none", 0.001)]  # type: ignore[attr-defined]
    plan = Plan.of(best_at_the_end)
    assert work(store, plan, Lease.here(), Options(), should_stop=lambda: False, load=lambda _: OneByOne(train)) == 2
    assert finish(store, sweep) == (10, 10)
    assert reached(store, sweep) == {
        setting: [20 if setting == ("none", 0.001) else rounds] * 2 for setting, rounds in REACHED.items()
    }
    cell = next(cell for cell in report(store, sweep)["cells"] if cell["run_ids"][0] == best_at_the_end[0].run_id)
    assert (cell["dropped"], cell["mean"], cell["gaps"]) == (2, None, {"dropped at round 2": 2})


def report(store: Store, sweep: Sweep) -> dict[str, Any]:
    return to_json(build(parts_of(StoreSource(store), [sweep])))


def test_the_report_shows_what_was_dropped_and_the_budget_of_every_row(store: Store, sweep: Sweep) -> None:
    assert finish(store, sweep) == (10, 10)
    (part,) = parts_of(StoreSource(store), [sweep])
    board = build([part])
    found = to_json(board)
    dropped = {(cell["experiment"]["norm"], cell["experiment"]["lr"]): cell["dropped"] for cell in found["cells"]}
    expected = {setting: None if rounds == 20 else max(2, rounds) for setting, rounds in REACHED.items()}
    assert dropped == expected
    assert found["unfinished"] == {"diverged": 2}
    # ln has one setting more from round 2 to 6, because four tie.
    assert [(one["chosen"], one["budget"]) for one in found["details"]] == [
        ("lr 0.5, best of 5", 2 * (2 * 2 + 6 + 2 * 20)),
        ("lr 0.1, best of 5", 2 * (2 + 2 * 6 + 2 * 20)),
    ]
    text = unfolded_of(board)
    assert "dropped at round 6" in text
    assert "seeds: 100 to 108 rounds, the same for all rows of a column but where settings tie at a rung." in text
    frame = tidy(part.collection.runs)
    assert sorted(frame[frame.state == "dropped"].dropped) == [2] * 4 + [6] * 6
    assert frame[frame.state == "dropped"].reached.tolist() == frame[frame.state == "dropped"].dropped.tolist()


def test_columns_with_more_seeds_have_a_larger_budget(store: Store, tmp_path: Path) -> None:
    grids = """grids:
  - axes: {lr: [0.001, 0.01, 0.1, 0.5, 1]}
  - {axes: {lr: [0.001, 0.01, 0.1, 0.5, 1], partition: ["classes:1"]}, seeds: [0, 1, 2]}
"""
    axes = "axes: {norm: [none, ln], lr: [0.001, 0.01, 0.1, 0.5, 1]}\n"
    (tmp_path / "columns.yaml").write_text(SWEEP.replace(axes, grids))
    sweep = load_sweep(tmp_path / "columns.yaml")
    finish(store, sweep)
    each = 2 * 2 + 6 + 2 * 20
    text = unfolded_of(build(parts_of(StoreSource(store), [sweep])))
    assert f"over all settings and seeds: {2 * each} to {3 * each} rounds, the same for all rows of a column." in text


@pytest.mark.parametrize("diverging", [[0.5], [0.1, 0.5]])
def test_the_report_says_where_all_kept_settings_diverged(
    store: Store, sweep: Sweep, monkeypatch: pytest.MonkeyPatch, diverging: list[float]
) -> None:
    """Two settings of none go on to the end."""
    for lr in diverging:
        monkeypatch.setitem(VALUES["none"], lr, (0.5, 0.6, None))
    go(store, sweep)
    hint = "In 1 of 2 cells every setting that went on diverged with a seed: a larger `keep` takes more to the end."
    text = unfolded_of(build(parts_of(StoreSource(store), [sweep])))
    assert (hint in text) == ("| fedavg | none | 2/2 diverged<br>none complete of 5 |" in text) == (len(diverging) == 2)


def test_status_and_dry_run_count_dropped_runs_as_ended(store: Store, sweep: Sweep) -> None:
    directory = write_plan(store, sweep)
    go(store, sweep, most=19)
    progress = Watch(store, Plan.of(sweep.experiments), 3, sweep.search).update()
    assert (progress.dropped, progress.done, progress.waiting, progress.pending) == (4, 1, 8, 7)
    go(store, sweep)
    status = SweepStatus(store, directory)
    status.update(0)
    states = status.progress.states
    assert {state: count for state, count in states.items() if count} == {"done": 8, "diverged": 2, "dropped": 10}
    assert (status.progress.share, status.is_open) == (1, False)
    facts = summary(sweep, finished_runs(sweep, store.root), 1)
    assert (facts["done"], facts["missing"], facts["estimated_seconds"]) == (20, 0, 0)
    expected = 2 * 2 * (5 * 2 + 3 * 4 + 2 * 14)
    assert (facts["search"]["settings"], facts["search"]["expected_rounds"]) == ([[5, 3, 2]], expected)
    assert facts["search"]["largest_rounds"] == 20 * 20


def test_a_failed_run_holds_up_no_race(store: Store, sweep: Sweep) -> None:
    finish_all = [run for run in sweep.experiments if run.lr != 0.5]  # type: ignore[attr-defined]
    for run in set(sweep.experiments) - set(finish_all):
        attempt = claim(store, run)
        attempt.end("error", "the user's mistake", user_fixable=True)
    go(store, sweep)
    found = reached(store, sweep)
    assert [found["none", lr] for lr in (0.001, 0.01, 0.1, 0.5, 1)] == [[2, 2], [20, 20], [20, 20], [0, 0], [6, 6]]


def test_a_damaged_search_is_refused(store: Store, sweep: Sweep) -> None:
    directory = write_plan(store, sweep)
    assert read_search(directory) == sweep.search == Halving(("lr",), ((2, 6, 20),), Fraction(1, 2), "val_acc")
    (directory / "search.json").write_text(json.dumps({**sweep.search.to_json(), "keep": "3/2"}))
    with pytest.raises(StoreUnusable, match=r"search.json: the plan cannot be read \(it is damaged\)"):
        read_search(directory)
    status = SweepStatus(store, directory)
    status.update(0)
    assert "search.json: the plan cannot be read (it is damaged)" in status.problem


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("search.axis=lrr", "search.axis: unknown field 'lrr' of an experiment; did you mean 'lr'?"),
        ("search.axis=momentum", "search.axis: nothing to choose: no two cells differ in momentum alone"),
        ("search.axis=rounds", "search.axis: rounds is no hyper-parameter, expected one such as lr or method.mu"),
        ("search.axis=norm", "search.axis: norm is in the report's rows or columns, which a search would drop"),
        ("search.axis=depth", "search.axis: unknown field 'depth' of these experiments"),
        ("axes.lr=[0.1]", "search.axis: nothing to choose: no two cells differ in lr alone"),
        (
            "search.rungs=[6,2,20]",
            "search.rungs: expected two or more increasing numbers of rounds, as in [10, 30, 100]",
        ),
        ("search.rungs=[20]", "search.rungs: expected two or more increasing numbers of rounds"),
        (
            "search.rungs=[2,10]",
            "search.rungs: expected the rounds of all runs, 20, as the last, got 10; without rungs, each number of "
            "rounds has its own",
        ),
        ("rounds=40", "search.rungs: expected the rounds of all runs, 40, as the last, got 20"),
        ("eval_every=4", "search.rungs: no run is evaluated after round 2: eval_every is 4"),
        ("search.keep=1", "search.keep: expected a share between 0 and 1, as 1/3 or 0.5, got 1"),
        ("search.keep=3/2", "search.keep: expected a share between 0 and 1, as 1/3 or 0.5, got '3/2'"),
        ("search.keep=1/0", "search.keep: expected a share between 0 and 1, as 1/3 or 0.5, got '1/0'"),
        ("search.select_by=oracle", "search.select_by: expected 'val', 'val-tail' or 'last', got 'oracle'"),
        ("val_fraction=0", "search.select_by: val needs held-out data: set val_fraction, for example to 0.1, in base"),
        ("search.keeps=1/3", "search.keeps: unknown key 'keeps'; did you mean 'keep'?"),
    ],
)
def test_mistakes_are_named_with_their_place(sweep: Sweep, change: str, message: str) -> None:
    with pytest.raises(SpecError) as error:
        load_sweep(sweep.path, [change])
    assert message in str(error.value)
    assert "search.yaml:" in str(error.value) or "--set" in str(error.value)


def test_the_search_is_part_of_the_plans_name_and_rungs_have_defaults(sweep: Sweep) -> None:
    whole = load_sweep(sweep.path, ["search=null"])
    other = load_sweep(sweep.path, ["search.keep=1/3"])
    assert len({sweep.spec_hash, whole.spec_hash, other.spec_hash}) == 3
    assert [run.run_id for run in sweep.experiments] == [run.run_id for run in whole.experiments]
    default = load_sweep(sweep.path, ["search={axis: lr}", "rounds=200", "eval_every=10"]).search
    assert default == Halving(("lr",), ((20, 80, 200),), Fraction(2, 5), "val_acc")


def test_races_with_other_numbers_of_rounds_have_their_own_rungs(store: Store, tmp_path: Path) -> None:
    """Half the rounds with twice the local steps: each column is searched at a tenth and two fifths of its rounds."""
    text = SWEEP.replace("search: {axis: lr, rungs: [2, 6, 20], keep: 1/2}", "search: {axis: lr, keep: 1/2}")
    text = text.replace("rounds: 20, eval_every: 2, ", "")
    text = text.replace("seeds:", "zip: {E: [1, 2], rounds: [40, 20], eval_every: [4, 2]}\nseeds:")
    (tmp_path / "lengths.yaml").write_text(text.replace("axes: {norm: [none, ln]", "axes: {norm: [none]"))
    sweep = load_sweep(tmp_path / "lengths.yaml", ["report.cols=[E]"])
    assert sweep.search == Halving(("lr",), ((2, 8, 20), (4, 16, 40)), Fraction(1, 2), "val_acc")
    go(store, sweep)
    one, two = ({0.001: 4, 0.01: 16, 0.1: 40, 0.5: 40, 1: 4}, {0.001: 2, 0.01: 8, 0.1: 20, 0.5: 20, 1: 2})
    found = reached(store, sweep)
    assert found == {("none", lr): [one[lr]] * 2 + [two[lr]] * 2 for lr in one}
    board = build(parts_of(StoreSource(store), [sweep]))
    assert [cost["budget"] for cost in to_json(board)["details"]] == [sum(one.values()) * 2, sum(two.values()) * 2]
    assert "after 2, 8 of 20; 4, 16 of 40 rounds the best 1/2" in unfolded_of(board)
    status = SweepStatus(store, write_plan(store, sweep))
    status.update(0)
    assert (status.progress.share, status.is_open) == (1, False)
    facts = summary(sweep, finished_runs(sweep, store.root), 1)
    assert facts["search"]["expected_rounds"] == 2 * (5 * 4 + 3 * 12 + 2 * 24) * 3 // 2
    with pytest.raises(SpecError, match="expected the rounds of all runs, 40, as the last, got 20; without rungs"):
        load_sweep(sweep.path, ["search.rungs=[2,8,20]"])
    with pytest.raises(
        SpecError, match="expected the same rounds for all values of lr in a row and column, got 20 and 40"
    ):
        load_sweep(sweep.path, ["axes={norm: [none]}", "zip={lr: [0.1, 0.2], rounds: [20, 40]}", "search={axis: lr}"])


@pytest.mark.slow
def test_a_searched_training_has_the_records_of_a_whole_one(tmp_path: Path) -> None:
    """With two workers, on digits: kept runs have all records of the whole sweep, dropped ones its first."""
    base = "{dataset: digits, model: {name: mlp, widths: [8]}, rounds: 8, eval_every: 2, E: 2, val_fraction: 0.1}"
    text = f"version: 1\nname: real\nbase: {base}\naxes: {{lr: [0.001, 0.1, 0.5, 1]}}\nseeds: [0, 1]\n"
    (tmp_path / "real.yaml").write_text(text)
    search = "search={axis: lr, rungs: [2, 4, 8]}"
    whole = api.sweep(tmp_path / "real.yaml", store=tmp_path / "whole", workers=1)
    searched = api.sweep(tmp_path / "real.yaml", store=tmp_path / "searched", workers=2, sets=[search])
    assert searched.state.tolist().count("dropped") == 6
    assert set(searched.dropped.dropna()) == {2, 4}

    def curve(store: str, run_id: str) -> list[dict[str, Any]]:
        return [{**record, "seconds": 0} for record in Store(tmp_path / store).run(run_id).metrics()]

    for run_id, dropped in zip(searched.run_id, searched.dropped.fillna(8), strict=True):
        expected = [record for record in curve("whole", run_id) if record["round"] <= dropped]
        assert curve("searched", run_id) == expected
    assert sorted(whole.run_id) == sorted(searched.run_id)
