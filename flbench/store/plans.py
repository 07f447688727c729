"""Plans: the runs that a sweep wants, one line each, in the order in which workers take them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flbench.config import Experiment, parse_experiment
from flbench.errors import StoreUnusable
from flbench.store import files
from flbench.store.names import is_run_id
from flbench.store.results import Wish


@dataclass(frozen=True)
class Entry:
    """One run of a plan; the experiment stays plain JSON until somebody executes it."""

    run_id: str
    cell_id: str
    experiment: dict[str, Any]

    @classmethod
    def of(cls, experiment: Experiment) -> Entry:
        """The entry that asks for an experiment."""
        return cls(experiment.run_id, experiment.cell_id, experiment.to_json())

    def parse(self) -> Experiment:
        """The typed experiment."""
        return parse_experiment(self.experiment)

    def wish(self) -> Wish:
        """How far the run is wanted, and what is to be recorded."""
        return Wish.of(self.experiment)


def encode_plan(experiments: Iterable[Experiment]) -> bytes:
    """A plan file's content."""
    return files.join_lines(vars(Entry.of(experiment)) for experiment in experiments)


def read_plan(path: Path, about: str = "") -> list[Entry]:
    """The entries of a plan file (``about``: of one run); raises StoreUnusable where it cannot be read."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise _unreadable(path, error) from None
    if not data:
        raise _unreadable(path, TypeError("it is empty"))
    if not about:
        return parse_plan(path, data)
    lines = [line for line in data.split(b"\n")[:-1] if about.encode() in line]
    entries = parse_plan(path, b"".join(line + b"\n" for line in lines))
    return [entry for entry in entries if entry.run_id == about]


def parse_plan(path: Path, data: bytes) -> list[Entry]:
    """The entries in some whole lines of a plan file; raises StoreUnusable where they are none."""
    try:
        records = files.parse_lines(data)
        if len(records) != data.count(b"\n") or data[-1:] not in (b"\n", b""):
            raise TypeError("it is damaged")
        entries = [Entry(**line) for line in records]
        if strange := next((entry.run_id for entry in entries if not is_run_id(entry.run_id)), None):
            raise TypeError(f"{strange!r:.80} is no run's id")
    except TypeError as error:
        raise _unreadable(path, error) from None
    return entries


def _unreadable(path: Path, error: Exception) -> StoreUnusable:
    return StoreUnusable(f"{path}: the plan cannot be read ({error}); run `flbench sweep` on its spec again")
