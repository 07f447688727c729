"""Keep freed memory in the process, where the next local step uses it again.

By default glibc returns it to the kernel, which then clears each page on its next use: a tenth of a CNN's local step.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache

#: Options of mallopt(3) and their bytes: freed memory at the end of a heap that is kept, and the least size of a block
#: that is always returned (glibc allows no more).
M_TRIM_THRESHOLD = -1, 256 << 20
M_MMAP_THRESHOLD = -3, 32 << 20


@cache
def keep_freed_memory() -> bool:
    """Set glibc's limits for this process; return whether it is glibc that allocates, and has accepted them."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    return mallopt is not None and mallopt(*M_TRIM_THRESHOLD) == mallopt(*M_MMAP_THRESHOLD) == 1
