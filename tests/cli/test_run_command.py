from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from flbench.cli import app
from flbench.cli.run_curve import RunCurve, picture, record_line
from flbench.errors import UserError
from flbench.planning import prepare_runs
from flbench.progress import Watch
from flbench.store import Entry, Lease, Store
from flbench.sweeps import experiment_from
from tests.faults.stub import undisturbed

pytestmark = pytest.mark.usefixtures("toy_workers")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["run", "--device", "cpu", *arguments])


def test_run_prints_every_evaluation_and_the_path_of_the_files(tmp_path: Path) -> None:
    result = run("norm=ln", "rounds=20", "eval_every=5")
    experiment = experiment_from(["norm=ln", "rounds=20", "eval_every=5"])
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert [line.partition(",")[0] for line in lines[:4]] == [f"round {round}/20" for round in (5, 10, 15, 20)]
    final = undisturbed(experiment)[-1]["acc"]
    assert lines[4] == f"round 20, acc {100 * final:.2f} %"
    assert lines[5] == f"Files: {Store(tmp_path / 'store').run(experiment.run_id).path}"


def test_a_field_is_the_same_with_set_and_without() -> None:
    plain, option = run("norm=ln", "rounds=2", "--json"), run("--set", "norm=ln", "rounds=2", "--json")
    assert json.loads(plain.stdout)["run_id"] == json.loads(option.stdout)["run_id"]
    error = run("norm=ln", "--set", "norm=rms").exception
    assert isinstance(error, UserError) and "norm is given twice" in str(error)


def test_a_finished_run_is_extended_but_not_repeated(tmp_path: Path) -> None:
    run("rounds=20", "eval_every=5")
    again = run("rounds=20", "eval_every=5", "--json")
    found = json.loads(again.stdout)
    assert (found["status"], found["rounds"], found["computed"], found["exit_code"]) == ("done", 20, False, 0)
    assert "finished before" in again.stderr
    longer = json.loads(run("rounds=40", "eval_every=5", "--json").stdout)
    assert (longer["rounds"], longer["computed"], longer["run_id"]) == (40, True, found["run_id"])
    executed = tmp_path.glob("store/runs/*/*/attempts/*/executed")
    assert sum(len(path.read_text().split()) for path in executed) == 40
    shorter = run("rounds=10", "eval_every=5").stdout
    assert [line.partition(",")[0] for line in shorter.splitlines() if line.startswith("round ")] == ["round 10"]
    assert json.loads(run("rounds=10", "eval_every=5", "--json").stdout)["final"]["round"] == 10
    (spec := tmp_path / "one.yaml").write_text("version: 1\nname: one\nbase: {rounds: 10, eval_every: 5}\n")
    swept = CliRunner().invoke(app, ["sweep", str(spec), "--backend", "inline", "--json"])
    assert json.loads(swept.stdout)["launched"] == 0, "sweep and run share their runs"


def test_a_run_that_is_executed_again_does_not_show_its_earlier_result(tmp_path: Path) -> None:
    run("rounds=20", "eval_every=5")
    request, store = experiment_from(["rounds=20", "eval_every=5"]), Store(tmp_path / "store")
    console, watch = Console(width=200, file=StringIO()), Watch(store, [Entry.of(request)], 1)
    shown = RunCurve(console, store.run(request.run_id), request)
    prepare_runs(store, [request], rerun=True)
    shown.update(watch.update())
    assert console.file.getvalue() == ""  # type: ignore[attr-defined]


def test_failure_has_exit_code_1_and_is_tried_again_next_time() -> None:
    for _ in range(2):
        result = run("lr=0.101", "--json")
        found = json.loads(result.stdout)
        assert (result.exit_code, found["status"], found["kind"], found["computed"]) == (1, "failed", "error", True)
    assert "RuntimeError: the toy is broken (log: " in result.stderr


def test_an_executor_that_cannot_train_the_run_is_refused_before_it(tmp_path: Path) -> None:
    error = run("norm=fedtan", "--executor", "loop").exception
    assert isinstance(error, UserError) and error.exit_code == 2
    assert str(error) == "--executor loop: the clients of fedtan take each step together; use auto or stacked"
    assert not (tmp_path / "store").exists()


def shown(records: list[dict[str, object]], width: int, speed: str = "") -> list[str]:
    file = StringIO()
    Console(width=width, no_color=True, file=file).print(picture(records, 100, width, speed))  # type: ignore[arg-type]
    return file.getvalue().splitlines()


@pytest.mark.parametrize("width", [80, 200])
def test_the_curve_and_the_newest_numbers_fit_the_terminal(width: int) -> None:
    records = [{"round": round, "acc": round / 200, "loss": 2.0, "seconds": 1.5} for round in range(10, 90, 10)]
    lines = shown(records, width, "12 rounds/s, ETA 1.7 s")
    assert max(map(len, lines)) <= width
    assert lines[-2:] == ["round 80/100, acc 40.0 %, loss 2.0000, 1.5 s", "12 rounds/s, ETA 1.7 s"]
    assert [line[:7] for line in lines[:11:5]] == ["100 % ┤", " 50 % ┤", "      └"]
    assert shown([], width)[-1] == "preparing data and model ..."


def test_rounds_between_evaluations_are_shown(tmp_path: Path) -> None:
    request = experiment_from(["rounds=100", "eval_every=10"])
    store = Store(tmp_path / "store")
    attempt = store.claim(request, Lease.here())
    assert attempt is not None
    attempt.record({"round": 0, "acc": 0.1})
    attempt.show_round(6)
    assert attempt.shown_round() == 0, "the first seconds write nothing"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("flbench.store.claims.SHOWN_SECONDS", 0)
        attempt.show_round(7)
    watch = Watch(store, [Entry.of(request)], 1)
    seen = watch.update()
    assert [(one.round, one.value) for one in seen.active] == [(7, 0.1)]
    console = Console(width=200, file=StringIO())
    shown = RunCurve(console, store.run(request.run_id), request)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("flbench.cli.run_curve.SUMMARY", -1)
        shown.update(replace(seen, rounds_per_second=0.5))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert lines[0].startswith("round 0/100, acc 10.0 %, ETA ")
    assert lines[1].startswith("round 7/100 (next evaluation at 10), ETA ")
    (attempt.path / "round.txt").write_text("9" * 50)
    assert attempt.shown_round() == 0, "damaged"


def test_the_summary_of_an_evaluation_has_each_number_once() -> None:
    record = {"round": 4, "acc": 0.5, "loss": 0.25, "train_loss": 0.5, "rank": 3.0, "seconds": 1.0}
    assert record_line(record, 8) == "round 4/8, acc 50.0 %, rank 3, loss 0.2500, train_loss 0.5000, 1.0 s"
    assert record_line(record, 8, "loss") == "round 4/8, loss 0.25, rank 3, train_loss 0.5000, 1.0 s"
    assert record_line(record, 0, "rank") == "rank 3, loss 0.2500, train_loss 0.5000, 1.0 s"
