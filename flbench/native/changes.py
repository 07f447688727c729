"""The weighted sum of clients' changes, in one pass over the weights.

As in ``vectors``, this module imports numba, and memory is addressed by whole numbers (bytes).
"""

from __future__ import annotations

from flbench.native.changes_layout import Field, Leaf
from flbench.native.convolution_layout import LANES
from flbench.native.lanes import each, multiply_add, put_vector, vector
from flbench.native.vectors import real, whole

_FIRST_LEAF, _OF_LEAF = 8 * len(Field), 8 * len(Leaf)


def add(head: int) -> None:
    """Add weight * (after - before) of one client after the other to the total of each leaf, as torch rounds it."""
    weights, clients = whole(head, Field.WEIGHTS), whole(head, Field.CLIENTS)
    for number in range(whole(head, Field.LEAVES)):
        leaf = head + _FIRST_LEAF + number * _OF_LEAF
        after, before, total = whole(leaf, Leaf.AFTER), whole(leaf, Leaf.BEFORE), whole(leaf, Leaf.TOTAL)
        client = whole(leaf, Leaf.CLIENT)
        for at in range(0, 4 * whole(leaf, Leaf.FLOATS), 4 * LANES):
            x, sums = vector(before + at), vector(total + at)
            for n in range(clients):
                sums = multiply_add(each(real(weights, n)), vector(after + n * client + at) - x, sums)
            put_vector(total + at, sums)
