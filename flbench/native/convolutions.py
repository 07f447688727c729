"""Both passes of stacks of convolutions, each with max-pooling, bias and ReLU, for clients one after another.

A vector of ``LANES`` samples of one client goes through all layers while it is in the cache. Memory is addressed by
whole numbers; a layer is described by ``LAYER`` of them (``engine.convolution_stack``).

Letters: C channels in, O channels out, H pixels of a side before the convolution, S after it, h after the pooling.
"""

from __future__ import annotations

from numba import njit

from flbench.native.layout import KERNEL, LANES, LAYER
from flbench.native.products import transpose
from flbench.native.vectors import put, real, whole
from flbench.native.windows import (
    FEW_POOLED_ROWS,
    KERNEL_ROWS,
    PIXEL_ROWS,
    POOLED_ROWS,
    kernel_sums,
    over_lanes,
    pixel_sums,
    pooled,
    pooled_few,
    unpool,
)

#: Bytes of a vector.
_VECTOR = 4 * LANES

#: Where each of the whole numbers of a layer is.
_C, _H, _O, _W, _BIAS, _OF_W, _OF_BIAS, _X, _PLACES, _TAPS, _PIXELS, _BY_TAP, _BY_ROW, _SUMS, _BIAS_SUMS = range(15)


def forward(arguments):
    """Compute the features of images.

    The arguments are: clients, batch, layers, address of the layers, images (clients, batch, pixels), pixels of an
    image, features (clients, batch, features of a sample), their number, room for the lanes' rows, room for the lanes.
    """
    at = arguments
    clients, batch, layers, every = whole(at, 0), whole(at, 1), whole(at, 2), whole(at, 3)
    images, pixels, features, width, rows, lanes = (
        whole(at, 4), whole(at, 5), whole(at, 6), whole(at, 7), whole(at, 8), whole(at, 9)
    )  # fmt: skip
    vectors = _up(batch, LANES) // LANES
    for n in range(clients):
        for i in range(layers):
            _pack(every + 8 * LAYER * i, n)
        for vector in range(vectors):
            number, first, used = n * vectors + vector, n * batch + LANES * vector, min(LANES, batch - LANES * vector)
            x = whole(every, _X) + _VECTOR * number * _up(pixels, LANES)
            _to_lanes(images + 4 * first * pixels, pixels, used, rows, x)
            for i in range(layers):
                layer = every + 8 * LAYER * i
                out = whole(layer, _O) * _pooled(whole(layer, _H)) ** 2
                y = lanes if i + 1 == layers else whole(layer + 8 * LAYER, _X) + _VECTOR * number * out
                _convolve(layer, n, x, y, whole(layer, _PLACES) + LANES * number * out)
                x = y
            _from_lanes(lanes, width, used, rows, features + 4 * first * width)


def backward(arguments):
    """Compute the gradients of weights and biases.

    The arguments are those of ``forward``, where ``features`` are their gradient, and then room for the lanes again,
    and room for the gradient of a layer's pixels.
    """
    at = arguments
    clients, batch, layers, every = whole(at, 0), whole(at, 1), whole(at, 2), whole(at, 3)
    pixels, features, width, rows = whole(at, 5), whole(at, 6), whole(at, 7), whole(at, 8)
    of_pixels = whole(at, 11)
    vectors = _up(batch, LANES) // LANES
    for n in range(clients):
        for i in range(layers):
            layer = every + 8 * LAYER * i
            _pack(layer, n)
            _clear(whole(layer, _SUMS), LANES * _weights(layer))
            _clear(whole(layer, _BIAS_SUMS), LANES * whole(layer, _O))
        for vector in range(vectors):
            number, first, used = n * vectors + vector, n * batch + LANES * vector, min(LANES, batch - LANES * vector)
            of_y, of_x = whole(at, 9), whole(at, 10)
            _to_lanes(features + 4 * first * width, width, used, rows, of_y)
            for i in range(layers - 1, -1, -1):
                layer = every + 8 * LAYER * i
                size = whole(layer, _C) * whole(layer, _H) ** 2
                x = whole(layer, _X) + _VECTOR * number * (size if i else _up(pixels, LANES))
                out = whole(layer, _O) * _pooled(whole(layer, _H)) ** 2
                _spread(layer, of_y, whole(layer, _PLACES) + LANES * number * out, of_pixels)
                _weigh(layer, of_pixels, x)
                if i:
                    _clear(of_x, LANES * size)
                    _return(layer, of_pixels, of_x)
                    of_y, of_x = of_x, of_y
        for i in range(layers):
            layer = every + 8 * LAYER * i
            _reduce(whole(layer, _SUMS), _weights(layer), whole(layer, _OF_W) + 4 * n * _weights(layer))
            _reduce(whole(layer, _BIAS_SUMS), whole(layer, _O), whole(layer, _OF_BIAS) + 4 * n * whole(layer, _O))


@njit
def _up(count, to):
    """The least multiple of ``to`` that is not below the count."""
    return (count + to - 1) // to * to


@njit
def _pooled(side):
    return (side - KERNEL + 1) // 2


@njit
def _weights(layer):
    return whole(layer, _O) * whole(layer, _C) * KERNEL * KERNEL


@njit
def _clear(address, floats):
    for i in range(floats):
        put(address, i, 0.0)


@njit
def _reduce(sums, count, out):
    for i in range(count):
        put(out, i, over_lanes(sums + _VECTOR * i))


@njit
def _pack(layer, n):
    """Write a client's weights O, C, row, column in the orders in which the passes read them.

    These are (C, row, column, O) for ``_convolve`` and (row, O, C, column) for ``_return``.
    """
    channels, outs, weight = whole(layer, _C), whole(layer, _O), whole(layer, _W) + 4 * n * _weights(layer)
    by_tap, by_row = whole(layer, _BY_TAP), whole(layer, _BY_ROW)
    for o in range(outs):
        for c in range(channels):
            for row in range(KERNEL):
                for column in range(KERNEL):
                    tap = (c * KERNEL + row) * KERNEL + column
                    value = real(weight, o * channels * KERNEL * KERNEL + tap)
                    put(by_tap, tap * outs + o, value)
                    put(by_row, ((row * outs + o) * channels + c) * KERNEL + column, value)


@njit
def _to_lanes(samples, count, used, rows, lanes):
    """Write samples of so many floats side by side; those beyond ``used`` are zero."""
    of_rows = count
    if used < LANES or count % LANES:
        of_rows = _up(count, LANES)
        _clear(rows, LANES * of_rows)
        for i in range(used):
            for j in range(count):
                put(rows, i * of_rows + j, real(samples, i * count + j))
        samples = rows
    transpose(LANES, count, samples, of_rows, lanes, LANES)


@njit
def _from_lanes(lanes, count, used, rows, samples):
    """Write the first ``used`` samples one after another."""
    if used == LANES and count % LANES == 0:
        transpose(count, LANES, lanes, LANES, samples, count)
        return
    of_rows = _up(count, LANES)
    transpose(count, LANES, lanes, LANES, rows, of_rows)
    for i in range(used):
        for j in range(count):
            put(samples, i * count + j, real(rows, i * of_rows + j))


@njit
def _convolve(layer, n, x, y, places):
    """Write the layer's output y_Ohh, and the places of the maxima."""
    side, outs = whole(layer, _H), whole(layer, _O)
    half, steps = _pooled(side), whole(layer, _C) * KERNEL * KERNEL
    weight, taps, bias = whole(layer, _BY_TAP), whole(layer, _TAPS), whole(layer, _BIAS) + 4 * n * outs
    plane = LANES * half * half
    for row in range(half):
        for column in range(half):
            window, pixel, o = x + 2 * _VECTOR * (row * side + column), LANES * (row * half + column), 0
            while o < outs:
                left, place = outs - o, o * plane + pixel
                if left > FEW_POOLED_ROWS:
                    pooled(weight + 4 * o, outs, window, taps, side, steps, min(POOLED_ROWS, left), bias + 4 * o,
                           y + 4 * place, places + place, plane)  # fmt: skip
                    o += POOLED_ROWS
                else:
                    pooled_few(weight + 4 * o, outs, window, taps, side, steps, min(FEW_POOLED_ROWS, left),
                               bias + 4 * o, y + 4 * place, places + place, plane)  # fmt: skip
                    o += FEW_POOLED_ROWS


@njit
def _spread(layer, of_y, places, of_pixels):
    """Write the gradient g_OSS of the pixels before the pooling; the odd last ones of an axis have none."""
    half = _pooled(whole(layer, _H))
    for o in range(whole(layer, _O)):
        total = whole(layer, _BIAS_SUMS) + _VECTOR * o
        for row in range(half):
            for column in range(half):
                pixel = LANES * ((o * half + row) * half + column)
                window = of_pixels + 2 * _VECTOR * ((2 * o * half + 2 * row) * half + column)
                unpool(of_y + 4 * pixel, places + pixel, window, 2 * half, total)


@njit
def _weigh(layer, of_pixels, x):
    """Add to the gradients of the weights, sample by sample."""
    side, outs, channels = whole(layer, _H), whole(layer, _O), whole(layer, _C)
    pixels, sums = 4 * _pooled(side) ** 2, whole(layer, _SUMS)
    for c in range(channels):
        for row in range(KERNEL):
            first, kernel = x + _VECTOR * (c * side + row) * side, sums + _VECTOR * (c * KERNEL + row) * KERNEL
            for o in range(0, outs, KERNEL_ROWS):
                kernel_sums(of_pixels + _VECTOR * o * pixels, LANES * pixels, first, whole(layer, _PIXELS), pixels,
                          min(KERNEL_ROWS, outs - o), kernel + _VECTOR * o * channels * KERNEL * KERNEL,
                          LANES * channels * KERNEL * KERNEL)  # fmt: skip


@njit
def _return(layer, of_pixels, of_x):
    """Add to the gradient of the layer's input x_CHH."""
    side, outs, channels = whole(layer, _H), whole(layer, _O), whole(layer, _C)
    after = 2 * _pooled(side)
    for row in range(after):
        for column in range(after):
            gradient = of_pixels + _VECTOR * (row * after + column)
            for down in range(KERNEL):
                weight = whole(layer, _BY_ROW) + 4 * down * outs * channels * KERNEL
                target = of_x + _VECTOR * ((row + down) * side + column)
                for c in range(0, channels, PIXEL_ROWS):
                    pixel_sums(weight + 4 * c * KERNEL, channels * KERNEL, gradient, LANES * after * after, outs,
                              min(PIXEL_ROWS, channels - c), target + _VECTOR * c * side * side,
                              LANES * side * side)  # fmt: skip
