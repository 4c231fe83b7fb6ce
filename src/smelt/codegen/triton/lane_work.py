"""Count what the vector lanes and special functions of a launch compute beside its contractions.

    for piece in lane_work(launch):
        count = positions of piece.axes * steps of the loops over piece.around

Costs are those of the operators' rows, as the planner takes them (`smelt.fusion.trace`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import prod
from typing import NamedTuple

import numpy as np

from smelt.codegen.triton.indices import known_offset
from smelt.kernel import ir
from smelt.kernel.decided_blocks import DecidedBlocks, decided_blocks
from smelt.kernel.env import Env, dtype_of
from smelt.kernel.walk import (
    Axes,
    axes_of_body,
    axes_of_value,
    loads,
    statements,
    stores,
    visit,
    visit_body,
    visit_statement,
)
from smelt.ops.combine import COMBINES, EXTREMES, SUM_OF_PRODUCTS
from smelt.ops.cost import DATA_DEPENDENT_SHARE, MASK_SAMPLES, MOVE_COST, SPECIAL_COST
from smelt.ops.scalar import SCALARS
from smelt.types.dtype import f64
from smelt.types.expr import Expr, Index, atoms, axes_of, evaluate

DIVISION_COST, SIZE_DIVISION_COST = 2.0, 10.0
"""Cost of dividing an index by a number, and by a size: four and twenty instructions."""


SUM = COMBINES[SUM_OF_PRODUCTS[0]].scalar
"""The operator that contractions add to an accumulator by: their units do it."""
WORDS = 2
"""Instructions of one on integers of 64 bits."""


class LaneWork(NamedTuple):
    """Cost of one position of `axes`, in every step of loops over `around`.

    `cost` and `double_cost` are sums of rows' costs by precision, `specials` counts functions.
    Devices with an instruction for the greater of two floats lack `extreme_cost` of `cost`.
    """

    axes: Axes
    around: Axes
    cost: float
    double_cost: float
    specials: int
    masked: str = ""
    """The streamed axis whose cut blocks alone need it: it is a mask that other blocks lack."""
    extreme_cost: float = 0.0


def lane_work(launch: ir.Kernel) -> tuple[LaneWork, ...]:
    """Return the work of all values by their axes and the loops that compute them.

    >>> from smelt.kernel.text import parse
    >>> text = "kernel f(x: f32[n]) -> y: f32[n]\\n  grid n\\n  y[n] = exp(x[n]) * 2\\n"
    >>> [(x.cost, x.double_cost, x.specials) for x in lane_work(parse(text))]
    [(0.5, 0.0, 1)]
    >>> [x.specials for x in lane_work(parse(text.replace("f32", "f64")))]
    [0]
    """
    names = axes_of_body(launch.body)
    values = [*_values(launch.body, Axes())]
    has_doubles = any(p.dtype == f64 for p in (*launch.inputs, *launch.outputs)) or any(
        isinstance(v, ir.Reduce) and v.dtype == f64 for v, *_ in values
    )
    types = Env.after(launch) if has_doubles else None
    totals: dict[tuple[Axes, Axes, str], list[float]] = {}
    for value, loops, masked in values:
        cost, is_double = _cost(value)
        if cost:
            evaluated = value.arg if isinstance(value, ir.Reduce | ir.Scan) else value
            axes = axes_of_value(evaluated, names)
            total = totals.setdefault((axes, loops - axes, masked), [0.0, 0.0, 0.0, 0.0])
            is_special = isinstance(value, ir.Apply) and cost >= SPECIAL_COST
            if is_special and _is_integer(value):
                is_special, cost = False, WORDS * cost
            if types is not None and isinstance(value, ir.Apply):  # functions are polynomials
                is_double = any(dtype_of(a, types) == f64 for a in value.args)
                is_special &= not is_double
            elif types is not None and isinstance(value, ir.Reduce):  # blocks are added as they are
                is_double = dtype_of(value.arg, types) == f64
            total[2 if is_special else is_double] += 1 if is_special else cost
            if isinstance(value, ir.Reduce) and value.combine in EXTREMES and not is_double:
                total[3] += cost - MOVE_COST
    return tuple(
        LaneWork(axes, around, cost, double, int(specials), masked, extreme)
        for (axes, around, masked), (cost, double, specials, extreme) in totals.items()
    )


def _is_integer(value: ir.Value) -> bool:
    """Return whether an operator takes integers alone, and so has no unit of its own."""
    if not isinstance(value, ir.Apply):
        return False
    kinds = {k for operand in SCALARS[value.op].rule.accepts for k in operand}
    return kinds <= {"bool", "int", "uint"}


def _values(
    body: Sequence[ir.Statement], loops: Axes, full: DecidedBlocks | None = None
) -> Iterator[tuple[ir.Value, Axes, str]]:
    """Yield all values of a body, with the axes of its loops and its mask.

    In the `full` blocks of a loop, conditions are decided.
    """
    masks = _masks(body, full) if full else set[int]()
    for s in body:
        for value in visit_statement(s):
            yield value, loops, full.axis if full and id(value) in masks else ""
        if isinstance(s, ir.Stream):
            yield from _values(s.body, loops | {b.axis for b in s.blocks}, decided_blocks(s))


def _masks(body: Sequence[ir.Statement], full: DecidedBlocks) -> set[int]:
    """Return the identities of values that blocks lack in which conditions fail.

    These are the conditions, what is chosen where they hold, and what only these read.
    """
    masks: set[int] = set()
    needed: set[str] = set()
    for s in reversed(body):
        is_needed = not isinstance(s, ir.Let) or s.name in needed
        for v in visit_body((s,)):
            if not is_needed:
                masks.add(id(v))
            elif isinstance(v, ir.If) and v.condition in full.conditions:
                chosen = {id(v), *map(id, visit(v.condition)), *map(id, visit(v.value))}
                masks |= chosen - {*map(id, visit(v.other))}
        needed |= {v.name for v in visit_body((s,)) if isinstance(v, ir.Ref) and id(v) not in masks}
    return masks


def _cost(value: ir.Value) -> tuple[float, bool]:
    """Return the cost of a value at one position, and whether it is double."""
    match value:
        case ir.Apply(op=op, args=args):
            is_accumulated = op == SUM and any(isinstance(a, ir.Dot) for a in args)
            return 0.0 if is_accumulated else SCALARS[op].cost, False
        case ir.Reduce(combine=combine, dtype=dtype) | ir.Scan(combine=combine, dtype=dtype):
            return SCALARS[COMBINES[combine].scalar].cost, dtype == f64
        case ir.If():
            return SCALARS["select"].cost, False
        case ir.Cast() | ir.IndexValue():
            return MOVE_COST, False
        case _:
            return 0.0, False


def division_work(launch: ir.Kernel) -> Iterator[LaneWork]:
    """Yield the work of quotients and remainders of grid axes in indices: one for each, once.

    Numbers become a product and shifts; dividing by a size is a function of its own.
    """
    params = {p.name: p for p in (*launch.inputs, *launch.outputs)}
    indices: list[Index] = []
    for x in (*loads(launch), *stores(launch)):
        indices.append(known_offset(params[x.param], x.index))
        indices += x.index if isinstance(x, ir.Load) and x.other is not None else ()
    for s in statements(launch):
        values = visit_statement(s)
        indices += [v.index for v in values if isinstance(v, ir.IndexValue)]
    divisions = dict.fromkeys(a for e in indices for a in atoms(e) if a.kind in ("//", "%"))
    for a in divisions:
        axes = Axes(divided_axes(Expr((((a,), 1),))))
        cost = DIVISION_COST if isinstance(a.args[1], int) else SIZE_DIVISION_COST
        if axes:
            yield LaneWork(axes, Axes(), cost, 0.0, 0)


def divided_axes(e: Index) -> tuple[str, ...]:
    """Return the axes inside of quotients and remainders of an index."""
    divided = (a for a in atoms(e) if a.kind in ("//", "%"))
    return tuple(dict.fromkeys(x for a in divided for x in axes_of(a.args[0])))


def visited_share(
    block: ir.Block,
    launch: ir.Kernel,
    extents: Mapping[str, int],
    sizes: Mapping[str, int],
    parts: Axes = frozenset(),
) -> float:
    """Return the mean share of a streamed axis that blocks visit, in all `parts` together.

    Its ends are evaluated for some blocks and parts, evenly spread; data decide some of them.
    """
    if block.start is None and block.stop is None:
        return 1.0
    cuts = {b.axis: b.size or 1 for b in launch.grid if isinstance(b, ir.Block)}
    extent, total = max(extents[block.axis], 1), 0.0
    samples = [(k + 0.5) / MASK_SAMPLES for k in range(MASK_SAMPLES)]
    pairs = list(product(samples, samples)) if parts else [(f, f) for f in samples]
    for of_rows, of_parts in pairs:
        fractions = {a: of_parts if a in parts else of_rows for a in extents}
        bounds = _bounds(fractions, cuts, extents)
        ends: list[int] = []
        for value, default in ((block.start, 0), (block.stop, extent)):
            end = default if value is None else _end(value, bounds, sizes)
            if end is None:
                return DATA_DEPENDENT_SHARE
            ends.append(min(max(end, 0), extent))
        total += max(ends[1] - ends[0], 0 if parts else 1) / extent
    return prod(extents[p] for p in parts) * total / len(pairs)


class _Bounds(NamedTuple):
    """The first and the last position of one block of each axis."""

    first: Mapping[str, int]
    last: Mapping[str, int]


def _bounds(
    fractions: Mapping[str, float], cuts: Mapping[str, int], extents: Mapping[str, int]
) -> _Bounds:
    """Return the block of each axis at a relative position."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for a, extent in extents.items():
        cut = cuts.get(a, max(extent, 1))
        first[a] = int(extent * fractions[a]) // cut * cut
        last[a] = min(first[a] + cut, extent) - 1
    return _Bounds(first, last)


def _end(value: ir.Value, bounds: _Bounds, sizes: Mapping[str, int]) -> int | None:
    """Return an end of a range for one block of other axes.

    None if data decide.
    """
    match value:
        case ir.Const(value=number):
            return int(number)
        case ir.Extreme(arg=ir.IndexValue(index=index), largest=largest):
            return int(evaluate(index, sizes, bounds.last if largest else bounds.first))
        case ir.IndexValue(index=index) if all(a.kind != "value" for a in atoms(index)):
            return int(evaluate(index, sizes, bounds.first))
        case ir.Apply(op=op, args=args):
            ends = [_end(a, bounds, sizes) for a in args]
            numbers = [np.int64(e) for e in ends if e is not None]
            return int(SCALARS[op].numpy(*numbers)) if len(numbers) == len(ends) else None
        case ir.Cast(arg=arg):
            return _end(arg, bounds, sizes)
        case _:
            return None
