"""Where ``convolutions`` and ``pooling`` find their arguments: whole numbers of 64 bits, most of them addresses.

A normalization stands between the convolution and the pooling, before the ReLU or after it.

Letters: C channels in, O channels out, k rows and columns of a kernel, A rows and columns after the convolution.
"""

from __future__ import annotations

from enum import IntEnum

#: Samples that lie side by side in memory on every CPU: one register of AVX-512, or several smaller ones.
LANES = 16

#: Rows and columns of all kernels, and of all pooling windows.
KERNEL, POOL = 5, 2


class Field(IntEnum):
    """The numbers of a stack, which come first."""

    CLIENTS = 0  #: N
    BATCH = 1  #: B
    LAYERS = 2
    IMAGES = 3  #: address of the images (N, B, PIXELS)
    PIXELS = 4
    FEATURES = 5  #: address of the features (N, B, WIDTH), or of their gradient (N, WIDTH, B filled up to ``LANES``)
    WIDTH = 6
    ROWS = 7  #: address of memory for ``LANES`` images, or outputs of any layer
    OUT = 8  #: the same for every vector of samples of a client
    IN = 9  #: the same again
    ROOM = 10  #: bytes from one of these vectors to the next
    OF_PIXELS = 11  #: address of memory for the gradient of the pixels (O, AFTER, AFTER) of any layer


class Part(IntEnum):
    """The numbers of a layer."""

    CHANNELS = 0  #: C
    SIDE = 1  #: rows and columns of its input
    OUTS = 2  #: O
    WEIGHT = 3  #: address of the weights of the first client
    BIAS = 4
    OF_WEIGHT = 5  #: address of their gradient
    OF_BIAS = 6
    X = 7  #: address of the layer's input, a vector of samples for each pixel
    PLACES = 8  #: address of the bytes that say which pixel of each window was the largest
    TAPS = 9  #: address of the number of floats from a window's first pixel to each that a kernel needs (C, k, k)
    STARTS = 10  #: the same from the first pixel to each at which a kernel is placed
    BY_TAP = 11  #: address of memory for a client's weights as (C, k, k, O)
    BY_ROW = 12  #: the same as (k, O, C, k)
    SUMS = 13  #: address of memory for the gradient of a client's weights, a vector for each
    BIAS_SUMS = 14
    AFTER = 15  #: A; without a normalization only those that are pooled
    NORM = 16  #: ``Kind`` of the normalization; ``DENSE``: none
    RELU_FIRST = 17  #: whether ReLU comes before it
    GROUPS = 18  #: of channels, each with statistics of its own
    CENTRED = 19  #: whether their mean is subtracted
    NUMBER = 20  #: address of each client's ``eps``, or factor
    GAINS = 21  #: address of the gains of the first client, 0: none
    SHIFTS = 22
    OF_GAINS = 23  #: address of their gradient
    OF_SHIFTS = 24
    GAIN_PIXELS = 25  #: gains and shifts of a channel: 1, or one for each of its pixels (A * A)
    ACTIVATIONS = 26  #: address of what is normalized (O, A, A), a vector of samples each, for every vector
    STATISTICS = 27  #: address of means, factors, and two means of the gradient (GROUPS each), for every vector
    RUNNING_MEAN = 28  #: as of ``mlp_layout``
    RUNNING_VAR = 29
    MOMENTUM = 30


class Pooling(IntEnum):
    """The numbers of ``pooling``, which computes ``LANES`` channels at once; images are (B, row, column, C)."""

    X = 0  #: address of the images, or of the gradient of their pixels (B, 2h, 2w, C)
    Y = 1  #: address of the maxima, or of their gradient (B, h, w, C)
    PLACES = 2  #: address of the bytes that say which pixel of each window was the largest, 4: ReLU returned 0
    ROWS = 3  #: B * h
    COLUMNS = 4  #: w
    CHANNELS = 5  #: C, a multiple of ``LANES``
    BYTES = 6  #: of a pixel's channel: 4 for float32, 2 for bfloat16
    RELU = 7  #: whether ReLU follows
