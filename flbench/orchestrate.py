"""Plan -> launch -> watch -> adopt: what ``flbench sweep`` does.

The orchestrator holds nothing that would be lost with it: workers claim runs from the store by themselves, and this
process only sees to it that there are workers while there is something to claim. Killed and started again, it finds the
workers of its predecessor by their leases, and carries on.
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
from flbench.errors import StoreUnusable
from flbench.launch import Launcher, WorkersCrash
from flbench.progress import Progress, Seen, Watch
from flbench.store import LiveWorker, Plan, Store
from flbench.store.attempts import ending
from flbench.store.leases import HANGING

#: Seconds between two looks at the store, at least.
PERIOD = 0.25


@dataclass
class Outcome:
    """How an orchestration ended."""

    progress: Progress
    launched: int = 0
    adopted: int = 0
    interrupted: bool = False
    failures: list[Seen] = field(default_factory=list)
    fingerprint: str = ""

    @property
    def exit_code(self) -> Literal[0, 1, 3, 130]:
        """0 all done, 1 some failed, 3 something is left to do, 130 interrupted."""
        if self.interrupted:
            return 130
        if not self.progress.finished:
            return 3
        return 1 if self.progress.failed else 0


class Orchestrator:
    """Sees a plan through to its end, with the workers of one launcher and whoever else works on it."""

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
        self._watch = Watch(store, Plan.of(experiments), max_attempts)
        self._launched, self._cost = 0, 0.0
        self._adopted: dict[str, LiveWorker] = {}
        self._barren, self._signature = 0, (-1, -1, -1)

    def run(self, *, show: Callable[[Progress], None] | None = None, detach: bool = False) -> Outcome:
        """Start missing workers, adopt running ones, and watch until the plan has ended.

        Args:
            show: called with the progress again and again.
            detach: only start the workers.

        Returns:
            How the sweep ended.

        Raises:
            WorkersCrash: workers end as soon as they begin.
            StoreUnusable: the disk is full, or cannot be read or written.
        """
        self._show = show or self._show
        with self._store.usable():
            return self._run(detach)

    def failures(self) -> list[Seen]:
        """The runs that were given up, as far as is known: also where ``run`` has raised."""
        return self._watch.failures()

    def _run(self, detach: bool) -> Outcome:
        self._store.mark(self._plan).clear()
        progress = self._watch.update()
        if progress.failed and self._forgive():
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
                    if self._store.mark(self._plan).is_set():
                        self._drain(launcher, interrupts)
                        return self._outcome(self._watch.update())
                    self._see_to_workers(launcher, progress)
                    if detach:
                        return self._outcome(progress)
                    progress = self._wait_and_look(launcher)
                self._show(progress)
                self._settle(launcher)
            except KeyboardInterrupt:
                return self._interrupted(launcher, interrupts)
        return self._outcome(progress)

    def _see_to_workers(self, launcher: Launcher, progress: Progress) -> None:
        """Start workers for what nobody has claimed, as far as there is room on this machine."""
        self._end_hanging()
        here = self._adopt(launcher)
        alive = launcher.alive()
        # A worker that ended after the count may have ended its run as well: what looked pending need not be.
        on_plan = max(progress.workers, alive + len(self._living_adopted()))
        room = launcher.slots - alive - len(here)
        if not on_plan:
            room = max(room, 1)  # workers of another plan shall not keep this one waiting for ever
        idle = max(0, on_plan - len(progress.active))
        missing = min(room, progress.pending - idle)
        if missing > 0 and self._has_room(on_plan):
            self._guard(launcher, progress, missing)
            launcher.start(missing, min(missing, progress.out_of_memory))
            self._launched += missing

    def _end_hanging(self) -> None:
        """Kill workers of this plan that are processes here and give no sign of life: what they hold is freed."""
        for worker in self._store.hanging_workers():
            if worker.plan == self._plan:
                message = f"its worker gave no sign of life for {HANGING:.0f} s and was killed"
                self._store.record_death(worker.lease.token, ending("signal", message))
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(worker.lease.pid, signal.SIGKILL)

    def _has_room(self, on_plan: int) -> bool:
        """Whether the disk lets further workers begin; raises StoreUnusable where it does not and nobody is left."""
        try:
            if any(seen.outcome == "disk_full" for seen in self._watch.failures()):
                raise StoreUnusable(
                    f"the disk is full where the store {self._store.root} lies; `flbench gc` prunes checkpoints. "
                    "Then call the same command again: it goes on with what had to end"
                )
            self._store.check_room()
        except StoreUnusable:
            if on_plan:  # they may still come to their end, and are not kept from it
                return False
            raise
        return True

    def _adopt(self, launcher: Launcher) -> list[LiveWorker]:
        """Workers on this machine that somebody else started; those on this plan are adopted."""
        own = launcher.tokens()
        others = (worker for worker in self._store.live_workers() if worker.lease.token not in own)
        here = [worker for worker in others if worker.lease.is_local()]
        self._adopted.update((worker.lease.token, worker) for worker in here if worker.plan == self._plan)
        return here

    def _guard(self, launcher: Launcher, progress: Progress, starting: int) -> None:
        """Stop where workers are started over and over and nothing comes of it."""
        signature = (progress.done, progress.failed, progress.rounds_done)
        self._barren = starting if signature != self._signature else self._barren + starting
        self._signature = signature
        if self._barren > launcher.slots * self._max_attempts + 2:
            raise WorkersCrash(f"workers end as soon as they begin; {launcher.crash_log() or 'they left no log'}")

    def _wait_and_look(self, launcher: Launcher) -> Progress:
        time.sleep(max(PERIOD, 10 * self._cost))
        # Workers are counted before runs: one that ended meanwhile has left its mark on a run.
        workers = launcher.alive() + len(self._living_adopted())
        began = time.monotonic()
        progress = self._watch.update(workers)
        self._cost = time.monotonic() - began
        return progress

    def _living_adopted(self) -> list[LiveWorker]:
        alive = self._store.liveness.alive
        paths = ((worker, self._store.workers / token / "lease.json") for token, worker in self._adopted.items())
        return [worker for worker, path in paths if path.exists() and alive(worker.lease, path)]

    def _settle(self, launcher: Launcher) -> None:
        """Give workers that find nothing left the moment they need to go."""
        deadline = time.monotonic() + 5
        while launcher.alive() and time.monotonic() < deadline:
            time.sleep(0.02)

    def _interrupted(self, launcher: Launcher | None, interrupts: Interrupts) -> Outcome:
        """Let every worker of this plan finish its round; a second Ctrl-C does not wait."""
        if launcher is not None:
            self._drain(launcher, interrupts)
        outcome = self._outcome(self._watch.update())
        outcome.interrupted = not outcome.progress.finished
        return outcome

    def _drain(self, launcher: Launcher, interrupts: Interrupts) -> None:
        """Ask the workers of this plan to stop, and wait for them unless the user interrupts a second time."""
        launcher.drain()
        self._adopt(launcher)
        for worker in self._living_adopted():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(worker.lease.pid, signal.SIGTERM)
        while launcher.alive() or self._living_adopted():
            if interrupts.count > 1:
                launcher.kill()
                return
            progress = self._watch.update(launcher.alive() + len(self._living_adopted()))
            self._show(replace(progress, stopping=True))
            time.sleep(PERIOD)

    def _forgive(self) -> bool:
        """Try again what failed for a reason that the user has had the occasion to mend."""
        failures = self._watch.failures()
        user_fixable = [seen for seen in failures if seen.state.user_fixable and not seen.state.unreadable]
        for seen in user_fixable:
            self._store.run(seen.run_id).reset_failures()
        return bool(user_fixable)

    def _outcome(self, progress: Progress) -> Outcome:
        return Outcome(
            progress=progress,
            launched=self._launched,
            adopted=len(self._adopted),
            failures=self._watch.failures(),
            fingerprint=self._watch.fingerprint(),
        )


class Interrupts:
    """While entered, the first SIGINT or SIGTERM raises KeyboardInterrupt, and further ones are only counted.

    An exception for each signal could strike in the middle of the reaction to the one before. A signal that the caller
    ignores stays ignored: a script's background job shall not end when the user interrupts the script.
    """

    def __init__(self) -> None:
        self.count = 0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # no other thread may set handlers
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
