"""Max-pooling forward and backward, with a pixel's channels side by side in memory, in float32 or bfloat16.

Windows are 2 by 2 and lie side by side. Nothing is rounded: every result is one of the inputs, or 0. As in ``vectors``,
this module imports numba.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from flbench.native.pooling_layout import LANES, Number
from flbench.native.vectors import load, store, whole

_I8, _I16, _I32, _I64 = (ir.IntType(size) for size in (8, 16, 32, 64))
_PLACES, _REALS, _WORDS = (ir.VectorType(kind, LANES) for kind in (_I8, ir.FloatType(), _I32))


def forward(head: int) -> None:
    """Write the largest pixel of each window, of equal ones the first, and its place; NaN is larger than all."""
    if whole(head, Number.BYTES) == 4:
        _each_window(head, 4, _pool_floats)
    else:
        _each_window(head, 2, _pool_halves)


def backward(head: int) -> None:
    """Write the gradient of all pixels from that of the maxima and from their places."""
    if whole(head, Number.BYTES) == 4:
        _each_window(head, 4, _unpool_floats)
    else:
        _each_window(head, 2, _unpool_halves)


@njit
def _each_window(head: int, size: int, compute: Callable[..., None]) -> None:
    columns, channels = whole(head, Number.COLUMNS), whole(head, Number.CHANNELS)
    x, y, places = whole(head, Number.X), whole(head, Number.Y), whole(head, Number.PLACES)
    right = size * channels
    down = 2 * columns * right
    for row in range(whole(head, Number.ROWS)):
        for column in range(columns):
            first, to = x + 2 * row * down + 2 * column * right, (row * columns + column) * channels
            for c in range(0, channels, LANES):
                compute(first + size * c, right, down, y + size * (to + c), places + to + c)


def _pool(kind: Any) -> Any:
    """Return a function that pools a window of ``LANES`` channels whose bits are whole numbers of a kind."""

    @intrinsic
    def compute(typing: Any, x: Any, right: Any, down: Any, y: Any, places: Any) -> Any:
        def code(context: Any, at: ir.IRBuilder, signature: Any, args: Any) -> Any:
            x, right, down, y, places = args
            first, *others = (load(at, pixel, ir.VectorType(kind, LANES)) for pixel in _window(at, x, right, down))
            largest, place = first, _all(0)
            for number, value in enumerate(others, 1):
                real = _real(at, value)
                larger = at.fcmp_ordered(">", real, _real(at, largest))
                larger = at.or_(larger, at.fcmp_unordered("uno", real, real))
                largest, place = at.select(larger, value, largest), at.select(larger, _all(number), place)
            store(at, largest, y, None)
            at.store(place, at.inttoptr(places, _PLACES.as_pointer()), align=1)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 5), code

    return compute


def _unpool(kind: Any) -> Any:
    """Return a function that writes the gradient of such a window."""
    vector = ir.VectorType(kind, LANES)

    @intrinsic
    def compute(typing: Any, x: Any, right: Any, down: Any, y: Any, places: Any) -> Any:
        def code(context: Any, at: ir.IRBuilder, signature: Any, args: Any) -> Any:
            x, right, down, y, places = args
            of_maximum, nothing = load(at, y, vector), ir.Constant(vector, [0] * LANES)
            place = at.load(at.inttoptr(places, _PLACES.as_pointer()), align=1)
            for number, pixel in enumerate(_window(at, x, right, down)):
                store(at, at.select(at.icmp_signed("==", place, _all(number)), of_maximum, nothing), pixel, None)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 5), code

    return compute


def _window(at: ir.IRBuilder, x: Any, right: Any, down: Any) -> list[Any]:
    """Addresses of the pixels of a window; the next ones in a row and in a column are so many bytes further."""
    below = at.add(x, down)
    return [x, at.add(x, right), below, at.add(below, right)]


def _real(at: ir.IRBuilder, bits: Any) -> Any:
    """The floats with these bits; those of bfloat16 are the first half of those of float32."""
    if bits.type.element == _I16:
        bits = at.shl(at.zext(bits, _WORDS), ir.Constant(_WORDS, [16] * LANES))
    return at.bitcast(bits, _REALS)


def _all(place: int) -> ir.Constant:
    return ir.Constant(_PLACES, [place] * LANES)


_pool_floats, _pool_halves = _pool(_I32), _pool(_I16)
_unpool_floats, _unpool_halves = _unpool(_I32), _unpool(_I16)
