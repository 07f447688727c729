"""Stub runs (see ``tests.faults.stub``) on a cluster.

``python -m tests.slurm.toys work ...`` starts a worker with stub runs, ``... train ...`` a worker with real training,
and ``... sweep STORE SEEDS ROUNDS WORKERS`` an orchestrator.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flbench.config import Experiment
from flbench.launch.sbatch import Request
from flbench.launch.slurm import SlurmLauncher
from flbench.launch.submissions import Submission
from flbench.orchestrate import Orchestrator, Outcome
from flbench.progress import Progress
from flbench.slurm import Row, squeue
from flbench.slurm.commands import output_of
from flbench.store import Attempt, Store
from flbench.worker import Engine, Options, load_engine, main
from tests.faults.stub import Done, OneByOne, execute, experiments, write_toy_plan
from tests.limits import wait_until

ROOT = Path(__file__).parents[2]

WORKER = (sys.executable, "-m", "tests.slurm.toys", "work")

#: A worker with real training whose rounds take at least a tenth of a second.
PACED = (sys.executable, "-m", "tests.slurm.toys", "train")

#: The learning rate of a stub run that allocates 700 MB once.
HUNGRY = 0.2


def feed(experiment: Experiment, attempt: Attempt, *, should_stop: Callable[[], bool]) -> Done:
    if experiment.lr == HUNGRY:
        held = bytearray(700 * 2**20)
        held[::4096] = b"x" * len(held[::4096])
        time.sleep(5)  # SLURM samples memory once a second
        del held
    return execute(experiment, attempt, should_stop=should_stop)


@dataclass(frozen=True)
class Paced:
    """An engine that pauses after each round."""

    engine: Engine

    def check(self, experiment: Experiment) -> None:
        self.engine.check(experiment)

    def group_size(self, experiment: Experiment) -> int:
        return self.engine.group_size(experiment)

    def execute(self, group: Sequence[Attempt], *, should_stop: Callable[[], bool], ended: Callable[..., None]) -> None:
        def pause_and_ask() -> bool:
            time.sleep(0.1)
            return should_stop()

        self.engine.execute(group, should_stop=pause_and_ask, ended=ended)


@dataclass(frozen=True)
class Cluster:
    """A store on the cluster."""

    store: Store

    def names(self) -> list[str]:
        return [submission.name for submission in self.submissions()]

    def submissions(self) -> list[Submission]:
        return list(Submission.all(self.store, ended=True))

    def rows(self) -> list[Row]:
        """Return every job of the store, including ended jobs."""
        rows = squeue(self.names()) if self.names() else []
        assert rows is not None
        return rows

    def live(self) -> list[Row]:
        return [row for row in self.rows() if row.alive]

    def job_ids(self) -> list[str]:
        """Return the ids of the running jobs, as ``scontrol`` takes them."""
        return [f"{row.job}_{row.task}" for row in self.rows() if row.state == "RUNNING"]

    def task_named_as_its_array(self) -> str:
        """Return the running task (ARRAY_TASK) whose raw job id is the array's, of the only array."""
        shown = output_of("squeue", "--noheader", f"--name={','.join(self.names())}", "--format=%A|%F|%K")
        tasks = [line.split("|") for line in (shown or "").splitlines()]
        (found,) = [f"{array}_{task}" for raw, array, task in tasks if raw == array]
        return found

    def round_of(self, experiment: Experiment) -> int:
        """Return the last recorded round."""
        attempts = self.store.run(experiment.run_id).attempts()
        return max((int((attempt.last_record() or {}).get("round", 0)) for attempt in attempts), default=0)

    def attempts(self, experiment: Experiment) -> list[dict[str, Any]]:
        """Return for each attempt how it ended, its job, and how often the job had been restarted."""
        run, found = self.store.run(experiment.run_id), []
        for attempt in run.attempts():
            lease = attempt.lease()
            assert lease is not None
            end = attempt.exit() or self.store.liveness.recorded_end(lease) or {}
            found.append({"kind": end.get("kind"), "job": lease.slurm_job, "restart": lease.slurm_restart})
        return found

    def executed(self, experiment: Experiment) -> list[int]:
        """Return every executed round, over all attempts."""
        attempts = self.store.run(experiment.run_id).attempts()
        return [int(line) for attempt in attempts for line in (attempt.path / "executed").read_text().split()]

    def sweep(self, plan: list[Experiment], request: Request, *, workers: int = 1, detach: bool = False) -> Outcome:
        """Do what ``flbench sweep`` does, with stub runs."""
        return orchestrate(self.store, plan, request, workers, detach=detach)

    @contextmanager
    def sweep_in_progress(
        self, plan: list[Experiment], request: Request, workers: int = 1
    ) -> Iterator[Future[Outcome]]:
        """Do the same in a thread; yield when each worker has recorded 50 rounds of a run.

        No run takes a round before all workers have one: on a full node the first could end before the last starts.
        """
        hold = Path(os.environ["STUB_HOLD"])
        hold.touch()
        with ThreadPoolExecutor(1) as pool:
            sweep = pool.submit(self.sweep, plan, request, workers=workers)
            wait_until(lambda: sum(bool(self.store.run(one.run_id).attempts()) for one in plan) == workers)
            hold.unlink()
            wait_until(lambda: sum(self.round_of(experiment) >= 50 for experiment in plan) == workers)
            yield sweep

    @contextmanager
    def sweeping(
        self, seeds: int, rounds: int, workers: int = 1, **environment: str
    ) -> Iterator[subprocess.Popen[str]]:
        """Do the same in a separate process."""
        command = [sys.executable, "-m", "tests.slurm.toys", "sweep", str(self.store.root), str(seeds), str(rounds)]
        process = subprocess.Popen(
            [*command, str(workers)], stdout=subprocess.PIPE, text=True, cwd=ROOT, env={**os.environ, **environment}
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()


def orchestrate(
    store: Store,
    plan: list[Experiment],
    request: Request,
    workers: int,
    *,
    detach: bool = False,
    command: Sequence[str] = WORKER,
    show: Callable[[Progress], None] | None = None,
) -> Outcome:
    name, options = write_toy_plan(store, plan), Options()

    def launcher() -> SlurmLauncher:
        return SlurmLauncher(store, name, options, request, workers=workers, command=command)

    return Orchestrator(store, name, plan, launcher).run(show=show, detach=detach)


def scontrol(*arguments: str) -> None:
    assert output_of("scontrol", *arguments) is not None, arguments


if __name__ == "__main__":
    role, *rest = sys.argv[1:]
    if role == "work":
        sys.exit(main(rest, load=lambda options: OneByOne(feed)))
    if role == "train":
        sys.exit(main(rest, load=lambda options: Paced(load_engine(options))))
    path, seeds, rounds, workers = rest
    plan = experiments(int(seeds), rounds=int(rounds))
    outcome = orchestrate(Store(Path(path)), plan, Request(seconds=600, exclude="n[2-3]"), int(workers))
    print(json.dumps({"launched": outcome.launched, "done": outcome.progress.done}))
    sys.exit(outcome.exit_code)
