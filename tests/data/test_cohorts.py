"""Samplers of cohorts: what they draw, how often, what they refuse, and their part of a run's id."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import permutations
from typing import Any, ClassVar

import numpy as np
import pytest

from flbench.config import InvalidExperiment, parse_experiment
from flbench.data.cohorts.base import Population, Sampler, cohort_of
from flbench.errors import UserError
from flbench.registry import SAMPLERS
from flbench.streams import stream

ROUNDS = 4000

#: Samples of four clients by class: 10, 20, 30 and 40; most are of class 0, 1, 0 and 1.
COUNTS = np.array([[7, 3], [0, 20], [16, 14], [19, 21]])


def cohorts(sampler: Any, participation: float, rounds: int = ROUNDS) -> list[list[int]]:
    chosen: Sampler = SAMPLERS.parse(sampler)
    return [cohort_of(chosen, Population(COUNTS, participation, 3), round).tolist() for round in range(rounds)]


def joined(drawn: list[list[int]]) -> np.ndarray[Any, Any]:
    """Return the share of the rounds in which each client took part."""
    return np.bincount(np.concatenate(drawn), minlength=4) / len(drawn)


@pytest.mark.parametrize("sampler", ["uniform", "bernoulli", "cyclic:2", "skewed:2", {"name": "skewed", "by": "size"}])
def test_a_cohort_depends_on_seed_and_round_alone(sampler: Any) -> None:
    share = 0.25 if sampler == "cyclic:2" else 0.5
    once, again = (cohorts(sampler, share, 20) for _ in range(2))
    assert once == again and len(set(map(tuple, once))) > 2
    chosen: Sampler = SAMPLERS.parse(sampler)
    assert once != [cohort_of(chosen, Population(COUNTS, share, 4), round).tolist() for round in range(20)]


def test_uniform_cohorts_are_those_of_earlier_versions() -> None:
    expected = [sorted(stream(3, "cohort", round).choice(4, 2, replace=False).tolist()) for round in range(50)]
    assert cohorts("uniform", 0.5, 50) == expected
    assert cohorts("uniform", 1.0, 1) == [[0, 1, 2, 3]]


@pytest.mark.parametrize("share", [0.25, 0.5, 1.0])
def test_bernoulli_clients_join_independently_and_no_cohort_is_empty(share: float) -> None:
    drawn, filled = cohorts("bernoulli", share), 1 - (1 - share) ** 4
    assert all(drawn)
    np.testing.assert_allclose(joined(drawn), np.full(4, share / filled), atol=0.03)
    both = sum(0 in one and 3 in one for one in drawn) / ROUNDS
    assert both == pytest.approx(share**2 / filled, abs=0.03)


@pytest.mark.parametrize("by", ["random", "class"])
def test_groups_take_turns(by: str) -> None:
    drawn = cohorts({"name": "cyclic", "groups": 2, "by": by}, 0.25)
    groups = [{client for one in drawn[turn::2] for client in one} for turn in (0, 1)]
    assert groups[0] | groups[1] == {0, 1, 2, 3} and not groups[0] & groups[1]
    assert [len(one) for one in drawn] == [1] * ROUNDS
    np.testing.assert_allclose(joined(drawn), np.full(4, 0.25), atol=0.03)
    if by == "class":
        assert groups == [{0, 2}, {1, 3}]


def successive(weights: list[float], size: int) -> np.ndarray[Any, Any]:
    """Return how likely each client is in a cohort that is drawn one by one in proportion to the weights."""
    joins = np.zeros(len(weights))
    for order in permutations(range(len(weights)), size):
        left, chance = sum(weights), 1.0
        for client in order:
            chance, left = chance * weights[client] / left, left - weights[client]
        joins[list(order)] += chance
    return joins


@pytest.mark.parametrize("share", [0.25, 0.5])
def test_skewed_cohorts_are_drawn_one_by_one(share: float) -> None:
    by_size = joined(cohorts({"name": "skewed", "by": "size", "power": 2.0}, share))
    np.testing.assert_allclose(by_size, successive([1, 4, 9, 16], int(4 * share)), atol=0.03)
    by_rank = joined(cohorts("skewed:2", share))
    np.testing.assert_allclose(
        sorted(by_rank), sorted(successive([1, 1 / 4, 1 / 9, 1 / 16], int(4 * share))), atol=0.03
    )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"cohort": "bernouli"}, "unknown cohort 'bernouli'; did you mean 'bernoulli'"),
        ({"cohort": "cyclic"}, "groups"),
        ({"cohort": "cyclic:1"}, "at least 2"),
        ({"cohort": "cyclic:4"}, r"participation: cyclic:4: 4 groups of 10 clients have 2 or more each.*at most 0.2"),
        ({"cohort": "cyclic:20", "participation": 0.1}, "use at most 10 groups"),
        ({"cohort": "bernoulli", "participation": 0.05}, r"less than one in a round on average.*at least 0.1"),
        ({"cohort": "skewed:0"}, "greater than 0"),
        ({"cohort": {"name": "skewed", "by": "weight"}}, "rank"),
    ],
)
def test_refusals(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidExperiment, match=message):
        parse_experiment(fields)


def test_ids() -> None:
    def run_id(**fields: Any) -> str:
        return parse_experiment(fields).run_id

    assert run_id() == run_id(cohort="uniform") == run_id(cohort="bernoulli") == run_id(cohort="skewed:2")
    assert run_id(participation=0.5) == run_id(participation=0.52, cohort="uniform")
    shares = [run_id(cohort="bernoulli", participation=share) for share in (0.5, 0.52)]
    assert len({run_id(participation=0.5), *shares, run_id(cohort="skewed:2", participation=0.5)}) == 4
    experiment = parse_experiment({"cohort": "cyclic:2", "participation": 0.5})
    assert parse_experiment(experiment.to_json()).run_id == experiment.run_id


@dataclass(frozen=True)
class Mistaken(Sampler):
    """Returns what it is given."""

    varies: ClassVar[bool] = True
    what: Any = None

    def cohort(self, population: Population, round: int) -> Any:
        return self.what


@dataclass(frozen=True)
class OfOneSize(Mistaken):
    """Claims that the size does not vary."""

    varies: ClassVar[bool] = False


@pytest.mark.parametrize("what", [[], [2, 1], [1, 1], [-1, 0], [4], [[0, 1]], [0.0, 1.0], ["a"]])
def test_what_a_plug_in_returns_is_checked(what: Any) -> None:
    Mistaken.name = OfOneSize.name = "mistaken"
    kinds: list[tuple[Callable[..., Sampler], Any, str]] = [
        (Mistaken, what, "at least one of the clients 0 to 3"),
        (OfOneSize, [0], r"test_cohorts\.py:\d+: the hook cohort of the sampler 'mistaken' must return 2 of"),
    ]
    for kind, value, message in kinds:
        with pytest.raises(UserError, match=message):
            cohort_of(kind(value), Population(COUNTS, 0.5, 0), 7)
