"""Send runs with wandb, to W&B or into files for ``wandb sync``.

A run is always sent in full, without ``resume``: W&B then replaces what it has under that id line by line, so that each
run is there once. (Parts that continue each other erase each other: wandb#5865, #3841.)

wandb writes into a staging folder. Offline files move from there into the store once they are complete.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from flbench.store import files
from flbench.tracking.sink import Row, RunDeleted, SendFailed, Sink, SweepView, check_disk_space

if TYPE_CHECKING:
    import wandb

    from flbench.tracking.run_view import RunView

#: Seconds for W&B to answer at the start of a run, and to receive the rest of the run at its end; wandb retries for as
#: long.
INIT_TIMEOUT, FINISH_TIMEOUT = 30.0, 120.0

#: In the server's answer for a run that the user has deleted on W&B: its id cannot be used again (wandb#1192).
DELETED = "previously created and deleted"

#: Marks the lines of wandb's log that say why it gave up an upload.
FATAL = '"level":"ERROR+4"'

#: Variables of wandb that say where to send and as whom; the others in the user's shell are about other runs. MODE has
#: no effect on this sink, but the next job that is mirrored reads it.
_KEPT = frozenset(
    {"API_KEY", "BASE_URL", "APP_URL", "CONFIG_DIR", "CREDENTIALS_FILE", "ENTITY", "HTTP_PROXY", "HTTPS_PROXY"}
    | {"IDENTITY_TOKEN_FILE", "INSECURE_DISABLE_SSL", "MODE"}
)


class WandbSink(Sink):
    """One project on W&B, or offline files for it in ``folder``; raises ImportError if wandb is not installed."""

    def __init__(self, mode: Literal["online", "offline"], folder: Path, project: str, entity: str | None) -> None:
        self._mode, self._folder, self._project, self._entity = mode, folder, project, entity
        self._staging: Path | None = None
        import wandb

        self._wandb = wandb

    def send(self, view: RunView, rows: Sequence[Row]) -> None:
        """Send a run; one that is still running stays so on W&B."""

        def log(run: wandb.Run) -> None:
            run.define_metric("round")
            run.define_metric("*", step_metric="round")
            for row in rows:
                # Without `commit`, wandb holds the last row back until the next one.
                run.log(dict(row), step=row["round"], commit=True)
            run.summary.update(dict(view.summary))

        self._send(
            log,
            {
                "id": view.run_id,
                "name": view.name,
                "group": view.group,
                "job_type": view.job_type,
                "tags": list(view.tags),
                "config": dict(view.config),
            },
            exit_code=view.exit_code,
            ended=view.status != "running",
        )

    def send_sweep(self, view: SweepView) -> None:
        """Send a sweep's table and figures as a run of its own."""

        def log(run: wandb.Run) -> None:
            table = self._wandb.Table(columns=list(view.columns), data=[list(row) for row in view.rows])
            # Bound to the run, the table is one of its files; otherwise it becomes an artifact too, stored elsewhere.
            table.bind_to_run(run, "leaderboard", 0)
            images = {f"figures/{path.stem}": self._wandb.Image(str(path)) for path in view.figures}
            run.log({"leaderboard": table, **images})

        about = {"name": view.sweep, "job_type": "sweep", "tags": [view.sweep], "config": dict(view.config)}
        self._send(log, {"id": view.run_id, **about})

    def close(self) -> None:
        """End wandb's service and delete the staging folder."""
        self._end_service()
        if self._staging is not None:
            shutil.rmtree(self._staging, ignore_errors=True)
        self._staging = None

    def _send(
        self, log: Callable[[wandb.Run], None], about: dict[str, Any], *, exit_code: int = 0, ended: bool = True
    ) -> None:
        """Send what ``log`` logs as one run.

        Raises:
            RunDeleted: the user has deleted the run on W&B.
            SendFailed: the server has refused a part, or a file is incomplete.
        """
        settings = self._wandb.Settings(
            mode=self._mode,
            root_dir=str(self._stage()),
            symlink=False,
            console="off",
            silent=True,
            disable_code=True,
            disable_git=True,
            x_disable_meta=True,
            x_disable_stats=True,
            x_disable_machine_info=True,
            x_save_requirements=False,
            x_update_finish_state=ended,
            init_timeout=INIT_TIMEOUT,
            login_timeout=INIT_TIMEOUT,
            finish_timeout=FINISH_TIMEOUT,
            finish_timeout_raises=True,
            stop_fn=lambda: None,  # W&B's stop button would send Ctrl-C to the mirror
        )
        synced = datetime.now(UTC).isoformat()
        try:
            run = self._wandb.init(
                project=self._project, entity=self._entity, reinit="create_new", settings=settings, **about
            )
        except self._wandb.Error as error:
            if DELETED not in str(error):
                raise
            raise RunDeleted(f"run {about['id']} was deleted on W&B and stays deleted") from None
        self.url = run.project_url or self.url
        log(run)
        run.summary["synced"] = synced
        run.summary["synced"] = synced  # again, since a block of wandb's file may end within one of them
        run.finish(exit_code=exit_code)
        staged = Path(run.settings.sync_dir)
        try:
            if self._mode == "offline":
                self._end_service()  # closes the file
                self._keep(staged, run.id, synced)
            else:
                _check_upload(Path(run.settings.log_internal))
        finally:
            shutil.rmtree(staged, ignore_errors=True)

    def _stage(self) -> Path:
        """Return the staging folder; raises SendFailed if files are written and the disk is nearly full."""
        if self._mode == "offline":
            files.make_directory(self._folder, self._folder.parent)
            check_disk_space(self._folder)
        if self._staging is None or not self._staging.exists():
            if self._mode == "online":
                self._staging = Path(tempfile.mkdtemp(prefix="flbench-wandb-"))
            else:  # on the store's disk, under a name that `flbench gc` recognizes
                self._staging = files.temporary(self._folder / "wandb")
                files.disk.mkdir(self._staging)
            isolate_environment(self._staging)
        os.utime(self._staging)  # `flbench gc` deletes staging folders that were idle for an hour
        return self._staging

    def _end_service(self) -> None:
        with suppress(Exception, SystemExit):  # the service's exit code becomes wandb's
            self._wandb.teardown(exit_code=1)

    def _keep(self, staged: Path, run_id: str, last: str) -> None:
        """Move a run's closed files into the store, replacing earlier ones.

        Raises:
            SendFailed: the ``last`` value is not in the file. On a full disk wandb ends a run as usual.
        """
        if not any(last.encode() in path.read_bytes() for path in staged.glob("*.wandb")):
            raise SendFailed("wandb's file is incomplete: is the disk full?")
        for earlier in self._folder.glob(f"offline-run-*-{run_id}"):
            shutil.rmtree(earlier, ignore_errors=True)
        for unneeded in ("logs", "tmp"):
            shutil.rmtree(staged / unneeded, ignore_errors=True)
        # wandb appends a number if a failed try in the same second has left a folder of this name.
        files.disk.rename(staged, self._folder / (staged.name.partition(run_id)[0] + run_id))


def _check_upload(log: Path) -> None:
    """Raise the error for which wandb gave up a run's upload: ``finish`` still reports it as sound."""
    with suppress(FileNotFoundError):
        for line in log.read_text(errors="replace").splitlines():
            if FATAL in line:
                with suppress(ValueError, KeyError):
                    line = json.loads(line)["msg"]
                raise SendFailed(line)


def isolate_environment(staging: Path) -> None:
    """Set wandb's variables: silent, all files in the staging folder, without the shell's settings for other runs."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        if name.removeprefix("WANDB_") not in _KEPT:
            del os.environ[name]
    for name in ("DIR", "CACHE_DIR", "DATA_DIR", "ARTIFACT_DIR"):
        os.environ[f"WANDB_{name}"] = str(staging)
    os.environ.update(WANDB_SILENT="true", WANDB_ERROR_REPORTING="false")
    logging.raiseExceptions = False  # on a full disk wandb's own log would print tracebacks
