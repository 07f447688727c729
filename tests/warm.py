"""A Python whose imports are done: forks of a process that has torch and the command line imported.

``warm_python()`` returns an executable that takes ``-c PROGRAM`` or ``-m MODULE`` and arguments, as ``sys.executable``
does. A program has its caller's folder, variables, umask, streams and signals, and its end is the executable's.
``sys.executable`` is warm in it, too, so are the workers of a sweep. Use Python itself where its start or a limit of a
process is tested: imports, encodings, closed streams, limits of memory.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import NoReturn

#: What the server imports; not modules that read settings when they are imported, such as matplotlib.
IMPORTS = (
    "flbench.execution", "flbench.testing", "pandas", "pyarrow.parquet", "scipy.stats", "sklearn.datasets",
    "torch.utils.flop_counter",
)  # fmt: skip

#: The executable: hands its streams to the server, forwards signals, and ends as the program does.
CLIENT = """#!{python} -IS
import json, os, signal, socket
import sys
server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
forwarded = [signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2]
blocked = signal.pthread_sigmask(signal.SIG_BLOCK, forwarded)
ignored = [number for number in forwarded if signal.getsignal(number) == signal.SIG_IGN]
umask = os.umask(0)
text = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ), umask, ignored, list(blocked)]).encode()
socket.send_fds(server, [len(text).to_bytes(8, "big")], [0, 1, 2])
server.sendall(text)
for number in forwarded:
    signal.signal(number, lambda number, _: server.send(bytes([number])))
signal.pthread_sigmask(signal.SIG_SETMASK, ())
code = int(server.recv(64) or 255)
if code < 0:
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    if -code in forwarded:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
os._exit(code)
"""


@cache
def warm_python() -> str:
    """Return the path of the executable; the first call starts the server, which ends with this process."""
    if sys.platform != "linux":  # elsewhere a fork of a process with such libraries may crash
        return sys.executable
    from flbench.launch.local import ONE_THREAD  # the server imports it after sys.executable is set

    folder = Path(tempfile.mkdtemp(prefix="warm-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    client, address = folder / "python", str(folder / "socket")
    client.write_text(CLIENT.format(python=sys.executable, address=address))
    client.chmod(0o755)
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.warm", address, str(client)],
        cwd=Path(__file__).parents[1],
        env={**os.environ, **ONE_THREAD},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    atexit.register(server.kill)
    assert server.stdout is not None and server.stdout.read(1) == b"."
    return str(client)


def serve(address: str) -> None:
    """Fork for every connection until the parent process is gone; run its program in the fork."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # reaped by the kernel
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(64)
        os.write(1, b".")
        while True:
            ready, _, _ = select.select([listener, 0], [], [])
            if 0 in ready:
                os._exit(0)
            connection, _ = listener.accept()
            if os.fork() == 0:
                break
            connection.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    head, streams, _, _ = socket.recv_fds(connection, 8, 3)
    text, size = b"", int.from_bytes(head, "big")
    while len(text) < size:
        text += connection.recv(size - len(text))
    child = os.fork()
    if child:
        for stream in (0, 1, 2, *streams):
            os.close(stream)
        _watch(child, connection)
    connection.close()
    _become(streams, *json.loads(text))


def _watch(child: int, connection: socket.socket) -> NoReturn:
    """Forward signals to the program and its exit code to the client; kill the program if the client is gone."""
    end = os.pidfd_open(child)
    while True:
        ready, _, _ = select.select([end, connection], [], [])
        if connection in ready:
            os.kill(child, ord(connection.recv(1) or bytes([signal.SIGKILL])))
        if end in ready:
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            connection.sendall(str(code).encode())
            os._exit(0)


def _become(
    streams: list[int],
    argv: list[str],
    folder: str,
    variables: dict[str, str],
    umask: int,
    ignored: list[int],
    blocked: list[int],
) -> None:
    """Run a program with its caller's streams, folder, variables and signals."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdin = sys.__stdin__ = open(0)  # noqa: SIM115
    sys.stdout = sys.__stdout__ = open(1, "w")  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(2, "w", buffering=1, errors="backslashreplace")  # noqa: SIM115
    os.environ.clear()
    os.environ.update(variables)
    os.chdir(folder)
    os.umask(umask)
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    option, program, *rest = argv
    sys.path[:1] = ["" if option == "-c" else folder, *filter(None, variables.get("PYTHONPATH", "").split(os.pathsep))]
    sys.argv = [option, *rest]
    if option == "-m":
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    else:
        sys.modules["__main__"] = main = ModuleType("__main__")
        exec(compile(program, "<string>", "exec"), main.__dict__)


if __name__ == "__main__":
    _, address, sys.executable = sys.argv
    for name in IMPORTS:
        importlib.import_module(name)
    for module, _, _ in importlib.import_module("flbench.cli.commands").COMMANDS.values():
        importlib.import_module(f"flbench.cli.{module}")
    serve(address)
