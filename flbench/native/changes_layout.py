"""Where ``changes`` finds its arguments: whole numbers of 64 bits."""

from __future__ import annotations

from enum import IntEnum


class Field(IntEnum):
    """The numbers of a call, which come first."""

    LEAVES = 0
    CLIENTS = 1
    WEIGHTS = 2  #: address of the clients' weights, float32


class Leaf(IntEnum):
    """The numbers of a leaf."""

    FLOATS = 0  #: of one client, a multiple of ``LANES``
    AFTER = 1  #: address of the first client's numbers after training
    CLIENT = 2  #: bytes to those of the next one
    BEFORE = 3
    TOTAL = 4
