"""What holds for all tests."""

from __future__ import annotations

import os
import signal

# Whoever runs the tests may be logged in to W&B: no sweep of a test shall be mirrored there.
os.environ["WANDB_MODE"] = "disabled"

# A script's background job ignores SIGINT, and a parent may block signals: the programs that tests start, and send
# signals to, would inherit both.
for _number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.default_int_handler if _number == signal.SIGINT else signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_SETMASK, ())
