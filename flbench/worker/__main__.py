"""``python -m flbench.worker``: the worker as a process."""

from __future__ import annotations

import sys
import traceback
from typing import Any

from flbench.store.secrets import redact
from flbench.worker.process import main


def _print_exception(*error: Any) -> None:
    """Write an unexpected exception into the worker's log, without the secrets of the environment."""
    print(redact("".join(traceback.format_exception(*error))), file=sys.stderr)


if __name__ == "__main__":
    sys.excepthook = _print_exception
    sys.exit(main())
