"""Load checkpoints, and execute nothing in them: a store may come from someone else."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any
from zipfile import ZIP_STORED, ZipFile

import torch


class NoCheckpoint(ValueError):
    """A file that ``torch.save`` has not written, or that would execute code; the message names the file and why."""


def load_weights(path: Path) -> Any:
    """Return what a file of weights holds, as ``load_checkpoint``; files of torch before 1.6 can be read, too."""
    with path.open("rb") as file:
        if file.read(2) == b"PK":
            return load_checkpoint(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about pickles that it refuses
            return torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, MemoryError):
        raise
    except Exception as error:
        raise NoCheckpoint(f"{path}: {type(error).__name__}") from None


def load_checkpoint(path: Path) -> Any:
    """Return what ``torch.save`` wrote: tensors, numbers and strings. Nothing in the file can execute code.

    Raises:
        NoCheckpoint: its content is something else, or compressed: torch compresses nothing, and a small file could
            unpack to all memory.
        OSError: the file cannot be read.
        MemoryError: there is less memory than the file needs.
    """
    try:
        with ZipFile(path) as archive:
            parts = archive.infolist()
        if any(part.compress_type != ZIP_STORED or part.file_size != part.compress_size for part in parts):
            raise NoCheckpoint(f"{path}: compressed")
        return torch.load(path, map_location="cpu", weights_only=True)
    except (NoCheckpoint, OSError, MemoryError):
        raise
    except Exception as error:  # torch raises several; their texts suggest to load the file unsafely
        raise NoCheckpoint(f"{path}: {type(error).__name__}") from None
