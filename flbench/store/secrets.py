"""Remove secrets of the environment from texts for the store: error messages and arguments may contain any of them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

#: Variables whose values are secrets: WANDB_API_KEY, HF_TOKEN, AWS_SECRET_ACCESS_KEY, PGPASSWORD ...
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)

#: Shorter values are common words that are not redacted.
_SHORTEST = 6

#: A user's name and password, or a token, inside an address.
_IN_ADDRESS = re.compile(r"(?<=://)[^/\s:@]*:[^/\s@]+(?=@)|(?<=://)[^/\s:@]{16,}(?=@)")


def redact(text: str) -> str:
    """Return the text with stars in place of every secret of the environment, and of passwords in addresses."""
    return _without(_secrets(), text)


def redact_all(value: Any) -> Any:
    """Return plain JSON in which every text is redacted."""
    return _without_in_all(_secrets(), value)


@lru_cache(1000)
def is_secret(name: str) -> bool:
    """Return whether the name of a variable suggests a secret."""
    return _SECRET.search(name) is not None


def _secrets() -> list[str]:
    """Return the environment's values that are secrets, the longest first: one may begin with another."""
    values = {value for name, value in os.environ.items() if is_secret(name) and len(value) >= _SHORTEST}
    return sorted(values, key=len, reverse=True)


def _without(secrets: list[str], text: str) -> str:
    for secret in secrets:
        text = text.replace(secret, "***")
    return _IN_ADDRESS.sub("***", text)


def _without_in_all(secrets: list[str], value: Any) -> Any:
    if isinstance(value, str):
        return _without(secrets, value)
    if isinstance(value, Mapping):
        return {key: _without_in_all(secrets, item) for key, item in value.items()}
    return [_without_in_all(secrets, item) for item in value] if isinstance(value, (list, tuple)) else value
