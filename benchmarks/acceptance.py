"""Measure a GPU in ten minutes: what a round's time is spent on, each way to compute it beside careful loops, tests.

    python -m benchmarks.acceptance [cifar10 resnet18 ...] [FIELD=VALUE ...] [--folder FOLDER] [--repeats 5] [--json]

The most valuable comes first: of the first workload a profile of each way to convolve, and rounds in every precision at
10 clients, with ``cudnn.benchmark`` (which the engine leaves off), and at 30; then the other workloads, the tests that
need a GPU, and projections of 10,000 rounds. Images are random where the files of a data set are missing.

With ``--folder`` everything found is in FOLDER/acceptance.json after each part, so that a command that is cut loses
only the part that it was at; traces of profiles are beside it, for chrome://tracing. Each part stands alone: one that
fails, or for which no time is left, does not lose the others. The exit code is 1 if a part failed.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import logging
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, cast

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity

from benchmarks.common import Case, Row, cases, json_text, options, report_of, reported, show
from benchmarks.projection import PRECISIONS, ROUNDS, Projection, project
from flbench.bench.timing import Note, Spread, alone, faster_loop, plain_loops, seeds_of
from flbench.cli.bench import machine, progress
from flbench.cli.numbers import duration
from flbench.engine.conv_tuner import convolutions_of
from flbench.engine.executors import StackedExecutor
from flbench.engine.federated import FederatedTrainer
from flbench.engine.setup import make_network, matmul_precision_restored, runs_worth_fusing
from flbench.methods.base import Tree
from flbench.models.convolutions import CONVOLUTIONS
from flbench.worker.attempts import logging_to

#: Seconds of the command, and before their end, from which on no part begins: the longest takes as long.
SECONDS, LAST = 540.0, 60.0

#: Most seconds of the marked tests and of the measurement with ``cudnn.benchmark``; both are interrupted after them.
TEST_SECONDS, BENCHMARK_SECONDS = 210.0, 120.0

#: Seconds that an interrupted program has to end, and seconds that are worth starting it for.
GRACE, WORTH_STARTING = 20.0, 30.0

#: Processes of the marked tests: each has a context of its own on the GPU.
PROCESSES = 3

#: Clients at which the ways to compute a round are timed.
CLIENTS = (10, 30)

#: Kernels that a profile lists, and those that are printed.
KERNELS, PRINTED = 40, 12

#: The checkout with the tests.
ROOT = Path(__file__).parents[1]

#: What a part found: the outcome of the tests, a profile, the times of the ways to compute a round, a projection, or
#: the parts of another process.
Found = dict[str, Any] | list[Row] | Projection | list["Part"]

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


#: A part's name, and what does it.
Check = tuple[str, Callable[[], Found]]


def accept(checks: Iterable[Check], note: Note, deadline: float) -> Iterator[Part]:
    """Yield the outcome of every part, in order; none begins in the last seconds before the deadline."""
    for name, check in checks:
        note(name, 0, 1)
        began = time.monotonic()
        has_time = began < deadline - LAST
        status, problem, found = outcome(check) if has_time else ("skipped", "no time is left", None)
        yield Part(name, status, time.monotonic() - began, problem, found)


def outcome(check: Callable[[], Found]) -> tuple[Status, str, Found | None]:
    """Do a part; return its status, problem and result."""
    try:
        with matmul_precision_restored():
            found = check()
    except Skipped as reason:
        return "skipped", str(reason), None
    except Exception as error:
        return "failed", problem_of(error), None
    finally:
        gc.collect()
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()
    if isinstance(found, dict) and found.get("failed"):
        return "failed", f"tests that failed: {found['failed']}", found
    if isinstance(found, list) and (problems := [way["problem"] for way in rows_of(found) if way.get("problem")]):
        return "failed", "; ".join(problems), found
    return "passed", "", found


def problem_of(error: Exception) -> str:
    """Return an error in one line."""
    return f"{type(error).__name__}: {error}".partition("\n")[0]


def rows_of(found: Sequence[Any]) -> Iterator[Row]:
    """Yield the rows of the ways to compute a round, those of another process's parts among them."""
    for each in found:
        if isinstance(each, Part):
            yield from rows_of(each.found if isinstance(each.found, list) else [])
        else:
            yield each


def all_checks(measured: Sequence[Case], arguments: argparse.Namespace, deadline: float, root: Path) -> Iterator[Check]:
    """All parts, the most valuable first."""
    first, *others = measured
    for way in ways_of(first):
        trace = arguments.folder and arguments.folder / "-".join([first.name, *filter(None, [way]), "trace.json.gz"])
        yield f"{first.name}, profile{of_way(way)}", partial(profile, first, way, trace)
    yield from in_each_precision(first, CLIENTS[0])
    yield "cudnn.benchmark", partial(with_cudnn_benchmark, arguments, deadline)
    for clients in CLIENTS[1:]:
        yield from in_each_precision(first, clients)
    for case in others:
        yield f"{case.name}, profile", partial(profile, case)
        yield from in_each_precision(case, CLIENTS[0])
    yield "tests", partial(marked_tests, root, deadline)
    for case in measured:
        for precision in PRECISIONS[case.device]:
            of_precision = case.changed(precision=precision)
            yield f"{case.name}, {precision}, one run", partial(project, of_precision, [of_precision.experiment])
            yield f"{case.name}, {precision}, runs together", partial(projected_together, of_precision)


def cudnn_checks(measured: Sequence[Case]) -> Iterator[Check]:
    """Rounds with ``cudnn.benchmark``; its trials may take minutes, so the way that is faster without comes first."""
    for way in ("streamed", "grouped"):
        for case in measured:
            if way in ways_of(case):
                yield from in_each_precision(case, CLIENTS[0], way)


def in_each_precision(case: Case, clients: int, timed: str = "") -> Iterator[Check]:
    """Time rounds of some clients in each way to convolve, or in the one whose algorithms cuDNN has ``timed``."""
    how = timed and f", cudnn.benchmark{of_way(timed)}"
    for precision in PRECISIONS[case.device]:
        changed, ways = case.changed(clients=clients, precision=precision), [timed] if timed else ways_of(case)
        check = partial(rounds, changed, ways, cudnn_benchmark=bool(timed))
        yield f"{case.name}, {precision}, {clients} clients{how}", check


def ways_of(case: Case) -> Sequence[str]:
    """Return the ways in which the stacks of a case can convolve; one without a name if it has no convolutions."""
    return list(CONVOLUTIONS) if convolutions_of(make_network(case.experiment, case.data, "cpu")) else [""]


def of_way(way: str) -> str:
    """Return what a name says of a way to convolve."""
    return f", {way} convolutions" if way else ""


def stacked(case: Case, way: str, *, graph: bool = True) -> FederatedTrainer:
    """Return a trainer that convolves in this way."""
    trainer = case.trainer("stacked")
    cast(StackedExecutor, trainer.executor).convolve(way)
    trainer.record = trainer.record if graph else None
    return trainer


def rounds(case: Case, ways: Sequence[str], *, cudnn_benchmark: bool = False) -> list[Row]:
    """Time single kernels, one graph a round with each of these ways, and two careful plain loops, in turns.

    ``cudnn.benchmark`` is a property of the process: cuDNN keeps one algorithm for each shape, chosen at
    the first call. Streamed convolutions and the plain loop have the same shapes, so they share it.

    Returns:
        Each way's seconds a round; how many times as fast it is as the faster plain loop of the same turn; and how far
        the weights are from those of single kernels after one round, relative to how far a round moves them.
    """
    trainers = {"single kernels": stacked(case, ways[0], graph=False)}
    trainers |= {f"one graph{of_way(way)}": stacked(case, way) for way in ways}
    loops = plain_loops(case.experiment, case.data, case.device, case.threads)
    torch.backends.cudnn.benchmark = cudnn_benchmark  # which making a trainer turns off
    start = next(iter(trainers.values())).x
    after: dict[str, Tree] = {}
    problems: dict[str, str] = {}
    for name, trainer in trainers.items():
        with warnings_of(name, problems):  # that it cannot be recorded, or does not fit into memory
            try:
                trainer.step()
                after[name] = trainer.x
            except Exception as error:
                problems[name] = problem_of(error)
    seconds = case.turns([*(alone(name, trainers[name]) for name in after), *loops])
    best, (expected, *_) = faster_loop(seconds), after.values()
    rows: dict[str, dict[str, Any]] = {
        name: {
            "way": name,
            "round_s": Spread.of(own),
            "x plain": Spread.of_ratios(best, own),
            "apart": distance(after[name], expected) / distance(start, expected) if name in after else None,
            "problem": problems.get(name, ""),
        }
        for name, own in seconds.items()
    }
    return [*rows.values(), *({"way": name, "problem": why} for name, why in problems.items() if name not in rows)]


@contextmanager
def warnings_of(name: str, problems: dict[str, str]) -> Iterator[None]:
    """Note the warnings that the engine logs meanwhile, under this name."""

    class Noting(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            problems[name] = record.getMessage()

    with logging_to(Noting(logging.WARNING)):
        yield


def distance(one: Tree, other: Tree) -> float:
    """Return the largest difference of two trees."""
    return max(float((leaf - other[name]).abs().max()) for name, leaf in one.items())


def with_cudnn_benchmark(arguments: argparse.Namespace, deadline: float) -> list[Part]:
    """Return the parts of a process of its own in which cuDNN times its algorithms, as far as it came.

    Raises:
        RuntimeError: it came to no result.
    """
    seconds = limited(BENCHMARK_SECONDS, deadline)
    with TemporaryDirectory() as folder:
        where = (arguments.folder or Path(folder)).resolve()
        report = where / report_name(cudnn_benchmark=True)
        report.unlink(missing_ok=True)
        data = [] if arguments.data is None else ["--data", str(arguments.data.resolve())]
        fixed = ["--device", arguments.device, "--repeats", str(arguments.repeats), "--threads", str(arguments.threads)]
        command = [sys.executable, "-m", "benchmarks.acceptance", *arguments.given, *fixed, *data]
        output = interrupted_after(seconds, [*command, "--cudnn-benchmark", "--folder", str(where)], ROOT)
        if not report.is_file():
            raise RuntimeError(f"it has no report: {output.strip().rpartition(chr(10))[2]}")
        parts = json.loads(report.read_text(encoding="utf-8"))["acceptance"]
    return [Part(**{**part, "found": part["found"] and [row_of(row) for row in part["found"]]}) for part in parts]


def row_of(read: dict[str, Any]) -> Row:
    """Return a row as it was before it was written as JSON."""
    return {name: Spread(**cell) if isinstance(cell, dict) else cell for name, cell in read.items()}


def profile(case: Case, way: str = "", trace: Path | None = None) -> dict[str, Any]:
    """Profile one round, after three others, in this way to convolve or in the one that the engine chooses.

    Returns:
        ``convolutions``, the way to convolve (empty on a CPU and without convolutions); ``wall_s``, seconds of the
        round; ``span_s``, from the first kernel to the last; ``idle_s``, of these without any kernel; ``busy_s``, the
        sum of all kernels, of which several may run at once; ``calls``, kernels that ran; and the ``kernels`` with the
        most time. ``trace`` is the file to which the trace is written.
    """
    trainer = stacked(case, way) if way else case.trainer("stacked")
    for _ in range(3):
        trainer.step()
    on_gpu = case.device == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with torch.profiler.profile(activities=activities) as profiler:
        began = time.perf_counter()
        trainer.step()
        if on_gpu:
            torch.cuda.synchronize()
        wall_s = time.perf_counter() - began
    if trace is not None:
        profiler.export_chrome_trace(str(trace))
    kind = DeviceType.CUDA if on_gpu else DeviceType.CPU
    spent = {
        event.key: (event.count, 1e-6 * (event.self_device_time_total if on_gpu else event.self_cpu_time_total))
        for event in profiler.key_averages()
        if event.device_type == kind
    }
    busy_s = sum(seconds for _, seconds in spent.values())
    if not busy_s:
        raise RuntimeError("the profiler saw no kernel")
    times = [event.time_range for event in profiler.events() or () if event.device_type == kind]
    span_s, idle_s = gaps([(1e-6 * time.start, 1e-6 * time.end) for time in times])
    kernels = [
        {"name": name[:80], "calls": calls, "seconds": seconds, "share": seconds / busy_s}
        for name, (calls, seconds) in sorted(spent.items(), key=lambda one: -one[1][1])
    ]
    return {
        "convolutions": ", ".join(sorted(set(trainer.convolutions.values()))),
        "wall_s": wall_s,
        "span_s": span_s,
        "idle_s": idle_s,
        "busy_s": busy_s,
        "calls": sum(calls for calls, _ in spent.values()),
        "kernels": kernels[:KERNELS],
    }


def gaps(times: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the seconds from the first begin to the last end, and those of them in which nothing ran."""
    first = reached = min(began for began, _ in times)
    idle = 0.0
    for began, ended in sorted(times):
        idle, reached = idle + max(0.0, began - reached), max(reached, ended)
    return reached - first, idle


def projected_together(case: Case) -> Projection:
    """Project as many runs as fill a stack."""
    runs = runs_worth_fusing(case.experiment, case.data, device=case.device, executor="auto")
    if runs == 1:
        raise Skipped("one run fills a stack")
    return project(case, seeds_of(case.experiment, runs))


def marked_tests(root: Path, deadline: float, *, processes: int = PROCESSES) -> dict[str, Any]:
    """Return the outcome of the tests that are marked ``cuda``; they are interrupted before the deadline.

    Those that run then, at most one in each process, count as passed.

    Raises:
        Skipped: none of the tests could run.
        RuntimeError: pytest has no report.
    """
    seconds = limited(TEST_SECONDS, deadline)
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
    done = {"passed": passed, "failed": len(failures), "skipped": skipped, "failures": failures}
    return {**done, "interrupted": "yes" if "KeyboardInterrupt" in output else "no"}


def limited(seconds: float, deadline: float) -> float:
    """Return the seconds that a program may take: ``seconds``, or what is left before the deadline.

    Raises:
        Skipped: so few are left that starting it is not worth it.
    """
    left = min(seconds, deadline - time.monotonic() - GRACE)
    if left < WORTH_STARTING:
        raise Skipped("no time is left")
    return left


def interrupted_after(seconds: float, command: Sequence[str], folder: Path) -> str:
    """Run a command, and return its output; it is interrupted if it takes longer, and then killed."""
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    for limit, sent in ((seconds, signal.SIGINT), (GRACE, signal.SIGKILL)):
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
        for one in part.found:
            if isinstance(one, Part):
                print_part(one)
        if rows := [one for one in part.found if not isinstance(one, Part)]:
            show(rows)
    elif part.found is not None:  # numbers and texts, and lists of names or kernels
        show([{name: value for name, value in part.found.items() if not isinstance(value, list)}])
        for name in part.found.get("failures", ()):
            print(f"failed: {name}")
        if kernels := part.found.get("kernels"):
            show(kernels[:PRINTED])
    sys.stdout.flush()


def report_name(*, cudnn_benchmark: bool) -> str:
    """Return the name of the file in which everything found is."""
    return f"acceptance{'-cudnn-benchmark' * cudnn_benchmark}.json"


def main() -> None:
    deadline = time.monotonic() + SECONDS
    parser = options(__doc__ or "", "cifar10", "resnet18", "lenet", "mlp")
    parser.add_argument("--folder", type=Path, help="an existing folder for acceptance.json and traces")
    only = "only rounds at 10 clients, with torch.backends.cudnn.benchmark"
    parser.add_argument("--cudnn-benchmark", action="store_true", help=only)
    arguments = parser.parse_intermixed_args()
    with reported("acceptance", arguments) as found:
        measured = list(cases(arguments))
        if measured[0].device == "cpu":
            parser.error("no CUDA device is in use; run `flbench doctor` to see what works")
        if arguments.folder and not arguments.folder.is_dir():
            parser.error(f"--folder {arguments.folder}: there is no such folder")
        parts: list[Part] = []
        facts = machine(measured[0].device)
        with progress() as note:
            measured = [replace(case, note=note) for case in measured]
            for part in accept(checks_of(measured, arguments, deadline), note, deadline):
                parts.append(part)
                found.append(asdict(part))
                if arguments.folder:
                    save(report_of("acceptance", facts, arguments, found), arguments)
                if not arguments.json:
                    print_part(part)
    failed = [part.name for part in parts if part.status == "failed"]
    skipped = sum(part.status == "skipped" for part in parts)
    counts = f"{len(parts)} parts, {skipped} skipped, {len(failed)} failed"
    print(counts + f": {'; '.join(failed)}" * bool(failed), file=sys.stderr)
    sys.exit(bool(failed))


def checks_of(measured: Sequence[Case], arguments: argparse.Namespace, deadline: float) -> Iterator[Check]:
    """The parts that are wanted."""
    if not arguments.cudnn_benchmark:
        return all_checks(measured, arguments, deadline, ROOT)
    return cudnn_checks(measured)


def save(report: dict[str, Any], arguments: argparse.Namespace) -> None:
    """Replace the file of the report at once, so that it is whole at any time."""
    path = arguments.folder / report_name(cudnn_benchmark=arguments.cudnn_benchmark)
    written = path.with_suffix(".new")
    written.write_text(json_text(report), encoding="utf-8")
    written.replace(path)


if __name__ == "__main__":
    main()
