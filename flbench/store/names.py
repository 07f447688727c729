"""Names that become parts of paths, checked before a path is made of them.

A store may come from another person; no name in it may lead to a path outside it.
"""

from __future__ import annotations

import re

_RUN_ID = re.compile(r"[0-9a-f]{16}")
_DIGITS = re.compile(r"[0-9]{1,18}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def is_run_id(text: object) -> bool:
    """Return whether this is 16 hexadecimal digits."""
    return isinstance(text, str) and _RUN_ID.fullmatch(text) is not None


def is_number(text: str) -> bool:
    """Return whether ``int`` reads these digits as a count: it fails on some digits of Unicode, and on thousands."""
    return _DIGITS.fullmatch(text) is not None


def is_name(text: object) -> bool:
    """Return whether this is safe as a file name: no path, not hidden, no control characters."""
    return isinstance(text, str) and _NAME.fullmatch(text) is not None
