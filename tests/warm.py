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
from functools import cache
from pathlib import Path
from types import ModuleType

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
    """Return the path of the executable; the first call starts the server, which ends with this process."""
    if sys.platform != "linux":
        return sys.executable
    from flbench.launch import fork_server
    from flbench.launch.local import ONE_THREAD

    variables = {**os.environ, **ONE_THREAD, "PYTHONPATH": str(ROOT)}
    server = fork_server.ForkServer(variables, (sys.executable, "-m", "tests.warm"))
    atexit.register(lambda: server)  # it lives as long as this process
    client = Path(server.address).with_name("python")
    folder = str(Path(fork_server.__file__).parent)
    client.write_text(CLIENT.format(python=sys.executable, address=server.address, folder=folder))
    client.chmod(0o755)
    return str(client)


def run(option: str, program: str) -> None:
    """Run ``-m MODULE`` or ``-c PROGRAM`` as Python does."""
    if option == "-m":
        run_module(option, program)
    else:
        sys.modules["__main__"] = main = ModuleType("__main__")
        exec(compile(program, "<string>", "exec"), main.__dict__)


if __name__ == "__main__":
    sys.executable = str(Path(sys.argv[2], "python"))  # before flbench names the programs of workers
    from flbench.cli.commands import COMMANDS
    from flbench.launch import local
    from flbench.launch.fork_server import main

    def refuse(_: object) -> None:
        raise OSError("the workers of a warm program are warm without a server of their own")

    local.ForkServer = refuse  # type: ignore[assignment, misc]
    main([*IMPORTS, *(f"flbench.cli.{module}" for module, _, _ in COMMANDS.values())], run)
