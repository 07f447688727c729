"""What a run is wanted to reach, and what it reached."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sys
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from flbench.config import EvaluatedRounds, Experiment, asks_why, canonical_json
from flbench.store import files
from flbench.store.files import SCHEMA


@dataclass(frozen=True)
class Wish:
    """How far a run is wanted, and what is to be recorded on the way."""

    rounds: int
    evaluated: Set[int]
    probes: frozenset[str]

    @classmethod
    def of(cls, experiment: Experiment | Mapping[str, Any]) -> Wish:
        """The wish in an experiment, typed or as its plain JSON."""
        raw = experiment if isinstance(experiment, Mapping) else experiment.to_json()
        probes = frozenset(canonical_json(probe) for probe in raw.get("probes", ()))
        evaluated = EvaluatedRounds(raw["rounds"], raw["eval_every"], asks_why(raw))
        return cls(raw["rounds"], evaluated, probes)

    def until(self, round: int) -> set[int]:
        """The evaluated rounds up to and including a round."""
        return {wanted for wanted in self.evaluated if wanted <= round}


@dataclass(frozen=True, slots=True)
class Result:
    """A published result: what a run reached, and the checksum of the metrics that show it.

    A report holds 100,000 of them: what many have in common is one object, and ``file`` is a text, since a path takes
    four times its room.
    """

    file: str
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
    def read(cls, file: str) -> Result | None:
        """The result in a file, None where it is damaged; raises StoreUnusable where a newer flbench wrote it."""
        data = files.read_bytes(file)
        raw = None if data is None else files.parse_object(data, file)
        if data is None or raw is None:
            return None
        if raw.pop("sha256", None) not in _checksums(data, raw):
            return None
        raw.update({name: _shared(tuple(raw[name])) for name in ("evaluated", "probes")}, file=file)
        raw.update({name: _shared_object(raw[name]) for name in ("numerics", "environment")})
        raw.update({name: sys.intern(raw[name]) for name in ("status", "fingerprint")})
        raw["final"] = {sys.intern(name): value for name, value in raw["final"].items()}
        return cls(**{name: raw[name] for name in cls.__dataclass_fields__})

    @property
    def path(self) -> Path:
        """Where it was published."""
        return Path(self.file)

    def to_json(self) -> dict[str, Any]:
        """What ``read`` takes apart, with the checksum that it tests."""
        raw: dict[str, Any] = json.loads(self.to_bytes())
        return raw

    def to_bytes(self) -> bytes:
        """The content of its file: canonical JSON, and behind it the checksum of what comes before."""
        raw = {"schema": SCHEMA, **dataclasses.asdict(self)}
        del raw["file"]
        raw.update(evaluated=sorted(self.evaluated), probes=sorted(self.probes))
        body = canonical_json(raw).encode()
        return body[:-1] + b',"sha256":"%b"}\n' % hashlib.sha256(body).hexdigest().encode()

    def without_numbers(self) -> Result:
        """What tells this result from others, for those who keep 100,000 of them."""
        return dataclasses.replace(self, final={}, numerics={}, environment={})

    def eval_every(self) -> int:
        """Rounds between its evaluations, as far as they tell."""
        return min((round for round in self.evaluated if round), default=max(1, self.rounds))

    def covers(self, wish: Wish) -> bool:
        """Whether nothing is left to do for a wish."""
        if not wish.probes <= self.probes:
            return False
        if self.status == "diverged":
            return self.rounds <= wish.rounds
        return self.rounds >= wish.rounds and wish.evaluated <= self.evaluated


@lru_cache(1000)
def _shared(items: tuple[Any, ...]) -> frozenset[Any]:
    """A set of some items; equal ones are one object."""
    return frozenset(items)


def _shared_object(value: dict[str, Any]) -> dict[str, Any]:
    """The object itself, or one that is equal and was met before."""
    try:
        return _object_of(tuple(value.items()))
    except TypeError:  # what it holds is not hashable
        return value


@lru_cache(1000)
def _object_of(items: tuple[tuple[str, Any], ...]) -> dict[str, Any]:
    return dict(items)


def _checksums(data: bytes, raw: Mapping[str, Any]) -> Iterator[str]:
    """The checksum of a result's file as it is written (which costs nothing to find), then as it was once written."""
    body, found, _ = data.rpartition(b',"sha256":"')
    if found:
        yield hashlib.sha256(body + b"}").hexdigest()
    yield hashlib.sha256(canonical_json(raw).encode()).hexdigest()
