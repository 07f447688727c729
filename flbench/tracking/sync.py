"""Mirror one job to its trackers from start to end: find each target, lock the job, send changes, count runs."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

from flbench.choices import TrackingMode, UsedTrackingMode
from flbench.errors import UserError
from flbench.messages import some_of
from flbench.store import Store
from flbench.tracking.jobs import Job, sweeps_by_run
from flbench.tracking.mirror import Counts, GivenUp, Mirror
from flbench.tracking.sink import NotTracked, Target, Tracker
from flbench.tracking.sweep_view import sweep_run_id

#: Seconds without progress after which a tracker is considered hanging and the process exits.
STUCK = 900


@dataclass(frozen=True)
class SyncResult:
    """How one job was mirrored to one tracker; ``problem`` is empty if nothing went wrong."""

    sweep: str
    tracker: str = ""
    mode: UsedTrackingMode = "off"
    counts: Counts | None = None
    told_sweep: bool = False
    url: str | None = None
    problem: str = ""
    note: str = ""

    @property
    def ok(self) -> bool:
        """Return whether all ended runs are mirrored."""
        return not self.problem and not (self.counts and self.counts.failed)

    def json(self) -> dict[str, Any]:
        """Return the result as plain JSON."""
        counts = self.counts
        return {
            **{name: value for name, value in asdict(self).items() if name != "counts"},
            **({**asdict(counts), "unfinished": counts.unfinished} if counts else {}),
        }

    def line(self, target: Target | None = None) -> str:
        """Return a line for the user; ``target`` is where the runs were sent, if any."""
        if self.counts is None or target is None:
            return f"{self.sweep}: {f'warning: {self.problem}' if self.problem else self.note}"
        counts = self.counts
        runs = some_of(counts.mirrored, counts.total, "run", "is")
        parts = [f"{self.sweep}: {runs} {target.where}, {counts.new} of them new"]
        parts += [f"{counts.failed} could not be sent"] if counts.failed else []
        parts += [self.problem] if self.problem else []
        parts += [target.hint] if target.hint and counts.mirrored else []
        parts += [self.url] if self.url and target.mode == "online" else []
        return ("" if self.ok else "warning: ") + "; ".join(parts)


class Output(Protocol):
    """How a sync speaks to the user."""

    def say(self, line: str) -> None:
        """Print a line."""

    def show(self, doing: str) -> None:
        """Show what the sync does, in place of what it did before."""


def sync_job(
    store: Store,
    name: str,
    make: Callable[[], Job],
    trackers: Sequence[Tracker],
    mode: TrackingMode | None,
    output: Output,
    *,
    beside: bool,
) -> list[SyncResult]:
    """Return the results of mirroring one job, one for each tracker; an error becomes one line for the user.

    ``make`` collects the job's runs; ``trackers`` and ``mode`` replace what its sweep file says, if given. ``beside``
    runs next to a sweep: until standard input closes, on idle cores only.
    """
    try:
        job = make()
    except UserError as error:
        results = [SyncResult(name, problem=str(error))]
        output.say(results[0].line())
        return results
    asked = bool(trackers) and not beside
    return [_sync_to(tracker, store, name, job, output, beside, asked) for tracker in job.chosen(trackers, mode)]


def _sync_to(
    tracker: Tracker, store: Store, name: str, job: Job, output: Output, beside: bool, asked: bool
) -> SyncResult:
    """Return how a job was mirrored to one tracker; that it is turned off is a problem if the user ``asked`` for it."""
    target = None
    try:
        target = tracker.target(store.root)
        result = _sync(target, store, SyncResult(name, tracker.name, target.mode), job, output, beside)
    except NotTracked as off:
        problem, note = (f"nothing is mirrored: {off}", "") if off.failed or asked else ("", str(off))
        result = SyncResult(name, tracker.name, problem=problem, note=note)
    except UserError as error:
        result = SyncResult(name, tracker.name, problem=str(error))
    except Exception as error:
        output.say(traceback.format_exc())
        result = SyncResult(name, tracker.name, problem=f"{type(error).__name__}: {error}")
    output.say(result.line(target))
    return result


def _sync(target: Target, store: Store, start: SyncResult, job: Job, output: Output, beside: bool) -> SyncResult:
    with _locked(job.folder / f"{start.tracker}.lock", output.say), _watchdog(target.service, output) as beat:
        mirror = Mirror(store, job.runs, sweeps_by_run(store), target, say=output.say, beat=beat)
        sent_sweep, problem = False, ""
        try:
            if beside:
                _follow(mirror)
            mirror.finish()
            if (sweep := job.sweep) is not None and (make_view := job.make_view) is not None:
                with TemporaryDirectory(prefix="flbench-figures-") as figures:
                    sent_sweep = mirror.send_sweep(
                        sweep_run_id(sweep), lambda: make_view(store, sweep, Path(figures), output.say)
                    )
        except GivenUp as error:
            problem = str(error)
        finally:
            mirror.close()
        return replace(start, counts=mirror.counts, told_sweep=sent_sweep, url=mirror.url, problem=problem)


def _follow(mirror: Mirror) -> None:
    """Mirror at low priority until standard input closes.

    On Linux the priority is one of this thread and of the processes that it starts, so what follows has the usual one.
    """
    with ThreadPoolExecutor(1, initializer=_yield_cores) as pool:
        pool.submit(mirror.follow, _standard_input_closes).result()
    _set_autogroup(0)


def _yield_cores() -> None:
    """Give training priority on the cores; kernels with autogroups need the second step."""
    os.nice(19)
    _set_autogroup(19)


def _set_autogroup(nice: int) -> None:
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(nice))


def _standard_input_closes(seconds: float) -> bool:
    """Wait up to ``seconds``; return whether standard input has closed."""
    readable, _, _ = select.select([0], [], [], seconds)
    return bool(readable) and not os.read(0, 1024)


@contextmanager
def _watchdog(service: str, output: Output) -> Iterator[Callable[[str], None]]:
    """Yield a function that shows a step; end this process after ``STUCK`` seconds without a call of it."""

    def end(*_: object) -> None:
        output.say(f"warning: {service} did nothing for {STUCK} s; `flbench sync` continues from here")
        os._exit(1)

    def beat(doing: str) -> None:
        signal.alarm(STUCK)
        output.show(doing)

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(STUCK)
    try:
        yield beat
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def _locked(path: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Wait until no other process mirrors the same job; skip the lock on file systems without locks."""
    with path.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another process that mirrors the same sweep")
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:
            pass
        yield
