"""What is told when, with a W&B that is a list."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest

from flbench.cli.tracked import name_of
from flbench.store import Attempt
from flbench.tracking import mirror as module
from flbench.tracking.memory import Memory
from flbench.tracking.mirror import DELETED, MOST_FAILURES, MOST_OPEN, GivenUp, Mirror
from flbench.tracking.view import Board, View, Viewer
from tests.report.stores import claim, experiment, fail, finish
from tests.tracking.plans import SPEC, Planned, planned

MANY = SPEC.replace("[0, 1]", "{range: [0, 8]}")


@dataclass
class Told:
    view: View
    records: list[Mapping[str, Any]] = field(default_factory=list)
    ended: str = ""
    begun: float = field(default_factory=time.monotonic)

    def begins(self, records: Sequence[Mapping[str, Any]]) -> bool:
        return list(records[: len(self.records)]) == self.records

    def log(self, records: Sequence[Mapping[str, Any]]) -> None:
        self.records = list(records)

    def finish(self, view: View) -> str:
        self.view, self.ended = view, view.status
        return ""

    def end(self, exit_code: int) -> str:
        self.ended = f"exit {exit_code}"
        return ""


@dataclass
class Wandb:
    """``fails`` says of a run's id what goes wrong with it."""

    fails: Callable[[str], Exception | None] = lambda run_id: None
    sessions: list[Told] = field(default_factory=list)
    boards: list[Board] = field(default_factory=list)
    tries: list[str] = field(default_factory=list)
    restarts: int = 0
    url: str | None = None

    def open(self, view: View) -> Told:
        self.tries.append(view.run_id)
        if (error := self.fails(view.run_id)) is not None:
            raise error
        self.sessions.append(Told(view))
        return self.sessions[-1]

    def show(self, board: Board) -> str:
        self.boards.append(board)
        return ""

    def restart(self) -> None:
        self.restarts += 1

    def close(self) -> None:
        pass

    def open_now(self) -> list[Told]:
        return [session for session in self.sessions if not session.ended]


@pytest.fixture(autouse=True)
def no_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PACE", {"online": 0.0, "offline": 0.0})
    monkeypatch.setattr(module, "LIVE_AFTER", 0.0)
    monkeypatch.setattr(module, "PERIOD", 0.0)


def mirror(toys: Planned, wandb: Wandb, *, say: Callable[[str], None] = print) -> Mirror:
    memory = Memory(toys.store.root / "wandb/mirrored.jsonl", "target")
    return Mirror(
        toys.store, toys.wishes, memory, Viewer(name_of, {}), cast(Any, lambda: wandb), mode="online", say=say
    )  # fmt: skip


def looks(count: int, between: Callable[[int], None] = lambda number: None) -> Callable[[float], bool]:
    """A sweep that goes on for so many looks; something may happen before each."""
    numbers = iter(range(count + 1))

    def wait(_: float) -> bool:
        number = next(numbers)
        if number < count:
            between(number)
        return number == count

    return wait


def test_every_finished_run_is_told_once_and_whole(tmp_path: Path) -> None:
    toys, wandb = planned(tmp_path), Wandb()
    for _ in range(2):
        again = mirror(toys, wandb)
        again.finish()
    assert {told.view.run_id: told.records for told in wandb.sessions} == {
        wish.run_id: toys.metrics(wish) for wish in toys.experiments
    }
    assert len(wandb.sessions) == 4
    assert vars(again.tally) == {"total": 4, "mirrored": 4, "new": 0, "failed": 0}


def test_an_extended_run_is_told_anew(tmp_path: Path) -> None:
    toys, wandb = planned(tmp_path), Wandb()
    mirror(toys, wandb).finish()
    first = toys.experiments[0]
    finish(toys.store, experiment(**{**first.to_json(), "rounds": 40}))
    mirror(toys, wandb).finish()
    assert [told.view.run_id for told in wandb.sessions[4:]] == [first.run_id]
    assert [record["round"] for record in wandb.sessions[4].records] == [5, 10, 15, 20, 25, 30, 35, 40]


def test_failed_runs_are_told_at_the_end_and_unfinished_ones_are_not(tmp_path: Path) -> None:
    toys, wandb = planned(tmp_path, done=False), Wandb()
    fail(toys.store, toys.experiments[0])
    claim(toys.store, toys.experiments[1])
    at_work = mirror(toys, wandb)
    at_work.finish()
    assert [(told.view.run_id, told.ended) for told in wandb.sessions] == [(toys.experiments[0].run_id, "failed")]
    assert at_work.tally.unfinished == 3


def test_a_running_run_is_told_as_it_goes_on(tmp_path: Path) -> None:
    toys, wandb = planned(tmp_path, done=False), Wandb()
    wish = toys.experiments[0]
    attempt = claim(toys.store, wish)
    attempt.adopt(None)

    def train(look: int) -> None:
        if look:
            assert [len(told.records) for told in wandb.sessions] == ([look] if look < 4 else [4])
        if look < 4:
            attempt.record({"round": 5 * (look + 1), "acc": look / 4})
        elif look == 4:
            publish(attempt)

    mirror(toys, wandb).follow(looks(6, train))
    assert [(told.ended, len(told.records)) for told in wandb.sessions] == [("done", 4)]


def test_a_resumed_run_whose_numbers_differ_is_told_anew(tmp_path: Path) -> None:
    toys, wandb = planned(tmp_path, done=False), Wandb()

    def train(look: int) -> None:
        """Lose the first attempt after one evaluation; the second computes it again, in other seconds."""
        attempt = claim(toys.store, toys.experiments[0])
        attempt.adopt(None)
        attempt.record({"round": 5, "acc": 0.5, "seconds": look})
        if look == 0:
            lost.append(attempt)
        else:
            for round in (10, 15, 20):
                attempt.record({"round": round, "acc": 1.0})
            publish(attempt)

    def between(look: int) -> None:
        for attempt in lost:
            attempt.end("preempted")
        train(look)

    lost: list[Attempt] = []
    mirror(toys, wandb).follow(looks(2, between))
    assert [told.ended for told in wandb.sessions] == ["exit 1", "done"]
    assert [record.get("seconds") for record in wandb.sessions[1].records] == [1, None, None, None]


def test_an_interrupted_run_is_left_open_for_the_next_time(tmp_path: Path) -> None:
    toys, wandb = planned(tmp_path, done=False), Wandb()
    attempt = claim(toys.store, toys.experiments[0])
    attempt.adopt(None)
    attempt.record({"round": 5, "acc": 0.5})
    at_work = mirror(toys, wandb)
    at_work.follow(looks(1))
    at_work.finish()
    assert [told.ended for told in wandb.sessions] == ["exit 1"]
    assert at_work.tally.mirrored == 0


def test_few_runs_are_open_at_a_time(tmp_path: Path) -> None:
    toys, wandb = planned(tmp_path, MANY, done=False), Wandb()
    for wish in toys.experiments:
        attempt = claim(toys.store, wish)
        attempt.adopt(None)
        attempt.record({"round": 5, "acc": 0.5})
    mirror(toys, wandb).follow(looks(3))
    assert len(toys.experiments) == 16
    assert len(wandb.open_now()) == MOST_OPEN


def test_runs_begin_at_a_bounded_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PACE", {"online": 0.05})
    toys, wandb = planned(tmp_path), Wandb()
    mirror(toys, wandb).finish()
    begun = [told.begun for told in wandb.sessions]
    assert all(later - earlier > 0.045 for earlier, later in pairwise(begun))


def test_one_bad_run_keeps_no_other_from_being_told(tmp_path: Path) -> None:
    toys = planned(tmp_path)
    bad = toys.experiments[1].run_id
    wandb, lines = Wandb(lambda run_id: RuntimeError("no") if run_id == bad else None), list[str]()
    at_work = mirror(toys, wandb, say=lines.append)
    at_work.finish()
    assert vars(at_work.tally) == {"total": 4, "mirrored": 3, "new": 3, "failed": 1}
    assert wandb.tries.count(bad) == 2
    assert wandb.restarts == 2
    assert lines == [f"warning: run {bad} could not be told: no"] * 2


def test_it_gives_up_where_nothing_works(tmp_path: Path) -> None:
    toys, wandb = planned(tmp_path), Wandb(lambda run_id: ConnectionError("unreachable"))
    with pytest.raises(GivenUp):
        mirror(toys, wandb).finish()
    assert len(wandb.tries) == MOST_FAILURES


def test_beside_a_sweep_it_rests_where_nothing_works_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FIRST_REST", 0.2)
    toys = planned(tmp_path)
    until = time.monotonic() + 0.1
    wandb = Wandb(lambda run_id: ConnectionError("unreachable") if time.monotonic() < until else None)
    at_work = mirror(toys, wandb, say=lambda line: None)
    at_work.follow(looks(30, lambda look: time.sleep(0.02)))
    assert len(wandb.tries) == MOST_FAILURES + 4
    assert at_work.tally.mirrored == 4


def test_a_run_that_was_deleted_on_wandb_is_left_alone(tmp_path: Path) -> None:
    toys = planned(tmp_path)
    gone = toys.experiments[1].run_id
    wandb = Wandb(lambda run_id: RuntimeError(f"run {run_id} was {DELETED}") if run_id == gone else None)
    mirror(toys, wandb, say=lambda line: None).finish()
    mirror(toys, wandb).finish()
    assert wandb.tries.count(gone) == 1


def test_a_missing_package_gives_up_at_once(tmp_path: Path) -> None:
    def missing() -> Any:
        raise ImportError("No module named 'wandb'")

    toys = planned(tmp_path)
    memory = Memory(toys.store.root / "mirrored.jsonl", "target")
    at_work = Mirror(toys.store, toys.wishes, memory, Viewer(name_of, {}), missing, mode="online", say=print)
    with pytest.raises(GivenUp, match="No module named 'wandb'"):
        at_work.finish()


def test_the_sweep_is_told_when_its_runs_have_changed(tmp_path: Path) -> None:
    toys, wandb = planned(tmp_path, done=False), Wandb()
    board = Board("toy", "sweep-1", {}, (), (), ())

    def told() -> bool:
        at_work = mirror(toys, wandb)
        at_work.finish()
        return at_work.show("sweep-1", lambda: board)

    assert not told()  # there is nothing to show
    finish(toys.store, toys.experiments[0])
    assert told()
    assert not told()
    finish(toys.store, toys.experiments[1])
    assert told()
    assert wandb.boards == [board, board]


def publish(attempt: Attempt) -> None:
    attempt.publish(status="done", rounds=20, seconds=1.0, fingerprint="e3713c9c6ae47b99", numerics={})
    attempt.end("ok")
