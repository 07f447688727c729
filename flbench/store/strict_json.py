"""The JSON of a store: strict on reading, with a checksum where it counts, refused where a newer flbench wrote it."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from flbench.config import canonical_json
from flbench.errors import StoreUnusable
from flbench.store.files import read_bytes

#: Version of the files in a store; raised when older code could not read them.
SCHEMA = 1

#: The escape of half a surrogate pair, which alone is not valid text.
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the object in a file; None where it is absent, damaged, or no object.

    Raises:
        StoreUnusable: a newer flbench wrote it; this one does not know its content and must not overwrite it.
        OSError: the file cannot be read, so that its content is unknown.
    """
    data = read_bytes(path)
    return None if data is None else parse_object(data, path)


def loads(data: bytes) -> Any:
    """Return the value of strict JSON: no NaN, no number beyond a float's range, no text that UTF-8 cannot encode.

    Raises:
        ValueError: the bytes are something else, or nested too deeply.
    """
    try:
        value = from_json(data, allow_inf_nan=False, cache_strings="keys")
    except ValueError:
        return loads_by_json(data)
    return value if _is_finite((value,)) else loads_by_json(data)


def loads_by_json(data: bytes) -> Any:
    """Return the same as ``loads``, slowly; it decides what ``loads`` does not read, and names the mistake."""
    try:
        # Bytes would be decoded with surrogates let through.
        value = json.loads(data.decode(), parse_float=_finite_float, parse_constant=_finite_float)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if _SURROGATE.search(data):
        json.dumps(value, ensure_ascii=False).encode()  # UnicodeEncodeError is a ValueError
    return value


def _is_finite(values: Iterable[Any]) -> bool:
    """Return whether no float in these values is infinite: pydantic reads 1e400 as infinity."""
    for value in values:
        kind = type(value)
        if kind is float:
            if value - value != 0.0:
                return False
        elif kind is dict:
            if not _is_finite(value.values()):
                return False
        elif kind is list and not _is_finite(value):
            return False
    return True


def _finite_float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text:.40} is no finite number")
    return number


def parse_object(data: bytes, path: Path | str) -> dict[str, Any] | None:
    """Return the object in the bytes of a file, None if they hold none; raises StoreUnusable as ``read_json``."""
    try:
        value = loads(data)
    except ValueError:
        return None
    if not isinstance(value, dict):
        return None
    refuse_newer(value, path)
    return value


def refuse_newer(value: Mapping[str, Any], path: Path | str) -> None:
    """Raise StoreUnusable where the schema of an object is newer than this flbench."""
    schema = value.get("schema")
    if isinstance(schema, int) and schema > SCHEMA:
        raise StoreUnusable(
            f"{path} was written by a newer flbench (schema {schema}, this one reads up to {SCHEMA}); "
            "update flbench or choose another --store"
        )


def parse_lines(data: bytes) -> list[dict[str, Any]]:
    """Return the whole JSON objects at the start of a file of lines, up to the first torn line."""
    records = []
    for line in data.split(b"\n")[:-1]:  # after the last newline is a torn line
        try:
            record = loads(line)
        except ValueError:
            break
        if not isinstance(record, dict):
            break
        records.append(record)
    return records


def join_lines(records: Iterable[Mapping[str, Any]]) -> bytes:
    """Return records as lines of JSON, which ``parse_lines`` reads."""
    return b"".join(to_line(record).encode(errors="replace") + b"\n" for record in records)


def to_line(record: Mapping[str, Any]) -> str:
    """Return one record as strict JSON; infinities and NaN become null."""
    try:
        return json.dumps(record, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(record), separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def pretty(value: Any) -> bytes:
    """Return indented JSON, for people and programs."""
    return (json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode(errors="replace")


def sealed(value: Mapping[str, Any]) -> bytes:
    """Return an object as JSON with its checksum, by which ``is_as_written`` notices a later change."""
    content = json.loads(pretty(value))
    return pretty({**content, "sha256": _checksum(content)})


def is_as_written(value: Mapping[str, Any]) -> bool:
    """Return whether an object has the checksum that ``sealed`` gave it; older versions of flbench wrote none."""
    content = {name: item for name, item in value.items() if name != "sha256"}
    return "sha256" not in value or value["sha256"] == _checksum(content)


def _checksum(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical_json(content).encode()).hexdigest()
