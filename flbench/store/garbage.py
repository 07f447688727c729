"""Superseded and stale files: found first, so that they can be shown, and checked again before they are deleted.

Never garbage: results, metrics, logs, the newest sound checkpoint of a run, and all files of a run that a live worker
executes.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from flbench.store import files
from flbench.store.attempts import AttemptDir, Checkpoint
from flbench.store.leases import Lease
from flbench.store.plans import plan_ids
from flbench.store.root import Store

#: Age in seconds after which a staged file that was never renamed, or a silent worker, counts as abandoned.
GRACE = 3600.0

Kind = Literal["checkpoints", "quarantine", "staging", "workers", "orphans"]

#: What each kind is, for people.
KINDS: dict[Kind, str] = {
    "checkpoints": "checkpoints of finished runs that newer ones supersede",
    "quarantine": "damaged files that were set aside",
    "staging": "files that were never finished",
    "workers": "heartbeats of workers that are dead",
    "orphans": "unfinished runs that no sweep names",
}

_STAGED = re.compile(r"\..*\.[0-9a-f]{32}\.tmp")


@dataclass(frozen=True)
class Garbage:
    """A file, or a whole directory, that can be deleted."""

    kind: Kind
    path: Path
    bytes: int


def find(
    store: Store,
    *,
    last_checkpoints: bool = False,
    orphans: bool = False,
    warn: Callable[[str], object] = lambda line: None,
) -> Iterator[Garbage]:
    """Yield all garbage of a store.

    Args:
        store: the store.
        last_checkpoints: include the last checkpoints of finished runs, which can no longer be extended then.
        orphans: include unfinished runs that no plan names.
        warn: called with a line about each run that is skipped because a file of it cannot be read.

    Raises:
        StoreUnusable: ``orphans``, and a plan cannot be read: it might name any run.
    """
    planned: set[str] = set()
    for directory in store.sweep_dirs() if orphans else ():
        planned |= plan_ids(directory / "plan.jsonl")
    waiting: set[str] = set()
    for run_id in store.run_ids():
        run = store.run(run_id)
        try:
            attempts = run.attempts()
            last = attempts[-1] if attempts else None
            if last and last.exit() is None and store.liveness.alive(last.lease(), last.path / "lease.json"):
                continue  # a live worker executes the run
            if any(path.suffix == ".json" and path.name[0] != "." for path in (run.path / "results").glob("*")):
                yield from _old_checkpoints(attempts, keep=not last_checkpoints)
                continue
            is_old = orphans and _is_old(store, [run.path, *(attempt.path for attempt in attempts)])
            if is_old and run_id not in planned:
                yield Garbage("orphans", run.path, _size(run.path))
                continue
            waiting |= {lease.token for attempt in attempts if attempt.exit() is None and (lease := attempt.lease())}
        except OSError as error:
            warn(f"left alone: run {run_id} cannot be read: {files.reason(error)}")
            waiting |= {path.name for path in store.workers.iterdir()}  # the run may refer to any of them
    yield from (Garbage("quarantine", path, _size(path)) for path in sorted(store.quarantine.glob("*")))
    yield from _staging(store)
    yield from _dead_workers(store, waiting)


def remove(store: Store, found: Collection[Garbage], *, last_checkpoints: bool, orphans: bool) -> list[Garbage]:
    """Delete what was found and still is garbage; return what was deleted."""
    still = {one.path for one in find(store, last_checkpoints=last_checkpoints, orphans=orphans)}
    gone = [one for one in found if one.path in still and _remove(store, one)]
    for one in gone:
        if one.kind in ("workers", "quarantine"):
            with suppress(OSError):  # not empty
                one.path.parent.rmdir()
    return gone


def _old_checkpoints(attempts: list[AttemptDir], *, keep: bool) -> Iterator[Garbage]:
    """Yield all checkpoints except the newest whole one."""
    there = [(path, attempt.number) for attempt in attempts for path in attempt.checkpoint_files()]
    there.sort(key=lambda pair: (pair[0].name.partition("-")[0], pair[1]), reverse=True)
    for path, number in there:
        if keep and len(there) == 1:
            return  # the usual case: no need to read it
        if keep and Checkpoint.at(path, number) is not None:
            keep = False
            continue
        yield Garbage("checkpoints", path, _size(path))


def _staging(store: Store) -> Iterator[Garbage]:
    for folder, directories, names in os.walk(store.root):
        for name in [name for name in (*directories, *names) if _STAGED.fullmatch(name)]:
            path = Path(folder, name)
            if _is_old(store, [path]):
                yield Garbage("staging", path, _size(path))
        directories[:] = [name for name in directories if not _STAGED.fullmatch(name)]


def _dead_workers(store: Store, waiting: Collection[str]) -> Iterator[Garbage]:
    """Yield the files of dead workers except logs, and except exit.json of workers that ``waiting`` runs refer to."""
    for directory in sorted(store.workers.glob("*/")):
        path = directory / "lease.json"
        try:
            lease = Lease.read(path)
        except OSError:
            continue  # the worker may be alive
        there = [directory / name for name in ("lease.json", "heartbeat", "exit.json") if (directory / name).exists()]
        if (lease is not None and store.liveness.alive(lease, path)) or not _is_old(store, [directory, *there]):
            continue
        for path in there:
            if not (path.name == "exit.json" and directory.name in waiting):
                yield Garbage("workers", path, _size(path))
        log = directory / "log.txt"
        if log.exists() and not log.stat().st_size:
            yield Garbage("workers", log, 0)


def _is_old(store: Store, paths: list[Path]) -> bool:
    """Return whether all were last modified long ago, by the file system's own time; what is not known is not old."""
    ages = [store.liveness.age(path) for path in paths]
    return all(age is not None and age > GRACE for age in ages)


def _size(path: Path) -> int:
    """Return the number of bytes in a file or below a directory; links are not followed."""
    try:
        if path.is_symlink() or not path.is_dir():
            return path.lstat().st_size
        return sum(_size(below) for below in path.iterdir())
    except OSError:
        return 0  # deleted meanwhile


def _remove(store: Store, garbage: Garbage) -> bool:
    path = garbage.path
    try:
        if path.is_symlink() or not path.is_dir():
            files.disk.remove(path)
        else:
            # Renamed first, in one step, so that no process sees half a run.
            aside = files.temporary(store.root / path.name)
            files.disk.rename(path, aside)
            shutil.rmtree(aside)
    except OSError:
        return False
    return True
