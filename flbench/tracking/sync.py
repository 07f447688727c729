"""Mirror one job to its trackers from start to end: find each target, lock the job, send changes, count runs."""

from __future__ import annotations

import os
import select
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

from flbench.choices import TrackingMode, UsedTrackingMode
from flbench.errors import UserError
from flbench.messages import some_of
from flbench.store import Store
from flbench.sweeps import Sweep
from flbench.tracking.jobs import Job, sweeps_by_run
from flbench.tracking.mirror import GivenUp, Mirror
from flbench.tracking.sink import NotTracked, Target, Tracker


def sweep_run_id(sweep: Sweep) -> str:
    """Return the id of the run that shows a sweep."""
    return f"sweep-{sweep.spec_hash}"


@dataclass(frozen=True)
class SyncResult:
    """How one job was mirrored to one tracker; ``problem`` is empty if nothing went wrong."""

    sweep: str
    tracker: str = ""
    mode: UsedTrackingMode = "off"
    told_sweep: bool = False
    url: str | None = None
    problem: str = ""
    note: str = ""
    counts: Mapping[str, int] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Return whether all ended runs are mirrored."""
        return not self.problem and not self.counts.get("failed")

    def json(self) -> dict[str, Any]:
        """Return the result as plain JSON."""
        return {**{name: value for name, value in asdict(self).items() if name != "counts"}, **self.counts}

    def line(self, target: Target | None = None) -> str:
        """Return a line for the user; ``target`` is where the runs were sent, if any."""
        if not self.counts or target is None:
            return f"{self.sweep}: {f'warning: {self.problem}' if self.problem else self.note}"
        mirrored, failed = self.counts["mirrored"], self.counts["failed"]
        runs = some_of(mirrored, self.counts["total"], "run", "is")
        parts = [f"{self.sweep}: {runs} {target.where}, {self.counts['new']} of them new"]
        parts += [f"{failed} could not be sent"] if failed else []
        parts += [self.problem] if self.problem else []
        parts += [target.hint] if target.hint and mirrored else []
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
    with _locked(job.folder / f"{start.tracker}.lock", output.say):
        mirror = Mirror(store, job.runs, sweeps_by_run(store), target, say=output.say, show=output.show)
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

    On Linux the priority is one of this thread and of what it starts, so what follows has the usual one. Kernels with
    autogroups compare sessions first: this process has one of its own.
    """
    _set_autogroup(19)
    with ThreadPoolExecutor(1, initializer=os.nice, initargs=(19,)) as pool:
        pool.submit(mirror.follow, _standard_input_closes).result()
    _set_autogroup(0)


def _set_autogroup(nice: int) -> None:
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(nice))


def _standard_input_closes(seconds: float) -> bool:
    """Wait up to ``seconds``; return whether standard input has closed."""
    readable, _, _ = select.select([0], [], [], seconds)
    return bool(readable) and not os.read(0, 1024)


@contextmanager
def _locked(path: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Wait until no other process mirrors the same job; skip the lock on file systems without locks."""
    from filelock import FileLock, Timeout

    lock = FileLock(path)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        say("waiting for another process that mirrors the same sweep")
        lock.acquire()
    except OSError:
        pass
    try:
        yield
    finally:
        lock.release()
