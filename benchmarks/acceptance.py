"""Check a GPU that the engine has never run on, in ten minutes: tests, ways to compute, profile, projection.

    python -m benchmarks.acceptance [cifar10 resnet18 ...] [FIELD=VALUE ...] [--repeats 5] [--json]

Each part stands alone: one that fails, or for which no time is left, does not lose the others. The exit code is 1 if a
part failed.
"""

from __future__ import annotations

import importlib.util
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, cast

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity

from benchmarks.common import Case, Row, cases, options, reported, show
from benchmarks.projection import PRECISIONS, ROUNDS, Projection, project
from flbench.bench.timing import Note, Spread, Variant, alone, seeds_of
from flbench.cli.bench import progress
from flbench.cli.numbers import duration
from flbench.engine.executors import StackedExecutor
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
Found = dict[str, Any] | list[Row] | Projection

Status = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True)
class Part:
    """One part of the acceptance; ``problem`` says why it failed or was skipped."""

    name: str
    status: Status
    seconds: float
    problem: str
    found: Found | None


class Skipped(Exception):
    """A part cannot be done here."""


def accept(measured: Sequence[Case], note: Note, root: Path = ROOT) -> list[Part]:
    """Return the outcome of every part, in order."""
    deadline, parts = time.monotonic() + SECONDS, []
    for name, check in checks(measured, root):
        note(name, 0, 1)
        began = time.monotonic()
        status, problem, found = outcome(check) if began < deadline else ("skipped", f"{SECONDS:.0f} s are over", None)
        parts.append(Part(name, status, time.monotonic() - began, problem, found))
    return parts


def outcome(check: Callable[[], Found]) -> tuple[Status, str, Found | None]:
    """Do a part; return its status, problem and result."""
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


def checks(measured: Sequence[Case], root: Path) -> Iterator[tuple[str, Callable[[], Found]]]:
    """All parts: whether the numbers are right, how fast each way is, what the time is spent on, how long runs take."""
    yield "tests", partial(marked_tests, root)
    for case in measured:
        for clients in CLIENTS:
            yield f"{case.name}, {clients} clients", partial(ways, case.changed(clients=clients))
        yield f"{case.name}, profile", partial(profile, case)
    for case in measured:
        for precision in PRECISIONS[case.device]:
            of_precision = case.changed(precision=precision)
            yield f"{case.name}, {precision}, one run", partial(project, of_precision, [of_precision.experiment])
            yield f"{case.name}, {precision}, runs together", partial(projected_together, of_precision)


def ways(case: Case) -> list[Row]:
    """Time single kernels, and one graph a round with each way to convolve, in turns."""

    def variant(name: str, way: str, *, graph: bool) -> Variant:
        trainer = case.trainer("stacked")
        cast(StackedExecutor, trainer.executor).convolve(way)
        trainer.record = trainer.record if graph else None
        return alone(name, trainer)

    variants = [variant("single kernels", "grouped", graph=False)]
    variants += [variant(f"one graph, {way} convolutions", way, graph=True) for way in CONVOLUTIONS]
    return [{"way": name, "round_s": Spread.of(own)} for name, own in case.turns(variants).items()]


def profile(case: Case) -> dict[str, Any]:
    """Profile one round in the way that the engine chooses, after three others.

    Returns:
        ``convolutions``, the way to convolve (empty on a CPU and without convolutions); ``wall_s``, seconds of the
        round; ``busy_s``, the sum of all kernels; ``calls``, kernels that ran; and the ``kernels`` with the most time.
    """
    trainer = case.trainer("stacked")
    for _ in range(3):
        trainer.step()
    on_gpu = case.device == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with torch.profiler.profile(activities=activities) as profiler:
        began = time.perf_counter()
        trainer.step()
        wall_s = time.perf_counter() - began
    kind = DeviceType.CUDA if on_gpu else DeviceType.CPU
    spent = {
        event.key: (event.count, 1e-6 * (event.self_device_time_total if on_gpu else event.self_cpu_time_total))
        for event in profiler.key_averages()
        if event.device_type == kind
    }
    busy_s = sum(seconds for _, seconds in spent.values())
    if not busy_s:
        raise RuntimeError("the profiler saw no kernel")
    kernels = [
        {"name": name[:80], "calls": calls, "seconds": seconds, "share": seconds / busy_s}
        for name, (calls, seconds) in sorted(spent.items(), key=lambda one: -one[1][1])
    ]
    return {
        "convolutions": ", ".join(sorted(set(trainer.convolutions.values()))),
        "wall_s": wall_s,
        "busy_s": busy_s,
        "calls": sum(calls for calls, _ in spent.values()),
        "kernels": kernels[:KERNELS],
    }


def projected_together(case: Case) -> Projection:
    """Project as many runs as fill a stack."""
    runs = runs_worth_fusing(case.experiment, case.data, device=case.device, executor="auto")
    if runs == 1:
        raise Skipped("one run fills a stack")
    return project(case, seeds_of(case.experiment, runs))


def marked_tests(root: Path, *, seconds: float = TEST_SECONDS, processes: int = PROCESSES) -> dict[str, Any]:
    """Return the outcome of the tests that are marked ``cuda``; after ``seconds`` they are interrupted.

    Raises:
        Skipped: none of the tests could run.
        RuntimeError: pytest has no report.
    """
    marked = [path for path in sorted((root / "tests").rglob("test_*.py")) if "mark.cuda" in path.read_text()]
    parallel = ["-n", str(processes)] if importlib.util.find_spec("xdist") else []
    with TemporaryDirectory() as folder:
        report = Path(folder) / "junit.xml"
        arguments = ["-q", "-o", "addopts=", *parallel, "-m", "cuda", f"--junitxml={report}", *map(str, marked)]
        output = interrupted_after(seconds, [sys.executable, "-m", "pytest", *arguments], root)
        if not report.is_file():
            raise RuntimeError(f"pytest has no report: {output.strip().rpartition(chr(10))[2]}")
        tests = list(ElementTree.parse(report).iter("testcase"))  # written by our own pytest
    failures = [str(test.get("name")) for test in tests if {each.tag for each in test} & {"failure", "error"}]
    skipped = sum(test.find("skipped") is not None for test in tests)
    if skipped == len(tests):
        raise Skipped(f"all {skipped} tests were skipped")
    passed = len(tests) - len(failures) - skipped
    return {"passed": passed, "failed": len(failures), "skipped": skipped, "failures": failures}


def interrupted_after(seconds: float, command: Sequence[str], folder: Path) -> str:
    """Run a command, and return its output; it is interrupted if it takes longer, and then killed."""
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    for limit, sent in ((seconds, signal.SIGINT), (20.0, signal.SIGKILL)):
        try:
            return process.communicate(timeout=limit)[0]
        except subprocess.TimeoutExpired:
            process.send_signal(sent)
    return process.communicate()[0]


def print_part(part: Part) -> None:
    """Print what a part found."""
    why = f": {part.problem}" if part.problem else ""
    print(f"\n{part.name}: {part.status} in {duration(part.seconds)}{why}")
    if isinstance(part.found, Projection):
        show([part.found.row(f"{ROUNDS:,} rounds", part.name.split(", ")[1])])
    elif isinstance(part.found, list):
        show(part.found)
    elif part.found is not None:  # numbers and texts, and lists of names or kernels
        show([{name: value for name, value in part.found.items() if not isinstance(value, list)}])
        for name in part.found.get("failures", ()):
            print(f"failed: {name}")
        if kernels := part.found.get("kernels"):
            show(kernels)


def main() -> None:
    parser = options(__doc__ or "", "cifar10", "resnet18")
    arguments = parser.parse_intermixed_args()
    with reported("acceptance", arguments) as found:
        measured = list(cases(arguments))
        if measured[0].device == "cpu":
            parser.error("no CUDA device is in use; run `flbench doctor` to see what works")
        with progress() as note:
            parts = accept([replace(case, note=note) for case in measured], note)
        for part in parts:
            found.append(asdict(part))
            if not arguments.json:
                print_part(part)
    failed = [part.name for part in parts if part.status == "failed"]
    skipped = sum(part.status == "skipped" for part in parts)
    counts = f"{len(parts)} parts, {skipped} skipped, {len(failed)} failed"
    print(counts + f": {'; '.join(failed)}" * bool(failed), file=sys.stderr)
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
