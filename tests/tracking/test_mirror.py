"""What is sent when, with a list in place of W&B."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from flbench.store import Attempt
from flbench.tracking import mirror as module
from flbench.tracking import sync
from flbench.tracking.mirror import MAX_FAILURES, GivenUp, Mirror, SyncLog
from flbench.tracking.run_view import RunView, rows_of
from flbench.tracking.sink import Row, RunDeleted, Sink, SweepView, Target
from tests.report.stores import claim, experiment, fail, finish
from tests.tracking.plans import Planned, planned


@dataclass
class Sent:
    view: RunView
    rows: Sequence[Mapping[str, Any]]


@dataclass
class FakeSink(Sink):
    """``fails`` returns the error that sending a run raises, if any."""

    fails: Callable[[str], BaseException | None] = lambda run_id: None
    sent: list[Sent] = field(default_factory=list)
    sweeps: list[SweepView] = field(default_factory=list)
    tries: list[str] = field(default_factory=list)
    closed: int = 0

    def send(self, view: RunView, rows: Sequence[Row]) -> None:
        self.tries.append(view.run_id)
        if (error := self.fails(view.run_id)) is not None:
            raise error
        self.sent.append(Sent(view, rows))

    def send_sweep(self, view: SweepView) -> None:
        self.sweeps.append(view)

    def close(self) -> None:
        self.closed += 1

    def runs(self) -> dict[str, list[Mapping[str, Any]]]:
        """What the tracker shows: the last version of each run."""
        return {sent.view.run_id: list(sent.rows) for sent in self.sent}


@pytest.fixture(autouse=True)
def no_periods(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LIVE_PERIOD", "PERIOD", "FIRST_PAUSE"):
        monkeypatch.setattr(module, name, 0.0)


def mirror(
    toys: Planned,
    sink: FakeSink,
    *,
    say: Callable[[str], None] = print,
    show: Callable[[str], None] = lambda doing: None,
) -> Mirror:
    log = toys.store.root / "wandb/mirrored.jsonl"
    target = Target("target", log, lambda: sink, "online", "on the list", "the list's service")
    return Mirror(toys.store, toys.requests, {}, target, say=say, show=show)


def scans(count: int, between: Callable[[int], None] = lambda number: None) -> Callable[[float], bool]:
    """A sweep that lasts ``count`` scans of the store; ``between`` is called before each."""
    numbers = iter(range(count + 1))
    over: list[bool] = []

    def wait(_: float) -> bool:
        if not over and (number := next(numbers)) < count:
            between(number)
        else:
            over.append(True)
        return bool(over)

    return wait


def publish(attempt: Attempt) -> None:
    attempt.publish(status="done", rounds=20, seconds=1.0, fingerprint="e3713c9c6ae47b99", numerics={})
    attempt.end("ok")


def in_store(toys: Planned) -> dict[str, list[dict[str, float]]]:
    return {run.run_id: rows_of(toys.metrics(run)) for run in toys.experiments}


def test_every_finished_run_is_sent_once_and_whole(tmp_path: Path) -> None:
    toys, sink, steps = planned(tmp_path), FakeSink(), list[str]()
    mirror(toys, sink, show=steps.append).finish()
    assert "2/4 runs, waiting for the list's service" in steps
    (again := mirror(toys, sink)).finish()
    assert sink.runs() == in_store(toys)
    assert len(sink.sent) == 4
    assert again.counts == {"total": 4, "mirrored": 4, "new": 0, "failed": 0, "unfinished": 0}
    first = toys.experiments[0]
    finish(toys.store, experiment(**{**first.to_json(), "rounds": 40}))
    mirror(toys, sink).finish()
    assert [sent.view.run_id for sent in sink.sent[4:]] == [first.run_id], "it was extended"
    assert [record["round"] for record in sink.sent[4].rows] == [5, 10, 15, 20, 25, 30, 35, 40]


def test_failed_runs_are_sent_at_the_end_and_unfinished_ones_are_not(tmp_path: Path) -> None:
    toys, sink = planned(tmp_path, done=False), FakeSink()
    fail(toys.store, toys.experiments[0])
    claim(toys.store, toys.experiments[1])
    mirroring = mirror(toys, sink)
    mirroring.finish()
    assert [(sent.view.run_id, sent.view.status) for sent in sink.sent] == [(toys.experiments[0].run_id, "failed")]
    assert mirroring.counts["unfinished"] == 3


def test_a_running_run_is_sent_when_it_has_more_evaluations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toys, sink = planned(tmp_path, done=False), FakeSink()
    attempt = claim(toys.store, toys.experiments[0])
    attempt.adopt(None)

    def train(scan: int) -> None:
        if scan < 4:
            attempt.record({"round": 5 * (scan + 1), "acc": scan / 4})
        elif scan == 5:
            publish(attempt)

    mirroring = mirror(toys, sink)
    mirroring.follow(scans(7, train))
    assert [(sent.view.status, len(sent.rows)) for sent in sink.sent] == [
        ("running", 1), ("running", 2), ("running", 3), ("running", 4), ("done", 4),
    ]  # fmt: skip
    assert (mirroring.counts["new"], sink.closed) == (1, 1)  # its service had the priority of a mirror next to a sweep
    monkeypatch.setattr(module, "LIVE_PERIOD", 1e9)
    claim(toys.store, toys.experiments[1]).adopt(None)
    mirror(toys, sink).follow(scans(5))
    assert len(sink.sent) == 5, "a running run is sent now and then"


def test_a_resumed_run_whose_metrics_differ_is_replaced(tmp_path: Path) -> None:
    toys, sink = planned(tmp_path, done=False), FakeSink()
    attempts: list[Attempt] = []

    def train(scan: int) -> None:
        """Lose the first attempt after one evaluation; the second computes it again, in other seconds."""
        for lost in attempts:
            lost.end("preempted")
        attempts.append(claim(toys.store, toys.experiments[0]))
        attempts[-1].adopt(None)
        attempts[-1].record({"round": 5, "acc": 0.5, "seconds": scan})
        for round in (10, 15, 20) if scan else ():
            attempts[-1].record({"round": round, "acc": 1.0})

    mirroring = mirror(toys, sink)
    mirroring.follow(scans(2, train))
    publish(attempts[-1])
    mirroring.finish()
    assert [[row.get("seconds") for row in sent.rows] for sent in sink.sent][::2] == [[0], [1, None, None, None]]
    assert sink.runs()[toys.experiments[0].run_id] == rows_of(toys.metrics(toys.experiments[0]))


def test_a_kill_while_a_run_is_replaced_leaves_it_to_the_next_sync(tmp_path: Path) -> None:
    """Of an extended run, whose extension is then lost, the tracker has a part and must get the first version again."""
    toys, sink = planned(tmp_path), FakeSink()
    mirror(toys, sink).finish()
    first = toys.experiments[0]
    finish(toys.store, longer := experiment(**{**first.to_json(), "rounds": 40}))
    sink.fails = lambda run_id: KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        mirror(toys, sink).finish()
    sink.fails = lambda run_id: None
    for path in (toys.store.run(longer.run_id).path).rglob("*40*"):
        path.unlink()
    assert len(toys.metrics(first)) == 4
    mirror(toys, sink).finish()
    assert [sent.view.run_id for sent in sink.sent[4:]] == [first.run_id]


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


def test_one_bad_run_does_not_stop_the_others_and_is_sent_the_next_time(tmp_path: Path) -> None:
    toys = planned(tmp_path)
    bad = toys.experiments[1].run_id
    sink, lines = FakeSink(lambda run_id: RuntimeError("no") if run_id == bad else None), list[str]()
    mirroring = mirror(toys, sink, say=lines.append)
    mirroring.finish()
    assert mirroring.counts == {"total": 4, "mirrored": 3, "new": 3, "failed": 1, "unfinished": 0}
    assert sink.tries.count(bad) == sink.closed == 2
    assert lines == [f"warning: run {bad} could not be sent: no"] * 2
    sink.fails = lambda run_id: None
    mirror(toys, sink).finish()
    assert sink.runs() == in_store(toys)
    assert len(sink.sent) == 4


def test_while_the_server_is_down_it_pauses_and_no_sweep_waits(tmp_path: Path) -> None:
    toys, lines = planned(tmp_path), list[str]()
    down = ConnectionError("unreachable")
    sink = FakeSink(lambda run_id: down)
    mirroring = mirror(toys, sink, say=lines.append)
    mirroring.follow(scans(4))  # and the sweep ends
    assert mirroring.counts["mirrored"] == 0
    sink.tries.clear()
    with pytest.raises(GivenUp):
        mirroring.finish()
    assert len(sink.tries) == MAX_FAILURES
    sink.tries.clear()
    lines.clear()
    sink.fails = lambda run_id: down if len(sink.tries) <= 2 * MAX_FAILURES else None
    mirroring = mirror(toys, sink, say=lines.append)
    mirroring.follow(scans(30))
    assert len(sink.tries) == 2 * MAX_FAILURES + 4
    assert lines.count("the next try is in 0 s") == 2
    assert mirroring.counts["mirrored"] == 4
    with pytest.raises(GivenUp, match="No module named 'wandb'"):  # the package is missing: no second try
        Mirror(
            toys.store, toys.requests, {}, Target("other", tmp_path / "log", missing, "online", "", ""), say=print
        ).finish()


def missing() -> Any:
    raise ImportError("No module named 'wandb'")


def test_a_tracker_that_hangs_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STUCK", 0.1)
    toys, lines = planned(tmp_path), list[str]()
    sink: FakeSink = FakeSink(lambda run_id: time.sleep(0.5) if len(sink.tries) == 1 else None)
    sink.close = lambda: time.sleep(0.5)  # type: ignore[method-assign]
    mirroring = mirror(toys, sink, say=lines.append)
    mirroring.finish()
    assert lines == [
        f"warning: run {toys.experiments[0].run_id} could not be sent: the list's service did not answer for 0 s"
    ]
    assert mirroring.counts["mirrored"] == 4


def test_a_run_that_was_deleted_on_wandb_is_left_alone(tmp_path: Path) -> None:
    toys = planned(tmp_path)
    gone = toys.experiments[1].run_id
    sink = FakeSink(lambda run_id: RunDeleted(f"run {run_id} was deleted") if run_id == gone else None)
    mirror(toys, sink, say=lambda line: None).finish()
    mirror(toys, sink).finish()
    assert sink.tries.count(gone) == 1


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


def test_each_target_has_its_own_entries_and_the_last_whole_line_counts(tmp_path: Path) -> None:
    path = tmp_path / "wandb" / "mirrored.jsonl"
    SyncLog(path, "here").add("a", "1")
    SyncLog(path, "here").add("a", "2")
    with path.open("ab") as file:
        file.write(b'[]\n{"schema":1,"target":"here","run":"b","dig')  # a crash
    here, there = SyncLog(path, "here"), SyncLog(path, "there")
    assert here.has("a", "2")
    assert not (here.has("a", "1") or here.has("b", "2") or there.has("a", "2"))
