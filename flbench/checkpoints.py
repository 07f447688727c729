"""Reading what a run has saved: its checkpoints may come from somebody else's store."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from zipfile import ZIP_STORED, ZipFile

import torch


class Compressed(ValueError):
    """A checkpoint whose parts are compressed: torch writes none, and a small one could unpack to all memory."""


def load_checkpoint(path: Path) -> Any:
    """Return what ``torch.save`` wrote: tensors, numbers and strings. Nothing in the file can execute code.

    Raises:
        Compressed: its parts are larger than the file.
        OSError: the file cannot be read.
        Exception: anything else that torch and zipfile raise for a damaged file.
    """
    with ZipFile(path) as parts:
        if any(part.compress_type != ZIP_STORED or part.file_size != part.compress_size for part in parts.infolist()):
            raise Compressed(f"{path}: compressed")
    return torch.load(path, map_location="cpu", weights_only=True)
