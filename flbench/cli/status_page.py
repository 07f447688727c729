"""The page of ``flbench status --html``: the tables of the command, links to logs, and charts of the runs."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from flbench.cli.curves import Curves
from flbench.cli.numbers import percent
from flbench.cli.progress_tables import headlines
from flbench.cli.report import check_ending, page_line, writing
from flbench.cli.sweep_status import SweepStatus, failures_by_kind, shown_states
from flbench.errors import UserError
from flbench.literal import literal
from flbench.report.blocks import Block, Charts, Code, Entry, Grid, Heading, Paragraph, Updated
from flbench.report.charts import Points, charts
from flbench.report.output import check_replaceable, write_text
from flbench.report.parts import parts_of
from flbench.report.runs import Run
from flbench.report.write.html import to_html
from flbench.run_names import common_fields, label
from flbench.run_sources import StoreSource
from flbench.store import Entry as PlanEntry
from flbench.store import Store
from flbench.sweeps import Sweep
from flbench.tracking.jobs import planned_sweep

#: Rows of the tables of running and of failed runs at most; the rest is counted.
MOST_ROWS = 50

#: Logs of finished runs that are listed at most. With 500 of them a page has 167 kB, with 50 it has 88 kB.
MOST_LOGS = 500

#: Seconds after which an open page loads itself again, at least.
PERIOD = 5.0


class StatusPage:
    """A page about some sweeps of a store.

    Args:
        store: the store with the runs.
        watched: the status of each sweep.
        path: the file to write.
        command: the command line that writes it.

    Raises:
        UserError: the file's name has another ending, or the file is something else than such a page.
    """

    def __init__(self, store: Store, watched: Sequence[SweepStatus], path: Path, command: str) -> None:
        self._store, self._watched, self._path, self._command = store, watched, path, command
        self._title = f"Status of {', '.join(one.directory.parent.name for one in watched) or 'single runs'}"
        check_ending("--html", path)
        check_replaceable(path, self._title, "name another file")
        self._curves = Curves(store)
        self._sweeps: list[Sweep] = []
        self._notes: list[str] = []
        for one in watched:
            try:
                self._sweeps.append(planned_sweep(one.directory))
            except (UserError, OSError) as error:
                self._notes.append(f"No charts of {one.name}: {error}")
        self._made = 0.0
        self._blocks: list[Block] = []

    @property
    def line(self) -> str:
        """Where the page is, for the terminal."""
        return page_line(self._path)

    def read(self, shown: Sequence[SweepStatus]) -> None:
        """Read the runs from the store; ``shown`` are the sweeps of the tables, with their last status."""
        self._made = time.time()
        self._blocks = list(self._content(shown))

    def write(self, pause: float | None) -> None:
        """Write what was read last, if anything; the next page follows after ``pause`` seconds, None: there is none."""
        if self._blocks:
            period = None if pause is None else max(PERIOD, pause)
            blocks = [Heading(1, self._title), Updated(self._made, period), *self._blocks]
            with writing():
                write_text(self._path, to_html(blocks, self._title))

    def _content(self, shown: Sequence[SweepStatus]) -> Iterator[Block]:
        problems = [one.problem for one in shown if one.problem]
        yield from (Paragraph(literal(text), warning=True) for text in (*problems, *self._notes))
        yield _sweeps(shown)
        yield Heading(2, "Running")
        yield from self._running(shown)
        yield Heading(2, "Charts")
        reached = {one.seen.run_id: one.seen.round for sweep in shown for one in sweep.running}
        is_known = bool(self._sweeps) or not self._watched  # else the charts would be of every run in the store
        parts = parts_of(StoreSource(self._store), self._sweeps) if is_known else ()
        yield Charts(charts(parts, lambda run, metric: self._points(run, metric, reached.get(run.run_id, -1))))
        yield from self._failures(shown)
        yield from self._finished({run.run_id: run for part in parts for run in part.collection.runs})
        yield Heading(2, "Command")
        yield Code(self._command)

    def _points(self, run: Run, metric: str, reached: int) -> Points:
        """Return what a run has recorded up to its round; nothing for a run that waits or failed."""
        if run.result is None and run.state != "running":
            return {}
        points = self._curves.points(run.run_id, reached if run.result is None else run.rounds, metric)
        return {at: value for at, value in points.items() if at <= run.rounds}

    def _running(self, shown: Sequence[SweepStatus]) -> Iterator[Block]:
        running = [one for sweep in shown for one in sweep.running]
        if not running:
            yield Paragraph("No run is running.")
            return
        title, values = headlines([one.seen for one in running])
        rows = []
        for one, text in list(zip(running, values, strict=True))[:MOST_ROWS]:
            seen = one.seen
            rows.append(
                (
                    Entry(seen.label),
                    self._log(seen.run_id, seen.log),
                    Entry(one.worker),
                    Entry(f"{seen.round}/{seen.rounds}", order=seen.round / max(1, seen.rounds)),
                    Entry(text, order=seen.value),
                    Entry(str(seen.state.attempts), order=seen.state.attempts),
                    Entry(one.age, order=one.heartbeat_age),
                )
            )
        yield Grid(("run", "log", "worker", "round", title, "attempt", "heartbeat"), tuple(rows), 3)
        if len(running) > MOST_ROWS:
            yield Paragraph(f"and {len(running) - MOST_ROWS} more running; `flbench status --json` lists all")

    def _failures(self, shown: Sequence[SweepStatus]) -> Iterator[Block]:
        kinds = failures_by_kind(failure for sweep in shown for failure in sweep.failures)
        failures = [(kind, seen) for kind, found in kinds.items() for seen in found]
        if not failures:
            return
        yield Heading(2, "Failed")
        rows = [
            (
                Entry(seen.label),
                self._log(seen.run_id, seen.log),
                Entry(kind),
                Entry(seen.state.message.partition("\n")[0] or "no message"),
            )
            for kind, seen in failures[:MOST_ROWS]
        ]
        yield Grid(("run", "log", "failure", "message"), tuple(rows), 4, remarks=1)
        if len(failures) > MOST_ROWS:
            yield Paragraph(f"and {len(failures) - MOST_ROWS} more; `flbench status --json` lists all")

    def _finished(self, runs: Mapping[str, Run]) -> Iterator[Block]:
        """Yield the logs of finished runs; most log nothing, those that were resumed or diverged say so."""
        logged = [
            (run, attempt)
            for run in runs.values()
            for attempt in (self._store.run(run.run_id).attempts() if run.result else ())
            if attempt.log_path.exists()
        ]
        if not logged:
            return
        yield Heading(2, "Logs of finished runs")
        common = common_fields(PlanEntry.of(run.experiment) for run in runs.values())
        rows = [
            (
                Entry(label(run.experiment.to_json(), common)),
                self._log(run.run_id, attempt.log_path),
                Entry(run.state),
                Entry(str(attempt.number), order=attempt.number),
            )
            for run, attempt in logged[:MOST_LOGS]
        ]
        yield Grid(("run", "log", "ended", "attempt"), tuple(rows), 3)
        if len(logged) > MOST_LOGS:
            yield Paragraph(f"and {len(logged) - MOST_LOGS} more; `flbench logs SWEEP` shows all")

    def _log(self, run_id: str, log: Path | None) -> Entry:
        """Return a run's id, which leads to its log by a path from the page."""
        link = "" if log is None else quote(os.path.relpath(log.resolve(), self._path.parent.resolve()))
        return Entry(run_id[:8], link=link)


def _sweeps(shown: Sequence[SweepStatus]) -> Grid:
    """Return a row for each sweep; a state without runs has no column."""
    states = shown_states(shown)
    rows = []
    for one in shown:
        progress = one.progress
        rows.append(
            (
                Entry(one.title(shown)),
                Entry(str(progress.total), order=progress.total),
                *(Entry(str(progress.states[state] or "–"), order=progress.states[state]) for state in states),
                Entry(percent(progress.share), order=progress.share),
                Entry(one.speed, order=one.rounds_per_second),
                Entry(one.left, order=one.seconds_left),
            )
        )
    return Grid(("sweep", "runs", *states, "rounds", "speed", "time left"), tuple(rows), 1)
