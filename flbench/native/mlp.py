"""The passes and the local steps of a stack of multi-layer perceptrons, client by client.

A client's activations lie with the samples of a batch side by side, a row for each neuron. Then neither pass needs a
transposed copy of the weights, which stay as torch has them. Rows have room for whole registers; what is in them beyond
the samples reaches no other number. Every sum has one order, most are one chain, so the bits of a client depend on
nothing but its own numbers (``products``).

The functions read their arguments where ``mlp_layout`` says. They compute in single precision: constants are float32,
because a Python number would make an expression double.

Shape suffixes: N clients, E local steps, B samples, D neurons, Y classes.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from flbench.native.convolution_layout import LANES
from flbench.native.elementwise import exponential, logarithm
from flbench.native.lanes import each, multiply_add, over_lanes, vector
from flbench.native.mlp_layout import Field, Kind, Operation, Part
from flbench.native.normalizations import factor_varies, norm_factor, of_batch
from flbench.native.products import product, transpose
from flbench.native.vectors import WIDTH, byte, put, real, whole

_F = np.float32
_ZERO, _ONE, _LOWEST, _KEPT = _F(0), _F(1), _F(-np.inf), _F(-1)

_FIRST_LAYER = 8 * len(Field)
_OF_LAYER = 8 * len(Part)


def run(head: int) -> None:
    """Do an operation for every client."""
    operation, batch = whole(head, Field.OPERATION), whole(head, Field.BATCH)
    for n in range(whole(head, Field.CLIENTS)):
        memory = whole(head, Field.MEMORY) + n * whole(head, Field.CLIENT)
        first = n * whole(head, Field.STEPS)
        if operation == Operation.TRAIN:
            put(whole(head, Field.LOSSES), n, _train(head, n, memory))
        elif operation == Operation.FORWARD:
            _forward(head, n, memory, _rows(head, first), batch)
        elif operation == Operation.LOSS:
            size = _size(head, first)
            of_logits = whole(head, Field.OF_LOGITS) + 4 * n * whole(head, Field.CLASSES) * whole(head, Field.ROW)
            put(whole(head, Field.LOSSES), n, _loss(head, memory, _rows(head, first), batch, size, of_logits))
        else:
            of_logits = whole(head, Field.OF_LOGITS) + 4 * n * whole(head, Field.CLASSES) * whole(head, Field.ROW)
            _backward(head, n, memory, batch, of_logits, _KEPT)


@njit
def _train(head: int, n: int, memory: int) -> np.float32:
    """Take a client's local steps, and return the sum of their losses."""
    rate, loss = real(whole(head, Field.RATES), n), _ZERO
    for e in range(whole(whole(head, Field.TAKEN), n)):
        at = n * whole(head, Field.STEPS) + e
        rows, size = _rows(head, at), _size(head, at)
        _forward(head, n, memory, rows, size)
        loss += _loss(head, memory, rows, size, size, whole(head, Field.OF_LOGITS))
        _backward(head, n, memory, size, whole(head, Field.OF_LOGITS), rate)
    return loss


@njit
def _rows(head: int, step: int) -> int:
    return whole(head, Field.ROWS) + 8 * step * whole(head, Field.BATCH)


@njit
def _size(head: int, step: int) -> int:
    sizes = whole(head, Field.SIZES)
    return whole(sizes, step) if sizes else whole(head, Field.BATCH)


@njit
def _padded(floats: int) -> int:
    return (floats + WIDTH - 1) // WIDTH * WIDTH


@njit
def _forward(head: int, n: int, memory: int, rows: int, size: int) -> None:
    """Compute all activations of a batch: first its samples, as rows and neuron by neuron, then each layer's output."""
    inputs, row = whole(head, Field.INPUTS), whole(head, Field.ROW)
    width = _padded(inputs)
    _gather(head, memory, rows, size, width)
    x = memory + 4 * _padded(whole(head, Field.BATCH)) * width
    transpose(size, inputs, memory, width, x, row)
    for layer in range(whole(head, Field.LAYERS)):
        at = head + _FIRST_LAYER + layer * _OF_LAYER
        y = memory + whole(at, Part.Y)
        if whole(at, Part.KIND) == Kind.DENSE:
            d, out = whole(at, Part.INPUTS), whole(at, Part.OUTPUTS)
            weight, bias = whole(at, Part.WEIGHT) + 4 * n * d * out, whole(at, Part.BIAS)
            start = bias + 4 * n * out if bias else whole(head, Field.CONSTANTS)
            floor = _ZERO if whole(at, Part.RELU) else _LOWEST
            product(out, size, d, weight, d, 1, x, row, start, 1 if bias else 0, y, row, floor, _KEPT)
        else:
            _normalize(at, n, memory, x, y, size, row)
        x = y


@njit
def _gather(head: int, memory: int, rows: int, size: int, width: int) -> None:
    """Copy the samples of a batch, bytes as torch converts them (``device_data.as_input``)."""
    images, inputs, scale = whole(head, Field.IMAGES), whole(head, Field.INPUTS), whole(head, Field.SCALE)
    white, mean, deviation = real(scale, 0), real(scale, 1), real(scale, 2)
    for b in range(size):
        first, to = whole(rows, b) * inputs, memory + 4 * b * width
        if whole(head, Field.ARE_BYTES):
            for i in range(inputs):
                put(to, i, (_F(byte(images + first, i)) / white - mean) / deviation)
        else:
            for i in range(inputs):
                put(to, i, real(images + 4 * first, i))


@njit
def _loss(head: int, memory: int, rows: int, batch: int, size: int, of_logits: int) -> np.float32:
    """Return the mean cross-entropy of the first ``size`` samples, and write its gradient by the logits of all."""
    row, classes, labels = whole(head, Field.ROW), whole(head, Field.CLASSES), whole(head, Field.LABELS)
    last = head + _FIRST_LAYER + (whole(head, Field.LAYERS) - 1) * _OF_LAYER
    z = memory + whole(last, Part.Y)
    spare = whole(head, Field.SPARE)
    largest, total = spare, spare + 4 * row
    share = _ONE / _F(max(size, 1))
    for b in range(batch):
        put(largest, b, real(z, b))
        put(total, b, _ZERO)
    for y in range(1, classes):
        for b in range(batch):
            put(largest, b, max(real(z + 4 * y * row, b), real(largest, b)))
    for y in range(classes):
        for b in range(batch):
            e = exponential(real(z + 4 * y * row, b) - real(largest, b))
            put(of_logits + 4 * y * row, b, e)
            put(total, b, real(total, b) + e)
    loss = _ZERO
    for b in range(size):
        loss += logarithm(real(total, b)) + real(largest, b) - real(z, whole(labels, whole(rows, b)) * row + b)
    for b in range(batch):
        put(total, b, (share if b < size else _ZERO) / real(total, b))
    for y in range(classes):
        for b in range(batch):
            put(of_logits + 4 * y * row, b, real(of_logits + 4 * y * row, b) * real(total, b))
    for b in range(size):
        own = whole(labels, whole(rows, b)) * row + b
        put(of_logits, own, real(of_logits, own) - share)
    return loss * share


@njit
def _backward(head: int, n: int, memory: int, size: int, of_logits: int, rate: np.float32) -> None:
    """Compute the gradient of all parameters, or, with a ``rate``, move them against it."""
    row, inputs = whole(head, Field.ROW), whole(head, Field.INPUTS)
    zeros = whole(head, Field.CONSTANTS)
    spare, widest = whole(head, Field.SPARE), 4 * whole(head, Field.WIDEST)
    g = of_logits
    for layer in range(whole(head, Field.LAYERS) - 1, -1, -1):
        at = head + _FIRST_LAYER + layer * _OF_LAYER
        d, out, y = whole(at, Part.INPUTS), whole(at, Part.OUTPUTS), memory + whole(at, Part.Y)
        if layer == whole(head, Field.FEATURES) - 1 and whole(head, Field.OF_FEATURES):
            added = whole(head, Field.OF_FEATURES) + 4 * n * out * row
            for i in range(out * row):
                put(g, i, real(added, i) + real(g, i))
        if whole(at, Part.RELU):
            for i in range(out * row):
                put(g, i, real(g, i) if real(y, i) > _ZERO else _ZERO)
        of_x = spare if g != spare else spare + widest
        if layer == 0 and whole(head, Field.OF_IMAGES):
            of_x = whole(head, Field.OF_IMAGES) + 4 * n * d * row
        if whole(at, Part.KIND) != Kind.DENSE:
            _of_normalization(head, at, n, memory, g, of_x, spare + 2 * widest, size, rate)
            g = of_x
            continue
        if layer:
            x, lines, width = memory + whole(at - _OF_LAYER, Part.Y), spare + 2 * widest, _padded(d)
            transpose(d, size, x, row, lines, width)
        else:
            lines, width = memory, _padded(inputs)
        weight = whole(at, Part.WEIGHT) + 4 * n * d * out
        if layer or whole(head, Field.OF_IMAGES):
            product(d, size, out, weight, 1, d, g, row, zeros, 0, of_x, row, _LOWEST, _KEPT)
        product(out, d, size, g, row, 1, lines, width, zeros, 0,
                whole(at, Part.OF_WEIGHT) + 4 * n * d * out, d, _LOWEST, rate)  # fmt: skip
        if whole(at, Part.BIAS):
            _sum_rows(head, out, size, g, whole(at, Part.OF_BIAS) + 4 * n * out, rate)
        g = of_x


@njit
def _sum_rows(head: int, rows: int, size: int, values: int, to: int, rate: np.float32) -> None:
    """Sum each row over the samples: a product with ones, because a row alone is no work for registers."""
    zeros, row = whole(head, Field.CONSTANTS), whole(head, Field.ROW)
    product(rows, 1, size, values, row, 1, zeros + 64, 0, zeros, 0, to, 1, _LOWEST, rate)


@njit
def _mean_product(left: int, right: int, size: int) -> np.float32:
    """The mean over the samples of the products of two rows, as a tree; without a right one, of the left."""
    sums, rest, one = each(_ZERO), size - size % LANES, each(_ONE)
    for b in range(0, rest, LANES):
        sums = multiply_add(vector(left + 4 * b), vector(right + 4 * b) if right else one, sums)
    total = over_lanes(sums)
    for b in range(rest, size):
        total += real(left, b) * (real(right, b) if right else _ONE)
    return total / _F(size)


@njit
def _normalize(at: int, n: int, memory: int, x: int, y: int, size: int, row: int) -> None:
    """Write a normalization's output, and keep what the backward pass needs."""
    width, normalized = whole(at, Part.OUTPUTS), memory + whole(at, Part.NORMALIZED)
    if whole(at, Part.KIND) == Kind.BATCH:
        _standardize_neurons(at, n, x, normalized, size, row)
    else:
        _standardize_samples(at, n, x, normalized, size, row)
    gains, shifts = whole(at, Part.WEIGHT), whole(at, Part.BIAS)
    for i in range(width):
        gain = real(gains, n * width + i) if gains else _ONE
        shift = real(shifts, n * width + i) if shifts else _ZERO
        for b in range(size):
            value = real(normalized + 4 * i * row, b) * gain + shift
            put(y + 4 * i * row, b, _ZERO if whole(at, Part.RELU) and value < _ZERO else value)


@njit
def _standardize_neurons(at: int, n: int, x: int, normalized: int, size: int, row: int) -> None:
    """Write each neuron's output before gains, and its factor."""
    width, number, momentum = whole(at, Part.OUTPUTS), real(whole(at, Part.NUMBER), n), whole(at, Part.MOMENTUM)
    running, variances = whole(at, Part.RUNNING_MEAN), whole(at, Part.RUNNING_VAR)
    for i in range(width):
        values, out, own = x + 4 * i * row, normalized + 4 * i * row, 4 * (n * width + i)
        mean = _mean_product(values, 0, size)
        for b in range(size):
            put(out, b, real(values, b) - mean)
        square = _mean_product(out, out, size) * _F(size)
        mean, factor = of_batch(mean, square, size, number, running + own, variances + own, momentum)
        for b in range(size):
            put(out, b, (real(values, b) - mean) * factor)
        put(normalized + 4 * width * row, i, factor)


@njit
def _standardize_samples(at: int, n: int, x: int, normalized: int, size: int, row: int) -> None:
    """Write each sample's output before gains, and the factors of its groups."""
    kind, width, groups = whole(at, Part.KIND), whole(at, Part.OUTPUTS), whole(at, Part.GROUPS)
    number = real(whole(at, Part.NUMBER), n)
    factors, d = normalized + 4 * width * row, width // groups
    for group in range(groups):
        first, last, factor = group * d, (group + 1) * d, factors + 4 * group * row
        for b in range(size):
            put(factor, b, _ZERO)
        if whole(at, Part.CENTRED):
            for i in range(first, last):
                for b in range(size):
                    put(factor, b, real(factor, b) + real(x + 4 * i * row, b))
            for b in range(size):
                put(factor, b, real(factor, b) / _F(d))
        for i in range(first, last):
            for b in range(size):
                put(normalized + 4 * i * row, b, real(x + 4 * i * row, b) - real(factor, b))
        for b in range(size):
            put(factor, b, _ZERO)
        if kind == Kind.VARIANCE or kind == Kind.LENGTH:
            for i in range(first, last):
                for b in range(size):
                    c = real(normalized + 4 * i * row, b)
                    put(factor, b, real(factor, b) + c * c)
        for b in range(size):
            put(factor, b, norm_factor(kind, real(factor, b), d, number))
        for i in range(first, last):
            for b in range(size):
                put(normalized + 4 * i * row, b, real(normalized + 4 * i * row, b) * real(factor, b))


@njit
def _of_normalization(
    head: int, at: int, n: int, memory: int, g: int, of_x: int, spare: int, size: int, rate: np.float32
) -> None:
    """Write the gradient by a normalization's input; g is overwritten.

    For y = r (x - mean) with r = 1 / sqrt(mean((x - mean)^2) + eps) it is r (g - mean(g) - y mean(g y)), without
    mean(g) if no mean is subtracted, and without the last term where r does not depend on x.
    """
    kind, width, groups = whole(at, Part.KIND), whole(at, Part.OUTPUTS), whole(at, Part.GROUPS)
    row, number, normalized = (
        whole(head, Field.ROW),
        real(whole(at, Part.NUMBER), n),
        memory + whole(at, Part.NORMALIZED),
    )
    factors, d = normalized + 4 * width * row, width // groups
    gains, shifts = whole(at, Part.WEIGHT), whole(at, Part.BIAS)
    for i in range(width):
        gain = real(gains, n * width + i) if gains else _ONE
        for b in range(size):
            put(of_x + 4 * i * row, b, real(g + 4 * i * row, b) * gain)
    if shifts:
        _sum_rows(head, width, size, g, whole(at, Part.OF_BIAS) + 4 * n * width, rate)
    if gains:
        for i in range(width):
            for b in range(size):
                put(g + 4 * i * row, b, real(g + 4 * i * row, b) * real(normalized + 4 * i * row, b))
        _sum_rows(head, width, size, g, whole(at, Part.OF_WEIGHT) + 4 * n * width, rate)
    if kind == Kind.BATCH:
        for i in range(width):
            values, y, factor_i = of_x + 4 * i * row, normalized + 4 * i * row, real(factors, i)
            of_mean, of_y = _mean_product(values, 0, size), _mean_product(values, y, size)
            for b in range(size):
                put(values, b, (real(values, b) - of_mean - real(y, b) * of_y) * factor_i)
        return
    mean, along = spare, spare + 4 * row
    for group in range(groups):
        first, last, factor = group * d, (group + 1) * d, factors + 4 * group * row
        for b in range(size):
            put(mean, b, _ZERO)
            put(along, b, _ZERO)
        for i in range(first, last):
            for b in range(size):
                value = real(of_x + 4 * i * row, b)
                put(mean, b, real(mean, b) + value)
                put(along, b, real(along, b) + value * real(normalized + 4 * i * row, b))
        for b in range(size):
            put(mean, b, real(mean, b) / _F(d) if whole(at, Part.CENTRED) else _ZERO)
            varies = factor_varies(kind, real(factor, b), d, number)
            put(along, b, real(along, b) / _F(d) if varies else _ZERO)
        for i in range(first, last):
            for b in range(size):
                value = real(of_x + 4 * i * row, b) - real(mean, b)
                value -= real(normalized + 4 * i * row, b) * real(along, b)
                put(of_x + 4 * i * row, b, value * real(factor, b))
