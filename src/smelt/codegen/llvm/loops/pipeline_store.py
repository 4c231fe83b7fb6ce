"""Rows are stored while the next ones are computed.

Where a task finds something of its rows and then stores what becomes of them, past the caches,
memory has nothing to do in the loops that compute, and the loop that stores waits for memory.  So
that loop runs a task behind, step by step inside of the one before it:

    for each row t:  m = max(x[t]);  for i:  e[t,i] = exp(x[t,i] - m), summed, and
                                             y[t-1,i] = e[t-1,i] / s[t-1]

What is kept of rows lies in one of two places in turns.  The last row of a thread's tasks, and rows
whose results are no whole lines, are stored by a loop of their own behind the others.  Softmax
takes 0.82 to 0.92 of the time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from typing import TYPE_CHECKING

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import element_address
from smelt.codegen.llvm.access.prefetch import LINE, RowPrefetch, spare_cycles
from smelt.codegen.llvm.instructions.indexing import I64, number
from smelt.codegen.llvm.instructions.scope import Lanes, Scope
from smelt.codegen.llvm.loopir.items import Access, Folding, accesses_of
from smelt.codegen.llvm.loops.versioning import is_choice
from smelt.types.affine import coefficient
from smelt.types.expr import Expr, Index, atoms

if TYPE_CHECKING:
    from smelt.codegen.llvm.nest import NestEmitter
    from smelt.codegen.llvm.schedule.build_nests import Nest, Schedule

Value = ir.Value
I1 = ir.IntType(1)
_KINDS = ("const", "index", "load", "apply", "cast")
"""What nests that share loops are made of: nothing moves with a loop, or is decided for a block."""
LEAST_SPARE = 8.0
"""Cycles a vector that a nest computes at least while another one stores in its loops: what is
kept twice costs the first cache more than shorter ones gain (layer norms take 1.07 of the time)."""


# ---- which nests ---------------------------------------------------------------------------------


def is_behind(s: Schedule) -> bool:
    """Whether the last nest of a schedule's tasks may run in the loops of the nest before it."""
    phase = s.phase
    if len(s.nests) < 2 or s.products or phase.settings or phase.cut or phase.places:
        return False
    if len(phase.segments) > 1 or phase.regions():
        return False
    *_, host, last = s.nests
    return (
        host.order == last.order
        and host.vector == last.vector
        and _is_plain(host, s)
        and _is_plain(last, s)
        and _is_host(host)
        and _is_stored(last, s)
    )


def _is_plain(nest: Nest, s: Schedule) -> bool:
    """Whether a nest walks rows, vector by vector, from one end to the other."""
    other = nest.settings or nest.fixed or nest.turned or nest.packs or nest.packed or nest.once
    if other or nest.product is not None or len(nest.order) < 2:
        return False
    whole = nest.vector == nest.order[-1] and nest.vector not in {*s.block, *s.phase.grid}
    if any(a.limits or a.positions for a in accesses_of(nest.items)):
        return False
    return whole and all(i.kind in _KINDS and not is_choice(i) for i in nest.items)


def _is_host(nest: Nest) -> bool:
    """Whether a nest computes while memory would wait, stores nothing, and folds along its vectors
    alone."""
    folded = (f.payload for f in nest.folds)
    along = all(isinstance(p, Folding) and nest.vector in p.over for p in folded)
    along &= all(nest.in_registers(f) for f in nest.folds)
    return along and not nest.stores and spare_cycles(nest) >= LEAST_SPARE


def _is_stored(nest: Nest, s: Schedule) -> bool:
    """Whether a nest stores whole vectors that it computes of floats: of what is read where nothing
    has been computed yet, it may do so too."""
    if nest.folds or nest.saves or nest.stages or not any(i.kind == "apply" for i in nest.items):
        return False
    known = {*nest.items, *s.kept}
    computed = [i for i in nest.items if i.kind not in ("const", "index")]
    asked = [i.payload for i in nest.items if i.kind == "index" and isinstance(i.payload, Expr)]
    return (
        all(a in known for i in nest.items for a in i.args)
        and all(i.dtype.is_float for i in computed)
        and all(a.kind != "value" for e in asked for a in atoms(e))
        and all(x.where is None and x.value in known for x in nest.stores)
        and not any(x.access.limits or x.access.positions for x in nest.stores)
        and all(_steps(x.access, nest) is not None for x in nest.stores)
    )


def _steps(access: Access, nest: Nest) -> list[Index] | None:
    """Elements between neighbours along each of the outer axes; None where that is not one number,
    or vectors are not stored as they are."""
    found = [coefficient(access.offset, a) for a in nest.order]
    if found[-1] != 1 or any(e is None or any(a.kind != "size" for a in atoms(e)) for e in found):
        return None
    return [e for e in found[:-1] if e is not None]


# ---- tasks in turns ------------------------------------------------------------------------------


class Turns:
    """Tasks one after another, whose last nest runs a task behind the others."""

    def __init__(self, b: ir.IRBuilder, entry: ir.Block, stride: Value, first: list[Value]) -> None:
        self.b, self.stride, self.left = b, stride, I1(0)
        self.pending = b.phi(I1)
        """Whether rows of the task before have not been stored yet."""
        self.pending.add_incoming(I1(0), entry)
        self.place = b.phi(I64)
        """Bytes from the beginning of scratch memory to what this task keeps."""
        self.place.add_incoming(number(0), entry)
        self.numbers = [b.phi(I64) for _ in first]
        """The block numbers of the task before."""
        for phi, value in zip(self.numbers, first, strict=True):
            phi.add_incoming(value, entry)

    def begin(self, home: NestEmitter, late: NestEmitter) -> None:
        """Gives this task and the one before their scratch memory, and opens the nest of that."""
        b, at, other = self.b, home.storage.at, copy(home.storage)
        self.other = b.sub(self.stride, self.place)
        home.storage.at, other.at = (
            {key: b.gep(p, [by], source_etype=ir.IntType(8)) for key, p in at.items()}
            for by in (self.place, self.other)
        )
        late.storage = late.scratch.storage = other
        self.home, self.late, self.host = home, late, home.s.nests[-2]
        self.top = late.open(home.s.nests[-1])

    def end(self, more: Value, later: dict[str, tuple[Value, Value]]) -> None:
        """Stores the rows of this task, unless the next one will: where there are `more` tasks, and
        as many rows in the next one, whose ranges are `later`."""
        b, home = self.b, self.home
        for axis in home.s.block:
            rows, others = (b.sub(high, low) for low, high in (home.ranges[axis], later[axis]))
            more = b.and_(more, b.icmp_signed("==", rows, others))
        odd: Value = number(0)
        for nbytes in _places(home, home.s.nests[-1]):
            odd = b.or_(odd, b.and_(nbytes, number(LINE - 1)))
        self.left = b.and_(more, b.icmp_signed("==", odd, number(0)))
        with b.if_then(b.not_(self.left)):
            home.run(home.s.nests[-1])

    def close(self, latch: ir.Block, numbers: Sequence[Value]) -> None:
        """The next task begins."""
        self.pending.add_incoming(self.left, latch)
        self.place.add_incoming(self.other, latch)
        for phi, value in zip(self.numbers, numbers, strict=True):
            phi.add_incoming(value, latch)


def _places(home: NestEmitter, nest: Nest) -> Iterator[Value]:
    """Bytes that are multiples of a line if all vectors of all stores begin lines: where the first
    ones are, and how far apart neighbours are along the outer axes."""
    b, first = home.b, {a: home.ranges[a][0] for a in nest.order}
    for access in (s.access for s in nest.stores):
        base, dtype = home.home.buffers[access.buffer], home.home.dtypes[access.buffer]
        at = home.index(access.offset, Scope(home.top, first))
        yield b.ptrtoint(element_address(b, base, at, dtype), I64)
        for step in _steps(access, nest) or ():
            yield b.mul(home.index(step, home.top), number(dtype.itemsize))


class PipelinedStoreRow:
    """The row that the task before has left, where the loop over the same row of this task begins;
    there may be none."""

    def __init__(self, home: NestEmitter, scope: Scope) -> None:
        turns = home.home.turns
        self.turns = turns if turns is not None and turns.host is home.nest else None
        if self.turns is None or turns is None:
            return
        late, self.row = turns.late, turns.top
        self.ahead = RowPrefetch(home, scope, late.nest)
        self.low = home.ranges[home.nest.order[-1]][0]
        for depth, a in enumerate(home.nest.order[:-1], 1):
            row = home.b.sub(scope.axis(a), home.ranges[a][0])
            self.row = Scope(self.row, {a: home.b.add(row, late.ranges[a][0])})
            late.enter(self.row, depth)

    def emit(self, lanes: Lanes) -> None:
        """What becomes of the same lanes of that row."""
        if self.turns is None:
            return
        late = self.turns.late
        sizes = {late.home.dtypes[s.access.buffer].itemsize for s in late.nest.stores}
        lines = all(lanes.count * size % LINE == 0 for size in sizes)
        with late.b.if_then(self.turns.pending):
            own = Lanes(lanes.axis, lanes.base, lanes.count, lanes.mask, lanes.apart)
            inner = Scope(self.row, {lanes.axis: lanes.base}, lanes=own)
            late.enter(inner, len(late.nest.order))
            late.bypass = lanes.mask is None and lines
            late.body(inner)
            if self.ahead.asks and lanes.mask is None:
                self.ahead.emit(late.b.sub(lanes.base, self.low))


__all__ = ["PipelinedStoreRow", "Turns", "is_behind"]
