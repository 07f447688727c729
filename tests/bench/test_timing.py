from __future__ import annotations

import pytest
import torch

from flbench.bench import timing
from flbench.bench.timing import CHANNELS_LAST, FLBENCH, PLAIN, Comparison, Spread, Variant, compare, take_turns
from flbench.data.random_images import random_data
from tests.bench.test_loop import experiment


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)  # tiny problems are too small for several threads


def silent(what: str, done: int, total: int) -> None:
    """Show no progress."""


def test_variants_take_turns_and_settings_are_restored() -> None:
    calls: list[tuple[str, int]] = []

    def variant(name: str, **options: int) -> Variant:
        return Variant(name, lambda: calls.append((name, torch.get_num_threads())), **{"rounds": 1, **options})

    turns: list[tuple[str, int, int]] = []
    before = torch.get_num_threads()
    variants = [variant("a", rounds=2, torch_threads=before + 1), variant("b")]
    seconds = take_turns(variants, repeats=2, note=lambda *turn: turns.append(turn))
    a, b = ("a", before + 1), ("b", 1)
    assert calls == [a, b, a, a, b, a, a, b]  # one round each to warm up
    assert torch.get_num_threads() == before
    assert {name: len(each) for name, each in seconds.items()} == {"a": 2, "b": 2}
    assert turns == [(name, number, 6) for number, name in enumerate("ababab")]
    with pytest.raises(ZeroDivisionError):
        take_turns([Variant("broken", lambda: 1 / 0, torch_threads=before + 1)], repeats=1, note=silent)
    assert torch.get_num_threads() == before
    assert Spread.of([3.0, 1.0, 2.0]) == Spread(median=2.0, min=1.0, max=3.0, n=3)
    assert Spread.of([3.0, 1.0]).times(10) == Spread(20.0, 10.0, 30.0, 2)


def test_seconds_are_those_of_one_run_and_of_the_given_clock() -> None:
    now = iter(range(100))
    seconds = take_turns([Variant("three", lambda: None, runs=2, rounds=5)], repeats=2, clock=lambda: float(next(now)))
    assert seconds == {"three": [0.1, 0.1]}  # 1 s a turn of 5 rounds of 2 runs


def test_a_turn_has_as_many_rounds_as_fill_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "TURN", 8.0)
    calls: list[int] = []
    now = iter(range(0, 1000, 2))  # each timed call takes 2 s
    seconds = take_turns([Variant("a", lambda: calls.append(1))], repeats=1, clock=lambda: float(next(now)))
    assert seconds == {"a": [0.5]} and len(calls) == 1 + 1 + 4  # to warm up, to estimate, and a turn


def measured(**fields: object) -> Comparison:
    data = random_data((1, 8, 8), 10, train=200)
    return compare(
        experiment(partition="iid", local_steps=2, **fields), data, device="cpu", threads=1, repeats=2, note=silent
    )


def test_flbench_is_compared_with_the_faster_plain_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    stacked = f"{FLBENCH}, 10 runs together"
    seconds = {FLBENCH: [2.0, 1.0], stacked: [1.0, 0.5], PLAIN: [4.0, 5.0], CHANNELS_LAST: [6.0, 3.0]}
    monkeypatch.setattr(timing, "take_turns", lambda variants, **_: {one.name: seconds[one.name] for one in variants})
    done = measured()
    assert (done.executor, done.runs, done.seconds) == ("stacked", 10, seconds)
    assert done.speed == {FLBENCH: Spread(2.5, 2.0, 3.0, 2), stacked: Spread(5.0, 4.0, 6.0, 2)}


def test_a_comparison_restores_tf32_settings() -> None:
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    done = measured(precision="tf32", method="scaffold", norm="ln")
    assert [len(own) for own in done.seconds.values()] == [2] * 4
    assert (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32) == before
