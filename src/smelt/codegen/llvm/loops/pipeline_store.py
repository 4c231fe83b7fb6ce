"""Pipeline stores by one task: store the previous row inside the loops that compute the next one.

If a task computes something of its rows and then stores results with non-temporal stores, memory is
idle in the computing loops, and the storing loop waits for memory.  So that loop runs one task
behind, step by step inside of the loop before it (software pipelining):

    for each row t:  m = max(x[t]);  for i:  e[t,i] = exp(x[t,i] - m), summed, and
                                             y[t-1,i] = e[t-1,i] / s[t-1]

What is kept of rows is double-buffered.  The last row of a thread's tasks, and rows whose results
are not full cache lines, are stored by a loop of their own.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import element_address
from smelt.codegen.llvm.access.prefetch import CACHE_LINE, spare_cycles
from smelt.codegen.llvm.instructions.indexing import I64, number
from smelt.codegen.llvm.loopir import items as ssa
from smelt.codegen.llvm.loopir.items import Access, accesses_of
from smelt.codegen.llvm.loops.partition_selects import is_select
from smelt.codegen.llvm.nests.environment import Environment, LateStore, Scope
from smelt.codegen.llvm.nests.nest import Nest, Schedule
from smelt.types.expr import Index, atoms, coefficient

Value = ir.Value
I1 = ir.IntType(1)
_KINDS = (ssa.Const, ssa.IndexValue, ssa.Load, ssa.Apply, ssa.Cast)
"""Kinds of items in nests that share loops: nothing moves with a loop, or is decided for a
block."""
MIN_HOST_CYCLES = 8.0
"""Minimum cycles for one vector of a nest that hosts another one's stores.

For shorter ones the double buffers cost L1 more than is gained.
"""


# ---- analysis ------------------------------------------------------------------------------------


def can_pipeline_store(s: Schedule) -> bool:
    """Return whether a schedule's last nest may run in the previous nest's loops."""
    phase = s.phase
    if len(s.nests) < 2 or s.products or phase.state_updates or phase.cut or phase.window_positions:
        return False
    if len(phase.segments) > 1 or phase.regions():
        return False
    *_, host, last = s.nests
    return (
        host.order == last.order
        and host.vector == last.vector
        and _is_row_walk(host, s)
        and _is_row_walk(last, s)
        and _is_host(host)
        and _can_store_late(last, s)
    )


def _is_row_walk(nest: Nest, s: Schedule) -> bool:
    """Return whether a nest walks rows, vector by vector, from one end to the other."""
    has_other_roots = (
        nest.state_updates
        or nest.scalars
        or nest.transposed
        or nest.packs
        or nest.packed
        or nest.single_use
    )
    if has_other_roots or nest.product is not None or len(nest.order) < 2:
        return False
    walks_rows = nest.vector == nest.order[-1] and nest.vector not in {*s.block, *s.phase.grid}
    if any(a.limits or a.positions for a in accesses_of(nest.items)):
        return False
    return walks_rows and all(isinstance(i, _KINDS) and not is_select(i) for i in nest.items)


def _is_host(nest: Nest) -> bool:
    """Return whether a nest computes long enough, stores nothing, and only reduces along
    vectors."""
    reduces_vectors = all(nest.vector in f.over for f in nest.reductions)
    reduces_vectors &= all(nest.in_registers(f) for f in nest.reductions)
    return reduces_vectors and not nest.stores and spare_cycles(nest) >= MIN_HOST_CYCLES


def _can_store_late(nest: Nest, s: Schedule) -> bool:
    """Return whether a nest only stores full vectors computed from floats.

    It may run once more on memory in which nothing has been computed yet.
    """
    if (
        nest.reductions
        or nest.saves
        or nest.stages
        or not any(isinstance(i, ssa.Apply) for i in nest.items)
    ):
        return False
    available = {*nest.items, *s.materialised}
    computed = [i for i in nest.items if not isinstance(i, (ssa.Const, ssa.IndexValue))]
    indices = [i.index for i in nest.items if isinstance(i, ssa.IndexValue)]
    return (
        all(a in available for i in nest.items for a in i.args)
        and all(i.dtype.is_float for i in computed)
        and all(a.kind != "value" for e in indices for a in atoms(e))
        and all(x.where is None and x.value in available for x in nest.stores)
        and not any(x.access.limits or x.access.positions for x in nest.stores)
        and all(_outer_strides(x.access, nest) is not None for x in nest.stores)
    )


def _outer_strides(access: Access, nest: Nest) -> list[Index] | None:
    """Return the elements between neighbours along each outer axis.

    None if one is not a number, or vectors are not contiguous.
    """
    strides = [coefficient(access.offset, a) for a in nest.order]
    if strides[-1] != 1 or any(
        e is None or any(a.kind != "size" for a in atoms(e)) for e in strides
    ):
        return None
    return [e for e in strides[:-1] if e is not None]


# ---- emission ------------------------------------------------------------------------------------


class StorePipeline:
    """A loop over tasks whose last nest runs one task behind the others."""

    def __init__(self, b: ir.IRBuilder, entry: ir.Block, stride: Value, first: list[Value]) -> None:
        self.b, self.stride, self.left = b, stride, I1(0)
        self.pending = b.phi(I1)
        """Whether rows of the previous task are still to be stored."""
        self.pending.add_incoming(I1(0), entry)
        self.place = b.phi(I64)
        """Byte offset in scratch memory of what this task keeps."""
        self.place.add_incoming(number(0), entry)
        self.numbers = [b.phi(I64) for _ in first]
        """Block numbers of the previous task."""
        for phi, value in zip(self.numbers, first, strict=True):
            phi.add_incoming(value, entry)

    @contextmanager
    def begin(self, env: Environment, late: Environment) -> Generator[LateStore]:
        """Assign both tasks their scratch memory, and open the nest of the previous one."""
        b = self.b
        self.other = b.sub(self.stride, self.place)
        storage = env.storage.moved(b, self.place)
        other = late.storage.moved(b, self.other)
        with env.within(storage=storage), late.within(storage=other):
            yield LateStore(env.s.nests[-2], late, self.pending)

    def end(self, env: Environment, more: Value, later: Mapping[str, tuple[Value, Value]]) -> None:
        """Store the rows of this task, unless the next task will.

        It will if there are `more` tasks, and the next one, whose ranges are `later`, has as many
        rows.
        """
        b = self.b
        for axis in env.s.block:
            rows, others = (b.sub(high, low) for low, high in (env.ranges[axis], later[axis]))
            more = b.and_(more, b.icmp_signed("==", rows, others))
        odd: Value = number(0)
        for nbytes in _alignments(env, env.s.nests[-1]):
            odd = b.or_(odd, b.and_(nbytes, number(CACHE_LINE - 1)))
        self.left = b.and_(more, b.icmp_signed("==", odd, number(0)))
        with b.if_then(b.not_(self.left)):
            env.run(env.s.nests[-1])

    def close(self, latch: ir.Block, numbers: Sequence[Value]) -> None:
        """Begin the next task."""
        self.pending.add_incoming(self.left, latch)
        self.place.add_incoming(self.other, latch)
        for phi, value in zip(self.numbers, numbers, strict=True):
            phi.add_incoming(value, latch)


def _alignments(env: Environment, nest: Nest) -> Iterator[Value]:
    """Yield numbers that are multiples of a cache line if all stored vectors begin lines.

    The addresses of the first ones, and the bytes between neighbours along the outer axes.
    """
    b, first = env.b, {a: env.ranges[a][0] for a in nest.order}
    for access in (s.access for s in nest.stores):
        base, dtype = env.frame.buffers[access.buffer], env.frame.dtypes[access.buffer]
        at = env.index(access.offset, Scope(env.top, first))
        yield b.ptrtoint(element_address(b, base, at, dtype), I64)
        for step in _outer_strides(access, nest) or ():
            yield b.mul(env.index(step, env.top), number(dtype.itemsize))
