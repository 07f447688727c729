"""How a worker works, and the exit codes by which it reports why it ended."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import get_args

from flbench.choices import Executor, Memory, UsedDevice
from flbench.errors import UserError
from flbench.execution_types import Settings

#: Exit code of a worker that was asked to stop: its runs are resumed later.
REQUEUE = 75


class MemoryShort(UserError):
    """A run did not fit into the memory that other workers leave."""

    exit_code = 76


@dataclass(frozen=True)
class Options(Settings):
    """The settings of a worker; none changes the numbers of a run beyond its recorded numerics.

    Attributes:
        max_attempts: failed or lost attempts after which a run is given up.
        offset: position in the plan at which to begin, so that workers started together rarely claim the same run.
        workers: how many workers share the plan; the size of groups depends on it, so that no worker ends late.
        fuse: most runs trained together; 1: each run alone.
        memory: ``all``: no worker can have more. ``usual``: runs that ran out of memory here are left to workers with
            ``more``.
    """

    max_attempts: int = 3
    offset: int = 0
    workers: int = 1
    fuse: int = 64
    memory: Memory = "all"

    def to_argv(self) -> list[str]:
        """Return these options as command-line arguments."""
        given = [(field.name, getattr(self, field.name)) for field in fields(self)]
        return [f"--{name.replace('_', '-')}={value}" for name, value in given if value is not None]


def parse_command_line(argv: Sequence[str] | None) -> tuple[argparse.Namespace, Options]:
    """Parse the worker's command line: ``store``, ``plan`` and ``token``, and the options."""
    parser = argparse.ArgumentParser(prog="python -m flbench.worker", description="Execute the runs of a plan.")
    parser.add_argument("store", type=Path, help="directory of the store")
    parser.add_argument("plan", help="a sweep of the store, as NAME/HASH")
    parser.add_argument("--token", help="name of this worker; default: a new one")
    parser.add_argument("--data-root", type=Path, help="folder of the data sets")
    parser.add_argument("--device", choices=get_args(UsedDevice))
    parser.add_argument("--executor", choices=get_args(Executor))
    parser.add_argument("--pool", type=int, help="threads of the loop executor")
    parser.add_argument("--max-attempts", type=int, help="failures after which a run is given up")
    parser.add_argument("--offset", type=int, help="position in the plan at which to begin")
    parser.add_argument("--workers", type=int, help="how many workers share the plan")
    parser.add_argument("--memory", choices=get_args(Memory), help="memory of this worker")
    parser.add_argument("--fuse", type=int, help="most runs trained together")
    parser.add_argument("--neighbours", type=int, help="how many workers share the memory")
    parser.set_defaults(**{field.name: field.default for field in fields(Options)})
    given = parser.parse_args(argv)
    return given, Options(**{field.name: getattr(given, field.name) for field in fields(Options)})
