"""Choose what a program of the grid computes: the lanes of each axis.

    schedule = choose_schedule(kernel, {"r": 4096, "c": 1000})

An axis of the grid is one index per program or a block of lanes; an axis of a stream is visited in
blocks; every other axis is in every program as a whole, padded to a power of two.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Literal

from smelt.codegen.triton.block_axes import dots_of, power_of_two
from smelt.codegen.triton.writer import refuse
from smelt.kernel.ir import Block, Dot, Kernel, Let, Load, Position, Rename, Store, Stream, Update
from smelt.kernel.walk import (
    Axes,
    axes_of_body,
    axes_of_value,
    axes_used,
    statements,
    stores,
    visit_body,
)
from smelt.ops.combine import COMBINES, EXTREMES, SUM_OF_PRODUCTS
from smelt.python.dataclass import dataclass
from smelt.types.expr import evaluate

ATOMICS = {
    COMBINES[SUM_OF_PRODUCTS[0]].scalar: "atomic_add",
    COMBINES[EXTREMES[0]].scalar: "atomic_min",
    COMBINES[EXTREMES[1]].scalar: "atomic_max",
}
"""Atomic operations of Triton by the scalar operator that a store combines with."""
MAP_LANES = 1024
"""Elements of a program without whole axes: 8 a thread in 4 warps, as Inductor's maps have."""
TILE_LANES = 4096
"""Elements that a program with whole or streamed axes should have at most."""
MAX_LANES = 1 << 20
"""Maximum elements of a tensor in Triton."""
MIN_DOT = 16
"""Minimum lanes along each axis of a `tl.dot`."""
MIN_INTEGER_DOT = 32
"""Minimum lanes of the summed axis of a `tl.dot` of 8-bit integers."""
DOT_LANES = 64
"""Maximum lanes of an axis of a kernel with contractions."""
ELEMENTS_PER_WARP = 256
MAX_WARPS = 16
"""Maximum warps that follow from a program's lanes."""
EXAMINED_LANES = 1024
"""Positions that a program examines together, and visits those where a condition holds."""
UNKNOWN_ROWS = 128
"""Rows of a block for which positions are examined, where their number is not known."""
EXAMINING_WARPS = 4
"""Warps of such a program: with more, each visit waits for more of them."""
STAGES = 3
"""Triton's default."""


@dataclass(frozen=True, slots=True)
class Policy:
    """How exact the arithmetic of a program is.

    `math`: "exact" has the bits of the CPU's formulas, "fast" the hardware's approximations.
    `products` says how a contraction multiplies operands that no tensor core takes as they are:
    "exact" in float32; "split" in two terms of bfloat16 beside a bfloat16 (2^-16 of a product) and
    in three products of tf32 elsewhere (about 2^-21); "narrow" rounded to the other operand's half
    type (bfloat16: 2^-8, as FlashAttention rounds weights) or to tf32 (2^-11).
    Operands that a narrow type represents are multiplied in that type by all of them.
    `order` says whether floats that stores combine are in the kernel's order, or in a free one.
    """

    math: Literal["exact", "fast"] = "exact"
    products: Literal["exact", "split", "narrow"] = "exact"
    order: Literal["kept", "free"] = "kept"
    has_matrix_units: bool = True
    """Whether there are matrix units that Triton uses; without, float32 lanes multiply instead."""


EXACT = Policy()
FAST = Policy("fast", "narrow")


def _nothing_copied() -> dict[Load, tuple[str | None, ...]]:
    return {}


def _nothing_stored() -> dict[Store, tuple[str | None, ...]]:
    return {}


@dataclass(frozen=True, slots=True)
class Schedule:
    """Lanes of axes: `grid` and `streams` have numbers (1: one index), `whole` the least ones.

    `warps` None follows the lanes. `stages` are blocks of a loop that are loaded ahead, with the
    one in use. `reason` says why the schedule is a candidate.
    """

    grid: Mapping[str, int]
    streams: Mapping[str, int]
    whole: Mapping[str, int]
    policy: Policy = EXACT
    has_matrices: bool = False
    """Whether every contraction is one of two matrices, with lanes for a `tl.dot`."""
    warps: int | None = None
    stages: int = STAGES
    splits_loops: bool = False
    """Whether a stream with masks has loops of its own for blocks that no mask cuts."""
    programs: int | None = None
    """Programs that walk the blocks of the grid; None: one program for each block."""
    group: int = 1
    """Blocks of rows that programs take together, column by column, so that caches keep them."""
    copied: Mapping[Load, tuple[str | None, ...]] = field(default_factory=_nothing_copied)
    """Operands of contractions whose blocks tensor descriptors copy: an axis for each dimension."""
    stored: Mapping[Store, tuple[str | None, ...]] = field(default_factory=_nothing_stored)
    """Results whose blocks tensor descriptors copy to memory."""
    halved: str = ""
    """The axis in whose halves of a block the epilogue is computed, one after the other."""
    specialised: Literal["", "nested", "flattened"] = ""
    """The loop over blocks that is divided among warps for copies, products and results."""
    reason: str = ""

    @property
    def blocked(self) -> list[str]:
        """The axes of the grid with several lanes."""
        return [a for a, n in self.grid.items() if n > 1]

    @property
    def overlaps_blocks(self) -> bool:
        """Whether a persistent program loads a block while it stores the one before.

        Triton loads blocks ahead by tensor descriptors alone: in one loop over all steps, or in
        warps of their own.
        """
        return self.programs is not None and bool(self.copied)

    @property
    def groups(self) -> int:
        """How many groups of its warps a program has for arithmetic."""
        return 2 if self.specialised == "nested" else 1

    @property
    def loop_options(self) -> str:
        """The options of the loop over the blocks of a persistent program."""
        is_flattened = self.overlaps_blocks and self.specialised != "nested"
        options = ", flatten=True" if is_flattened else ""
        return options + (", warp_specialize=True" if self.specialised else "")

    def lanes(self, extents: Mapping[str, int]) -> dict[str, int]:
        """Return the lanes of axes that have several, in the order of the schedule."""
        whole = {a: power_of_two(max(extents[a], least)) for a, least in self.whole.items()}
        every = {**self.grid, **whole, **self.streams}
        return {a: n for a, n in every.items() if n > 1}

    def warps_of(self, lanes: int) -> int:
        """Return the warps of a program with this many lanes."""
        if self.warps is not None:
            return self.warps
        return max(min(lanes // ELEMENTS_PER_WARP, MAX_WARPS), 1)


def choose_schedule(
    kernel: Kernel, sizes: Mapping[str, int] | None = None, policy: Policy = EXACT
) -> Schedule:
    """Return the schedule of a kernel; with sizes, of programs that fit the registers.

    Raises DeviceKernelError for rows longer than Triton's tensors.
    """
    grid = {b.axis: _lanes(b) for b in kernel.grid if isinstance(b, Block)}
    streams = stream_lanes(kernel)
    used = axes_used(kernel) - {*grid, *streams}
    whole = [a.name for a in kernel.axes if a.name in used]
    dots = dots_of(kernel.body)
    has_matrices = bool(dots) and _all_matrices(kernel, dots, {*whole, *_wide(grid | streams)})
    names = axes_of_body(kernel.body)
    multiplied = Axes().union(*(axes_of_value(v, names) for d in dots for v in (d.left, d.right)))
    least = {a: least_dot(kernel) if has_matrices and a in multiplied else 1 for a in whole}
    for v in visit_body(kernel.body):
        if isinstance(v, Rename):
            least[v.old] = least[v.new] = max(least[v.old], least[v.new])
    extents = {
        a.name: int(evaluate(a.extent, sizes or {}))
        for a in kernel.axes
        if sizes or isinstance(a.extent, int)
    }
    _check_rows(kernel.name, [extents.get(a, 1) for a in whole])
    if has_matrices:
        steps = {a: least_dot(kernel) for d in dots for a in d.over}
        lanes = _for_dots(grid, {}), _for_dots(streams, steps)
        return Schedule(*lanes, least, policy, has_matrices=True)
    joins = any(s.join for s in stores(kernel)) and not is_atomic(kernel)
    if not whole and not streams and grid and not joins:
        last = list(grid)[-1]
        grid[last] = MAP_LANES if grid[last] == 1 else min(grid[last], MAP_LANES)
        is_one = len(grid) == len(kernel.grid)  # members of a family have other sizes each
        if sizes is not None and is_one:
            positions = {a: int(evaluate(kernel.axis(a).extent, sizes)) for a in grid}
            grid = spread_lanes(grid, positions, grid[last])
    limit = TILE_LANES if whole or streams else MAP_LANES
    for axis in whole:
        limit //= power_of_two(extents.get(axis, 1))
    if streams and any(n > 1 for n in grid.values()):
        grid = _within(grid, TILE_LANES // 32)
    grid = _within(grid, max(limit, 1))
    for n in grid.values():
        limit //= n
    for axis, inside in reversed(nested_streams(kernel).items()):
        together = math.prod(streams[a] for a in inside)
        streams[axis] = min(streams[axis], max(limit // together, 1))
    selected = selected_axes(kernel)
    if not selected:
        return Schedule(grid, streams, least, policy)
    streams |= dict.fromkeys(selected, EXAMINED_LANES)
    return Schedule(
        grid, streams | _rows_of_parts(kernel, sizes), least, policy, warps=EXAMINING_WARPS
    )


def _rows_of_parts(kernel: Kernel, sizes: Mapping[str, int] | None) -> dict[str, int]:
    """Return lanes for all rows of a program, since each block examines all positions."""
    lanes: dict[str, int] = {}
    for s in statements(kernel):
        if isinstance(s, Stream) and any(
            isinstance(t, Stream) and selects_visits(t) for t in s.body
        ):
            (block,) = s.blocks
            if sizes is None:
                lanes[block.axis] = UNKNOWN_ROWS
                continue
            ends = [v for v in (block.start, block.stop) if v is not None]
            names = Axes().union(*(axes_of_value(v, {}) for v in ends))
            parts = math.prod(int(evaluate(kernel.axis(a).extent, sizes)) for a in names)
            rows = -(-int(evaluate(kernel.axis(block.axis).extent, sizes)) // max(parts, 1))
            lanes[block.axis] = min(power_of_two(max(rows, 1)), MAX_LANES)
    return lanes


def spread_lanes(
    grid: Iterable[str],
    extents: Mapping[str, int],
    lanes: int,
    most: Mapping[str, int] | None = None,
) -> dict[str, int]:
    """Return `lanes` of a program along its axes: those of `most` first, then the last ones.

    No axis has more than it has positions, rounded up to a power of two.

    >>> spread_lanes("abc", {"a": 100, "b": 5, "c": 7}, 256)
    {'a': 4, 'b': 8, 'c': 8}
    """
    most = most or {}
    result = dict.fromkeys(grid, 1)
    for axis in dict.fromkeys((*most, *reversed(result))):
        result[axis] = min(power_of_two(extents[axis]), lanes, most.get(axis, lanes))
        lanes //= result[axis]
    return result


def least_dot(kernel: Kernel) -> int:
    """Return the least lanes of every axis of a kernel's contractions of matrices."""
    has_integers = any(not d.dtype.is_float for d in dots_of(kernel.body))
    return MIN_INTEGER_DOT if has_integers else MIN_DOT


def is_atomic(kernel: Kernel) -> bool:
    """Return whether a launch only combines values with those in memory, in any order."""
    in_order = any(isinstance(s, Stream) for s in kernel.body)
    return not in_order and all(s.join in ATOMICS for s in stores(kernel))


def selects_visits(s: Stream) -> bool:
    """Return whether a stream visits only those of its positions that a condition selects.

    Lanes examine it for many positions together, and the program visits those where it holds.
    """
    if s.where is None or s.states:
        return False
    last = s.blocks[-1]
    return last == Block(last.axis, 1) and last.axis in axes_of_value(s.where, {})


def selected_axes(kernel: Kernel) -> Axes:
    """Return the axes of whose positions lanes examine many together, to visit some."""
    every = (s for s in statements(kernel) if isinstance(s, Stream))
    return Axes(s.blocks[-1].axis for s in every if selects_visits(s))


def steps_in_order(kernel: Kernel) -> Axes:
    """Return the axes of streams whose steps of one position carry states and store results."""
    every = (s for s in statements(kernel) if isinstance(s, Stream))
    return Axes(s.blocks[-1].axis for s in every if carries_steps(s))


def carries_steps(s: Stream) -> bool:
    """Return whether each step of a stream continues the one before it, and stores results.

    No compiler moves loads of a later step before these stores.
    """
    kinds = {type(x) for x in s.body}
    is_step = bool(s.states) and s.blocks[-1].size == 1
    return is_step and Store in kinds and Stream not in kinds


def adds_products(s: Stream) -> bool:
    """Return whether a stream over several axes only adds products, of all their positions."""
    is_plain = len(s.blocks) > 1 and all(
        (b.start, b.stop, b.part) == (None, None, None) for b in s.blocks
    )
    inside = is_plain and not s.bounds and s.where is None
    kinds = {type(x) for x in s.body}
    return inside and kinds <= {Let, Position, Update} and bool(dots_of(s.body))


def nested_streams(kernel: Kernel) -> dict[str, list[str]]:
    """Return the axes that streams visit, outer ones first, each with those visited inside."""
    result: dict[str, list[str]] = {}
    for s in statements(kernel):
        if isinstance(s, Stream):
            inner = [b.axis for t in statements(s.body) if isinstance(t, Stream) for b in t.blocks]
            for k, b in enumerate(s.blocks):
                later = [x.axis for x in s.blocks[k + 1 :]]
                inside = result.setdefault(b.axis, [])
                inside += [a for a in (*later, *inner) if a not in (*inside, b.axis)]
    return result


def _wide(lanes: Mapping[str, int]) -> list[str]:
    return [a for a, n in lanes.items() if n > 1]


def _all_matrices(kernel: Kernel, dots: Iterable[Dot], lanes: set[str]) -> bool:
    """Return whether all operands have two axes with lanes, one of which is summed."""
    names = axes_of_body(kernel.body)
    for d in dots:
        left, right = (axes_of_value(v, names) & lanes for v in (d.left, d.right))
        if not len(left) == len(right) == 2 or left & right != lanes.intersection(d.over):
            return False
        if len(left & right) != 1:
            return False
    return True


def _lanes(block: Block) -> int:
    """Return the lanes of a block; an axis without blocks is visited in long ones."""
    return TILE_LANES if block.size is None else power_of_two(block.size)


def stream_lanes(kernel: Kernel) -> dict[str, int]:
    """Return the lanes of axes that streams visit: 1 for steps of one."""
    lanes: dict[str, int] = {}
    for s in statements(kernel):
        for b in s.blocks if isinstance(s, Stream) else ():
            lanes[b.axis] = max(lanes.get(b.axis, 1), _lanes(b))
    return lanes


def _check_rows(kernel: str, extents: list[int]) -> None:
    longest = max(extents, default=0)
    if longest > MAX_LANES:
        refuse(kernel, f"all {longest} elements of a row at once")


def _for_dots(lanes: Mapping[str, int], least: Mapping[str, int]) -> dict[str, int]:
    return {
        a: n if n == 1 else min(max(n, least.get(a, MIN_DOT)), DOT_LANES) for a, n in lanes.items()
    }


def _within(lanes: Mapping[str, int], limit: int) -> dict[str, int]:
    """Halve blocks, outer ones first, until their product is at most `limit`."""
    total = math.prod(lanes.values())
    result: dict[str, int] = {}
    for axis, n in lanes.items():
        while total > limit and n > 1:
            n, total = n // 2, total // 2
        result[axis] = n
    return result
