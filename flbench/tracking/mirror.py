"""What is told to W&B when: finished runs once and whole, running ones as they go on, a sweep at its end.

Everything here may fail at any time and nobody is waiting for it. A failure is a warning, and what was not told is told
the next time.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from flbench.config import digest
from flbench.store import RunDir, RunState, Store, Wish
from flbench.tracking.memory import Memory, Told
from flbench.tracking.view import Board, View, Viewer
from flbench.tracking.writer import Session, Writer

#: Runs that are told while they go on, at most; others are told when they have ended.
MOST_OPEN = 8

#: Seconds a run must have been going on to be told while it does, and between two looks at the store, at least.
LIVE_AFTER, PERIOD = 20.0, 2.0

#: Seconds between the beginnings of two runs on a server, and in files: whoever trains needs the machine more.
PACE = {"online": 0.5, "offline": 0.05}

#: Failures in a row after which it is not the run that is to blame; as many a single run is granted beside a sweep.
MOST_FAILURES = 3

#: Seconds of rest after so many, the first time and at most; every time doubles it.
FIRST_REST, LONGEST_REST = 15.0, 600.0

#: What the server says of a run that its owner deleted: its id is never free again (wandb#1192).
DELETED = "previously created and deleted"


class GivenUp(Exception):
    """W&B cannot be told anything at present; the message says why."""


@dataclass(frozen=True)
class Tally:
    """How far a sweep is mirrored: ``mirrored`` runs are told as they are now, ``new`` of them by this process."""

    total: int
    mirrored: int
    new: int
    failed: int

    @property
    def unfinished(self) -> int:
        """Runs that have come to no end yet."""
        return self.total - self.mirrored - self.failed


class Mirror:
    """Mirrors the runs of one sweep.

    Args:
        store: where the runs are.
        wishes: the runs by their ids, and how far each is wanted.
        memory: what was told already.
        viewer: what is told of a run.
        writer: opens W&B; called when there is something to tell.
        say: takes a line for people.
        beat: called whenever something was done; a watchdog may listen.
    """

    def __init__(
        self,
        store: Store,
        wishes: Mapping[str, Wish],
        memory: Memory,
        viewer: Viewer,
        writer: Callable[[], Writer],
        *,
        mode: Literal["online", "offline"],
        say: Callable[[str], None],
        beat: Callable[[], None] = lambda: None,
    ) -> None:
        self._store, self._memory, self._viewer = store, memory, viewer
        self._make_writer, self._mode, self._say, self._beat = writer, mode, say, beat
        self._writer: Writer | None = None
        self._open = dict(wishes)
        self._total = len(self._open)
        self._told: dict[str, str] = {}
        self._failed: set[str] = set()
        self._sessions: dict[str, Session] = {}
        self._first_seen: dict[str, float] = {}
        self._strikes: Counter[str] = Counter()
        self._in_a_row, self._rests, self._rest_until = 0, 0, 0.0
        self._new, self._next_begin = 0, 0.0

    @property
    def tally(self) -> Tally:
        """How far it is."""
        return Tally(self._total, len(self._told), self._new, len(self._failed))

    @property
    def url(self) -> str | None:
        """Where the runs are shown; None where that is unknown."""
        return self._writer.url if self._writer else None

    def follow(self, wait: Callable[[float], bool]) -> None:
        """Tell what happens, until ``wait(seconds)`` says that it is over; then tell the rest, see ``finish``."""
        cost = 0.0
        while not wait(max(PERIOD, 10 * cost)):
            self._beat()
            if time.monotonic() >= self._rest_until:
                began = time.monotonic()
                self._look()
                cost = min(60.0, time.monotonic() - began)

    def finish(self) -> None:
        """Tell every run that has come to its end and was not told yet, trying twice; raises GivenUp."""
        self._in_a_row = 0
        self._failed.clear()
        for _ in range(2):
            again = []
            for run_id in [*self._sessions, *(other for other in self._open if other not in self._sessions)]:
                if not self._see(run_id, last=True):
                    continue
                again.append(run_id)
                if self._in_a_row >= MOST_FAILURES:
                    raise GivenUp("gave up after several failures in a row")
            if not again:
                return
        self._failed.update(again)

    def show(self, run_id: str, make: Callable[[], Board]) -> bool:
        """Tell the sweep itself, if something of it has changed; say whether it was told; raises GivenUp."""
        if not self._told:
            return False
        stamp = digest([sorted(self._told.items()), sorted(self._failed), self._total])
        if (told := self._memory.told(run_id)) is not None and told.digest == stamp:
            return False
        try:
            segment = self._opened().show(make())
            self._memory.remember(run_id, Told(stamp, segment))
        except Exception as error:
            raise GivenUp(f"the sweep's table and figures could not be told: {_text(error)}") from None
        self._beat()
        return True

    def close(self) -> None:
        """Let go of W&B."""
        if self._writer is not None:
            self._writer.close()

    def _look(self) -> None:
        self._memory.refresh()
        for run_id in list(self._open):
            if self._strikes[run_id] < MOST_FAILURES:
                self._see(run_id, last=False)
            if time.monotonic() < self._rest_until:
                return

    def _see(self, run_id: str, *, last: bool) -> bool:
        """Look at one run and tell what is to be told; say whether that failed."""
        self._beat()
        try:
            self._tell_about(self._store.run(run_id), self._open[run_id], last)
        except GivenUp:
            raise
        except Exception as error:
            self._note_failure(run_id, error, last)
            return True
        return False

    def _tell_about(self, run: RunDir, wish: Wish, last: bool) -> None:
        state = run.state(wish)
        if (state.status == "done" or last) and (found := self._viewer.finished(run)) is not None:
            view, result = found
            self._tell(view, lambda: run.metrics(result))
        elif last and state.status in ("failed", "lost"):
            if (failure := self._viewer.failed(run, state)) is not None:
                self._tell(failure, lambda: run.metrics())
        elif state.status == "running" and not last:
            self._tell_running(run, state, wish)
        elif (session := self._sessions.pop(run.run_id, None)) is not None:
            session.end(1)  # it was interrupted, and will be told anew

    def _tell(self, view: View, records: Callable[[], Sequence[dict[str, Any]]]) -> None:
        """Tell a run that has ended, unless W&B has it so."""
        told = self._memory.told(view.run_id)
        if told is None or told.digest != view.digest:
            self._memory.remember(view.run_id, Told(view.digest, self._tell_whole(view, records())))
            self._new += 1
            self._in_a_row, self._rests = 0, 0
            self._beat()
        self._told[view.run_id] = view.digest
        self._failed.discard(view.run_id)
        del self._open[view.run_id]

    def _tell_whole(self, view: View, records: Sequence[dict[str, Any]]) -> str:
        try:
            session = self._session(view, records)
            session.log(records)
            del self._sessions[view.run_id]
            return session.finish(view)
        except Exception as error:
            if DELETED not in str(error):
                raise
            self._say(f"run {view.run_id} was deleted on W&B and stays so")
            return ""

    def _tell_running(self, run: RunDir, state: RunState, wish: Wish) -> None:
        """Tell what is new of a run that goes on, if it is one of the few that are told so."""
        since = self._first_seen.setdefault(run.run_id, time.monotonic())
        if self._mode == "offline" or time.monotonic() - since < LIVE_AFTER:
            return
        if run.run_id not in self._sessions and len(self._sessions) >= MOST_OPEN:
            return
        view = self._viewer.running(run, state, wish.rounds)
        records = run.attempts()[-1].records()
        if view is not None and records:
            self._session(view, records).log(records)
            self._beat()

    def _session(self, view: View, records: Sequence[dict[str, Any]]) -> Session:
        """The open session of a run, begun (again) where there is none that these records continue."""
        session = self._sessions.pop(view.run_id, None)
        if session is not None and not session.begins(records):
            session.end(1)
            session = None
        if session is None:
            time.sleep(max(0.0, self._next_begin - time.monotonic()))
            self._next_begin = time.monotonic() + PACE[self._mode]
            session = self._opened().open(view)
        self._sessions[view.run_id] = session
        return session

    def _opened(self) -> Writer:
        if self._writer is None:
            try:
                self._writer = self._make_writer()
            except (ImportError, OSError) as error:
                raise GivenUp(f"wandb cannot be used here: {_text(error)}") from None
        return self._writer

    def _note_failure(self, run_id: str, error: Exception, last: bool) -> None:
        self._say(f"warning: run {run_id} could not be told: {_text(error)}")
        # wandb's service may be gone, and all open runs with it: they are told anew.
        self._sessions.clear()
        if self._writer is not None:
            self._writer.restart()
        self._strikes[run_id] += not self._in_a_row  # it alone is to blame where others went well before it
        self._in_a_row += 1
        if self._in_a_row >= MOST_FAILURES and not last:
            rest = min(LONGEST_REST, FIRST_REST * 2**self._rests)
            self._rests += 1
            self._rest_until = time.monotonic() + rest
            self._say(f"warning: W&B does not work at present; the next try is in {rest:.0f} s")


def _text(error: Exception) -> str:
    first, *_ = (str(error) or type(error).__name__).splitlines()
    return first[:300]
