"""Count the processes that the kernel has killed because memory ran out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from flbench.launch import read_lines


def oom_kills(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Return a number that grows whenever the kernel kills a process of this machine or cgroup to free memory.

    It is the sum of all readable counters (cgroup versions 2 and 1, the machine), which overlap: only its growth has a
    meaning. It stays 0 if there are none.
    """
    counters = (proc / "vmstat", *_cgroup_counters(proc / "self" / "cgroup", cgroups))
    lines = (line.split() for path in counters for line in read_lines(path))
    return sum(int(words[1]) for words in lines if words[0] == "oom_kill")


def _cgroup_counters(own: Path, cgroups: Path) -> Iterator[Path]:
    """Return the files that may hold a cgroup's counter; inside a container the kernel may report another path."""
    yield cgroups / "memory.events"
    yield cgroups / "memory" / "memory.oom_control"
    for line in read_lines(own):
        number, controllers, path = line.split(":", 2)
        if path == "/":
            continue
        if number == "0":
            yield cgroups / path.lstrip("/") / "memory.events"
        elif "memory" in controllers.split(","):
            yield cgroups / "memory" / path.lstrip("/") / "memory.oom_control"
