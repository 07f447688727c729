"""Products of matrices in single precision, whose bits depend on nothing but their factors."""

from __future__ import annotations

from numba import njit

from flbench.native.vectors import SHAPES, TILES, WIDTH, real, transpose_square, whole

_WIDE, _ROWS = WIDTH * SHAPES[0][1], SHAPES[0][0]
_HALF, _HALF_ROWS = WIDTH * SHAPES[-2][1], SHAPES[-2][0]
_NARROW_ROWS = SHAPES[-1][0]
_wide_tile, _half_tile, _narrow_tile = TILES[0], TILES[-2], TILES[-1]


@njit
def product(
    m: int, n: int, k: int, a: int, lda: int, sa: int, b: int, ldb: int, start: int, of_start: int, c: int, ldc: int,
    floor: float, rate: float,
) -> None:  # fmt: skip
    """Write an m by n matrix c, or move it: see ``vectors.tile``, whose arguments these are. k is at least 1.

    Rows of b have room for whole registers beyond their n floats.
    """
    j = 0
    while j < n:
        left = n - j
        if left >= _WIDE:
            for i in range(0, m, _ROWS):
                _wide_tile(a + 4 * i * lda, lda, sa, b + 4 * j, ldb, start + 4 * i * of_start, of_start,
                           c + 4 * (i * ldc + j), ldc, k, min(_ROWS, m - i), _WIDE, floor, rate)  # fmt: skip
            j += _WIDE
        elif left > WIDTH:
            for i in range(0, m, _HALF_ROWS):
                _half_tile(a + 4 * i * lda, lda, sa, b + 4 * j, ldb, start + 4 * i * of_start, of_start,
                           c + 4 * (i * ldc + j), ldc, k, min(_HALF_ROWS, m - i), left, floor, rate)  # fmt: skip
            j += _HALF
        else:
            for i in range(0, m, _NARROW_ROWS):
                _narrow_tile(a + 4 * i * lda, lda, sa, b + 4 * j, ldb, start + 4 * i * of_start, of_start,
                             c + 4 * (i * ldc + j), ldc, k, min(_NARROW_ROWS, m - i), left, floor, rate)  # fmt: skip
            j += WIDTH


@njit
def transpose(rows: int, columns: int, source: int, of_source: int, target: int, of_target: int) -> None:
    """Write the transpose of a matrix; source and target have room for whole squares of registers."""
    for i in range(0, rows, WIDTH):
        for j in range(0, columns, WIDTH):
            transpose_square(source + 4 * (i * of_source + j), of_source, target + 4 * (j * of_target + i), of_target)


def one_product(arguments: int) -> None:
    """``product`` of the whole numbers at an address, then of the two floats at the address after them."""
    at = arguments
    product(whole(at, 0), whole(at, 1), whole(at, 2), whole(at, 3), whole(at, 4), whole(at, 5), whole(at, 6),
            whole(at, 7), whole(at, 8), whole(at, 9), whole(at, 10), whole(at, 11),
            real(whole(at, 12), 0), real(whole(at, 12), 1))  # fmt: skip
