"""Check a GPU that the engine has never run on, in ten minutes: tests, ways to compute, profile, projection.

    python -m benchmarks.acceptance [cifar10 resnet18 ...] [--repeats 5] [--precision tf32] [--json]

Each part stands alone: one that fails, or for which no time is left, does not lose the others. The exit code is 1 if a
part failed.
"""

from __future__ import annotations

import argparse
import importlib.util
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, cast

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity

from benchmarks.common import Settings, engine_options, print_json, show
from benchmarks.projection import PRECISIONS, ROUNDS, Projection, project, row
from benchmarks.workloads import Workload
from flbench.bench.timing import Note, Spread, Variant, alone, take_turns, trainer_of
from flbench.cli.bench import header, machine, progress
from flbench.cli.numbers import duration
from flbench.engine.executors import StackedExecutor
from flbench.engine.federated import FederatedTrainer
from flbench.engine.setup import matmul_precision_restored, runs_worth_fusing
from flbench.models.convolutions import CONVOLUTIONS

#: Seconds after which no further part begins, and seconds of the marked tests.
SECONDS, TEST_SECONDS = 480.0, 210.0

#: Processes of the marked tests: each has a context of its own on the GPU.
PROCESSES = 3

#: Clients at which the ways to compute a round are timed.
CLIENTS = (10, 30)

#: Kernels that a profile lists.
KERNELS = 12

#: The checkout with the tests.
ROOT = Path(__file__).parents[1]


#: What a part found: the outcome of the tests, the times of the ways to compute a round, a profile, or a projection.
Found = dict[str, Any] | list[dict[str, Any]] | Projection

Check = tuple[str, Callable[[Note], Found]]


@dataclass(frozen=True)
class Part:
    """One part of the acceptance; ``problem`` says why it failed or was skipped."""

    name: str
    status: Literal["passed", "failed", "skipped"]
    seconds: float
    problem: str
    found: Found | None


class Skipped(Exception):
    """A part cannot be done here."""


def accept(workloads: Sequence[Workload], settings: Settings, *, note: Note, root: Path = ROOT) -> list[Part]:
    """Return the outcome of every part, in order.

    Args:
        workloads: what is timed, profiled and projected.
        settings: device, precision, repeats, rounds and data.
        note: called before every turn.
        root: the checkout with the tests.
    """
    deadline, parts = time.monotonic() + SECONDS, []
    for name, check in _checks(workloads, settings, root):
        began = time.monotonic()
        status, problem, found = _outcome(partial(check, partial(_note_in, note, name)), began < deadline)
        parts.append(Part(name, status, time.monotonic() - began, problem, found))
    return parts


def _note_in(note: Note, part: str, what: str, done: int, total: int) -> None:
    note(f"{part}: {what}", done, total)


def _outcome(
    check: Callable[[], Found], in_time: bool
) -> tuple[Literal["passed", "failed", "skipped"], str, Found | None]:
    if not in_time:
        return "skipped", f"{SECONDS:.0f} seconds are over", None
    try:
        with matmul_precision_restored():
            found = check()
    except Skipped as reason:
        return "skipped", str(reason), None
    except Exception as error:
        return "failed", f"{type(error).__name__}: {error}".partition("\n")[0], None
    if isinstance(found, dict) and found.get("failed"):
        return "failed", f"tests that failed: {found['failed']}", found
    return "passed", "", found


def _checks(workloads: Sequence[Workload], settings: Settings, root: Path) -> Iterator[Check]:
    """All parts: whether the numbers are right, how fast each way is, what the time is spent on, how long runs take."""
    yield "tests", partial(marked_tests, root)
    for workload in workloads:
        for clients in CLIENTS:
            yield f"{workload.name}, {clients} clients", partial(_ways, workload, settings, clients)
        yield f"{workload.name}, profile", partial(_profile, workload, settings)
    for workload in workloads:
        for precision in PRECISIONS[settings.device]:
            for fuse in (False, True):
                what = "runs together" if fuse else "one run"
                yield f"{workload.name}, {precision}, {what}", partial(_projected, workload, settings, precision, fuse)


def _ways(workload: Workload, settings: Settings, clients: int, note: Note) -> list[dict[str, Any]]:
    """Time single kernels, and one graph a round with either way to convolve, in turns."""

    def variant(name: str, way: str, *, graph: bool) -> Variant:
        trainer = _trainer(workload, settings, clients=clients)
        cast(StackedExecutor, trainer.executor).convolve(way)
        trainer.record = trainer.record if graph else None
        return alone(name, trainer, settings.turn(workload))

    variants = [variant("single kernels", "grouped", graph=False)]
    variants += [variant(f"one graph, {way} convolutions", way, graph=True) for way in CONVOLUTIONS]
    seconds = take_turns(variants, repeats=settings.repeats, note=note)
    return [{"way": name, "round_s": Spread.of(own)} for name, own in seconds.items()]


def _profile(workload: Workload, settings: Settings, note: Note) -> dict[str, Any]:
    """Profile one round in the way that the engine chooses, after three others.

    Returns:
        ``convolutions``, the way to convolve (empty on a CPU and without convolutions); ``wall_s``, seconds of the
        round; ``busy_s``, the sum of all kernels; ``calls``, kernels that ran; and the ``kernels`` with the most time.
    """
    trainer = _trainer(workload, settings)
    for number in range(3):
        note("rounds before", number, 3)
        trainer.step()
    on_gpu = settings.device == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with torch.profiler.profile(activities=activities) as profiler:
        began = time.perf_counter()
        trainer.step()
        wall_s = time.perf_counter() - began
    kind = DeviceType.CUDA if on_gpu else DeviceType.CPU
    events = [event for event in profiler.key_averages() if event.device_type == kind]
    spent = {
        event.key: (event.count, 1e-6 * (event.self_device_time_total if on_gpu else event.self_cpu_time_total))
        for event in events
    }
    busy_s = sum(seconds for _, seconds in spent.values())
    if not busy_s:
        raise RuntimeError("the profiler saw no kernel")
    kernels = [
        {"name": name, "calls": calls, "seconds": seconds, "share": seconds / busy_s}
        for name, (calls, seconds) in sorted(spent.items(), key=lambda one: -one[1][1])
    ]
    return {
        "convolutions": ", ".join(sorted(set(trainer.convolutions.values()))),
        "wall_s": wall_s,
        "busy_s": busy_s,
        "calls": sum(calls for calls, _ in spent.values()),
        "kernels": kernels[:KERNELS],
    }


def _projected(workload: Workload, settings: Settings, precision: str, fuse: bool, note: Note) -> Projection:
    """Project one run, or as many as fill a stack."""
    data, runs = settings.data_of(workload), 1
    if fuse:
        first = settings.experiment(workload, precision=precision)
        runs = settings.fuse or runs_worth_fusing(first, data, device=settings.device, executor="auto")
        if runs == 1:
            raise Skipped("one run fills a stack")
    group = [settings.experiment(workload, precision=precision, seed=seed) for seed in range(runs)]
    return project(group, data, settings, turn=settings.turn(workload), note=note)


def _trainer(workload: Workload, settings: Settings, **fields: Any) -> FederatedTrainer:
    experiment = settings.experiment(workload, **fields)
    return trainer_of(experiment, settings.data_of(workload), settings.device, executor="stacked")


def marked_tests(
    root: Path, note: Note, *, seconds: float = TEST_SECONDS, processes: int = PROCESSES
) -> dict[str, Any]:
    """Return the outcome of the tests that are marked ``cuda``; after ``seconds`` they are interrupted.

    Raises:
        Skipped: the tests are not part of an installed package, or none of them could run.
        RuntimeError: pytest has no report.
    """
    marked = [path for path in sorted((root / "tests").rglob("test_*.py")) if "mark.cuda" in path.read_text()]
    if not marked:
        raise Skipped("the tests are in a checkout of flbench only")
    parallel = ["-n", str(processes)] if importlib.util.find_spec("xdist") else []
    note(f"{processes} processes", 0, 1)
    with TemporaryDirectory() as folder:
        report = Path(folder) / "junit.xml"
        arguments = ["-q", "-o", "addopts=", *parallel, "-m", "cuda", f"--junitxml={report}", *map(str, marked)]
        output = _interrupted_after(seconds, [sys.executable, "-m", "pytest", *arguments], root)
        if not report.is_file():
            raise RuntimeError(f"pytest has no report: {output.strip().rpartition(chr(10))[2]}")
        cases = list(ElementTree.parse(report).iter("testcase"))  # written by our own pytest
    failures = [str(case.get("name")) for case in cases if {each.tag for each in case} & {"failure", "error"}]
    skipped = sum(case.find("skipped") is not None for case in cases)
    if skipped == len(cases):
        raise Skipped(f"all {skipped} tests were skipped")
    passed = len(cases) - len(failures) - skipped
    return {"passed": passed, "failed": len(failures), "skipped": skipped, "failures": failures}


def _interrupted_after(seconds: float, command: Sequence[str], folder: Path) -> str:
    """Run a command, and return its output; it is interrupted if it takes longer, and then killed."""
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        return process.communicate(timeout=seconds)[0]
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        try:
            return process.communicate(timeout=20)[0]
        except subprocess.TimeoutExpired:
            process.kill()
            return process.communicate()[0]


def print_part(part: Part) -> None:
    """Print what a part found."""
    why = f": {part.problem}" if part.problem else ""
    print(f"\n{part.name}: {part.status} in {duration(part.seconds)}{why}")
    match part.found:
        case None:
            pass
        case {"passed": passed, "failed": failed, "skipped": skipped, "failures": failures}:
            print(
                "\n".join(
                    [f"{passed} passed, {failed} failed, {skipped} skipped", *(f"  failed: {n}" for n in failures)]
                )
            )
        case {"convolutions": way, "wall_s": wall_s, "busy_s": busy_s, "calls": calls, "kernels": kernels}:
            chosen = f", {way} convolutions" if way else ""
            print(f"a round of {1000 * wall_s:.3g} ms{chosen}: {calls:,} kernels, busy for {1000 * busy_s:.3g} ms")
            show([{**one, "name": one["name"][:80]} for one in kernels])
        case Projection() as found:
            show([row(f"{ROUNDS:,} rounds", part.name.split(", ")[1], found)])
        case [*ways]:
            show([{"way": one["way"], "ms a round": one["round_s"].times(1000)} for one in ways])


def report(arguments: argparse.Namespace, settings: Settings) -> int:
    """Do all parts, print what they found, and return the exit code."""
    facts = machine(settings.device)
    if not arguments.json:
        print(*header(facts), sep="\n")
    with progress() as note:
        parts = accept(arguments.workloads, settings, note=note)
    failed = [part.name for part in parts if part.status == "failed"]
    if arguments.json:
        print_json({"machine": facts, "settings": settings.to_json(), "acceptance": parts})
        return int(bool(failed))
    for part in parts:
        print_part(part)
    skipped = sum(part.status == "skipped" for part in parts)
    print(f"\n{len(parts)} parts, {skipped} skipped, {len(failed)} failed" + f": {'; '.join(failed)}" * bool(failed))
    return int(bool(failed))


def main() -> None:
    parser = engine_options(__doc__ or "", "cifar10", "resnet18")
    arguments = parser.parse_args()
    settings = Settings.of(arguments)
    if settings.device == "cpu":
        parser.error("no CUDA device is in use; run `flbench doctor` to see what works")
    sys.exit(report(arguments, settings))


if __name__ == "__main__":
    main()
