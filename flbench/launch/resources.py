"""The resources of this machine: usable cores and GPUs, and whether the kernel kills processes to free memory."""

from __future__ import annotations

import math
import os
import subprocess
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path

from flbench.errors import UserError
from flbench.launch import read_lines


def usable_cores() -> int:
    """Return how many cores this process may use, by its affinity mask and its cgroup's quota."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        cores = os.cpu_count() or 1
    root = Path("/sys/fs/cgroup")
    own = (root / line.partition("::/")[2] for line in read_lines(Path("/proc/self/cgroup")) if line.startswith("0::/"))
    return max(1, int(min(cores, *map(cgroup_quota, (root, *own)))))


def cgroup_quota(root: Path) -> float:
    """Return how many CPUs a cgroup (version 2 or 1) may use; infinite without a limit."""
    for quota_file, period_file in (("cpu.max", "cpu.max"), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        try:
            quota = (root / quota_file).read_text().split()[0]
            period = (root / period_file).read_text().split()[-1]
        except (OSError, IndexError):
            continue
        if quota not in ("max", "-1"):
            return int(quota) / int(period)
    return math.inf


def visible_gpus(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return the usable GPUs as CUDA_VISIBLE_DEVICES names them: indices, UUIDs or MIG instances."""
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        names = (name.strip() for name in visible.split(","))
        return [name for name in names if name and name not in ("-1", "NoDevFiles")]
    try:
        listing = subprocess.run(["nvidia-smi", "-L"], check=True, capture_output=True, text=True, timeout=20).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [str(number) for number in range(sum(line.startswith("GPU ") for line in listing.splitlines()))]


def gpu_slots(gpus: float, devices: Sequence[str]) -> list[str]:
    """Return the CUDA_VISIBLE_DEVICES of each worker that fits on the devices.

    Workers with a share of a GPU are spread over the devices in turn; workers with several GPUs get consecutive ones.

    Raises:
        UserError: no worker fits.
    """
    if gpus < 1:
        slots = list(chain.from_iterable([devices] * int(1 / gpus)))
    else:
        size = math.ceil(gpus)
        slots = [",".join(devices[i : i + size]) for i in range(0, len(devices) - size + 1, size)]
    if not slots:
        seen = ", ".join(devices) or "none (nvidia-smi and CUDA_VISIBLE_DEVICES show no GPU)"
        raise UserError(
            f"resources.gpus asks for {gpus:g} GPUs a run; visible here: {seen}. `--set resources.gpus=0` uses the CPU"
        )
    return slots


def oom_kills(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Return a number that grows whenever the kernel kills a process of this machine or cgroup to free memory.

    It is the sum of all readable counters (cgroup versions 2 and 1, the machine), which overlap: only its growth has a
    meaning. It stays 0 if there are none.
    """
    # Inside a container the kernel may report another path of the cgroup than the one at which its files are.
    counters = [proc / "vmstat", cgroups / "memory.events", cgroups / "memory" / "memory.oom_control"]
    for line in read_lines(proc / "self" / "cgroup"):
        number, controllers, path = line.split(":", 2)
        if number == "0" and path != "/":
            counters.append(cgroups / path.lstrip("/") / "memory.events")
        elif "memory" in controllers.split(",") and path != "/":
            counters.append(cgroups / "memory" / path.lstrip("/") / "memory.oom_control")
    lines = (line.split() for path in counters for line in read_lines(path))
    return sum(int(words[1]) for words in lines if words[0] == "oom_kill")
