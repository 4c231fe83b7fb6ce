"""Loads in steps: whole vectors are read, from which the lanes pick their elements.

Columns of rows of 3 lie 3 elements apart.  What several loads of a nest read in the same steps,
less than a step from one another, is one *comb*: its vectors are read once for all of them, and
where its teeth leave no gap they are plain loads, along which the processor foresees.

    x[3*n], x[3*n + 1], x[3*n + 2]    are three vectors, of which each takes every third element
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import (
    FARTHEST_STEP,
    element_address,
    intrinsic,
    lane_numbers,
    prefetch,
    unlike,
)
from smelt.codegen.llvm.access.prefetch import LINE, RUN_AHEAD
from smelt.codegen.llvm.instructions.indexing import I64
from smelt.codegen.llvm.instructions.machine import LLVMMachine
from smelt.codegen.llvm.instructions.scope import Scope
from smelt.codegen.llvm.loopir.items import Access, Item
from smelt.dataclass import dataclass
from smelt.types.dtype import DType
from smelt.types.expr import Index, sub, terms_of

if TYPE_CHECKING:
    from smelt.codegen.llvm.nest import NestEmitter

Value = ir.Value
I1, I32 = ir.IntType(1), ir.IntType(32)
LONGEST = 16
"""Steps up to which combs are read as vectors, where they have a tooth for every second element."""


@dataclass(frozen=True, slots=True)
class Comb:
    """Loads in the same steps, with their distances from the first of them, less than a step."""

    first: Access
    step: int
    teeth: tuple[int, ...]


def is_dense(step: int, teeth: int) -> bool:
    """Whether reading all that lies between is less work than asking for elements."""
    return step <= FARTHEST_STEP or (step <= LONGEST and 2 * teeth >= step)


def constant(e: Index) -> int:
    """What an index has beside its variables."""
    return next((c for m, c in terms_of(e) if not m), 0)


InterleavedLoads = Mapping[Access, tuple[Comb, int]]
"""The comb of each load that belongs to one, and its own tooth."""


def combs_of(items: Iterable[Item], step_of: Callable[[Access], Index | None]) -> InterleavedLoads:
    """The combs of loads in positive steps, which are read wherever the others are."""
    lines: dict[tuple[str, int, Index], dict[int, Access]] = {}
    for item in items:
        access = item.payload
        if item.kind != "load" or not isinstance(access, Access) or access.limits:
            continue
        step = step_of(access)
        if isinstance(step, int) and 1 < step <= LONGEST:
            at = constant(access.offset)
            rest = sub(access.offset, at)
            lines.setdefault((access.buffer, step, rest), {})[at] = access
    found: dict[Access, tuple[Comb, int]] = {}
    for (_, step, _), members in lines.items():
        waiting = sorted(members)
        while waiting:
            start = waiting[0]
            own = [at for at in waiting if at < start + step]
            waiting = waiting[len(own) :]
            comb = Comb(members[start], step, tuple(at - start for at in own))
            found |= {members[at]: (comb, at - start) for at in own}
    return {
        access: known
        for access, known in found.items()
        if is_dense(known[0].step, len(known[0].teeth))
    }


def read_comb(
    home: NestEmitter, access: Access, scope: Scope, m: LLVMMachine, dtype: DType
) -> Value | None:
    """What a load that belongs to a comb reads; None for others."""
    found = home.combs.get(access)
    if found is None or scope.lanes is None:
        return None
    comb, tooth = found
    assert comb.first in home.accesses, "the offset of another place would be read"
    base = home.home.buffers[access.buffer]
    address = element_address(home.b, base, scope.offset(comb.first), dtype)
    raw = _picked(m, address, comb.step, comb.teeth, tooth, dtype, scope.lanes.mask, RUN_AHEAD)
    return m.load_convert(raw, dtype)


def load_strided(
    m: LLVMMachine, address: Value, step: int, dtype: DType, mask: Value | None, far: int = 0
) -> Value:
    """Every `step`-th element from an address, or to it where the step is negative: whole vectors,
    of which nothing else is touched; what lies `far` bytes ahead is asked for."""
    b, lanes = m.builder, m.lanes or 1
    kind = m.raw_type(dtype)
    if step > 0:
        return m.load_convert(_picked(m, address, step, (0,), 0, dtype, mask, far), dtype)
    back = lane_numbers(list(range(lanes))[::-1])
    first = element_address(b, address, I64(step * (lanes - 1)), dtype)
    turned = None if mask is None else b.shuffle_vector(mask, mask, back)
    raw = _picked(m, first, -step, (0,), 0, dtype, turned, -far)
    return m.load_convert(b.shuffle_vector(raw, ir.Constant(kind, ir.Undefined), back), dtype)


def _picked(
    m: LLVMMachine,
    address: Value,
    step: int,
    teeth: tuple[int, ...],
    tooth: int,
    dtype: DType,
    mask: Value | None,
    far: int,
) -> Value:
    """One tooth of all lanes, from vectors of which nothing but the teeth is touched."""
    b, lanes = m.builder, m.lanes or 1
    found: Value | None = None
    held: dict[int, int] = {}
    for v in range(step):
        places = [i * step + tooth - v * lanes for i in range(lanes)]
        own = {i: place for i, place in enumerate(places) if 0 <= place < lanes}
        if not own:
            continue
        piece = _piece(m, address, v, step, teeth, dtype, mask, far)
        if found is None:
            found, held = piece, own
            continue
        picks = [held[i] if i in held else lanes + own.get(i, 0) for i in range(lanes)]
        found = b.shuffle_vector(found, piece, lane_numbers(picks))
        held = {i: i for i in (*held, *own)}
    assert found is not None
    order = [held[i] for i in range(lanes)]
    return (
        found if order == [*range(lanes)] else b.shuffle_vector(found, found, lane_numbers(order))
    )


def _piece(
    m: LLVMMachine,
    address: Value,
    v: int,
    step: int,
    teeth: tuple[int, ...],
    dtype: DType,
    mask: Value | None,
    far: int,
) -> Value:
    """The v-th vector from an address on, of which only teeth are touched.

    What masks let through tells AMD's processors nothing of what comes next, so lines `far` away
    are asked for: 64 MiB of which every third element is summed take 0.6 of the time."""
    b, lanes = m.builder, m.lanes or 1
    kind = m.raw_type(dtype)
    at = element_address(b, address, I64(v * lanes), dtype) if v else address
    if mask is None and len(teeth) == step:
        return b.load(at, align=dtype.itemsize, typ=kind)
    none = ir.Constant(ir.VectorType(I1, lanes), None)
    every = ir.Constant(ir.VectorType(I1, lanes), [1] * lanes)
    places = range(v * lanes, (v + 1) * lanes)
    wanted = [p // step if p % step in teeth else lanes for p in places]
    part = b.shuffle_vector(every if mask is None else mask, none, lane_numbers(wanted))
    part = part if mask is None else unlike(m, part)
    if mask is None and far:  # in a main loop
        for k in range(0, lanes * dtype.itemsize, LINE):
            prefetch(b, b.gep(at, [I64(far + k)], source_etype=ir.IntType(8)), near=True)
    return intrinsic(
        b,
        f"llvm.masked.load.{kind.intrinsic_name}.p0",
        kind,
        [at, I32(dtype.itemsize), part, ir.Constant(kind, None)],
    )


__all__ = [
    "Comb",
    "InterleavedLoads",
    "combs_of",
    "constant",
    "is_dense",
    "load_strided",
    "read_comb",
]
