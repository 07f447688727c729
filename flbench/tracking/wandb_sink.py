"""Send runs with wandb, to W&B or into files for ``wandb sync``.

A run is always sent in full, without ``resume``: W&B then replaces what it has under that id, so that each run is there
once. (Parts that continue each other erase each other: wandb#5865, #3841.)

wandb writes into a staging folder. Offline files move from there into the store once they are complete.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import socket
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from urllib.parse import urlsplit

from flbench.store import files
from flbench.tracking.sink import Row, RunDeleted, SendFailed, check_disk_space

if TYPE_CHECKING:
    import wandb

    from flbench.tracking.run_view import RunView
    from flbench.tracking.sweep_view import SweepView

T = TypeVar("T")

#: Seconds for W&B to answer at the start of a run, and to receive the rest of the run at its end.
INIT_TIMEOUT, FINISH_TIMEOUT = 30.0, 120.0

#: Seconds beyond its own time limits in which wandb's service must answer: it sometimes hangs, and wandb then waits
#: forever. Then another service is started; the hanging one ends with this process.
SERVICE_TIMEOUT = 30.0

#: Seconds for wandb's service to close a run's file after that; size of the file's blocks, which no chunk crosses.
CLOSE_TIMEOUT = 30.0
BLOCK = 1 << 15

#: Seconds for the server to accept a connection.
CONNECT_TIMEOUT = 10.0

#: In the server's answer for a run that the user has deleted on W&B: its id cannot be used again (wandb#1192).
DELETED = "previously created and deleted"

#: Marks the lines of wandb's log that say why it gave up an upload.
FATAL = '"level":"ERROR+4"'

#: Variables that name a proxy.
_PROXIES = frozenset({"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "WANDB_HTTP_PROXY", "WANDB_HTTPS_PROXY"})

#: Variables of wandb that say where to send and as whom; the others in the user's shell are about other runs. MODE has
#: no effect on this sink, but the next job that is mirrored reads it.
_KEPT = frozenset(
    {"API_KEY", "BASE_URL", "APP_URL", "CONFIG_DIR", "CREDENTIALS_FILE", "ENTITY", "HTTP_PROXY", "HTTPS_PROXY"}
    | {"IDENTITY_TOKEN_FILE", "INSECURE_DISABLE_SSL", "MODE"}
)


class WandbSink:
    """One project on W&B, or offline files for it in ``folder``.

    Raises:
        ImportError: wandb is not installed.
        OSError: the staging folder cannot be created.
    """

    def __init__(
        self, mode: Literal["online", "offline"], server: str, folder: Path, project: str, entity: str | None
    ) -> None:
        self.mode = mode
        self.url: str | None = None
        self._server, self._folder, self._project, self._entity = server, folder, project, entity
        if mode == "online":
            self._staging = Path(tempfile.mkdtemp(prefix="flbench-wandb-"))
        else:  # on the store's disk, under a name that `flbench gc` recognizes
            files.make_directory(folder, folder.parent)
            self._staging = files.temporary(folder / "wandb")
            files.disk.mkdir(self._staging)
        isolate_environment(self._staging)
        import wandb

        self._wandb = wandb

    def open(self, view: RunView) -> WandbRun:
        """Return a new W&B run; raises SendFailed if the server cannot be reached or the disk is nearly full."""
        run = self._init(
            id=view.run_id,
            name=view.name,
            group=view.group,
            job_type=view.job_type,
            tags=list(view.tags),
            config=dict(view.config),
        )
        run.define_metric("round")
        run.define_metric("*", step_metric="round")
        return WandbRun(self, run, view)

    def send_sweep(self, view: SweepView) -> str:
        """Send a sweep's table and figures as a run of its own; return the name of the folder of its files."""
        run = self._init(id=view.run_id, name=view.sweep, job_type="sweep", tags=[view.sweep], config=dict(view.config))
        table = self._wandb.Table(columns=list(view.columns), data=[list(row) for row in view.rows])
        # Bound to the run, the table is one of its files; otherwise it becomes an artifact too, stored elsewhere.
        table.bind_to_run(run, "leaderboard", 0)  # type: ignore[no-untyped-call]
        images = {f"figures/{path.stem}": self._wandb.Image(str(path)) for path in view.figures}
        run.log({"leaderboard": table, **images})
        return WandbRun(self, run, rows=1).end(0)

    def restart(self) -> None:
        """Reset wandb after a failure; its service starts again when it is needed."""
        with suppress(Exception, SystemExit):  # the service's exit code becomes wandb's
            _within(SERVICE_TIMEOUT, lambda: self._wandb.teardown(exit_code=1))

    def close(self) -> None:
        """End wandb's service and delete the staging folder."""
        self.restart()
        shutil.rmtree(self._staging, ignore_errors=True)

    def keep(self, staged: Path, run_id: str) -> str:
        """Move a run's closed files into the store, replacing earlier ones; return the name of their folder."""
        for earlier in self._folder.glob(f"offline-run-*-{run_id}"):
            shutil.rmtree(earlier, ignore_errors=True)
        for unneeded in ("logs", "tmp"):
            shutil.rmtree(staged / unneeded, ignore_errors=True)
        # wandb appends a number if a failed try in the same second has left a folder of this name.
        name = staged.name.partition(run_id)[0] + run_id
        files.disk.rename(staged, self._folder / name)
        return name

    def _init(self, **run: Any) -> wandb.Run:
        if self.mode == "online":
            _check_server(self._server)
        else:
            check_disk_space(self._folder)
        # Renew its time: `flbench gc` deletes staging folders that were idle for an hour.
        self._staging.mkdir(exist_ok=True)
        os.utime(self._staging)
        settings = self._wandb.Settings(
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
        init = partial(
            self._wandb.init, project=self._project, entity=self._entity, reinit="create_new", settings=settings, **run
        )
        try:
            return _within(INIT_TIMEOUT + SERVICE_TIMEOUT, init)
        except self._wandb.Error as error:
            if DELETED not in str(error):
                raise
            raise RunDeleted(f"run {run['id']} was deleted on W&B and stays deleted") from None


class WandbRun:
    """A run that is being sent; ``rows`` of its history were logged before."""

    def __init__(self, sink: WandbSink, run: wandb.Run, view: RunView | None = None, *, rows: int = 0) -> None:
        self._sink, self._run, self._view, self._rows = sink, run, view, rows
        with suppress(Exception):
            sink.url = run.project_url or sink.url

    def log(self, rows: Sequence[Row]) -> None:
        """Send further evaluations, in order."""
        for row in rows:
            # Without `commit`, wandb holds the last row back until the next one.
            self._run.log(dict(row), step=row["round"], commit=True)
        self._rows += len(rows)

    def finish(self, view: RunView) -> str:
        """Send the run's result and end the run; return as ``end`` does."""
        if self._view is None or (self._view.tags, self._view.config) != (view.tags, view.config):
            self._run.tags = view.tags
            self._run.config.update(dict(view.config), allow_val_change=True)  # type: ignore[no-untyped-call]
        self._run.summary.update(dict(view.summary))
        return self.end(view.exit_code)

    def interrupt(self) -> None:
        """End the run as failed, as it is."""
        self.end(1)

    def end(self, exit_code: int) -> str:
        """Return the name of the folder of the run's files, if any, after ending the run as it is.

        Raises:
            SendFailed: the server refused it, or the files are incomplete because the disk is full.
        """
        settings = self._run.settings
        staged = Path(settings.sync_dir)
        self._run.finish(exit_code=exit_code)
        try:
            _wait_until_complete(Path(settings.sync_file), self._rows)
            if self._sink.mode == "offline":
                return self._sink.keep(staged, str(settings.run_id))
            _check_upload(Path(settings.log_internal))
            return ""
        finally:
            shutil.rmtree(staged, ignore_errors=True)


def _within(seconds: float, call: Callable[[], T]) -> T:
    """Return ``call()``, made in another thread, which is left alone if it takes longer; raises SendFailed then."""
    answer: Future[T] = Future()

    def make() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=make, daemon=True).start()
    if not wait([answer], seconds).done:
        raise SendFailed(f"wandb's service did not answer for {seconds:.0f} s")
    return answer.result()


def _wait_until_complete(path: Path, rows: int) -> None:
    """Wait until a run's file has its rows and its last record: wandb's ``finish`` returns earlier.

    It also returns as usual on a full disk. wandb's log cannot replace this check: the full disk has no room for its
    errors either.

    Raises:
        SendFailed: the records did not come within ``CLOSE_TIMEOUT``.
    """
    deadline = time.monotonic() + CLOSE_TIMEOUT
    while (kinds := _records(path)).count("history") < rows or kinds[-1:] != ["exit"]:
        if time.monotonic() > deadline:
            raise SendFailed(f"{path.name} is incomplete after {CLOSE_TIMEOUT:.0f} s: is the disk full?")
        time.sleep(0.02)


def _records(path: Path) -> list[str | None]:
    """Return the types of the records of wandb's file, in order; None for one that is damaged or not all there.

    After a header of 7 bytes, records are cut into chunks (full 1, first 2, middle 3, last 4) that do not cross blocks
    of 32 KiB; each follows its checksum (4 bytes), length (2) and kind (1). wandb has no reader in Python.
    """
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
    from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined]

    data = path.read_bytes() if path.exists() else b""
    at, record, types = 7, b"", []
    while at + 7 <= len(data):
        if (rest := -at % BLOCK) < 7 and rest:
            at += rest  # too short for a chunk
            continue
        size, kind = struct.unpack_from("<HB", data, at + 4)
        at += 7 + size
        record = data[at - size : at] if kind < 3 else record + data[at - size : at]
        if kind in (1, 4):
            try:
                types.append(Record.FromString(record).WhichOneof("record_type"))
            except DecodeError:
                types.append(None)
    return types if at == len(data) else [*types, None]


def _check_upload(log: Path) -> None:
    """Raise the error for which wandb gave up a run's upload: ``finish`` still reports it as sound."""
    with suppress(FileNotFoundError):
        for line in log.read_text(errors="replace").splitlines():
            if FATAL in line:
                with suppress(ValueError, KeyError):
                    line = json.loads(line)["msg"]
                raise SendFailed(line)


def _check_server(address: str) -> None:
    """Raise SendFailed if the server is down, since wandb would retry until its time limit."""
    if any(name.upper() in _PROXIES for name, value in os.environ.items() if value):
        return  # the server is reached through the proxy
    url = urlsplit(address)
    try:
        port = url.port or {"https": 443}.get(url.scheme, 80)
        socket.create_connection((url.hostname or "", port), timeout=CONNECT_TIMEOUT).close()
    except (OSError, ValueError) as error:
        raise SendFailed(f"{address} cannot be reached: {error}") from None


def isolate_environment(staging: Path) -> None:
    """Set wandb's variables: silent, all files in the staging folder, without the shell's settings for other runs."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        if name.removeprefix("WANDB_") not in _KEPT:
            del os.environ[name]
    for name in ("DIR", "CACHE_DIR", "DATA_DIR", "ARTIFACT_DIR"):
        os.environ[f"WANDB_{name}"] = str(staging)
    os.environ.update(WANDB_SILENT="true", WANDB_ERROR_REPORTING="false")
    logging.raiseExceptions = False  # on a full disk wandb's own log would print tracebacks
