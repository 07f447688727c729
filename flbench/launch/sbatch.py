"""The batch script of an array of workers, which submitit writes, and the call of sbatch.

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
from typing import TYPE_CHECKING, Any

from flbench.errors import UserError
from flbench.launch.local import ONE_THREAD
from flbench.slurm.commands import TIMEOUT
from flbench.slurm.job import GRACE, JOB_END, LOG
from flbench.store import files
from flbench.store.secrets import is_secret, redact

if TYPE_CHECKING:
    from submitit.slurm.slurm import SlurmExecutor

#: SLURM's variables that sbatch gets even if this process runs inside another job.
KEPT_VARIABLES = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT")

#: The folder that submitit gets: it and SLURM would replace a %j of the real one, which follows in the script's text.
_FOLDER = Path("/FOLDER")

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

#: What separates the options from the lines that the job executes.
_SETUP = "\n\n# setup\n"

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
        text = self._text()
        kept = _passed_on(environment, text)
        inputs = sorted(name for name in environment if name.startswith(("SBATCH_", "SRUN_")))
        passed = ", ".join(f"{name}={kept[name]!r}" for name in inputs if name in kept)
        hidden = ", ".join(name for name in inputs if name not in kept)
        shell = [f"# From this shell, sbatch also reads {passed}"] if passed else []
        shell += [f"# From this shell, sbatch does not get {hidden}: this script decides"] if hidden else []
        options, setup, rest = text.partition(_SETUP)
        return "\n".join([options, *(redact(line) for line in shell)]) + setup + rest

    def submit(self) -> str:
        """Write the script into the folder and call sbatch.

        Returns:
            The array's job id.

        Raises:
            Refused: sbatch fails, or does not answer.
            UserError: sbatch cannot be called.
            OSError: the script cannot be written.
        """
        from submitit.core.utils import FailedSubmissionError

        path, executor, text = self.folder / "job.sh", self._executor(), self.script()
        files.replace(path, os.fsencode(text))
        # submitit's _submit_command has no limit on the time, and writes to another folder if this one's path has %j.
        try:
            done = subprocess.run(
                executor._make_submission_command(path), capture_output=True, text=True, errors="replace",
                timeout=TIMEOUT, env=_passed_on(os.environ, text), check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise Refused(str(error)) from None
        except OSError as error:
            raise UserError(f"sbatch cannot be called ({error.strerror}): is this machine part of a cluster?") from None
        if done.returncode:
            raise Refused(done.stderr or done.stdout)
        try:
            return executor._get_job_id_from_submission_command(done.stdout)
        except FailedSubmissionError:
            raise Refused(done.stderr or done.stdout) from None

    def _text(self) -> str:
        """Return the script without the comments on the shell."""
        text = self._executor()._make_submission_file_text(self.command, "")
        # A percent sign of the folder is doubled: SLURM writes it once.
        log = shlex.quote(f"{str(self.folder).replace('%', '%%')}/%A_%a_0_log.out")
        for task in ("0", "%t"):  # of sbatch, of srun
            text = text.replace(f"{_FOLDER}/%A_%a_{task}_log.out", log, 1)
        return text

    def _executor(self) -> SlurmExecutor:
        """Return the submitit executor of this array."""
        from submitit.slurm.slurm import SlurmExecutor

        class ScriptWriter(SlurmExecutor):
            """A SlurmExecutor that writes scripts on machines without SLURM, too."""

            @classmethod
            def affinity(cls) -> int:
                return 1

        executor = ScriptWriter(_FOLDER)
        executor.update_parameters(**self._parameters())
        executor.parameters["map_count"] = self.tasks
        return executor

    def _parameters(self) -> dict[str, Any]:
        """Return the request as submitit's parameters."""
        request = self.request
        log = f"{shlex.quote(str(self.folder))}/${{SLURM_ARRAY_JOB_ID}}_${{SLURM_ARRAY_TASK_ID}}_0_log.out"
        seconds = 60 * math.ceil(request.seconds / 60)
        optional = {
            "partition": request.partition,
            "account": request.account,
            "qos": request.qos,
            "gpus_per_node": request.gpus,
            "gres": request.gres,
            "mem": None if request.mem is None else f"{math.ceil(request.mem / 2**20)}M",
            "constraint": request.constraint,
            "exclude": request.exclude,
            "array_parallelism": request.parallel,
        }
        return {
            **{key: value for key, value in optional.items() if value is not None},
            "job_name": self.name,
            "time": seconds // 60,
            "ntasks_per_node": 1,
            "cpus_per_task": request.cpus,
            # Since SLURM 22.05 a step does not inherit the CPUs. Without --export=ALL, an SBATCH_EXPORT of the user
            # would take the exports from the worker.
            "srun_args": [f"--cpus-per-task={request.cpus}", "--export=ALL"],
            "signal_delay_s": request.grace,
            "stderr_to_stdout": True,
            "wckey": None,
            "additional_parameters": {"requeue": True},
            "setup": [  # the end of the job first of all, since the time of the setup counts too
                f"export {JOB_END}=$(($(date +%s) + {seconds})) {GRACE}={request.grace} {LOG}={log}",
                f"export {' '.join(f'{name}={value}' for name, value in ONE_THREAD.items())}",
                *request.setup,
            ],
        }


def _passed_on(environment: Mapping[str, str], script: str) -> dict[str, str]:
    """Return the environment of sbatch, which the jobs inherit.

    Left out are secrets (workers need none, and SLURM would store them), the variables of srun and of a job around this
    process, and those of sbatch that would override an option of the script.
    """
    options = re.findall(r"^#SBATCH --([a-z-]+)", script.partition(_SETUP)[0], re.MULTILINE)
    ours = {_NEVER, *(f"SBATCH_{option.upper().replace('-', '_')}" for option in options)}
    ours |= {f"SBATCH_{name}" for option in options for name in _OVERRIDING.get(option, ())}
    return {
        name: value
        for name, value in environment.items()
        if name in KEPT_VARIABLES or not (name in ours or name.startswith(("SLURM_", "SRUN_")) or is_secret(name))
    }


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
