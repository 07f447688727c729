"""Workers as forks of a process that has the engine imported: a start takes no time, and they share its memory.

The server ends with the process that started it; the workers continue. It computes nothing, starts no thread, and never
initializes CUDA, which could not be used in its forks.
"""

from __future__ import annotations

import atexit
import gc
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
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

#: The server of workers.
SERVER = (sys.executable, "-m", "flbench.launch.fork_server")

#: Runs the program of a client in a fork: the option (``-m`` or ``-c``), and what it names.
Run = Callable[[str, str], None]


class ForkServer:
    """A server and its address. It ends when this object is dropped and its last client has been served.

    Args:
        variables: its environment; each client has its own.
        program: its command line, to which the number of its socket and the socket's folder are added.

    Raises:
        OSError: no process or no socket can be created.
    """

    def __init__(self, variables: Mapping[str, str], program: Sequence[str] = SERVER) -> None:
        folder = tempfile.mkdtemp(prefix="flbench-")  # open to its owner alone
        self.address = str(Path(folder) / "socket")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(self.address)
            listener.listen(1024)
            process = subprocess.Popen(
                [*program, str(listener.fileno()), folder],
                env=variables,
                pass_fds=[listener.fileno()],
                stdin=subprocess.PIPE,  # its end tells the server that this process is gone
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # an import that fails here fails in a worker, too, whose log has the error
                start_new_session=True,
            )

        assert process.stdin is not None
        weakref.finalize(self, process.stdin.close)

    def python(self) -> tuple[str, ...]:
        """Return what takes the place of Python in the command line of a fork."""
        return sys.executable, "-IS", str(Path(__file__).with_name("fork_client.py")), self.address


def serve(listener: socket.socket, run: Run) -> None:
    """Fork for each client until the parent is gone; a fork runs the client's program and ends the process."""
    gc.collect()
    gc.freeze()  # a collection in a fork would copy the pages of all objects
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the forks
    while True:
        ready, _, _ = select.select([listener.fileno(), 0], [], [])
        if listener.fileno() not in ready:
            return
        connection, _ = listener.accept()
        if os.fork() == 0:
            break
        connection.close()
    listener.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    head, streams, _, _ = socket.recv_fds(connection, 8, 3)
    request, size = b"", int.from_bytes(head, "big")
    while len(request) < size:
        request += connection.recv(size - len(request))
    child = os.fork()
    if child:
        for stream in (0, 1, 2, *streams):
            os.close(stream)
        _watch(child, connection)
    connection.close()
    option, program = _enter(streams, *json.loads(request))
    _run_to_the_end(run, option, program)


def _run_to_the_end(run: Run, option: str, program: str) -> NoReturn:
    """Run a program and end the process as Python does, but leave its objects as they are.

    To free them at the end, a fork would copy the pages of all that the server has imported, which takes a second.
    """
    code: object = 0
    interrupted = False
    try:
        run(option, program)
    except SystemExit as end:
        code = end.code or 0
        if not isinstance(code, int):
            print(code, file=sys.stderr)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        code, interrupted = 1, isinstance(error, KeyboardInterrupt)
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    if interrupted:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(code & 255 if isinstance(code, int) else 1)


def _watch(child: int, connection: socket.socket) -> NoReturn:
    """Pass signals on to a fork and its exit code back; kill it if its client was killed."""
    end = os.pidfd_open(child)
    try:
        connection.sendall(b"+")
        while end not in select.select([end, connection.fileno()], [], [])[0]:
            os.kill(child, ord(connection.recv(1) or bytes([signal.SIGKILL])))
    except ConnectionError:  # the client was killed before it read the "+"
        os.kill(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with suppress(ConnectionError):
        connection.sendall(str(code).encode())
    os._exit(0)


def _enter(
    streams: list[int],
    argv: list[str],
    folder: str,
    variables: dict[str, str],
    umask: int,
    ignored: list[int],
    blocked: list[int],
) -> tuple[str, str]:
    """Take on a client's streams, folder, variables, signals and arguments; return the option and what it names."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    opened = open(0), open(1, "w"), open(2, "w", buffering=1, errors="backslashreplace")  # noqa: SIM115
    for name, file in zip(("stdin", "stdout", "stderr"), opened, strict=True):
        setattr(sys, name, file)
        setattr(sys, f"__{name}__", file)
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
    return option, program


def run_module(_: str, name: str) -> None:
    """Run ``-m NAME`` as Python does."""
    runpy.run_module(name, run_name="__main__", alter_sys=True)


def main(imports: Sequence[str], run: Run = run_module) -> None:
    """Import modules, then serve the socket of the command line; at the end, remove the socket's folder."""
    number, folder = sys.argv[-2:]
    for name in imports:
        importlib.import_module(name)
    serve(socket.socket(fileno=int(number)), run)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(["flbench.execution", "torch.utils.flop_counter"])
