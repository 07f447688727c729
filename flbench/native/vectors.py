"""Operations on the CPU's vector registers, which numba's functions call: a tile of a matrix product, and transposing.

Memory is addressed by whole numbers (bytes), strides count floats. Sizes are such that a register holds ``WIDTH``
floats. This module imports numba; others import it where they compile (``flbench.native``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import llvmlite.binding
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from flbench.errors import UserError

_I32, _I64, _FLOAT = ir.IntType(32), ir.IntType(64), ir.FloatType()


def vector_width() -> int:
    """Return how many floats a register of this CPU holds.

    Raises:
        UserError: the CPU has no fused multiply-add of vectors.
    """
    features = llvmlite.binding.get_host_cpu_features()
    if features.get("avx512f"):
        return 16
    if features.get("avx2") and features.get("fma"):
        return 8
    if features.get("neon"):  # in every 64-bit ARM
        return 4
    raise UserError("this CPU has none of AVX-512, AVX2 with FMA, and NEON")


WIDTH = vector_width()

#: Rows and registers side by side of the tiles, by falling width: as large as registers hold, with enough independent
#: chains for two multiply-adds of four cycles each. AVX2 has 16 registers, the others 32.
SHAPES = ((6, 2), (12, 1)) if WIDTH == 8 else ((6, 4), (6, 2), (12, 1))


def tile(rows: int, registers: int) -> Any:
    """Return a function that computes one tile of a matrix product, ``rows`` times ``registers`` side by side.

    The function has the arguments ``(a, lda, sa, b, ldb, start, of_start, c, ldc, k, used, columns, floor, rate)``. An
    element (i, j) of the tile is max(s, floor), s = start[i * of_start] + sum over k of a[i * lda + k * sa] *
    b[k * ldb + j], and written to c[i * ldc + j]. Unless the ``rate`` is below 0, rate * s is subtracted from c
    instead. The sum is one chain of fused multiply-adds over k in order, so it has the same bits in every tile and on
    every width. Of the tile ``used`` rows and ``columns`` columns exist: b is read beyond them, c is not.
    """
    vector = ir.VectorType(_FLOAT, WIDTH)

    @intrinsic
    def compute(typing: Any, a: Any, lda: Any, sa: Any, b: Any, ldb: Any, start: Any, of_start: Any, c: Any, ldc: Any,
                k: Any, used: Any, columns: Any, floor: Any, rate: Any) -> Any:  # fmt: skip
        def code(context: Any, at: ir.IRBuilder, signature: Any, args: Any) -> Any:
            a, lda, sa, b, ldb, start, of_start, c, ldc, k, used, columns, floor, rate = args
            fma = declared(at, "llvm.fma", vector, [vector] * 3)
            # A row that does not exist is the last one again: it computes the same numbers and stores them twice.
            row = [at.select(at.icmp_signed("<", _I64(i), used), _I64(i), at.sub(used, _I64(1))) for i in range(rows)]
            a_rows = [at.add(a, _bytes(at, at.mul(i, lda))) for i in row]
            first = [
                spread(at, load(at, at.add(start, _bytes(at, at.mul(i, of_start)))), vector) for i in row
            ]  # fmt: skip
            before, body, after = at.block, at.append_basic_block("tile"), at.append_basic_block("tiled")
            at.branch(body)
            at.position_at_end(body)
            step, of_a, of_b = (at.phi(_I64) for _ in range(3))
            sums = [[at.phi(vector) for _ in range(registers)] for _ in range(rows)]
            b_k = [load(at, at.add(of_b, _I64(4 * WIDTH * j)), vector) for j in range(registers)]
            after_step = []
            for i in range(rows):
                a_k = spread(at, load(at, at.add(a_rows[i], of_a)), vector)
                after_step.append([at.call(fma, [a_k, b_k[j], sums[i][j]]) for j in range(registers)])
            pairs = [(step, _I64(0), at.add(step, _I64(1))), (of_a, _I64(0), at.add(of_a, _bytes(at, sa)))]
            pairs.append((of_b, b, at.add(of_b, _bytes(at, ldb))))
            pairs += [
                (sums[i][j], first[i], after_step[i][j]) for i in range(rows) for j in range(registers)
            ]  # fmt: skip
            for phi, begin, then in pairs:
                phi.add_incoming(begin, before)
                phi.add_incoming(then, body)
            at.cbranch(at.icmp_signed("<", pairs[0][2], k), body, after)
            at.position_at_end(after)
            places = [
                [at.add(c, _bytes(at, at.add(at.mul(row[i], ldc), _I64(WIDTH * j)))) for j in range(registers)]
                for i in range(rows)
            ]
            masks = [None] * (registers - 1) + [_first(at, at.sub(columns, _I64(WIDTH * (registers - 1))))]
            with at.if_else(at.fcmp_ordered("<", rate, _FLOAT(0))) as (plain, descending):
                with plain:
                    low = spread(at, floor, vector)
                    for i in range(rows):
                        for j in range(registers):
                            s = after_step[i][j]  # a NaN stays one
                            store(at, at.select(at.fcmp_ordered("<", s, low), low, s), places[i][j], masks[j])
                with descending:
                    minus = spread(at, at.fneg(rate), vector)
                    old = [[_masked(at, places[i][j], vector, masks[j]) for j in range(registers)] for i in range(rows)]
                    for i in range(rows):
                        for j in range(registers):
                            new = at.call(fma, [minus, after_step[i][j], old[i][j]])
                            store(at, new, places[i][j], masks[j])
            return context.get_dummy_value()

        return types.void(*[types.int64] * 12, types.float32, types.float32), code

    return compute


@intrinsic
def transpose_square(typing: Any, source: Any, of_source: Any, target: Any, of_target: Any) -> Any:
    """Write the transpose of ``WIDTH`` by ``WIDTH`` floats at ``source``; ``of_source`` floats lie from row to row."""

    def code(context: Any, at: ir.IRBuilder, signature: Any, args: Any) -> Any:
        source, of_source, target, of_target = args
        vector = ir.VectorType(_FLOAT, WIDTH)
        rows = [load(at, at.add(source, _bytes(at, at.mul(_I64(i), of_source))), vector) for i in range(WIDTH)]
        half = 1
        while half < WIDTH:  # exchange squares of this size beside the diagonal
            low = [lane if not lane & half else WIDTH + lane - half for lane in range(WIDTH)]
            high = [lane + half if not lane & half else WIDTH + lane for lane in range(WIDTH)]
            masks = [ir.Constant(ir.VectorType(_I32, WIDTH), lanes) for lanes in (low, high)]
            for i in range(WIDTH):
                if not i & half:
                    pair = rows[i], rows[i + half]
                    rows[i], rows[i + half] = (at.shuffle_vector(*pair, mask) for mask in masks)
            half *= 2
        for i, row in enumerate(rows):
            store(at, row, at.add(target, _bytes(at, at.mul(_I64(i), of_target))), None)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), code


@intrinsic
def whole(typing: Any, address: Any, place: Any) -> Any:
    """Return one of the whole numbers (int64) at an address."""

    def code(context: Any, at: ir.IRBuilder, signature: Any, args: Any) -> Any:
        return at.load(at.gep(at.inttoptr(args[0], _I64.as_pointer()), [args[1]]))

    return types.int64(types.int64, types.int64), code


@intrinsic
def real(typing: Any, address: Any, place: Any) -> Any:
    """Return one of the floats at an address."""

    def code(context: Any, at: ir.IRBuilder, signature: Any, args: Any) -> Any:
        return at.load(at.gep(at.inttoptr(args[0], _FLOAT.as_pointer()), [args[1]]))

    return types.float32(types.int64, types.int64), code


@intrinsic
def byte(typing: Any, address: Any, place: Any) -> Any:
    """Return one of the bytes at an address, as a whole number of 32 bits."""

    def code(context: Any, at: ir.IRBuilder, signature: Any, args: Any) -> Any:
        return at.zext(at.load(at.gep(at.inttoptr(args[0], ir.IntType(8).as_pointer()), [args[1]])), _I32)

    return types.int32(types.int64, types.int64), code


@intrinsic
def bits(typing: Any, value: Any) -> Any:
    """Return the bits of a float."""
    return types.int32(types.float32), lambda context, at, signature, args: at.bitcast(args[0], _I32)


@intrinsic
def of_bits(typing: Any, value: Any) -> Any:
    """Return the float with these bits."""
    return types.float32(types.int32), lambda context, at, signature, args: at.bitcast(args[0], _FLOAT)


@intrinsic
def put(typing: Any, address: Any, place: Any, value: Any) -> Any:
    """Write one of the floats at an address."""

    def code(context: Any, at: ir.IRBuilder, signature: Any, args: Any) -> Any:
        at.store(args[2], at.gep(at.inttoptr(args[0], _FLOAT.as_pointer()), [args[1]]))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.float32), code


def _bytes(at: ir.IRBuilder, floats: Any) -> Any:
    return at.shl(floats, _I64(2))


def declared(at: ir.IRBuilder, name: str, result: Any, args: Any) -> Any:
    """Return LLVM's function of this name for the vectors among its arguments and its result."""
    lanes = next(kind.count for kind in [result, *args] if isinstance(kind, ir.VectorType))
    return cgutils.get_or_insert_function(at.module, ir.FunctionType(result, args), f"{name}.v{lanes}f32")


def load(at: ir.IRBuilder, address: Any, kind: Any = _FLOAT) -> Any:
    """Load from an address, an int64."""
    return at.load(at.inttoptr(address, kind.as_pointer()), align=4)


def spread(at: ir.IRBuilder, value: Any, vector: Any) -> Any:
    """Return a vector with the value in each lane."""
    nothing = ir.Constant(vector, ir.Undefined)
    lanes = ir.Constant(ir.VectorType(_I32, vector.count), [0] * vector.count)
    return at.shuffle_vector(at.insert_element(nothing, value, _I32(0)), nothing, lanes)


def _first(at: ir.IRBuilder, count: Any) -> Any:
    """The mask of the first lanes."""
    kind = ir.VectorType(_I64, WIDTH)
    nothing, zeros = ir.Constant(kind, ir.Undefined), ir.Constant(ir.VectorType(_I32, WIDTH), [0] * WIDTH)
    counts = at.shuffle_vector(at.insert_element(nothing, count, _I32(0)), nothing, zeros)
    return at.icmp_signed("<", ir.Constant(kind, list(range(WIDTH))), counts)


def _masked(at: ir.IRBuilder, address: Any, vector: Any, mask: Any) -> Any:
    """Load; only the lanes of the mask, if there is one."""
    if mask is None:
        return load(at, address, vector)
    pointer, lanes = at.inttoptr(address, vector.as_pointer()), mask.type
    masked = declared(at, "llvm.masked.load", vector, [pointer.type, _I32, lanes, vector])
    return at.call(masked, [pointer, _I32(4), mask, ir.Constant(vector, [0.0] * WIDTH)])


def store(at: ir.IRBuilder, value: Any, address: Any, mask: Any) -> None:
    """Store to an address; only the lanes of the mask, if there is one."""
    pointer = at.inttoptr(address, value.type.as_pointer())
    if mask is None:
        at.store(value, pointer, align=4)
        return
    masked = declared(at, "llvm.masked.store", ir.VoidType(), [value.type, pointer.type, _I32, mask.type])
    at.call(masked, [value, pointer, _I32(4), mask])


#: Tiles of ``SHAPES``.
TILES: tuple[Callable[..., None], ...] = tuple(tile(rows, registers) for rows, registers in SHAPES)
