"""Time whole processes: their seconds, those of the processors, and the memory of the largest."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version


@dataclass(frozen=True)
class Cost:
    """What a process and its children took: seconds, seconds of CPU, MiB of the largest; and what it printed."""

    wall: float
    cpu: float
    memory: float
    out: str

    def __str__(self) -> str:
        return f"{self.wall:.1f} s wall, {self.cpu:.1f} s CPU, {self.memory:.0f} MiB"


def cost_of(command: Sequence[object]) -> Cost:
    """Return the cost of a command; exit if it fails.

    Compiled bytecode is cached as in an ordinary installation, even if PYTHONDONTWRITEBYTECODE is set: compiling typer
    and rich takes longer than the rest of a small command.
    """
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    start = time.perf_counter()
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen([str(word) for word in command], stdout=out, env=environment)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        wall = time.perf_counter() - start
        out.seek(0)
        text = out.read()
    if status:
        sys.exit(f"{' '.join(str(word) for word in command[:6])} ... ended with status {process.returncode}")
    memory = used.ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
    return Cost(wall, used.ru_utime + used.ru_stime, memory, text)


def flbench(*arguments: object) -> Cost:
    """Return the cost of a command of flbench."""
    return cost_of([sys.executable, "-c", "from flbench.cli import main; main()", *arguments])


def machine_line(*packages: str) -> str:
    """Return the system, its cores, its present load, and the versions of Python and some packages."""
    load = f"load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "load unknown"
    versions = [f"Python {platform.python_version()}", *(f"{name} {version(name)}" for name in packages)]
    return f"{platform.platform()}, {os.cpu_count()} cores, {load}, {', '.join(versions)}"
