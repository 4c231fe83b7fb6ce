"""Reading ahead: a task asks for what the next task will read, a block for the next block's.

Where several nests work on a row (find its mean, its variance, write it), only the first of them
would wait for memory, and memory idle while the others compute.  So every nest asks for a share of
the next row, the more the longer it computes: a softmax of rows of 16 KiB takes 70 % of the time
with it, because memory brings a row while exponentials of the one before are found.  It is asked
into the first cache, however long it is: processors foresee what follows such lines, not what
follows those asked into the second one (0.82 to 0.87 of the time of softmax, norms and losses).  In
a stream the last nest that reads an array, which finds it in cache, asks for the next block.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil
from typing import TYPE_CHECKING

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import element_address, prefetch
from smelt.codegen.llvm.instructions.indexing import depth_terms, number, opaque
from smelt.codegen.llvm.instructions.scope import Scope
from smelt.codegen.llvm.loopir.items import Access, accesses_of, chain
from smelt.dataclass import dataclass
from smelt.ops.scalar import SCALARS
from smelt.types.affine import coefficient
from smelt.types.dtype import DType
from smelt.types.expr import Atom, Index, add, atoms, floordiv, mul, product, sub

if TYPE_CHECKING:
    from smelt.codegen.llvm.nest import NestEmitter
    from smelt.codegen.llvm.schedule.build_nests import Nest, Schedule

Value = ir.Value
PACKED_AHEAD = 4
"""Rows by which packing runs behind what it has asked memory for."""
LINE = 64
"""Bytes of a cache line."""
LEAST_SHARE = 0.4
"""What a nest must have to spare, beside the one that has most, to ask for anything."""
LINE_STORED = 4.0
"""Cycles for which a line that is stored keeps memory busy."""


def prefetch_ahead(
    home: NestEmitter, access: Access, address: Value, dtype: DType, lanes: int
) -> None:
    """Asks for the place that lies one task behind what a load of so many lanes reads here."""
    if not home.prefetch_enabled:  # many streams run side by side: the processor does better alone
        return
    step = _next_block(home, access) or _next_run(home, access)
    if step is None:
        if _is_run(home, access):
            _fetch_lines(home, address, dtype, lanes, RUN_AHEAD)
        return
    far = home.far.get(step) or home.home.index(step)
    _fetch_lines(home, element_address(home.b, address, far, dtype), dtype, lanes)


def prefetch_masked(
    home: NestEmitter, access: Access, address: Value, dtype: DType, lanes: int
) -> None:
    """The same for a load under a mask, from which AMD's processors foresee nothing: short rows,
    and the ends of others, that lie one behind the other."""
    if home.prefetch_enabled and _is_run(home, access, masked=True):
        _fetch_lines(home, address, dtype, lanes, RUN_AHEAD)


def _fetch_lines(
    home: NestEmitter, address: Value, dtype: DType, lanes: int, behind: int = 0
) -> None:
    """Asks for the lines of so many lanes, so many bytes `behind` an address: into the first cache
    what is needed that soon."""
    for k in range(0, lanes * dtype.itemsize, LINE):
        there = home.b.gep(address, [number(behind + k)], source_etype=ir.IntType(8))
        prefetch(home.b, there, near=behind > 0)


RUN_AHEAD = 4096
"""Bytes by which a fold asks for what it reads: a page, since no processor foresees beyond one."""


def _is_run(home: NestEmitter, access: Access, *, masked: bool = False) -> bool:
    """Whether a nest that does nothing but fold is the first to read an array, and reads it from
    one end to the other; of a `masked` load whether any nest does so, row by row.

    Vectors that lie across lines, as in most of NumPy's arrays, keep the first cache too busy to
    have enough asked of the second one and of memory: 64 MiB are summed in 0.7 of the time."""
    nest, s = home.nest, home.s
    folds = bool(nest.folds) and not nest.stores and not nest.saves
    if not (folds or masked) or s.products or home.home.shares.get(nest) or not nest.order:
        return False
    if access.limits or any(a.kind == "value" for a in atoms(access.offset)):
        return False
    if next(n for n in s.nests if any(i.payload == access for i in n.items)) is not nest:
        return False  # what an earlier nest has read lies in a cache
    parts = {number for number, _ in s.phase.cut.values()}
    around = [a for a in s.phase.grid if a not in s.local and a not in parts]
    visits = [v for r in chain(s.phase.segments[nest.time]) for v in r.visits]
    around += [v.axis for v in visits if v.size == 1] + [*nest.order[:-1]]
    row = s.phase.axes[nest.order[-1]]
    return coefficient(access.offset, around[-1]) == row if around else not masked


RUNS = 4
"""Rows between what is read and what is asked for, where a task reads a piece of each row; more
where so many are read together."""


def _next_run(home: NestEmitter, access: Access) -> Index | None:
    """Elements from a piece of a row to that of a later row: rows are further apart than what the
    processor foresees."""
    order = home.nest.order
    if len(order) < 2 or order[-1] not in home.s.block or home.nest.vector != order[-1]:
        return None
    step = coefficient(access.offset, order[-2])
    if step is None or step == 0 or any(a.kind == "axis" for a in atoms(step)):
        return None
    return mul(step, max(RUNS, home.together))


def know_runs(home: NestEmitter, rows: int) -> None:
    """Prepares for so many rows that are read together: told no more of how far away it asks, LLVM
    keeps no address in a register for each of them."""
    home.together, home.far = rows, {}
    for access in home.accesses if home.prefetch_enabled else ():
        step = _next_block(home, access) or _next_run(home, access)
        if step is not None and step not in home.far:
            home.far[step] = opaque(home.b, home.home.index(step))


def _next_block(home: NestEmitter, access: Access) -> Index | None:
    """Elements from what a block of a stream reads to what the next one does, if this nest is not
    the first and is the last to read it."""
    around = chain(home.s.phase.segments[home.nest.time])
    region = next((r for r in around[::-1] if r.visits), None)
    if region is None or region.visits[-1].size in (None, 1):
        return None
    together = [n for n in home.s.nests if n.time == home.nest.time]
    readers = [n for n in together if any(i.payload == access for i in n.items)]
    if len(readers) < 2 or readers[-1] is not home.nest:
        return None
    step = coefficient(access.offset, region.visits[-1].axis)
    if step is None or step == 0 or any(a.kind == "axis" for a in atoms(step)):
        return None
    return mul(step, region.visits[-1].size or 1)


def next_task(home: NestEmitter, access: Access) -> Index | None:
    """Elements from what one task reads to what the next one does, where that is one number."""
    free = [g for g in home.s.phase.grid if g not in home.s.local]
    if not free:
        return None
    step = coefficient(access.offset, free[-1])
    if step is None or step == 0 or any(a.kind == "axis" for a in atoms(step)):
        return None
    return step


def fresh(home: NestEmitter) -> list[tuple[Access, Index]]:
    """What the next task reads and this one does not: a load of each part, and how far on it is."""
    read = [(a, a.offset) for a in accesses_of(home.items)]
    found: list[tuple[Access, Index]] = []
    for access in accesses_of(home.items):
        step = next_task(home, access)
        later = add(access.offset, step or 0)
        near = (sub(later, e) for a, e in read if a.buffer == access.buffer)
        if step is not None and not any(isinstance(n, int) and abs(n) < home.s.lanes for n in near):
            found.append((access, step))
            read.append((access, later))
    return found


# ---- the next row --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ask:
    """A nest's share of an array's next row: where it begins and how much it is, as parts of the
    row."""

    access: Access
    begin: Fraction
    share: Fraction


def shares(s: Schedule) -> dict[Nest, list[Ask]]:
    """Which nest asks for which part of the row that the next task reads.

    Only nests that walk one and the same row take part, each for a share of it in proportion to
    what it computes meanwhile: so that memory is busy from the first nest to the last.
    """
    task = _task_axis(s)
    # What is computed of a row's folds alone is soon done.
    nests = [n for n in s.nests if n.order not in ((), (task,))]
    row = nests[0].vector if nests else None
    if len(nests) < 2 or task is None or row is None or row in s.block:
        return {}
    if len({n.time for n in nests}) > 1:
        return {}
    walked = {n.order for n in nests}  # each for every row, or all where the row is known
    if len(walked) > 1 or any(n.product for n in nests) or row in s.phase.cut:
        return {}
    axes = _row_axes(nests[0], task)
    if axes[-1:] != (row,) or len(axes) > 2:
        return {}
    rows = dict.fromkeys(
        i.payload
        for n in nests
        for i in n.items
        if isinstance(i.payload, Access) and _steps_on(i.payload, task, axes, s)
    )
    begin = Fraction(0)
    found: dict[Nest, list[Ask]] = {}
    first, *others = [spare_cycles(n) for n in nests]
    # The first nest brings the row from the second cache into the first one all the while.
    for nest, share in zip(nests, _parts([first / 2, *others]), strict=True):
        found[nest] = [Ask(access, begin, share) for access in rows if share]
        begin += share
    return found


def _task_axis(s: Schedule) -> str | None:
    """The axis along which neighbouring tasks are neighbours: whole rows, one or more to a task."""
    regions = s.phase.regions()
    if regions:
        visits = [v for r in regions for v in r.visits]
        return visits[0].axis if len(visits) == 1 and visits[0].size == 1 else None
    own = [g for g in s.phase.grid if g not in s.local or g in s.block]
    return own[-1] if own else None


def _parts(weights: list[float]) -> list[Fraction]:
    """Eighths in proportion to weights, without small ones; they add up to 1."""
    kept = [w if w >= LEAST_SHARE * max(weights) else 0.0 for w in weights]
    ends = [round(8 * sum(kept[: k + 1]) / sum(kept)) for k in range(len(kept))]
    return [Fraction(b - a, 8) for a, b in zip([0, *ends], ends, strict=False)]


def _row_axes(nest: Nest, task: str) -> tuple[str, ...]:
    """The axes that a nest walks a row along."""
    return nest.order[1:] if nest.order[:1] == (task,) else nest.order


def _steps_on(access: Access, task: str, axes: tuple[str, ...], s: Schedule) -> bool:
    """Whether neighbouring tasks read neighbouring rows in one run each."""
    step = coefficient(access.offset, task)
    plain = step is not None and step != 0 and not any(a.kind == "axis" for a in atoms(step))
    known = not any(a.kind == "value" for a in atoms(access.offset))
    steps = [coefficient(access.offset, a) for a in axes]
    return (
        plain and known and steps == [*(s.phase.axes[a] for a in axes[1:]), 1] and not access.limits
    )


def spare_cycles(nest: Nest) -> float:
    """About how long a nest computes for one vector of its row while memory has nothing to do."""
    inner = [i for i in nest.items if nest.vector in i.axes]
    work = sum(SCALARS[i.payload].cost for i in inner if isinstance(i.payload, str))
    return max(work + len(inner) / 2 + 2 * len(nest.folds) - LINE_STORED * len(nest.stores), 1.0)


class RowPrefetch:
    """Emits a nest's asks: addresses before its loop, prefetches in it.  By default they are those
    of the nest whose loop it is."""

    def __init__(self, home: NestEmitter, scope: Scope, nest: Nest | None = None) -> None:
        self.home, self.asks = home, home.home.shares.get(nest or home.nest, [])
        self.starts = [self._start(ask, scope) for ask in self.asks]
        self.before: Value = number(0)
        """Positions of the row that lie before those of its inner axis."""
        if self.asks and len(self._axes()) > 1:
            outer, inner = self._axes()
            extent = home.home.index(home.s.phase.axes[inner])
            self.before = home.b.mul(scope.axis(outer), extent)

    def _axes(self) -> tuple[str, ...]:
        task = _task_axis(self.home.s)
        assert task is not None
        return _row_axes(self.home.nest, task)

    def _start(self, ask: Ask, scope: Scope) -> Value:
        home, b, s = self.home, self.home.b, self.home.s
        own = {Atom("axis", a) for a in self._axes()}
        dtype, base = home.home.dtypes[ask.access.buffer], home.home.buffers[ask.access.buffer]
        task = _task_axis(s)
        assert task is not None
        here = depth_terms(ask.access.offset, lambda a: int(a in own), 2)[0]
        whole = product(s.phase.axes[a] for a in self._axes())
        skipped = floordiv(mul(whole, ask.begin.numerator), ask.begin.denominator)
        step = mul(coefficient(ask.access.offset, task) or 0, s.block.get(task, 1))
        there = add(add(here, step), skipped)
        return element_address(b, base, home.index(there, scope), dtype)

    def emit(self, position: Value) -> None:
        """Asks for what belongs to one step of the loop, which is at `position` of the row."""
        b, step = self.home.b, self.home.s.lanes * self.home.nest.wide
        position = b.add(self.before, position)
        for ask, start in zip(self.asks, self.starts, strict=True):
            itemsize = self.home.home.dtypes[ask.access.buffer].itemsize
            part = ask.share
            done = b.lshr(
                b.mul(position, number(itemsize * part.numerator)),
                number(part.denominator.bit_length() - 1),
            )
            for k in range(0, ceil(step * itemsize * part), LINE):
                place = b.add(done, number(k))
                there = b.gep(start, [place], source_etype=ir.IntType(8))
                prefetch(b, there, near=True)


def ask_ahead(
    home: NestEmitter, pack: Nest, scope: Scope, rows: int = PACKED_AHEAD, *, near: bool = False
) -> None:
    """Has the processor fetch what so many rows later of a block that is packed are read here: rows
    are too short and too far apart for it to guess.  Into the first cache if `near`."""
    assert scope.lanes is not None
    if len(pack.order) < 2:
        return
    for access in accesses_of(home.items):
        if coefficient(access.offset, pack.order[1]) == 1:
            ask_later(home, access, pack.order[0], rows, scope, scope.lanes.count, near=near)


def ask_later(
    home: NestEmitter,
    access: Access,
    axis: str,
    positions: int,
    scope: Scope,
    lanes: int,
    *,
    near: bool = False,
) -> None:
    """Asks for what so many lanes read so many positions of an axis later."""
    b, here, step = home.b, scope.offset(access), coefficient(access.offset, axis)
    if here is None or step is None or step == 0:
        return
    dtype, base = home.home.dtypes[access.buffer], home.home.buffers[access.buffer]
    later = b.add(here, b.mul(home.index(step, scope), number(positions)))
    for k in range(0, lanes, max(LINE // dtype.itemsize, 1)):
        prefetch(b, element_address(b, base, b.add(later, number(k)), dtype), near=near)
