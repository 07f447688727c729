"""Stop everybody who works on a plan, whoever started them and wherever they run."""

from __future__ import annotations

import getpass
import socket
from collections.abc import Callable

from flbench.launch import local, slurm
from flbench.store import Store

#: What each way to start workers adds to the mark in the store: takes (store, plan), says in one line what it did.
BACKENDS: tuple[Callable[[Store, str], str], ...] = (local.cancel, slurm.cancel)


def cancel(store: Store, plan: str) -> list[str]:
    """Ask the workers and orchestrators of a plan (NAME/HASH) to stop; return a line for each thing that was done.

    The mark is what counts: a worker sees it wherever it runs, and one that a queue starts later ends at once.
    """
    store.mark(plan).put(f"{_user()}@{socket.gethostname()}")
    return [line for backend in BACKENDS if (line := backend(store, plan))]


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may give a user no name
        return "somebody"
