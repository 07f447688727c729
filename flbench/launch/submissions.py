"""What was handed to SLURM, in the store: written down before sbatch is called, so that no job is ever forgotten.

Every submission has a folder of its own: ``lease.json`` says who is about to submit, ``intent.json`` what, and under
which name; ``jobs.json`` which job it became; ``ended`` that no job of it is left. A launcher that finds an intent
without a job looks for a job of that name: its predecessor may have died right after sbatch.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flbench.store import Lease, Store, files, strict_json
from flbench.store.names import is_name

#: What the names of all jobs begin with.
PREFIX = "flb-"


@dataclass(frozen=True)
class Submission:
    """One call of sbatch: an array of workers.

    Attributes:
        folder: its folder in the store; the jobs' scripts and logs lie there, too.
        plan: NAME/HASH of the sweep.
        tasks: how many workers.
    """

    folder: Path
    plan: str
    tasks: int

    @classmethod
    def begin(cls, store: Store, plan: str, tasks: int, **facts: Any) -> Submission:
        """Write down that an array is about to be submitted."""
        submission = cls(store.root / "submissions" / uuid.uuid4().hex[:16], plan, tasks)
        files.make_directory(submission.folder, store.root)
        files.replace(submission.folder / "lease.json", strict_json.pretty(Lease.here().to_json()))
        content = {"schema": strict_json.SCHEMA, "name": submission.name, "plan": plan, "tasks": tasks, **facts}
        files.replace(submission.folder / "intent.json", strict_json.pretty(content))
        return submission

    @classmethod
    def of_plan(cls, store: Store, plan: str) -> list[Submission]:
        """Those of a plan that may have jobs left."""
        return [submission for submission in cls.all(store) if submission.plan == plan]

    @classmethod
    def all(cls, store: Store, *, ended: bool = False) -> Iterator[Submission]:
        """The submissions of a store; those that have ended only if asked for."""
        for folder in sorted((store.root / "submissions").glob("*/")):
            if not ended and (folder / "ended").exists():
                continue
            intent = strict_json.read_json(folder / "intent.json") or {}
            plan, tasks = intent.get("plan"), intent.get("tasks")
            if isinstance(plan, str) and isinstance(tasks, int) and is_name(folder.name):
                yield cls(folder, plan, tasks)

    @property
    def name(self) -> str:
        """The name of its jobs, which no other submission has."""
        return f"{PREFIX}{self.folder.name}"

    @property
    def job_id(self) -> str | None:
        """The array's job id; None while it is not known."""
        job_id = (strict_json.read_json(self.folder / "jobs.json") or {}).get("job_id")
        return job_id if isinstance(job_id, str) else None

    def became(self, job_id: str) -> None:
        """Write down the job id."""
        files.replace(self.folder / "jobs.json", strict_json.pretty({"job_id": job_id}))

    def end(self) -> None:
        """Write down that no job of it is left."""
        files.disk.touch(self.folder / "ended")

    def is_being_made(self, store: Store) -> bool:
        """Whether its launcher lives and may be calling sbatch right now."""
        path = self.folder / "lease.json"
        return self.job_id is None and store.liveness.alive(Lease.read(path), path)

    def release(self) -> None:
        """Say that its launcher does not know whether there is a job: whoever finds none in a minute may give it up."""
        files.discard(self.folder / "lease.json")

    def logs(self) -> list[Path]:
        """What its jobs wrote, the newest last."""
        return sorted(self.folder.glob("*_log.out"), key=lambda path: path.stat().st_mtime)
