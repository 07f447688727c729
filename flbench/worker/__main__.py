"""``python -m flbench.worker``: the worker as a process."""

from __future__ import annotations

import sys
import traceback

from flbench.store.secrets import redact
from flbench.worker.process import main

if __name__ == "__main__":
    # Standard error is the worker's log, which must not have the secrets of the environment.
    sys.excepthook = lambda *error: print(redact("".join(traceback.format_exception(*error))), file=sys.stderr)
    sys.exit(main())
