"""Whether runs are mirrored, and how: found out without wandb, so that asking costs nothing."""

from __future__ import annotations

import configparser
import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from netrc import NetrcParseError, netrc
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

Mode = Literal["auto", "online", "offline", "off"]
Resolved = Literal["online", "offline", "off"]

#: Where W&B is, unless its own settings say otherwise.
SERVER = "https://api.wandb.ai"

HOW_TO_TURN_ON = "log in with `wandb login`, or set WANDB_API_KEY; `wandb: {mode: offline}` needs neither"

#: What W&B's own variable WANDB_MODE means here.
_WANDB_MODES: Mapping[str, Mode] = {
    "online": "online",
    "run": "online",
    "shared": "online",
    "offline": "offline",
    "dryrun": "offline",
    "disabled": "off",
}


@dataclass(frozen=True)
class Choice:
    """How runs are mirrored, and what to tell the user about it (nothing, where it is as was asked for)."""

    mode: Resolved
    note: str = ""


def choose(wanted: Mode) -> Choice:
    """What a wish comes to here: ``auto`` is as WANDB_MODE says, else online where a key is present, else off."""
    asked = _WANDB_MODES.get(os.environ.get("WANDB_MODE", ""), "auto") if wanted == "auto" else wanted
    if asked == "off":
        return Choice("off")
    if not is_installed():
        missing = "the package wandb is not installed (`pip install wandb`)"
        return Choice("off", f"off: {missing}" if wanted == "auto" else f"warning: nothing is mirrored: {missing}")
    if asked == "offline":
        return Choice("offline")
    if key_source() is not None:
        return Choice("online")
    if asked == "auto":
        return Choice("off", f"off, there is no key; to turn it on: {HOW_TO_TURN_ON}")
    return Choice("off", f"warning: nothing is mirrored, there is no key: {HOW_TO_TURN_ON}")


def is_installed() -> bool:
    """Whether there is a package wandb; it is not imported."""
    try:
        return find_spec("wandb") is not None
    except ValueError:  # it is being imported, or was put in place by hand
        return True


def server() -> str:
    """The server's address, from where wandb takes it."""
    return (os.environ.get("WANDB_BASE_URL") or _settings().get("base_url") or SERVER).rstrip("/")


def key_source() -> str | None:
    """Where a key for the server is found, in wandb's own order; None where there is none. The key is not told."""
    for name in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE"):
        if os.environ.get(name):
            return name
    path = _netrc_path()
    if _netrc_knows(path, urlsplit(server()).netloc):
        return str(path)
    return str(_settings_path()) if _settings().get("api_key") else None


def _netrc_path() -> Path:
    return Path(os.environ.get("NETRC") or "~/.netrc").expanduser()


def _netrc_knows(path: Path, host: str) -> bool:
    # wandb looks below the API's name and, for its own cloud, below the site's.
    hosts = (host, "api.wandb.ai") if host.endswith(".wandb.ai") else (host,)
    try:
        known = netrc(str(path))
    except (OSError, NetrcParseError, UnicodeDecodeError):
        return False
    return any((entry := known.authenticators(name)) is not None and entry[2] for name in hosts)


def _settings_path() -> Path:
    return Path(os.environ.get("WANDB_CONFIG_DIR") or "~/.config/wandb").expanduser() / "settings"


def _settings() -> Mapping[str, str]:
    """The user's settings of wandb; empty where there are none that can be read."""
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read(_settings_path())
        return parser["default"]
    except (OSError, UnicodeDecodeError, configparser.Error, KeyError):
        return {}
