"""Decide what to send to W&B and when: finished runs once and in full, running ones live, a sweep when it has ended.

Syncing never blocks training, and any step may fail: a failure only causes a warning, and the next sync sends the rest.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from flbench.config import digest
from flbench.store import RunDir, RunRequest, RunState, Store
from flbench.tracking.run_view import RunView, failed_view, finished_view, running_view
from flbench.tracking.sync_log import SyncLog

if TYPE_CHECKING:
    from flbench.tracking.sweep_view import SweepView
    from flbench.tracking.wandb_sink import WandbRun, WandbSink

#: Most runs that are sent live at a time; the others are sent once they have ended.
MAX_LIVE = 8

#: Seconds for which a run must have been running before it is sent live; least seconds between two scans of the store.
LIVE_AFTER, PERIOD = 20.0, 2.0

#: Least seconds between sending two runs, to leave the machine to training.
PACE = {"online": 0.5, "offline": 0.05}

#: After this many failures in a row, W&B is considered down; next to a sweep, a run is tried at most this often.
MAX_FAILURES = 3

#: Seconds until the next try when W&B is down: at first and at most; they double each time.
FIRST_PAUSE, LONGEST_PAUSE = 15.0, 600.0

#: In the server's answer for a run that the user has deleted on W&B: its id cannot be used again (wandb#1192).
DELETED = "previously created and deleted"


class GivenUp(Exception):
    """W&B cannot be used at present; the message says why."""


@dataclass(frozen=True)
class Counts:
    """The progress of a job: ``mirrored`` runs are on W&B in their current state, ``new`` of them by this process."""

    total: int
    mirrored: int
    new: int
    failed: int

    @property
    def unfinished(self) -> int:
        """Return the number of runs that have not ended yet."""
        return self.total - self.mirrored - self.failed


class Mirror:
    """Mirror the runs of one job.

    Args:
        store: where the runs are.
        runs: the requested rounds of each run, by its id.
        sweeps: for each run, the names of the sweeps that contain it.
        log: what was sent already.
        make_sink: opens W&B; called once there is something to send.
        mode: send to the server, or write files.
        say: reports a line to the user.
        beat: called after each step, for a watchdog.
    """

    def __init__(
        self,
        store: Store,
        runs: Mapping[str, RunRequest],
        sweeps: Mapping[str, Sequence[str]],
        log: SyncLog,
        make_sink: Callable[[], WandbSink],
        *,
        mode: Literal["online", "offline"],
        say: Callable[[str], None],
        beat: Callable[[], object] = lambda: None,
    ) -> None:
        self._store, self._sweeps, self._log = store, sweeps, log
        self._make_sink, self._mode, self._say, self._beat = make_sink, mode, say, beat
        self._sink: WandbSink | None = None
        self._total, self._pending = len(runs), dict(runs)
        self._mirrored: dict[str, str] = {}
        self._failed: list[str] = []
        self._live: dict[str, WandbRun] = {}
        self._first_seen: dict[str, float] = {}
        self._failures: Counter[str] = Counter()
        self._failures_in_a_row, self._pauses, self._resume_at = 0, 0, 0.0
        self._new, self._next_start = 0, 0.0

    @property
    def counts(self) -> Counts:
        """Return the progress of the job."""
        return Counts(self._total, len(self._mirrored), self._new, len(self._failed))

    @property
    def url(self) -> str | None:
        """Return the address of the project's page; None if unknown."""
        return self._sink.url if self._sink else None

    def follow(self, wait: Callable[[float], bool]) -> None:
        """Send runs as they change, until ``wait(seconds)`` returns True because the sweep has ended."""
        cost = 0.0
        while not wait(max(PERIOD, 10 * cost)):
            self._beat()
            if (start := time.monotonic()) < self._resume_at:
                continue
            self._log.refresh()
            for run_id in list(self._pending):
                if self._failures[run_id] < MAX_FAILURES:
                    self._sync_run(run_id, last=False)
                if time.monotonic() < self._resume_at:
                    break
            cost = min(60.0, time.monotonic() - start)

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
            self._log.add(run_id, stamp, self._open_sink().send_sweep(make()))
        except Exception as error:
            raise GivenUp(f"the sweep's table and figures could not be sent: {_first_line(error)}") from None
        self._beat()
        return True

    def close(self) -> None:
        """Close W&B."""
        if self._sink is not None:
            self._sink.close()

    def _sync_run(self, run_id: str, *, last: bool) -> bool:
        """Send the changes of one run; return False if that failed."""
        self._beat()
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
                session.end(1)  # the run was interrupted: it is sent again in full
        except GivenUp:
            raise
        except Exception as error:
            self._note_failure(run_id, error, last)
            return False
        return True

    def _send_ended(self, view: RunView, read_records: Callable[[], Sequence[dict[str, Any]]]) -> None:
        """Send a run that has ended, unless W&B has its current state."""
        if not self._log.has(view.run_id, view.digest):
            records = read_records()
            try:
                session = self._session(view, records)
                session.log(records)
                del self._live[view.run_id]
                segment = session.finish(view)
            except Exception as error:
                if DELETED not in str(error):
                    raise
                self._live.pop(view.run_id, None)
                self._say(f"run {view.run_id} was deleted on W&B and stays deleted")
                segment = ""
            self._log.add(view.run_id, view.digest, segment)
            self._new += 1
            self._failures_in_a_row, self._pauses = 0, 0
            self._beat()
        self._mirrored[view.run_id] = view.digest
        del self._pending[view.run_id]

    def _send_running(self, run: RunDir, state: RunState, requested: RunRequest) -> None:
        """Send the new records of a running run, if fewer than ``MAX_LIVE`` others are sent live."""
        since = self._first_seen.setdefault(run.run_id, time.monotonic())
        if self._mode == "offline" or time.monotonic() - since < LIVE_AFTER:
            return
        if run.run_id not in self._live and len(self._live) >= MAX_LIVE:
            return
        view = running_view(run, self._sweeps.get(run.run_id, ()), state, requested.rounds)
        records = run.attempts()[-1].records()
        if view is not None and records:
            self._session(view, records).log(records)
            self._beat()

    def _session(self, view: RunView, records: Sequence[dict[str, Any]]) -> WandbRun:
        """Return the open session of a run, or a new one if there is none that these records continue."""
        session = self._live.pop(view.run_id, None)
        if session is not None and not session.is_continued_by(records):
            session.end(1)
            session = None
        if session is None:
            time.sleep(max(0.0, self._next_start - time.monotonic()))
            self._next_start = time.monotonic() + PACE[self._mode]
            session = self._open_sink().open(view)
        self._live[view.run_id] = session
        return session

    def _open_sink(self) -> WandbSink:
        if self._sink is None:
            try:
                self._sink = self._make_sink()
            except (ImportError, OSError) as error:
                raise GivenUp(f"wandb cannot be used here: {_first_line(error)}") from None
        return self._sink

    def _note_failure(self, run_id: str, error: Exception, last: bool) -> None:
        self._say(f"warning: run {run_id} could not be sent: {_first_line(error)}")
        # wandb's service may have died with all open sessions: send those runs again in full.
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
        self._say(f"warning: W&B cannot be used at present; the next try is in {pause:.0f} s")


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:300]
