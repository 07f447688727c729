"""Errors that users can fix: shown as one message, never as a traceback."""

from __future__ import annotations

import errno
import os
import sys
from typing import Literal

#: How CUDA's runtime, cuBLAS and cuDNN report that a GPU's memory does not suffice. cuDNN finds no engine where the
#: workspace of every engine is larger than what is free.
_GPU_MEMORY = ("CUDA out of memory", "CUDA error: out of memory", "_STATUS_ALLOC_FAILED", "unable to find an engine")

#: How torch's CPU allocator reports that the machine's memory does not suffice.
_HOST_MEMORY = "DefaultCPUAllocator: can't allocate memory"


class UserError(Exception):
    """An error that the user can fix; the command line prints the message and exits with ``exit_code``."""

    exit_code = 2


def check_platform() -> None:
    """Raise UserError on Windows, which has no ``fcntl`` and none of the signals that end workers."""
    if sys.platform == "win32":
        raise UserError("flbench does not run on Windows: use WSL 2, which is untried (flbench docs install)")


class DataMissing(UserError):
    """A data set's files are missing; the message names them, their folder, and the command that downloads them."""


class OtherData(UserError):
    """The data on this machine are not those that an experiment names."""


class StoreUnusable(UserError):
    """The store cannot be read or written, or was written by a newer flbench."""

    exit_code = 4


class InvalidComponent(ValueError):
    """A component, or a value of one, that does not fit; ``path`` is the field's (empty for the whole component)."""

    def __init__(self, message: str, path: tuple[str | int, ...] = ()) -> None:
        super().__init__(message)
        self.path = path


#: With these, code of a component would end the process, and its run or command, as a success.
PROCESS_ENDS = (SystemExit, GeneratorExit)


def check_utf8(path: str) -> None:
    """Raise UserError for a path, or another text of the system, that is not in UTF-8 (Python has surrogates then)."""
    try:
        path.encode()
    except UnicodeEncodeError:
        raise UserError(f"{os.fsencode(path)!r:.200}: expected text in UTF-8; rename the file or folder") from None


def text_of(error: BaseException) -> str:
    """Return the text of an error, which another package's ``__str__`` may fail to make."""
    try:
        return str(error)
    except Exception as second:
        return f"its text cannot be made ({type(second).__name__})"


def out_of_memory(error: BaseException) -> Literal["oom", "cuda_oom"] | None:
    """Return which memory ran out, the machine's or a GPU's; None for any other error.

    The causes of an error count too: recording a CUDA graph that runs out of memory ends with a second error.
    """
    text = text_of(error)
    if type(error).__name__ == "OutOfMemoryError" or any(known in text for known in _GPU_MEMORY):
        return "cuda_oom"
    if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM or _HOST_MEMORY in text:
        return "oom"
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return None if cause is None else out_of_memory(cause)
