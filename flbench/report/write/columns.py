"""How columns are put into a limited width."""

from __future__ import annotations

from collections.abc import Sequence


def fitting(sizes: Sequence[float], room: float) -> list[list[int]]:
    """Return column numbers in groups whose sizes fit into ``room``; at least one column a group."""
    groups: list[list[int]] = [[]]
    for c, size in enumerate(sizes):
        if groups[-1] and sum(sizes[other] for other in groups[-1]) + size > room:
            groups.append([])
        groups[-1].append(c)
    return groups
