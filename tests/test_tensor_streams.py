"""Random numbers of hooks: SplitMix64, other numbers for every key, the same bits for one client and in a stack."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor
from torch.func import vmap

from flbench.streams import code
from flbench.tensor_streams import Random, client_keys, generated, server_key

ALL = 2**64


def splitmix(key: int, count: int) -> list[int]:
    """Return numbers of the generator as its authors write it, seeded with the mixed key."""

    def mix(bits: int) -> int:
        bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9 % ALL
        bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB % ALL
        return bits ^ (bits >> 31)

    return [mix((mix(key) + number * 0x9E3779B97F4A7C15) % ALL) for number in range(1, count + 1)]


def key_of(seed: int, client: int, round: int, purpose: str, step: int) -> int:
    start = code(f"client of seed {seed}") + 0x9E3779B97F4A7C15 * client + 0xD1B54A32D192ED03 * round
    return start % ALL ^ code(f"{purpose}, step {step}")


def test_the_generator_is_splitmix() -> None:
    """With the numbers of ``splitmix64.c`` for the seed 0, which is what 0 mixes to."""
    assert [one % ALL for one in generated(torch.tensor(0), 5).tolist()] == splitmix(0, 5)
    assert splitmix(0, 3) == [16294208416658607535, 7960286522194355700, 487617019471545679]


@pytest.mark.parametrize(("dtype", "digits", "error"), [(torch.float64, 53, 1e-14), (torch.float32, 24, 2e-6)])
def test_numbers_by_hand(dtype: torch.dtype, digits: int, error: float) -> None:
    (key,) = client_keys(5, torch.tensor([7]), 3)
    like, random = torch.empty(2, 3, dtype=dtype), Random(key, step=4)
    bits = splitmix(key_of(5, 7, 3, "noise", 4), 12)
    share = [(number >> (64 - digits)) / 2**digits for number in bits]
    assert random.uniform("noise", like).flatten().tolist() == share[:6]
    pairs = zip(share[:6], share[6:], strict=True)
    expected = [math.sqrt(-2 * math.log(1 - u)) * math.cos(2 * math.pi * v) for u, v in pairs]
    found = random.normal("noise", like)
    assert found.dtype == dtype and found.shape == (2, 3)
    assert found.flatten().tolist() == pytest.approx(expected, rel=0, abs=error)


def test_every_key_draws_its_own_numbers() -> None:
    like = torch.empty(4, dtype=torch.float64)
    drawn = [
        tuple(Random(key, step).uniform(purpose, like).tolist())
        for seed, round in itertools.product((0, 1), (0, 1))
        for key in (*client_keys(seed, torch.tensor([0, 1]), round), server_key(seed, round))
        for step, purpose in itertools.product((-1, 0, 1), ("a", "b"))
    ]
    assert len(set(drawn)) == len(drawn) == 2 * 2 * 3 * 3 * 2


def test_a_round_that_is_a_tensor_has_the_same_keys() -> None:
    for round in (0, 3, 10**6):
        clients, tensor = torch.arange(3), torch.tensor(float(round))
        assert client_keys(1, clients, tensor).tolist() == client_keys(1, clients, round).tolist()
        assert int(server_key(1, tensor)) == server_key(1, round)


def test_the_moments() -> None:
    like = torch.empty(200_000, dtype=torch.float64)
    uniform, normal = Random(3).uniform("a", like), Random(3).normal("a", like)
    assert float(uniform.min()) >= 0 and float(uniform.max()) < 1
    close = 4 / math.sqrt(len(like))  # standard errors of the means
    for power, mean, spread in ((1, 0, 1), (2, 1, math.sqrt(2)), (4, 3, math.sqrt(96))):
        assert abs(float((normal**power).mean()) - mean) < close * spread
    counts = torch.histc(uniform, 100, 0, 1)
    assert float(((counts - 2000) ** 2 / 2000).sum()) < 160, "chi-square with 99 degrees of freedom: p = 0.0001"


def draws(key: Tensor, like: Tensor) -> Tensor:
    return torch.stack([Random(key, 2).normal("a", like), Random(key, 2).uniform("b", like)])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("shape", [(), (5,), (3, 7)])
def test_a_stack_has_the_bits_of_its_clients(shape: Sequence[int], dtype: torch.dtype) -> None:
    keys = client_keys(0, torch.arange(13), 1)
    alone = torch.stack([draws(key, torch.empty(shape, dtype=dtype)) for key in keys])
    mapped = vmap(draws)(keys, torch.empty(13, *shape, dtype=dtype))
    assert torch.equal(mapped, alone)
    for places in (13, 1):  # of a leaf that all clients share, too
        last = draws(keys, torch.empty(*shape, places, dtype=dtype))
        assert torch.equal(last.movedim(-1, 0), alone)
