"""``flbench sync``: mirror what is in the store to Weights & Biases, now or beside a sweep."""

from __future__ import annotations

import fcntl
import json
import os
import select
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import partial
from itertools import takewhile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from flbench.cli.completion import sweeps as complete_sweeps
from flbench.cli.options import DEFAULT_STORE, JsonOption, StoreOption
from flbench.cli.tracked import board_id, board_of, name_of, sweeps_of
from flbench.errors import UserError

if TYPE_CHECKING:
    from flbench.store import Store, Wish
    from flbench.sweeps import Sweep
    from flbench.sweeps.spec import Wandb
    from flbench.tracking.mirror import Mirror, Tally

#: Seconds without anything done, after which a mirror is taken for stuck and ends: nobody else would end it.
STUCK = 900.0

#: How a plan's spec.yaml begins where options were given.
OPTIONS = ("# --set ", "# --only ", "# --limit ")

#: Held by the one mirror of a plan, in the plan's directory.
LOCK = "wandb.lock"


class TrackingMode(StrEnum):
    """Whether and how runs are mirrored."""

    auto = "auto"
    online = "online"
    offline = "offline"
    off = "off"


@dataclass(frozen=True)
class Ended:
    """How the mirroring of one sweep ended; ``problem`` is empty where it went well."""

    sweep: str
    mode: Literal["online", "offline", "off"]
    tally: Tally | None = None
    told_sweep: bool = False
    url: str | None = None
    problem: str = ""
    note: str = ""

    @property
    def ok(self) -> bool:
        """Whether nothing went wrong."""
        return not self.problem and not (self.tally and self.tally.failed)

    def json(self) -> dict[str, Any]:
        """For programs."""
        tally = self.tally
        return {
            **{name: value for name, value in asdict(self).items() if name != "tally"},
            **({**asdict(tally), "unfinished": tally.unfinished} if tally else {}),
        }


def sync(
    sweeps: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SWEEP",
            help="Sweep files, or names of sweeps in the store; without any, all of them.",
            autocompletion=complete_sweeps,
        ),
    ] = None,
    store: StoreOption = DEFAULT_STORE,
    mode: Annotated[
        TrackingMode | None,
        typer.Option(help="offline writes files for `wandb sync`; default: what the sweep file says."),
    ] = None,
    as_json: JsonOption = False,
    beside: Annotated[
        bool,
        typer.Option("--beside", hidden=True, help="Go on until standard input ends: how `flbench sweep` does it."),
    ] = False,
) -> None:
    """Mirror finished runs, and each sweep's table and figures, to Weights & Biases.

    Calling it again is always safe: what W&B has already is left alone, and what has changed is put in its place.
    Beside `flbench sweep` the same happens by itself. Exit codes: 0 all that is finished is mirrored, 1 something is
    not, 2 bad usage, 4 store unusable.

    Example: flbench sync

    Example: flbench sync sweeps/quickstart.yaml --mode offline
    """
    from flbench.cli.ending import ends_quietly
    from flbench.cli.targets import expect_plans, plan_name
    from flbench.store import Store

    opened = Store(store, create=False)
    jobs: dict[str, Callable[[], Job]] = {}
    plans = [path for name in sweeps for path in expect_plans(opened, name)] if sweeps else opened.sweep_dirs()
    for plan in plans:
        jobs[plan_name(plan)] = partial(_job_of_plan, plan)
    if not sweeps and (alone := _runs_of_no_sweep(opened)):
        jobs["runs of no sweep"] = partial(_job_of_runs, opened, alone)
    if not jobs:
        raise UserError(f"nothing to mirror in {store}: run `flbench sweep sweeps/quickstart.yaml` first")
    say = _say_on_error if as_json else _say
    if beside:
        _step_back()
    with ends_quietly(), _no_prompts(beside):
        ends = [_sync(opened, name, job, mode, say, beside=beside) for name, job in jobs.items()]
    ok = all(end.ok for end in ends)
    if as_json:
        print(
            json.dumps({"schema": 1, "store": str(store), "ok": ok, "sweeps": [end.json() for end in ends]}, indent=1)
        )
    raise typer.Exit(int(not ok))


@dataclass(frozen=True)
class Job:
    """Runs to be mirrored together: those of a sweep, or those that no sweep names."""

    wishes: Mapping[str, Wish]
    wandb: Wandb
    lock: Path
    sweep: Sweep | None = None


def _job_of_plan(plan: Path) -> Job:
    from flbench.store import read_plan

    sweep = _load(plan)
    wishes = {entry.run_id: entry.wish() for entry in read_plan(plan / "plan.jsonl")}
    return Job(wishes, sweep.spec.wandb, plan / LOCK, sweep)


def _runs_of_no_sweep(store: Store) -> list[str]:
    """What `flbench run` and `flbench import` have left."""
    planned = store.planned_ids()
    return [run_id for run_id in store.run_ids() if run_id not in planned]


def _job_of_runs(store: Store, run_ids: Sequence[str]) -> Job:
    from flbench.store import Wish
    from flbench.sweeps.spec import Wandb

    wishes = {}
    for run_id in run_ids:
        with suppress(FileNotFoundError, UserError):  # one that this version cannot read
            wishes[run_id] = Wish.of(store.run(run_id).experiment())
    return Job(wishes, Wandb(), store.root / LOCK)


def _sync(
    store: Store,
    name: str,
    make: Callable[[], Job],
    mode: TrackingMode | None,
    say: Callable[[str], None],
    *,
    beside: bool,
) -> Ended:
    """Mirror some runs; whatever goes wrong with them ends as one line."""
    try:
        end = _mirror(store, name, make(), mode, say, beside=beside)
    except UserError as error:
        end = Ended(name, "off", problem=str(error))
    except Exception as error:
        traceback.print_exc()
        end = Ended(name, "off", problem=f"{type(error).__name__}: {error}")
    say(_conclusion(store, end))
    return end


def _mirror(
    store: Store, name: str, job: Job, mode: TrackingMode | None, say: Callable[[str], None], *, beside: bool
) -> Ended:
    from flbench.tracking.memory import Memory
    from flbench.tracking.mirror import GivenUp, Mirror
    from flbench.tracking.modes import choose, server
    from flbench.tracking.view import Viewer
    from flbench.tracking.writer import Writer

    choice, project, entity = choose(mode.value if mode else job.wandb.mode), job.wandb.project, job.wandb.entity
    if choice.mode == "off":
        problem = choice.note.removeprefix("warning: ") if choice.note.startswith("warning") else ""
        return Ended(name, "off", problem=problem, note=choice.note or "off, as was asked for")
    folder = store.root / "wandb"
    where = server() if choice.mode == "online" else "files"
    with _watched(say) as beat, _locked(job.lock, say, beat):
        mirror = Mirror(
            store,
            job.wishes,
            Memory(folder / "mirrored.jsonl", f"{where}/{entity or ''}/{project}"),
            Viewer(name_of, sweeps_of(store)),
            partial(Writer, choice.mode, folder, project, entity),
            mode=choice.mode,
            say=say,
            beat=beat,
        )
        try:
            told, problem = _run(mirror, store, job.sweep, beside, say), ""
        except GivenUp as error:
            told, problem = False, str(error)
        finally:
            mirror.close()
        return Ended(name, choice.mode, mirror.tally, told, mirror.url, problem)


def _run(mirror: Mirror, store: Store, sweep: Sweep | None, beside: bool, say: Callable[[str], None]) -> bool:
    """Mirror everything; say whether the sweep's own run was told (again)."""
    if beside:
        mirror.follow(_input_ends)
    mirror.finish()
    if sweep is None:
        return False
    with TemporaryDirectory(prefix="flbench-figures-") as figures:
        return mirror.show(board_id(sweep), lambda: board_of(store, sweep, Path(figures), say))


def _conclusion(store: Store, end: Ended) -> str:
    tally = end.tally
    if tally is None:
        return f"{end.sweep}: {'warning: ' + end.problem if end.problem else end.note}"
    to = "in files" if end.mode == "offline" else "on W&B"
    parts = [f"{end.sweep}: {tally.mirrored} of {tally.total} runs are {to}, {tally.new} of them new"]
    parts += [f"{tally.failed} could not be told"] if tally.failed else []
    parts += [end.problem] if end.problem else []
    parts += (
        [f"upload: wandb sync {store.root}/wandb/offline-run-*"] if end.mode == "offline" and tally.mirrored else []
    )
    parts += [end.url] if end.url and end.mode == "online" else []
    return ("" if end.ok else "warning: ") + "; ".join(parts)


def _load(plan: Path) -> Sweep:
    """The sweep behind a plan, with the options that were given: its first lines, as comments.

    The file's own comments may look alike, so those options count that lead to this very plan.

    Raises:
        UserError: the sweep cannot be read, or not as it was planned.
    """
    from flbench.planning import as_planned

    path = plan / "spec.yaml"
    given = list(takewhile(lambda line: line.startswith(OPTIONS), path.read_text().splitlines()))
    problem: UserError = UserError(f"{path}: this is not the sweep that was planned; `flbench sweep` plans it again")
    for count in range(len(given), -1, -1):
        try:
            sweep = as_planned(_load_with(path, given[:count]), plan)
        except (UserError, ValueError) as error:
            problem = error if isinstance(error, UserError) else problem
        else:
            if sweep.spec_hash == plan.name:
                return sweep
    raise problem


def _load_with(path: Path, options: Sequence[str]) -> Sweep:
    from flbench.sweeps import load_sweep

    values = {option: [line.removeprefix(option) for line in options if line.startswith(option)] for option in OPTIONS}
    sets, only, limit = values.values()
    return load_sweep(path, sets, only, int(limit[0]) if limit else None)


def _say(line: str) -> None:
    print(line, flush=True)


def _say_on_error(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _step_back() -> None:
    """Leave the cores to whoever trains; some kernels weigh sessions, not processes."""
    os.nice(19)
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text("19")


def _input_ends(seconds: float) -> bool:
    """Wait so long at most; say whether standard input has come to its end."""
    readable, _, _ = select.select([0], [], [], seconds)
    return bool(readable) and not os.read(0, 1024)


@contextmanager
def _no_prompts(beside: bool) -> Iterator[None]:
    """Nobody is asked anything: wandb finds no terminal to ask on."""
    if beside:
        yield
        return
    before, sys.stdin = sys.stdin, cast(Any, open(os.devnull))  # noqa: SIM115, PTH123
    try:
        yield
    finally:
        sys.stdin.close()
        sys.stdin = before


@contextmanager
def _watched(say: Callable[[str], None]) -> Iterator[Callable[[], None]]:
    """End this process if nothing is done for ``STUCK`` seconds; gives what is to be called whenever something is."""
    last, over = [time.monotonic()], threading.Event()

    def beat() -> None:
        last[0] = time.monotonic()

    def watch() -> None:
        while not over.wait(1):
            if time.monotonic() - last[0] > STUCK:
                say(f"warning: wandb did nothing for {STUCK:.0f} s; `flbench sync` goes on from here")
                os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield beat
    finally:
        over.set()


@contextmanager
def _locked(path: Path, say: Callable[[str], None], beat: Callable[[], None]) -> Iterator[None]:
    """Wait for whoever mirrors the same plan; a file system without locks has none to wait for."""
    with path.open("ab") as file:
        waiting = False
        while not _lock(file.fileno()):
            if not waiting:
                say("waiting for another process that mirrors the same sweep")
            waiting = True
            beat()
            time.sleep(0.5)
        yield


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
