"""Transpose squares of vectors in registers (J. O. Eklundh's butterfly, 1972)."""

from __future__ import annotations

from functools import cache

from smelt.codegen.llvm import ir

Value = ir.Value
SHUFFLE_BYTES = 16
"""Bytes of the register parts within which shuffle instructions work."""
_SIZES = {ir.HalfType: 2, ir.BFloatType: 2, ir.FloatType: 4, ir.DoubleType: 8}


def transpose(b: ir.IRBuilder, rows: list[Value]) -> list[Value]:
    """Transpose a square of lanes in registers."""
    kind, side = rows[0].type, len(rows)
    assert isinstance(kind, ir.VectorType)
    element = kind.element
    is_integer = isinstance(element, ir.IntType)
    size = max(element.width // 8, 1) if is_integer else _SIZES[type(element)]
    part_lanes = min(SHUFFLE_BYTES // size, side)
    stages, order = butterfly(side, part_lanes)
    rows = [*rows]
    for step, masks in stages:
        if step == part_lanes:
            rows = [_fenced(b, row) for row in rows]
        low, high = (ir.Constant(ir.VectorType(ir.IntType(32), len(m)), [*m]) for m in masks)
        for k in range(side):
            if not k & step:
                first, second = rows[k], rows[k + step]
                rows[k] = b.shuffle_vector(first, second, low)
                rows[k + step] = b.shuffle_vector(first, second, high)
    return [rows[k] for k in order]


Masks = tuple[tuple[int, ...], tuple[int, ...]]


@cache
def butterfly(side: int, part: int) -> tuple[tuple[tuple[int, Masks], ...], tuple[int, ...]]:
    """Return the stages of a transposition, and the row in which each column ends.

    A stage is the distance of paired rows, and which lanes of both each of them takes.  Within
    parts of a register, single lanes of both rows alternate, then pairs of lanes; last come whole
    parts.  Each is one instruction with an immediate operand.
    """
    stages: list[tuple[int, Masks]] = []
    elements = [[(k, j) for j in range(side)] for k in range(side)]
    step = 1
    while step < side:
        if step < part:
            places = [
                (at + half * part // 2, at + (half + 1) * part // 2)
                for half in (0, 1)
                for at in range(0, side, part)
            ]
            runs = [[(at, at + side) for at in range(low, high, step)] for low, high in places]
            lanes = [x for run in runs for pair in run for at in pair for x in range(at, at + step)]
        else:
            lanes = [
                x
                for half in (0, 1)
                for row in (0, side)
                for at in range(row + half * part, row + side, 2 * part)
                for x in range(at, at + part)
            ]
        masks = tuple(lanes[:side]), tuple(lanes[side:])
        stages.append((step, masks))
        for k in range(side):
            if not k & step:
                both = elements[k] + elements[k + step]
                elements[k], elements[k + step] = ([both[x] for x in m] for m in masks)
        step *= 2
    column = {lanes[0][1]: k for k, lanes in enumerate(elements)}
    return tuple(stages), tuple(column[j] for j in range(side))


def _fenced(b: ir.IRBuilder, row: Value) -> Value:
    """Return a vector whose origin LLVM does not see.

    It would weigh all shuffles of a square against each other, a third of a product's compilation
    time.
    """
    kind = row.type
    if isinstance(kind.element, ir.IntType):
        return row
    name = f"llvm.arithmetic.fence.{kind.intrinsic_name}"
    function = b.module.globals.get(name)
    if function is None:
        function = ir.Function(b.module, ir.FunctionType(kind, [kind]), name)
    return b.call(function, [row])
