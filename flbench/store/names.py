"""Names that become paths: what a file or an argument says is checked before a path is made of it.

A store may come from somebody else; nothing in it shall lead out of it.
"""

from __future__ import annotations

import re

_RUN_ID = re.compile(r"[0-9a-f]{16}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def is_run_id(text: object) -> bool:
    """Return whether this is 16 hexadecimal digits."""
    return isinstance(text, str) and _RUN_ID.fullmatch(text) is not None


def is_number(text: str) -> bool:
    """Return whether these are digits that ``int`` understands: it does not all that Unicode calls digits."""
    return text.isascii() and text.isdigit()


def is_name(text: object) -> bool:
    """Return whether this can name a file without leading anywhere else, nor hiding, nor upsetting a terminal."""
    return isinstance(text, str) and _NAME.fullmatch(text) is not None
