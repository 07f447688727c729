"""Runs that a worker trains together have separate directories, numbers, checkpoints and failures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from flbench import execution
from flbench.config import Experiment, parse_experiment
from flbench.engine import executors
from flbench.engine.federated import FederatedTrainer
from flbench.methods.base import Cohort, Context, Method, ServerContext, Tree, tmap
from flbench.registry import METHODS
from flbench.store import Lease, Plan, Store
from flbench.worker import Options, group_key, load_engine, work

SMALL: dict[str, Any] = {"model": {"name": "mlp", "widths": [8, 8]}, "clients": 4, "E": 2, "batch_size": 8}
LENGTH: dict[str, Any] = {"rounds": 6, "eval_every": 2, "partition": "classes:3"}


def experiment(**fields: Any) -> Experiment:
    return parse_experiment({**SMALL, **LENGTH, **fields})


def plan() -> list[Experiment]:
    """Return two kinds of runs, interleaved: four seeds each, at two learning rates."""
    return [
        experiment(norm=norm, seed=seed, lr=lr, method="scaffold")
        for seed in (0, 1)
        for lr in (0.01, 0.1)
        for norm in ("ln", "bn")
    ]


def go(store: Store, runs: list[Experiment], stop: Callable[[], bool] = lambda: False, **options: Any) -> int:
    return work(store, Plan.of(runs), Lease.here(), Options(**options), should_stop=stop)


def records(store: Store, run: Experiment) -> list[dict[str, Any]]:
    found = store.run(run.run_id).metrics(store.run(run.run_id).result_for(run))
    return [{key: value for key, value in record.items() if key != "seconds"} for record in found]


def groups_of(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Records the number of runs that train together in each step."""
    sizes: list[int] = []
    one_round = execution._one_round

    def note(running: Any, should_stop: Any, ended: Any) -> Any:
        sizes.append(len(running))
        return one_round(running, should_stop, ended)

    monkeypatch.setattr(execution, "_one_round", note)
    return sizes


def after(calls: int) -> Callable[[], bool]:
    left: Iterator[bool] = iter([False] * calls)
    return lambda: next(left, True)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """Return the records of every run of the plan, trained one at a time."""
    store = Store(tmp_path_factory.mktemp("alone"))
    assert go(store, plan(), fuse=1) == 8
    return {run.run_id: records(store, run) for run in plan()}


def test_a_fused_plan_has_the_numbers_of_the_runs_alone(
    tmp_path: Path, alone: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = groups_of(monkeypatch)
    store = Store(tmp_path)
    assert go(store, plan()) == 8
    assert set(sizes) == {4}, "the four of a norm train together"
    assert {run.run_id: records(store, run) for run in plan()} == alone
    for run in plan():
        (attempt,) = store.run(run.run_id).attempts()
        assert (attempt.exit() or {})["kind"] == "ok"
        assert attempt.checkpoint_files()


def test_a_stopped_group_resumes_in_other_groups(
    tmp_path: Path, alone: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)
    go(store, plan(), stop=after(4))
    assert all(store.run(run.run_id).result_for(run) is None for run in plan())
    sizes = groups_of(monkeypatch)
    go(store, plan(), fuse=3)
    assert set(sizes) == {3, 1}
    assert {run.run_id: records(store, run) for run in plan()} == alone
    assert any("resumed" in a.log_path.read_text() for run in plan() for a in store.run(run.run_id).attempts()[1:])


def test_a_diverging_run_ends_alone(tmp_path: Path) -> None:
    store = Store(tmp_path)
    runs = [experiment(seed=0), experiment(seed=1, lr=1e30), experiment(seed=2)]
    go(store, runs)
    results = [store.run(run.run_id).result_for(run) for run in runs]
    assert [result and result.status for result in results] == ["done", "diverged", "done"]
    calm = Store(tmp_path / "calm")
    go(calm, [runs[0], runs[2]], fuse=1)
    assert [records(store, runs[k]) for k in (0, 2)] == [records(calm, runs[k]) for k in (0, 2)]


def test_a_run_that_cannot_start_ends_alone(tmp_path: Path) -> None:
    store = Store(tmp_path)
    runs = [experiment(seed=0), experiment(seed=1, partition="dirichlet:1", min_size=360), experiment(seed=2)]
    go(store, runs)
    states = [store.run(run.run_id).state(run) for run in runs]
    assert [state.status for state in states] == ["done", "failed", "done"]
    assert "min_size" in states[1].message


def test_runs_whose_data_are_missing_are_not_claimed(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    runs = [experiment(dataset={"name": "folder", "path": str(tmp_path / "none")}, seed=seed) for seed in range(3)]
    go(store, [*runs, experiment()])
    assert [*store.run_ids()] == [experiment().run_id]
    assert store.run(experiment().run_id).result_for(experiment()) is not None, "the worker went on"


def test_longer_runs_continue_when_shorter_runs_end(tmp_path: Path) -> None:
    store = Store(tmp_path)
    runs = [experiment(seed=0, rounds=2), experiment(seed=1, rounds=6)]
    go(store, runs)
    assert [records(store, run)[-1]["round"] for run in runs] == [2, 6]


def test_a_fault_of_the_shared_computation_ends_all_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise MemoryError("no more")

    monkeypatch.setattr(execution, "step_together", fail)
    store = Store(tmp_path)
    runs = [experiment(seed=seed) for seed in range(3)]
    go(store, runs, max_attempts=1)
    states = [store.run(run.run_id).state(run) for run in runs]
    assert [(state.status, state.kind) for state in states] == [("failed", "oom")] * 3


def test_which_runs_may_train_together() -> None:
    def kind(**fields: Any) -> str:
        return group_key(experiment(**fields).to_json())

    base = kind(method="fedprox")
    assert base == kind(method={"name": "fedprox", "mu": 0.5}, seed=3, lr=0.5, partition="iid", rounds=9, clients=7)
    assert base != kind(method="fedavg")
    assert base != kind(method="fedprox", norm="ln")
    assert base != kind(method="fedprox", batch_size=4)
    assert base != kind(method="fedprox", momentum=0.9)
    assert kind(method="scaffold") != kind(method={"name": "scaffold", "variant": "text"})
    switched = {"method": {"name": "plug-in", "rate": 0.1, "switch": True}}
    assert group_key(switched) == group_key({"method": {"name": "plug-in", "rate": 0.2, "switch": True}})
    assert group_key(switched) != group_key({"method": {"name": "plug-in", "rate": 0.1, "switch": False}})


def test_no_worker_takes_more_than_its_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = groups_of(monkeypatch)
    go(Store(tmp_path), [experiment(seed=seed, rounds=2) for seed in range(8)], workers=2)
    assert max(sizes) == 3


def test_large_steps_train_alone(tmp_path: Path) -> None:
    engine = load_engine(Options())
    assert engine.group_size(experiment()) == 7
    assert engine.group_size(experiment(model={"name": "mlp", "widths": [2048, 2048]})) == 1
    assert engine.group_size(parse_experiment({"kind": "centralized"})) == 1


@dataclass(frozen=True)
class Largest(Method):
    """Sends the largest entries of the change: ``topk`` needs their number as a Python number."""

    share: float = 0.1
    limit: float | None = None

    def finish(self, w: Tree, ctx: Context) -> tuple[Tree, Tree]:
        change = tmap(lambda a, x: a - x, w, ctx.x)
        flat = torch.cat([leaf.flatten() for leaf in change.values()]).abs()
        least = flat.topk(max(1, int(flat.numel() * self.share))).values[-1]
        return ctx.client, tmap(lambda leaf: torch.where(leaf.abs() >= least, leaf, 0), change)

    def message_weights(self, cohort: Cohort) -> Sequence[float]:
        return cohort.share

    def server_step(self, x: Tree, delta: Tree, message: Tree, state: Tree, ctx: ServerContext) -> tuple[Tree, Tree]:
        return tmap(lambda a, m: a + self.server_lr * m, x, message), state


@dataclass(frozen=True)
class StaticLargest(Largest):
    static: ClassVar[frozenset[str]] = frozenset({"share"})


@dataclass(frozen=True)
class LargestLater(Largest):
    """The same, with a state, from the third round on: a stack of several chunks fails after some have trained."""

    def init_client(self, x: Tree, buffers: Tree) -> Tree:
        return tmap(lambda a: 0 * a, x)

    def finish(self, w: Tree, ctx: Context) -> tuple[Tree, Tree]:
        _, message = super().finish(w, ctx) if ctx.round >= 2 else (w, tmap(lambda a, x: a - x, w, ctx.x))
        return tmap(lambda a, m: a + m, ctx.client, message), message


@pytest.fixture
def largest(monkeypatch: pytest.MonkeyPatch) -> None:
    known = dict(METHODS.classes)
    for attribute in ("classes", "_classes"):
        monkeypatch.setattr(METHODS, attribute, known)
    for name, cls in {"largest": Largest, "static-largest": StaticLargest, "largest-later": LargestLater}.items():
        METHODS.register(name)(cls)


def shares(method: str, **fields: Any) -> list[Experiment]:
    members = [(0.01, 0), (0.01, 1), (0.1, 1), (0.3, 0)]
    return [experiment(method={"name": method, "share": share}, seed=seed, **fields) for share, seed in members]


@pytest.mark.usefixtures("largest")
@pytest.mark.parametrize("method", ["largest", "largest-later"])
def test_runs_whose_hook_needs_a_python_number_train_one_by_one(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    runs = [*shares(method), *shares(method, E=3)]
    calm, store = Store(tmp_path / "calm"), Store(tmp_path / "store")
    assert go(calm, runs, fuse=1) == len(runs)
    sizes = groups_of(monkeypatch)
    monkeypatch.setattr(executors, "CHUNK", 8)  # the first chunk has two runs of one share: only the second fails
    monkeypatch.setattr(execution, "runs_worth_fusing", lambda *_, **__: 4)
    monkeypatch.setattr(execution, "same_bits_together", lambda trainers: [list(range(len(trainers)))])
    assert go(store, runs) == len(runs)
    assert [records(store, run) for run in runs] == [records(calm, run) for run in runs]
    assert set(sizes) == {4, 1} and sizes.count(4) == (1 if method == "largest" else 3)
    (said,) = [record.getMessage() for record in caplog.records if "one by one" in record.getMessage()]
    assert f"the hook finish of the method {method!r} raised" in said and "`static`" in said
    assert {attempt.exit()["kind"] for run in runs for attempt in store.run(run.run_id).attempts()} == {"ok"}  # type: ignore[index]


@pytest.mark.usefixtures("largest")
def test_runs_that_differ_in_a_static_field_are_not_trained_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sizes = groups_of(monkeypatch)
    go(Store(tmp_path), shares("static-largest"))
    assert set(sizes) == {2, 1}, "the seeds of a share train together"
    assert not [record for record in caplog.records if "one by one" in record.getMessage()]


@pytest.mark.usefixtures("largest")
def test_none_and_a_number_are_not_one_tensor(tmp_path: Path) -> None:
    store = Store(tmp_path)
    runs = [experiment(method={"name": "static-largest", "limit": limit}) for limit in (None, 0.5)]
    assert group_key(runs[0].to_json()) != group_key(runs[1].to_json())
    go(store, runs)
    assert all(store.run(run.run_id).result_for(run) for run in runs)


def test_an_error_of_one_run_that_trains_alone_does_not_end_the_others(
    largest: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = shares("largest")
    step = FederatedTrainer.step

    def fail(self: FederatedTrainer, **given: Any) -> Any:
        if (self.seed, self.run.method.share) == (0, 0.3):  # type: ignore[attr-defined]
            raise MemoryError("no more")
        return step(self, **given)

    monkeypatch.setattr(FederatedTrainer, "step", fail)
    store = Store(tmp_path)
    go(store, runs, max_attempts=1)
    assert [store.run(run.run_id).state(run).status for run in runs] == ["done", "done", "done", "failed"]
