"""``python -m tests.notebook`` executes notebooks/tutorial.ipynb in an empty folder, and writes its output into it."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

PATH = Path(__file__).parents[1] / "notebooks" / "tutorial.ipynb"


class ThisPython(AsyncKernelManager):
    """Starts kernels by this Python, whatever kernels the user has installed."""

    @property
    def kernel_spec(self) -> KernelSpec:
        return KernelSpec(argv=[sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"])


def executed(folder: Path, timeout: float) -> Any:
    """Return the notebook with the output of its cells, executed in ``folder``; a cell that fails raises its error."""
    notebook = nbformat.read(PATH, as_version=4)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FLBENCH_")}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # of the command in a cell
    environment |= {"OMP_NUM_THREADS": "1", "WANDB_MODE": "disabled", "IPYTHONDIR": str(folder / ".ipython")}
    client = NotebookClient(
        notebook, timeout=timeout, kernel_manager_class=ThisPython, resources={"metadata": {"path": str(folder)}}
    )
    client.record_timing = False
    client.coalesce_streams = True  # how a program's output is cut into pieces is a matter of time
    client.execute(env=environment)
    return notebook


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        nbformat.write(executed(Path(scratch), timeout=300), PATH)
