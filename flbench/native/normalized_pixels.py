"""Normalization of what a convolution computes, together with the max-pooling after it, for ``LANES`` samples at once.

With samples side by side the statistics of a group of channels are sums of vectors: of each channel one chain in order,
then of the channels. Those of a batch are joined from its samples'. Letters as in ``convolution_layout``; h rows and
columns after the pooling.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from flbench.native.convolution_layout import LANES, Part
from flbench.native.lanes import each, multiply_add, over_lanes, put_vector, vector, where_positive
from flbench.native.mlp_layout import Kind
from flbench.native.normalizations import factor_varies, norm_factor, of_batch
from flbench.native.vectors import put, real, whole
from flbench.native.windows import at_place, pool

_F = np.float32
_ZERO = _F(0)
_VECTOR = 4 * LANES

#: Of a group: vectors of statistics.
_KEPT = 4


@njit
def activations(layer: int, number: int) -> int:
    """Return the address of the activations (O, A, A) of the vector of samples with this number."""
    after = whole(layer, Part.AFTER)
    return whole(layer, Part.ACTIVATIONS) + _VECTOR * number * whole(layer, Part.OUTS) * after * after


@njit
def _statistics(layer: int, number: int, group: int) -> int:
    """Address of the mean of a group; the factor, and means of the gradient, are ``GROUPS`` vectors further each."""
    return whole(layer, Part.STATISTICS) + _VECTOR * (_KEPT * number * whole(layer, Part.GROUPS) + group)


@njit
def _elements(layer: int) -> int:
    """Elements of a group."""
    after = whole(layer, Part.AFTER)
    return whole(layer, Part.OUTS) // whole(layer, Part.GROUPS) * after * after


@njit
def _affine(layer: int, part: Part, n: int, o: int) -> int:
    """Address of the gains, or shifts, of a client's channel; 0: none."""
    first, size = whole(layer, part), whole(layer, Part.GAIN_PIXELS)
    return first + 4 * (n * whole(layer, Part.OUTS) + o) * size if first else 0


@njit
def normalize(layer: int, n: int, number: int, y: int) -> None:
    """Write the layer's output y_Ohh from activations that are measured, and the places of the maxima."""
    after, outs, groups = whole(layer, Part.AFTER), whole(layer, Part.OUTS), whole(layer, Part.GROUPS)
    half, by_pixel = after // 2, whole(layer, Part.GAIN_PIXELS) > 1
    places, relu = whole(layer, Part.PLACES) + LANES * number * outs * half * half, 1 - whole(layer, Part.RELU_FIRST)
    for o in range(outs):
        x = activations(layer, number) + _VECTOR * o * after * after
        statistics = _statistics(layer, number, o // (outs // groups))
        mean, factor = vector(statistics), vector(statistics + _VECTOR * groups)
        gains, shifts = _affine(layer, Part.GAINS, n, o), _affine(layer, Part.SHIFTS, n, o)
        for row in range(half):
            for column in range(half):
                at, to = 2 * (row * after + column), (o * half + row) * half + column
                first = _mapped(x, at, mean, factor, gains, shifts, by_pixel)
                second = _mapped(x, at + 1, mean, factor, gains, shifts, by_pixel)
                third = _mapped(x, at + after, mean, factor, gains, shifts, by_pixel)
                fourth = _mapped(x, at + after + 1, mean, factor, gains, shifts, by_pixel)
                pool(first, second, third, fourth, relu, y + _VECTOR * to, places + LANES * to)


@njit
def _mapped(x, at, mean, factor, gains, shifts, by_pixel):  # type: ignore[no-untyped-def]
    """The normalized pixel with this number, after the affine map."""
    value, place = (vector(x + _VECTOR * at) - mean) * factor, at if by_pixel else 0
    if gains:
        value = value * each(real(gains, place))
    if shifts:
        value = value + each(real(shifts, place))
    return value


@njit
def measure(layer: int, n: int, number: int) -> None:
    """Write mean and factor of each group of activations; of a batch the sum of squares, which are then joined."""
    after, outs, groups = whole(layer, Part.AFTER), whole(layer, Part.OUTS), whole(layer, Part.GROUPS)
    pixels, d, kind = after * after, _elements(layer), whole(layer, Part.NORM)
    given = real(whole(layer, Part.NUMBER), n)
    for group in range(groups):
        first, last = group * (outs // groups), (group + 1) * (outs // groups)
        x, statistics = activations(layer, number), _statistics(layer, number, group)
        mean = square = each(_ZERO)
        if whole(layer, Part.CENTRED):
            for o in range(first, last):
                of_channel = each(_ZERO)
                for pixel in range(o * pixels, (o + 1) * pixels):
                    of_channel = of_channel + vector(x + _VECTOR * pixel)
                mean = mean + of_channel
            mean = mean / each(_F(d))
        for o in range(first, last):
            of_channel = each(_ZERO)
            for pixel in range(o * pixels, (o + 1) * pixels):
                value = vector(x + _VECTOR * pixel) - mean
                of_channel = multiply_add(value, value, of_channel)
            square = square + of_channel
        put_vector(statistics, mean)
        factor = statistics + _VECTOR * groups
        put_vector(factor, square)
        if kind != Kind.BATCH:
            for lane in range(LANES):
                put(factor, lane, norm_factor(kind, real(factor, lane), d, given))


@njit
def join_measured(layer: int, n: int, first: int, batch: int) -> None:
    """Write mean and factor of each channel over a batch, whose ``first`` vector of samples has this number.

    Samples beyond the batch have the factor 0, so their gradient is 0.
    """
    groups, d, given = whole(layer, Part.GROUPS), _elements(layer), real(whole(layer, Part.NUMBER), n)
    momentum = whole(layer, Part.MOMENTUM)
    running, variances = whole(layer, Part.RUNNING_MEAN), whole(layer, Part.RUNNING_VAR)
    for group in range(groups):
        mean, own = _total(layer, first, group, batch) / _F(batch), 4 * (n * groups + group)
        square = _total(layer, first, groups + group, batch)
        for b in range(batch):
            deviation = real(_statistics(layer, first + b // LANES, group), b % LANES) - mean
            square += _F(d) * deviation * deviation
        mean, factor = of_batch(mean, square, batch * d, given, running + own, variances + own, momentum)
        for b in range((batch + LANES - 1) // LANES * LANES):
            put(_statistics(layer, first + b // LANES, group), b % LANES, mean)
            put(_statistics(layer, first + b // LANES, groups + group), b % LANES, factor if b < batch else _ZERO)


@njit
def join_of_measured(layer: int, first: int, batch: int) -> None:
    """Replace the means of the gradient of each sample by those over the batch."""
    groups = whole(layer, Part.GROUPS)
    for place in range(2 * groups, 4 * groups):
        mean = _total(layer, first, place, batch) / _F(batch)
        for b in range(batch):
            put(_statistics(layer, first + b // LANES, place), b % LANES, mean)


@njit
def _total(layer: int, first: int, place: int, batch: int) -> np.float32:
    """Sum the statistic at this place over the samples of a batch."""
    total = _ZERO
    for b in range(batch):
        total += real(_statistics(layer, first + b // LANES, place), b % LANES)
    return total


@njit
def clear_gains(layer: int, n: int) -> None:
    """Set the gradients of a client's gains and shifts to 0."""
    count = whole(layer, Part.OUTS) * whole(layer, Part.GAIN_PIXELS)
    for part in (Part.OF_GAINS, Part.OF_SHIFTS):
        to = _affine(layer, part, n, 0)
        if to:
            for i in range(count):
                put(to, i, _ZERO)


@njit
def measure_gradient(layer: int, n: int, number: int, of_y: int) -> None:
    """Write for each group the means of the gradient g and of g y, y normalized; add to the gradients of parameters."""
    after, outs, groups = whole(layer, Part.AFTER), whole(layer, Part.OUTS), whole(layer, Part.GROUPS)
    d, half, pixels, given = _elements(layer), after // 2, after * after, real(whole(layer, Part.NUMBER), n)
    by_pixel, kind, windows = whole(layer, Part.GAIN_PIXELS) > 1, whole(layer, Part.NORM), half * half
    for group in range(groups):
        statistics = _statistics(layer, number, group)
        mean, factor = vector(statistics), vector(statistics + _VECTOR * groups)
        of_mean = along = each(_ZERO)
        for o in range(group * (outs // groups), (group + 1) * (outs // groups)):
            x = activations(layer, number) + _VECTOR * o * pixels
            places = whole(layer, Part.PLACES) + LANES * (number * outs + o) * windows
            gains, of_gains = _affine(layer, Part.GAINS, n, o), _affine(layer, Part.OF_GAINS, n, o)
            of_shifts = _affine(layer, Part.OF_SHIFTS, n, o)
            of_gain = of_shift = each(_ZERO)
            for window in range(windows):
                gradient = vector(of_y + _VECTOR * (o * windows + window))
                for j in range(4):
                    at = (2 * (window // half) + j // 2) * after + 2 * (window % half) + j % 2
                    place = at if by_pixel else 0
                    g = at_place(gradient, places + LANES * window, j)
                    value = (vector(x + _VECTOR * at) - mean) * factor
                    if by_pixel:
                        if of_gains:
                            put(of_gains, at, real(of_gains, at) + over_lanes(g * value))
                        if of_shifts:
                            put(of_shifts, at, real(of_shifts, at) + over_lanes(g))
                    else:
                        of_gain, of_shift = multiply_add(g, value, of_gain), of_shift + g
                    if gains:
                        g = g * each(real(gains, place))
                    of_mean, along = of_mean + g, multiply_add(g, value, along)
            if of_gains and not by_pixel:
                put(of_gains, 0, real(of_gains, 0) + over_lanes(of_gain))
            if of_shifts and not by_pixel:
                put(of_shifts, 0, real(of_shifts, 0) + over_lanes(of_shift))
        of_mean = of_mean / each(_F(d)) if whole(layer, Part.CENTRED) else each(_ZERO)
        put_vector(statistics + 2 * _VECTOR * groups, of_mean)
        kept = statistics + 3 * _VECTOR * groups
        put_vector(kept, along / each(_F(d)))
        for lane in range(LANES):
            if not factor_varies(kind, real(statistics + _VECTOR * groups, lane), d, given):
                put(kept, lane, _ZERO)


@njit
def of_normalized(layer: int, n: int, number: int, of_y: int, of_x: int) -> None:
    """Write the gradient of_x_OAA of the convolution's output from that of the layer's output, which is measured.

    For y = r (x - mean) with r = 1 / sqrt(mean((x - mean)^2) + eps) it is r (g - mean(g) - y mean(g y)), without
    mean(g) if no mean is subtracted, and without the last term where r does not depend on x.
    """
    after, outs, groups = whole(layer, Part.AFTER), whole(layer, Part.OUTS), whole(layer, Part.GROUPS)
    half, pixels, by_pixel = after // 2, after * after, whole(layer, Part.GAIN_PIXELS) > 1
    for o in range(outs):
        x, to = activations(layer, number) + _VECTOR * o * pixels, of_x + _VECTOR * o * pixels
        statistics = _statistics(layer, number, o // (outs // groups))
        mean, factor = vector(statistics), vector(statistics + _VECTOR * groups)
        of_mean, along = vector(statistics + 2 * _VECTOR * groups), vector(statistics + 3 * _VECTOR * groups)
        gains, total = _affine(layer, Part.GAINS, n, o), each(_ZERO)
        for row in range(after):
            for column in range(after):
                at, g = row * after + column, each(_ZERO)
                if row < 2 * half and column < 2 * half:  # else nothing is pooled
                    window = (o * half + (row >> 1)) * half + (column >> 1)
                    places = whole(layer, Part.PLACES) + LANES * (number * outs * half * half + window)
                    g = at_place(vector(of_y + _VECTOR * window), places, 2 * (row & 1) + (column & 1))
                    if gains:
                        g = g * each(real(gains, at if by_pixel else 0))
                activation = vector(x + _VECTOR * at)
                g = (g - of_mean - (activation - mean) * factor * along) * factor
                if whole(layer, Part.RELU_FIRST):
                    g = where_positive(activation, g)
                put_vector(to + _VECTOR * at, g)
                total = total + g
        bias = whole(layer, Part.BIAS_SUMS) + _VECTOR * o
        put_vector(bias, vector(bias) + total)
