"""The commands of single workers, for a queue that flbench does not submit to."""

from __future__ import annotations

import os
import shlex
from dataclasses import replace
from pathlib import Path

from flbench.launch.local import ONE_THREAD, WORKER
from flbench.plugin_files import VARIABLE, plugin_files
from flbench.worker import Options


def worker_commands(store: Path, plan: str, options: Options, count: int) -> list[str]:
    """Return a shell command for each of ``count`` workers of a plan; none needs this shell's folder or variables.

    Each works until no run of the plan is left. Their order does not matter, nor how many of them are executed.
    """
    variables = {**ONE_THREAD, **({VARIABLE: os.pathsep.join(map(str, plugin_files()))} if plugin_files() else {})}
    beginning = ["env", *(f"{name}={value}" for name, value in variables.items()), *WORKER, str(store.absolute()), plan]
    usual = Options().to_argv()
    commands = []
    for number in range(count):
        given = replace(options, offset=number, workers=count).to_argv()
        commands.append(shlex.join([*beginning, *(option for option in given if option not in usual)]))
    return commands
