"""Max-pooling by compiled functions has the bits of torch's, forward and backward."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from flbench.models import max_pooling
from flbench.models.layers import Pool
from flbench.models.max_pooling import max_pool, maxima_of, slow_gradient

pytest.importorskip("numba")

BITS = {torch.float32: torch.int32, torch.bfloat16: torch.int16}


def images(dtype: torch.dtype, *shape: int) -> Tensor:
    """Random images channels last, with equal pixels, zeros of both signs, infinities and NaN."""
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    x[0, 0, :4] = 0
    x[0, :, :, 2] = -0.0
    x[0, 1, 0], x[0, 2, 1] = float("inf"), -float("inf")
    x[1, 0, 0, 0], x[1, 1, 1, 1], x[1, 2, :2, :2] = float("nan"), -float("nan"), float("nan")
    return x.contiguous(memory_format=torch.channels_last).requires_grad_()


def equal_bits(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors are equal, to the bit but for those that NaN leaves open."""
    one, other = (torch.where(x.isnan(), x.new_tensor(float("nan")), x).view(BITS[x.dtype]) for x in (one, other))
    return torch.equal(one, other)


@pytest.mark.parametrize("dtype", BITS)
@pytest.mark.parametrize("shape", [(2, 16, 4, 4), (3, 64, 10, 6), (2, 48, 2, 8)])
def test_has_the_bits_of_torch(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x = images(dtype, *shape)
    found, expected = max_pool(x, 2), torch.max_pool2d(x, 2)
    assert type(found.grad_fn).__name__ == "_MaximaBackward"
    assert found.stride() == expected.stride() and equal_bits(found, expected)
    gradient = torch.randn(expected.shape).to(dtype)
    for towards in (gradient, gradient.contiguous(memory_format=torch.channels_last)):
        own, torchs = (torch.autograd.grad(out, x, towards, retain_graph=True)[0] for out in (found, expected))
        assert own.stride() == torchs.stride() and equal_bits(own, torchs)


@pytest.mark.parametrize("dtype", BITS)
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("relu", [False, True])
def test_has_the_bits_of_torch_without_a_graph_and_with_relu(dtype: torch.dtype, size: int, relu: bool) -> None:
    """Windows of 3 by 3 are left to torch."""
    x = images(dtype, 3, 32, 6, 12)
    expected = torch.max_pool2d(x, size)
    expected = expected.relu() if relu else expected
    found, of_images = maxima_of(x.detach(), size, relu=relu)
    assert found.stride() == expected.stride() and equal_bits(found, expected)
    towards = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    towards[0, 1] = float("nan")
    assert equal_bits(of_images(towards), torch.autograd.grad(expected, x, towards)[0])


@pytest.mark.parametrize("dtype", BITS)
def test_gradients_have_gradients(dtype: torch.dtype) -> None:
    """Some methods differentiate twice; the slow gradient is that of the compiled function."""
    x = images(dtype, 2, 16, 4, 6)
    towards = torch.randn(2, 16, 2, 3, generator=torch.Generator().manual_seed(1)).to(dtype).requires_grad_()
    found = max_pool(x, 2)
    once, again = (
        torch.autograd.grad(found, x, towards, retain_graph=True, create_graph=each)[0] for each in (False, True)
    )
    assert torch.equal(once, again)
    assert torch.equal(torch.autograd.grad(again.sum(), towards)[0], torch.ones_like(towards))


def test_places_are_those_of_the_pixels_in_a_window() -> None:
    towards = torch.arange(1.0, 5).view(1, 1, 2, 2)
    places = torch.tensor([[0, 1], [2, 3]], dtype=torch.uint8).view(1, 1, 2, 2)
    expected = [[1, 0, 0, 2], [0, 0, 0, 0], [0, 0, 0, 0], [3, 0, 0, 4]]
    assert slow_gradient(towards, places)[0, 0].tolist() == expected


@pytest.mark.parametrize(
    ("shape", "size", "dtype"),
    [
        ((2, 16, 5, 4), 2, torch.float32),
        ((2, 16, 4, 5), 2, torch.float32),
        ((2, 8, 4, 4), 2, torch.float32),
        ((2, 16, 6, 6), 3, torch.float32),
        ((0, 16, 4, 4), 2, torch.float32),
        ((2, 16, 4, 4), 2, torch.float64),
    ],
)
def test_all_other_images_are_left_to_torch(shape: tuple[int, ...], size: int, dtype: torch.dtype) -> None:
    x = torch.randn(*shape, dtype=dtype).contiguous(memory_format=torch.channels_last).requires_grad_()
    found = max_pool(x, size)
    assert type(found.grad_fn).__name__.startswith("MaxPool2D")
    assert torch.equal(found, torch.max_pool2d(x, size))


def test_planes_are_left_to_torch() -> None:
    x = torch.randn(2, 16, 4, 4, requires_grad=True)
    assert type(max_pool(x, 2).grad_fn).__name__.startswith("MaxPool2D")


def test_without_a_compiler_torch_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(max_pooling, "_compiled", lambda: None)
    x = images(torch.float32, 2, 16, 4, 4)
    assert equal_bits(max_pool(x, 2), torch.max_pool2d(x, 2))


def test_a_layer_pools_by_compiled_functions_in_training_alone() -> None:
    layer, x = Pool(2), images(torch.bfloat16, 2, 16, 4, 4)

    def way() -> str:
        return type(layer(x).grad_fn).__name__

    assert way() == "_MaximaBackward"
    layer.compiled = False
    assert way().startswith("MaxPool2D")
    layer.compiled = True
    layer.eval()
    assert way().startswith("MaxPool2D")
