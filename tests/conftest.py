"""Settings and fixtures for all tests."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest

from flbench.launch.local import ONE_THREAD
from flbench.store import Store

# Where Python keeps no compiled modules, each process of a test compiles torch, and each worker of pytest the tests.
if sys.dont_write_bytecode and sys.pycache_prefix is None:
    sys.dont_write_bytecode, sys.pycache_prefix = False, str(Path(__file__).parents[1] / ".pytest_cache" / "bytecode")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix

# Threads wait for each other longer than they compute on the small tensors of tests. Before torch is imported.
os.environ |= ONE_THREAD

# Stores fsync every file, which takes a disk longer than most tests compute. Tests execute programs that they write.
MEMORY = Path("/dev/shm")
if (
    MEMORY.is_dir()
    and os.access(MEMORY, os.W_OK)
    and not os.statvfs(MEMORY).f_flag & os.ST_NOEXEC
    and shutil.disk_usage(MEMORY).free > 2**31
):
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


def pytest_collection_finish() -> None:
    """Keep what was imported and collected out of every garbage collection, of which recording a graph makes one."""
    gc.freeze()


def pytest_sessionfinish() -> None:
    gc.unfreeze()  # bindings report what is not freed at the end
