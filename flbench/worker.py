"""The worker: claims runs of a plan, executes them, and goes on until nothing is left for it.

``python -m flbench.worker STORE PLAN``: the same process on a laptop and inside a SLURM job. Exit codes: 0 nothing is
left to do; 4 the store cannot be used; 75 it was asked to stop (SIGTERM, SIGINT), its run is checkpointed and
resumable; 76 it left so that the workers beside it have more memory.
"""

from __future__ import annotations

import argparse
import errno
import logging
import os
import platform
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields
from functools import cache, cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from threading import Event
from typing import Any, Literal, Protocol

from flbench.config import FUSABLE, WISHES, Experiment, canonical_json
from flbench.errors import StoreUnusable, UserError, out_of_memory
from flbench.slurm import Job, explain
from flbench.store import CANCELLED, Attempt, Entry, Glance, Lease, Plan, Queue, RunState, Store, Wish, open_plan
from flbench.store.secrets import redact

#: Exit code of a worker that was asked to stop: put its work back into the queue.
REQUEUE = 75

#: What these packages do enters the numbers.
PACKAGES = ("flbench", "numpy", "torch", "torchvision", "scikit-learn", "pillow", "pyarrow", "pydantic")

#: How far ahead in the plan a worker looks for runs to train together.
NEAR = 200

DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

#: Kinds of failure that fewer workers side by side may prevent.
MEMORY = frozenset({"oom", "cuda_oom"})


class MemoryShort(UserError):
    """A run did not fit into memory beside those of other workers."""

    exit_code = 76


class Outcome(Protocol):
    """How an execution ended (``flbench.execution.Outcome``)."""

    @property
    def status(self) -> Literal["done", "diverged", "stopped"]:
        """Whether a result is published."""

    @property
    def round(self) -> int:
        """The last round that was executed."""


#: Called once for each run of a group: how it ended, or what went wrong with it.
Ended = Callable[[Attempt, Outcome | Exception], None]


class Engine(Protocol):
    """Executes claimed runs (``flbench.execution`` with its settings)."""

    def check(self, experiment: Experiment) -> None:
        """Raise UserError where the experiment's data cannot be used here."""

    def group_size(self, experiment: Experiment) -> int:
        """How many runs like this one are worth training together; 1: it trains alone."""

    def execute(self, group: Sequence[Attempt], *, should_stop: Callable[[], bool], ended: Ended) -> None:
        """Train, record, publish; more than one run only as ``group_size`` allows."""


@dataclass(frozen=True)
class Options:
    """How a worker works; none of it changes a number of a run beyond its stated numerics.

    Attributes:
        data_root: folder of the data sets; None: the usual one.
        device: ``cpu`` or ``cuda``.
        executor: ``auto``, ``loop`` or ``stacked``.
        pool: threads of the loop executor (``resources.cpus``).
        max_attempts: failed or lost attempts after which a run is given up.
        offset: where in the plan to begin, so that workers started together rarely want the same run.
        workers: how many share the plan: nobody takes so large a group that others would wait for its end.
        fuse: most runs trained together; 1: each alone.
        neighbours: how many workers share the memory, this one among them.
        memory: ``usual``: a worker with ``more`` can be had, and gets the runs for which this one's does not suffice.
    """

    data_root: Path | None = None
    device: Literal["cpu", "cuda"] = "cpu"
    executor: Literal["auto", "loop", "stacked"] = "auto"
    pool: int = 1
    max_attempts: int = 3
    offset: int = 0
    workers: int = 1
    fuse: int = 64
    neighbours: int = 1
    memory: Literal["all", "usual", "more"] = "all"

    def to_argv(self) -> list[str]:
        """The command line that says the same."""
        given = [(field.name, getattr(self, field.name)) for field in fields(self)]
        return [f"--{name.replace('_', '-')}={value}" for name, value in given if value is not None]


def load_engine(options: Options) -> Engine:
    """The real thing; imports torch, which takes seconds and is paid once per worker."""
    import torch

    from flbench.execution import Runner, Settings

    # Several torch threads in each of several workers are slower than one, and the sums depend on their number.
    torch.set_num_threads(1)
    shared = {name: getattr(options, name) for name in ("data_root", "device", "executor", "pool", "neighbours")}
    return Runner(Settings(**shared))


def work(
    store: Store,
    plan: Plan,
    lease: Lease,
    options: Options,
    *,
    should_stop: Callable[[], bool],
    stopped_as: Callable[[], str] = lambda: "interrupted",
    load: Callable[[Options], Engine] = load_engine,
) -> int:
    """Execute the runs of a plan until nothing is left that this worker may claim; return how many it took on.

    Runs held by others are left to them: whoever watches the sweep sends a worker again if their holder dies.

    Raises:
        StoreUnusable: the disk is full; whatever was claimed has ended.
        MemoryShort: a run did not fit beside those of the neighbours; this worker gives way to them.
        UserError: the data of all that is left cannot be used here; such runs are not claimed.
    """
    engine: Engine | None = None
    unusable: dict[str, UserError] = {}
    taken = 0
    queue = Queue(store, plan, options.offset)
    while True:
        claimed_before, was_fresh = taken, queue.is_fresh
        for entry in queue:
            if should_stop():
                return taken
            state = _state(store, entry)
            if not state.claimable(options.max_attempts) or _needs_more(state, options):
                if state.status == "running":
                    queue.keep()  # held by somebody; what is done, or given up, never comes back
                continue
            store.check_room()
            if engine is None:
                # Call git while this process is small: a child counts with all of its parent's memory until it becomes
                # another program, and SLURM may look at that moment and kill the job for the sum.
                environment(options.device)
                engine = load(options)
            if not _has_data(entry, engine, unusable):
                continue
            queue.keep()
            first = store.claim(entry.parse(), lease, options.max_attempts)
            if first is None:
                continue
            group = [first, *_companions(store, first, queue, lease, options, engine)]
            taken += len(group)
            _leave_for(_execute(group, engine, options, should_stop, stopped_as), store, options)
        if taken == claimed_before and not was_fresh:
            if taken or queue.is_thorough:
                if unusable and not taken:
                    raise next(iter(unusable.values()))
                return taken
            queue.is_thorough = True  # sent, and finds nothing: what seems to be finished may not be


def _state(store: Store, entry: Entry) -> RunState:
    """A run's state, and where its worker died in a SLURM job: why, as far as SLURM knows."""
    run, wish = store.run(entry.run_id), Wish.of(entry.experiment)
    state = run.state(wish)
    return run.state(wish) if state.status == "lost" and explain(store, run) else state


def _has_data(entry: Entry, engine: Engine, unusable: dict[str, UserError]) -> bool:
    """Whether a run's data can be used here; why not is added to ``unusable``, by data set, and not tried again."""
    dataset = canonical_json(entry.experiment.get("dataset"))
    if dataset not in unusable:
        try:
            engine.check(entry.parse())
        except UserError as problem:
            unusable[dataset] = problem
    return dataset not in unusable


def _needs_more(state: RunState, options: Options) -> bool:
    """Whether a run is for workers with more memory: here it would only fail again."""
    return state.kind == "oom" and options.memory == "usual"


def _leave_for(kinds: Container[str], store: Store, options: Options) -> None:
    """Raise where runs have ended in a way in which others would end too."""
    if "disk_full" in kinds:
        raise StoreUnusable(f"the disk is full where the store {store.root} lies")
    if options.neighbours > 1 and any(kind in kinds for kind in MEMORY):
        raise MemoryShort("a run did not fit into memory; this worker gives way to those beside it")


def _companions(
    store: Store, first: Attempt, queue: Queue, lease: Lease, options: Options, engine: Engine
) -> Iterator[Attempt]:
    """Claim runs that can be trained together with the first: they stand near it in the plan (its seeds do)."""
    fair = -(-queue.left // (2 * options.workers - 1))  # smaller and smaller groups, so that all end at about one time
    room = min(options.fuse, fair) - 1
    if room < 1:
        return
    try:
        room = min(room, engine.group_size(first.experiment) - 1)
    except Exception:
        return  # whatever is wrong (missing data, say), the run itself meets it too, and tells it in its own files
    kind = kind_of_group(first.experiment.to_json())
    for entry in queue.near(NEAR):
        if room < 1:
            return
        if kind_of_group(entry.experiment) != kind or _needs_more(_state(store, entry), options):
            continue
        attempt = store.claim(entry.parse(), lease, options.max_attempts)
        if attempt is not None:
            room -= 1
            yield attempt


def kind_of_group(experiment: Mapping[str, Any]) -> str:
    """What runs that are trained together have in common, from their plain JSON."""
    common = {field: value for field, value in experiment.items() if field not in FUSABLE | WISHES}
    method = common.get("method", {})
    common["method"] = {key: value for key, value in method.items() if not _is_number(value)}
    return canonical_json(common)


def _is_number(value: Any) -> bool:
    return isinstance(value, float | int) and not isinstance(value, bool)


def _execute(
    group: Sequence[Attempt],
    engine: Engine,
    options: Options,
    should_stop: Callable[[], bool],
    stopped_as: Callable[[], str],
) -> set[str]:
    """Execute claimed runs and end their attempts; return the kinds of their ends."""
    kinds: set[str] = set()
    cancelled = Glance(attempt.mark().is_put for attempt in group)
    memory = {} if options.memory == "all" else {"memory": options.memory}
    held = {attempt.path: attempt for attempt in group}

    def ended(attempt: Attempt, end: Outcome | Exception) -> None:
        del held[attempt.path]
        # Where nobody stopped the worker, a run was cancelled, and those trained with it go on at once.
        kinds.add(_end(attempt, end, options, stopped_as if should_stop() else lambda: "interrupted"))

    with ExitStack() as logs:
        try:
            for attempt in group:
                logs.enter_context(_logged(attempt))
                plugins = {"plugins": attempt.wish.plugins} if attempt.wish.plugins else {}
                attempt.describe(environment(options.device) | memory | plugins)
            engine.execute(group, should_stop=lambda: should_stop() or cancelled(), ended=ended)
        except Exception as error:
            for attempt in list(held.values()):
                ended(attempt, error)
        except BaseException:
            # The second Ctrl-C, or the interpreter's end: nothing is wrong with the runs themselves.
            for attempt in held.values():
                attempt.end("interrupted", "stopped before the end of its round")
            raise
    return kinds


def _end(attempt: Attempt, end: Outcome | Exception, options: Options, stopped_as: Callable[[], str]) -> str:
    """Write down how an attempt ended; return the kind of its end."""
    if isinstance(end, UserError):
        # What led to it is the user's own code, if anything.
        attempt.log(f"error: {end}" if end.__cause__ is None else "".join(traceback.format_exception(end)))
        attempt.end("error", str(end), mendable=True)
        return "error"
    if isinstance(end, Exception):
        kind = kind_of(end)
        trace = "".join(traceback.format_exception(end))
        traceback.clear_frames(end.__traceback__)  # what they hold may be the memory that is lacking
        attempt.log(trace)
        # The same again would fail again: with a full disk, or with as much memory.
        attempt.end(kind, _summary(end), mendable=kind == "disk_full" or (kind in MEMORY and _has_all(kind, options)))
        return kind
    if end.status == "stopped" and attempt.mark().is_put():
        attempt.end(
            CANCELLED, "by `flbench cancel`; the next `flbench sweep` goes on with it", end.round, mendable=True
        )
        return CANCELLED
    if end.status == "stopped":
        why = stopped_as()
        attempt.end(why, round=end.round)
        return why
    if attempt.run.result_for(attempt.wish) is None:
        problem = f"the run ended as {end.status!r} and published no result that covers the wish"
        return _end(attempt, RuntimeError(problem), options, stopped_as)
    attempt.end("ok", round=end.round)
    return "ok"


def _has_all(kind: str, options: Options) -> bool:
    """Whether no worker could have more memory than this one: neither without its neighbours, nor in another job."""
    return options.neighbours == 1 and not (kind == "oom" and options.memory == "usual")


def kind_of(error: BaseException) -> Literal["error", "oom", "cuda_oom", "disk_full"]:
    """What sort of failure an exception is."""
    if memory := out_of_memory(error):
        return memory
    if (isinstance(error, OSError) and error.errno in DISK_FULL) or os.strerror(errno.ENOSPC) in str(error):
        return "disk_full"
    return "error"


@contextmanager
def _logged(attempt: Attempt) -> Iterator[None]:
    """Send what the library logs meanwhile to the attempt's log."""
    handler = logging.FileHandler(attempt.log_path, delay=True, encoding="utf-8", errors="replace")
    handler.setFormatter(_Discreet("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger("flbench")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        handler.close()


class _Discreet(logging.Formatter):
    """Writes no secret of the environment into a log."""

    def format(self, record: logging.LogRecord) -> str:
        return redact(super().format(record))


def _summary(error: BaseException) -> str:
    """The first line of an exception, for tables; the log has it all."""
    return traceback.format_exception_only(error)[-1].strip().partition("\n")[0][:300]


@cache
def environment(device: str) -> dict[str, Any]:
    """What runs of this process run on: packages, code, machine."""
    commit, dirty = _git()
    return {
        "flbench": _version("flbench"),
        "git_commit": commit,
        "git_dirty": dirty,
        "python": platform.python_version(),
        **{package: _version(package) for package in PACKAGES[1:]},
        "host": socket.gethostname(),
        "system": platform.platform(),
        "cpu": _cpu_model(),
        "gpu": _gpu_name() if device == "cuda" else None,
        "cuda_visible_devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "argv": sys.argv,
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _git() -> tuple[str | None, bool | None]:
    """Commit of the code that runs, and whether it was changed since; None where it is no git checkout."""
    here = Path(__file__).parent
    git = ["git", "-C", str(here)]
    try:
        # A package installed below somebody else's checkout is no part of it.
        subprocess.run([*git, "ls-files", "--error-unmatch", __file__], check=True, capture_output=True, timeout=10)
        commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True, timeout=10)
        status = subprocess.run(
            [*git, "status", "--porcelain", "--", "."], check=True, capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.SubprocessError):
        return None, None
    return commit.stdout.strip(), bool(status.stdout.strip())


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def _gpu_name() -> str | None:
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else None


class Stop:
    """Whether this worker shall stop, and why: a signal, or the end of its SLURM job's walltime.

    SLURM sends SIGUSR2 before the walltime's end and before a preemption, and SIGTERM when somebody cancels or requeues
    the job; a preemption without warning is SIGTERM as well, and SLURM requeues such a job by itself.
    """

    def __init__(self, job: Job | None) -> None:
        self.job = job
        self._signalled, self._warned = Event(), Event()
        handlers = {signal.SIGTERM: self._signalled, signal.SIGINT: self._signalled}
        if job is not None:
            handlers[signal.SIGUSR2] = self._warned
        for number, event in handlers.items():
            signal.signal(number, lambda *_, event=event: event.set())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, handlers)  # a parent may have started this process with them blocked

    def __call__(self) -> bool:
        """Whether to stop at the end of the round."""
        return self._signalled.is_set() or self._why_job_stops() is not None

    def kind(self) -> Literal["interrupted", "timeout", "preempted"]:
        """Why, in the words of exit.json."""
        return self._kind

    @cached_property
    def _kind(self) -> Literal["interrupted", "timeout", "preempted"]:
        return "interrupted" if self._signalled.is_set() else self._why_job_stops() or "interrupted"

    def _why_job_stops(self) -> Literal["timeout", "preempted"] | None:
        if self.job is None:
            return None
        if self._warned.is_set() and self.job.why_stop() is None:
            self._warned.clear()
            self.job = self.job.warned()
        return self.job.why_stop()


def main(argv: Sequence[str] | None = None, *, load: Callable[[Options], Engine] = load_engine) -> int:
    """Work on the plan named on the command line; return the exit code."""
    stop = Stop(Job.here())  # before all else: until then, a signal would kill
    given = _parser().parse_args(argv)
    options = Options(**{field.name: getattr(given, field.name) for field in fields(Options)})
    try:
        taken = _work_on(Store(given.store, create=False), given, options, stop, load)
    except UserError as error:
        print(f"error: {redact(str(error))}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(redact(traceback.format_exc()), file=sys.stderr)
        print(f"error: the store {given.store} cannot be used: {error}", file=sys.stderr)
        return StoreUnusable.exit_code
    if not stop():
        return 0
    if stop.job is not None:
        _take_another_turn(stop.job, stop.kind(), taken)
    return REQUEUE


def _work_on(
    store: Store, given: argparse.Namespace, options: Options, stop: Stop, load: Callable[[Options], Engine]
) -> int:
    lease = Lease.here(given.token)
    cancelled = Glance([store.mark(given.plan).is_put, store.is_deleted])
    with store.heartbeat(lease, given.plan) as heartbeat:
        if stop.job is not None:
            (heartbeat.directory / "log.txt").symlink_to(stop.job.log)
        entries = open_plan(store.root / "sweeps" / given.plan / "plan.jsonl")
        try:
            return work(
                store,
                entries,
                lease,
                options,
                should_stop=lambda: stop() or cancelled(),
                stopped_as=lambda: stop.kind() if stop() else "interrupted",
                load=load,
            )
        finally:
            store.check_present()  # else whatever went wrong, or the stop, would be blamed on something else


def _take_another_turn(job: Job, kind: str, taken: int) -> None:
    """Requeue the job, unless somebody wants its end, or its walltime does not suffice to begin anything."""
    if kind == "preempted" or (kind == "timeout" and taken):
        problem = job.requeue()
        print(f"{kind}: {f'not requeued: {problem}' if problem else f'requeued job {job.job_id}'}", file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m flbench.worker", description="Execute the runs of a plan.")
    parser.add_argument("store", type=Path, help="the store's directory")
    parser.add_argument("plan", help="a sweep of the store, as NAME/HASH")
    parser.add_argument("--token", help="this worker's name; default: a new one")
    parser.add_argument("--data-root", type=Path, help="folder of the data sets")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--executor", choices=["auto", "loop", "stacked"], default="auto")
    parser.add_argument("--pool", type=int, default=1, help="threads of the loop executor")
    parser.add_argument("--max-attempts", type=int, default=3, help="failures after which a run is given up")
    parser.add_argument("--offset", type=int, default=0, help="where in the plan to begin")
    parser.add_argument("--workers", type=int, default=1, help="how many share the plan")
    parser.add_argument("--memory", choices=["all", "usual", "more"], default="all", help="how much this worker has")
    parser.add_argument("--fuse", type=int, default=64, help="most runs trained together")
    parser.add_argument("--neighbours", type=int, default=1, help="how many workers share the memory")
    return parser


def _report(*error: Any) -> None:
    """Say in the worker's log what nobody expected, without the secrets of the environment."""
    print(redact("".join(traceback.format_exception(*error))), file=sys.stderr)


if __name__ == "__main__":
    sys.excepthook = _report
    sys.exit(main())
