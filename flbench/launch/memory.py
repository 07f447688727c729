"""Whether the kernel has killed processes here for want of memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def oom_kills(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """A number that grows whenever the kernel kills a process of this machine or cgroup for want of memory.

    It is the sum of whatever counters can be read (the cgroup's in version 2 and 1, the machine's): only its growth
    means anything. It stays 0 where there are none.
    """
    return sum(_count(path) for path in (proc / "vmstat", *_counters(proc / "self" / "cgroup", cgroups)))


def _counters(own: Path, cgroups: Path) -> Iterator[Path]:
    """The files that may hold a counter; inside a container the cgroup's path is not always what the kernel says."""
    yield cgroups / "memory.events"
    yield cgroups / "memory" / "memory.oom_control"
    for line in _lines(own):
        number, controllers, path = line.split(":", 2)
        if path == "/":
            continue
        if number == "0":
            yield cgroups / path.lstrip("/") / "memory.events"
        elif "memory" in controllers.split(","):
            yield cgroups / "memory" / path.lstrip("/") / "memory.oom_control"


def _count(path: Path) -> int:
    counts = (line.split() for line in _lines(path))
    return sum(int(words[1]) for words in counts if words[0] == "oom_kill")


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
