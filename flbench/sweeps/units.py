"""Amounts of memory and wall times as sweep files and profiles write them."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema

_UNITS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
_BYTES = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def parse_time(raw: Any) -> int:
    """Return seconds of a wall time: ``30m``, ``1h30m``, ``2d``, ``HH:MM:SS`` or SLURM's ``D-HH:MM:SS``.

    Raises:
        ValueError: another form, or no time at all.

    >>> parse_time("1h30m"), parse_time("1-00:00:00")
    (5400, 86400)
    """
    text = raw if isinstance(raw, str) else ""
    if match := re.fullmatch(r"(?:(\d+)-)?(\d{1,2}):([0-5]\d):([0-5]\d)", text):
        days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
        total = days * 86_400 + hours * 3_600 + minutes * 60 + seconds
    elif re.fullmatch(r"(\d+d)?(\d+h)?(\d+m)?(\d+s)?", text):
        total = sum(int(number) * _UNITS[unit] for number, unit in re.findall(r"(\d+)([dhms])", text))
    else:
        total = 0
    if total <= 0:
        raise ValueError(f"expected a wall time like 30m, 2h, 1h30m, 12:00:00 or 1-00:00:00, got {raw!r}")
    return total


def parse_memory(raw: Any) -> int:
    """Return bytes of an amount of memory: ``512M``, ``2G``, ``1.5G`` (powers of 1024).

    Raises:
        ValueError: another form, or no memory at all.

    >>> parse_memory("1.5G")
    1610612736
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT])i?B?", raw) if isinstance(raw, str) else None
    if match is None or not float(match[1]):
        raise ValueError(f"expected an amount of memory like 512M or 2G, got {raw!r}")
    return int(float(match[1]) * _BYTES[match[2]])


#: Bytes, written with a unit, and seconds, written as a wall time.
Memory = Annotated[int | None, BeforeValidator(parse_memory), WithJsonSchema({"type": "string", "examples": ["2G"]})]
WallTime = Annotated[int | None, BeforeValidator(parse_time), WithJsonSchema({"type": "string", "examples": ["30m"]})]
