"""Mirror one job from start to end: decide the mode, lock the job, send changes, count runs."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from flbench.choices import TrackingMode, UsedTrackingMode
from flbench.errors import UserError
from flbench.store import Store
from flbench.tracking.jobs import Job, sweeps_by_run
from flbench.tracking.mirror import Counts, GivenUp, Mirror
from flbench.tracking.mode import choose
from flbench.tracking.sweep_view import sweep_run_id, sweep_view
from flbench.tracking.sync_log import SyncLog
from flbench.tracking.wandb_sink import WandbSink

#: Seconds without progress after which wandb is considered hanging and the process exits.
STUCK = 900


@dataclass(frozen=True)
class SyncResult:
    """How one job was mirrored; ``problem`` is empty if nothing went wrong."""

    sweep: str
    mode: UsedTrackingMode
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

    def line(self, store: Path) -> str:
        """Return a line for the user."""
        if self.counts is None:
            return f"{self.sweep}: {f'warning: {self.problem}' if self.problem else self.note}"
        counts, offline = self.counts, self.mode == "offline"
        where = "in files" if offline else "on W&B"
        parts = [f"{self.sweep}: {counts.mirrored} of {counts.total} runs are {where}, {counts.new} of them new"]
        parts += [f"{counts.failed} could not be sent"] if counts.failed else []
        parts += [self.problem] if self.problem else []
        parts += [f"upload: wandb sync {store}/wandb/offline-run-*"] if offline and counts.mirrored else []
        parts += [self.url] if self.url and not offline else []
        return ("" if self.ok else "warning: ") + "; ".join(parts)


def sync_job(
    store: Store,
    name: str,
    make: Callable[[], Job],
    mode: TrackingMode | None,
    say: Callable[[str], None],
    *,
    beside: bool,
) -> SyncResult:
    """Return the result of mirroring one job; an error becomes one line for the user.

    ``make`` collects the job's runs, and ``say`` reports a line to the user. Without ``mode`` the sweep file decides.
    ``beside`` runs next to a sweep: until standard input closes, on idle cores only.
    """
    try:
        result = _sync(store, name, make(), mode, say, beside)
    except UserError as error:
        result = SyncResult(name, "off", problem=str(error))
    except Exception as error:
        say(traceback.format_exc())
        result = SyncResult(name, "off", problem=f"{type(error).__name__}: {error}")
    say(result.line(store.root))
    return result


def _sync(
    store: Store, name: str, job: Job, mode: TrackingMode | None, say: Callable[[str], None], beside: bool
) -> SyncResult:
    choice, project, entity = choose(mode or job.wandb.mode), job.wandb.project, job.wandb.entity
    if choice.mode == "off":
        note, problem = ("", f"nothing is mirrored: {choice.note}") if choice.failed else (choice.note, "")
        return SyncResult(name, "off", problem=problem, note=note)
    if beside:
        _yield_cores()
    folder, server = store.root / "wandb", choice.server if choice.mode == "online" else "files"
    with _locked(job.lock, say), _watchdog(say) as beat:
        mirror = Mirror(
            store,
            job.runs,
            sweeps_by_run(store),
            SyncLog(folder / "mirrored.jsonl", f"{server}/{entity or ''}/{project}"),
            partial(WandbSink, choice.mode, choice.server, folder, project, entity),
            mode=choice.mode,
            say=say,
            beat=beat,
        )
        sent_sweep, problem = False, ""
        try:
            if beside:
                mirror.follow(_standard_input_closes)
            mirror.finish()
            if (sweep := job.sweep) is not None:
                with TemporaryDirectory(prefix="flbench-figures-") as figures:
                    sent_sweep = mirror.send_sweep(
                        sweep_run_id(sweep), lambda: sweep_view(store, sweep, Path(figures), say)
                    )
        except GivenUp as error:
            problem = str(error)
        finally:
            mirror.close()
        return SyncResult(name, choice.mode, mirror.counts, sent_sweep, mirror.url, problem)


def _yield_cores() -> None:
    """Give training priority on the cores; kernels with autogroups need the second step."""
    os.nice(19)
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text("19")


def _standard_input_closes(seconds: float) -> bool:
    """Wait up to ``seconds``; return whether standard input has closed."""
    readable, _, _ = select.select([0], [], [], seconds)
    return bool(readable) and not os.read(0, 1024)


@contextmanager
def _watchdog(say: Callable[[str], None]) -> Iterator[Callable[[], object]]:
    """End this process after ``STUCK`` seconds without a call of the function that this yields."""

    def end(*_: object) -> None:
        say(f"warning: wandb did nothing for {STUCK} s; `flbench sync` continues from here")
        os._exit(1)

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(STUCK)
    try:
        yield partial(signal.alarm, STUCK)
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
