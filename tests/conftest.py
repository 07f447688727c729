"""Settings and fixtures for all tests."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path

import pytest

from flbench.store import Store

# Where Python keeps no compiled modules, each process of a test would compile torch, and each worker of pytest all tests.
if sys.dont_write_bytecode and sys.pycache_prefix is None:
    sys.dont_write_bytecode, sys.pycache_prefix = False, str(Path(__file__).parents[1] / ".pytest_cache" / "bytecode")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix

# Stores fsync every file, which takes a disk longer than most tests compute.
MEMORY = Path("/dev/shm")
if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > 2**31:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

# The developer may be logged in to W&B: sweeps of tests must not be mirrored there.
os.environ["WANDB_MODE"] = "disabled"

# A script's background job ignores SIGINT, and a parent may block signals. Programs that tests start would
# inherit both, and tests send signals to them.
for _number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.default_int_handler if _number == signal.SIGINT else signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_SETMASK, ())


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty store."""
    return Store(tmp_path / "store")
