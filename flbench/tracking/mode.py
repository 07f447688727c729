"""Decide whether and how runs are mirrored, from the request and wandb's own settings and login."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flbench.choices import TrackingMode, UsedTrackingMode

HOW_TO_TURN_ON = "log in with `wandb login`, or set WANDB_API_KEY; `wandb: {mode: offline}` needs neither"

#: wandb's modes as modes of the mirror.
_WANDB_MODES: Mapping[str, UsedTrackingMode] = {
    "online": "online",
    "run": "online",
    "shared": "online",
    "offline": "offline",
    "dryrun": "offline",
    "disabled": "off",
}


@dataclass(frozen=True)
class Choice:
    """How runs are mirrored.

    Attributes:
        server: the address of W&B; empty if wandb's settings were not read.
        note: why nothing is mirrored.
        failed: whether the user has requested otherwise.
    """

    mode: UsedTrackingMode
    server: str = ""
    note: str = ""
    failed: bool = False


def choose(requested: TrackingMode) -> Choice:
    """Return the resolved mode: ``auto`` follows wandb's settings, and is off without a login.

    Importing wandb takes a second: the process that mirrors calls this, the sweep does not.
    """
    if requested == "off":
        return Choice("off", note="turned off")
    failed = requested != "auto"
    try:
        import wandb
        from wandb.sdk import wandb_setup
        from wandb.sdk.lib import wbauth
    except ImportError as error:
        return Choice("off", note=f"the package wandb cannot be imported ({error}): pip install wandb", failed=failed)
    try:
        settings = wandb_setup.singleton().settings
        mode = _WANDB_MODES[settings.mode] if requested == "auto" else requested
        if mode != "online":
            return Choice(
                mode, settings.base_url, "turned off by WANDB_MODE or wandb's settings" if mode == "off" else ""
            )
        login = wbauth.authenticate_session(
            host=settings.base_url, source="flbench", prompt=False, update_session=False
        )
    except (wandb.Error, ValueError) as error:  # an unknown mode, a key of the wrong length
        return Choice("off", note=f"wandb's settings or login are invalid: {error}", failed=True)
    finally:
        wandb.teardown()  # forget the settings, since the sink changes the environment before it opens runs
    if login is None:
        return Choice("off", settings.base_url, f"not logged in to W&B; to turn it on: {HOW_TO_TURN_ON}", failed)
    return Choice("online", settings.base_url)
