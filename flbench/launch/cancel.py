"""Stop all workers and orchestrators of a plan, on any machine."""

from __future__ import annotations

import getpass
import socket
from collections.abc import Callable

from flbench.launch import local, slurm
from flbench.store import CancelMark, Store

#: What each backend does besides the mark in the store: takes (store, plan), returns a line for the user or ''.
BACKENDS: tuple[Callable[[Store, str], str], ...] = (local.cancel, slurm.cancel)


def cancel(store: Store, plan: str) -> list[str]:
    """Return a line for each backend that asked the workers and orchestrators of a plan (NAME/HASH) to stop.

    The mark in the store is enough: every worker checks it, and a job that SLURM starts later ends at once.
    """
    CancelMark(store.sweeps / plan).put(f"{_user()}@{socket.gethostname()}")
    return [line for backend in BACKENDS if (line := backend(store, plan))]


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may give a user no name
        return "somebody"
