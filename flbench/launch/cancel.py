"""Stop all workers and orchestrators of a plan, on any machine."""

from __future__ import annotations

import getpass
import os
import socket

from flbench.launch import local, slurm
from flbench.store import CancelMark, Store


def cancel(store: Store, plan: str) -> list[str]:
    """Return a line for each backend that asked the workers and orchestrators of a plan (NAME/HASH) to stop.

    The mark in the store is enough: every worker checks it, and a job that SLURM starts later ends at once.
    """
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may give a user no name
        user = f"user {os.getuid()}"
    CancelMark(store.sweeps / plan).put(f"{user}@{socket.gethostname()}")
    return [line for line in (local.cancel(store, plan), slurm.cancel(store, plan)) if line]
