"""Bound integer values from below and above by the operators that compute them.

An argmax is inside its axis, a remainder below its divisor, a clamped value between its limits.
Only bounds that hold for all sizes and all data are returned; most values have none.

>>> from smelt.graph.text import parse
>>> from smelt.types.expr import size
>>> graph = parse('''graph f(x: f32[m,n]) {
...   v0 = reduce.argmax(x) {axes=(1,)}
...   v1 = add(v0, 1:i64)
...   return v1
... }''')
>>> is_in_bounds(graph.outputs[0].inputs[0], size("n")), is_in_bounds(graph.outputs[0], size("n"))
(True, False)

Short integers are followed through conversions, views and monotone or linear operators.

>>> text = "graph f(x: u8[n]) { a = cast(x) {dtype=i32} b = sub(a, 117:i32) return b }"
>>> (b,) = parse(text).outputs
>>> bounds, nodes = integer_range(b)
>>> bounds, len(nodes)
((-117, 138), 2)
"""

from __future__ import annotations

import numpy as np

from smelt.graph.ir import Node
from smelt.ops.create import Constant, Iota, SizeOf
from smelt.ops.elementwise import Cast, Map
from smelt.ops.extern import Extern
from smelt.ops.index import Gather
from smelt.ops.reduce import Reduce
from smelt.ops.view import Concat, Expand, Flip, Permute, Reshape, Slice
from smelt.types.dtype import DType, i64
from smelt.types.expr import (
    Index,
    add,
    floordiv,
    mul,
    nonnegative,
    product,
    sub,
    terms_of,
)

ValueRange = tuple[Index | None, Index | None]
"""Lower and upper bound (both inclusive) of a value; None where unknown."""

_UNKNOWN: ValueRange = (None, None)
_MAX_DEPTH = 24
"""Maximum number of operators that are followed back."""
_INDEX_BITS = 32
"""Integers of so many bits can index any axis.  Sums are followed in 64-bit integers only, with
constant terms of fewer bits than this, so that none wraps around."""
_COEFFICIENT_BITS = 12
"""Maximum bits of a coefficient of sizes: sizes, and products of two of them, are below 2**48."""
_MAX_TERMS = 6
"""Maximum number of terms of a bound that is computed with."""


def is_in_bounds(at: Node, extent: Index) -> bool:
    """Whether all elements are valid indices of an axis of this extent, whatever the data."""
    low, high = value_range(at)
    if low is None or high is None or not nonnegative(sub(sub(extent, 1), high)):
        return False
    return nonnegative(low)


def value_range(at: Node, depth: int = _MAX_DEPTH) -> ValueRange:
    """Return bounds of all elements of a value, following at most `depth` operators."""
    constant = constant_value(at)
    if constant is not None:
        return constant, constant
    if depth == 0 or not (at.type.dtype.is_integer or at.type.dtype.kind == "bool"):
        return _UNKNOWN
    op = at.op
    extreme = isinstance(op, Reduce) and op.combine in ("max", "min")
    if extreme or isinstance(op, (Expand, Reshape, Permute, Flip, Slice, Gather)):
        return value_range(at.inputs[0], depth - 1)
    if isinstance(op, Iota) and op.dtype.bits >= _INDEX_BITS:
        return 0, sub(op.shape[op.axis], 1)
    if isinstance(op, Concat):
        bounds = value_range(at.inputs[0], depth - 1)
        for x in at.inputs[1:]:
            bounds = _union(bounds, value_range(x, depth - 1))
        return bounds
    if isinstance(op, Reduce) and op.combine == "sum":
        return _sum_range(at, op, depth - 1)
    if isinstance(op, Reduce) and op.combine.startswith("arg") and len(op.axes) == 1:
        return 0, sub(at.inputs[0].type.shape[op.axes[0]], 1)
    if isinstance(op, Extern) and op.call == "argsort":
        return 0, sub(at.type.shape[dict(op.options)["axis"]], 1)
    if isinstance(op, Extern) and op.call == "searchsorted":
        return 0, at.inputs[0].type.shape[0]
    if isinstance(op, Cast):
        return _cast_range(
            value_range(at.inputs[0], depth - 1), at.inputs[0].type.dtype, at.type.dtype
        )
    if isinstance(op, Map):
        return _map_range(op.scalar, at, depth - 1)
    return _dtype_range(at.type.dtype)


def constant_value(node: Node) -> Index | None:
    """Return the integer or size that a constant scalar is, or None."""
    if isinstance(node.op, SizeOf):
        return node.op.expr
    if isinstance(node.op, Constant) and isinstance(node.op.value, int):
        return int(node.op.value)
    return None


def _sum_range(at: Node, op: Reduce, depth: int) -> ValueRange:
    """Bound a sum of non-negative numbers."""
    (x,) = at.inputs
    low, high = value_range(x, depth)
    if low is None or high is None or not nonnegative(low) or at.type.dtype != i64:
        return _dtype_range(at.type.dtype)
    if not isinstance(high, int) or high >> _INDEX_BITS:
        return 0, None
    return 0, mul(product(x.type.shape[a] for a in op.axes), high)


def _dtype_range(dtype: DType) -> ValueRange:
    """Return the range of a bool or a short unsigned type."""
    if dtype.kind == "bool":
        return 0, 1
    if dtype.kind == "uint" and dtype.bits < 64:
        return 0, 2**dtype.bits - 1
    return _UNKNOWN


def _cast_range(bounds: ValueRange, source: DType, target: DType) -> ValueRange:
    """Bound a cast: the bounds stay if the target holds all values of the source."""
    if source.kind not in ("bool", "int", "uint"):
        return _dtype_range(target)
    wider = target.bits >= (source.bits if source.kind == target.kind else source.bits + 1)
    if target.kind == "uint" and source.kind == "int":
        wider = False
    low, high = bounds
    source_range = _dtype_range(source)
    with_source_range = (
        source_range[0] if low is None else low,
        source_range[1] if high is None else high,
    )
    return with_source_range if wider or source.kind == "bool" else _dtype_range(target)


def _map_range(scalar: str, at: Node, depth: int) -> ValueRange:
    """Bound a scalar operator's result."""
    if scalar == "select":
        test, a, b = at.inputs
        return _select_range(test, a, b, depth)
    if at.type.dtype.kind == "bool":
        return 0, 1
    if len(at.inputs) != 2:
        return _dtype_range(at.type.dtype)
    a, b = (value_range(x, depth) for x in at.inputs)
    if scalar == "max":
        return _max(a, b)
    if scalar == "min":
        low, high = _max(_negate(a), _negate(b))
        return _negate((low, high))
    if scalar == "and":
        upper_bounds = [high for low, high in (a, b) if low is not None and nonnegative(low)]
        uppers = [t for t in upper_bounds if t is not None]
        numbers = [t for t in uppers if isinstance(t, int)]
        upper = min(numbers) if numbers else next(iter(uppers), None)
        return (0, upper) if upper_bounds else _dtype_range(at.type.dtype)
    if scalar == "shr":
        return _shifted_range(a, b, at.type.dtype.bits)
    divisor = constant_value(at.inputs[1])
    if divisor is not None and nonnegative(sub(divisor, 1)):
        if scalar == "mod":
            return 0, sub(divisor, 1)
        if scalar == "floordiv" and a[0] is not None and nonnegative(a[0]):
            return 0, None if a[1] is None else floordiv(a[1], divisor)
    if at.type.dtype != i64 or not all(_cannot_wrap(n) for n in (*a, *b)):
        return _dtype_range(at.type.dtype)
    result = _UNKNOWN
    if scalar == "mul" and divisor is not None and nonnegative(divisor):
        low, high = a
        result = (
            None if low is None else mul(low, divisor),
            None if high is None else mul(high, divisor),
        )
    elif scalar == "add":
        result = _add(a, b)
    elif scalar == "sub":
        result = _add(a, _negate(b))
    low, high = result
    return result if _cannot_wrap(low) and _cannot_wrap(high) else _UNKNOWN


def _shifted_range(a: ValueRange, by: ValueRange, bits: int) -> ValueRange:
    """Bound a shift to the right, which moves numbers towards 0, negative ones towards -1.

    A shift by a negative number, or by `bits` or more, leaves the sign alone.
    """
    (low, high), (least, _) = a, by
    shift = min(least, bits - 1) if isinstance(least, int) and least > 0 else 0
    if low is not None and nonnegative(low):
        return 0, high >> shift if isinstance(high, int) else high
    if isinstance(high, int):
        high = high >> shift if high >= 0 else -1
    elif high is not None and not nonnegative(high):
        high = None
    return low if low is None or isinstance(low, int) else None, high


def _cannot_wrap(n: Index | None) -> bool:
    """Whether the next operation on a bound cannot wrap around, or the bound is unknown.

    True of short constants and of a few terms of at most two sizes.
    """
    terms = () if n is None else terms_of(n)
    return len(terms) <= _MAX_TERMS and all(
        abs(c) >> (_COEFFICIENT_BITS if m else _INDEX_BITS) == 0 and len(m) <= 2 for m, c in terms
    )


def _select_range(test: Node, a: Node, b: Node, depth: int) -> ValueRange:
    """Bound a select between `a` and `b`.

    Recognises the wrapping of negative indices, select(b < 0, b + n, b), whose result is in range.
    """
    unwrapped, wrapped = value_range(b, depth), value_range(a, depth)
    tests_sign = isinstance(test.op, Map) and test.op.scalar == "lt" and test.inputs[0] is b
    if tests_sign and constant_value(test.inputs[1]) == 0:
        if unwrapped[0] is not None and nonnegative(unwrapped[0]):
            return unwrapped
        if isinstance(a.op, Map) and a.op.scalar == "add" and a.inputs[0] is b:
            extent = constant_value(a.inputs[1])
            low = unwrapped[0]
            if extent is not None and low is not None and nonnegative(add(low, extent)):
                return _union((0, sub(extent, 1)), (0, unwrapped[1]))
    return _union(unwrapped, wrapped)


def _add(a: ValueRange, b: ValueRange) -> ValueRange:
    low = None if a[0] is None or b[0] is None else add(a[0], b[0])
    return low, None if a[1] is None or b[1] is None else add(a[1], b[1])


def _negate(a: ValueRange) -> ValueRange:
    low, high = a
    return None if high is None else mul(high, -1), None if low is None else mul(low, -1)


def _max(a: ValueRange, b: ValueRange) -> ValueRange:
    """Bound the maximum of two values."""
    low = b[0] if a[0] is None or (b[0] is not None and nonnegative(sub(b[0], a[0]))) else a[0]
    return low, _union(a, b)[1]


def _union(a: ValueRange, b: ValueRange) -> ValueRange:
    """Bound a value that is one of two."""
    low = high = None
    if a[0] is not None and b[0] is not None:
        low = a[0] if nonnegative(sub(b[0], a[0])) else b[0]
        low = low if nonnegative(sub(a[0], low)) else None
    if a[1] is not None and b[1] is not None:
        high = a[1] if nonnegative(sub(a[1], b[1])) else b[1]
        high = high if nonnegative(sub(high, a[1])) else None
    return low, high


# ---- short integers -----------------------------------------------------------------------------

Range = tuple[int, int]

_REARRANGING = (Concat, Expand, Flip, Permute, Reshape, Slice)
"""Views whose elements are those of their operands."""
_MAX_INTEGER_DEPTH = 8
"""Maximum operators between an array and a value that are followed."""


def integer_range(node: Node, depth: int = _MAX_INTEGER_DEPTH) -> tuple[Range, frozenset[Node]]:
    """Return the range of an integer value, and the operators from which it follows."""
    own_range = dtype_range(node.type.dtype)
    if depth == 0 or not isinstance(node.op, (Cast, Map)):
        return own_range, frozenset()
    operands = [_operand_range(x, depth - 1) for x in node.inputs]
    if isinstance(node.op, Map):
        bounds = node.op.row.integer_bounds(*(r for r, _ in operands))
    else:
        bounds = operands[0][0]
    if bounds is None or not fits(bounds, node.type.dtype):
        return own_range, frozenset()
    return bounds, frozenset({node}).union(*(nodes for _, nodes in operands))


def dtype_range(dtype: DType) -> Range:
    """Return the least and the greatest number of an integer type."""
    info = np.iinfo(dtype.numpy)
    return int(info.min), int(info.max)


def fits(bounds: Range, dtype: DType) -> bool:
    """Return whether an integer type has all numbers of a range."""
    least, greatest = dtype_range(dtype)
    return least <= bounds[0] and bounds[1] <= greatest


def _operand_range(node: Node, depth: int) -> tuple[Range | None, frozenset[Node]]:
    """Return the range of an integer operand, and operators as `integer_range` does."""
    if isinstance(number := constant_value(node), int):
        return (number, number), frozenset()
    if not node.type.dtype.is_integer:
        return None, frozenset()
    if not isinstance(node.op, _REARRANGING):
        return integer_range(node, depth)
    parts = [_operand_range(x, depth) for x in node.inputs]
    ranges = [r for r, _ in parts if r is not None]
    if not ranges or len(ranges) < len(parts):
        return None, frozenset()
    bounds = min(r[0] for r in ranges), max(r[1] for r in ranges)
    return bounds, frozenset[Node]().union(*(nodes for _, nodes in parts))
