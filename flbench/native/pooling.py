"""Max-pooling, perhaps with ReLU, forward and backward, with a pixel's channels side by side, in float32 or bfloat16.

Windows are 2 by 2 and lie side by side. Nothing is rounded: every result is one of the inputs, or 0. As in ``vectors``,
this module imports numba.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from flbench.native.convolution_layout import LANES, Pooling
from flbench.native.lanes import FLOATS
from flbench.native.vectors import load, store, whole
from flbench.native.windows import CLIPPED, each_place, largest_of, load_places, store_places

_I16, _I32, _I64 = (ir.IntType(size) for size in (16, 32, 64))
_WORDS, _ZEROS = ir.VectorType(_I32, LANES), ir.Constant(FLOATS, [0.0] * LANES)


def forward(head: int) -> None:
    """Write the largest pixel of each window, of equal ones the first, and its place; NaN is larger than all."""
    if whole(head, Pooling.BYTES) == 4:
        _each_window(head, 4, _pool_floats)
    else:
        _each_window(head, 2, _pool_halves)


def backward(head: int) -> None:
    """Write the gradient of all pixels from that of the maxima and from their places."""
    if whole(head, Pooling.BYTES) == 4:
        _each_window(head, 4, _unpool_floats)
    else:
        _each_window(head, 2, _unpool_halves)


@njit
def _each_window(head: int, size: int, compute: Callable[..., None]) -> None:
    columns, channels, relu = whole(head, Pooling.COLUMNS), whole(head, Pooling.CHANNELS), whole(head, Pooling.RELU)
    x, y, places = whole(head, Pooling.X), whole(head, Pooling.Y), whole(head, Pooling.PLACES)
    right = size * channels
    down = 2 * columns * right
    for row in range(whole(head, Pooling.ROWS)):
        for column in range(columns):
            first, to = x + 2 * row * down + 2 * column * right, (row * columns + column) * channels
            for c in range(0, channels, LANES):
                compute(first + size * c, right, down, y + size * (to + c), places + to + c, relu)


def _pool(kind: Any) -> Any:
    """Return a function that pools a window of ``LANES`` channels whose bits are whole numbers of a kind."""

    @intrinsic
    def compute(typing: Any, x: Any, right: Any, down: Any, y: Any, places: Any, relu: Any) -> Any:
        def code(context: Any, at: ir.IRBuilder, signature: Any, args: Any) -> Any:
            x, right, down, y, places, relu = args
            pixels = [load(at, pixel, ir.VectorType(kind, LANES)) for pixel in _window(at, x, right, down)]
            largest, place = largest_of(at, [_floats(at, pixel) for pixel in pixels])
            clips = at.icmp_signed("!=", relu, _I64(0))
            # Torch's ReLU leaves the sign of a zero as it is, and passes no gradient to it.
            below, off = (at.fcmp_ordered(relation, largest, _ZEROS) for relation in ("<", "<="))
            largest = at.select(clips, at.select(below, _ZEROS, largest), largest)
            place = at.select(clips, at.select(off, each_place(CLIPPED), place), place)
            store(at, _bits(at, largest, kind), y, None)
            store_places(at, place, places)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 6), code

    return compute


def _unpool(kind: Any) -> Any:
    """Return a function that writes the gradient of such a window."""
    vector = ir.VectorType(kind, LANES)

    @intrinsic
    def compute(typing: Any, x: Any, right: Any, down: Any, y: Any, places: Any, relu: Any) -> Any:
        def code(context: Any, at: ir.IRBuilder, signature: Any, args: Any) -> Any:
            x, right, down, y, places, _ = args
            of_maximum, nothing, place = load(at, y, vector), ir.Constant(vector, [0] * LANES), load_places(at, places)
            for number, pixel in enumerate(_window(at, x, right, down)):
                there = at.icmp_signed("==", place, each_place(number))
                store(at, at.select(there, of_maximum, nothing), pixel, None)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 6), code

    return compute


def _window(at: ir.IRBuilder, x: Any, right: Any, down: Any) -> list[Any]:
    """Addresses of the pixels of a window; ``right`` and ``down`` are the bytes to the next in a row and a column."""
    below = at.add(x, down)
    return [x, at.add(x, right), below, at.add(below, right)]


def _floats(at: ir.IRBuilder, bits: Any) -> Any:
    """The floats with these bits; those of bfloat16 are the first half of those of float32."""
    if bits.type.element == _I16:
        bits = at.shl(at.zext(bits, _WORDS), ir.Constant(_WORDS, [16] * LANES))
    return at.bitcast(bits, FLOATS)


def _bits(at: ir.IRBuilder, floats: Any, kind: Any) -> Any:
    """The bits of such floats."""
    bits = at.bitcast(floats, _WORDS)
    if kind == _I16:
        bits = at.trunc(at.lshr(bits, ir.Constant(_WORDS, [16] * LANES)), ir.VectorType(_I16, LANES))
    return bits


_pool_floats, _pool_halves = _pool(_I32), _pool(_I16)
_unpool_floats, _unpool_halves = _unpool(_I32), _unpool(_I16)
