"""Both passes of convolutions, each with bias, ReLU, max-pooling and perhaps a normalization, client after client.

``LANES`` samples of a client go through a layer together, while they are in the cache. Every number of a result is
one chain of sums in order, whatever the CPU, so a client's bits depend on nothing but its own numbers. The functions
read their arguments where ``convolution_layout`` says.

Letters: C channels in, O channels out, H pixels of a side before the convolution, h after the pooling.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from flbench.native.convolution_layout import KERNEL, LANES, Field, Part
from flbench.native.lanes import over_lanes, vector
from flbench.native.mlp_layout import Kind
from flbench.native.normalized_pixels import (
    activations,
    clear_gains,
    join_measured,
    join_of_measured,
    measure,
    measure_gradient,
    normalize,
    of_normalized,
)
from flbench.native.products import transpose
from flbench.native.vectors import put, real, whole
from flbench.native.windows import (
    FEW_POOLED_ROWS,
    KERNEL_ROWS,
    PIXEL_ROWS,
    POOLED_ROWS,
    kernel_sums,
    pixel_sums,
    pooled,
    pooled_few,
    unpool,
    window_pixels,
)

_FIRST_LAYER, _OF_LAYER = 8 * len(Field), 8 * len(Part)

#: Bytes of a vector, and weights of a kernel.
_VECTOR, _TAPS = 4 * LANES, KERNEL * KERNEL
_ZERO, _LOWEST = np.float32(0), np.float32(-np.inf)


def forward(head: int) -> None:
    """Compute the features of images."""
    batch, layers = whole(head, Field.BATCH), whole(head, Field.LAYERS)
    rows, width, pixels = whole(head, Field.ROWS), whole(head, Field.WIDTH), whole(head, Field.PIXELS)
    vectors = _up(batch) // LANES
    for n in range(whole(head, Field.CLIENTS)):
        for v in range(vectors):
            samples = whole(head, Field.IMAGES) + 4 * (n * batch + LANES * v) * pixels
            _to_lanes(samples, pixels, min(LANES, batch - LANES * v), rows, _input(head, 0, n * vectors + v))
        for i in range(layers):
            layer = _layer(head, i)
            kind = whole(layer, Part.NORM)
            _pack(layer, n)
            for v in range(vectors):
                number, x, y = n * vectors + v, _input(head, i, n * vectors + v), _output(head, i, n, v)
                if not kind:
                    _convolve(layer, n, number, x, y)
                    continue
                _convolve_all(layer, n, number, x)
                measure(layer, n, number)
                if kind != Kind.BATCH:
                    normalize(layer, n, number, y)
            if kind == Kind.BATCH:
                join_measured(layer, n, n * vectors, batch)
                for v in range(vectors):
                    normalize(layer, n, n * vectors + v, _output(head, i, n, v))
        for v in range(vectors):
            features = whole(head, Field.FEATURES) + 4 * (n * batch + LANES * v) * width
            _from_lanes(_output(head, layers - 1, n, v), width, min(LANES, batch - LANES * v), rows, features)


def backward(head: int) -> None:
    """Compute the gradients of weights and biases from that of the features of the last forward pass."""
    batch, layers = whole(head, Field.BATCH), whole(head, Field.LAYERS)
    width, of_pixels, room = whole(head, Field.WIDTH), whole(head, Field.OF_PIXELS), whole(head, Field.ROOM)
    vectors = _up(batch) // LANES
    for n in range(whole(head, Field.CLIENTS)):
        for i in range(layers):
            layer = _layer(head, i)
            _pack(layer, n)
            _clear(whole(layer, Part.SUMS), LANES * _weights(layer))
            _clear(whole(layer, Part.BIAS_SUMS), LANES * whole(layer, Part.OUTS))
            clear_gains(layer, n)
        of_y, of_x = whole(head, Field.OUT), whole(head, Field.IN)
        for v in range(vectors):
            of_features = whole(head, Field.FEATURES) + _VECTOR * (n * width * vectors + v)
            for i in range(width):
                for lane in range(LANES):
                    put(of_y + v * room, LANES * i + lane, real(of_features + _VECTOR * i * vectors, lane))
        for i in range(layers - 1, -1, -1):
            layer = _layer(head, i)
            kind = whole(layer, Part.NORM)
            if kind == Kind.BATCH:
                for v in range(vectors):
                    measure_gradient(layer, n, n * vectors + v, of_y + v * room)
                join_of_measured(layer, n * vectors, batch)
            for v in range(vectors):
                number = n * vectors + v
                if kind and kind != Kind.BATCH:
                    measure_gradient(layer, n, number, of_y + v * room)
                if kind:
                    of_normalized(layer, n, number, of_y + v * room, of_pixels)
                else:
                    _unpool(layer, number, of_y + v * room, of_pixels)
                _add_of_weights(layer, of_pixels, _input(head, i, number))
                if i:
                    _clear(of_x + v * room, LANES * _inputs(layer))
                    _add_of_input(layer, of_pixels, of_x + v * room)
            of_y, of_x = of_x, of_y
        for i in range(layers):
            layer = _layer(head, i)
            weights, outs = _weights(layer), whole(layer, Part.OUTS)
            _reduce(whole(layer, Part.SUMS), weights, whole(layer, Part.OF_WEIGHT) + 4 * n * weights)
            _reduce(whole(layer, Part.BIAS_SUMS), outs, whole(layer, Part.OF_BIAS) + 4 * n * outs)


@njit
def _layer(head: int, i: int) -> int:
    return head + _FIRST_LAYER + i * _OF_LAYER


@njit
def _input(head: int, i: int, number: int) -> int:
    """Address of the input of a layer, of the vector of samples with this number in the stack."""
    layer = _layer(head, i)
    return whole(layer, Part.X) + _VECTOR * number * (_inputs(layer) if i else _up(whole(head, Field.PIXELS)))


@njit
def _output(head: int, i: int, n: int, v: int) -> int:
    """Address of the output of a layer for a client's vector of samples."""
    vectors = _up(whole(head, Field.BATCH)) // LANES
    if i + 1 < whole(head, Field.LAYERS):
        return _input(head, i + 1, n * vectors + v)
    return whole(head, Field.OUT) + v * whole(head, Field.ROOM)


@njit
def _up(count: int) -> int:
    """The least multiple of ``LANES`` that is not below the count."""
    return (count + LANES - 1) // LANES * LANES


@njit
def _inputs(layer: int) -> int:
    return whole(layer, Part.CHANNELS) * whole(layer, Part.SIDE) * whole(layer, Part.SIDE)


@njit
def _weights(layer: int) -> int:
    return whole(layer, Part.OUTS) * whole(layer, Part.CHANNELS) * _TAPS


@njit
def _half(layer: int) -> int:
    """Pixels of a side after the pooling."""
    return (whole(layer, Part.SIDE) - KERNEL + 1) // 2


@njit
def _clear(address: int, floats: int) -> None:
    for i in range(floats):
        put(address, i, 0.0)


@njit
def _reduce(sums: int, count: int, out: int) -> None:
    for i in range(count):
        put(out, i, over_lanes(vector(sums + _VECTOR * i)))


@njit
def _pack(layer: int, n: int) -> None:
    """Write a client's weights (O, C, row, column) in the orders in which the passes read them."""
    channels, outs, weight = whole(layer, Part.CHANNELS), whole(layer, Part.OUTS), whole(layer, Part.WEIGHT)
    by_tap, by_row, first = whole(layer, Part.BY_TAP), whole(layer, Part.BY_ROW), n * _weights(layer)
    for o in range(outs):
        for c in range(channels):
            for row in range(KERNEL):
                for column in range(KERNEL):
                    tap = (c * KERNEL + row) * KERNEL + column
                    value = real(weight, first + o * channels * _TAPS + tap)
                    put(by_tap, tap * outs + o, value)
                    put(by_row, ((row * outs + o) * channels + c) * KERNEL + column, value)


@njit
def _to_lanes(samples: int, count: int, used: int, rows: int, lanes: int) -> None:
    """Write samples of ``count`` floats side by side; samples beyond ``used`` are zero."""
    of_rows = _up(count)
    if used < LANES or count < of_rows:
        _clear(rows, LANES * of_rows)
        for i in range(used):
            for j in range(count):
                put(rows, i * of_rows + j, real(samples, i * count + j))
        samples = rows
    transpose(LANES, count, samples, of_rows, lanes, LANES)


@njit
def _from_lanes(lanes: int, count: int, used: int, rows: int, samples: int) -> None:
    """Write the first ``used`` samples one after another."""
    of_rows = _up(count)
    if used == LANES and count == of_rows:
        transpose(count, LANES, lanes, LANES, samples, count)
        return
    transpose(count, LANES, lanes, LANES, rows, of_rows)
    for i in range(used):
        for j in range(count):
            put(samples, i * count + j, real(rows, i * of_rows + j))


@njit
def _convolve(layer: int, n: int, number: int, x: int, y: int) -> None:
    """Write the layer's output y_Ohh, and the places of the maxima."""
    side, outs, half = whole(layer, Part.SIDE), whole(layer, Part.OUTS), _half(layer)
    weight, bias, taps = whole(layer, Part.BY_TAP), whole(layer, Part.BIAS) + 4 * n * outs, whole(layer, Part.TAPS)
    plane, steps = LANES * half * half, whole(layer, Part.CHANNELS) * _TAPS
    places = whole(layer, Part.PLACES) + number * outs * plane
    for row in range(half):
        for column in range(half):
            window, o = x + 2 * _VECTOR * (row * side + column), 0
            while o < outs:
                left, at = outs - o, o * plane + LANES * (row * half + column)
                if left > FEW_POOLED_ROWS:
                    pooled(weight + 4 * o, outs, window, taps, side, steps, min(POOLED_ROWS, left), bias + 4 * o,
                           y + 4 * at, places + at, plane)  # fmt: skip
                    o += POOLED_ROWS
                else:
                    pooled_few(weight + 4 * o, outs, window, taps, side, steps, left, bias + 4 * o,
                               y + 4 * at, places + at, plane)  # fmt: skip
                    o += FEW_POOLED_ROWS


@njit
def _convolve_all(layer: int, n: int, number: int, x: int) -> None:
    """Write the pixels (O, A, A) that are normalized; ReLU may come first."""
    side, outs, after = whole(layer, Part.SIDE), whole(layer, Part.OUTS), whole(layer, Part.AFTER)
    weight, bias, taps = whole(layer, Part.BY_TAP), whole(layer, Part.BIAS) + 4 * n * outs, whole(layer, Part.TAPS)
    plane, steps, z = LANES * after * after, whole(layer, Part.CHANNELS) * _TAPS, activations(layer, number)
    floor = _ZERO if whole(layer, Part.RELU_FIRST) else _LOWEST
    for row in range(0, after, 2):
        below = LANES if row + 1 < after else 0
        for column in range(0, after, 2):
            right = LANES if column + 1 < after else 0
            first, to = x + _VECTOR * (row * side + column), z + _VECTOR * (row * after + column)
            for o in range(0, outs, POOLED_ROWS):
                window_pixels(weight + 4 * o, outs, first, taps, right, below * side, steps, min(POOLED_ROWS, outs - o),
                              bias + 4 * o, floor, to + 4 * o * plane, below * after, plane)  # fmt: skip


@njit
def _unpool(layer: int, number: int, of_y: int, of_pixels: int) -> None:
    """Write the gradient of the pixels (O, 2h, 2h) before the pooling; an odd last row or column has none."""
    outs, half = whole(layer, Part.OUTS), _half(layer)
    places = whole(layer, Part.PLACES) + LANES * number * outs * half * half
    for o in range(outs):
        total = whole(layer, Part.BIAS_SUMS) + _VECTOR * o
        for row in range(half):
            for column in range(half):
                at = LANES * ((o * half + row) * half + column)
                window = of_pixels + 2 * _VECTOR * (2 * (o * half + row) * half + column)
                unpool(of_y + 4 * at, places + at, window, 2 * half, total)


@njit
def _add_of_weights(layer: int, of_pixels: int, x: int) -> None:
    """Add to the gradient of the weights, sample by sample."""
    side, outs, weights = whole(layer, Part.SIDE), whole(layer, Part.OUTS), whole(layer, Part.CHANNELS) * _TAPS
    pixels = whole(layer, Part.AFTER) * whole(layer, Part.AFTER)
    sums, starts = whole(layer, Part.SUMS), whole(layer, Part.STARTS)
    for c in range(whole(layer, Part.CHANNELS)):
        for row in range(KERNEL):
            first, kernel = x + _VECTOR * (c * side + row) * side, sums + _VECTOR * (c * KERNEL + row) * KERNEL
            for o in range(0, outs, KERNEL_ROWS):
                kernel_sums(of_pixels + _VECTOR * o * pixels, LANES * pixels, first, starts, pixels,
                            min(KERNEL_ROWS, outs - o), kernel + _VECTOR * o * weights, LANES * weights)  # fmt: skip


@njit
def _add_of_input(layer: int, of_pixels: int, of_x: int) -> None:
    """Add to the gradient of the layer's input x_CHH."""
    side, outs, channels = whole(layer, Part.SIDE), whole(layer, Part.OUTS), whole(layer, Part.CHANNELS)
    after, plane = whole(layer, Part.AFTER), side * side
    for row in range(after):
        for column in range(after):
            gradient = of_pixels + _VECTOR * (row * after + column)
            for down in range(KERNEL):
                weight = whole(layer, Part.BY_ROW) + 4 * down * outs * channels * KERNEL
                target = of_x + _VECTOR * ((row + down) * side + column)
                for c in range(0, channels, PIXEL_ROWS):
                    pixel_sums(weight + 4 * c * KERNEL, channels * KERNEL, gradient, LANES * after * after, outs,
                               min(PIXEL_ROWS, channels - c), target + _VECTOR * c * plane, LANES * plane)  # fmt: skip
