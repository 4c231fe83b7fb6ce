"""Count what a launch computes and moves, whatever its schedule.

    work = launch_work(launch, sizes, policy)
    work.bytes_of, work.contractions, work.lanes

What this takes on a device, by a schedule, is `smelt.codegen.triton.launch_time`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from smelt.backend.gpu import SECTOR_BYTES
from smelt.codegen.triton.block_axes import dots_of
from smelt.codegen.triton.indices import known_offset
from smelt.codegen.triton.lane_work import (
    LaneWork,
    divided_axes,
    division_work,
    lane_work,
    visited_share,
)
from smelt.codegen.triton.live_values import LiveSet, live_sets
from smelt.codegen.triton.narrow_products import is_dot, operand_loads, product_orders
from smelt.codegen.triton.schedule import Policy, is_atomic, selected_axes, steps_in_order
from smelt.kernel import ir
from smelt.kernel.decided_blocks import decided_blocks
from smelt.kernel.walk import (
    Axes,
    axes_of_body,
    axes_of_index,
    axes_of_value,
    loads,
    positions_of,
    statements,
    stores,
    visit_body,
)
from smelt.python.dataclass import dataclass
from smelt.types.dtype import DType, bf16, f16, f32
from smelt.types.expr import Index, axes_of, bounds, evaluate, terms_of

NO_AXES = Axes()
MAX_ALIGNED = 16
"""Elements of one byte in the widest access of a thread."""
SPLIT_PRODUCTS = 3
"""Products of tf32 that one of float32 takes in terms."""
SAMPLE = 1024
"""Neighbours of a merged axis whose elements are looked at: a program of a map."""


class Access(NamedTuple):
    """A load, store or operand: bytes of an element, its axes, and those of memory neighbours.

    A combined one joins values with those in memory; at computed positions it has no neighbours.
    Along a merged axis of the grid, `share` is that of positions with an element of their own, and
    `waste` the bytes of their sectors in those of the elements. A thread accesses at most `aligned`
    neighbours at once, which is looked at for maps, and for operands of contractions. One that is
    visited is accessed by the program alone that a condition selects.
    """

    nbytes: int
    axes: Axes
    last: Axes = Axes()
    param: str = ""
    is_combined: bool = False
    share: float = 1.0
    waste: float = 1.0
    aligned: int = MAX_ALIGNED
    is_visited: bool = False
    is_operand: bool = False


class Contraction(NamedTuple):
    """A contraction: the axes of its result and those summed, the bytes of an operand's element.

    It takes as many products as pairs of its operands' terms meet. Those of float32 are rounded to
    tf32 where the policy allows it.
    """

    result: Axes
    over: Axes
    nbytes: int
    products: int
    is_tf32: bool = False
    is_dot: bool = True
    """Whether matrices are multiplied; else each program sums a block of all products."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchWork:
    """What a launch computes and moves, at given sizes.

    `bytes_of` has those of the elements of each array that it reads or writes, once each. `values`
    are the axes of all values of a program. `masked` are streamed axes with blocks that no mask
    cuts. `parts` has the axes of the grid that share the positions of a streamed axis, by axis.
    """

    extents: Mapping[str, int]
    bytes_of: Mapping[str, int]
    accesses: tuple[Access, ...]
    stored: tuple[Access, ...]
    operands: tuple[Access, ...]
    contractions: tuple[Contraction, ...]
    values: tuple[Axes, ...]
    parts: Mapping[str, Axes]
    masked: tuple[str, ...]
    lanes: tuple[LaneWork, ...]
    live: tuple[LiveSet, ...]
    """Values that are needed at a time; empty with contractions, which have an estimate."""
    passes: Mapping[str, int]
    """Loops that visit each array which is read in loops along its axes."""
    around: Mapping[str, Axes]
    """Axes of the streams around these loops: a program takes their positions in order."""
    visited: Mapping[str, float]
    """Shares of streamed axes that masks leave, by axis; 1 for others."""
    ordered: Axes = Axes()
    """Axes of streams that combine values with memory in their order."""
    examined: Axes = Axes()
    """Those of whose positions lanes examine many together, to visit some."""
    steps: Axes = Axes()
    """Axes of whose positions each continues what the one before it carried."""
    owners: Axes = Axes()
    """Axes of the grid whose programs each visit their own positions among the examined ones."""

    @property
    def bytes(self) -> int:
        """Bytes of all elements that it reads and writes."""
        return sum(self.bytes_of.values())

    @property
    def operand_bytes(self) -> int:
        """Bytes of the widest operand of a contraction as it is multiplied; 4 without any."""
        return max((c.nbytes for c in self.contractions), default=4)

    @property
    def has_dots(self) -> bool:
        """Whether all contractions are of matrices."""
        return all(c.is_dot for c in self.contractions)

    @property
    def is_tf32(self) -> bool:
        """Whether matrix units multiply float32 that is rounded to tf32."""
        return bool(self.contractions) and all(c.is_tf32 for c in self.contractions)


def launch_work(launch: ir.Kernel, sizes: Mapping[str, int], policy: Policy) -> LaunchWork:
    """Return the work of a launch at these sizes."""
    names, dots = axes_of_body(launch.body), dots_of(launch.body)
    extents = {a.name: int(evaluate(a.extent, sizes)) for a in launch.axes}
    params = {p.name: p for p in (*launch.inputs, *launch.outputs)}
    examined = selected_axes(launch)
    conditions = _loads_of_conditions(launch)
    multiplied_loads = operand_loads(launch)
    accesses: list[Access] = []
    indices: dict[str, dict[tuple[Index, ...], Axes]] = {}
    for x in (*loads(launch), *stores(launch)):
        axes = axes_of_index(x.index, names)
        param = params[x.param]
        last = axes_of_index(x.index[-1:], names)
        is_combined = isinstance(x, ir.Store) and bool(x.join)
        if is_combined and any(map(positions_of, x.index[-1:])):
            last = Axes()
        access = Access(param.dtype.itemsize, axes, last, x.param, is_combined)
        if not dots:
            share, waste = _visited_elements(x, param, launch, sizes)
            access = access._replace(share=share, waste=waste)
        access = access._replace(is_visited=bool(axes & examined) and x not in conditions)
        if _is_map(launch) or x in multiplied_loads:
            aligned = _aligned_elements(known_offset(param, x.index), sizes)
            access = access._replace(aligned=aligned, is_operand=x in multiplied_loads)
        accesses.append(access)
        indices.setdefault(x.param, {})[x.index] = axes
    looped, steps = [*_read_in_loops(launch.body, names)], steps_in_order(launch)
    types = _types(launch)
    multiplied = [_multiplied(d, types, policy) for d in dots]
    lets = {s.name: s.value for s in statements(launch) if isinstance(s, ir.Let)}
    streams = [s for s in statements(launch) if isinstance(s, ir.Stream)]
    parts = dict(_parts(launch, names))
    return LaunchWork(
        extents=extents,
        bytes_of={
            p: _distinct_elements(params[p], at, extents, sizes) * params[p].dtype.itemsize
            for p, at in indices.items()
        },
        accesses=tuple(accesses),
        stored=tuple(accesses[len(list(loads(launch))) :]),
        operands=tuple(
            Access(width, axes_of_value(v, names), param=_loaded_param(v, lets))
            for d, (width, _) in zip(dots, multiplied, strict=True)
            for v in (d.left, d.right)
        ),
        contractions=tuple(_contraction(d, axes_of_value(d, names), types, policy) for d in dots),
        values=tuple(dict.fromkeys(axes_of_value(v, names) for v in visit_body(launch))),
        parts=parts,
        lanes=(*lane_work(launch), *(division_work(launch) if not dots else ())),
        live=() if dots and not steps else live_sets(launch),
        passes=Counter(p for p, _ in looped),
        around=dict(looped),
        visited={
            b.axis: visited_share(b, launch, extents, sizes, parts.get(b.axis, Axes()))
            for s in streams
            for b in s.blocks
        },
        ordered=frozenset() if is_atomic(launch) else _joining_axes(launch.body),
        examined=examined,
        steps=steps,
        owners=Axes().union(*parts.values()) if examined else Axes(),
        masked=tuple(full.axis for s in streams if (full := decided_blocks(s)) is not None),
    )


def _loads_of_conditions(launch: ir.Kernel) -> list[ir.Load]:
    """Return the reads of conditions that say which blocks of streams are visited."""
    streams = [s for s in statements(launch) if isinstance(s, ir.Stream)]
    return [x for s in streams if s.where is not None for x in loads(s.where)]


def _contraction(d: ir.Dot, axes: Axes, types: Mapping[str, DType], policy: Policy) -> Contraction:
    width, products = _multiplied(d, types, policy)
    takes_tf32 = policy.products != "exact" and policy.has_matrix_units
    is_tf32 = takes_tf32 and d.dtype == f32 and width == f32.itemsize
    is_matrix = is_dot(d.dtype, *_operand_types(d, types))
    return Contraction(axes, Axes(d.over), *_rate_of(d, width, products), is_tf32, is_matrix)


def _distinct_elements(
    param: ir.Param,
    indices: Mapping[tuple[Index, ...], Axes],
    extents: Mapping[str, int],
    sizes: Mapping[str, int],
) -> int:
    """Return the elements of an array that accesses touch at most, each once.

    Slices side by side add up; windows that overlap have no more than the box around them.
    """
    if param.each:
        return 1
    last = [int(evaluate(n, sizes)) - 1 for n in param.shape]
    boxes: dict[tuple[tuple[int, int], ...], int] = {}
    for index, axes in indices.items():
        ends = [bounds(e) or (0, n) for e, n in zip(index, last, strict=True)]
        box = tuple(
            (max(int(evaluate(low, sizes)), 0), min(int(evaluate(high, sizes)), n))
            for (low, high), n in zip(ends, last, strict=True)
        )
        visited = min(math.prod(extents[a] for a in axes), _volume(box))
        boxes[box] = max(boxes.get(box, 0), visited)
    around = tuple((min(low), max(high)) for low, high in (zip(*e) for e in zip(*boxes)))
    return min(sum(boxes.values()), _volume(around))


def _volume(box: Iterable[tuple[int, int]]) -> int:
    return math.prod(max(high - low + 1, 0) for low, high in box)


def _visited_elements(
    x: ir.Load | ir.Store, param: ir.Param, launch: ir.Kernel, sizes: Mapping[str, int]
) -> tuple[float, float]:
    """Return the share of new elements along a merged axis, and their waste.

    In positions, and in bytes of the elements: (1, 1) for a contiguous array, and for one that is
    read at positions that data decide.
    """
    offset = known_offset(param, x.index)
    merged = [a for a in divided_axes(offset) if a in _grid_axes(launch)]
    if not merged or positions_of(offset):
        return 1.0, 1.0
    (flat, *_) = merged
    extent = int(evaluate(launch.axis(flat).extent, sizes))
    first = max(extent - SAMPLE, 0) // 2
    at: dict[str, Any] = dict.fromkeys(axes_of(offset), 0)
    at[flat] = np.arange(first, min(first + SAMPLE, extent))
    if not at[flat].size:
        return 1.0, 1.0
    elements = np.unique(evaluate(offset, sizes, at))
    sectors = np.unique(elements * param.dtype.itemsize // SECTOR_BYTES)
    is_last = bool(x.index) and axes_of(x.index[-1]) == (flat,)
    waste = sectors.size * SECTOR_BYTES / (elements.size * param.dtype.itemsize)
    return elements.size / at[flat].size, max(waste, 1.0) if is_last else 1.0


def _aligned_elements(offset: Index, sizes: Mapping[str, int]) -> int:
    """Return how many neighbours a thread may access at once, in all rows.

    Triton divides what divides strides, and the number of neighbours that a mask leaves.
    """
    result = MAX_ALIGNED
    for factors, number in terms_of(offset):
        for a in factors:
            number *= sizes[a.name] if a.kind == "size" else 1
        variables = [a for a in factors if a.kind != "size"]
        if abs(number) == 1 and len(variables) == 1:
            (a,) = variables
            neighbours = a.extent if a.kind == "axis" else a.args[1] if a.kind == "%" else 1
            number = int(evaluate(neighbours, sizes))
        result = min(result, number & -number or result)
    return result


def _is_map(launch: ir.Kernel) -> bool:
    """Return whether every value is computed at one position of the grid."""
    return {a.name for a in launch.axes} <= _grid_axes(launch)


def _grid_axes(launch: ir.Kernel) -> Axes:
    return Axes(b.axis for b in launch.grid if isinstance(b, ir.Block))


def _read_in_loops(
    body: Iterable[ir.Statement], names: Mapping[str, Axes], around: Axes = NO_AXES
) -> Iterator[tuple[str, Axes]]:
    """Yield the arrays that each loop reads along its axes, outside of inner loops.

    With the axes of the streams around it.
    """
    for s in body:
        if isinstance(s, ir.Stream):
            visited = Axes(b.axis for b in s.blocks)
            inside = [*_read_in_loops(s.body, names, around | visited)]
            yield from inside
            read = {
                x.param
                for t in s.body
                for x in (() if isinstance(t, ir.Stream) else loads(t))
                if visited & axes_of_index(x.index, names)
            }
            yield from ((p, around) for p in read - {p for p, _ in inside})


def _joining_axes(body: Iterable[ir.Statement]) -> Axes:
    """Return the axes of the innermost streams whose stores combine values."""
    result = Axes()
    for s in body:
        if isinstance(s, ir.Stream):
            joins = any(isinstance(t, ir.Store) and t.join for t in s.body)
            result |= Axes(b.axis for b in s.blocks) if joins else _joining_axes(s.body)
    return result


def _parts(launch: ir.Kernel, names: Mapping[str, Axes]) -> Iterator[tuple[str, Axes]]:
    """Yield streamed axes, each with the axes of the grid that share its positions."""
    for s in statements(launch):
        for b in s.blocks if isinstance(s, ir.Stream) else ():
            if b.start is not None and b.stop is not None:
                yield b.axis, axes_of_value(b.start, names) & axes_of_value(b.stop, names)


def _multiplied(dot: ir.Dot, types: Mapping[str, DType], policy: Policy) -> tuple[int, int]:
    """Return the bytes of the elements that a contraction multiplies, and its number of products.

    Products of terms are in bfloat16; without matrix units all are in float32 at least.
    """
    pair = _operand_types(dot, types)
    wider, narrower = sorted((t.itemsize for t in pair), reverse=True)
    if not is_dot(dot.dtype, *pair):
        return max(wider, dot.dtype.itemsize, f32.itemsize), 1
    if not policy.has_matrix_units:
        return max(wider, f32.itemsize), 1
    products = SPLIT_PRODUCTS if policy.products == "split" and wider == f32.itemsize else 1
    if policy.products == "narrow":
        return min(wider, max(narrower, 2)), 1
    left, right = (t if t.itemsize < f32.itemsize else None for t in pair)
    halves = {left, right} - {None}
    if wider > f32.itemsize or not halves or left == right or not halves <= {bf16, f16}:
        return wider, products
    if policy.products == "split" and f16 in halves:
        return wider, products
    return bf16.itemsize, len(product_orders(left, right, policy))


def _operand_types(dot: ir.Dot, types: Mapping[str, DType]) -> tuple[DType, DType]:
    return _type_of(dot.left, types), _type_of(dot.right, types)


def _loaded_param(value: ir.Value, lets: Mapping[str, ir.Value]) -> str:
    """Return the array that an operand is an element of, "" for a computed one."""
    match value:
        case ir.Load(param=param):
            return param
        case ir.Cast(arg=arg):
            return _loaded_param(arg, lets)
        case ir.Ref(name=name) if name in lets:
            return _loaded_param(lets[name], lets)
        case _:
            return ""


def _rate_of(dot: ir.Dot, width: int, products: int) -> tuple[int, int]:
    """Return what decides a contraction's rate: an integer of 64 bits takes two of 32."""
    if width > f32.itemsize and not dot.dtype.is_float:
        return f32.itemsize, 2 * products
    return width, products


def _types(launch: ir.Kernel) -> dict[str, DType]:
    """Return the types that represent an element of parameters and of named values.

    A wider type represents every number of the value that it was converted from.
    """
    result = {p.name: p.dtype for p in (*launch.inputs, *launch.outputs)}
    for s in statements(launch):
        if isinstance(s, ir.Let):
            result[s.name] = _type_of(s.value, result)
    return result


def _type_of(value: ir.Value, types: Mapping[str, DType]) -> DType:
    match value:
        case ir.Load(param=name) | ir.Ref(name=name):
            return types.get(name, f32)
        case ir.Cast(arg=arg, dtype=dtype):
            return min(_type_of(arg, types), dtype, key=lambda t: t.itemsize)
        case _:
            return f32
