"""Measure a store of many runs: expanding, planning, claims by many workers at once, status, report.

    nice python -m benchmarks.store [--runs 10000 30000 100000] [--workers 64] [--seconds 15]

Each size has its own store. Its runs are stubs: a worker claims a run as ``flbench.worker`` does, sleeps for
about a second and publishes made-up metrics. Claims are measured with 0, 50 and 95 % of the runs finished; these runs
are written through the store's own interface, without fsync. The cost of a claim includes the search for a free run.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.processes import Cost, cost_of, flbench, machine_line
from flbench.config import Experiment
from flbench.store import Attempt, Heartbeat, Lease, Store, files, read_plan, strict_json
from flbench.worker import Options, environment, work

SPEC = """
version: 1
name: bench_store
base: {{rounds: 200, eval_every: 10}}
axes:
  method: [fedavg, scaffold, fedyogi, fedbn]
  norm: [none, fn, ln, gn, bn]
  partition: ["classes:1", "classes:2", "dirichlet:0.1", "dirichlet:1", iid]
  lr: {{logspace: [1e-4, 1, {rates}]}}
seeds: {{range: [0, 5]}}
report: {{rows: [method, norm], cols: [partition]}}
"""

#: Runs for each learning rate of the specification.
RUNS_PER_RATE = 4 * 5 * 5 * 5

#: The content of digits, on which the runs are defined.
CONTENT = "e3713c9c6ae47b99"

NUMERICS = {"device": "cpu", "executor": "stacked", "precision": "fp32", "torch": "2.15.0"}
ENVIRONMENT = {"flbench": "0.0.1", "git_commit": "0" * 40, "git_dirty": False, "python": "3.11", "host": "bench"}

#: Targets on two cores with 100,000 runs and 64 workers that claim about once a second.
TARGETS = {
    "status, s": 5.0,
    "report, s": 20.0,
    "claim at 0 %, ms": 5.0,
    "claim at 50 %, ms": 5.0,
    "claim at 95 %, ms": 5.0,
    "memory": 500.0,
}


class NoSync(files.Disk):
    """A disk without fsync."""

    def sync(self, descriptor: int) -> None:
        pass


def record(experiment: Experiment, last: int) -> dict[str, Any]:
    chance = random.Random(f"{experiment.run_id} {last}")
    scores = [round(chance.random(), 6) for _ in range(10)]
    return {
        "round": last,
        "acc": statistics.fmean(scores),
        "acc_global": 0.5,
        "acc_worst": min(scores),
        "acc_sd": statistics.pstdev(scores),
        "loss": 0.7,
        "train_loss": 0.6,
        "seconds": 12.5,
        "bytes_up": last,
        "bytes_down": last,
        "clients": scores,
        "recall": scores,
    }


def publish(attempt: Attempt) -> None:
    experiment = attempt.experiment
    records = [record(experiment, round) for round in sorted(experiment.evaluated_rounds())]
    files.replace(attempt.metrics_path, strict_json.join_lines(records), sync=False)
    attempt.publish(status="done", rounds=experiment.rounds, seconds=12.5, fingerprint=CONTENT, numerics=NUMERICS)


@dataclass(frozen=True)
class Done:
    status: Any
    round: int


@dataclass
class Stub:
    """Sleep for about a second per run, until ``seconds`` after all workers have claimed their first run."""

    begin: Any
    seconds: float
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    deadline: float | None = None
    search_start: tuple[float, float] = (0.0, 0.0)

    def start_search(self) -> None:
        self.search_start = time.perf_counter(), time.thread_time()

    def is_over(self) -> bool:
        return self.deadline is not None and time.perf_counter() > self.deadline

    def group_size(self, experiment: Experiment) -> int:
        return 1

    def check(self, experiment: Experiment) -> None:
        pass

    def execute(self, group: Sequence[Attempt], *, should_stop: Callable[[], bool], ended: Callable[..., None]) -> None:
        self.wall.append(time.perf_counter() - self.search_start[0])
        self.cpu.append(time.thread_time() - self.search_start[1])
        if self.deadline is None:
            self.begin.wait()
            self.deadline = time.perf_counter() + self.seconds
        for attempt in group:
            time.sleep(random.uniform(0.5, 1.5))
            publish(attempt)
            ended(attempt, Done("done", attempt.experiment.rounds))
        self.start_search()


def act_as_worker(root: Path, plan: str, number: int, workers: int, stub: Stub, results: Any) -> None:
    store, lease = Store(root, create=False), Lease.here()
    options = Options(offset=number, workers=workers)
    with Heartbeat(store.workers, lease, plan):
        stub.start_search()
        entries = read_plan(store.sweeps / plan / "plan.jsonl")
        work(store, entries, lease, options, should_stop=stub.is_over, load=lambda _: stub)
    assert "torch" not in sys.modules
    results.put((stub.wall, stub.cpu, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024))


def act_as_swarm(root: str, plan: str, workers: str, seconds: str) -> None:
    """Fork many workers, so that imports and calls of git are not measured; print their times."""
    environment("cpu")
    fork = multiprocessing.get_context("fork")
    count = int(workers)
    begin, results = fork.Barrier(count), fork.Queue()
    processes = [
        fork.Process(target=act_as_worker, args=(Path(root), plan, n, count, Stub(begin, float(seconds)), results))
        for n in range(count)
    ]
    for process in processes:
        process.start()
    found = [results.get() for _ in processes]
    for process in processes:
        process.join()
    wall, cpu, memory = zip(*found, strict=True)
    print(json.dumps({"wall": wall, "cpu": cpu, "memory": memory}))


def act_as_filler(root: str, plan: str, upto: str, share: str, shares: str) -> None:
    """Finish this process's share of a plan's first ``upto`` runs that no worker has claimed."""
    files.disk = NoSync()
    store, lease = Store(Path(root)), Lease.here()
    entries = read_plan(store.sweeps / plan / "plan.jsonl")
    for index in range(int(share), int(upto), int(shares)):
        attempt = store.claim(entries[index].parse(), lease)
        if attempt is not None:
            attempt.describe(ENVIRONMENT)
            publish(attempt)
            attempt.end("ok", round=200)


def act_as_planner(root: str, spec: str) -> None:
    """Expand a specification and write its plan; print the plan's name and the seconds of each."""
    from flbench.planning import write_plan
    from flbench.sweeps import load_sweep

    start = time.perf_counter()
    sweep = load_sweep(spec)
    expanded = time.perf_counter()
    store = Store(Path(root))
    name = str(write_plan(store, sweep).relative_to(store.sweeps))
    print(json.dumps({"plan": name, "expand": expanded - start, "write": time.perf_counter() - expanded}))


ROLES: dict[str, Callable[..., None]] = {"swarm": act_as_swarm, "fill": act_as_filler, "plan": act_as_planner}


def act(role: str, *arguments: object) -> Cost:
    return cost_of([sys.executable, "-m", "benchmarks.store", "--act", role, *arguments])


def fill(root: Path, plan: str, upto: int) -> float:
    """Finish the first ``upto`` runs of a plan, with one process per core; return the seconds."""
    start, shares = time.perf_counter(), os.cpu_count() or 1
    words = [sys.executable, "-m", "benchmarks.store", "--act", "fill", str(root), plan, str(upto)]
    processes = [subprocess.Popen([*words, str(share), str(shares)]) for share in range(shares)]
    if sum(process.wait() for process in processes):
        sys.exit("filling failed")
    return time.perf_counter() - start


def measure(folder: Path, runs: int, workers: int, seconds: float) -> Iterable[tuple[str, float]]:
    """Print the cost of each step; yield the numbers that have a target or are compared between sizes."""
    spec, root = folder / f"{runs}.yaml", folder / f"store-{runs}"
    spec.write_text(SPEC.format(rates=runs // RUNS_PER_RATE))
    planning = act("plan", root, spec)
    planned = json.loads(planning.out)
    say(runs, f"expand {planned['expand']:.1f} s, write the plan {planned['write']:.1f} s; {planning}")
    yield "expand and plan, us a run", (planned["expand"] + planned["write"]) / runs * 1e6
    for share in (0, 50, 95):
        took = fill(root, planned["plan"], runs * share // 100) if share else 0
        swarm = json.loads(act("swarm", root, planned["plan"], workers, seconds).out)
        first = [claims[0] for claims in swarm["wall"]]
        wall = sorted(claim * 1e3 for claims in swarm["wall"] for claim in claims[1:])
        cpu = [claim * 1e3 for claims in swarm["cpu"] for claim in claims[1:]]
        if not wall:
            sys.exit("no worker has claimed a second run: raise --seconds")
        memory = max(swarm["memory"])
        say(
            runs,
            f"{share} % finished (made in {took:.0f} s): {len(wall)} claims by {workers} workers, "
            f"median {statistics.median(wall):.2f} ms wall ({statistics.median(cpu):.2f} ms CPU), "
            f"95 % below {wall[len(wall) * 95 // 100]:.1f} ms; first claim after {statistics.median(first):.1f} s "
            f"({statistics.median(claims[0] for claims in swarm['cpu']):.2f} s CPU); {memory:.0f} MiB a worker",
        )
        yield f"claim at {share} %, ms", statistics.median(wall)
        yield f"claim at {share} %, CPU ms", statistics.median(cpu)
        yield "memory", memory
    status = flbench("status", "--store", root)
    say(runs, f"status: {status}")
    yield "status, s", status.wall
    yield "memory", status.memory
    report = flbench("report", spec, "--store", root, "--out", folder / "leaderboard.md")
    say(runs, f"report: {report}")
    yield "report, s", report.wall
    yield "memory", report.memory


def say(runs: int, text: str) -> None:
    print(f"{runs:>7,} runs: {text}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, nargs="+", default=[10_000, 30_000, 100_000])
    parser.add_argument("--workers", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=15, help="seconds of each measurement of claims")
    parser.add_argument("--folder", type=Path, help="folder of the stores; default: a temporary one")
    arguments = parser.parse_args()
    print(f"at the start: {machine_line()}")
    worst: dict[str, dict[int, float]] = {}
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        for runs in arguments.runs:
            for name, value in measure(Path(folder), runs, arguments.workers, arguments.seconds):
                sizes = worst.setdefault(name, {})
                sizes[runs] = max(value, sizes.get(runs, 0))
    print(f"{'':>26}" + "".join(f"{runs:>12,}" for runs in arguments.runs) + "      target")
    missed = False
    for name, sizes in worst.items():
        target = TARGETS.get(name)
        values = "".join(f"{value:>12.2f}" for value in sizes.values())
        print(f"{name:>26}{values}" + (f"{target:>12g}" if target else ""))
        missed |= target is not None and max(sizes.values()) > target
    sys.exit(missed)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--act"]:
        ROLES[sys.argv[2]](*sys.argv[3:])
    else:
        main()
