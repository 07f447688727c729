from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from flbench.cli.curve import curve
from flbench.cli.live import LiveView, PlainView, duration, live_table, news_line, summary_line, view_for
from flbench.orchestrate import Progress, Seen
from flbench.store import Result, RunState


def result(**changes: Any) -> Result:
    facts = {
        "path": Path("r"), "run_id": "id", "status": "done", "rounds": 20, "wanted": 20, "evaluated": frozenset({20}),
        "probes": frozenset(), "final": {}, "metrics_sha256": "", "metrics_bytes": 0, "attempt": 1, "seconds": 2.5,
        "fingerprint": "", "numerics": {}, "environment": {}, "published": "",
    }  # fmt: skip
    return Result(**{**facts, **changes})


def done(label: str = "fedavg ln s0", **changes: Any) -> Seen:
    return Seen("id", label, 20, RunState("done", result=result(**changes)), 20, 0.912)


FAILED = Seen("id", "fedavg ln s1", 20, RunState("failed", "oom", "MemoryError"), log=Path("log.txt"))
RUNNING = Seen("id", "fedavg ln s2", 200, RunState("running"), 30, 0.5)


def progress(**changes: Any) -> Progress:
    facts: dict[str, Any] = {
        "total": 36, "done": 12, "diverged": 0, "failed": 0, "pending": 22, "rounds_done": 300, "rounds_total": 900,
        "rounds_per_second": 20.0, "active": (RUNNING,), "news": (), "workers": 2,
    }  # fmt: skip
    return Progress(**{**facts, **changes})


def test_lines_about_single_runs() -> None:
    assert news_line(done()) == "fedavg ln s0: 91.2 %, 20 rounds, 2.5 s"
    assert news_line(done(status="diverged", rounds=7)) == "fedavg ln s0: diverged in round 7, 7 rounds, 2.5 s"
    assert news_line(FAILED) == "fedavg ln s1: oom: MemoryError (log: log.txt)"


def test_summary_line() -> None:
    assert summary_line(progress()) == "12/36 done, 1 running, 2 workers, 20 rounds/s, ETA 30.0 s"
    unknown = progress(rounds_per_second=None, failed=2, diverged=1)
    assert summary_line(unknown) == "12/36 done, 1 diverged, 2 failed, 1 running, 2 workers"


@pytest.mark.parametrize(("seconds", "text"), [(4.21, "4.2 s"), (187, "3:07"), (8100, "2:15:00")])
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def plain() -> tuple[PlainView, StringIO]:
    file = StringIO()
    return PlainView(Console(file=file, width=80)), file


def test_pipe_gets_a_line_a_run() -> None:
    view, file = plain()
    with view:
        view.show(progress(news=(done(),)))
        view.show(progress(news=(FAILED,)))
    assert file.getvalue().splitlines() == [news_line(done()), news_line(FAILED)]


def test_many_runs_at_once_are_told_in_one_line_but_failures_in_full() -> None:
    view, file = plain()
    with view:
        view.show(progress(news=(*[done()] * 50, FAILED)))
    assert file.getvalue().splitlines() == [news_line(FAILED), summary_line(progress())]


def test_silence_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([0.0, 5.0, 11.0, 11.0, 12.0])
    monkeypatch.setattr("flbench.cli.live.time.monotonic", lambda: next(now))
    view, file = plain()
    view.show(progress())
    assert file.getvalue() == ""
    view.show(progress())
    assert file.getvalue().splitlines() == [summary_line(progress())]


def test_live_table_shows_active_runs() -> None:
    console = Console(file=StringIO(), width=80)
    with console.capture() as shown:
        console.print(live_table(progress(active=(RUNNING,) * 20)))
    text = shown.get()
    assert summary_line(progress(active=(RUNNING,) * 20)) in text.splitlines(), "a line of its own, whole"
    assert "fedavg ln s2" in text
    assert "30/200" in text
    assert "50.0 %" in text
    assert "and 4 more" in text


def test_terminal_gets_the_live_table_and_failures_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TERM", raising=False)
    file = StringIO()
    console = Console(file=file, width=100, force_terminal=True)
    with view_for(console) as view:
        assert isinstance(view, LiveView)
        view.show(progress(news=(FAILED,)))
    assert "oom: MemoryError" in file.getvalue()
    assert isinstance(view_for(Console(file=StringIO())), PlainView)


def test_no_color_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    file = StringIO()
    with view_for(Console(file=file, width=100, force_terminal=True)) as view:
        view.show(progress(news=(FAILED,)))
    assert "\x1b[31m" not in file.getvalue()


def test_curve_goes_from_its_first_to_its_last_point() -> None:
    lines = curve([(0, 0.0), (50, 1.0), (100, 1.0)], 100, width=10, height=4)
    assert lines[:4] == [
        "100 % ┤⠀⠀⠀⠀⡐⠉⠉⠉⠉⠉",
        "      ┤⠀⠀⠀⠔",
        " 50 % ┤⠀⠠⠊",
        "  0 % ┤⡠⠁",
    ]
    assert lines[4:] == ["      └──────────", "       0round 100"]


def test_curve_of_nothing_and_of_one_point() -> None:
    assert len(curve([], 100, height=3)) == 5
    assert sum(ord(c) > 0x2800 for c in "".join(curve([(100, 0.5)], 100, width=10, height=3))) == 1
