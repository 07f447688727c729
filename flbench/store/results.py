"""What is requested of a run, and what it reached."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import sys
from collections.abc import Mapping, Set
from dataclasses import dataclass
from functools import cache, lru_cache
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError

from flbench.config import (
    MAX_ROUNDS,
    EvaluatedRounds,
    Experiment,
    canonical_json,
    content_of,
    evaluated_at_start,
    plugins_of,
)
from flbench.store import files, strict_json
from flbench.store.records import MOST, check_record
from flbench.store.strict_json import SCHEMA


@dataclass(frozen=True)
class RunRequest:
    """How many rounds of a run are requested, and what to record.

    Attributes:
        rounds: the last round.
        evaluated: the rounds after which to evaluate.
        probes: the probes, and the steps of fine-tuning if there are any, as canonical JSON.
        content: the fingerprint of the data that the run is defined on; None: any.
        plugins: the source code of the plug-ins that it uses, as ``config.plugins_of`` returns it.
    """

    rounds: int
    evaluated: Set[int]
    probes: frozenset[str]
    content: str | None = None
    plugins: str = ""

    @classmethod
    def of(cls, experiment: Experiment | Mapping[str, Any] | RunRequest) -> RunRequest:
        """Return the request in an experiment, typed or as its plain JSON; a request as it is."""
        if isinstance(experiment, RunRequest):
            return experiment
        raw = experiment if isinstance(experiment, Mapping) else experiment.to_json()
        steps = raw.get("finetune", 0)
        measured = [*raw.get("probes", ()), *([{"finetune": steps}] if steps else [])]
        probes = frozenset(map(canonical_json, measured))
        evaluated = EvaluatedRounds(raw["rounds"], raw["eval_every"], evaluated_at_start(raw))
        return cls(raw["rounds"], evaluated, probes, content_of(raw), plugins_of(raw))

    def until(self, round: int) -> set[int]:
        """Return the evaluated rounds up to and including a round."""
        return {wanted for wanted in self.evaluated if wanted <= round}


def changed_plugins(environment: Mapping[str, Any], plugins: str) -> list[str]:
    """Return the names of those of ``plugins`` (``config.plugins_of``) that were computed with other source code.

    An environment that names no plug-ins was recorded without any: nothing is known to have changed since.
    """
    if "plugins" not in environment:
        return []
    changed = {*plugins.split()} - {*str(environment["plugins"]).split()}
    return sorted(plugin.partition("=")[0] for plugin in changed)


#: Fields of an environment that concern the machine's user rather than the numbers; they do not leave the store.
PRIVATE = frozenset({"host", "argv", "cuda_visible_devices"})

#: The field of a result's environment that names who contributed it.
CONTRIBUTED_BY = "contributed_by"


def without_private(environment: Mapping[str, Any]) -> dict[str, Any]:
    """Return what may leave the store of an environment in which a run was computed."""
    return {name: value for name, value in environment.items() if name not in PRIVATE and is_plain(value)}


@lru_cache(1000)
def _shared(items: frozenset[Any]) -> frozenset[Any]:
    """Return a set of these items; equal sets are one object."""
    return items


#: The types of a fact: a text, a number, true, false or nothing.
_PLAIN = (str, int, float, type(None))


def is_plain(value: object) -> bool:
    """Return whether this may be a fact."""
    return isinstance(value, _PLAIN)


def shared_facts(value: dict[str, Any]) -> dict[str, Any]:
    """Return these facts as an object that equal facts share; raises ValueError where a value is no plain one."""
    if len(value) > MOST_FACTS:
        raise ValueError(f"expected at most {MOST_FACTS} facts, got {len(value):,}")
    names, items = tuple(value), tuple(value.values())
    types = tuple(map(type, items))
    if not _are_plain(types):
        strange = next(name for name, item in value.items() if not is_plain(item))
        raise ValueError(f"{strange:.40}: expected a plain value")
    return _object_of(names, items, types)


@lru_cache(1000)
def _are_plain(types: tuple[type, ...]) -> bool:
    return all(issubclass(kind, _PLAIN) for kind in types)


@lru_cache(1000)
def _object_of(names: tuple[str, ...], items: tuple[Any, ...], types: tuple[type, ...]) -> dict[str, Any]:
    """Return the facts; ``types`` tell values apart that are equal, such as 1 and 1.0."""
    return dict(zip(names, items, strict=True))


@lru_cache(1000)
def _rounds_of(items: tuple[int, ...]) -> frozenset[int]:
    """Return these rounds as a set; raises ValueError where one is out of range."""
    if items and not 0 <= min(items) <= max(items) <= MAX_ROUNDS:
        raise ValueError(f"expected rounds from 0 to {MAX_ROUNDS}")
    return _shared(frozenset(items))


#: Most facts about what a run was computed with; flbench writes 20.
MOST_FACTS = 100

#: A count in a file that anybody may have written.
Count = Annotated[int, Field(ge=0, le=MOST, strict=True)]

#: A round, or a number of rounds.
Round = Annotated[int, Field(ge=0, le=MAX_ROUNDS, strict=True)]

#: Plain values by name: versions, devices.
Facts = Annotated[dict[str, Any], AfterValidator(shared_facts)]

#: The numbers of training and test images, as a result has them.
_SAMPLES = re.compile(r"([1-9][0-9]{0,11})/([1-9][0-9]{0,11})")


def _with_samples(facts: dict[str, Any]) -> dict[str, Any]:
    """Return the facts; raises ValueError where ``samples``, with which reports compute, are no two counts."""
    if "samples" in facts and not _SAMPLES.fullmatch(str(facts["samples"])):
        raise ValueError(f"samples: expected two counts of images, as in '1442/355', got {facts['samples']!r:.40}")
    return facts


def known_samples(experiment: Experiment, fingerprint: str | None) -> tuple[int, int] | None:
    """Return the images in train and test of the data with a fingerprint; None unless they are the official ones."""
    dataset = getattr(experiment, "dataset", None)
    return dataset.counts if dataset is not None and fingerprint == dataset.official else None


@dataclass(frozen=True, slots=True)
class Result:
    """A published result: what a run reached, and the checksum of the metrics that show it.

    A report holds 100,000 of them: equal values share one object, and ``file`` is a text, because a path takes four
    times as much memory.
    """

    file: str
    run_id: str
    status: Literal["done", "diverged"]
    rounds: Round
    wanted: Round
    evaluated: Annotated[frozenset[Round], AfterValidator(_shared)]
    probes: Annotated[frozenset[str], AfterValidator(_shared)]
    final: Annotated[dict[str, Any], AfterValidator(lambda raw: check_record(raw) if raw else raw)]
    metrics_sha256: str
    metrics_bytes: Count
    attempt: Count
    seconds: Annotated[float, Field(ge=0, strict=True)]
    fingerprint: Annotated[str, AfterValidator(sys.intern)]
    numerics: Facts
    environment: Annotated[Facts, AfterValidator(_with_samples)]
    published: str

    @classmethod
    def read(cls, file: str) -> Result | None:
        """Return the result in a file, None where it is damaged; raises StoreUnusable if a newer flbench wrote it."""
        data = files.read_bytes(file)
        raw = None if data is None else strict_json.parse_object(data, file)
        if data is None or raw is None:
            return None
        checksum = raw.pop("sha256", None)
        # The bytes as they are written now, which is cheap to check; earlier versions wrote other white space.
        body, found, _ = data.rpartition(b',"sha256":"')
        fits = found and hashlib.sha256(body + b"}").hexdigest() == checksum
        if not fits and hashlib.sha256(canonical_json(raw).encode()).hexdigest() != checksum:
            return None
        try:
            return cls.parse(raw, file)
        except ValueError:
            return None

    @classmethod
    def parse(cls, raw: Mapping[str, Any], file: str) -> Result:
        """Return the result in plain JSON without a checksum; raises ValueError where a field does not fit."""
        fields = {**raw, "file": file}
        if unknown := fields.keys() ^ _NAMES:
            raise ValueError(f"{min(unknown):.40}: missing, or unknown")
        del fields["schema"]
        try:
            result = _usual(fields) or validated(fields)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise ValueError(f"{where:.80}: {first['msg']}, got {first['input']!r:.40}") from None
        if not max(result.evaluated, default=0) <= result.rounds <= result.wanted:
            raise ValueError(
                f"rounds: {result.rounds} of {result.wanted}, evaluated up to {max(result.evaluated, default=0)}"
            )
        return result

    def without_details(self) -> Result:
        """Return the result without its final record, numerics and environment, which take the most memory."""
        fields = dict(zip(_FIELDS, _values_of(self), strict=True))
        return Result(**{**fields, "final": {}, "numerics": {}, "environment": {}})

    @property
    def path(self) -> Path:
        """The file as a path."""
        return Path(self.file)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON of its file, with the checksum."""
        raw: dict[str, Any] = json.loads(self.to_bytes())
        return raw

    def to_bytes(self) -> bytes:
        """Return the content of its file: canonical JSON that ends with its checksum."""
        raw = {"schema": SCHEMA, **dataclasses.asdict(self)}
        del raw["file"]
        raw.update(evaluated=sorted(self.evaluated), probes=sorted(self.probes))
        body = canonical_json(raw).encode()
        return body[:-1] + b',"sha256":"%b"}\n' % hashlib.sha256(body).hexdigest().encode()

    @property
    def samples(self) -> tuple[int, int] | None:
        """The numbers of training and test images; None where an earlier version did not record them."""
        found = _SAMPLES.fullmatch(str(self.environment.get("samples")))
        return (int(found[1]), int(found[2])) if found else None

    def contradicts(self, experiment: Experiment) -> str | None:
        """Return how the result contradicts what is known of the data that its experiment names; None if not at all."""
        known = known_samples(experiment, self.fingerprint)
        if known is None or self.samples is None or self.samples == known:
            return None
        return "it names {}/{} images in train and test, its data set has {}/{}".format(*self.samples, *known)

    def eval_every(self) -> int:
        """Return the rounds between its evaluations, as far as the evaluated rounds show."""
        return min((round for round in self.evaluated if round), default=max(1, self.rounds))

    def is_of(self, request: RunRequest) -> bool:
        """Return whether it was computed on the data and with the plug-ins of a request, as far as both name them."""
        return request.content in (None, self.fingerprint) and not changed_plugins(self.environment, request.plugins)

    def lacks(self, request: RunRequest) -> tuple[bool, bool]:
        """Return whether it is not of a request (:meth:`is_of`), and whether it misses a probe of it."""
        return not self.is_of(request), not request.probes <= self.probes

    def covers(self, request: RunRequest) -> bool:
        """Return whether this result fulfils a request."""
        if any(self.lacks(request)):
            return False
        if self.status == "diverged":
            return self.rounds <= request.rounds
        return self.rounds >= request.rounds and request.evaluated <= self.evaluated


#: Names in the JSON of a result, and ``file``.
_FIELDS = tuple(field.name for field in dataclasses.fields(Result))
_NAMES = frozenset({"schema", *_FIELDS})
_values_of = attrgetter(*_FIELDS)


def validated(fields: dict[str, Any]) -> Result:
    """Return the result with these fields; raises ValidationError where one does not fit."""
    result: Result = _adapter().validate_python(fields)
    return result


@cache
def _adapter() -> TypeAdapter[Result]:
    return TypeAdapter(Result)


#: The types of the fields in the JSON of a result.
_TYPES = {
    **dict.fromkeys(("file", "run_id", "status", "metrics_sha256", "fingerprint", "published"), str),
    **dict.fromkeys(("rounds", "wanted", "metrics_bytes", "attempt"), int),
    **dict.fromkeys(("final", "numerics", "environment"), dict),
    **dict.fromkeys(("evaluated", "probes"), list),
    "seconds": float,
}


def _usual(fields: dict[str, Any]) -> Result | None:
    """Return what ``validated`` does, in a fraction of the time; None where it has to decide, as on a mistake."""
    for name, kind in _TYPES.items():
        if type(fields[name]) is not kind:
            return None
    evaluated, probes, final = fields["evaluated"], fields["probes"], fields["final"]
    fits = (
        fields["status"] in ("done", "diverged")
        and 0 <= fields["rounds"] <= MAX_ROUNDS
        and 0 <= fields["wanted"] <= MAX_ROUNDS
        and 0 <= fields["metrics_bytes"] <= MOST
        and 0 <= fields["attempt"] <= MOST
        and fields["seconds"] >= 0
        and {*map(type, evaluated)} <= {int}
        and {*map(type, probes)} <= {str}
    )
    if not fits:
        return None
    try:
        return Result(
            **{
                **fields,
                "evaluated": _rounds_of(tuple(evaluated)),
                "probes": _shared(frozenset(probes)),
                "final": check_record(final) if final else final,
                "fingerprint": sys.intern(fields["fingerprint"]),
                "numerics": shared_facts(fields["numerics"]),
                "environment": _with_samples(shared_facts(fields["environment"])),
            }
        )
    except ValueError:
        return None
