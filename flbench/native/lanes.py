"""A vector of ``LANES`` floats, one of each sample, as a type of numba: what is computed with it is in registers.

Operators work lane by lane, each rounded once. As in ``vectors``, this module imports numba, and memory is addressed by
whole numbers (bytes).
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic, lower_builtin, models, register_model, type_callable

from flbench.native.convolution_layout import LANES
from flbench.native.vectors import declared, load, spread, store

FLOATS = ir.VectorType(ir.FloatType(), LANES)
_I32 = ir.IntType(32)
_ZERO = ir.Constant(FLOATS, [0.0] * LANES)


class Lanes(types.Type):  # type: ignore[misc]
    """The type of such a vector."""


lanes = Lanes("lanes")


@register_model(Lanes)
class _Model(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, FLOATS)


def _operator(symbol: Callable[..., Any], instruction: str) -> None:
    """Give the vectors an operator."""

    @type_callable(symbol)
    def kind(context: Any) -> Callable[[Any, Any], Any]:
        return lambda left, right: lanes if left == right == lanes else None

    @lower_builtin(symbol, Lanes, Lanes)
    def code(context: Any, at: ir.IRBuilder, signature: Any, args: Any) -> Any:
        return getattr(at, instruction)(*args)


for _symbol, _instruction in [
    (operator.add, "fadd"), (operator.sub, "fsub"), (operator.mul, "fmul"), (operator.truediv, "fdiv")
]:  # fmt: skip
    _operator(_symbol, _instruction)


@intrinsic
def vector(typing: Any, address: Any) -> Any:
    """Return the vector at an address."""
    return lanes(types.int64), lambda context, at, signature, args: load(at, args[0], FLOATS)


@intrinsic
def put_vector(typing: Any, address: Any, value: Any) -> Any:
    """Write a vector to an address."""

    def code(context: Any, at: ir.IRBuilder, signature: Any, args: Any) -> Any:
        store(at, args[1], args[0], None)
        return context.get_dummy_value()

    return types.void(types.int64, lanes), code


@intrinsic
def each(typing: Any, value: Any) -> Any:
    """Return the vector with this float in each lane."""
    return lanes(types.float32), lambda context, at, signature, args: spread(at, args[0], FLOATS)


@intrinsic
def multiply_add(typing: Any, left: Any, right: Any, added: Any) -> Any:
    """Return ``left * right + added``, rounded once."""

    def code(context: Any, at: ir.IRBuilder, signature: Any, args: Any) -> Any:
        return at.call(declared(at, "llvm.fma", FLOATS, [FLOATS] * 3), args)

    return lanes(lanes, lanes, lanes), code


@intrinsic
def where_positive(typing: Any, tested: Any, value: Any) -> Any:
    """Return the value where the other one is above 0, else 0."""

    def code(context: Any, at: ir.IRBuilder, signature: Any, args: Any) -> Any:
        return at.select(at.fcmp_ordered(">", args[0], _ZERO), args[1], _ZERO)

    return lanes(lanes, lanes), code


@intrinsic
def over_lanes(typing: Any, value: Any) -> Any:
    """Return the sum over a vector, as a tree."""

    def code(context: Any, at: ir.IRBuilder, signature: Any, args: Any) -> Any:
        sums, half = args[0], LANES // 2
        while half:
            other = ir.Constant(ir.VectorType(_I32, LANES), [lane ^ half for lane in range(LANES)])
            sums, half = at.fadd(sums, at.shuffle_vector(sums, sums, other)), half // 2
        return at.extract_element(sums, _I32(0))

    return types.float32(lanes), code
