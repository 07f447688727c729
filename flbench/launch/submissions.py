"""Records in the store of the arrays submitted to SLURM, written before sbatch is called so that no job is lost.

Each submission has a folder with these files: ``lease.json``, the launcher that submits; ``intent.json``, the plan, the
number of tasks and the jobs' name; ``jobs.json``, the job id; ``ended``, once no job of it is left. A launcher that
finds an intent without a job id asks SLURM for jobs of that name: the one that wrote it may have died after sbatch.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flbench.store import Lease, Store, files, strict_json
from flbench.store.names import is_name

#: Prefix of all job names.
PREFIX = "flb-"


@dataclass(frozen=True)
class Submission:
    """One call of sbatch: an array of workers.

    Attributes:
        folder: its folder in the store, with the jobs' scripts and logs.
        plan: NAME/HASH of the sweep.
        tasks: the number of workers.
    """

    folder: Path
    plan: str
    tasks: int

    @classmethod
    def create(cls, store: Store, plan: str, tasks: int, **facts: Any) -> Submission:
        """Record the intent to submit an array; ``facts`` go into its intent.json."""
        submission = cls(store.root / "submissions" / uuid.uuid4().hex[:16], plan, tasks)
        files.make_directory(submission.folder, store.root)
        files.replace(submission.folder / "lease.json", strict_json.pretty(Lease.here().to_json()))
        content = {"schema": strict_json.SCHEMA, "name": submission.name, "plan": plan, "tasks": tasks, **facts}
        files.replace(submission.folder / "intent.json", strict_json.pretty(content))
        return submission

    @classmethod
    def of_plan(cls, store: Store, plan: str) -> list[Submission]:
        """Return the submissions of a plan that may have jobs left."""
        return [submission for submission in cls.all(store) if submission.plan == plan]

    @classmethod
    def all(cls, store: Store, *, ended: bool = False) -> Iterator[Submission]:
        """Return the submissions of a store; with ``ended`` also those without jobs left."""
        for folder in sorted((store.root / "submissions").glob("*/")):
            if not ended and (folder / "ended").exists():
                continue
            intent = strict_json.read_json(folder / "intent.json") or {}
            plan, tasks = intent.get("plan"), intent.get("tasks")
            if isinstance(plan, str) and isinstance(tasks, int) and is_name(folder.name):
                yield cls(folder, plan, tasks)

    @property
    def name(self) -> str:
        """Return the name of its jobs, which is unique."""
        return f"{PREFIX}{self.folder.name}"

    @property
    def job_id(self) -> str | None:
        """Return the array's job id; None while it is unknown."""
        job_id = (strict_json.read_json(self.folder / "jobs.json") or {}).get("job_id")
        return job_id if isinstance(job_id, str) else None

    def record_job_id(self, job_id: str) -> None:
        """Record the array's job id."""
        files.replace(self.folder / "jobs.json", strict_json.pretty({"job_id": job_id}))

    def record_end(self) -> None:
        """Record that no job of this submission is left."""
        files.disk.touch(self.folder / "ended")

    def is_in_progress(self, store: Store) -> bool:
        """Return whether its launcher is alive and may be calling sbatch now."""
        path = self.folder / "lease.json"
        return self.job_id is None and store.liveness.alive(Lease.read(path), path)

    def release(self) -> None:
        """Give up the launcher's lease: if no job appears within a minute, any launcher may record the end."""
        files.discard(self.folder / "lease.json")

    def logs(self) -> list[Path]:
        """Return the logs of its jobs, the newest last."""
        return sorted(self.folder.glob("*_log.out"), key=lambda path: path.stat().st_mtime)
