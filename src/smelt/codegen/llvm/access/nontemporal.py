"""Non-temporal stores: results too large for the caches do not evict what is still needed.

The version of a loop is chosen at its start.  Vectors that are full aligned cache lines are stored
best.  If all results begin equally far from a line, as NumPy's large arrays often do, a peeled loop
stores what is before the next one.  Several results that begin at different distances cannot be
aligned together: their vectors are stored in pieces of 16 bytes, for which malloc's alignment
suffices.  Write-combining buffers, one for each result, join pieces into full lines again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import element_address, prefetch
from smelt.codegen.llvm.access.prefetch import CACHE_LINE, PREFETCH_BYTES
from smelt.codegen.llvm.instructions.indexing import I64, number
from smelt.codegen.llvm.instructions.scope import Scope
from smelt.codegen.llvm.loopir.items import Access, IndexValue
from smelt.codegen.llvm.nests.environment import Environment
from smelt.types.affine import coefficient
from smelt.types.dtype import DType

Value = ir.Value
MIN_PEEL_ITERATIONS = 8
"""Minimum iterations of a loop that is peeled to the next cache line: peeling costs one."""
PIECE_BYTES = 16
"""Size and alignment of the smallest non-temporal vector store (SSE's, and NEON's pairs)."""
MAX_PEEL_UNROLL = 4
"""Unroll factor of loops unless their operators are one long chain."""


def main_loop(
    env: Environment, low: Value, step: int, walk: Callable[[], None], scope: Scope
) -> None:
    """Emit the loop `walk` over full vectors from `low` on.

    With a non-temporal version if full cache lines are stored and it pays.
    """
    b, stores = env.b, _nontemporal_stores(env, step)
    if not stores:
        walk()
        return
    alignment = PIECE_BYTES if _is_compute_bound(env) else CACHE_LINE
    addresses = _addresses(env, stores, low, scope)
    with b.if_else(_are_aligned(b, addresses, alignment)) as (aligned, otherwise):
        with aligned:
            _run_nontemporal(env, walk, alignment)
        with otherwise:
            _run_prefetching(env, walk)


def _are_aligned(b: ir.IRBuilder, addresses: Iterable[Value], alignment: int) -> Value:
    misaligned: Value = number(0)
    for address in addresses:
        misaligned = b.or_(misaligned, b.and_(address, number(alignment - 1)))
    return b.icmp_signed("==", misaligned, number(0))


Loop = Callable[[Value, Value], None]
"""Emits a loop from one position to another."""


def align_peel(
    env: Environment,
    bounds: tuple[Value, Value],
    step: int,
    loops: tuple[Loop, Callable[[Value, Value, bool], None]],
    scope: Scope,
) -> Value:
    """Emit a loop over unrolled vectors, peeled until stores are aligned to cache lines.

    Returns the end of the loop.  `step` is the number of elements of an iteration, `bounds` are the
    ends of the row.  `loops` emit the loop over unrolled vectors and the one over single vectors
    (with or without a mask at the end).  If all stores are equally far from their next cache line,
    single vectors peel the row up to there, and the unrolled loop uses non-temporal stores from
    there on.
    """
    b, stores, (low, high), (walk, singly) = env.b, _nontemporal_stores(env, step), bounds, loops

    def whole(start: Value, of: int = step) -> Value:
        return b.add(start, b.and_(b.sub(high, start), number(-of)))

    if not stores or _is_compute_bound(env) or not _can_start_anywhere(env, stores):
        middle = whole(low)
        main_loop(env, low, step, lambda: walk(low, middle), scope)
        return middle
    first, *others = _addresses(env, stores, low, scope)
    size = env.frame.dtypes[stores[0].buffer].itemsize
    lead_bytes = b.and_(b.sub(number(0), first), number(CACHE_LINE - 1))
    differ: Value = b.and_(first, number(size - 1))
    for address in others:
        differ = b.or_(differ, b.and_(b.xor(first, address), number(CACHE_LINE - 1)))
    is_long = b.icmp_signed(">=", b.sub(high, low), number(MIN_PEEL_ITERATIONS * step))
    pays = b.or_(is_long, b.icmp_signed("==", lead_bytes, number(0)))
    can_peel = b.and_(pays, b.icmp_signed("==", differ, number(0)))
    with b.if_else(can_peel) as (yes, no):
        with yes:
            start = b.add(low, b.lshr(lead_bytes, number(size.bit_length() - 1)))
            start = b.select(b.icmp_signed("<", start, high), start, high)
            singly(low, start, True)
            middle = whole(start)
            ended = whole(middle, env.s.lanes)
            _run_nontemporal(env, lambda: walk(start, middle), CACHE_LINE)
            _run_nontemporal(env, lambda: singly(middle, ended, False), CACHE_LINE)
            past = b.block
        with no:
            middle = whole(low)
            _run_unequal(env, (first, *others), lambda: walk(low, middle))
            usual = b.block
    end = b.phi(I64)
    end.add_incoming(ended, past)
    end.add_incoming(middle, usual)
    return end


def _run_unequal(env: Environment, addresses: Sequence[Value], walk: Callable[[], None]) -> None:
    """Emit a loop that cannot be peeled to full cache lines.

    Its stores are not equally far from a line, or it is too short.  A single store would be in
    pieces only for short rows, which is not worth a version.
    """
    b = env.b
    if len(addresses) == 1:
        _run_prefetching(env, walk)
        return
    with b.if_else(_are_aligned(b, addresses, PIECE_BYTES)) as (in_pieces, otherwise):
        with in_pieces:
            _run_nontemporal(env, walk, PIECE_BYTES)
        with otherwise:
            _run_prefetching(env, walk)


def _run_nontemporal(env: Environment, walk: Callable[[], None], alignment: int) -> None:
    """Emit a loop whose stores are non-temporal, to addresses of a known alignment."""
    with env.within(nontemporal=alignment):
        walk()


def _is_compute_bound(env: Environment) -> bool:
    """Return whether a body computes for longer than memory moves.

    More loops around it would only cost registers.
    """
    return bool(env.nest.stages) or env.nest.unroll > MAX_PEEL_UNROLL


def _run_prefetching(env: Environment, walk: Callable[[], None]) -> None:
    with env.within(prefetches_stores=not _is_compute_bound(env)):
        walk()


def prefetch_for_write(env: Environment, address: Value, dtype: DType, lanes: int) -> None:
    """Prefetch the cache lines that a store will write one page later.

    No cache has the lines of a large result, and stores across lines wait for two of them.
    """
    for k in range(0, lanes * dtype.itemsize, CACHE_LINE):
        later = env.b.gep(address, [number(PREFETCH_BYTES + k)], source_etype=ir.IntType(8))
        prefetch(env.b, later, near=True, written=True)


def _addresses(env: Environment, stores: list[Access], low: Value, scope: Scope) -> Iterator[Value]:
    """Yield the addresses at which stores begin, as integers."""
    b = env.b
    for access in stores:
        base, dtype = env.frame.buffers[access.buffer], env.frame.dtypes[access.buffer]
        first = b.add(scope.offset(access), low)
        yield b.ptrtoint(element_address(b, base, first, dtype), I64)


def _can_start_anywhere(env: Environment, stores: list[Access]) -> bool:
    """Return whether the loop may begin at any position.

    Its loads must be contiguous and its indices affine; and stores of one element size keep their
    distance from cache lines.
    """
    axis = env.nest.vector or ""
    sizes = {env.frame.dtypes[a.buffer].itemsize for a in stores}
    steps = [
        None if env.vector_position(a.offset) else coefficient(a.offset, axis) for a in env.accesses
    ]
    indices = [i.index for i in env.items if isinstance(i, IndexValue)]
    indices += [e for a in env.accesses for e, _ in a.limits]
    plain = all(isinstance(step, int) and 0 <= step <= 1 for step in steps)
    plain &= all(coefficient(e, axis) is not None for e in indices)
    return plain and len(sizes) == 1


def _nontemporal_stores(env: Environment, step: int) -> list[Access]:
    """Return the stores that write full cache lines here, if this variant is non-temporal."""
    stores = [s.access for s in env.nest.stores if s.where is None]
    are_full_lines = all(
        step * env.frame.dtypes[a.buffer].itemsize % CACHE_LINE == 0
        and env.step(a, env.nest.vector or "") == 1
        for a in stores
    )
    return stores if env.frame.streaming and are_full_lines and not env.nest.reductions else []
