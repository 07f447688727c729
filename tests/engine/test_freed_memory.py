from __future__ import annotations

import platform

from flbench.engine.setup import keep_freed_memory


def test_glibc_accepts_the_limits() -> None:
    assert keep_freed_memory() == (platform.libc_ver()[0] == "glibc")
