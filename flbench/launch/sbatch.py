"""The batch script of an array of workers, and the call of sbatch.

A job runs ``python -m flbench.worker``, as on any machine. Submitting a command line instead of a pickle means that
nothing in the store can execute code, that no job needs a file which its launcher may not have written, and that only
the worker handles the job's signals.
"""

from __future__ import annotations

import math
import os
import re
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from flbench.errors import UserError
from flbench.launch.local import ONE_THREAD
from flbench.slurm.commands import TIMEOUT
from flbench.slurm.job import GRACE, JOB_END, LOG
from flbench.store import files
from flbench.store.secrets import is_secret, redact

#: SLURM's variables that sbatch gets even if this process runs inside another job.
KEPT_VARIABLES = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT")

#: Most tasks of an array that run at a time, unless the profile sets another number.
PARALLEL = 256

_GPUS = ("GPUS", "GPUS_PER_NODE", "GPUS_PER_SOCKET", "GPUS_PER_TASK", "GRES", "TRES_PER_TASK")

#: By option of the script, the variables SBATCH_* that would override or contradict it, besides that of its own name.
_OVERRIDING = {
    "array": ("ARRAY_INX",),
    "cpus-per-task": ("CPUS_PER_GPU",),
    "gpus-per-node": _GPUS,
    "gres": _GPUS,
    "mem": ("MEM_PER_NODE", "MEM_PER_CPU", "MEM_PER_GPU"),
    "output": ("ERROR",),
    "requeue": ("NO_REQUEUE",),
    "time": ("TIMELIMIT",),
}

#: sbatch would return only when the jobs have ended.
_NEVER = "SBATCH_WAIT"


class Refused(Exception):
    """sbatch fails; the text is its message."""


@dataclass(frozen=True)
class Request:
    """The resources that each job requests; None: the cluster's default.

    Attributes:
        seconds: wall time.
        grace: how many seconds before its end a worker stops.
        mem: bytes.
        setup: shell lines that the job executes before the worker.
        parallel: most tasks of an array that run at a time.
    """

    seconds: int
    grace: int = 90
    cpus: int = 1
    gpus: int | None = None
    gres: str | None = None
    mem: int | None = None
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    exclude: str | None = None
    setup: tuple[str, ...] = ()
    parallel: int | None = None

    @property
    def has_gpus(self) -> bool:
        """Return whether workers get GPUs."""
        return bool(self.gpus) or "gpu" in (self.gres or "")


@dataclass(frozen=True)
class Array:
    """An array of workers.

    Attributes:
        folder: absolute; gets the script and the jobs' logs.
        name: of its jobs.
        tasks: the number of workers.
        command: the shell command of a worker.
    """

    folder: Path
    name: str
    tasks: int
    request: Request
    command: str

    def script(self, environment: Mapping[str, str] = os.environ) -> str:
        """Return the batch script; comments name the variables of this shell that sbatch reads, or does not get."""
        options, kept = self._options(), self._environment(environment)
        inputs = sorted(name for name in environment if name.startswith(("SBATCH_", "SRUN_")))
        passed = ", ".join(f"{name}={kept[name]!r}" for name in inputs if name in kept)
        hidden = ", ".join(name for name in inputs if name not in kept)
        shell = [f"# From this shell, sbatch also reads {passed}"] if passed else []
        shell += [f"# From this shell, sbatch does not get {hidden}: this script decides"] if hidden else []
        step = ["srun", "--unbuffered", "--output", self._log_pattern, f"--cpus-per-task={self.request.cpus}"]
        return "\n".join(
            [
                *("#!/bin/bash", "", "# Parameters"),
                *(
                    f"#SBATCH --{name}" + (f"={shlex.quote(options[name])}" if options[name] else "")
                    for name in sorted(options)
                ),
                *(redact(line) for line in shell),
                *("", "# setup", *self._exports(), *self.request.setup),
                # Without --export=ALL, an SBATCH_EXPORT of the user would take the exports from the worker.
                *("", "# command", f"{shlex.join([*step, '--export=ALL'])} {self.command}", ""),
            ]
        )

    def submit(self) -> str:
        """Write the script into the folder and call sbatch.

        Returns:
            The array's job id.

        Raises:
            Refused: sbatch fails, or does not answer.
            UserError: sbatch cannot be called.
            OSError: the script cannot be written.
        """
        path = self.folder / "job.sh"
        files.replace(path, os.fsencode(self.script()))
        try:
            done = subprocess.run(
                ["sbatch", str(path)], capture_output=True, text=True, errors="replace", timeout=TIMEOUT,
                env=self._environment(os.environ), check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise Refused(str(error)) from None
        except OSError as error:
            raise UserError(f"sbatch cannot be called ({error.strerror}): is this machine part of a cluster?") from None
        job = re.search(r"job ([0-9]+)", done.stdout)
        if done.returncode or job is None:
            raise Refused(done.stderr or done.stdout)
        return job.group(1)

    def _options(self) -> dict[str, str]:
        """Return the options of sbatch, '' for one without a value."""
        request = self.request
        given: dict[str, object] = {
            "array": f"0-{self.tasks - 1}%{min(self.tasks, request.parallel or PARALLEL)}",
            "cpus-per-task": request.cpus,
            "job-name": self.name,
            "nodes": 1,
            "ntasks-per-node": 1,
            "open-mode": "append",
            "output": self._log_pattern,
            "requeue": "",
            "signal": f"USR2@{request.grace}",
            "time": math.ceil(request.seconds / 60),
            "partition": request.partition,
            "account": request.account,
            "qos": request.qos,
            "gpus-per-node": request.gpus,
            "gres": request.gres,
            "mem": None if request.mem is None else f"{math.ceil(request.mem / 2**20)}M",
            "constraint": request.constraint,
            "exclude": request.exclude,
        }
        return {name: str(value) for name, value in given.items() if value is not None}

    def _environment(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of sbatch, which the jobs inherit.

        It lacks secrets, which workers do not need and SLURM would keep in its files; the variables of a job around
        this process; those of srun; and those of sbatch that would override an option of the script.
        """
        options = self._options()
        ours = {_NEVER, *(f"SBATCH_{option.upper().replace('-', '_')}" for option in options)}
        ours |= {f"SBATCH_{name}" for option in options for name in _OVERRIDING.get(option, ())}
        return {
            name: value
            for name, value in environment.items()
            if name in KEPT_VARIABLES or not (name in ours or name.startswith(("SLURM_", "SRUN_")) or is_secret(name))
        }

    @property
    def _log_pattern(self) -> str:
        """The file of a task's output, as SLURM writes it: a percent sign of the folder is doubled."""
        return f"{str(self.folder).replace('%', '%%')}/%A_%a_0_log.out"

    def _exports(self) -> list[str]:
        """Return the lines that set the worker's environment; first of all, since the time of the setup counts too."""
        log = f"{shlex.quote(str(self.folder))}/${{SLURM_ARRAY_JOB_ID}}_${{SLURM_ARRAY_TASK_ID}}_0_log.out"
        seconds = 60 * math.ceil(self.request.seconds / 60)
        return [
            f"export {JOB_END}=$(($(date +%s) + {seconds})) {GRACE}={self.request.grace} {LOG}={log}",
            f"export {' '.join(f'{name}={value}' for name, value in ONE_THREAD.items())}",
        ]


def require_loggable(store: Path) -> None:
    """Check that a script can name the logs in a store.

    Raises:
        UserError: the path has a control character, which would begin another line of the script, or a backslash,
            after which SLURM does not put a job's id into the name of its log.
    """
    path = str(store.absolute())
    # A name that is not UTF-8 has surrogates, which are not printable either, and do no harm.
    if found := next((sign for sign in path if sign == "\\" or ord(sign) < 32 or ord(sign) == 127), None):
        raise UserError(
            f"the store {path!r}: a SLURM job cannot write its log to a path with {found!r}; name another by --store"
        )
