"""Runs whose rounds are launched as graphs and not waited for: what is written down is that of any run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from flbench.config import Experiment, parse_experiment
from flbench.engine.executors import StackedExecutor
from flbench.engine.federated import FederatedTrainer, step_together
from flbench.engine.setup import Numerics, make_trainer
from flbench.engine.trainer import Trainer
from flbench.execution import SYNC_ROUNDS, Runner
from flbench.execution_types import Outcome, Settings
from flbench.registry import METHODS
from flbench.store import Attempt, Lease, Store
from tests.hook_methods import Everything
from tests.recording import rerun

SMALL: dict[str, Any] = {"model": {"name": "mlp", "widths": [8]}, "clients": 4, "E": 1, "batch_size": 8}
LENGTH: dict[str, Any] = {"rounds": 6, "eval_every": 3, "partition": "classes:3", "precision": "fp64"}


def experiment(**fields: Any) -> Experiment:
    return parse_experiment({**SMALL, **LENGTH, **fields})


def by_graph(monkeypatch: pytest.MonkeyPatch, way: str = "grouped") -> list[list[bool]]:
    """Let all trainers record their rounds, and convolve in a way; notes for each round whether it was waited for."""
    waits: list[list[bool]] = [[]]

    def make(*args: Any, **kwargs: Any) -> tuple[Trainer, Numerics]:
        trainer, numerics = make_trainer(*args, **kwargs)
        assert isinstance(trainer, FederatedTrainer)
        trainer.record = rerun
        assert isinstance(trainer.executor, StackedExecutor)
        trainer.executor.convolutions = {"conv1": way}
        return trainer, numerics

    def note(trainers: Any, keep: Any, *, wait: bool) -> Any:
        waits[0].append(wait)
        return step_together(trainers, keep, wait=wait)

    monkeypatch.setattr("flbench.execution.make_trainer", make)
    monkeypatch.setattr("flbench.execution.step_together", note)
    monkeypatch.setattr("flbench.execution.SYNC_SECONDS", 1e9)
    return waits


def go(store: Store, runs: list[Experiment], stop: Callable[[], bool] = lambda: False) -> None:
    """Claim the runs and execute them together."""
    group = [store.claim(run, Lease.here()) for run in runs]

    def ended(attempt: Attempt, end: Outcome | Exception) -> None:
        assert isinstance(end, Outcome), end
        attempt.end("interrupted" if end.status == "stopped" else "ok", round=end.round)

    Runner(Settings()).execute([attempt for attempt in group if attempt], should_stop=stop, ended=ended)


def records(store: Store, run: Experiment) -> list[dict[str, Any]]:
    found = store.run(run.run_id).metrics(store.run(run.run_id).result_for(run))
    return [{key: value for key, value in record.items() if key != "seconds"} for record in found]


def test_a_group_of_graphs_writes_what_runs_alone_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [experiment(seed=seed, lr=lr, method="scaffold") for seed, lr in [(0, 0.1), (1, 0.1), (1, 0.02)]]
    go(Store(tmp_path / "alone"), runs)
    waits = by_graph(monkeypatch)
    store = Store(tmp_path / "graphs")
    answers = iter([False, False, False, True])  # stops after the fourth round
    go(store, runs, lambda: next(answers, True))
    go(store, runs)
    for run in runs:
        found, expected = records(store, run), records(Store(tmp_path / "alone"), run)
        assert [record["round"] for record in found] == [3, 6]
        for one, other in zip(found, expected, strict=True):
            for name in ("loss", "train_loss"):
                assert one.pop(name) == pytest.approx(other.pop(name), abs=1e-9)
            assert one == other
    assert waits[0][:4] == [True, False, True, False], "the first round, and one to be evaluated"


def test_every_hook_in_a_group_that_is_stopped_and_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    method = dataclass(frozen=True)(type("Registered", (Everything,), {"name": "everything"}))
    monkeypatch.setitem(METHODS.classes, "everything", method)
    runs = [experiment(seed=seed, lr=lr, method="everything") for seed, lr in [(0, 0.05), (1, 0.02)]]
    go(Store(tmp_path / "alone"), runs)
    by_graph(monkeypatch)
    store = Store(tmp_path / "graphs")
    answers = iter([False, False, False, True])  # stops after the fourth round
    go(store, runs, lambda: next(answers, True))
    go(store, runs)
    for run in runs:
        for found, expected in zip(records(store, run), records(Store(tmp_path / "alone"), run), strict=True):
            for name in ("loss", "train_loss"):
                assert found.pop(name) == pytest.approx(expected.pop(name), abs=1e-9)
            assert found == expected


def test_a_diverged_run_names_its_round_and_is_found_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wild, tame = (experiment(lr=lr, rounds=3 * SYNC_ROUNDS, eval_every=3 * SYNC_ROUNDS) for lr in (1e200, 0.01))
    go(Store(tmp_path / "alone"), [wild])
    waits = by_graph(monkeypatch)
    store = Store(tmp_path / "graphs")
    go(store, [wild, tame])
    results = [store.run(run.run_id).result_for(run) for run in (wild, tame)]
    assert [result.status for result in results if result] == ["diverged", "done"]
    expected = Store(tmp_path / "alone").run(wild.run_id).result_for(wild)
    assert results[0] is not None and expected is not None
    assert results[0].rounds == expected.rounds < SYNC_ROUNDS
    assert waits[0] == [True, *[False] * (SYNC_ROUNDS - 1), True], "they train together until the next sync"


def test_slow_rounds_are_synced_more_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits = by_graph(monkeypatch)
    monkeypatch.setattr("flbench.execution.SYNC_SECONDS", 0.0)
    go(Store(tmp_path), [experiment(seed=seed, eval_every=6) for seed in range(2)])
    assert waits[0] == [True] * 6


def test_the_log_names_the_convolutions_and_their_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, run = Store(tmp_path), experiment()
    by_graph(monkeypatch)
    answers = iter([False, False, False, True])
    go(store, [run], lambda: next(answers, True))
    by_graph(monkeypatch, "streamed")
    go(store, [run])
    logs = [path.read_text() for path in sorted(tmp_path.rglob("log.txt"))]
    assert len(logs) == 2
    assert [text.count("convolutions: ") for text in logs] == [1, 1]
    assert "convolutions: conv1=grouped\n" in logs[0]
    assert "convolutions: conv1=streamed; before this round: conv1=grouped" in logs[1]
