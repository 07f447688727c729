"""A Python whose imports are done: forks of a process that has torch and the command line imported.

``warm_python()`` returns an executable that takes ``-c PROGRAM`` or ``-m MODULE`` and arguments, as ``sys.executable``
does. A program has its caller's folder, variables, umask, streams and signals, and its end is the executable's.
``sys.executable`` is warm in it, too, so are the workers of a sweep. Use Python itself where its start or a limit of a
process is tested: imports, encodings, closed streams, limits of memory.
"""

from __future__ import annotations

import atexit
import os
import sys
import tempfile
from functools import cache
from pathlib import Path
from types import ModuleType

from filelock import FileLock

from flbench.launch import fork_server
from flbench.launch.fork_server import run_module

ROOT = Path(__file__).parents[1]

#: What the server imports; not modules that read settings when they are imported, such as matplotlib.
IMPORTS = (
    "flbench.execution", "flbench.testing", "pandas", "pyarrow.parquet", "scipy.stats", "sklearn.datasets",
    "torch.utils.flop_counter",
)  # fmt: skip

CLIENT = """#!{python} -IS
import os, sys
if sys.argv[1] in ("-c", "-m"):
    sys.path.insert(0, {folder!r})
    from fork_client import run
    run({address!r}, sys.argv[1:])
os.execv({python!r}, [{python!r}, *sys.argv[1:]])
"""


@cache
def warm_python() -> str:
    """Return the path of the executable.

    The first call starts the server, which ends with the test run; all workers of pytest-xdist share it, since its
    imports take nine CPU seconds.
    """
    if sys.platform != "linux":
        return sys.executable
    if (test_run := os.environ.get("PYTEST_XDIST_TESTRUNUID")) is None:
        return str(_start(os.getpid()) / "python")
    shared = Path(tempfile.gettempdir(), f"flbench-warm-{test_run}")
    with FileLock(f"{shared}.lock"):
        if not shared.is_symlink():
            shared.symlink_to(_start(os.getppid(), shared))
    return str(shared / "python")


def shell_environment(programs: Path) -> dict[str, str]:
    """Return an environment for a shell whose ``flbench`` starts warm, without the user's stores, data and plug-ins.

    Args:
        programs: a new folder for the command.
    """
    programs.mkdir()
    program = programs / "flbench"
    program.write_text(f'#!/bin/sh\nexec {warm_python()} -c "from flbench.cli import main; main()" "$@"\n')
    program.chmod(0o755)
    theirs = ("FLBENCH_STORE", "FLBENCH_DATA", "FLBENCH_PLUGINS")
    kept = {name: value for name, value in os.environ.items() if name not in theirs}
    path = f"{programs}{os.pathsep}{kept['PATH']}"
    return kept | {"PATH": path, "OMP_NUM_THREADS": "1", "WANDB_MODE": "disabled"}


def _start(parent: int, link: Path | None = None) -> Path:
    """Start a server, which ends after the process ``parent`` and then removes the link; return its folder."""
    from flbench.launch.local import ONE_THREAD

    variables = {**os.environ, **ONE_THREAD, "PYTHONPATH": str(ROOT)}
    program = (sys.executable, "-m", "tests.warm", str(parent), str(link or ""))
    server = fork_server.ForkServer(variables, program)
    atexit.register(lambda: server)  # drops it no earlier
    client = Path(server.address).with_name("python")
    folder = str(Path(fork_server.__file__).parent)
    client.write_text(CLIENT.format(python=sys.executable, address=server.address, folder=folder))
    client.chmod(0o755)
    return client.parent


def run(option: str, program: str) -> None:
    """Run ``-m MODULE`` or ``-c PROGRAM`` as Python does."""
    if option == "-m":
        run_module(option, program)
    else:
        sys.modules["__main__"] = main = ModuleType("__main__")
        exec(compile(program, "<string>", "exec"), main.__dict__)


if __name__ == "__main__":
    _, parent, link, _, folder = sys.argv
    sys.executable = str(Path(folder, "python"))  # before flbench names the programs of workers
    os.dup2(os.pidfd_open(int(parent)), 0)  # the server ends when its standard input can be read
    from flbench.cli.commands import COMMANDS
    from flbench.launch import local
    from flbench.launch.fork_server import main

    def refuse(_: object) -> None:
        raise OSError("the workers of a warm program are warm without a server of their own")

    local.ForkServer = refuse  # type: ignore[assignment, misc]
    main([*IMPORTS, *(f"flbench.cli.{module}" for module, _, _ in COMMANDS.values())], run)
    if link:
        Path(link).unlink(missing_ok=True)
        Path(f"{link}.lock").unlink(missing_ok=True)
