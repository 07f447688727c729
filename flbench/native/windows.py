"""Operations of convolutions on ``LANES`` samples at once: tiles of sums, pooling, and sums over samples.

Every pixel is a vector of samples, which lie side by side in memory. Each element of a result is one chain of fused
multiply-adds in a fixed order, so its bits depend neither on the tile nor on the registers of the CPU. Memory is
addressed by whole numbers (bytes), strides count floats. As in ``vectors``, this module imports numba.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from flbench.native.convolution_layout import KERNEL, LANES, POOL
from flbench.native.lanes import FLOATS as _VECTOR
from flbench.native.lanes import lanes
from flbench.native.vectors import WIDTH, declared, load, spread, store

#: What is stored in the place of the largest pixel of a window (0 to 3) where ReLU returns 0.
CLIPPED = POOL**2

_I8, _I64 = ir.IntType(8), ir.IntType(64)
_PLACES = ir.VectorType(_I8, LANES)
_ZERO = ir.Constant(_VECTOR, [0.0] * LANES)

#: Returns one factor of row or column ``i`` in a step.
Factor = Callable[[Any, int], Any]


def pooled_tile(rows: int) -> Any:
    """Return a function that computes one pixel of ``rows`` channels after convolution, max-pooling and ReLU.

    The function has the arguments ``(w, of_w, x, taps, side, steps, used, bias, y, places, of_y)``. A pixel of channel
    i before the pooling is the sum over the steps k of w[k * of_w + i] * x[taps[k]], and those of its window are LANES
    and side * LANES floats further in x. The maximum plus the bias is written to y[i * of_y], and its place in the
    window to the bytes places[i * of_y]: of several the first. NaN is larger than all. ``used`` channels exist.
    """

    @intrinsic
    def compute(typing: Any, w: Any, of_w: Any, x: Any, taps: Any, side: Any, steps: Any, used: Any, bias: Any, y: Any,
                places: Any, of_y: Any) -> Any:  # fmt: skip
        def code(context: Any, at: ir.IRBuilder, signature: Any, args: Any) -> Any:
            w, of_w, x, taps, side, steps, used, bias, y, places, of_y = args
            row = _existing(at, rows, used)
            window = [at.mul(_I64(LANES), at.add(at.mul(_I64(j // POOL), side), _I64(j % POOL))) for j in range(4)]
            for i, sums in enumerate(_convolved(at, w, of_w, row, x, taps, window, steps)):
                largest, place = _largest(at, sums)
                largest = at.fadd(largest, spread(at, load(at, _after(at, bias, row[i])), _VECTOR))
                largest, place = _clipped(at, largest, place)
                store(at, largest, _after(at, y, at.mul(row[i], of_y)), None)
                _store_places(at, place, at.add(places, at.mul(row[i], of_y)))
            return context.get_dummy_value()

        return types.void(*[types.int64] * 11), code

    return compute


def pixel_window_tile(rows: int) -> Any:
    """Return a function that computes the four pixels of a window of ``rows`` channels after the convolution.

    The function has the arguments ``(w, of_w, x, taps, right, below_x, steps, used, bias, floor, z, below_z, of_z)``,
    the first as of ``pooled_tile``. The pixels of the window are ``right``, ``below_x`` and their sum of floats further
    in x, and ``below_z`` in place of ``below_x`` in z. Beyond the last column or row the distance is 0. A sum plus the
    bias, of which nothing below the floor is left, is written to z[i * of_z].
    """

    @intrinsic
    def compute(typing: Any, w: Any, of_w: Any, x: Any, taps: Any, right: Any, below_x: Any, steps: Any, used: Any,
                bias: Any, floor: Any, z: Any, below_z: Any, of_z: Any) -> Any:  # fmt: skip
        def code(context: Any, at: ir.IRBuilder, signature: Any, args: Any) -> Any:
            w, of_w, x, taps, right, below_x, steps, used, bias, floor, z, below_z, of_z = args
            row, low = _existing(at, rows, used), spread(at, floor, _VECTOR)
            window = [_I64(0), right, below_x, at.add(right, below_x)]
            places = [_I64(0), right, below_z, at.add(right, below_z)]
            for i, sums in enumerate(_convolved(at, w, of_w, row, x, taps, window, steps)):
                added = spread(at, load(at, _after(at, bias, row[i])), _VECTOR)
                for place, pixel in zip(places, sums, strict=True):
                    value = at.fadd(pixel, added)
                    value = at.select(at.fcmp_ordered("<", value, low), low, value)
                    store(at, value, _after(at, z, at.mul(row[i], of_z), place), None)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 9, types.float32, *[types.int64] * 3), code

    return compute


def kernel_tile(rows: int) -> Any:
    """Return a function that adds to one row of the gradient of ``rows`` kernels, for each sample of a vector.

    The function has the arguments ``(g, of_g, x, places, steps, used, w, of_w)``. To the vector w[i * of_w + LANES * j]
    it adds the sum over the steps k of g[i * of_g + LANES * k] * x[places[k] + LANES * j], for j below ``KERNEL``.
    """

    @intrinsic
    def compute(typing: Any, g: Any, of_g: Any, x: Any, places: Any, steps: Any, used: Any, w: Any, of_w: Any) -> Any:
        def code(context: Any, at: ir.IRBuilder, signature: Any, args: Any) -> Any:
            g, of_g, x, places, steps, used, w, of_w = args
            row = _existing(at, rows, used)

            def gradient(k: Any, i: int) -> Any:
                return load(at, _after(at, g, at.mul(row[i], of_g), at.mul(k, _I64(LANES))), _VECTOR)

            def pixels(k: Any, j: int) -> Any:
                place = at.load(at.inttoptr(at.add(places, at.shl(k, _I64(3))), _I64.as_pointer()))
                return load(at, _after(at, x, place, _I64(LANES * j)), _VECTOR)

            out = [[_after(at, w, at.mul(i, of_w), _I64(LANES * j)) for j in range(KERNEL)] for i in row]
            _add(at, out, steps, gradient, pixels)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 8), code

    return compute


def pixel_tile(rows: int) -> Any:
    """Return a function that adds to the gradient of ``KERNEL`` pixels in a row of ``rows`` channels.

    The function has the arguments ``(w, of_w, g, of_g, steps, used, x, of_x)``. To the vector x[i * of_x + LANES * j]
    it adds the sum over the steps k of w[k * of_w + KERNEL * i + j] * g[k * of_g].
    """

    @intrinsic
    def compute(typing: Any, w: Any, of_w: Any, g: Any, of_g: Any, steps: Any, used: Any, x: Any, of_x: Any) -> Any:
        def code(context: Any, at: ir.IRBuilder, signature: Any, args: Any) -> Any:
            w, of_w, g, of_g, steps, used, x, of_x = args
            row = [(i, j) for i in _existing(at, rows, used) for j in range(KERNEL)]

            def weight(k: Any, i: int) -> Any:
                channel, column = row[i]
                place = at.add(at.mul(channel, _I64(KERNEL)), _I64(column))
                return spread(at, load(at, _after(at, w, at.mul(k, of_w), place)), _VECTOR)

            def gradient(k: Any, j: int) -> Any:
                return load(at, _after(at, g, at.mul(k, of_g)), _VECTOR)

            out = [[_after(at, x, at.mul(i, of_x), _I64(LANES * j))] for i, j in row]
            _add(at, out, steps, weight, gradient)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 8), code

    return compute


@intrinsic
def unpool(typing: Any, gradient: Any, places: Any, pixels: Any, side: Any, total: Any) -> Any:
    """Write the gradient of the pixels of a window from that of its maximum, and add the latter to a total."""

    def code(context: Any, at: ir.IRBuilder, signature: Any, args: Any) -> Any:
        gradient, places, pixels, side, total = args
        of_maximum = load(at, gradient, _VECTOR)
        place = at.load(at.inttoptr(places, _PLACES.as_pointer()), align=1)
        for j in range(POOL**2):
            there = at.select(at.icmp_signed("==", place, _all(j)), of_maximum, _ZERO)
            store(at, there, _after(at, pixels, at.mul(side, _I64(j // POOL * LANES)), _I64(j % POOL * LANES)), None)
        passed = at.select(at.icmp_signed("==", place, _all(CLIPPED)), _ZERO, of_maximum)
        store(at, at.fadd(load(at, total, _VECTOR), passed), total, None)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), code


@intrinsic
def pool(typing: Any, first: Any, second: Any, third: Any, fourth: Any, relu: Any, y: Any, places: Any) -> Any:
    """Write the largest of the four pixels of a window and, as bytes, its place; with a ``relu`` after it."""

    def code(context: Any, at: ir.IRBuilder, signature: Any, args: Any) -> Any:
        *window, relu, y, places = args
        largest, place = _largest(at, window)
        positive = zip(_clipped(at, largest, place), (largest, place), strict=True)
        largest, place = (at.select(at.icmp_signed("!=", relu, _I64(0)), *both) for both in positive)
        store(at, largest, y, None)
        _store_places(at, place, places)
        return context.get_dummy_value()

    return types.void(*[lanes] * 4, *[types.int64] * 3), code


@intrinsic
def at_place(typing: Any, gradient: Any, places: Any, pixel: Any) -> Any:
    """Return the gradient of a pixel of a window (0 to 3) from that of the maximum and the address of its place."""

    def code(context: Any, at: ir.IRBuilder, signature: Any, args: Any) -> Any:
        gradient, places, pixel = args
        place = at.load(at.inttoptr(places, _PLACES.as_pointer()), align=1)
        pixels = spread(at, at.trunc(pixel, _I8), _PLACES)
        return at.select(at.icmp_signed("==", place, pixels), gradient, _ZERO)

    return lanes(lanes, types.int64, types.int64), code


def _convolved(
    at: ir.IRBuilder, w: Any, of_w: Any, row: Sequence[Any], x: Any, taps: Any, window: Sequence[Any], steps: Any
) -> list[list[Any]]:
    """The sums of the pixels of a window, for each channel of ``row``."""

    def weight(k: Any, i: int) -> Any:
        return spread(at, load(at, _after(at, w, at.mul(k, of_w), row[i])), _VECTOR)

    def pixels(k: Any, j: int) -> Any:
        tap = at.load(at.inttoptr(at.add(taps, at.shl(k, _I64(3))), _I64.as_pointer()))
        return load(at, _after(at, x, tap, window[j]), _VECTOR)

    return _sums(at, steps, [[_ZERO] * 4] * len(row), weight, pixels)


def _sums(
    at: ir.IRBuilder, steps: Any, first: Sequence[Sequence[Any]], of_row: Factor, of_column: Factor
) -> list[list[Any]]:
    """The first values plus the sums of products over the steps, of which there is at least one."""
    fma = declared(at, "llvm.fma", _VECTOR, [_VECTOR] * 3)
    before, body, after = at.block, at.append_basic_block("sums"), at.append_basic_block("summed")
    at.branch(body)
    at.position_at_end(body)
    step, sums = at.phi(_I64), [[at.phi(_VECTOR) for _ in row] for row in first]
    columns = [of_column(step, j) for j in range(len(first[0]))]
    new = []
    for i, row in enumerate(sums):
        factor = of_row(step, i)
        new.append([at.call(fma, [factor, column, old]) for column, old in zip(columns, row, strict=True)])
    next_step = at.add(step, _I64(1))
    pairs = [(step, _I64(0), next_step)]
    pairs += [each for rows in zip(sums, first, new, strict=True) for each in zip(*rows, strict=True)]
    for phi, begin, then in pairs:
        phi.add_incoming(begin, before)
        phi.add_incoming(then, body)
    at.cbranch(at.icmp_signed("<", next_step, steps), body, after)
    at.position_at_end(after)
    return new


def _add(at: ir.IRBuilder, out: list[list[Any]], steps: Any, of_row: Factor, of_column: Factor) -> None:
    """Add such sums to the vectors at addresses."""
    first = [[load(at, address, _VECTOR) for address in row] for row in out]
    for addresses, sums in zip(out, _sums(at, steps, first, of_row, of_column), strict=True):
        for address, value in zip(addresses, sums, strict=True):
            store(at, value, address, None)


def _existing(at: ir.IRBuilder, rows: int, used: Any) -> list[Any]:
    """Numbers of rows: for those that do not exist the last one, which is computed and stored again."""
    return [at.select(at.icmp_signed("<", _I64(i), used), _I64(i), at.sub(used, _I64(1))) for i in range(rows)]


def _after(at: ir.IRBuilder, address: Any, *floats: Any) -> Any:
    """The address after these numbers of floats."""
    for count in floats:
        address = at.add(address, at.shl(count, _I64(2)))
    return address


def _largest(at: ir.IRBuilder, window: Sequence[Any]) -> tuple[Any, Any]:
    """The largest of the pixels of a window, and its place: of several the first. NaN is larger than all."""
    largest, place = window[0], _all(0)
    for j, pixel in enumerate(window[1:], start=1):
        larger = at.or_(at.fcmp_ordered(">", pixel, largest), at.fcmp_unordered("uno", pixel, pixel))
        largest, place = at.select(larger, pixel, largest), at.select(larger, _all(j), place)
    return largest, place


def _clipped(at: ir.IRBuilder, largest: Any, place: Any) -> tuple[Any, Any]:
    """Both after ReLU."""
    off = at.fcmp_ordered("<=", largest, _ZERO)
    return at.select(off, _ZERO, largest), at.select(off, _all(CLIPPED), place)


def _store_places(at: ir.IRBuilder, place: Any, address: Any) -> None:
    at.store(place, at.inttoptr(address, _PLACES.as_pointer()), align=1)


def _all(value: int) -> ir.Constant:
    return ir.Constant(_PLACES, [value] * LANES)


#: Rows of the tiles: as many as registers hold the sums of.
POOLED_ROWS, FEW_POOLED_ROWS, KERNEL_ROWS, PIXEL_ROWS = (6, 4, 3, 6) if WIDTH == LANES else (1, 1, 1, 1)
pooled, pooled_few = pooled_tile(POOLED_ROWS), pooled_tile(FEW_POOLED_ROWS)
window_pixels = pixel_window_tile(POOLED_ROWS)
kernel_sums, pixel_sums = kernel_tile(KERNEL_ROWS), pixel_tile(PIXEL_ROWS)
