"""Keep what only the environment should know out of the store: an error message or an argument may hold anything."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

#: Variables whose values are secrets: WANDB_API_KEY, HF_TOKEN, AWS_SECRET_ACCESS_KEY, PGPASSWORD ...
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)

#: Shorter values are words that may stand anywhere.
_SHORTEST = 6

#: A user's name and password, or a token, inside an address.
_IN_ADDRESS = re.compile(r"(?<=://)[^/\s:@]*:[^/\s@]+(?=@)|(?<=://)[^/\s:@]{16,}(?=@)")


def redact(text: str, environ: Mapping[str, str] = os.environ) -> str:
    """The text with stars in place of every secret of the environment, and of passwords in addresses."""
    values = {value for name, value in environ.items() if _SECRET.search(name) and len(value) >= _SHORTEST}
    for value in sorted(values, key=len, reverse=True):  # one secret may begin with another
        text = text.replace(value, "***")
    return _IN_ADDRESS.sub("***", text)


def redact_all(value: Any) -> Any:
    """The same for every text in plain JSON."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Mapping):
        return {key: redact_all(item) for key, item in value.items()}
    return [redact_all(item) for item in value] if isinstance(value, (list, tuple)) else value
