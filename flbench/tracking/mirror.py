"""Decide what to send to a tracker and when: finished runs once and in full, running ones live, a sweep at its end.

Syncing never blocks training, and any step may fail: a failure only causes a warning, and the next sync sends the rest.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flbench.config import digest
from flbench.messages import counted
from flbench.store import RunDir, RunRequest, RunState, Store
from flbench.tracking.run_view import RunView, failed_view, finished_view, rows_of, running_view
from flbench.tracking.sink import OpenRun, RunDeleted, Sink, Target
from flbench.tracking.sync_log import SyncLog

if TYPE_CHECKING:
    from flbench.tracking.sweep_view import SweepView

#: Most runs that are sent live at a time; the others are sent once they have ended.
MAX_LIVE = 8

#: Seconds for which a run must have been running before it is sent live; least seconds between two scans of the store.
LIVE_AFTER, PERIOD = 20.0, 2.0

#: After this many failures in a row, a tracker is considered down; next to a sweep, a run is tried at most this often.
MAX_FAILURES = 3

#: Seconds until the next try when the tracker is down: at first and at most; they double each time.
FIRST_PAUSE, LONGEST_PAUSE = 15.0, 600.0


class GivenUp(Exception):
    """The tracker cannot be used at present; the message says why."""


@dataclass(frozen=True)
class Counts:
    """The progress of a job: ``mirrored`` runs are there in their current state, ``new`` of them by this process."""

    total: int
    mirrored: int
    new: int
    failed: int

    @property
    def unfinished(self) -> int:
        """Return the number of runs that have not ended yet."""
        return self.total - self.mirrored - self.failed


@dataclass
class Session:
    """A run that is being sent, and the records of it that were sent."""

    run: OpenRun
    sent: Sequence[Mapping[str, Any]] = ()

    def is_continued_by(self, records: Sequence[Mapping[str, Any]]) -> bool:
        """Return whether these records begin with those that were sent."""
        return list(records[: len(self.sent)]) == list(self.sent)

    def log(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Send the records that were not sent yet."""
        self.run.log(rows_of(records[len(self.sent) :]))
        self.sent = list(records)


class Mirror:
    """Mirror the runs of one job to one tracker.

    Args:
        store: where the runs are.
        runs: the requested rounds of each run, by its id.
        sweeps: for each run, the names of the sweeps that contain it.
        target: where runs are sent.
        say: reports a line to the user.
        beat: called before and after each step, with a text that says how far the mirror is and what it waits for.
    """

    def __init__(
        self,
        store: Store,
        runs: Mapping[str, RunRequest],
        sweeps: Mapping[str, Sequence[str]],
        target: Target,
        *,
        say: Callable[[str], None],
        beat: Callable[[str], object] = lambda doing: None,
    ) -> None:
        self._store, self._sweeps, self._target = store, sweeps, target
        self._log = SyncLog(target.log, target.name)
        self._say, self._show = say, beat
        self._sink: Sink | None = None
        self._total, self._pending = len(runs), dict(runs)
        self._mirrored: dict[str, str] = {}
        self._failed: list[str] = []
        self._live: dict[str, Session] = {}
        self._first_seen: dict[str, float] = {}
        self._failures: Counter[str] = Counter()
        self._failures_in_a_row, self._pauses, self._resume_at = 0, 0, 0.0
        self._new, self._pace, self._next_start = 0, 0.0, 0.0

    @property
    def counts(self) -> Counts:
        """Return the progress of the job."""
        return Counts(self._total, len(self._mirrored), self._new, len(self._failed))

    @property
    def url(self) -> str | None:
        """Return the address of the project's page; None if unknown."""
        return self._sink.url if self._sink else None

    def follow(self, wait: Callable[[float], bool]) -> None:
        """Send runs as they change, until ``wait(seconds)`` returns True because the sweep has ended.

        Then end the runs that are sent live, and close the sink's service, which has the priority of this thread.
        """
        cost, self._pace = 0.0, self._target.pace
        while not wait(max(PERIOD, 10 * cost)):
            self._beat("following the sweep")
            if (start := time.monotonic()) < self._resume_at:
                continue
            self._log.refresh()
            for run_id in list(self._pending):
                if self._failures[run_id] < MAX_FAILURES:
                    self._sync_run(run_id, last=False)
                if time.monotonic() < self._resume_at:
                    break
            cost = min(60.0, time.monotonic() - start)
        self._pace = 0.0
        with suppress(GivenUp):  # `finish` tries again
            for run_id in list(self._live):
                self._sync_run(run_id, last=True)
        if self._sink is not None:
            self._sink.restart()

    def finish(self) -> None:
        """Send all ended runs that were not sent yet, in up to two tries; raises GivenUp."""
        self._failures_in_a_row = 0
        for _ in range(2):
            run_ids = [*self._live, *(run_id for run_id in self._pending if run_id not in self._live)]
            failed = [run_id for run_id in run_ids if not self._sync_run(run_id, last=True)]
            if not failed:
                return
        self._failed = failed

    def send_sweep(self, run_id: str, make: Callable[[], SweepView]) -> bool:
        """Send the sweep itself if any of its runs has changed; return whether it was sent; raises GivenUp."""
        if not self._mirrored:
            return False
        stamp = digest([sorted(self._mirrored.items()), sorted(self._failed), self._total])
        if self._log.has(run_id, stamp):
            return False
        try:
            self._beat("drawing the sweep's table and figures")
            view, sink = make(), self._open_sink()
            self._beat(f"sending the sweep's table and figures, waiting for {self._target.service}")
            self._log.add(run_id, stamp, sink.send_sweep(view))
        except Exception as error:
            raise GivenUp(f"the sweep's table and figures could not be sent: {_first_line(error)}") from None
        return True

    def close(self) -> None:
        """Close the sink."""
        if self._sink is not None:
            self._beat(f"closing {self._target.service}")
            self._sink.close()

    def _beat(self, doing: str) -> None:
        self._show(f"{len(self._mirrored)}/{counted(self._total, 'run')}, {doing}")

    def _sync_run(self, run_id: str, *, last: bool) -> bool:
        """Send the changes of one run; return False if that failed."""
        self._beat("reading the store")
        requested, sweeps = self._pending[run_id], self._sweeps.get(run_id, ())
        try:
            run = self._store.run(run_id)
            state = run.state(requested)
            if state.status == "running" and not last:
                self._send_running(run, state, requested)
            elif (state.status == "done" or last) and (found := finished_view(run, sweeps)) is not None:
                view, result = found
                self._send_ended(view, lambda: run.metrics(result))
            elif last and state.status in ("failed", "lost"):
                if (view_of_failure := failed_view(run, sweeps, state)) is not None:
                    self._send_ended(view_of_failure, run.metrics)
            elif (session := self._live.pop(run_id, None)) is not None:
                session.run.interrupt()  # it is sent again in full
        except GivenUp:
            raise
        except Exception as error:
            self._note_failure(run_id, error, last)
            return False
        return True

    def _send_ended(self, view: RunView, read_records: Callable[[], Sequence[dict[str, Any]]]) -> None:
        """Send a run that has ended, unless its current state was sent."""
        if not self._log.has(view.run_id, view.digest):
            records = read_records()
            try:
                session = self._session(view, records)
                session.log(records)
                del self._live[view.run_id]
                segment = session.run.finish(view)
            except RunDeleted as error:
                self._say(str(error))
                segment = ""
            self._log.add(view.run_id, view.digest, segment)
            self._new += 1
            self._failures_in_a_row, self._pauses = 0, 0
        self._mirrored[view.run_id] = view.digest
        del self._pending[view.run_id]

    def _send_running(self, run: RunDir, state: RunState, requested: RunRequest) -> None:
        """Send the new records of a running run, if fewer than ``MAX_LIVE`` others are sent live."""
        since = self._first_seen.setdefault(run.run_id, time.monotonic())
        if not self._target.live or time.monotonic() - since < LIVE_AFTER:
            return
        if run.run_id not in self._live and len(self._live) >= MAX_LIVE:
            return
        view = running_view(run, self._sweeps.get(run.run_id, ()), state, requested.rounds)
        records = run.attempts()[-1].records()
        if view is not None and records:
            self._session(view, records).log(records)

    def _session(self, view: RunView, records: Sequence[dict[str, Any]]) -> Session:
        """Return the open session of a run, or a new one if there is none that these records continue."""
        self._beat(f"waiting for {self._target.service}")
        session = self._live.pop(view.run_id, None)
        if session is not None and not session.is_continued_by(records):
            session.run.interrupt()
            session = None
        if session is None:
            time.sleep(max(0.0, self._next_start - time.monotonic()))
            self._next_start = time.monotonic() + self._pace
            session = Session(self._open_sink().open(view))
        self._live[view.run_id] = session
        return session

    def _open_sink(self) -> Sink:
        if self._sink is None:
            try:
                self._sink = self._target.open()
            except (ImportError, OSError) as error:
                raise GivenUp(f"the tracker cannot be used here: {_first_line(error)}") from None
        return self._sink

    def _note_failure(self, run_id: str, error: Exception, last: bool) -> None:
        self._say(f"warning: run {run_id} could not be sent: {_first_line(error)}")
        # The tracker's service may have died with all open sessions: send those runs again in full.
        self._live.clear()
        if self._sink is not None:
            self._sink.restart()
        self._failures[run_id] += not self._failures_in_a_row  # count it for the run only if the previous one was sent
        self._failures_in_a_row += 1
        if self._failures_in_a_row < MAX_FAILURES:
            return
        if last:
            raise GivenUp(f"gave up after {MAX_FAILURES} failures in a row")
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2**self._pauses)
        self._pauses += 1
        self._resume_at = time.monotonic() + pause
        self._say(f"warning: {self._target.service} cannot be used at present; the next try is in {pause:.0f} s")


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:300]
