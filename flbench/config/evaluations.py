"""When a run is evaluated, and how many rounds and evaluations it may have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from itertools import chain
from typing import Any

#: Most rounds of a run. Result files are named by eight digits, and 10**7 rounds already take an hour or more.
MAX_ROUNDS = 10**7

#: Most evaluations of a run. Each is a line of about 500 bytes in ``metrics.jsonl``, which readers load whole.
MAX_EVALUATIONS = 100_000


@dataclass(frozen=True, slots=True, eq=False)
class EvaluatedRounds(Set[int]):
    """The rounds after which a run is evaluated, every ``every`` rounds and the last, as a set of constant size.

    Attributes:
        rounds: the last round, which is always evaluated.
        every: rounds between two evaluations, at least 1.
        before_the_first: whether round 0, the state before training, is evaluated as well.

    >>> list(EvaluatedRounds(rounds=7, every=3, before_the_first=True))
    [0, 3, 6, 7]
    """

    rounds: int
    every: int
    before_the_first: bool

    @property
    def _regular(self) -> range:
        return range(0 if self.before_the_first else self.every, self.rounds + 1, self.every)

    def __contains__(self, round: object) -> bool:
        return round == self.rounds or round in self._regular

    def __iter__(self) -> Iterator[int]:
        regular = self._regular
        return chain(regular, () if self.rounds in regular else (self.rounds,))

    def __le__(self, other: Set[Any]) -> bool:
        """Return whether the rounds are among others; in C, because ``status`` asks this for every run of a store."""
        return other.issuperset(self) if isinstance(other, frozenset) else Set.__le__(self, other)

    def __len__(self) -> int:
        regular = self._regular
        return len(regular) + (self.rounds not in regular)

    def __hash__(self) -> int:
        return self._hash()

    @classmethod
    def _from_iterable(cls, rounds: Iterable[Any]) -> frozenset[Any]:
        """Make the result of set operations a plain set."""
        return frozenset(rounds)


def too_many_evaluations(rounds: int, eval_every: int) -> str | None:
    """Return why this is more than a run may have, or None."""
    if rounds // eval_every <= MAX_EVALUATIONS:
        return None
    fewest = -(-rounds // MAX_EVALUATIONS)
    return (
        f"every {eval_every:,} of {rounds:,} rounds is more than the {MAX_EVALUATIONS:,} evaluations that a run may "
        f"have: use at least {fewest:,}"
    )


def request_problem(raw: Mapping[str, Any]) -> str | None:
    """Return what is wrong with the request fields of an experiment as plain JSON, or None."""
    for field, least in (("rounds", 0), ("eval_every", 1)):
        value = raw.get(field)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= MAX_ROUNDS:
            return f"{field}: expected a whole number from {least} to {MAX_ROUNDS}, got {value!r:.40}"
    if not isinstance(steps := raw.get("finetune", 0), int) or isinstance(steps, bool) or steps < 0:
        return f"finetune: expected a number of steps, got {steps!r:.40}"
    if not isinstance(raw.get("probes", []), list):
        return f"probes: expected a list, got {raw['probes']!r:.40}"
    problem = too_many_evaluations(raw["rounds"], raw["eval_every"])
    return f"eval_every: {problem}" if problem else None


def evaluated_at_start(raw: Mapping[str, Any]) -> bool:
    """Return whether an experiment (plain JSON) is also evaluated before its first round: studies, and with probes."""
    return bool(raw.get("probes", True))
