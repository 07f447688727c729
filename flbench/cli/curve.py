"""A curve in the terminal: braille dots, two to the column and four to the line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

#: Bits of the dots of one braille character, by column, from the top.
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))


def curve(
    points: Sequence[tuple[float, float]],
    x_max: float,
    *,
    width: int = 60,
    height: int = 10,
    top: float = 1.0,
    text: Callable[[float], str] = lambda y: f"{100 * y:.0f} %",
) -> list[str]:
    """Return lines of text that draw ``points`` (x rising from 0 to ``x_max``, y from 0 to ``top``), with a scale.

    Neighbouring points are joined, so that few of them make a curve too. ``text`` writes the scale's numbers.
    """
    points = [(x, y / top) for x, y in points]
    labels = {0: text(top), height // 2: text(top / 2), height - 1: text(0)}
    margin = max(5, *map(len, labels.values()))
    cells = [[0] * width for _ in range(height)]
    for x, y in _joined(points, x_max, columns=2 * width):
        row = round((1 - y) * (4 * height - 1))
        cells[row // 4][x // 2] |= _DOTS[x % 2][row % 4]
    lines = []
    for number, row_cells in enumerate(cells):
        dots = "".join(chr(0x2800 + bits) for bits in row_cells).rstrip("⠀")
        lines.append(f"{labels.get(number, ''):>{margin}} ┤{dots}")
    blank = " " * margin
    return [*lines, f"{blank} └{'─' * width}", f"{blank}  0{f'round {x_max:g}':>{width - 1}}"]


def _joined(points: Sequence[tuple[float, float]], x_max: float, *, columns: int) -> list[tuple[int, float]]:
    """One y per dot column between the first and the last point, linear between neighbours."""
    places = [(round(x / x_max * (columns - 1)), min(1.0, max(0.0, y))) for x, y in points]
    dots = dict(places)
    for (left, low), (right, high) in pairwise(places):
        for x in range(left + 1, right):
            dots[x] = low + (high - low) * (x - left) / (right - left)
    return sorted(dots.items())
