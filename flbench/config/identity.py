"""Canonical JSON and its digest, which name runs, cells and files."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def canonical_json(value: Any) -> str:
    """Return the one JSON text of equal values: sorted keys, no spaces, floats as Python's shortest repr, no NaN.

    >>> canonical_json({"b": 1, "a": 0.1})
    '{"a":0.1,"b":1}'
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def digest(value: Any) -> str:
    """Return the first 16 hex digits of the sha256 of the value's canonical JSON."""
    return digest_text(canonical_json(value))


def digest_text(text: str) -> str:
    """Return the first 16 hex digits of the sha256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]
