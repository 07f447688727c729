"""Decide whether and how runs are mirrored to W&B, from the request and wandb's own settings and login."""

from __future__ import annotations

from typing import Literal, NamedTuple

from flbench.choices import TrackingMode
from flbench.tracking.sink import NotTracked

HOW_TO_TURN_ON = "log in with `wandb login`, or set WANDB_API_KEY; `wandb: {mode: offline}` needs neither"

#: wandb's modes as modes of the mirror.
_WANDB_MODES: dict[str, TrackingMode] = {
    "online": "online",
    "run": "online",
    "shared": "online",
    "offline": "offline",
    "dryrun": "offline",
    "disabled": "off",
}


class Choice(NamedTuple):
    """How runs are mirrored, and the address of W&B."""

    mode: Literal["online", "offline"]
    server: str


def choose(requested: TrackingMode) -> Choice:
    """Return the resolved mode: ``auto`` follows wandb's settings, and is off without a login.

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
        note = f"the package wandb cannot be imported ({error}): pip install wandb"
        raise NotTracked(note, failed=failed) from None
    try:
        settings = wandb_setup.singleton().settings
        mode = requested if failed else _WANDB_MODES[settings.mode]
        if mode == "offline":
            return Choice("offline", settings.base_url)
        if mode == "off":
            raise NotTracked("turned off by WANDB_MODE or wandb's settings")
        if wbauth.authenticate_session(host=settings.base_url, source="flbench", prompt=False, update_session=False):
            return Choice("online", settings.base_url)
    except (wandb.Error, ValueError) as error:  # an unknown mode, a key of the wrong length
        raise NotTracked(f"wandb's settings or login are invalid: {error}", failed=True) from None
    finally:
        wandb.teardown()  # forget the settings, since the sink changes the environment before it opens runs
    raise NotTracked(f"not logged in to W&B; to turn it on: {HOW_TO_TURN_ON}", failed=failed)
