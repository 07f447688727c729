"""Which experiments a device, or an executor, can compute."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

from flbench.choices import LOOPS, Executor
from flbench.config.base import Experiment
from flbench.config.training import Training
from flbench.errors import UserError
from flbench.messages import hook_at


def require_device(experiments: Iterable[Experiment], device: Callable[[], str]) -> None:
    """Raise UserError where a device (``cpu``, ``cuda`` or ``mps``) cannot compute an experiment.

    ``device`` is called only if needed: looking for CUDA imports torch, which takes seconds.

    Raises:
        UserError: the precision is tf32, and the device a CPU; or the device is MPS, and the experiment more than
            training in fp32.
    """
    special = [one for one in experiments if _mps_problem(one)]
    if not special or (used := device()) == "cuda":
        return
    if used == "mps":
        raise UserError(f"{_mps_problem(special[0])}; use --device cpu")
    if any(getattr(experiment, "precision", None) == "tf32" for experiment in special):
        raise UserError(
            "precision: tf32 exists on GPUs only: on a CPU it would be fp32 under another run id. Use precision: fp32, "
            "or a GPU (`flbench run --device cuda`; in a sweep `--set resources.gpus=1`)"
        )


def require_executor(experiment: Experiment, wanted: Executor) -> None:
    """Raise UserError where an executor cannot train an experiment, because of its method or its norm."""
    if wanted == "auto" or not isinstance(experiment, Training):
        return
    method, norm = getattr(experiment, "method", None), cast(Any, experiment.norm)
    if wanted not in LOOPS and method is not None and method.trains:
        raise UserError(
            f"{hook_at(type(method), 'train', 'method')} trains each client by itself, which --executor {wanted} "
            "cannot do; use auto or loop"
        )
    if wanted in LOOPS and norm.lock_step:
        raise UserError(
            f"--executor {wanted}: the clients of {norm.label()} take each step together; use auto or stacked"
        )


def _mps_problem(experiment: Experiment) -> str:
    """Return why MPS, which has no float64, cannot compute an experiment; empty if it can."""
    if not isinstance(experiment, Training):
        return f"kind: {experiment.kind} computes in float64, which MPS does not have"
    if experiment.precision != "fp32":
        return f"precision: {experiment.precision} is not supported on MPS, which has no float64; fp32 is"
    if experiment.probes:
        return "probes: they compute in float64, which MPS does not have"
    return ""
