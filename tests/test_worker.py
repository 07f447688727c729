from __future__ import annotations

import errno
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from flbench.config import Experiment
from flbench.errors import StoreUnusable
from flbench.store import Attempt, Lease, Plan, Store, encode_plan
from flbench.worker import Options, environment, kind_of, main, work
from tests.faults.stub import Done, OneByOne, execute, experiments, undisturbed

#: Learning rates with which a stub run fails.
BROKEN, DISK_FULL, NO_DATA = 0.101, 0.104, 0.105


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STUB_PAUSE", "0")


def go(
    store: Store, plan: list[Experiment], run: Any = execute, stop: Callable[[], bool] = lambda: False, **options: Any
) -> int:
    return work(store, Plan.of(plan), Lease.here(), Options(**options), should_stop=stop, load=lambda _: OneByOne(run))


def exit_of(store: Store, experiment: Experiment) -> dict[str, Any]:
    return store.run(experiment.run_id).attempts()[-1].exit() or {}


def test_every_run_of_the_plan_is_executed_once(store: Store) -> None:
    plan = experiments(5)
    assert go(store, plan) == 5
    for experiment in plan:
        run = store.run(experiment.run_id)
        assert run.metrics() == undisturbed(experiment)
        assert [attempt.number for attempt in run.attempts()] == [1]
        assert exit_of(store, experiment)["kind"] == "ok"
    assert go(store, plan) == 0


def test_workers_start_at_their_offset_and_keep_the_order(store: Store) -> None:
    order: list[int] = []

    def note(experiment: Experiment, attempt: Attempt, **options: Any) -> Done:
        order.append(experiment.seed)
        return execute(experiment, attempt, **options)

    go(store, experiments(5), note, offset=2)
    assert order == [2, 3, 4, 0, 1]


def test_engine_is_loaded_once_and_only_if_there_is_work(store: Store) -> None:
    loads: list[Options] = []

    def load(options: Options) -> Any:
        loads.append(options)
        return OneByOne()

    entries = Plan.of(experiments(3))
    for _ in range(2):
        work(store, entries, Lease.here(), Options(pool=3), should_stop=lambda: False, load=load)
    assert loads == [Options(pool=3)]


def test_a_failure_is_classified_logged_and_retried(store: Store) -> None:
    broken, sound = experiments(1, lr=BROKEN)[0], experiments(1)[0]
    assert go(store, [broken, sound], max_attempts=2) == 3
    state = store.run(broken.run_id).state(broken)
    assert (state.status, state.kind, state.message) == ("failed", "error", "RuntimeError: the toy is broken")
    assert state.attempts == 2
    log = store.run(broken.run_id).attempts()[-1].log_path.read_text()
    assert "Traceback" in log
    assert "the toy is broken" in log
    assert store.run(sound.run_id).state(sound).status == "done"


def test_a_users_mistake_is_one_message_and_not_retried(store: Store) -> None:
    (experiment,) = experiments(1, lr=NO_DATA)
    assert go(store, [experiment]) == 1
    state = store.run(experiment.run_id).state(experiment)
    assert (state.kind, state.message, state.user_fixable) == ("error", "the toy's data are not there", True)
    log = store.run(experiment.run_id).attempts()[-1].log_path.read_text()
    assert "Traceback" not in log


def test_full_disk_stops_the_worker(store: Store) -> None:
    full, sound = experiments(1, lr=DISK_FULL)[0], experiments(1)[0]
    with pytest.raises(StoreUnusable, match="disk is full"):
        go(store, [full, sound])
    assert exit_of(store, full)["kind"] == "disk_full"
    assert store.run(full.run_id).state(full).user_fixable
    assert store.run(sound.run_id).state(sound).status == "pending"


def test_run_that_publishes_nothing_is_an_error(store: Store) -> None:
    (experiment,) = experiments(1)
    go(store, [experiment], lambda *_, **__: Done("done", 20), max_attempts=1)
    assert "published no result" in exit_of(store, experiment)["message"]


def test_a_stopped_worker_ends_its_round_and_starts_no_run(store: Store) -> None:
    plan = experiments(2)
    seen: list[int] = []

    def stop() -> bool:
        seen.append(1)
        return len(seen) > 4

    assert go(store, plan, stop=stop) == 1
    ended = exit_of(store, plan[0])
    assert (ended["kind"], ended["round"]) == ("interrupted", 4)
    assert store.run(plan[1].run_id).attempts() == []
    assert go(store, plan) == 2
    for experiment in plan:
        assert store.run(experiment.run_id).metrics() == undisturbed(experiment)
    assert (store.run(plan[0].run_id).attempts()[-1].path / "executed").read_text().split()[0] == "5"


def test_a_batch_that_is_stopped_leaves_its_other_runs_as_they_were(store: Store) -> None:
    plan = experiments(40, rounds=4)
    done: list[int] = []

    def note(experiment: Experiment, attempt: Attempt, **options: Any) -> Done:
        done.append(experiment.seed)
        return execute(experiment, attempt, **options)

    assert go(store, plan, note, stop=lambda: len(done) == 5, offset=1, workers=3) == 5
    states = [store.run(one.run_id).state(one) for one in plan]
    assert done == [1, 8, 9, 10, 11]
    assert [number for number, state in enumerate(states) if state.status != "pending"] == done[:-1]
    assert {state.status for number, state in enumerate(states) if number not in done} == {"pending"}
    go(store, plan, note, offset=2, workers=3)
    assert sorted({*done}) == list(range(40))
    assert {store.run(one.run_id).state(one).status for one in plan} == {"done"}


def test_interpreter_shutdown_leaves_the_run_resumable(store: Store) -> None:
    (experiment,) = experiments(1)

    def interrupt(*_: Any, **__: Any) -> Done:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        go(store, [experiment], interrupt)
    assert exit_of(store, experiment)["kind"] == "interrupted"


def test_runs_held_by_other_workers_are_skipped(store: Store) -> None:
    plan = experiments(2)
    assert store.claim(plan[0], Lease.here()) is not None
    assert go(store, plan) == 1
    assert store.run(plan[0].run_id).state(plan[0]).status == "running"


def test_library_log_goes_to_the_attempt(store: Store) -> None:
    (experiment,) = experiments(1)

    def talk(experiment: Experiment, attempt: Attempt, **options: Any) -> Done:
        logging.getLogger("flbench.engine").warning("a word of warning")
        return execute(experiment, attempt, **options)

    go(store, [experiment], talk)
    assert "a word of warning" in store.run(experiment.run_id).attempts()[0].log_path.read_text()
    assert logging.getLogger("flbench").handlers == []


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ValueError("x"), "error"),
        (MemoryError(), "oom"),
        (RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"), "oom"),
        (RuntimeError("CUDA out of memory. Tried to allocate"), "cuda_oom"),
        (OSError(errno.ENOSPC, "No space left on device"), "disk_full"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "disk_full"),
        (RuntimeError("PytorchStreamWriter failed: No space left on device"), "disk_full"),
        (OSError(errno.EACCES, "Permission denied"), "error"),
    ],
)
def test_kinds_of_failure(error: BaseException, kind: str) -> None:
    assert kind_of(error) == kind


def test_environment_names_code_and_machine(store: Store) -> None:
    (experiment,) = experiments(1)
    go(store, [experiment])
    written = store.run(experiment.run_id).attempts()[0].environment()
    assert written == json.loads(json.dumps(environment("cpu")))
    assert written["torch"]
    assert written["host"]
    assert written["gpu"] is None


def test_no_program_is_started_after_the_engine_is_loaded(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """SLURM counts a forked child's memory like its parent's until it executes another program."""
    environment.cache_clear()

    def load(options: Options) -> OneByOne:
        def refuse(*_: Any, **options: Any) -> NoReturn:
            raise AssertionError("a program is started")

        monkeypatch.setattr("subprocess.run", refuse)
        return OneByOne()

    (experiment,) = experiments(1)
    work(store, Plan.of([experiment]), Lease.here(), Options(), should_stop=lambda: False, load=load)
    assert exit_of(store, experiment)["kind"] == "ok"


def test_command_line_and_options_agree() -> None:
    options = Options(
        data_root=Path("/data"), executor="loop", pool=4, max_attempts=5, offset=1, workers=2, fuse=8, neighbours=2
    )
    assert options.to_argv() == [
        "--data-root=/data",
        "--device=cpu",
        "--executor=loop",
        "--pool=4",
        "--neighbours=2",
        "--max-attempts=5",
        "--offset=1",
        "--workers=2",
        "--fuse=8",
        "--memory=all",
    ]


def test_main_executes_a_plan_of_the_store(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("signal.signal", lambda *_: None)
    plan = experiments(2)
    directory = store.sweeps / "toy/abc"
    directory.mkdir(parents=True)
    (directory / "plan.jsonl").write_bytes(encode_plan(plan))
    got: list[Options] = []

    def load(options: Options) -> Any:
        got.append(options)
        return OneByOne()

    given = Options(pool=2, data_root=Path("/data"))
    assert main([str(store.root), "toy/abc", "--token=one", *given.to_argv()], load=load) == 0
    assert got == [given]
    assert store.run(plan[1].run_id).attempts()[0].lease().token == "one"  # type: ignore[union-attr]


def test_main_reports_a_missing_plan_without_traceback(
    store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("signal.signal", lambda *_: None)
    assert main([str(store.root), "toy/none"]) == 4
    assert "the plan cannot be read" in capsys.readouterr().err
