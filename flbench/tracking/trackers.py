"""The trackers that are part of flbench; their packages are imported only by their sinks."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from flbench.choices import TrackingMode
from flbench.installation import reinstall
from flbench.registry import TRACKERS
from flbench.sweeps.track import WandbSettings
from flbench.tracking.sink import NotTracked, Target, Tracker


@TRACKERS.register("wandb")
@dataclass(frozen=True)
class Wandb(WandbSettings, Tracker):
    """Weights & Biases: online, or as files that `wandb sync` uploads."""

    title = "W&B"
    shorthand = "project"

    def is_off(self) -> bool:
        """Return whether runs are not sent to W&B; False if only wandb knows."""
        if self.mode == "auto":
            return os.environ.get("WANDB_MODE") == "disabled" or not _is_set_up()
        return self.mode == "off"

    def target(self, store: Path) -> Target:
        """Return the project on W&B, or its files in the store; raises NotTracked if W&B is turned off."""
        from flbench.tracking.wandb_sink import WandbSink

        mode, server = choose(self.mode)
        folder, online = store / "wandb", mode == "online"
        return Target(
            name=f"{server if online else 'files'}/{self.entity or ''}/{self.project}",
            log=folder / "mirrored.jsonl",
            open=partial(WandbSink, mode, folder, self.project, self.entity),
            mode=mode,
            where="on W&B" if online else "in files",
            service="W&B's service" if online else "wandb's files",
            hint="" if online else f"upload: wandb sync {shlex.quote(str(folder))}/offline-run-*",
            live=online,
        )


@TRACKERS.register("tensorboard")
@dataclass(frozen=True)
class TensorBoard(Tracker):
    """TensorBoard: event files in a folder, by default the store's folder `tensorboard`; needs no account."""

    title = "TensorBoard"
    package = "tensorboard"
    extra = "tensorboard"
    shorthand = "folder"

    folder: Path | None = None

    def target(self, store: Path) -> Target:
        """Return the folder of the event files. The log is in it: after it is deleted, all runs are written again."""
        from flbench.tracking.tensorboard_sink import TensorBoardSink

        folder = (self.folder or store / "tensorboard").expanduser()
        return Target(
            name="tensorboard",
            log=folder / "flbench.jsonl",
            open=partial(TensorBoardSink, folder),
            mode="offline",
            where=f"in {folder}",
            service="TensorBoard's files",
            hint=f"open: tensorboard --logdir {shlex.quote(str(folder))}",
        )


def _is_set_up() -> bool:
    """Return whether anything exists from which wandb reads settings or a login; importing it takes a second."""
    if any(name.startswith("WANDB_") for name in os.environ):
        return True
    home = Path("~").expanduser()
    netrc = Path(os.environ.get("NETRC", home / ".netrc"))
    return any(
        each.exists() for each in (netrc, home / "_netrc", home / ".config" / "wandb", Path("wandb", "settings"))
    )


#: wandb's modes as modes of the mirror.
_WANDB_MODES: dict[str, TrackingMode] = {
    "online": "online",
    "run": "online",
    "shared": "online",
    "offline": "offline",
    "dryrun": "offline",
    "disabled": "off",
}


def choose(requested: TrackingMode) -> tuple[Literal["online", "offline"], str]:
    """Return whether runs are sent to W&B or into files, and its address; ``auto`` follows wandb's settings and login.

    Importing wandb takes a second: the process that mirrors calls this, the sweep does not.

    Raises:
        NotTracked: nothing is mirrored; ``failed`` if the user has requested otherwise.
    """
    if requested == "off":
        raise NotTracked("turned off")
    failed = requested != "auto"
    try:
        import wandb
        from wandb.sdk import wandb_setup
        from wandb.sdk.lib import wbauth
    except ImportError as error:
        note = f"the package wandb cannot be imported ({error}); install it again: {reinstall('wandb')}"
        raise NotTracked(note, failed=failed) from None
    try:
        settings = wandb_setup.singleton().settings
        mode = requested if failed else _WANDB_MODES[settings.mode]
        if mode == "offline":
            return "offline", settings.base_url
        if mode == "off":
            raise NotTracked("turned off by WANDB_MODE or wandb's settings")
        if wbauth.authenticate_session(host=settings.base_url, source="flbench", prompt=False, update_session=False):
            return "online", settings.base_url
    except (wandb.Error, ValueError) as error:  # an unknown mode, a key of the wrong length
        raise NotTracked(f"wandb's settings or login are invalid: {error}", failed=True) from None
    finally:
        wandb.teardown()  # forget the settings, since the sink changes the environment before it opens runs
    turn_on = "log in with `wandb login`, or set WANDB_API_KEY; `wandb: {mode: offline}` needs neither"
    raise NotTracked(f"not logged in to W&B; to turn it on: {turn_on}", failed=failed)
