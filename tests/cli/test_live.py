from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from flbench.cli.curves import Curves, curve
from flbench.cli.live import STOPPING, PlainView, live_table, news_line, progress_view, summary_line
from flbench.cli.numbers import duration, file_size, handy, pace
from flbench.cli.progress_tables import headlines
from flbench.cli.screen import distinct
from flbench.config import Experiment, parse_experiment
from flbench.progress import Progress, RunSnapshot, Watch
from flbench.store import Entry, Lease, Result, RunState, Store


def result(**changes: Any) -> Result:
    facts = {
        "file": "r", "run_id": "id", "status": "done", "rounds": 20, "wanted": 20, "evaluated": frozenset({20}),
        "probes": frozenset(), "final": {}, "metrics_sha256": "", "metrics_bytes": 0, "attempt": 1, "seconds": 2.5,
        "fingerprint": "", "numerics": {}, "environment": {}, "published": "",
    }  # fmt: skip
    return Result(**{**facts, **changes})


def done(label: str = "fedavg ln s0", **changes: Any) -> RunSnapshot:
    return RunSnapshot("id", label, 20, RunState("done", result=result(**changes)), 20, 0.912)


FAILED = RunSnapshot("id", "fedavg ln s1", 20, RunState("failed", "oom", "MemoryError"), log=Path("log.txt"))
RUNNING = RunSnapshot("id", "fedavg ln s2", 200, RunState("running"), 30, 0.5)


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
    long = RunSnapshot("id", "fedavg ln s1", 20, RunState("failed", "error", "no data.\nLooked for them in:\n  here"))
    assert news_line(long) == "fedavg ln s1: error: no data. …"
    assert news_line(long, whole=True) == "fedavg ln s1: error: no data.\nLooked for them in:\n  here"
    state = RunState("done", result=result(rounds=0))
    sharp = RunSnapshot("id", "sharpness none s0", 0, state, 0, 36.6234, None, "lambda_max")
    assert news_line(sharp) == "sharpness none s0: lambda_max 36.62, 2.5 s"
    assert headlines([sharp, sharp]) == ("lambda_max", ["36.62", "36.62"])
    assert headlines([sharp, RUNNING]) == ("reached", ["lambda_max 36.62", "acc 50.0 %"])


def test_summary_line() -> None:
    # 20 rounds/s of 25 rounds a run: 2880 runs/h; 600 rounds are left.
    assert summary_line(progress()) == "12/36 done, 1 running, 2 workers, 20 rounds/s, 2,880 runs/h, ETA 30.0 s"
    unknown = progress(rounds_per_second=None, failed=2, diverged=1)
    assert summary_line(unknown) == "12/36 done, 1 diverged, 2 failed, 1 running, 2 workers"
    delayed = progress(delayed="SLURM takes no jobs now (a partition is drained)", rounds_per_second=None)
    assert summary_line(delayed).endswith("2 workers, SLURM takes no jobs now (a partition is drained); trying again")
    assert summary_line(progress(stopping=True)) == f"12/36 done, 1 running, 2 workers, {STOPPING}"
    # Plans without rounds count runs.
    studies = progress(rounds_done=0, rounds_total=0, rounds_per_second=None, runs_per_second=2.0)
    assert summary_line(studies) == "12/36 done, 1 running, 2 workers, 7,200 runs/h, ETA 12.0 s"
    assert (studies.share, progress().share) == (pytest.approx(1 / 3), pytest.approx(1 / 3))


def test_numbers_as_people_read_them() -> None:
    assert [pace(speed) for speed in (1234.5, 0.5, 1 / 600)] == ["1,234 rounds/s", "30 rounds/min", "6 rounds/h"]
    assert [handy(number) for number in (0.01234, 99.96, 12345.6, 1.2e30)] == ["0.0123", "100", "12,346", "1.2e+30"]
    assert [file_size(size) for size in (999, 1536, 3 * 10**12)] == ["999 B", "1.5 kB", "3.0 TB"]
    assert [duration(seconds) for seconds in (4.21, 187, 8100, 86400 + 61)] == [
        "4.2 s",
        "3:07",
        "2:15:00",
        "1 d 0:01:01",
    ]


def plain() -> tuple[PlainView, StringIO]:
    file = StringIO()
    return PlainView(Console(file=file, width=80)), file


def test_a_pipe_gets_a_line_for_each_run(store: Store) -> None:
    with progress_view(Console(file=(file := StringIO())), store) as show:
        show(progress(news=(done(),)))
        show(progress(news=(FAILED,)))
    assert file.getvalue().splitlines() == [news_line(done()), news_line(FAILED)]


def test_many_runs_at_once_are_summarized_but_failures_are_listed() -> None:
    view, file = plain()
    with closing(view):
        view.show(progress(news=(*[done()] * 50, FAILED)))
    assert file.getvalue().splitlines() == [news_line(FAILED), summary_line(progress())]


def test_a_summary_is_printed_while_runs_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run every five seconds: each has its line, and every half minute there is speed and remaining time."""
    now = [0.0]
    monkeypatch.setattr("flbench.cli.live.time.monotonic", lambda: now[0])
    view, file = plain()
    for now[0] in range(5, 66, 5):
        view.show(progress(news=(done(),)))
    runs = [news_line(done())]
    assert file.getvalue().splitlines() == 7 * runs + [summary_line(progress())] + 6 * runs


def test_a_pipe_gets_a_summary_after_a_long_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([0.0, 5.0, 11.0, 11.0, 12.0])
    monkeypatch.setattr("flbench.cli.live.time.monotonic", lambda: next(now))
    view, file = plain()
    view.show(progress())
    assert file.getvalue() == ""
    view.show(progress())
    assert file.getvalue().splitlines() == [summary_line(progress())]


# --- the live overview


EXPERIMENTS = [
    parse_experiment({"norm": norm, "partition": partition, "seed": seed, "rounds": 20, "eval_every": 5})
    for norm in ("none", "ln", "fn")
    for partition in ("classes:1", "dirichlet:0.1")
    for seed in (0, 1)
]


def recorded(store: Store, experiment: Experiment, *accuracies: float) -> None:
    attempt = store.claim(experiment, Lease.here())
    assert attempt is not None
    for number, accuracy in enumerate(accuracies, 1):
        attempt.record({"round": 5 * number, "acc": accuracy})


def ended(store: Store, index: int, *accuracies: float, **changes: Any) -> RunSnapshot:
    """A finished run with these records."""
    recorded(store, EXPERIMENTS[index], *accuracies)
    state = RunState("done", result=result(**changes))
    return RunSnapshot(EXPERIMENTS[index].run_id, "", 20, state, 20, accuracies[-1])


def half_way(store: Store) -> Progress:
    """Three cells have results, one of a single seed, one of a diverged run; ln is running with the other."""
    seen = {
        0: ended(store, 0, 0.1, 0.3),
        1: ended(store, 1, 0.3, 0.5),
        2: ended(store, 2, 0.6, 0.7),
        3: ended(store, 3, 0.1, status="diverged"),
        4: ended(store, 4, 0.5, 0.9),
        5: RunSnapshot(EXPERIMENTS[5].run_id, "", 20, RunState("failed", "oom", "MemoryError")),
    }
    recorded(store, EXPERIMENTS[6], 0.0, 0.55, 0.99)
    name = "fedavg ln dirichlet:0.1 s0, which has a name so long that eighty columns do not hold it"
    running = RunSnapshot(EXPERIMENTS[6].run_id, name, 20, RunState("running"), 15, 0.99)
    watched = Watch(store, [Entry.of(one) for one in EXPERIMENTS], 1).update()
    cells = list(watched.cells)
    for index, one in seen.items():
        cells[index // 2].add(one)
    counts: dict[str, Any] = {"total": 12, "done": 5, "diverged": 1, "failed": 1, "rounds_done": 115}
    return progress(plan=watched.plan, cells=cells, common=watched.common, active=(running,), **counts)


def drawn(store: Store, seen: Progress, *, width: int, height: int = 40) -> list[str]:
    file = StringIO()
    console = Console(width=width, no_color=True, file=file)
    console.print(live_table(seen, Curves(store), height))
    assert "\x1b" not in file.getvalue()
    return file.getvalue().splitlines()


@pytest.mark.parametrize("width", [80, 200])
def test_live_overview(store: Store, width: int) -> None:
    seen = half_way(store)
    bar, *lines = drawn(store, seen, width=width)
    assert bar.rstrip().endswith("12 %")
    assert max(map(len, lines)) <= width
    line = summary_line(seen)
    summary, rest = lines[:-6], lines[-6:]
    assert " ".join(part.strip() for part in summary) == line, "the whole summary, folded where it must be"
    running, run, best, *cells = (row.rstrip() for row in rest)
    assert running.split() == ["running", "round", "accuracy", "from", "0", "to", "99", "%"]
    cut = "fedavg ln dirichlet:0.1… columns do not hold it" if width == 80 else seen.active[0].label
    assert run.split("  ")[0] == cut
    assert run.endswith("15/20    99.0 %  ▁▅█")
    assert best.split() == ["best", "cells", "so", "far", "on", "runs", "accuracy", "from", "20", "to", "90", "%"]
    # Problem by problem, the best first; the mean over seeds at each round.
    assert [row.split() for row in cells] == [
        ["fedavg", "ln", "classes:1", "1/2,", "1", "failed", "90.0", "%", "▄█"],
        ["fedavg", "none", "classes:1", "2/2", "40.0", "%", "▁▃"],
        ["fedavg", "none", "dirichlet:0.1", "1/2,", "1", "diverged", "70.0", "%", "▅▆"],
    ]


def test_low_terminals_get_fewer_rows(store: Store) -> None:
    seen = half_way(store)
    many = replace(seen, active=seen.active * 20)
    assert len(drawn(store, many, width=100, height=24)) <= 23
    assert "and 7 more" in drawn(store, many, width=100, height=24)
    assert "and 4 more" in drawn(store, many, width=100, height=60)
    assert "and 17 more" in drawn(store, many, width=100, height=8)


def test_the_live_view_before_any_run_has_ended(store: Store) -> None:
    nothing = progress(active=(), done=0, rounds_done=0, rounds_per_second=None)
    assert [line.strip() for line in drawn(store, nothing, width=80)] == ["0 %", "0/36 done, 0 running, 2 workers"]


def terminal(**options: Any) -> tuple[Console, StringIO]:
    file = StringIO()
    return Console(file=file, width=100, force_terminal=True, **options), file


def test_terminal_gets_the_overview_and_failures_stay(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TERM", raising=False)
    console, file = terminal()
    with progress_view(console, store) as show:
        show(progress(news=(done(), *[FAILED] * 6)))
    text = file.getvalue()
    assert text.count("oom: MemoryError") == 4
    assert "and 2 more failed" in text
    assert done().label not in text


# --- curves


def test_curve_goes_from_its_first_to_its_last_point() -> None:
    assert curve([(0, 0.0), (50, 1.0), (100, 1.0)], 100, width=10, height=4) == [
        "100 % ┤⠀⠀⠀⠀⡐⠉⠉⠉⠉⠉",
        "      ┤⠀⠀⠀⠔",
        " 50 % ┤⠀⠠⠊",
        "  0 % ┤⡠⠁",
        "      └──────────",
        "       0round 100",
    ]
    assert len(curve([], 100, height=3)) == 5
    other = curve([(0, 2000.0), (10, 1000.0)], 10, width=5, height=4, top=2000.0, text=handy)
    assert [line.partition(" ┤")[0] for line in other[:4]] == ["2,000", "     ", "1,000", "    0"]


def test_labels_that_differ_stay_different() -> None:
    names = [
        f"{method} ln-static classes:2 E={steps} s{seed}"
        for method in ("fedavg", "fedprox(mu=0.1)", "fedprox(mu=0.2)")
        for steps in (1, 10)
        for seed in range(3)
    ]
    for width in (60, 34, 20, 12, 8, 5):
        short = distinct(names, width)
        assert max(map(len, short)) <= width
        assert len({*short}) == len(names), width
    assert len({*distinct(["a b s0", "a b s0"], 4)}) == 1, "equal labels stay equal"
    assert distinct([], 3) == []


def test_ctrl_c_is_acknowledged_at_once() -> None:
    console = Console(width=200, file=StringIO(), color_system=None)
    view = PlainView(console)
    view.show(progress())
    for _ in range(3):
        view.show(progress(stopping=True))
    assert console.file.getvalue().count(STOPPING) == 1  # type: ignore[attr-defined]
