"""Reading back what wandb wrote into a file: it says nothing when the disk was full.

The framing is LevelDB's log format (its ``doc/log_format.md``) after a header of 7 bytes, the content wandb's own
protocol buffers. wandb 0.31 has no reader in Python any more.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

#: ``:W&B``, a magic number, a version.
HEADER = b":W&B"
HEADER_BYTES = 7

#: Fragments lie in blocks of this size, each after its checksum (4), length (2) and kind (1).
BLOCK = 32768
FRAGMENT_HEADER = 7

FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def records(path: Path) -> Iterator[bytes]:
    """The whole records of a segment, as far as it is sound; raises OSError."""
    data = path.read_bytes()
    if not data.startswith(HEADER):
        return
    at = HEADER_BYTES
    parts: list[bytes] = []
    while at + FRAGMENT_HEADER <= len(data):
        if BLOCK - at % BLOCK < FRAGMENT_HEADER:
            at += BLOCK - at % BLOCK  # the rest of a block that is too short for a header is padding
            continue
        size, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        at += FRAGMENT_HEADER
        if not FULL <= kind <= LAST or at + size > len(data):
            return  # torn
        parts = [*(parts if kind in (MIDDLE, LAST) else []), data[at : at + size]]
        at += size
        if kind in (FULL, LAST):
            yield b"".join(parts)


def history(path: Path) -> list[dict[str, Any]]:
    """The logged rows of a segment, with what wandb adds (``_step``, ``_timestamp``, ``_runtime``)."""
    return [
        {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
        for record in _parsed(path)
        if record.WhichOneof("record_type") == "history"
    ]


def is_whole(path: Path) -> bool:
    """Whether a segment ends as a finished run's does."""
    return any(record.WhichOneof("record_type") == "exit" for record in _parsed(path))


def _parsed(path: Path) -> Iterator[Any]:
    from wandb.proto import wandb_internal_pb2

    return (wandb_internal_pb2.Record.FromString(data) for data in records(path))  # type: ignore[attr-defined]
