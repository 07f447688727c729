"""The store's root: open, create, and find runs, sweeps and workers."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from flbench.config import Experiment
from flbench.errors import StoreUnusable, UserError
from flbench.store import files, strict_json
from flbench.store.claims import RESERVE, RESERVED, Attempt
from flbench.store.leases import Lease, Liveness, LiveWorker
from flbench.store.names import is_name, is_run_id
from flbench.store.plans import Entry, plan_ids, read_entries
from flbench.store.results import RunRequest
from flbench.store.runs import RunDir
from flbench.store.strict_json import SCHEMA

#: Bytes of disk space that must be free for a run to start.
ROOM = 32 << 20

#: Ids that an error message lists at most.
MOST_IDS = 8

#: What a store's directory may contain besides format.json.
PARTS = frozenset({"runs", "sweeps", "workers", "submissions", "weights", "quarantine", "wandb", "tensorboard"})


class Store:
    """A directory of runs, sweeps and workers.

    Raises:
        StoreUnusable: the directory cannot be used, belongs to something else, or to a newer flbench.
    """

    def __init__(self, root: Path, *, create: bool = True) -> None:
        self.root = root
        #: A folder NAME/HASH for each plan.
        self.sweeps = root / "sweeps"
        self.workers = root / "workers"
        self.quarantine = root / "quarantine"
        self._runs = str(root / "runs")
        try:
            self._open(create)
        except OSError as error:
            raise self._unusable(error) from None
        self.liveness = Liveness(self.workers)

    @staticmethod
    def exists(root: Path) -> bool:
        """Return whether there is a store at ``root``."""
        return os.path.exists(root / "format.json")  # noqa: PTH110  Path.exists raises where a name is too long

    def run(self, run_id: str) -> RunDir:
        """Return the directory of a run, which need not exist yet."""
        return RunDir(f"{self._runs}/{run_id[:2]}/{run_id}", self.quarantine, self.liveness)

    def run_ids(self) -> Iterator[str]:
        """Yield the ids of all runs that have a directory, sorted."""
        for prefix in sorted((self.root / "runs").iterdir()):
            if prefix.is_dir():
                yield from sorted(filter(is_run_id, os.listdir(prefix)))  # noqa: PTH208  a third of the time of iterdir

    def ids_beginning_with(self, digits: str) -> list[str]:
        """Return the ids, begun or planned, that start with some hexadecimal digits, sorted."""
        planned = {run_id for run_id in self.planned_ids() if run_id.startswith(digits)}
        begun = {path.name for path in (self.root / "runs").glob(f"{digits[:2]:?<2}/{digits}*/")}
        return sorted(run_id for run_id in begun | planned if is_run_id(run_id))

    def id_beginning_with(self, digits: str) -> str | None:
        """Return the id of the run, begun or planned, that starts with some digits; None if there is none.

        Raises:
            UserError: several runs start so.
        """
        ids = self.ids_beginning_with(digits) if re.fullmatch(r"[0-9a-f]{1,16}", digits) else []
        if len(ids) > 1:
            shown = ", ".join(ids[:MOST_IDS])
            more = f" and {len(ids) - MOST_IDS} more" if len(ids) > MOST_IDS else ""
            raise UserError(f"{digits}: {len(ids)} ids of runs begin with it: {shown}{more}; give more digits")
        return ids[0] if ids else None

    def planned_ids(self) -> set[str]:
        """Return the ids in all plans that can be read."""
        return {run_id for _, run_ids in self.readable_plans() for run_id in run_ids}

    def readable_plans(self) -> Iterator[tuple[Path, set[str]]]:
        """Yield the directories of sweeps and the ids in their plans; a plan that cannot be read is skipped."""
        for directory in self.sweep_dirs():
            with suppress(StoreUnusable):
                yield directory, plan_ids(directory / "plan.jsonl")

    def planned(self, run_id: str) -> Iterator[Entry]:
        """Yield the entries of one run in the plans of this store."""
        for directory in self.sweep_dirs():
            with suppress(StoreUnusable):  # a damaged plan must not hide the others
                yield from read_entries(directory / "plan.jsonl", run_id)

    def claim(self, experiment: Experiment, lease: Lease, max_attempts: int | None = None) -> Attempt | None:
        """Claim a run.

        The directory of the new attempt appears under its number complete with its lease, in one rename, which fails
        where the number is taken: the number is the fencing token. Space for its exit.json is reserved in it, in case
        the disk is full then.

        Returns:
            The attempt; None where the run is done, given up, held by a live lease, or another worker was faster.

        Raises:
            OSError: the directory cannot be created.
        """
        run, request = self.run(experiment.run_id), RunRequest.of(experiment)
        state = run.state(request)
        if not state.claimable(max_attempts):
            return None
        attempts = run.path / "attempts"
        files.make_directory(attempts, self.root / "runs")
        run.write_experiment(experiment)
        target = attempts / f"{state.attempts + 1:04d}"
        staged = files.temporary(target)
        content = strict_json.sealed({"schema": SCHEMA, **lease.to_json(), "observed": sorted(request.probes)})
        try:
            files.disk.mkdir(staged)
            files.create(staged / "lease.json", content)
            files.create(staged / RESERVE, b" " * RESERVED)
            files.disk.rename(staged, target)
        except OSError:
            shutil.rmtree(staged, ignore_errors=True)
            # NFS may report a repeated request as failed: the claim is ours if our token is there.
            holder = Lease.read(target / "lease.json")
            if holder is None:
                raise
            if holder.token != lease.token:
                return None
        return Attempt(target, run, experiment)

    def sweep_dirs(self) -> list[Path]:
        """Return every sweep that was planned here."""
        found = (path.parent for path in self.sweeps.glob("*/*/plan.jsonl"))
        return sorted(directory for directory in found if is_name(directory.name) and is_name(directory.parent.name))

    def live_workers(self) -> list[LiveWorker]:
        """Return every registered worker of this store whose lease is alive."""
        found = []
        for directory in sorted(self.workers.glob("*/")):
            path = directory / "lease.json"
            with suppress(OSError):  # a file that cannot be read must not hide the other workers
                lease = Lease.read(path)
                if lease is not None and self.liveness.alive(lease, path):
                    found.append(LiveWorker(lease, str((strict_json.read_json(path) or {}).get("plan", ""))))
        return found

    def worker_log(self, token: str) -> Path:
        """Return the log file of a worker that is about to start; raises StoreUnusable where it cannot be created."""
        directory = self.workers / token
        with self.usable():
            files.make_directory(directory, self.workers)
        return directory / "log.txt"

    def record_death(self, token: str, end: Mapping[str, Any]) -> None:
        """Record how a worker ended (``attempts.ending``), which applies to its runs without an exit.json of their own.

        The first record counts. Errors are ignored.
        """
        with suppress(OSError):
            files.make_directory(self.workers / token, self.workers)
            files.publish(self.workers / token / "exit.json", strict_json.sealed(end))

    def check_room(self) -> None:
        """Raise StoreUnusable where too little disk space is free for a run to start."""
        with self.usable():
            room = os.statvfs(self.root)
        free = room.f_bavail * room.f_frsize
        if free < ROOM:
            raise StoreUnusable(
                f"only {free // 10**6} MB are free on the disk of the store {self.root}, and no run starts with less "
                f"than {ROOM // 10**6}; delete checkpoints with `flbench gc`, then call the same command again"
            )

    @contextmanager
    def usable(self) -> Iterator[None]:
        """Convert an error of the file system to StoreUnusable: what was read so far may be outdated."""
        try:
            yield
        except BrokenPipeError:
            raise  # an error of the output: a store has no pipes
        except OSError as error:
            self.check_present()
            raise self._unusable(error) from None

    def is_deleted(self) -> bool:
        """Return whether the store was deleted or moved while in use; an unavailable file system does not count."""
        try:
            (self.root / "format.json").stat()
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError:
            return False
        return False

    def check_present(self) -> None:
        """Raise StoreUnusable where the store was deleted."""
        if self.is_deleted():
            raise StoreUnusable(f"the store {self.root} was deleted or moved while it was in use")

    def _unusable(self, error: OSError) -> StoreUnusable:
        return StoreUnusable(f"the store {self.root} cannot be used: {files.reason(error)}")

    def _open(self, create: bool) -> None:
        path = self.root / "format.json"
        if not path.exists():
            if not create:
                raise StoreUnusable(
                    f"there is no store at {self.root}; `flbench sweep` makes one, --store DIR names another"
                )
            self._create(path)
        found = strict_json.read_json(path)
        if found is None or not isinstance(found.get("schema"), int):
            raise StoreUnusable(
                f'{path} is damaged; if the runs next to it are sound, write {{"schema": {SCHEMA}}} into it'
            )
        for directory in ("runs", "sweeps", "workers"):
            files.make_directory(self.root / directory, self.root)

    def _create(self, path: Path) -> None:
        root = self.root.absolute()
        files.make_directory(root, Path(root.anchor))
        found = {path.name for path in root.iterdir() if not path.name.startswith(".")}
        if found and not path.exists():
            problem = f"{self.root} is not empty and not a store (no format.json in it)"
            if found <= PARTS:
                raise StoreUnusable(
                    f"{problem}: it seems to be what is left of a deleted one ({', '.join(sorted(found))}). "
                    f"Delete it: rm -r {shlex.quote(str(self.root))}; or keep what is sound: "
                    f'write {{"schema": {SCHEMA}}} into {path}, then call flbench verify'
                )
            raise StoreUnusable(f"{problem}; name a new or empty directory by --store")
        files.publish(path, strict_json.pretty({"schema": SCHEMA}))
