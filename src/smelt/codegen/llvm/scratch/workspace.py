"""Lay out the scratch workspace of a schedule, per thread.

It holds values kept between nests, accumulators of reductions with axes, states of streams, packed
operands and tables of products, and transposed tiles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.instructions.indexing import opaque
from smelt.codegen.llvm.instructions.reductions import Accumulator, make_accumulator
from smelt.codegen.llvm.loopir.items import (
    Item,
    Reduction,
    Region,
    StreamState,
    Visit,
    enclosing_regions,
    unvarying_axes,
)
from smelt.codegen.llvm.loops.distribute import STAGE_PART, STRIP_ELEMENTS
from smelt.codegen.llvm.nests.contraction import Contraction
from smelt.codegen.llvm.nests.nest import Nest, Schedule
from smelt.codegen.llvm.nests.product_plan import LEFT_PART, RIGHT_PART, SUMS_PART
from smelt.codegen.llvm.schedule.task_tiling import transpose_side
from smelt.codegen.llvm.schedule.transposed_strip import pitches, strip_rows
from smelt.machine.blocks import COLUMNS, RUN
from smelt.types.dtype import DType, i32
from smelt.types.expr import Index, add, floordiv, maximum, minimum, mul, product, sub

Value = ir.Value
Key = tuple[Item | StreamState, int]
TRANSPOSED_PART = 200
STAMP = 64
"""Bytes at the beginning which identify the layout, where operands are cleared for it."""
PAD = 512
"""Bytes after each array, so that full vectors may be stored at its end."""
MAX_RESIDENT_BLOCKS = 8
"""Maximum number of blocks of an operand kept packed for all iterations of a stream.

These are 2 MiB of float32: L3 delivers them faster than they are packed again.
"""


def needs_run_sums(c: Contraction, s: Schedule) -> bool:
    """Return whether a product's sums may be long enough to need runs."""
    extent = product(s.span(s.region(c.item), a) for a in (*c.outer, c.k))
    limit = RUN if s.region(c.item) is None else 2 * RUN  # a stream's block never has more
    return c.item.dtype.is_float and not (isinstance(extent, int) and extent <= limit)


def sums_runs_apart(c: Contraction, s: Schedule) -> bool:
    """Return whether runs of a skinny product's rows have an array of their own.

    They are contiguous along n, and each of them is added to all sums.
    """
    return c.is_gemv and c.vector_axis == c.n and needs_run_sums(c, s)


def repeat_visits(c: Contraction, operand: Item, s: Schedule) -> list[Visit]:
    """Return the stream iterations which multiply the same operand again and again.

    These are the ones which begin after it is computed; none if one of them moves along it.
    """
    operand_regions = enclosing_regions(s.region(operand))
    inner = [r for r in enclosing_regions(s.region(c.item)) if r not in operand_regions]
    visits = [v for r in inner for v in r.visits]
    packed = {c.k, c.n if operand is c.right else c.m}
    moves = [*visits, *(v for r in inner for v in r.bounds)]
    is_moved = not packed.isdisjoint(v.axis for v in moves)
    return [] if is_moved or c.outer or any(r.is_conditional for r in inner) else visits


def resident_blocks(c: Contraction, s: Schedule) -> Index:
    """Return the number of blocks of a right operand for which there is room."""
    if c.group is not None or not repeat_visits(c, c.right, s):
        return 1
    spans = (s.span(s.region(c.item), c.k), c.depth), (s.span(s.region(c.item), c.n), COLUMNS)
    blocks = product(floordiv(add(n, most - 1), most) for n, most in spans)
    return maximum(minimum(blocks, MAX_RESIDENT_BLOCKS), 1)


class Storage:
    """Offsets and addresses of the arrays in a thread's scratch memory."""

    def __init__(self, s: Schedule) -> None:
        self.s = s
        self.operands: dict[Key, Index] = {}
        """Bytes of arrays which tiles read past what was packed (see `zero_pad.py`)."""
        self.arrays: dict[Key, tuple[Index, DType]] = {}
        self.at: dict[Key, Value] = {}
        self.clears = any(c.reads_past_end for c in s.products.values())
        self.nbytes: Index = STAMP if self.clears else 0
        self.takes_over = {item: other for other, item in _successors(s)}
        """Arrays whose memory another array takes over, with the item which does."""
        for item, axes in s.materialised.items():
            owner = self.takes_over.get(item, item)
            for part, dtype in enumerate(self.parts(item)):
                count = product(self.extent(item, a) for a in axes)
                self._reserve((owner, part), count, dtype)
                self.arrays[item, part] = self.arrays[owner, part]
        for item in s.phase.items:
            if item.kind == "scan":
                axes = scan_state_axes(s, item)
                for part, dtype in enumerate(self.accumulator_of(item).parts):
                    count = product(self.extent(item, a) for a in axes)
                    self._reserve((item, 100 + part), count, dtype)
        for state in dict.fromkeys(setting.state for setting in s.phase.state_updates):
            axes = self.state_axes(state)
            count = product(s.span(state.region, a) for a in axes)
            self._reserve((state, 0), count, state.dtype)
        self.pitches = pitches(s)
        self._reserve_tiles()
        staged = (i for nest in s.nests for stage in nest.stages for i in stage.keeps)
        for item in dict.fromkeys(staged):
            self._reserve((item, STAGE_PART), STRIP_ELEMENTS, item.dtype)
        for c in s.products.packed:
            for array in c.arrays(s.phase, s.local):
                self._reserve((c.item, array.part), array.elements, array.dtype)
                if not array.is_read_past_end:
                    self.operands.pop((c.item, array.part), None)
        for c in s.blocked:
            self._reserve_blocked(c)

    def _reserve_blocked(self, c: Contraction) -> None:
        """Reserve memory for the packed operands and sums of a contraction."""
        s = self.s
        if not c.direct and not c.reads_left_in_place():
            # Transposed tiles may reach past the last row.
            rows = add(self.rows(c), s.lanes - 1)
            self._reserve((c.item, LEFT_PART), mul(rows, c.pitch), c.unit)
        if sums_runs_apart(c, s):
            rows = mul(self.rows(c), self.extent(c.item, c.n))
            self._reserve((c.item, SUMS_PART), rows, c.item.dtype)
        if not c.is_gemv and not c.reads_right_in_place():
            panels = mul(resident_blocks(c, s), COLUMNS * c.packed_units)
            self._reserve((c.item, RIGHT_PART), panels, c.unit)
        if c.group is not None and c.group.left_offset:
            self._reserve((c.item, SUMS_PART), COLUMNS, i32)

    def _reserve_tiles(self) -> None:
        """Reserve memory for transposed tiles, or strips of rows."""
        s = self.s
        packs = [pack for nest in s.nests for pack in nest.packs]
        for item in (i for nest in (*s.nests, *packs) for i in nest.transposed):
            strip = mul(strip_rows(item.dtype, s.lanes), self.pitches.get(item, 0))
            count = maximum(transpose_side(s.lanes) ** 2, strip)
            self._reserve((item, TRANSPOSED_PART), count, item.dtype)

    def extent(self, owner: Item | StreamState, axis: str) -> Index:
        """Return an array's extent along an axis; products have room for full register tiles."""
        if isinstance(owner, StreamState):
            return self.s.span(owner.region, axis)
        packed = next((c for c in self.s.products.packed if c.item is owner), None)
        if packed is not None:
            return packed.scratch_extent(axis, self.s.local)
        span = self.s.span(self.s.region(owner), axis)
        c = next((c for c in self.s.blocked if c.item is owner), None)
        owner = self.takes_over.get(owner, owner)
        for other in self.s.blocked:
            if owner is other.left and (other.direct or other.stored_pitch):
                c = other  # full tiles, at the operand's row stride
                if axis == c.left_axes[-1]:
                    return c.direct or c.stored_pitch
                if not c.m_contiguous:
                    break
        if c is None or axis not in (c.m, c.n):
            return span
        step = c.tile.rows if axis == c.m else c.tile.columns
        return mul(floordiv(add(span, step - 1), step), step)

    def rows(self, c: Contraction) -> Index:
        """Return how many rows of a product are in scratch."""
        return 1 if c.m is None else self.extent(c.item, c.m)

    def region(self, owner: Item | StreamState) -> Region | None:
        """Return the region in which an array is filled."""
        return owner.region if isinstance(owner, StreamState) else self.s.region(owner)

    def state_axes(self, state: StreamState) -> tuple[str, ...]:
        """Return the local axes of a state, the vector axis last."""
        fixed_axes = unvarying_axes(state.region)
        local_axes = [a for a in self.s.local if a in state.axes and a not in fixed_axes]
        homes = [n for n in self.s.nests if any(x.state is state for x in n.state_updates)]
        vector = homes[0].vector if homes else None
        return tuple(sorted(local_axes, key=lambda a: a == vector))

    def _reserve(self, key: Key, count: Index, dtype: DType) -> None:
        if key in self.arrays:
            return
        self.arrays[key] = (self.nbytes, dtype)
        if self.clears and key[1] in (LEFT_PART, RIGHT_PART):
            self.operands[key] = add(mul(count, _register_bytes(dtype)), PAD)
        need = add(mul(count, _register_bytes(dtype)), PAD + 63)
        self.nbytes = add(self.nbytes, mul(floordiv(need, 64), 64))

    def accumulator_of(self, item: Item) -> Accumulator:
        """Return the accumulator of a reduction or scan item."""
        assert isinstance(item.payload, Reduction)
        folding = item.payload
        in_order = len(folding.over) == 1 or self._is_in_order(item, folding.over)
        places = product(self.s.phase.axes[a] for a in folding.over)
        return make_accumulator(
            folding.row,
            item.args[0].dtype,
            item.dtype,
            plain=folding.plain,
            in_order=in_order,
            places=places,
        )

    def _is_in_order(self, item: Item, over: tuple[str, ...]) -> bool:
        """Return whether loops meet the elements of a reduction in the order of positions."""
        home = next(n for n in self.s.nests if item in n.reductions)
        return tuple(a for a in home.order if a in over) == over

    def holds_states(self, item: Item) -> bool:
        """Return whether an array holds accumulator states rather than finished values."""
        if item.kind != "reduce":
            return False
        home = next(n for n in self.s.nests if item in n.reductions)
        return not home.in_registers(item)

    def parts(self, item: Item) -> tuple[DType, ...]:
        """Return the types of the arrays which a kept item needs."""
        return self.accumulator_of(item).parts if self.holds_states(item) else (item.dtype,)

    def emit_addresses(
        self, b: ir.IRBuilder, scratch: Value, index: Callable[[Index], Value]
    ) -> None:
        """Emit the addresses of all arrays, each from the one before it.

        They are opaque to LLVM, which would otherwise recompute them in loops from sizes of blocks
        and their quotients.
        """
        last: Index = 0
        offsets: dict[Index, Value] = {last: index(last)}
        for key, (offset, _) in self.arrays.items():
            if isinstance(offset, int):
                offsets[offset] = index(offset)
            elif offset not in offsets:
                offsets[offset] = opaque(b, b.add(offsets[last], index(sub(offset, last))))
                last = offset
            self.at[key] = b.gep(scratch, [offsets[offset]], source_etype=ir.IntType(8))

    def move(self, b: ir.IRBuilder, nbytes: Value) -> None:
        """Move all arrays by a number of bytes."""
        self.at = {
            key: b.gep(p, [nbytes], source_etype=ir.IntType(8)) for key, p in self.at.items()
        }


def _successors(s: Schedule) -> Iterator[tuple[Item, Item]]:
    """Yield left operands which are multiplied in place, with the arrays whose memory they reuse.

    The replaced array is read only by the nest which computes the operand, or by earlier ones.  It
    may be an intermediate value of a product, and then also what that replaced: three arrays would
    take twice as many cache lines as the nearest caches hold.
    """
    assigned = set[Item]()
    for c in s.blocked:
        item: Item | None = (
            c.left if (c.direct or c.stored_pitch) and c.left not in assigned else None
        )
        assigned.add(c.left)
        while item is not None:
            item = _replaced_array(s, c, item, assigned)
            if item is not None:
                assigned.add(item)
                yield c.left, item


def _replaced_array(s: Schedule, c: Contraction, item: Item, assigned: set[Item]) -> Item | None:
    """Return the array whose memory a product's left operand takes over, or None.

    The nest which computes the operand must be its last reader; it is a product of the same rows
    and columns, or what another nest computes for each of them.  Of several, the one which is read
    last, which leaves the others to values computed earlier.
    """
    homes = [k for k, n in enumerate(s.nests) if item in n.saves and not n.packed]
    if len(homes) != 1 or item in s.products:
        return None
    products = {o.item for o in s.blocked if o.axes == c.left_axes}
    multiplied = {x for o in s.blocked for x in (o.left, o.right)}
    last_uses: dict[Item, int] = {}
    for other, axes in s.materialised.items():
        is_compatible = (
            other.dtype == item.dtype and other.time == c.item.time and other not in assigned
        )
        plain = axes == s.materialised[item] and other.kind in ("apply", "branch", "cast")
        plain &= other not in multiplied
        if is_compatible and (other in products or plain) and _last_reader(s, other) == homes[0]:
            last_use = _last_use(s.nests[homes[0]], other)
            if last_use is not None and last_use <= item.number:
                last_uses[other] = last_use
    return max(last_uses, key=lambda x: last_uses[x], default=None)


def _last_use(nest: Nest, item: Item) -> int | None:
    """Return the number of the last value a nest computes from elements of an item.

    None if the nest reads them after that.  In stages it stores a strip of one value before it
    computes the next.
    """
    late = reads(replace(nest, items=[]), item)
    return None if late else max(i.number for i in nest.items if item in i.args)


def _last_reader(s: Schedule, item: Item) -> int:
    return max((k for k, n in enumerate(s.nests) if reads(n, item)), default=-1)


def reads(nest: Nest, item: Item) -> bool:
    """Return whether a nest reads elements of a kept item."""
    roots = [*nest.saves, *nest.scalars, *(x.value for x in nest.state_updates)]
    roots += [x for s in nest.stores for x in (s.value, s.where) if x is not None]
    used = (a for i in (*nest.items, *nest.reductions) for a in i.args)
    return item in roots or item in used or any(reads(p, item) for p in nest.packs)


def scan_state_axes(s: Schedule, item: Item) -> tuple[str, ...]:
    """Return the axes of a scan's running state: its value's but the scanned one."""
    assert isinstance(item.payload, Reduction)
    excluded = {item.payload.over[0]} | unvarying_axes(s.region(item))
    return tuple(a for a in s.phase.axes if a in item.axes and a in s.local and a not in excluded)


def _register_bytes(dtype: DType) -> int:
    return dtype.compute.itemsize
