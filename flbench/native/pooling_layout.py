"""The arguments of the functions of ``pooling``: whole numbers of 64 bits, the first three of which are addresses."""

from __future__ import annotations

from enum import IntEnum

#: Channels that are computed at once: a register of AVX-512 in float32, or several smaller ones.
LANES = 16


class Number(IntEnum):
    """What each number is; images are in the order (B, row, column, C)."""

    X = 0  #: the images, or the gradient of their pixels (B, 2h, 2w, C)
    Y = 1  #: the maxima, or their gradient (B, h, w, C)
    PLACES = 2  #: bytes that say which pixel of each window (0 to 3) is the largest (B, h, w, C)
    ROWS = 3  #: B * h
    COLUMNS = 4  #: w
    CHANNELS = 5  #: C, a multiple of ``LANES``
    BYTES = 6  #: of a pixel's channel: 4 for float32, 2 for bfloat16
