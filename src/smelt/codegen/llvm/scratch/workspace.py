"""Lay out the scratch workspace of a schedule, per thread.

It holds values kept between nests, accumulators of reductions with axes, states of streams, packed
operands and tables of products, and transposed tiles.

What register tiles read past packed operands is cleared. Tiles reach past the last row or column,
and between the rows of images; the sums of what is stored there are never used. But it was left by
another kernel: tables of small integers, for instance, are subnormal as floating-point numbers,
which processors multiply a hundred times slower. So a kernel whose layout differs from that of the
previous kernel in the same thread clears its operands first. The first word of scratch identifies
the layout; a kernel without such operands writes something else there, or has no scratch. Where
only lanes of one panel are concerned, these are cleared in every block instead.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import intrinsic
from smelt.codegen.llvm.instructions.indexing import I64, IndexEmitter, number
from smelt.codegen.llvm.loopir import items as ssa
from smelt.codegen.llvm.loopir.items import Item, Visit, enclosing_regions, unvarying_axes
from smelt.codegen.llvm.nests.contraction import Contraction
from smelt.codegen.llvm.nests.environment import Key, Storage
from smelt.codegen.llvm.nests.nest import Nest, Schedule
from smelt.codegen.llvm.nests.product_plan import LEFT_PART, RIGHT_PART, SUMS_PART
from smelt.codegen.llvm.schedule.task_tiling import transpose_side
from smelt.codegen.llvm.schedule.transposed_strip import pitches, strip_rows
from smelt.machine.blocks import COLUMNS, RUN
from smelt.python.dataclass import replace
from smelt.types.dtype import DType, i32
from smelt.types.expr import Index, add, floordiv, maximum, minimum, mul, product

Value = ir.Value
TRANSPOSED_PART = 200
SCAN_STATE_KEY = 100
"""First part number of the states of scans in scratch memory."""
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


def lay_out(s: Schedule) -> Storage:
    """Lay out the arrays that a thread needs for a schedule, without addresses."""
    strips = pitches(s) if any(n.strips for n in s.nests) else {}
    storage = Storage(s, {item: other for other, item in _successors(s)}, strips)
    layout = _Layout(any(c.reads_past_end for c in s.products.values()))
    for item, axes in s.materialised.items():
        owner = storage.takes_over.get(item, item)
        for part, dtype in enumerate(storage.parts(item)):
            count = product(storage.extent(item, a) for a in axes)
            layout.reserve((owner, part), count, dtype)
            layout.share((item, part), (owner, part))
    for item in s.phase.items:
        if isinstance(item, ssa.Scan):
            axes = scan_state_axes(s, item)
            for part, dtype in enumerate(storage.accumulator_of(item).parts):
                count = product(storage.extent(item, a) for a in axes)
                layout.reserve((item, SCAN_STATE_KEY + part), count, dtype)
    for state in dict.fromkeys(setting.state for setting in s.phase.state_updates):
        count = product(s.span(state.region, a) for a in storage.state_axes(state))
        layout.reserve((state, 0), count, state.dtype)
    packs = [pack for nest in s.nests for pack in nest.packs]
    for item in (i for nest in (*s.nests, *packs) for i in nest.transposed):
        strip = mul(strip_rows(item.dtype, s.lanes), storage.pitches.get(item, 0))
        count = maximum(transpose_side(s.lanes) ** 2, strip)
        layout.reserve((item, TRANSPOSED_PART), count, item.dtype)
    for c in s.products.packed:
        for array in c.arrays(s.phase, s.local):
            layout.reserve((c.item, array.part), array.elements, array.dtype)
            if not array.is_read_past_end:
                layout.operands.pop((c.item, array.part), None)
    for c in s.blocked:
        _reserve_blocked(layout, storage, c)
    return replace(storage, arrays=layout.arrays, operands=layout.operands, nbytes=layout.nbytes)


class _Layout:
    """The arrays that have been reserved, one after the other."""

    def __init__(self, clears: bool) -> None:
        self.clears = clears
        self.nbytes: Index = STAMP if clears else 0
        self.arrays: dict[Key, tuple[Index, DType]] = {}
        self.operands: dict[Key, Index] = {}

    def reserve(self, key: Key, count: Index, dtype: DType) -> None:
        """Reserve memory for an array, unless it has some."""
        if key in self.arrays:
            return
        self.arrays[key] = (self.nbytes, dtype)
        nbytes = mul(count, dtype.compute.itemsize)
        if self.clears and key[1] in (LEFT_PART, RIGHT_PART):
            self.operands[key] = add(nbytes, PAD)
        self.nbytes = add(self.nbytes, mul(floordiv(add(nbytes, PAD + 63), 64), 64))

    def share(self, key: Key, other: Key) -> None:
        """Let an array use the memory of another one."""
        self.arrays[key] = self.arrays[other]


def _reserve_blocked(layout: _Layout, storage: Storage, c: Contraction) -> None:
    """Reserve memory for the packed operands and sums of a contraction."""
    s = storage.s
    if not c.direct and not c.reads_left_in_place():
        # Tiles may reach past the last row.
        is_one_row = c.m is None and not c.reads_past_end
        rows = 1 if is_one_row else add(storage.rows(c), s.lanes - 1)
        layout.reserve((c.item, LEFT_PART), mul(rows, c.pitch), c.unit)
    if sums_runs_apart(c, s):
        rows = mul(storage.rows(c), storage.extent(c.item, c.n))
        layout.reserve((c.item, SUMS_PART), rows, c.item.dtype)
    if not c.is_gemv and not c.reads_right_in_place():
        panels = mul(resident_blocks(c, s), COLUMNS * c.packed_units)
        layout.reserve((c.item, RIGHT_PART), panels, c.unit)
    if c.group is not None and c.group.left_offset:
        layout.reserve((c.item, SUMS_PART), COLUMNS, i32)


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
    keepers = [k for k, n in enumerate(s.nests) if item in n.saves and not n.packed]
    if len(keepers) != 1 or item in s.products:
        return None
    products = {o.item for o in s.blocked if o.axes == c.left_axes}
    multiplied = {x for o in s.blocked for x in (o.left, o.right)}
    last_uses: dict[Item, int] = {}
    for other, axes in s.materialised.items():
        is_compatible = (
            other.dtype == item.dtype and other.time == c.item.time and other not in assigned
        )
        plain = axes == s.materialised[item] and isinstance(other, (ssa.Operation, ssa.Cast))
        plain &= other not in multiplied
        if is_compatible and (other in products or plain) and _last_reader(s, other) == keepers[0]:
            nest = s.nests[keepers[0]]
            last_use = _last_use(nest, other)
            if last_use is not None and last_use <= nest.items.index(item):
                last_uses[other] = last_use
    return max(last_uses, key=lambda x: last_uses[x], default=None)


def _last_use(nest: Nest, item: Item) -> int | None:
    """Return the place of the last value that a nest computes from an item.

    None if the nest reads them after that.  In stages it stores a strip of one value before it
    computes the next.
    """
    late = reads(replace(nest, items=()), item)
    return None if late else max(k for k, i in enumerate(nest.items) if item in i.args)


def _last_reader(s: Schedule, item: Item) -> int:
    return max((k for k, n in enumerate(s.nests) if reads(n, item)), default=-1)


def reads(nest: Nest, item: Item) -> bool:
    """Return whether a nest reads elements of a kept item."""
    roots = [*nest.saves, *nest.scalars, *(x.value for x in nest.state_updates)]
    roots += [x for s in nest.stores for x in (s.value, s.where) if x is not None]
    used = (a for i in (*nest.items, *nest.reductions) for a in i.args)
    return item in roots or item in used or any(reads(p, item) for p in nest.packs)


def scan_state_axes(s: Schedule, item: ssa.Scan) -> tuple[str, ...]:
    """Return the axes of a scan's running state: its value's but the scanned one."""
    excluded = {item.over[0]} | unvarying_axes(s.region(item))
    return tuple(a for a in s.phase.axes if a in item.axes and a in s.local and a not in excluded)


# ---- zeros for short operands --------------------------------------------------------------------


BIT, BYTE = ir.IntType(1), ir.IntType(8)
MIX_MULTIPLIER = 0x9E3779B97F4A7C15
"""Multiplier which mixes all bits of a word (D. Knuth, TAOCP 6.4, golden ratio)."""


def zero_operands(
    b: ir.IRBuilder, storage: Storage, scratch: Value, entry: IndexEmitter, sizes: Iterable[Value]
) -> None:
    """Emit clearing of the operands, if the thread's last kernel had another layout.

    The layout is identified by the storage and a call's sizes.
    """
    if not storage.operands:
        return
    layout = _layout(b, storage, sizes)
    places = [(storage.at[key], entry.emit(nbytes)) for key, nbytes in storage.operands.items()]
    is_other = b.icmp_signed("!=", b.load(scratch, typ=I64), layout)
    with b.if_then(is_other):
        b.store(layout, scratch)
        for at, nbytes in places:
            intrinsic(b, "llvm.memset.p0.i64", ir.VoidType(), [at, BYTE(0), nbytes, BIT(0)])


def _layout(b: ir.IRBuilder, storage: Storage, sizes: Iterable[Value]) -> Value:
    """Return a word which identifies the offsets and types of all arrays."""
    arrays = [
        (part, str(offset), dtype.name) for (_, part), (offset, dtype) in storage.arrays.items()
    ]
    digest = hashlib.sha256(repr(arrays).encode()).digest()
    word: Value = number(int.from_bytes(digest[:8], "little", signed=True))
    for size in sizes:
        word = b.mul(b.xor(word, size), number(MIX_MULTIPLIER - (1 << 64)))
    return word
