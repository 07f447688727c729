"""A process that stands for a fork of ``fork_server.py``: its log, its signals, its exit code.

A launcher starts it as ``python -IS fork_client.py SOCKET -m MODULE ...`` and watches it as any worker. It imports
little: it starts in 10 ms and takes few MB.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from types import FrameType

FORWARDED = {signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2}


def run(address: str, argv: list[str]) -> None:
    """Run ``-m MODULE`` or ``-c PROGRAM`` with arguments in a fork; end as it does.

    Without a server that answers, Python itself runs it.
    """
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    ignored = [number for number in FORWARDED if signal.getsignal(number) == signal.SIG_IGN]
    umask = os.umask(0)
    os.umask(umask)
    folder = os.getcwd()  # noqa: PTH109 (pathlib takes longer to import than this process to start)
    text = json.dumps([argv, folder, dict(os.environ), umask, ignored, [*blocked]]).encode()
    server = socket.socket(socket.AF_UNIX)
    try:
        server.connect(address)
        socket.send_fds(server, [len(text).to_bytes(8, "big")], [0, 1, 2])
        server.sendall(text)
        begun = server.recv(1)
    except OSError:
        begun = b""
    if not begun:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        os.execv(sys.executable, [sys.executable, *argv])

    def forward(number: int, frame: FrameType | None) -> None:
        server.send(bytes([number]))

    for number in FORWARDED:
        signal.signal(number, forward)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    end(int(server.recv(16) or 255))


def end(code: int) -> None:
    """End with an exit code, or by the signal -``code``."""
    if code < 0:
        if -code in FORWARDED:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2:])
