"""Settings and fixtures for all tests."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from flbench.store import Store

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
