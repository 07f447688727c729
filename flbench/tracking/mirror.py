"""Decide what to send to a tracker and when: runs once and in full, running ones now and then, a sweep at its end.

Syncing never blocks training, and any step may fail: a failure only causes a warning, and the next sync sends the rest.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from pathlib import Path
from typing import Any

from flbench.config import digest
from flbench.messages import counted
from flbench.store import RunDir, RunRequest, Store, files, strict_json
from flbench.store.strict_json import SCHEMA
from flbench.tracking.run_view import RunView, failed_view, finished_view, rows_of, running_view
from flbench.tracking.sink import RunDeleted, SendFailed, Sink, SweepView, Target

#: Least seconds between two scans of the store, and between two times that a running run is sent.
PERIOD, LIVE_PERIOD = 2.0, 20.0

#: After this many failures in a row, a tracker is considered down.
MAX_FAILURES = 3

#: Longest pause until the next try, in seconds: after the first failure, and after many.
FIRST_PAUSE, LONGEST_PAUSE = 15.0, 600.0

#: Seconds in which a tracker must have taken a run. wandb's service sometimes hangs, and wandb then waits forever.
STUCK = 900.0


class GivenUp(Exception):
    """The tracker cannot be used at present; the message says why."""


class SyncLog:
    """What a target has (a project on a server, or files): a JSON line for each run that was sent; the last one counts.

    If a line is lost, the run is sent once more.

    Raises:
        OSError: the file cannot be read.
    """

    def __init__(self, path: Path, target: str) -> None:
        self._path, self._target = path, target
        self._digests: dict[str, str] = {}
        for line in (files.read_bytes(path) or b"").splitlines():
            try:
                raw: Any = json.loads(line)
            except ValueError:
                continue  # cut off by a crash
            if isinstance(raw, Mapping) and raw.get("schema") == SCHEMA and raw.get("target") == target:
                self._digests[str(raw.get("run"))] = str(raw.get("digest"))

    def has(self, run_id: str, version: str) -> bool:
        """Return whether this is the digest of what the target has of a run."""
        return self._digests.get(run_id) == version

    def begin(self, run_id: str) -> None:
        """Forget what the target has of a run, which is about to be replaced; raises OSError."""
        if self._digests.get(run_id):
            self.add(run_id, "")

    def add(self, run_id: str, version: str) -> None:
        """Record the digest of what the target has of a run; raises OSError."""
        files.make_directory(self._path.parent, self._path.parents[1])
        now = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        line = {"schema": SCHEMA, "target": self._target, "run": run_id, "digest": version, "time": now}
        files.append_line(self._path, strict_json.to_line(line))
        self._digests[run_id] = version


class Mirror:
    """Mirror the runs of one job to one tracker.

    Args:
        store: where the runs are.
        runs: the requested rounds of each run, by its id.
        sweeps: for each run, the names of the sweeps that contain it.
        target: where runs are sent.
        say: reports a line to the user.
        show: shows how far the mirror is and what it waits for.
    """

    def __init__(
        self,
        store: Store,
        runs: Mapping[str, RunRequest],
        sweeps: Mapping[str, Sequence[str]],
        target: Target,
        *,
        say: Callable[[str], None],
        show: Callable[[str], object] = lambda doing: None,
    ) -> None:
        self._store, self._sweeps, self._target = store, sweeps, target
        self._log = SyncLog(target.log, target.name)
        self._say, self._show = say, show
        self._sink: Sink | None = None
        self._total, self._pending = len(runs), dict(runs)
        self._mirrored: dict[str, str] = {}
        self._failed: list[str] = []
        self._live: dict[str, tuple[float, int]] = {}  # when a running run was sent last, and its evaluations then
        self._new = 0
        self.url: str | None = None

    @property
    def counts(self) -> dict[str, int]:
        """Return the progress of the job: ``mirrored`` runs are there as they are now, ``new`` of them by this process.

        ``unfinished`` runs have not ended yet.
        """
        total, mirrored, failed = self._total, len(self._mirrored), len(self._failed)
        unfinished = total - mirrored - failed
        return {"total": total, "mirrored": mirrored, "new": self._new, "failed": failed, "unfinished": unfinished}

    def follow(self, ended: Callable[[float], bool]) -> None:
        """Send runs as they change, until ``ended(seconds)``, which waits so long, returns True.

        After a failure pause, longer each time. The pauses are random: otherwise the mirrors of many sweeps return to a
        server at the same moment.
        """
        from tenacity import RetryError, Retrying, retry_if_exception_type, retry_if_result, wait_random_exponential

        def sleep(seconds: float) -> None:
            ended(seconds)

        patiently = Retrying(
            retry=retry_if_exception_type(GivenUp) | retry_if_result(lambda _: bool(self._failed)),
            wait=wait_random_exponential(FIRST_PAUSE, LONGEST_PAUSE),
            before_sleep=lambda state: self._say(f"the next try is in {state.upcoming_sleep:.0f} s"),
            sleep=sleep,
            stop=lambda state: ended(0),
        )
        cost = 0.0
        with suppress(RetryError):  # `finish` tries again
            while not ended(max(PERIOD, 10 * cost)):
                cost = patiently(self._send_changed, last=False)
        self.close()  # its service has the priority of this thread

    def finish(self) -> None:
        """Send all ended runs that were not sent yet, in up to two tries; raises GivenUp."""
        for _ in range(2):
            self._send_changed(last=True)
            if not self._failed:
                return

    def send_sweep(self, run_id: str, make: Callable[[], SweepView]) -> bool:
        """Send the sweep itself if any of its runs has changed; return whether it was sent; raises GivenUp."""
        if not self._mirrored:
            return False
        version = digest([sorted(self._mirrored.items()), sorted(self._failed), self._total])
        if self._log.has(run_id, version):
            return False
        try:
            self._report("drawing the sweep's table and figures")
            view = make()
            self._report(f"sending the sweep's table and figures, waiting for {self._target.service}")
            self._send(run_id, version, lambda sink: sink.send_sweep(view))
        except Exception as error:
            raise GivenUp(f"the sweep's table and figures could not be sent: {_first_line(error)}") from None
        return True

    def close(self) -> None:
        """Close the sink."""
        if self._sink is not None:
            self._report(f"closing {self._target.service}")
            with suppress(Exception):
                self._in_time(self._sink.close)

    def _report(self, doing: str) -> None:
        self._show(f"{len(self._mirrored)}/{counted(self._total, 'run')}, {doing}")

    def _send_changed(self, *, last: bool) -> float:
        """Send all runs that have changed; return the seconds that it took, at most a minute; raises GivenUp."""
        start, in_a_row = time.monotonic(), 0
        self._failed = []
        for run_id in list(self._pending):
            self._report("reading the store")
            try:
                sent = self._sync_run(run_id, last=last)
            except GivenUp:
                raise
            except Exception as error:
                self._say(f"warning: run {run_id} could not be sent: {_first_line(error)}")
                self.close()  # the tracker's service may have died
                self._failed.append(run_id)
                in_a_row += 1
                if in_a_row == MAX_FAILURES:
                    raise GivenUp(f"gave up after {MAX_FAILURES} failures in a row") from None
            else:
                in_a_row = 0 if sent else in_a_row
        return min(60.0, time.monotonic() - start)

    def _sync_run(self, run_id: str, *, last: bool) -> bool:
        """Send a run if it has changed; return whether it was sent."""
        changed = self._changed(self._store.run(run_id), last=last)
        if changed is None:
            return False
        view, read_records = changed
        running = view.status == "running"
        if unsent := running or not self._log.has(run_id, view.digest):
            rows = rows_of(read_records())
            self._report(f"waiting for {self._target.service}")
            self._send(run_id, "" if running else view.digest, lambda sink: sink.send(view, rows))
        if not running:
            self._new += unsent
            self._mirrored[run_id] = view.digest
            del self._pending[run_id]
        return unsent

    def _changed(self, run: RunDir, *, last: bool) -> tuple[RunView, Callable[[], Sequence[dict[str, Any]]]] | None:
        """Return the present state of a run, and how to read its records; None if it is not sent now."""
        requested, sweeps = self._pending[run.run_id], self._sweeps.get(run.run_id, ())
        state = run.state(requested)
        if state.status == "running" and not last:
            now = time.monotonic()
            before, count = self._live.setdefault(run.run_id, (now, -1))
            if not self._target.live or now - before < LIVE_PERIOD:
                return None
            records = run.last_attempt().records()
            self._live[run.run_id] = now, len(records)
            view = running_view(run, sweeps, state, requested.rounds)
            return None if view is None or len(records) == count else (view, lambda: records)
        if (state.status == "done" or last) and (found := finished_view(run, sweeps)) is not None:
            view, result = found
            return view, lambda: run.metrics(result)
        if last and state.status in ("failed", "lost"):
            view = failed_view(run, sweeps, state)
            return None if view is None else (view, run.metrics)
        return None

    def _send(self, run_id: str, version: str, send: Callable[[Sink], None]) -> None:
        """Send something and record its version, if any; after a kill at any moment the log claims nothing false."""
        self._log.begin(run_id)
        try:
            self._in_time(lambda: send(self._open_sink()))
        except RunDeleted as error:
            self._say(str(error))
        if version:
            self._log.add(run_id, version)

    def _open_sink(self) -> Sink:
        if self._sink is None:
            try:
                self._sink = self._target.open()
            except (ImportError, OSError) as error:
                raise GivenUp(f"the tracker cannot be used here: {_first_line(error)}") from None
        return self._sink

    def _in_time(self, call: Callable[[], object]) -> None:
        """Make a call in another thread, and leave that alone after ``STUCK`` seconds; raises SendFailed then."""
        answer: Future[None] = Future()

        def make() -> None:
            try:
                call()
                answer.set_result(None)
            except BaseException as error:
                answer.set_exception(error)

        threading.Thread(target=make, daemon=True).start()
        if not wait([answer], STUCK).done:
            raise SendFailed(f"{self._target.service} did not answer for {STUCK:.0f} s")
        answer.result()
        if self._sink is not None:
            self.url = self._sink.url or self.url


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:300]
