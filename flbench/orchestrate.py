"""Start workers for a plan, adopt those that run already, and watch until all runs have ended (``flbench sweep``).

The orchestrator keeps no state of its own: workers claim runs in the store, and this process only starts workers while
runs are left to claim. After a kill, the next orchestrator finds the workers by their leases and continues.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Literal, Self

from flbench.config import Experiment
from flbench.errors import StoreUnusable, UserError
from flbench.launch import ROUND_SECONDS, Launcher, WorkersCrash, workers_worth
from flbench.progress import Progress, RunSnapshot, Watch
from flbench.store import CancelMark, LiveWorker, Plan, Store, read_search
from flbench.store.attempts import ending
from flbench.store.leases import HANGING

#: Least seconds between two reads of the store.
PERIOD = 0.25

#: Seconds that the workers have to exit once no run is left.
EXIT_SECONDS = 5


@dataclass
class Outcome:
    """How an orchestration ended.

    Attributes:
        launched: workers that it started.
        adopted: workers of the plan on this machine that another orchestrator had started.
        fingerprint: identifies the results (``Watch.fingerprint``).
    """

    progress: Progress
    launched: int = 0
    adopted: int = 0
    interrupted: bool = False
    failures: list[RunSnapshot] = field(default_factory=list)
    fingerprint: str = ""

    @property
    def exit_code(self) -> Literal[0, 1, 3, 130]:
        """Return 0 if all runs are done, 1 if some failed, 3 if some are left, 130 after an interrupt."""
        if self.interrupted:
            return 130
        if not self.progress.finished:
            return 3
        return 1 if self.progress.failed else 0


class Orchestrator:
    """Execute a plan to its end.

    Args:
        plan: NAME/HASH in the store.
        launcher: returns the launcher; called only if there is a run to execute.
        max_attempts: failed or lost attempts after which a run is given up.
    """

    def __init__(
        self,
        store: Store,
        plan: str,
        experiments: Sequence[Experiment],
        launcher: Callable[[], Launcher],
        *,
        max_attempts: int = 3,
    ) -> None:
        self._store, self._plan, self._max_attempts = store, plan, max_attempts
        self._show: Callable[[Progress], None] = lambda progress: None
        self._make_launcher = launcher
        self._watch = Watch(store, Plan.of(experiments), max_attempts, read_search(store.sweeps / plan))
        self._launched, self._cost = 0, 0.0
        self._last_end = -1, 0.0  # the number of ended runs, and when it was first seen while runs were active
        self._adopted: dict[str, LiveWorker] = {}
        self._starts_without_progress, self._last_counts = 0, (-1, -1, -1)

    def run(self, *, show: Callable[[Progress], None] | None = None, detach: bool = False) -> Outcome:
        """Start missing workers, adopt running ones, and watch until the plan has ended.

        Args:
            show: called with the progress after each read of the store.
            detach: only start the workers.

        Returns:
            How the orchestration ended.

        Raises:
            WorkersCrash: workers end right after they start.
            StoreUnusable: the disk is full, or cannot be read or written.
        """
        self._show = show or self._show
        with self._store.usable():
            return self._run(detach)

    def failures(self) -> list[RunSnapshot]:
        """Return the runs that were given up; also valid after ``run`` has raised."""
        return self._watch.failures()

    def _run(self, detach: bool) -> Outcome:
        CancelMark(self._store.sweeps / self._plan).clear()
        progress = self._watch.update()
        failures = self._watch.failures()
        fixable = [seen for seen in failures if seen.state.user_fixable and not seen.state.unreadable]
        for seen in fixable:  # the user may have fixed the reason
            self._store.run(seen.run_id).reset_failures()
        if fixable:
            self._watch.reset()
            progress = self._watch.update()
        if progress.finished:
            return self._outcome(progress)
        launcher = None
        with Interrupts() as interrupts:
            try:
                launcher = self._make_launcher()
                while not progress.finished:
                    self._show(progress)
                    if CancelMark(self._store.sweeps / self._plan).is_set():
                        self._drain(launcher, interrupts, progress)
                        return self._outcome(self._watch.update())
                    self._start_missing_workers(launcher, progress)
                    if detach and launcher.delayed and not self._launched:
                        raise UserError(f"no worker was started: {launcher.delayed}; run the same command again later")
                    if detach:
                        return self._outcome(progress)
                    progress = self._wait(launcher)
                self._show(progress)
                deadline = time.monotonic() + EXIT_SECONDS
                while launcher.alive() and time.monotonic() < deadline:  # no run is left for the workers
                    time.sleep(0.02)
            except KeyboardInterrupt:
                if launcher is not None:
                    self._drain(launcher, interrupts, progress)
                outcome = self._outcome(self._watch.update())
                outcome.interrupted = not outcome.progress.finished
                return outcome
        return self._outcome(progress)

    def _start_missing_workers(self, launcher: Launcher, progress: Progress) -> None:
        """Start workers for the runs that no worker has claimed, at most as many as the launcher has slots for."""
        self._kill_hanging_workers()
        here = self._adopt(launcher)
        alive = launcher.alive()
        # A worker that has ended since `progress` was read may have ended a run that is pending there.
        on_plan = max(progress.workers, alive + len(self._live_adopted()))
        room = launcher.slots - alive - len(here)
        if not on_plan:
            room = max(room, 1)  # else workers of another plan could block this one forever
        idle = max(0, on_plan - len(progress.active))
        worth = max(self._workers_worth(launcher, progress), on_plan + progress.out_of_memory)
        missing = min(room, progress.pending - idle, worth - on_plan)
        if missing > 0 and not launcher.delayed and self._has_disk_space(on_plan):
            self._stop_crash_loop(launcher, progress, missing)
            started = launcher.start(missing, min(missing, progress.out_of_memory))
            self._launched += started
            self._starts_without_progress += started

    def _workers_worth(self, launcher: Launcher, progress: Progress) -> int:
        """Return how many workers the work that is left is worth, by the speed of the finished runs.

        If no run has ended for a while, each is expected to take as long again: so slow runs get all workers soon.
        """
        now, ended = time.monotonic(), progress.done + progress.failed + progress.dropped
        if not progress.active or ended != self._last_end[0]:
            self._last_end = ended, now
        left = progress.rounds_total - progress.rounds_done - progress.rounds_given_up
        per_round = ROUND_SECONDS if progress.seconds_per_round is None else progress.seconds_per_round
        expected = left * per_round if progress.rounds_total else progress.pending * launcher.start_seconds
        return workers_worth(max(expected, len(progress.active) * (now - self._last_end[1])), launcher.start_seconds)

    def _kill_hanging_workers(self) -> None:
        """Kill workers of this plan on this machine whose heartbeats have stopped, so that their runs become free."""
        for worker in self._store.live_workers():
            if worker.plan == self._plan and self._store.liveness.hangs(worker.lease):
                message = f"its worker was killed: it had no heartbeat for {HANGING:.0f} s"
                self._store.record_death(worker.lease.token, ending("signal", message))
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(worker.lease.pid, signal.SIGKILL)

    def _has_disk_space(self, on_plan: int) -> bool:
        """Return whether the disk has space for more workers; raise StoreUnusable if not and no worker is left."""
        try:
            if any(seen.outcome == "disk_full" for seen in self._watch.failures()):
                raise StoreUnusable(
                    f"the disk is full: free some space for the store {self._store.root} (`flbench gc` deletes "
                    "superseded checkpoints), then run the same command again to continue"
                )
            self._store.check_room()
        except StoreUnusable:
            if on_plan:  # their runs may still fit
                return False
            raise
        return True

    def _adopt(self, launcher: Launcher) -> list[LiveWorker]:
        """Return the workers on this machine that this launcher did not start; adopt those of this plan."""
        own = launcher.tokens()
        others = (worker for worker in self._store.live_workers() if worker.lease.token not in own)
        here = [worker for worker in others if worker.lease.is_local()]
        self._adopted.update((worker.lease.token, worker) for worker in here if worker.plan == self._plan)
        return here

    def _stop_crash_loop(self, launcher: Launcher, progress: Progress, starting: int) -> None:
        """Raise WorkersCrash if many workers were started since the runs last made progress."""
        counts = (progress.done, progress.failed, progress.rounds_done)
        if counts != self._last_counts:
            self._starts_without_progress = 0
        self._last_counts = counts
        if self._starts_without_progress + starting > launcher.slots * self._max_attempts + 2:
            raise WorkersCrash(f"workers end right after they start; {launcher.crash_log() or 'none left a log'}")

    def _wait(self, launcher: Launcher) -> Progress:
        """Sleep, then read the progress; at most a tenth of the time goes into reading."""
        time.sleep(max(PERIOD, 10 * self._cost))
        # Count the workers first: if one ends in between, its run's end is read with the runs.
        workers = launcher.alive() + len(self._live_adopted())
        began = time.monotonic()
        progress = self._watch.update(workers)
        self._cost = time.monotonic() - began
        return replace(progress, delayed=launcher.delayed)

    def _live_adopted(self) -> list[LiveWorker]:
        """Return the adopted workers that are still alive."""
        alive = self._store.liveness.alive
        paths = ((worker, self._store.workers / token / "lease.json") for token, worker in self._adopted.items())
        return [worker for worker, path in paths if path.exists() and alive(worker.lease, path)]

    def _drain(self, launcher: Launcher, interrupts: Interrupts, progress: Progress) -> None:
        """Ask the plan's workers to stop and wait for them; kill them if the user interrupts a second time.

        ``progress`` is shown at once, as an answer to the user: reading a large store takes seconds.
        """
        self._show(replace(progress, stopping=True))
        launcher.drain()
        self._adopt(launcher)
        for worker in self._live_adopted():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(worker.lease.pid, signal.SIGTERM)
        while launcher.alive() or self._live_adopted():
            if interrupts.count > 1:
                launcher.kill()
                return
            progress = self._watch.update(launcher.alive() + len(self._live_adopted()))
            self._show(replace(progress, stopping=True))
            time.sleep(PERIOD)

    def _outcome(self, progress: Progress) -> Outcome:
        return Outcome(
            progress=progress,
            launched=self._launched,
            adopted=len(self._adopted),
            failures=self._watch.failures(),
            fingerprint=self._watch.fingerprint(),
        )


class Interrupts:
    """A context in which the first SIGINT or SIGTERM raises KeyboardInterrupt and later ones are only counted.

    An exception for every signal could interrupt the handling of the one before. A signal that the parent process
    ignores stays ignored, so that a script's background job survives when the user interrupts the script.
    """

    def __init__(self) -> None:
        self.count = 0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # Python allows handlers only there
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._interrupt)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, self._before)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _interrupt(self, *_: object) -> None:
        self.count += 1
        if self.count == 1:
            raise KeyboardInterrupt
