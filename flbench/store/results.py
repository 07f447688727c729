"""What a run is wanted to reach, and what it reached."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from flbench.config import Experiment, canonical_json
from flbench.store import files
from flbench.store.files import SCHEMA


@dataclass(frozen=True)
class Wish:
    """How far a run is wanted, and what is to be recorded on the way."""

    rounds: int
    evaluated: frozenset[int]
    probes: frozenset[str]

    @classmethod
    def of(cls, experiment: Experiment | Mapping[str, Any]) -> Wish:
        """The wish in an experiment, typed or as its plain JSON."""
        raw = experiment if isinstance(experiment, Mapping) else experiment.to_json()
        probes = frozenset(canonical_json(probe) for probe in raw["probes"])
        return cls(raw["rounds"], _evaluated(raw["rounds"], raw["eval_every"]), probes)

    def until(self, round: int) -> set[int]:
        """The evaluated rounds up to and including a round."""
        return {wanted for wanted in self.evaluated if wanted <= round}


@dataclass(frozen=True)
class Result:
    """A published result: what a run reached, and the checksum of the metrics that show it."""

    path: Path
    run_id: str
    status: Literal["done", "diverged"]
    rounds: int
    wanted: int
    evaluated: frozenset[int]
    probes: frozenset[str]
    final: dict[str, Any]
    metrics_sha256: str
    metrics_bytes: int
    attempt: int
    seconds: float
    fingerprint: str
    numerics: dict[str, Any]
    environment: dict[str, Any]
    published: str

    @classmethod
    def read(cls, path: Path) -> Result | None:
        """The result in a file, None where it is damaged; raises StoreUnusable where a newer flbench wrote it."""
        raw = files.read_json(path)
        if raw is None:
            return None
        checksum = raw.pop("sha256", None)
        if checksum != _checksum(raw):
            return None
        raw.update({name: frozenset(raw[name]) for name in ("evaluated", "probes")}, path=path)
        return cls(**{name: raw[name] for name in cls.__dataclass_fields__})

    def to_json(self) -> dict[str, Any]:
        """What ``read`` takes apart, with the checksum that it tests."""
        raw = {"schema": SCHEMA, **dataclasses.asdict(self)}
        del raw["path"]
        raw.update(evaluated=sorted(self.evaluated), probes=sorted(self.probes))
        return {**raw, "sha256": _checksum(raw)}

    def covers(self, wish: Wish) -> bool:
        """Whether nothing is left to do for a wish."""
        if not wish.probes <= self.probes:
            return False
        if self.status == "diverged":
            return self.rounds <= wish.rounds
        return self.rounds >= wish.rounds and wish.evaluated <= self.evaluated


@lru_cache(1000)
def _evaluated(rounds: int, every: int) -> frozenset[int]:
    """The evaluated rounds; the runs of a plan share the few sets that there are."""
    return frozenset((*range(every, rounds + 1, every), rounds))


def _checksum(raw: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical_json(raw).encode()).hexdigest()
