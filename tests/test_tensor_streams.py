"""Random numbers of hooks: SplitMix64, other numbers for every key, the same bits for one client and in a stack."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor
from torch.func import vmap

from flbench.tensor_streams import Random, client_keys, generated, server_key
from tests.splitmix import ALL, key_of, normals, splitmix, uniforms


def test_the_generator_is_splitmix() -> None:
    """With the numbers of ``splitmix64.c`` for the seed 0, which is what 0 mixes to."""
    assert [one % ALL for one in generated(torch.tensor(0), 5).tolist()] == splitmix(0, 5)
    assert splitmix(0, 3) == [16294208416658607535, 7960286522194355700, 487617019471545679]


#: A dtype, the digits of its numbers below 1, and the error of its normal numbers.
PRECISIONS = [(torch.float64, 53, 1e-14), (torch.float32, 24, 2e-6)]


@pytest.mark.parametrize(("dtype", "digits", "error"), PRECISIONS)
def test_numbers_by_hand(dtype: torch.dtype, digits: int, error: float) -> None:
    (key,) = client_keys(5, torch.tensor([7]), 3)
    like, random = torch.empty(2, 3, dtype=dtype), Random(key, step=4)
    own = key_of(5, 7, 3, "noise", 4)
    assert random.uniform("noise", like).flatten().tolist() == uniforms(own, 6, digits)
    expected = normals(own, 6, digits)
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


@pytest.mark.parametrize("draw", ["normal", "uniform"])
def test_what_cannot_be_drawn_is_one_clear_error(draw: str) -> None:
    like = torch.empty(2)
    for given, problem in (
        ((3, like), "is a string such as 'noise', got int: ctx.random.normal(purpose, like)"),
        ((like, "noise"), "is a string such as 'noise', got Tensor of torch.float32"),
        (("noise", (2, 3)), "like a tensor of floating-point numbers, got tuple"),
        (("noise", like.long()), "like a tensor of floating-point numbers, got Tensor of torch.int64"),
    ):
        with pytest.raises(TypeError, match=re.escape(problem)):
            getattr(Random(3), draw)(*given)
