"""``flbench logs``, ``cancel`` and ``retry`` on a store whose workers are toys, as processes or not there at all."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from flbench.cli import app
from flbench.cli.logs import RunLog
from flbench.cli.targets import find_plans
from flbench.config import Experiment
from flbench.errors import UserError
from flbench.store import Attempt, CancelMark, Entry, Lease, Plan, Store, encode_plan
from flbench.worker import Options, work
from tests.faults.stub import ROOT, OneByOne, execute, experiments, orchestrate, recorded, undisturbed
from tests.limits import wait_until
from tests.report.stores import claim, finish
from tests.warm import warm_python

ROUNDS = 200


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("FLBENCH_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("STUB_PAUSE", "0")
    return Store(tmp_path / "store")


def plan_toy(store: Store, plan: Sequence[Experiment], name: str = "toy/abc") -> Path:
    directory = store.sweeps / name
    directory.mkdir(parents=True)
    (directory / "plan.jsonl").write_bytes(encode_plan(plan))
    return directory


def flbench(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


def dead() -> Lease:
    return Lease(**{**Lease.here().to_json(), "pid": 2**22 + 1})


@pytest.fixture
def slow_sweep(store: Store, monkeypatch: pytest.MonkeyPatch) -> list[Experiment]:
    """A detached sweep of two runs with two workers, both of which have begun."""
    monkeypatch.setenv("STUB_PAUSE", "0.05")
    plan = experiments(2, rounds=ROUNDS)
    monkeypatch.chdir(ROOT)
    orchestrate(store, plan, detach=True)
    wait_until(lambda: all(store.run(one.run_id).state(one).status == "running" for one in plan))
    wait_until(lambda: recorded(store) >= 4)
    return plan


def test_cancelled_sweep_continues(store: Store, slow_sweep: list[Experiment], monkeypatch: pytest.MonkeyPatch) -> None:
    result = flbench("cancel", "toy")
    assert result.exit_code == 0
    assert "cancelled; asked 2 workers on this machine to stop" in result.stdout
    assert not store.live_workers()
    states = [store.run(one.run_id).state(one) for one in slow_sweep]
    assert [(state.status, state.kind, state.failures) for state in states] == [("pending", "interrupted", 0)] * 2
    monkeypatch.setenv("STUB_PAUSE", "0")
    assert orchestrate(store, slow_sweep).progress.done == 2
    for one in slow_sweep:
        run = store.run(one.run_id)
        assert run.metrics(run.result_for(one)) == undisturbed(one)
        assert [attempt.number for attempt in run.attempts()] == [1, 2]


def test_the_mark_alone_stops_workers(store: Store, slow_sweep: list[Experiment]) -> None:
    """As on another host, where no signal goes."""
    (directory,) = store.sweep_dirs()
    CancelMark(store.sweeps / f"toy/{directory.name}").put("me")
    wait_until(lambda: not store.live_workers())
    assert {store.run(one.run_id).state(one).status for one in slow_sweep} == {"pending"}


def test_the_mark_stops_an_orchestrator(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STUB_PAUSE", "0.02")
    monkeypatch.chdir(ROOT)
    command = [warm_python(), "-m", "tests.faults.stub", "sweep", str(store.root), "3", str(ROUNDS)]
    sweep = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    wait_until(lambda: recorded(store) >= 2)
    assert json.loads(flbench("cancel", "toy", "--json").stdout)["busy"] == 0
    sweep.communicate(timeout=120)
    assert sweep.returncode == 3
    assert not store.live_workers()


def test_cancel_one_run_of_two(store: Store, slow_sweep: list[Experiment], monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = slow_sweep
    result = flbench("cancel", first.run_id[:8])
    assert f"{first.run_id}: stopping" in result.stdout
    state = store.run(first.run_id).state(first)
    assert (state.status, state.kind, state.claimable()) == ("failed", "cancelled", False)
    assert store.run(second.run_id).state(second).status == "running"
    assert flbench("cancel", first.run_id).stdout == f"{first.run_id}: not running\n"
    assert "(1 cancelled)" in flbench("retry", first.run_id).stdout
    assert store.run(first.run_id).state(first).claimable()
    flbench("cancel", "toy")


def test_cancel_one_of_a_group_that_is_trained_together(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them checkpoint; the others go on at once, in the same worker."""
    monkeypatch.setattr("flbench.store.cancel.CHECK_SECONDS", 0.0)
    plan = experiments(3, rounds=ROUNDS)
    groups = []

    class Together(OneByOne):
        def group_size(self, experiment: Experiment) -> int:
            return 3

        def execute(self, group: Sequence[Attempt], **options: Any) -> None:
            groups.append([attempt.experiment.seed for attempt in group])
            if len(groups) == 1:
                CancelMark(group[1].path).put("me")
            super().execute(group, **options)

    work(store, Plan.of(plan), Lease.here(), Options(), should_stop=lambda: False, load=lambda _: Together())
    assert groups == [[0, 1, 2], [0, 2]]
    ends = [[end["kind"] for one in store.run(run.run_id).attempts() if (end := one.exit())] for run in plan]
    assert ends == [["interrupted", "ok"], ["cancelled"], ["interrupted", "ok"]]


def test_what_has_not_begun_or_has_ended_is_not_asked_to_stop(store: Store) -> None:
    finished, pending = experiments(2)
    finish(store, finished)
    directory, _ = plan_toy(store, [finished]), plan_toy(store, [pending], "other/abc")
    assert flbench("cancel", "toy").stdout == "toy/abc: done; nothing to cancel\n"
    assert not CancelMark(directory).is_set()
    assert flbench("cancel", finished.run_id).stdout == f"{finished.run_id}: done\n"
    assert flbench("cancel", pending.run_id[:4]).stdout == f"{pending.run_id}: cancelled\n"
    assert store.claim(pending, Lease.here()) is None


@pytest.mark.parametrize("command", ["logs", "cancel", "retry"])
def test_names_that_match_no_run_or_several_are_reported(store: Store, command: str) -> None:
    for one in experiments(40):
        claim(store, one).end("oom")
    message = str(flbench(command, "").exception)
    assert "expected a sweep file, the name of a sweep, or the beginning of a run's id" in message
    digits = next(d for d in "0123456789abcdef" if len(store.ids_beginning_with(d)) > 1)
    result = flbench(command, digits)
    assert isinstance(result.exception, UserError)
    found = store.ids_beginning_with(digits)
    assert str(result.exception).startswith(f"{digits}: {len(found)} ids of runs begin with it: {found[0]}, {found[1]}")
    for hostile in ("../../etc", "a\x1b[31m", "nosuch.yaml", "toy/../../x"):
        result = flbench(command, hostile)
        assert isinstance(result.exception, UserError)
        assert "\x1b" not in str(result.exception)


def test_a_plan_is_found_by_its_hash_and_a_changed_file_lists_the_plans(store: Store, tmp_path: Path) -> None:
    for digits in ("abc1", "abd2"):
        plan_toy(store, experiments(1), f"toy/{digits}")
    assert [path.name for path in find_plans(store, "toy")] == ["abc1", "abd2"]
    assert [path.name for path in find_plans(store, "toy/abc")] == ["abc1"]
    assert find_plans(store, "toy/") == find_plans(store, "to") == []
    (tmp_path / "toy.yaml").write_text("version: 1\nname: toy\naxes: {lr: [0.1, 0.2]}\n")
    message = str(flbench("cancel", str(tmp_path / "toy.yaml")).exception)
    assert message.endswith("with other contents or options it was: toy/abc1, toy/abd2")


def test_retry_selects_by_kind_and_by_cell(store: Store) -> None:
    plan = [*experiments(1, norm="ln"), *experiments(1), *experiments(1, lr=0.3)]
    plan_toy(store, plan)
    claim(store, plan[0]).end("oom")
    claim(store, plan[1]).end("error", "broken")
    claim(store, plan[2], dead())
    unknown = flbench("retry", "toy", "--failed", "timeout")
    assert str(unknown.exception) == ("--failed timeout: nothing here failed so; there are: error, lost, oom")
    assert "nothing failed" in flbench("retry", "toy", "--only", "norm=gn").stdout
    assert isinstance(flbench("retry", "toy", "--only", "nrm=gn").exception, UserError)
    raw = json.loads(flbench("retry", "toy", "--only", "norm=ln", "--json").stdout)
    assert raw["forgiven"] == [{"run_id": plan[0].run_id, "kind": "oom"}]
    assert "2 runs may be tried again (1 error, 1 lost)" in flbench("retry", "toy").stdout
    for one in plan:
        state = store.run(one.run_id).state(one)
        assert (state.failures, state.claimable(1), state.attempts) == (0, True, 1)  # the history stays
    assert "nothing failed" in flbench("retry", "toy").stdout


def test_logs_show_every_attempt(store: Store) -> None:
    (one,) = experiments(1)
    first = claim(store, one)
    first.log("something \x1b[31mred")
    first.end("oom", "MemoryError", 3)
    lost = dead()
    claim(store, one, lost)
    (store.workers / lost.token).mkdir()
    (store.workers / lost.token / "log.txt").write_text("Killed\n")
    claim(store, one).log("goes on")
    lines = flbench("logs", one.run_id[:6]).stdout.splitlines()
    assert lines[0].startswith(f"== attempt 1 at run {one.run_id} on ")
    assert lines[1].endswith("something \\x1b[31mred")
    assert lines[2] == "== attempt 1 ended: oom after round 3: MemoryError"
    assert lines[4:7] == ["== attempt 2 was lost: its worker died", "the log of its worker ends with:", "Killed"]
    assert lines[8].endswith("goes on")
    assert len(lines) == 9


def test_logs_of_a_sweep_show_failed_and_logging_attempts(store: Store) -> None:
    well, ill = experiments(2)
    plan_toy(store, [well, ill])
    attempt = claim(store, well)
    execute(well, attempt, should_stop=lambda: False)
    attempt.end("ok")
    claim(store, ill).end("error", "broken")
    lines = flbench("logs", "toy").stdout.splitlines()
    assert len(lines) == 2
    assert all(line.startswith(f"{ill.run_id} == attempt 1 ") for line in lines)


def test_logs_of_a_sweep_without_any_say_so(store: Store) -> None:
    (well,) = experiments(1)
    plan_toy(store, [well])
    claim(store, well).end("ok")
    result = flbench("logs", "toy")
    assert (result.stdout, result.exit_code) == ("", 0)
    assert "no run logged anything or failed" in result.stderr


def test_follow_continues_across_attempts_until_the_end(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flbench.cli.logs.PERIOD", 0.01)
    (one,) = experiments(1)
    first = claim(store, one)
    first.log("first")

    def act() -> None:
        time.sleep(0.1)
        first.record({"round": 5, "acc": 0.5})
        first.end("interrupted", round=5)
        time.sleep(0.1)
        second = claim(store, one)
        execute(one, second, should_stop=lambda: False)
        second.log("second")
        second.end("ok", round=20)

    thread = threading.Thread(target=act)
    thread.start()
    result = flbench("logs", one.run_id, "-f")
    thread.join()
    assert result.exit_code == 0
    output = result.stdout
    assert output.index("first") < output.index("round 5/20, acc 50.0 %") < output.index("attempt 1 ended: interrupted")
    assert output.index("attempt 1 ended") < output.index("== attempt 2 at") < output.index("round 20/20")
    assert output.endswith("== attempt 2 ended: ok after round 20\n")
    assert output.count("round 5/20") == 1


def test_an_attempt_begun_after_the_state_was_read_is_not_lost(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    (one,) = experiments(1)
    claim(store, one).end("interrupted", round=5)
    run = store.run(one.run_id)
    log = RunLog(store, Entry.of(one), follow=True)
    before = run.state(one)
    second = claim(store, one)
    log.print_news(before)
    second.end("ok", round=20)
    log.print_news(run.state(one))
    output = capsys.readouterr().out
    assert "lost" not in output
    assert output.endswith("== attempt 2 ended: ok after round 20\n")


def test_follow_ends_without_workers(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flbench.cli.logs.PERIOD", 0.01)
    monkeypatch.setattr("flbench.cli.logs.PATIENCE", 0.1)
    (one,) = experiments(1)
    claim(store, one).end("oom", "MemoryError")
    assert flbench("logs", one.run_id, "-f").stdout.endswith("== attempt 1 ended: oom: MemoryError\n")


@pytest.mark.parametrize(("by", "code"), [("ctrl-c", 130), ("closed pipe", 0)])
def test_following_ends_quietly(store: Store, by: str, code: int) -> None:
    (one,) = experiments(1)
    (attempt := claim(store, one)).log("begun")
    command = [warm_python(), "-c", "from flbench.cli import main; main()", "logs", one.run_id, "-f"]
    with subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        process.stdout.readline()
        if by == "ctrl-c":
            process.send_signal(signal.SIGINT)
            assert process.stdout.read() == ""
        else:
            process.stdout.close()
            attempt.log("more")
        assert (process.wait(timeout=120), process.stderr.read()) == (code, "")
