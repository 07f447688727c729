"""Telling W&B: the only module that imports wandb, and only once there is something to tell.

A run is always told whole, without ``resume``: W&B then puts it in the place of what it has under that id, so that a
run is there once, whatever was told before. (Segments that continue one another erase each other: wandb#5865, #3841.)

wandb writes into a staging folder. What it wrote into files takes its place in the store when it has been read back and
found whole.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from flbench.store import files
from flbench.store.root import ROOM
from flbench.tracking import segments
from flbench.tracking.modes import server
from flbench.tracking.view import Board, View

if TYPE_CHECKING:
    import wandb

#: Seconds that W&B has to answer at the beginning of a run, and to take in the rest of it at its end.
INIT_TIMEOUT, FINISH_TIMEOUT = 30.0, 120.0

#: How wandb's log marks what it gives up.
FATAL = '"level":"ERROR+4"'

#: Seconds in which a server that is there takes a connection.
KNOCK_TIMEOUT = 10.0

#: Bytes of the store's disk that are left to the runs.
SPARED = 4 * ROOM

#: Variables that name a proxy.
_PROXIES = frozenset({"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "WANDB_HTTP_PROXY", "WANDB_HTTPS_PROXY"})

#: Seconds after which a file's last bytes are lost.
FLUSH_TIMEOUT = 5.0

#: Variables of wandb that say where and as whom; whatever else the user's shell has is about other runs.
_KEPT = frozenset(
    {"API_KEY", "BASE_URL", "APP_URL", "CONFIG_DIR", "CREDENTIALS_FILE", "ENTITY", "HTTP_PROXY", "HTTPS_PROXY"}
    | {"IDENTITY_TOKEN_FILE", "INSECURE_DISABLE_SSL"}
    | {"MODE"}  # of no effect on wandb here; the next sweep that is mirrored shall find it
)


class WriteFailed(Exception):
    """W&B was not told, and why."""


class Writer:
    """W&B, or files for it in ``folder``, of one project.

    Raises:
        ImportError: there is no wandb.
        OSError: there is no place to stage anything.
    """

    def __init__(self, mode: Literal["online", "offline"], folder: Path, project: str, entity: str | None) -> None:
        self.mode, self.folder = mode, folder
        self._project, self._entity = project, entity
        self.url: str | None = None
        self._staging = _staging(mode, folder)
        _tame(self._staging)
        import wandb

        self._wandb = wandb

    def open(self, view: View) -> Session:
        """Begin to tell a run; raises WriteFailed where the server cannot be reached, or the disk is nearly full."""
        return Session(self, self._init(view), view.run_id, view)

    def show(self, board: Board) -> str:
        """Tell a sweep's table and figures as a run of its own; return the name of its files' folder."""
        run = self._wandb.init(
            **self._common(),
            id=board.run_id,
            name=board.sweep,
            job_type="sweep",
            tags=[board.sweep],
            config=dict(board.config),
        )
        session = Session(self, run, board.run_id)
        table = self._wandb.Table(columns=list(board.columns), data=[list(row) for row in board.rows])
        # Bound here, it stays a file of the run; else it would become an artifact too, whose files lie somewhere else.
        table.bind_to_run(run, "leaderboard", 0)  # type: ignore[no-untyped-call]
        images = {f"figures/{path.stem}": self._wandb.Image(str(path)) for path in board.figures}
        run.log({"leaderboard": table, **images})
        return session.end(0)

    def restart(self) -> None:
        """Forget all that is in wandb's memory after a failure; its service is started anew when it is needed."""
        with suppress(Exception):
            self._wandb.teardown(exit_code=1)

    def close(self) -> None:
        """Let go of everything."""
        self.restart()
        shutil.rmtree(self._staging, ignore_errors=True)

    def keep(self, staged: Path, run_id: str) -> str:
        """Put files that are whole in place of whatever there was of that run; return their folder's name."""
        for older in self.folder.glob(f"offline-run-*-{run_id}"):
            shutil.rmtree(older, ignore_errors=True)
        for needless in ("logs", "tmp"):
            shutil.rmtree(staged / needless, ignore_errors=True)
        files.disk.rename(staged, self.folder / staged.name)
        return staged.name

    def _init(self, view: View) -> wandb.Run:
        run = self._wandb.init(
            **self._common(),
            id=view.run_id,
            name=view.name,
            group=view.group,
            job_type=view.job_type,
            tags=list(view.tags),
            config=dict(view.config),
        )
        run.define_metric("round")
        run.define_metric("*", step_metric="round")
        return run

    def _common(self) -> dict[str, Any]:
        if self.mode == "online":
            _knock(server())
        else:
            _leave_room(self.folder)
        # What was idle for an hour looks abandoned to `flbench gc`.
        self._staging.mkdir(exist_ok=True)
        os.utime(self._staging)
        return {"project": self._project, "entity": self._entity, "reinit": "create_new", "settings": self._settings()}

    def _settings(self) -> wandb.Settings:
        return self._wandb.Settings(
            mode=self.mode,
            root_dir=str(self._staging),
            symlink=False,
            console="off",
            silent=True,
            disable_code=True,
            disable_git=True,
            x_disable_meta=True,
            x_disable_stats=True,
            x_disable_machine_info=True,
            x_save_requirements=False,
            init_timeout=INIT_TIMEOUT,
            login_timeout=INIT_TIMEOUT,
            finish_timeout=FINISH_TIMEOUT,
            finish_timeout_raises=True,
            stop_fn=lambda: None,  # W&B's stop button would send Ctrl-C to the mirror
        )


class Session:
    """A run that is being told."""

    def __init__(self, writer: Writer, run: wandb.Run, run_id: str, view: View | None = None) -> None:
        self._writer, self._run, self._run_id, self._view = writer, run, run_id, view
        self._told: list[Mapping[str, Any]] = []
        with suppress(Exception):
            writer.url = run.project_url or writer.url

    def begins(self, records: Sequence[Mapping[str, Any]]) -> bool:
        """Whether these records begin with those that were told."""
        return list(records[: len(self._told)]) == self._told

    def log(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Tell the records that were not told yet."""
        for record in records[len(self._told) :]:
            self._run.log(dict(record), step=record["round"], commit=True)  # else the last one waits for a next one
            self._told.append(record)

    def finish(self, view: View) -> str:
        """Tell how it ended; return the name of the folder that holds it, if files do.

        Raises:
            WriteFailed: the server refused what was told, or the files do not hold it: the disk is full.
        """
        if self._view is None or (self._view.tags, self._view.config) != (view.tags, view.config):
            self._run.tags = view.tags
            self._run.config.update(dict(view.config), allow_val_change=True)  # type: ignore[no-untyped-call]
        self._run.summary.update(dict(view.summary))
        return self.end(view.exit_code)

    def end(self, exit_code: int) -> str:
        """End it as it is; see ``finish``."""
        directory = Path(self._run.settings.sync_dir)
        self._run.finish(exit_code=exit_code)
        try:
            if self._writer.mode == "online":
                _check_upload(Path(self._run.settings.log_internal))
                return ""
            self._check(Path(self._run.settings.sync_file))
            return self._writer.keep(directory, self._run_id)
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def _check(self, path: Path) -> None:
        """Read back what was written: wandb says that it is done a little early, and nothing of a disk that is full."""
        deadline = time.monotonic() + FLUSH_TIMEOUT
        while not segments.is_whole(path):
            if time.monotonic() > deadline:
                raise WriteFailed(f"{path.name} is not whole: is the disk full?")
            time.sleep(0.02)
        rounds = [row["round"] for row in segments.history(path) if "round" in row]
        if rounds != [record["round"] for record in self._told]:
            raise WriteFailed(f"{path.name} holds {len(rounds)} of {len(self._told)} evaluations: is the disk full?")


def _check_upload(log: Path) -> None:
    """Find out whether the server took everything in: wandb gives up a run's uploads and still finishes it as sound."""
    with suppress(OSError):
        for line in log.read_text(errors="replace").splitlines():
            if FATAL in line:
                raise WriteFailed(_message_of(line))


def _message_of(line: str) -> str:
    try:
        return str(json.loads(line)["msg"])
    except (ValueError, KeyError, TypeError):
        return line


def _staging(mode: str, folder: Path) -> Path:
    """A folder beside the one that files are for, under a name that `flbench gc` knows; else one of the system's."""
    if mode == "online":
        return Path(tempfile.mkdtemp(prefix="flbench-wandb-"))
    files.make_directory(folder, folder.parent)
    staging = files.temporary(folder / "wandb")
    files.disk.mkdir(staging)
    return staging


def _knock(address: str) -> None:
    """Find out at once whether anybody is there: wandb itself tries for as long as it may."""
    if any(name.upper() in _PROXIES for name, value in os.environ.items() if value):
        return  # who is there is for the proxy to say
    url = urlsplit(address)
    try:
        port = url.port or {"https": 443}.get(url.scheme, 80)
        socket.create_connection((url.hostname or "", port), timeout=KNOCK_TIMEOUT).close()
    except (OSError, ValueError) as error:
        raise WriteFailed(f"{address} cannot be reached: {error}") from None


def _leave_room(folder: Path) -> None:
    """Let the last of a disk to the runs: none of them shall fail for the sake of its mirror image."""
    room = os.statvfs(folder)
    free = room.f_bavail * room.f_frsize
    if free < SPARED:
        raise WriteFailed(f"only {free >> 20} MiB are free where {folder} lies, and runs need them more")


def _tame(staging: Path) -> None:
    """Keep wandb to its staging folder, silent, and without what the shell says about other runs."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        if name.removeprefix("WANDB_") not in _KEPT:
            del os.environ[name]
    for name in ("DIR", "CACHE_DIR", "DATA_DIR", "ARTIFACT_DIR"):
        os.environ[f"WANDB_{name}"] = str(staging)
    os.environ.update(WANDB_SILENT="true", WANDB_ERROR_REPORTING="false")
