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
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from flbench.cli.options import DEFAULT_STORE, JsonOption, StoreOption
from flbench.errors import UserError

if TYPE_CHECKING:
    from flbench.report.frames import Collection
    from flbench.report.leaderboard import Leaderboard
    from flbench.store import Store
    from flbench.sweep import Sweep
    from flbench.tracking.mirror import Mirror, Tally
    from flbench.tracking.view import Board

#: Seconds without anything done, after which a mirror is taken for stuck and ends: nobody else would end it.
STUCK = 300.0

#: Fields that a run's name on W&B always has; others only where they are not what they are by default.
NAMED = frozenset({"method", "norm", "partition", "lr", "local_steps", "seed"})

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
            metavar="[SWEEP]...", help="Sweep files, or names of sweeps in the store; without any, all of them."
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
    from flbench.cli.targets import expect_plans
    from flbench.store import Store

    opened = Store(store, create=False)
    plans = [path for name in sweeps for path in expect_plans(opened, name)] if sweeps else opened.sweep_dirs()
    if not plans:
        raise UserError(f"nothing to mirror in {store}: run `flbench sweep sweeps/quickstart.yaml` first")
    say = _say_on_error if as_json else _say
    if beside:
        os.nice(19)  # whoever trains needs the cores more
    with ends_quietly(), _no_prompts(beside):
        ends = [_sync_plan(opened, plan, mode, say, beside=beside) for plan in dict.fromkeys(plans)]
    ok = all(end.ok for end in ends)
    if as_json:
        print(
            json.dumps({"schema": 1, "store": str(store), "ok": ok, "sweeps": [end.json() for end in ends]}, indent=1)
        )
    raise typer.Exit(int(not ok))


def _sync_plan(
    store: Store, plan: Path, mode: TrackingMode | None, say: Callable[[str], None], *, beside: bool
) -> Ended:
    """Mirror one sweep; whatever goes wrong with it ends as one line."""
    from flbench.cli.targets import plan_name

    name = plan_name(plan)
    try:
        end = _mirror_plan(store, plan, name, mode, say, beside=beside)
    except UserError as error:
        end = Ended(name, "off", problem=str(error))
    except Exception as error:
        traceback.print_exc()
        end = Ended(name, "off", problem=f"{type(error).__name__}: {error}")
    say(_conclusion(store, end))
    return end


def _mirror_plan(
    store: Store, plan: Path, name: str, mode: TrackingMode | None, say: Callable[[str], None], *, beside: bool
) -> Ended:
    from flbench.tracking.memory import Memory
    from flbench.tracking.mirror import GivenUp, Mirror
    from flbench.tracking.modes import choose, server
    from flbench.tracking.view import Viewer
    from flbench.tracking.writer import Writer

    sweep = _load(plan)
    wish = sweep.spec.wandb
    choice = choose(mode.value if mode else wish.mode)
    if choice.mode == "off":
        problem = choice.note.removeprefix("warning: ") if choice.note.startswith("warning") else ""
        return Ended(name, "off", problem=problem, note=choice.note or "off, as was asked for")
    folder = store.root / "wandb"
    where = server() if choice.mode == "online" else "files"
    with _watched(say) as beat, _locked(plan / LOCK, say, beat):
        mirror = Mirror(
            store,
            plan,
            Memory(folder / "mirrored.jsonl", f"{where}/{wish.entity or ''}/{wish.project}"),
            Viewer(_name, _sweeps_of(store)),
            partial(Writer, choice.mode, folder, wish.project, wish.entity),
            mode=choice.mode,
            say=say,
            beat=beat,
        )
        try:
            told, problem = _run(mirror, store, sweep, beside, say), ""
        except GivenUp as error:
            told, problem = False, str(error)
        finally:
            mirror.close()
        return Ended(name, choice.mode, mirror.tally, told, mirror.url, problem)


def _run(mirror: Mirror, store: Store, sweep: Sweep, beside: bool, say: Callable[[str], None]) -> bool:
    """Mirror everything; say whether the sweep's own run was told (again)."""
    if beside:
        mirror.follow(_input_ends)
    mirror.finish()
    with TemporaryDirectory(prefix="flbench-figures-") as figures:
        return mirror.show(_board_id(sweep), lambda: _board(store, sweep, Path(figures), say))


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
    """The sweep behind a plan, with the options that were given; raises UserError."""
    from flbench.sweep import load_sweep

    path = plan / "spec.yaml"
    given: dict[str, list[str]] = {"--set": [], "--only": [], "--limit": []}
    for line in path.read_text().splitlines():
        option, _, value = line.removeprefix("# ").partition(" ")
        if not line.startswith("# --") or option not in given:
            break
        given[option].append(value)
    limit = int(given["--limit"][0]) if given["--limit"] else None
    return load_sweep(path, given["--set"], given["--only"], limit)


def _sweeps_of(store: Store) -> Mapping[str, Sequence[str]]:
    """By run, the names of all sweeps that name it."""
    sweeps: dict[str, dict[str, None]] = {}
    for directory in store.sweep_dirs():
        for run_id in store.planned_ids(directory):
            sweeps.setdefault(run_id, {})[directory.parent.name] = None
    return {run_id: tuple(names) for run_id, names in sweeps.items()}


def _name(experiment: Mapping[str, Any]) -> str:
    """A run's name on W&B; it says the same in every sweep."""
    from flbench.orchestrate import label

    usual = {**_defaults(str(experiment.get("kind", "federated"))), "kind": "federated"}
    return label(experiment, {field for field, value in usual.items() if experiment.get(field) == value} - NAMED)


@cache
def _defaults(kind: str) -> dict[str, Any]:
    from flbench.config import parse_experiment

    return parse_experiment({"kind": kind}).to_json()


def _board_id(sweep: Sweep) -> str:
    return f"sweep-{sweep.spec_hash}"


def _board(store: Store, sweep: Sweep, folder: Path, say: Callable[[str], None]) -> Board:
    """The sweep's table and figures, from the report."""
    from flbench.report import frames, leaderboard
    from flbench.tracking.view import Board

    options = leaderboard.options_of([sweep])
    collection = frames.collect(
        frames.StoreSource(store), sweep.experiments, select_by=options.select_by, metric=options.metric
    )
    board = leaderboard.build(collection, options)
    cells = board.json()["cells"]
    fields = _varying([cell["experiment"] for cell in cells])
    numbers = ("mean", "sd", "ci_half_width", "n", "wished")
    return Board(
        sweep=sweep.name,
        run_id=_board_id(sweep),
        config={"sweep": sweep.name, "spec_hash": sweep.spec_hash, "runs": len(sweep.experiments)},
        columns=[*fields, "rounds", "metric", *numbers, "gaps", "best", "cell_id"],
        rows=[
            [
                *(_text(cell["experiment"].get(field)) for field in fields),
                *(cell[name] for name in ("rounds", "metric", *numbers)),
                ", ".join(f"{count} {why}" for why, count in cell["gaps"].items()),
                *(cell[name] for name in ("best", "cell_id")),
            ]
            for cell in cells
        ],
        figures=_figures(board, collection, folder, say),
    )


def _figures(board: Leaderboard, collection: Collection, folder: Path, say: Callable[[str], None]) -> list[Path]:
    """The figures that can be drawn here; the table goes without the others."""
    from flbench.report.figures import write_figures

    try:
        write_figures(board, collection, folder)
    except (UserError, OSError) as error:
        say(f"warning: not every figure could be drawn: {error}")
    return sorted(folder.glob("*.png"))


def _varying(experiments: Sequence[Mapping[str, Any]]) -> list[str]:
    """The fields of a table: method, norm, and what tells its cells apart."""
    values: dict[str, set[str]] = {"method": set(), "norm": set()}
    for experiment in experiments:
        for name, value in experiment.items():
            values.setdefault(name, set()).add(_text(value))
    return [name for name, different in values.items() if len(different) > (name not in ("method", "norm"))]


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value)


def _say(line: str) -> None:
    print(line, flush=True)


def _say_on_error(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


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
