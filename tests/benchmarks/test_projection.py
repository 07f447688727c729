from __future__ import annotations

import pytest

from benchmarks.projection import groups, project, table10_groups
from flbench.bench.timing import seeds_of
from flbench.worker import group_key
from tests.benchmarks.tiny import tiny


def test_projection_of_10_000_rounds() -> None:
    for runs in (1, 2):
        case = tiny(repeats=1)
        done = project(case, seeds_of(case.experiment, runs))
        expected = 10_000 * done.round_s.median + 100 * runs * done.evaluation_s.median
        assert (done.runs, done.peak_bytes, done.seconds) == (runs, None, pytest.approx(expected))
        assert done.row("tiny", "fp32")["s a run"] == pytest.approx(expected / runs)


def test_one_run_and_a_full_stack_are_projected() -> None:
    assert [(name, len(group)) for name, group in groups(tiny())] == [("tiny", 1), ("tiny", 15)]


def test_projected_groups_of_table_10_hold_all_its_runs() -> None:
    found = list(table10_groups("tf32"))
    runs = [run for _, group in found for run in group]
    assert len(found) == 27 and len({run.run_id for run in runs}) == 81
    assert all(len({group_key(run.to_json()) for run in group}) == 1 for _, group in found)
    assert {run.precision for run in runs} == {"tf32"}
    assert "fedavg, none, E=1" in dict(found)
