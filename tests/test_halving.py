from __future__ import annotations

from fractions import Fraction

import pytest

from flbench.halving import Ended, Halving, Race, Standing

SEARCH = Halving(("lr", "method.mu"), ((10, 30, 100),), Fraction(1, 3), "val_acc")

#: Accuracies of two seeds of seven candidates: the sixth is the best at the first rung, the fifth at the second.
FIRST = [(0.1, 0.2), (0.3, 0.3), (0.5, 0.6), (0.2, 0.3), (0.7, 0.6), (0.7, 0.8), (0.1, 0.1)]
SECOND = {2: (0.6, 0.6), 4: (0.9, 0.8), 5: (0.8, 0.8)}


def standings(first: list[tuple[float | None, ...] | None], second: dict[int, tuple[float, ...]]) -> list[Standing]:
    """Return the standings of candidates by their values at the first and the second rung; None: not ended."""

    def ended(run: tuple[int, int], rung: int) -> Ended | None:
        candidate, seed = run
        values = first[candidate] if rung == 10 else second.get(candidate)
        return None if values is None else Ended(values[seed])

    race = Race((10, 30, 100), [[(candidate, seed) for seed in range(2)] for candidate in range(len(first))])
    return SEARCH.standings(race, ended)


def kept(found: list[Standing], rung: int) -> list[int]:
    return [place for place, standing in enumerate(found) if standing.rung >= rung]


def test_candidates_may_have_different_numbers_of_seeds() -> None:
    accuracies = {"a": [0.5], "b": [0.6, 0.5, 0.4], "c": [0.7, None, 0.7], "d": [0.6]}
    race = Race((10, 30, 100), [[(name, seed) for seed in range(len(each))] for name, each in accuracies.items()])
    found = SEARCH.standings(race, lambda run, rung: Ended(accuracies[run[0]][run[1]]) if rung == 10 else None)
    assert kept(found, 30) == [0, 1, 3]  # four candidates, a third of them: two, and one that equals the second


def test_each_rung_keeps_the_best_share() -> None:
    found = standings([*FIRST], SECOND)
    assert kept(found, 30) == [2, 4, 5]
    assert [place for place, standing in enumerate(found) if standing == Standing(100)] == [4]
    assert found[5] == Standing(30, dropped=True)
    assert found[0] == Standing(10, dropped=True)


def test_a_rung_waits_for_all_of_its_race() -> None:
    assert standings([*FIRST[:6], None], {}) == [Standing(10)] * 7
    found = standings([*FIRST], {place: SECOND[place] for place in (2, 4)})
    assert [found[place] for place in (2, 4, 5)] == [Standing(30)] * 3
    assert found[0] == Standing(10, dropped=True)


def test_ties_at_a_rung_keep_both() -> None:
    tied = [*FIRST[:1], (0.6, 0.5), *FIRST[2:]]  # the sum of the third, in another order
    assert kept(standings([*tied], {}), 30) == [1, 2, 4, 5]
    rounded = [(0.1 + 0.2, 0.0), (0.3, 0.0), (0.0, 0.0)]  # 0.1 + 0.2 is not 0.3 to the last bit
    assert kept(standings([*rounded], {}), 30) == [0, 1]


def test_candidates_with_a_diverged_or_failed_seed_come_last() -> None:
    holed: list[tuple[float | None, ...] | None] = [*FIRST[:5], (0.99, None), (None, None)]
    assert kept(standings(holed, {}), 30) == [1, 2, 4]
    assert kept(standings([(None, None), (0.2, None), (0.1, None)], {}), 30) == [1]
    assert kept(standings([(None, None)] * 3, {}), 30) == [0, 1, 2]  # nothing to choose by; none has rounds left


def test_the_budget_is_that_of_the_sizes_and_at_the_end_that_of_the_standings() -> None:
    race = Race((10, 30, 100), [[0, 1]] * 7)
    assert SEARCH.expected_rounds(race) == 2 * (7 * 10 + 3 * 20 + 1 * 70)
    assert SEARCH.expected_rounds(race, standings([*FIRST], SECOND)) == 2 * (4 * 10 + 2 * 30 + 1 * 100)
    four = standings([*FIRST[:1], (0.6, 0.5), *FIRST[2:]], {})
    assert SEARCH.expected_rounds(race, four) == 2 * (3 * 10 + 4 * 30 + 1 * 70)


def test_lower_is_better_where_the_metric_says_so() -> None:
    assert Halving(("lr",), ((1, 2),), Fraction(1, 2), "loss").value({"loss": 0.5}) == -0.5
    assert SEARCH.value({"val_acc": float("nan")}) is None
    assert SEARCH.value(None) is None


def test_a_race_is_what_candidates_and_seeds_share() -> None:
    one = {"lr": 0.1, "seed": 0, "rounds": 100, "method": {"name": "fedprox", "mu": 1.0}, "norm": {"name": "ln"}}
    same = {"lr": 0.2, "seed": 1, "rounds": 100, "method": {"name": "fedprox"}, "norm": {"name": "ln"}}
    assert SEARCH.race_of(one) == SEARCH.race_of(same)
    assert SEARCH.race_of(one) != SEARCH.race_of({**one, "norm": {"name": "fn"}})
    search = Halving(SEARCH.axes, ((4, 20), (10, 30, 100)), SEARCH.keep, SEARCH.metric)
    other = {"norm": 0, "rounds": 20}
    races = search.races([("a", "1", one), ("b", "2", same), ("c", "1", {**one, "seed": 1}), ("d", "3", other)])
    assert races == [Race((10, 30, 100), [["a", "c"], ["b"]]), Race((4, 20), [["d"]])]


def test_json_is_read_back_or_refused() -> None:
    assert Halving.from_json(SEARCH.to_json()) == SEARCH
    for wrong in (
        {"keep": "2"},
        {"rungs": [[30, 10]]},
        {"rungs": [[]]},
        {"rungs": [10, 30]},
        {"metric": "luck"},
        {"rungs": []},
        {"keep": []},
    ):
        with pytest.raises((ValueError, TypeError)):
            Halving.from_json({**SEARCH.to_json(), **wrong})
