"""A worker and an orchestrator as real processes that compute a checkpointed chain of numbers instead of training.

``python -m tests.faults.stub work ...`` takes the arguments of ``flbench.worker``; ``... sweep STORE SEEDS ROUNDS``
orchestrates a plan of such runs. A run's learning rate selects its fault (see ``FAULTS``).
"""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from flbench import orchestrate as orchestration
from flbench.config import Experiment, content_of, digest, parse_experiment
from flbench.errors import DataMissing, UserError
from flbench.launch.local import LocalLauncher
from flbench.orchestrate import Orchestrator, Outcome
from flbench.planning import write_plan
from flbench.progress import Progress
from flbench.store import Attempt, Lease, Plan, Store, leases
from flbench.sweeps import Sweep
from flbench.worker import Options, main, work
from tests.warm import warm_python

ROOT = Path(__file__).parents[2]

orchestration.PERIOD = 0.02  # as long as some rounds of the stub


@dataclass(frozen=True)
class Done:
    status: Any
    round: int


def experiments(seeds: int = 1, *, rounds: int = 20, eval_every: int = 5, **fields: Any) -> list[Experiment]:
    return [
        parse_experiment({"seed": seed, "rounds": rounds, "eval_every": eval_every, **fields}) for seed in range(seeds)
    ]


def recorded(store: Store) -> int:
    """Return the number of evaluations that all runs have recorded."""
    return sum(path.read_bytes().count(b"\n") for path in store.root.glob("runs/*/*/attempts/*/metrics.jsonl"))


def chain(seed: int) -> Iterable[int]:
    value = seed + 1
    while True:
        value = (value * 6364136223846793005 + 1442695040888963407) % 2**64
        yield value


def undisturbed(experiment: Experiment) -> list[dict[str, Any]]:
    """Return the records of a run without faults."""
    wanted = experiment.evaluated_rounds()
    pairs = zip(range(1, experiment.rounds + 1), chain(experiment.seed), strict=False)
    return [{"round": round, "acc": value / 2**64} for round, value in pairs if round in wanted]


def execute(experiment: Experiment, attempt: Attempt, *, should_stop: Callable[[], bool]) -> Done:
    fail = FAULTS.get(experiment.lr)
    value, round = experiment.seed + 1, 0
    checkpoint = next(iter(attempt.checkpoints()), None)
    if checkpoint is not None:
        round, value = json.loads(checkpoint.path.read_bytes())
    attempt.adopt(checkpoint)
    wanted = experiment.evaluated_rounds()

    def save() -> None:
        attempt.save_checkpoint(round, lambda file: file.write(json.dumps([round, value]).encode()))

    while round < experiment.rounds:
        time.sleep(float(os.environ.get("STUB_PAUSE", "0.002")))
        while Path(os.environ.get("STUB_HOLD", "/nowhere")).exists():
            time.sleep(0.01)
        round += 1
        value = (value * 6364136223846793005 + 1442695040888963407) % 2**64
        with (attempt.path / "executed").open("a") as file:
            file.write(f"{round}\n")
        if round in wanted:
            attempt.record({"round": round, "acc": value / 2**64})
        if fail and round == 3:
            fail()
        stop = should_stop() and round < experiment.rounds
        if stop or round % 4 == 0:
            save()
        if stop:
            return Done("stopped", round)
    save()
    fingerprint = content_of(experiment.to_json()) or "toy"
    attempt.publish(status="done", rounds=round, seconds=1.0, fingerprint=fingerprint, numerics={"device": "cpu"})
    return Done("done", round)


@dataclass(frozen=True)
class OneByOne:
    """An engine that executes runs one after another with a function of (experiment, attempt)."""

    run: Callable[..., Done] = execute

    def check(self, experiment: Experiment) -> None:
        """Check nothing: the stub needs no data."""

    def group_size(self, experiment: Experiment) -> int:
        return int(os.environ.get("STUB_GROUP", "1"))

    def execute(self, group: Sequence[Attempt], *, should_stop: Callable[[], bool], ended: Callable[..., None]) -> None:
        for attempt in group:
            try:
                end: Done | Exception = self.run(attempt.experiment, attempt, should_stop=should_stop)
            except Exception as error:
                end = error
            ended(attempt, end)


def _raise(error: BaseException) -> Callable[[], NoReturn]:
    def fail() -> NoReturn:
        raise error

    return fail


def _allocate_all_memory() -> None:
    """Allocate memory until none is left; ``STUB_MEMORY`` limits it to this many more bytes."""
    if more := os.environ.get("STUB_MEMORY"):
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + int(more)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    eaten = []
    while True:
        eaten.append(b"\1" * (1 << 20))


class OutOfMemoryError(RuntimeError):
    """An error with the name of torch's error."""


#: The fault in the third round, by learning rate.
FAULTS: dict[float, Callable[[], object]] = {
    0.101: _raise(RuntimeError("the toy is broken")),
    0.102: _raise(MemoryError()),
    0.103: _raise(OutOfMemoryError("CUDA out of memory")),
    0.104: _raise(OSError(errno.ENOSPC, "No space left on device")),
    0.105: _raise(DataMissing("the toy's data are not there")),
    0.106: lambda: os.kill(os.getpid(), signal.SIGKILL),
    0.107: _allocate_all_memory,
    0.108: lambda: os.kill(os.getpid(), signal.SIGSTOP),
}


@dataclass(frozen=True)
class ToySweep:
    """The fields of a sweep that the orchestrator reads."""

    experiments: list[Experiment]
    name: str
    spec_hash: str
    source: str = "name: toy\n"
    options: tuple[str, ...] = ()
    search: None = None


def shorten_intervals() -> None:
    """Set the intervals of heartbeats and leases from the environment."""
    for name in ("INTERVAL", "STALE", "HANGING"):
        if seconds := os.environ.get(f"STUB_{name}"):
            setattr(leases, name, float(seconds))


WORKER = (sys.executable, "-m", "tests.faults.stub", "work")


def write_toy_plan(store: Store, plan: list[Experiment], name: str = "toy") -> str:
    """Write a plan of stub runs into a store; return its name for workers."""
    sweep: Any = ToySweep(plan, name, digest([[run.run_id, run.rounds, run.eval_every] for run in plan]))
    return str(write_plan(store, sweep).relative_to(store.sweeps))


def orchestrate(
    store: Store,
    plan: list[Experiment],
    *,
    workers: int = 2,
    attempts: int = 3,
    detach: bool = False,
    command: Sequence[str] = (),
    name: str = "toy",
    show: Callable[[Progress], None] = lambda progress: None,
) -> Outcome:
    """Do what ``flbench sweep`` does, with stub runs; ``command`` replaces the warm worker."""
    command = command or (warm_python(), *WORKER[1:])
    plan_name = write_toy_plan(store, plan, name)
    options = Options(max_attempts=attempts)

    def launcher() -> LocalLauncher:
        return LocalLauncher(store, plan_name, options, workers=workers, command=command)

    return Orchestrator(store, plan_name, plan, launcher, max_attempts=attempts).run(show=show, detach=detach)


def execute_search(train: Callable[..., Done], store: Store, sweep: Sweep, *, offset: int = 0, most: int = 1000) -> int:
    """Let one worker execute a searched sweep, at most ``most`` attempts by ``train``; return how many it did."""
    done: list[Experiment] = []

    def run(experiment: Experiment, attempt: Attempt, **options: Any) -> Done:
        done.append(experiment)
        return train(experiment, attempt, **options)

    return work(
        store, Plan.of(sweep.experiments), Lease.here(), Options(offset=offset, max_attempts=9),
        should_stop=lambda: len(done) >= most, load=lambda _: OneByOne(run), search=sweep.search,
    )  # fmt: skip


if __name__ == "__main__":
    shorten_intervals()
    role, *rest = sys.argv[1:]
    if role == "work":
        sys.exit(main(rest, load=lambda options: OneByOne()))
    path, seeds, rounds = rest
    wanted = experiments(int(seeds), rounds=int(rounds))

    def show(progress: Progress) -> None:
        with Path(path).with_name("stopping" if progress.stopping else "watching").open("a") as file:
            file.write("x")

    try:
        outcome = orchestrate(Store(Path(path)), wanted, attempts=9, command=WORKER, show=show)
    except UserError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
    print(json.dumps({"launched": outcome.launched, "adopted": outcome.adopted, "done": outcome.progress.done}))
    sys.exit(outcome.exit_code)
