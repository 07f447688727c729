"""Describe what the runs of this process execute on: package versions, code, machine."""

from __future__ import annotations

import os
import platform
import socket
import subprocess
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

#: Packages whose versions may change the numbers of a run.
PACKAGES = ("flbench", "numpy", "torch", "torchvision", "scikit-learn", "pillow", "pyarrow", "pydantic")


@cache
def environment(device: str) -> dict[str, Any]:
    """Return the content of ``environment.json``: versions, commit, host, hardware."""
    commit, dirty = _git()
    gpu = None
    if device == "cuda":
        import torch

        gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    elif device == "mps":
        gpu = f"Apple GPU, macOS {platform.mac_ver()[0]}"
    return {
        "flbench": _version("flbench"),
        "git_commit": commit,
        "git_dirty": dirty,
        "python": platform.python_version(),
        **{package: _version(package) for package in PACKAGES[1:]},
        "host": socket.gethostname(),
        "system": platform.platform(),
        "cpu": _cpu_model(),
        "gpu": gpu,
        "cuda_visible_devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "argv": sys.argv,
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _git() -> tuple[str | None, bool | None]:
    """Return the commit of the running code, and whether it was changed since; None if it is no git checkout."""
    git = ["git", "-C", str(Path(__file__).parents[1])]
    try:
        # If flbench is installed inside another project's checkout, that commit does not describe it.
        subprocess.run([*git, "ls-files", "--error-unmatch", __file__], check=True, capture_output=True, timeout=10)
        commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True, timeout=10)
        status = subprocess.run(
            [*git, "status", "--porcelain", "--", "."], check=True, capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.SubprocessError):
        return None, None
    return commit.stdout.strip(), bool(status.stdout.strip())


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())
