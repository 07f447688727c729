"""Time whole flbench processes."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version


def seconds_of(arguments: list[str], repeats: int, *, warm_ups: int = 1) -> list[tuple[float, float]]:
    """Return wall and CPU seconds of ``flbench ARGUMENTS``, one pair per repeat, after runs that warm the caches.

    Compiled bytecode is cached as in an ordinary installation, even if PYTHONDONTWRITEBYTECODE is set: compiling typer
    and rich takes longer than the rest of a small command.
    """
    command = [sys.executable, "-c", "from flbench.cli import main; main()", *arguments]
    seconds = []
    with tempfile.TemporaryDirectory() as bytecode:
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        environment["PYTHONPYCACHEPREFIX"] = bytecode
        for _ in range(warm_ups + repeats):
            start, before = time.perf_counter(), os.times()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
            wall, after = time.perf_counter() - start, os.times()
            cpu = after.children_user + after.children_system - before.children_user - before.children_system
            seconds.append((wall, cpu))
    return seconds[warm_ups:]


def machine_line(*packages: str) -> str:
    """Return the system, its cores, its present load, and the versions of Python and some packages."""
    load = f"load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "load unknown"
    versions = [f"Python {platform.python_version()}", *(f"{name} {version(name)}" for name in packages)]
    return f"{platform.platform()}, {os.cpu_count()} cores, {load}, {', '.join(versions)}"


def report(what: str, measured: list[tuple[float, float]], target: float) -> None:
    """Print medians, range, machine and versions; exit with 1 if the median wall time misses the target."""
    seconds, cpu = zip(*measured, strict=True)
    median = statistics.median(seconds)
    print(f"{what}: median {median:.2f} s wall ({min(seconds):.2f} to {max(seconds):.2f}, n={len(seconds)}), ", end="")
    print(f"{statistics.median(cpu):.2f} s CPU; target {target} s")
    print(machine_line("flbench", "pydantic", "ruamel.yaml", "typer", "rich"))
    sys.exit(median > target)
