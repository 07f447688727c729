"""The compiled sum of changes against torch's."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from flbench.engine import tree_sums
from flbench.engine.tree_sums import add_changes, add_weighted
from flbench.methods.base import Tree
from flbench.native.build import native
from tests.native.test_products import compiled_for

#: Whole vectors, and those that end within one: large enough for torch's loops over registers and over the rest.
SHAPES = {
    "conv": (32, 16, 3, 3),
    "one": (4, 4, 1, 1),
    "bias": (64,),
    "odd": (7, 5, 3, 3),
    "head": (10, 37),
    "0-d": (),
}


def tree(dtype: torch.dtype, *lead: int, last: bool) -> Tree:
    """Numbers of very different sizes, among them zeros and an infinite one; ``last``: channels last."""

    def leaf(shape: tuple[int, ...]) -> Tensor:
        moves = last and len(shape) == 4
        shape = (*lead, *((shape[0], *shape[2:], shape[1]) if moves else shape))
        values = torch.randn(shape, dtype=dtype) * 10.0 ** torch.randint(-25, 10, shape)
        values.view(-1)[::7] = 0.0
        values.view(-1)[5:6] = torch.inf
        return values.movedim(-1, len(lead) + 1) if moves else values

    return {name: leaf(shape) for name, shape in SHAPES.items()}


@pytest.mark.parametrize("cpu", ["this CPU", "8 floats", "4 floats", "none"])
@pytest.mark.parametrize("clients", [1, 3])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_compiled_and_torch_have_the_same_bits(
    cpu: str, clients: int, last: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    function = None if cpu == "none" else compiled_for(cpu, monkeypatch, "changes", "add")
    monkeypatch.setattr(tree_sums, "native", lambda *_: function)
    before, total = tree(dtype, last=last), tree(dtype, last=last)
    after = tree(dtype, clients, last=last)
    weights, expected = torch.rand(clients, dtype=torch.float64), {name: leaf.clone() for name, leaf in total.items()}
    add_weighted(expected, {name: after[name] - leaf for name, leaf in before.items()}, weights)
    add_changes(total, after, before, weights)
    for name, leaf in total.items():
        torch.testing.assert_close(leaf, expected[name], rtol=0, atol=0, equal_nan=True)


def test_a_compiled_function_adds_the_large_leaves_of_both_layouts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert native("changes", "add") is not None
    by_torch: list[str] = []
    monkeypatch.setattr(tree_sums, "add_weighted", lambda total, *_: by_torch.extend(total))
    for last in (False, True):
        one = tree(torch.float32, last=last)
        add_changes(one, {name: leaf.unsqueeze(0) for name, leaf in one.items()}, one, torch.ones(1))
    assert sorted({*by_torch}) == ["0-d", "head", "odd"] and len(by_torch) == 6
