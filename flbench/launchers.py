"""Choose the workers of a sweep or a single run, and stop them, for the commands and for ``flbench.api``."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

from flbench.choices import Device, Executor, OwnBackend, UsedDevice
from flbench.config import Experiment, require_device, require_executor
from flbench.errors import InvalidComponent, UserError
from flbench.launch import ROUND_SECONDS, Launcher, inline, local, resources, sbatch, slurm, workers_worth
from flbench.launch.backend import Backend
from flbench.messages import unknown
from flbench.plugin_files import CURE
from flbench.registry import LAUNCHERS
from flbench.run_names import SINGLE
from flbench.store import CancelMark, Store
from flbench.sweeps import Sweep
from flbench.sweeps.profile import load_profile
from flbench.worker import Options


@dataclass(frozen=True)
class SweepWorkers:
    """The workers of a sweep.

    Attributes:
        backend: where they run: ``inline``, ``local``, ``slurm`` or the name of a plug-in's.
        count: their number; None: as many as this machine's cores and GPUs have room for.
        options: the settings of each.
        gpus: GPUs of each; a share if below 1.
        request: the resources of each SLURM job; None for other backends.
        plugin: the backend of a plug-in; None for others.
    """

    backend: str
    count: int | None
    options: Options
    gpus: float = 0
    request: sbatch.Request | None = None
    plugin: Backend | None = None

    @classmethod
    def of(
        cls,
        sweep: Sweep,
        data_root: Path | None,
        *,
        backend: str | None = None,
        profile: str | None = None,
        count: int | None = None,
    ) -> SweepWorkers:
        """Return the workers that a sweep file describes; arguments other than None override the file.

        Raises:
            UserError: the profile is missing, invalid, or for another backend; there is no such backend, or it needs
                settings that a file has.
        """
        resources, given = sweep.spec.resources, sweep.spec.backend
        options = Options(
            data_root=data_root,
            device="cuda" if resources.gpus else "cpu",
            pool=resources.cpus,
            fuse=resources.fuse,
            max_attempts=sweep.spec.retry.max_attempts,
        )
        plugin = _plugin(backend, given)
        backend = plugin.name if plugin else backend or str(getattr(given, "kind", ""))
        if backend != "slurm":
            if profile is not None:
                raise UserError(f"--profile {profile}: profiles are for --backend slurm")
            return cls(backend, count or getattr(given, "workers", None), options, resources.gpus, plugin=plugin)
        name = profile or getattr(given, "profile", None)
        if name is None:
            raise UserError("--backend slurm needs --profile NAME|FILE, or backend.profile in the sweep")
        request = load_profile(name, resources)
        options = replace(options, device="cuda" if request.has_gpus else "cpu", pool=request.cpus)
        return cls(backend, count or getattr(given, "max_jobs", 64), options, request=request)

    def require_store(self, root: Path) -> None:
        """Check that these workers can use a store in a directory, which need not exist; raises UserError."""
        if self.request is not None:
            sbatch.require_loggable(root)

    def launcher(self, store: Store, plan: str, experiments: Sequence[Experiment]) -> Launcher:
        """Return the launcher of these workers for a plan (NAME/HASH)."""
        if self.plugin is not None:
            return self.plugin.launcher(store, plan, experiments, self.options, self.count)
        if self.backend == "inline":
            return inline.InlineLauncher(store, plan, experiments, self.options)
        if self.request is not None:
            return slurm.SlurmLauncher(store, plan, self.options, self.request, workers=self.count or 1)
        cpus = self.options.pool
        return local.LocalLauncher(store, plan, self.options, workers=self.count, cpus=cpus, gpus=self.gpus)

    def script(self, store: Path, plan: str, experiments: Sequence[Experiment]) -> str | None:
        """Return the script that sbatch gets, with the array of a plan whose speed is not known; None without SLURM."""
        if self.request is None:
            return None
        rounds = sum(experiment.rounds for experiment in experiments)
        worth = workers_worth(rounds * ROUND_SECONDS, slurm.START_SECONDS) if rounds else len(experiments)
        return slurm.script(store, plan, self.options, self.request, min(self.count or 1, len(experiments), worth))


def _plugin(wanted: str | None, given: Any) -> Backend | None:
    """The backend of a plug-in that is wanted or, without a wish, that the file gives; None for one of our own."""
    own = given if isinstance(given, Backend) else None
    if wanted is None or (own is not None and own.name == wanted):
        return own
    if wanted in get_args(OwnBackend):
        return None
    if wanted not in (known := [*get_args(OwnBackend), *LAUNCHERS.classes]):
        raise UserError(f"--backend {wanted}: {unknown('backend', wanted, known)}{CURE}")
    try:
        found: Backend = LAUNCHERS.parse(wanted)
    except InvalidComponent as error:
        hint = f"give it in the sweep file, as backend: {{kind: {wanted}, ...}}"
        raise UserError(f"--backend {wanted}: {': '.join([*map(str, error.path), str(error)])}; {hint}") from None
    return found


def run_launcher(
    store: Store,
    experiment: Experiment,
    data_root: Path | None,
    device: Device,
    executor: Executor = "auto",
    threads: int | None = None,
) -> Launcher:
    """Return a launcher that executes a single run in this process; ``threads``: None for every usable core."""
    options = Options(
        data_root=data_root,
        device=used_device(device),
        executor=executor,
        pool=threads or resources.usable_cores(),
        max_attempts=1,
    )
    return inline.InlineLauncher(store, f"{SINGLE}{experiment.run_id}", [experiment], options)


def require_computable(experiment: Experiment, device: Device, executor: Executor = "auto") -> None:
    """Check that a device is there, and that it and an executor can compute a run. torch is imported only if needed.

    Raises:
        UserError: a GPU is wanted, and there is none; or the run needs another device or executor.
    """
    require_executor(experiment, executor)
    if device != "auto":
        used_device(device)
    require_device([experiment], lambda: used_device(device))


def used_device(device: Device) -> UsedDevice:
    """Return the device, for ``auto`` the one that this machine has; looking for it imports torch, which takes seconds.

    Raises:
        UserError: a GPU is wanted, and there is none.
    """
    if device == "cpu":
        return device
    import torch

    if device == "cuda":
        if not torch.cuda.is_available():
            raise UserError("--device cuda: torch sees no GPU here; use --device cpu (`flbench doctor` shows more)")
        return device
    if device == "mps":
        if not torch.backends.mps.is_available():
            raise UserError("--device mps: torch sees no Apple GPU here (it needs Apple silicon); use --device cpu")
        return device
    return "cuda" if torch.cuda.is_available() else "cpu"


def cancel(store: Store, plan: str) -> list[str]:
    """Return a line for each backend that asked the workers and orchestrators of a plan (NAME/HASH) to stop.

    The mark in the store is enough: every worker checks it, and a job that SLURM starts later ends at once.
    """
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may give a user no name
        user = f"user {os.getuid()}"
    CancelMark(store.sweeps / plan).put(f"{user}@{socket.gethostname()}")
    return [line for line in (local.cancel(store, plan), slurm.cancel(store, plan)) if line]
