"""The profile of a cluster: a YAML file with what each job requests from SLURM, checked like a sweep file."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from flbench.installation import bundled
from flbench.launch.sbatch import Request
from flbench.messages import unknown
from flbench.sweeps.source import Source, SpecError
from flbench.sweeps.spec import Resources, Strict
from flbench.sweeps.units import Memory, WallTime, parse_time

#: The folder of the profiles that are given by name; flbench's own, from which to start, are at the same place in it.
PROFILES = Path("slurm/profiles")


def _plain(raw: Any) -> Any:
    """Refuse what is not one line of visible text: it becomes a line of the job's script."""
    if isinstance(raw, str) and (not raw.strip() or not raw.isprintable()):
        raise ValueError(f"expected one line of visible text, got {raw!r}")
    return raw


def _nodes(raw: Any) -> Any:
    """Join a list of nodes with commas, as SLURM names them."""
    if isinstance(raw, list) and all(isinstance(node, str) for node in raw):
        raw = ",".join(raw)
    return _plain(raw)


def _lines(raw: Any) -> Any:
    """Put a single line into a list, and check each line."""
    lines = (raw,) if isinstance(raw, str) else tuple(raw) if isinstance(raw, list) else raw
    for line in lines if isinstance(lines, tuple) else ():
        _plain(line)
    return lines


def _gres(raw: Any) -> Any:
    if isinstance(raw, str) and not re.fullmatch(r"[\w.-]+(:[\w.-]+)*(,[\w.-]+(:[\w.-]+)*)*", raw):
        raise ValueError(f"expected generic resources like gpu:1 or gpu:a100:2, got {raw!r}")
    return raw


Text = Annotated[str | None, BeforeValidator(_plain)]


class Profile(Strict):
    """What each job requests from SLURM; absent fields come from the sweep's ``resources``, else from the cluster."""

    partition: Text = Field(default=None, description="partition")
    account: Text = Field(default=None, description="who pays")
    qos: Text = Field(default=None, description="quality of service")
    time: WallTime = Field(default=None, description="wall time of a job, as 30m, 2h or 1-00:00:00")
    cpus: int | None = Field(default=None, ge=1, description="CPU cores")
    gpus: int | None = Field(default=None, ge=0, description="GPUs")
    gres: Annotated[str | None, BeforeValidator(_gres)] = Field(
        default=None, description="generic resources in place of gpus, as gpu:a100:1"
    )
    mem: Memory = Field(
        default=None, description="memory, as 8G; runs for which it does not suffice get twice as much, once"
    )
    constraint: Text = Field(default=None, description="features of the nodes")
    exclude: Annotated[str | None, BeforeValidator(_nodes)] = Field(default=None, description="nodes to stay away from")
    setup: Annotated[tuple[str, ...], BeforeValidator(_lines)] = Field(
        default=(), description="shell lines before the worker, as: module load cuda"
    )
    array_parallelism: int | None = Field(default=None, ge=1, description="most jobs of an array at a time")
    grace: Annotated[int, BeforeValidator(parse_time)] = Field(
        default=90, description="how long before the wall time's end a worker checkpoints and requeues its job"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Profile:
        if self.gpus is not None and self.gres is not None:
            raise ValueError("expected gpus or gres, got both")
        return self


def load_profile(name: str, resources: Resources) -> Request:
    """Return what a profile, given by name or as a file, requests for each job of a sweep.

    Raises:
        SpecError: the profile does not exist or is wrong; the message names the place and the fix.
    """
    source = Source.open(_find_profile(name))
    profile = Profile.read(source)
    seconds = profile.time or resources.time
    if seconds is None:
        raise source.error((), "time: a value is required here, or as resources.time in the sweep: for example 2h")
    # SLURM counts walltime in minutes.
    if profile.grace >= 60 * -(-seconds // 60):
        raise source.error(("grace",), f"expected less than the wall time ({seconds} s), got {profile.grace} s")
    gpus = None
    if profile.gres is None:
        gpus = profile.gpus if profile.gpus is not None else math.ceil(resources.gpus)
    return Request(
        seconds=seconds,
        grace=profile.grace,
        cpus=profile.cpus or resources.cpus,
        gpus=gpus or None,
        gres=profile.gres,
        mem=profile.mem or resources.mem,
        partition=profile.partition,
        account=profile.account,
        qos=profile.qos,
        constraint=profile.constraint,
        exclude=profile.exclude,
        setup=profile.setup,
        parallel=profile.array_parallelism,
    )


def _find_profile(name: str) -> Path:
    """Return the file of a profile; raises SpecError."""
    path = Path(name)
    if path.suffix in (".yaml", ".yml") or path.is_file():
        if path.is_file():
            return path
        found = ", ".join(sorted(map(str, PROFILES.glob("*.yaml"))))
        there = f"; there are {found}" if found else ""
        raise SpecError(f"{path}: no such file: expected a profile (YAML){there}")
    named = {found.stem: found for folder in (bundled(str(PROFILES)), PROFILES) for found in folder.glob("*.yaml")}
    if name not in named:
        raise SpecError(f"--profile {name}: {unknown('profile', name, sorted(named))} (in {PROFILES}); or give a file")
    return named[name]
