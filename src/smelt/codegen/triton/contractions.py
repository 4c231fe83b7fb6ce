"""Loop over the summed axes of contractions, with blocks of rows and columns.

    v2 = dot(x[m,k], w[k,n] over k)

becomes a stream over blocks of k that adds the contraction of each block to an accumulator: all of
k is more than the registers of a program hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from smelt.codegen.triton.free_axes import Axes, axes_of_value
from smelt.codegen.triton.refusal import refuse
from smelt.kernel.ir import (
    Apply,
    Block,
    Const,
    Dot,
    Kernel,
    Let,
    Position,
    Ref,
    State,
    Statement,
    Stream,
    Update,
    Value,
)
from smelt.kernel.walk import map_statement, statements, transform, values_of, visit
from smelt.ops.combine import COMBINES, SUM_OF_PRODUCTS

__all__ = ["block_contractions", "dots_of"]

ROW_LANES = 64
"""Rows and columns of a contraction in a program."""
SUMMED_LANES = 32
"""Elements of the summed axis in one step."""


def dots_of(body: Iterable[Statement]) -> list[Dot]:
    """Return every contraction in statements."""
    roots = [root for s in statements(body) for root in values_of(s)]
    return [v for root in roots for v in visit(root) if isinstance(v, Dot)]


def block_contractions(kernel: Kernel) -> Kernel:
    """Return the kernel with blocks and streams for its contractions.

    Raises DeviceKernelError where a summed axis is read outside of its contraction too.
    """
    if not dots_of(kernel.body):
        return kernel
    if any(isinstance(s, Stream) for s in kernel.body):
        body = [_widened(s) if isinstance(s, Stream) else s for s in kernel.body]
        return replace(kernel, body=tuple(body))
    body = _bind_dots(kernel.body)
    names = axes_of_names(body)
    rows = {a for d in dots_of(body) for a in _row_axes(d, names)}
    grid = tuple(
        replace(b, size=ROW_LANES) if isinstance(b, Block) and b.axis in rows else b
        for b in kernel.grid
    )
    return replace(kernel, grid=grid, body=tuple(_with_streams(kernel.name, body, names)))


def axes_of_names(body: Iterable[Statement]) -> dict[str, Axes]:
    """Return the axes of every name that the statements bind."""
    names: dict[str, Axes] = {}
    for s in body:
        if isinstance(s, Let | Position):
            names[s.name] = axes_of_value(s.value, names)
    return names


def _row_axes(dot: Dot, names: Mapping[str, Axes]) -> Axes:
    """Return the axes of one operand alone: rows and columns, no axes of a batch."""
    left, right = (axes_of_value(v, names) for v in (dot.left, dot.right))
    return left ^ right


def _bind_dots(body: Iterable[Statement]) -> list[Statement]:
    """Give contractions inside of values statements of their own."""
    result: list[Statement] = []

    def change(v: Value) -> Value:
        if not isinstance(v, Dot):
            return v
        result.append(Let(f"contraction{len(result)}", v))
        return Ref(f"contraction{len(result) - 1}")

    for s in body:
        is_bound = isinstance(s, Let) and isinstance(s.value, Dot)
        result.append(s if is_bound else map_statement(s, lambda v: transform(v, change)))
    return result


def _with_streams(
    kernel: str, body: Iterable[Statement], names: Mapping[str, Axes]
) -> Iterable[Statement]:
    """Replace contractions by streams, and move what varies along summed axes into them."""
    body = list(body)
    summed = {a for d in dots_of(body) for a in d.over}
    operands: list[Statement] = []
    for s in body:
        if isinstance(s, Let) and isinstance(s.value, Dot):
            if names[s.name] & summed:
                refuse(kernel, "contractions that sum over the rows of one another")
            yield _stream(s.name, s.value, names[s.name], tuple(operands))
        elif isinstance(s, Let | Position) and names[s.name] & summed:
            operands.append(s)
        elif any(summed & _axes_inside(v, names) for v in values_of(s)):
            refuse(kernel, "a summed axis that is read outside of its contraction too")
        else:
            yield s


def _axes_inside(value: Value, names: Mapping[str, Axes]) -> Axes:
    return Axes().union(*(axes_of_value(v, names) for v in visit(value)))


def _stream(name: str, dot: Dot, axes: Axes, operands: tuple[Statement, ...]) -> Stream:
    """Return the loop that accumulates a contraction in a state of its name."""
    zero = Const(COMBINES[SUM_OF_PRODUCTS[0]].identity(dot.dtype.compute), dot.dtype.compute)
    update = Update(name, Apply(COMBINES[SUM_OF_PRODUCTS[0]].scalar, (Ref(name), dot)))
    blocks = tuple(
        Block(a, SUMMED_LANES if k == len(dot.over) - 1 else 1) for k, a in enumerate(dot.over)
    )
    return Stream(blocks, (State(name, zero, tuple(sorted(axes))),), (*operands, update))


def _widened(stream: Stream) -> Stream:
    """Return a stream with blocks instead of steps of one, where it only adds contractions."""
    names = axes_of_names(stream.body)
    updates = [s for s in stream.body if isinstance(s, Update)]
    others = [s for s in stream.body if not isinstance(s, Update)]
    over = [axis for u in updates for axis in _added_axes(u)]
    is_plain = all(isinstance(s, Let | Position) for s in others) and not stream.bounds
    reads = [v for s in others for root in values_of(s) for v in visit(root)]
    reads_state = any(isinstance(v, Ref) and v.name not in names for v in reads)
    if not is_plain or reads_state or not all(_added_axes(u) for u in updates):
        return stream
    blocks = tuple(
        replace(b, size=SUMMED_LANES) if b.size == 1 and b.axis in over else b
        for b in stream.blocks
    )
    return replace(stream, blocks=blocks)


def _added_axes(update: Update) -> tuple[str, ...]:
    """Return the axes of the contraction that an update adds to its state."""
    match update.value:
        case Apply(op=op, args=(Ref(name=name, next=False), Dot(over=over))) if (
            name == update.state and op == COMBINES[SUM_OF_PRODUCTS[0]].scalar
        ):
            return over
        case _:
            return ()
