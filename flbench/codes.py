"""Fixed numbers of names, which key random choices: of purposes, parameters, layers."""

from __future__ import annotations

import hashlib
from functools import cache


@cache
def code(name: str) -> int:
    """Return a fixed 64-bit number for a purpose or a parameter's name.

    >>> code("batches")
    16089598117798311494
    """
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
