"""Give contractions blocks of rows and columns, and loops over what they sum.

    v2 = dot(x[m,k], w[k,n] over k)

becomes a stream over blocks of k that adds the contraction of each block to an accumulator: all of
k is more than the registers of a program hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from smelt.codegen.triton.loop_axes import SUMMED_LANES, CannotLoop, loop_axes
from smelt.codegen.triton.writer import refuse
from smelt.kernel import ir
from smelt.kernel.transform.block import in_blocks
from smelt.kernel.walk import (
    MAX_BODIES,
    Axes,
    axes_of_body,
    axes_of_index,
    axes_of_value,
    children,
    statements,
    stores,
    visit_body,
    visit_statement,
)
from smelt.ops.combine import COMBINES, SUM_OF_PRODUCTS
from smelt.python.caches import cached_by_identity
from smelt.types.expr import evaluate

ROW_LANES = 64
"""Rows and columns of a contraction in a program."""
REGISTER_LANES = 1 << 15
"""Minimum elements of a value that overflow a program's registers."""
WHOLE_SUM = 256
"""Longest summed axis of a contraction inside of a stream that is not looped over."""


@cached_by_identity(MAX_BODIES)
def dots_of(body: tuple[ir.Statement, ...]) -> tuple[ir.Dot, ...]:
    """Return every contraction in statements."""
    return tuple(v for v in visit_body(body) if isinstance(v, ir.Dot))


def power_of_two(n: int) -> int:
    """Return the least power of two that is not less than n, at least 1.

    >>> power_of_two(1000), power_of_two(0)
    (1024, 1)
    """
    return 1 << max(n - 1, 0).bit_length()


def block_axes(
    kernel: ir.Kernel, sizes: Mapping[str, int] | None = None, register_lanes: int = REGISTER_LANES
) -> ir.Kernel:
    """Return the kernel with blocks for its contractions and loops over its long axes.

    A row is long where one of its values has more than `register_lanes` elements. Without sizes,
    an axis whose extent is not a number is not long. Raises DeviceKernelError where an axis is read
    as a whole that a stream visits, and no loop over it is possible.
    """
    kernel = _without_whole_blocks(kernel)
    top = tuple(s for s in kernel.body if not isinstance(s, ir.Stream))
    at_top = Axes(a for d in dots_of(top) for a in d.over)
    if len(top) == len(kernel.body) or _adds_contractions(kernel):
        kernel = _with_row_blocks(kernel, sizes)
    needed = Axes(_read_whole(kernel.body, Axes()) & _stream_axes(kernel))
    result = kernel
    try:
        result = loop_axes(kernel, needed, at_top | needed)
    except CannotLoop:
        at_top = Axes()
        if needed:
            refuse(kernel.name, f"all of the axis {min(needed)} outside of its stream")
    for axis in _long_axes(kernel, sizes, register_lanes):
        try:
            result = loop_axes(kernel, needed | {axis}, at_top | needed)
            needed = needed | {axis}
        except CannotLoop:
            continue
    return replace(result, body=tuple(_widened(s) for s in result.body))


def _without_whole_blocks(kernel: ir.Kernel) -> ir.Kernel:
    """Return the kernel without grid entries of one block: such an axis is in every program."""
    grid = tuple(b for b in kernel.grid if not isinstance(b, ir.Block) or b.size is not None)
    return replace(kernel, grid=grid)


def _with_row_blocks(kernel: ir.Kernel, sizes: Mapping[str, int] | None) -> ir.Kernel:
    """Return the kernel with a block of rows and one of columns for each contraction.

    Of several axes that one operand alone has, the longest is in blocks, the last of equals.
    """
    names = axes_of_body(kernel.body)
    grid = {b.axis: k for k, b in enumerate(kernel.grid) if isinstance(b, ir.Block)}
    lengths = {a: (_extent(kernel, a, sizes), k) for a, k in grid.items()}
    blocked: set[str] = set()
    for d in dots_of(kernel.body):
        left, right = (axes_of_value(v, names) for v in (d.left, d.right))
        for side in (left - right, right - left):
            rows = [a for a in side if a in grid]
            blocked |= {max(rows, key=lengths.__getitem__)} if rows else set()
    return in_blocks(kernel, dict.fromkeys(blocked, ROW_LANES))


def _extent(kernel: ir.Kernel, axis: str, sizes: Mapping[str, int] | None) -> int:
    extent = kernel.axis(axis).extent
    is_number = sizes or isinstance(extent, int)
    return int(evaluate(extent, sizes or {})) if is_number else 0


# ---- which axes are looped over ------------------------------------------------------------------


def _stream_axes(kernel: ir.Kernel) -> Axes:
    streams = (s for s in statements(kernel) if isinstance(s, ir.Stream))
    return Axes(b.axis for s in streams for b in s.blocks)


def _read_whole(body: tuple[ir.Statement, ...], visited: Axes) -> Axes:
    """Return the axes of statements that are in no stream over them."""
    names = axes_of_body(body)
    result = Axes()
    for s in body:
        if isinstance(s, ir.Stream):
            inside = visited.union(b.axis for b in s.blocks)
            result |= _read_whole(s.body, inside)
            result |= Axes(a for t in s.states for a in t.axes) - visited
            continue
        values = [*visit_statement(s)]
        read = Axes().union(*(axes_of_value(v, names) for v in values))
        if isinstance(s, ir.Store):
            read |= axes_of_index(s.index, names)
        result |= read - visited
    return result


def _long_axes(
    kernel: ir.Kernel, sizes: Mapping[str, int] | None, register_lanes: int
) -> list[str]:
    """Return the whole axes along which values exceed the registers, longest first."""
    blocked = _stream_axes(kernel).union(b.axis for b in kernel.grid if isinstance(b, ir.Block))
    extents = {
        a.name: power_of_two(int(evaluate(a.extent, sizes or {})))
        for a in kernel.axes
        if a.name not in blocked and (sizes or isinstance(a.extent, int))
    }
    result = {a for d in dots_of(kernel.body) for a in d.over}
    result = {a for a in result if extents.get(a, 1) > WHOLE_SUM}
    for together in _axes_together(kernel.body):
        axes = {a.name: extents.get(a.name, 1) for a in kernel.axes if a.name in together - result}
        total = 1
        for n in axes.values():
            total *= n
        while total > register_lanes:
            longest = max(axes, key=axes.__getitem__)
            total //= axes.pop(longest)
            result.add(longest)
    return sorted(result, key=lambda a: (-extents[a], a))


def has_long_axes(launch: ir.Kernel, sizes: Mapping[str, int], register_lanes: int) -> bool:
    """Return whether fewer lanes than those of all registers give a launch other loops."""
    launch = _without_whole_blocks(launch)
    few, all_of_them = (_long_axes(launch, sizes, n) for n in (register_lanes, REGISTER_LANES))
    return few != all_of_them


@cached_by_identity(MAX_BODIES)
def _axes_together(body: tuple[ir.Statement, ...]) -> Sequence[Axes]:
    """Return the axes of every tensor of a program, each once."""
    names = axes_of_body(body)
    result: dict[Axes, None] = {}
    for v in visit_body(body):
        over = v.over if isinstance(v, ir.Reduce | ir.Dot) else ()
        operands = children(v) if over else (v,)
        result[Axes(over).union(*(axes_of_value(c, names) for c in operands))] = None
    for s in stores(body):
        result[axes_of_index(s.index, names)] = None
    return tuple(result)


# ---- streams that only add contractions ----------------------------------------------------------


def _adds_contractions(kernel: ir.Kernel) -> bool:
    """Return whether all streams only add contractions to states of one number."""
    streams = [s for s in statements(kernel) if isinstance(s, ir.Stream)]
    return all(
        not s.bounds
        and s.where is None
        and not any(t.axes for t in s.states)
        and all(isinstance(x, ir.Let | ir.Position | ir.Update) for x in s.body)
        and all(_added_axes(x) for x in s.body if isinstance(x, ir.Update))
        for s in streams
    )


def _widened(stream: ir.Statement) -> ir.Statement:
    """Return a stream with blocks instead of steps, where it only adds contractions."""
    if not isinstance(stream, ir.Stream):
        return stream
    updates = [s for s in stream.body if isinstance(s, ir.Update)]
    others = [s for s in stream.body if not isinstance(s, ir.Update)]
    over = [axis for u in updates for axis in _added_axes(u)]
    is_plain = all(isinstance(s, ir.Let | ir.Position) for s in others) and not stream.bounds
    bound = {s.name for s in others if isinstance(s, ir.Let | ir.Position)}
    states = {t.name for t in stream.states}
    reads = [v for s in others for v in visit_statement(s)]
    reads_state = any(isinstance(v, ir.Ref) and v.name in states - bound for v in reads)
    if not is_plain or reads_state or not all(_added_axes(u) for u in updates):
        return stream
    steps = [b.axis for b in stream.blocks if b.size == 1 and b.axis in over]
    if not steps or any(b.size != 1 and b.axis in over for b in stream.blocks):
        return stream
    blocks = tuple(
        replace(b, size=SUMMED_LANES) if b.axis == steps[-1] else b for b in stream.blocks
    )
    return replace(stream, blocks=blocks)


def _added_axes(update: ir.Update) -> tuple[str, ...]:
    """Return the axes of the contraction that an update adds to its state."""
    match update.value:
        case ir.Apply(op=op, args=(ir.Ref(name=name, next=False), ir.Dot(over=over))) if (
            name == update.state and op == COMBINES[SUM_OF_PRODUCTS[0]].scalar
        ):
            return over
        case _:
            return ()
