"""What is sent when, with a list in place of W&B."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest

from flbench.store import Attempt
from flbench.tracking import mirror as module
from flbench.tracking import sync
from flbench.tracking.mirror import MAX_FAILURES, MAX_LIVE, GivenUp, Mirror
from flbench.tracking.run_view import RunView, rows_of
from flbench.tracking.sink import Row, RunDeleted, Target
from flbench.tracking.sweep_view import SweepView
from tests.report.stores import claim, experiment, fail, finish
from tests.tracking.plans import SPEC, Planned, planned

MANY = SPEC.replace("[0, 1]", "{range: [0, 8]}")


@dataclass
class Session:
    view: RunView
    rows: list[Mapping[str, Any]] = field(default_factory=list)
    ended: str = ""
    started: float = field(default_factory=time.monotonic)

    def log(self, rows: Sequence[Row]) -> None:
        self.rows += rows

    def finish(self, view: RunView) -> str:
        self.view, self.ended = view, view.status
        return ""

    def interrupt(self) -> None:
        self.ended = "interrupted"


@dataclass
class FakeSink:
    """``fails`` returns the error that opening a run raises, if any."""

    fails: Callable[[str], Exception | None] = lambda run_id: None
    sessions: list[Session] = field(default_factory=list)
    sweeps: list[SweepView] = field(default_factory=list)
    tries: list[str] = field(default_factory=list)
    restarts: int = 0
    url: str | None = None

    def open(self, view: RunView) -> Session:
        self.tries.append(view.run_id)
        if (error := self.fails(view.run_id)) is not None:
            raise error
        self.sessions.append(Session(view))
        return self.sessions[-1]

    def send_sweep(self, view: SweepView) -> str:
        self.sweeps.append(view)
        return ""

    def restart(self) -> None:
        self.restarts += 1

    def close(self) -> None:
        pass

    def live(self) -> list[Session]:
        return [session for session in self.sessions if not session.ended]


@pytest.fixture(autouse=True)
def no_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LIVE_AFTER", 0.0)
    monkeypatch.setattr(module, "PERIOD", 0.0)


def mirror(
    toys: Planned,
    sink: FakeSink,
    *,
    say: Callable[[str], None] = print,
    beat: Callable[[str], None] = lambda doing: None,
    pace: float = 0.0,
) -> Mirror:
    log = toys.store.root / "wandb/mirrored.jsonl"
    target = Target("target", log, lambda: sink, "online", "on the list", "the list's service", pace=pace)
    return Mirror(toys.store, toys.requests, {}, target, say=say, beat=beat)


def scans(count: int, between: Callable[[int], None] = lambda number: None) -> Callable[[float], bool]:
    """A sweep that lasts ``count`` scans of the store; ``between`` is called before each."""
    numbers = iter(range(count + 1))

    def wait(_: float) -> bool:
        number = next(numbers)
        if number < count:
            between(number)
        return number == count

    return wait


def test_every_finished_run_is_sent_once_and_whole(tmp_path: Path) -> None:
    toys, sink = planned(tmp_path), FakeSink()
    for _ in range(2):
        again = mirror(toys, sink)
        again.finish()
    assert {session.view.run_id: session.rows for session in sink.sessions} == {
        request.run_id: rows_of(toys.metrics(request)) for request in toys.experiments
    }
    assert len(sink.sessions) == 4
    assert vars(again.counts) == {"total": 4, "mirrored": 4, "new": 0, "failed": 0}


def test_an_extended_run_is_sent_again(tmp_path: Path) -> None:
    toys, sink = planned(tmp_path), FakeSink()
    mirror(toys, sink).finish()
    first = toys.experiments[0]
    finish(toys.store, experiment(**{**first.to_json(), "rounds": 40}))
    mirror(toys, sink).finish()
    assert [session.view.run_id for session in sink.sessions[4:]] == [first.run_id]
    assert [record["round"] for record in sink.sessions[4].rows] == [5, 10, 15, 20, 25, 30, 35, 40]


def test_failed_runs_are_sent_at_the_end_and_unfinished_ones_are_not(tmp_path: Path) -> None:
    toys, sink = planned(tmp_path, done=False), FakeSink()
    fail(toys.store, toys.experiments[0])
    claim(toys.store, toys.experiments[1])
    mirroring = mirror(toys, sink)
    mirroring.finish()
    assert [(session.view.run_id, session.ended) for session in sink.sessions] == [
        (toys.experiments[0].run_id, "failed")
    ]
    assert mirroring.counts.unfinished == 3


def test_a_running_run_is_sent_live(tmp_path: Path) -> None:
    toys, sink = planned(tmp_path, done=False), FakeSink()
    request = toys.experiments[0]
    attempt = claim(toys.store, request)
    attempt.adopt(None)

    def train(scan: int) -> None:
        if scan:
            assert [len(session.rows) for session in sink.sessions] == ([scan] if scan < 4 else [4])
        if scan < 4:
            attempt.record({"round": 5 * (scan + 1), "acc": scan / 4})
        elif scan == 4:
            publish(attempt)

    mirror(toys, sink).follow(scans(6, train))
    assert [(session.ended, len(session.rows)) for session in sink.sessions] == [("done", 4)]


def test_a_resumed_run_whose_metrics_differ_is_sent_again(tmp_path: Path) -> None:
    toys, sink = planned(tmp_path, done=False), FakeSink()

    def train(scan: int) -> None:
        """Lose the first attempt after one evaluation; the second computes it again, in other seconds."""
        attempt = claim(toys.store, toys.experiments[0])
        attempt.adopt(None)
        attempt.record({"round": 5, "acc": 0.5, "seconds": scan})
        if scan == 0:
            lost.append(attempt)
        else:
            for round in (10, 15, 20):
                attempt.record({"round": round, "acc": 1.0})
            publish(attempt)

    def between(scan: int) -> None:
        for attempt in lost:
            attempt.end("preempted")
        train(scan)

    lost: list[Attempt] = []
    mirror(toys, sink).follow(scans(2, between))
    assert [session.ended for session in sink.sessions] == ["interrupted", "done"]
    assert [record.get("seconds") for record in sink.sessions[1].rows] == [1, None, None, None]


def test_an_interrupted_run_is_left_for_the_next_sync(tmp_path: Path) -> None:
    toys, sink = planned(tmp_path, done=False), FakeSink()
    attempt = claim(toys.store, toys.experiments[0])
    attempt.adopt(None)
    attempt.record({"round": 5, "acc": 0.5})
    mirroring = mirror(toys, sink)
    mirroring.follow(scans(1))
    assert sink.restarts == 1  # its service had the priority of a mirror next to a sweep
    mirroring.finish()
    assert [session.ended for session in sink.sessions] == ["interrupted"]
    assert mirroring.counts.mirrored == 0


def test_few_runs_are_sent_live_at_a_time(tmp_path: Path) -> None:
    toys, sink, live = planned(tmp_path, MANY, done=False), FakeSink(), list[int]()
    for request in toys.experiments:
        attempt = claim(toys.store, request)
        attempt.adopt(None)
        attempt.record({"round": 5, "acc": 0.5})
    mirror(toys, sink).follow(scans(3, lambda scan: live.append(len(sink.live()))))
    assert len(toys.experiments) == 16
    assert live == [0, MAX_LIVE, MAX_LIVE]


def test_next_to_a_sweep_runs_start_at_a_limited_rate(tmp_path: Path) -> None:
    toys, sink = planned(tmp_path), FakeSink()
    mirror(toys, sink, pace=0.05).follow(scans(1))
    starts = [session.started for session in sink.sessions]
    assert len(starts) == 4
    assert all(later - earlier > 0.045 for earlier, later in pairwise(starts))


def test_after_the_sweep_runs_start_at_once(tmp_path: Path) -> None:
    mirroring = mirror(planned(tmp_path), FakeSink(), pace=1e9)
    mirroring.finish()
    assert mirroring.counts.new == 4


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the priority is one of the whole process")
def test_only_following_a_sweep_has_low_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    class Following:
        def follow(self, wait: Callable[[float], bool]) -> None:
            seen.append(os.getpriority(os.PRIO_PROCESS, 0))

    monkeypatch.setattr(sync, "_set_autogroup", seen.append)
    before = os.getpriority(os.PRIO_PROCESS, 0)
    sync._follow(cast(Any, Following()))
    assert seen == [19, min(19, before + 19), 0]
    assert os.getpriority(os.PRIO_PROCESS, 0) == before


def test_it_says_how_far_it_is_and_what_it_waits_for(tmp_path: Path) -> None:
    steps: list[str] = []
    mirror(planned(tmp_path), FakeSink(), beat=steps.append).finish()
    assert "2/4 runs, waiting for the list's service" in steps


def test_one_bad_run_does_not_stop_the_others(tmp_path: Path) -> None:
    toys = planned(tmp_path)
    bad = toys.experiments[1].run_id
    sink, lines = FakeSink(lambda run_id: RuntimeError("no") if run_id == bad else None), list[str]()
    mirroring = mirror(toys, sink, say=lines.append)
    mirroring.finish()
    assert vars(mirroring.counts) == {"total": 4, "mirrored": 3, "new": 3, "failed": 1}
    assert sink.tries.count(bad) == 2
    assert sink.restarts == 2
    assert lines == [f"warning: run {bad} could not be sent: no"] * 2


def test_it_gives_up_when_every_run_fails(tmp_path: Path) -> None:
    toys, sink = planned(tmp_path), FakeSink(lambda run_id: ConnectionError("unreachable"))
    with pytest.raises(GivenUp):
        mirror(toys, sink).finish()
    assert len(sink.tries) == MAX_FAILURES


def test_next_to_a_sweep_it_pauses_while_the_server_is_down_and_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FIRST_PAUSE", 0.2)
    toys = planned(tmp_path)
    sink: FakeSink = FakeSink(
        lambda run_id: ConnectionError("unreachable") if len(sink.tries) <= MAX_FAILURES else None
    )
    mirroring = mirror(toys, sink, say=lambda line: None)
    mirroring.follow(scans(30, lambda scan: time.sleep(0.02)))
    assert len(sink.tries) == MAX_FAILURES + 4
    assert mirroring.counts.mirrored == 4


def test_a_run_that_was_deleted_on_wandb_is_left_alone(tmp_path: Path) -> None:
    toys = planned(tmp_path)
    gone = toys.experiments[1].run_id
    sink = FakeSink(lambda run_id: RunDeleted(f"run {run_id} was deleted") if run_id == gone else None)
    mirror(toys, sink, say=lambda line: None).finish()
    mirror(toys, sink).finish()
    assert sink.tries.count(gone) == 1


def test_a_missing_package_gives_up_at_once(tmp_path: Path) -> None:
    def missing() -> Any:
        raise ImportError("No module named 'wandb'")

    toys = planned(tmp_path)
    target = Target("target", tmp_path / "store/wandb/mirrored.jsonl", missing, "online", "", "")
    mirroring = Mirror(toys.store, toys.requests, {}, target, say=print)
    with pytest.raises(GivenUp, match="No module named 'wandb'"):
        mirroring.finish()


def test_the_sweep_is_sent_when_its_runs_have_changed(tmp_path: Path) -> None:
    toys, sink = planned(tmp_path, done=False), FakeSink()
    view = SweepView("toy", "sweep-1", {}, (), (), ())

    def sent() -> bool:
        mirroring = mirror(toys, sink)
        mirroring.finish()
        return mirroring.send_sweep("sweep-1", lambda: view)

    assert not sent()  # there is nothing to show
    finish(toys.store, toys.experiments[0])
    assert sent()
    assert not sent()
    finish(toys.store, toys.experiments[1])
    assert sent()
    assert sink.sweeps == [view, view]


def publish(attempt: Attempt) -> None:
    attempt.publish(status="done", rounds=20, seconds=1.0, fingerprint="e3713c9c6ae47b99", numerics={})
    attempt.end("ok")
