"""Lanes whose places repeat: read from tables, and picked from the run of memory that they are in.

Lanes that read `b[k%3]` or `x[k//3]` look for few elements that lie together.  Instead of gathering
them, one vector is read from where the first of them is, or two, and each lane picks its own.  The
elements that nobody asks for are not touched.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import (
    element_address,
    intrinsic,
    lane_numbers,
    prefetch,
    unlike,
)
from smelt.codegen.llvm.instructions.indexing import I64, number, splat
from smelt.codegen.llvm.instructions.machine import LLVMMachine
from smelt.codegen.llvm.instructions.scope import Lanes, Scope
from smelt.codegen.llvm.instructions.tables import LINE, table
from smelt.codegen.llvm.loopir.items import Access
from smelt.codegen.llvm.loopir.periodic_index import Pattern, pattern
from smelt.target import Target
from smelt.types.affine import coefficient
from smelt.types.dtype import DType
from smelt.types.expr import Index, axes_of

if TYPE_CHECKING:
    from smelt.codegen.llvm.nest import NestEmitter

Value = ir.Value
I1, I32 = ir.IntType(1), ir.IntType(32)
BITS = 512
"""Of a register from which each lane picks an element as it is told."""
AHEAD = 1024
"""Bytes between what is read and what is asked for: loads of some elements are no run that the
processor foresees."""
MOST = 16
"""Lanes that pick at once: elements of less than 32 bits are widened before."""
KINDS = {16: "si", 8: "di"}
PAIRS = {16: "d", 8: "q"}


def can_pick(target: Target, lanes: int) -> bool:
    """Whether there are instructions with which each of so many lanes picks an element."""
    return target.isa == "avx512" and lanes in KINDS


def pattern_of(home: NestEmitter, e: Index, scope: Scope) -> Pattern | None:
    """How an index repeats along the lanes, if it does and does not just go on step by step."""
    lanes = scope.lanes
    if lanes is None or lanes.axis not in axes_of(e) or home.vector_position(e):
        return None
    return pattern(e, lanes.axis) if coefficient(e, lanes.axis) is None else None


def lane_index(home: NestEmitter, e: Index, scope: Scope) -> Value | None:
    """An index in all lanes; None if it does not repeat."""
    found = pattern_of(home, e, scope)
    if found is None or scope.lanes is None:
        return None
    b, count = home.b, scope.lanes.count
    base, rest = _start(home, found, scope, 0)
    own = _row(b, found.table(found.period + count - 1), rest, count)
    wide = b.sext(own, ir.VectorType(I64, count))
    return b.add(splat(b, base, count), wide)


def lane_test(home: NestEmitter, gap: Index, scope: Scope) -> Value | None:
    """In which lanes an index is 0 or more, where that alone repeats."""
    found = pattern_of(home, gap, scope)
    if found is None or scope.lanes is None or found.step or not isinstance(found.first, int):
        return None
    return _bits(home, [x + found.first >= 0 for x in found.places], scope)


def lane_limits(home: NestEmitter, e: Index, n: Index, scope: Scope) -> Value | None:
    """In which lanes an index is inside 0 .. n-1, where that alone repeats."""
    held = inside_places(home, e, n, scope)
    return None if held is None else _bits(home, held, scope)


def inside_places(home: NestEmitter, e: Index, n: Index, scope: Scope) -> list[bool] | None:
    """The same for each place in the period."""
    found = pattern_of(home, e, scope)
    if found is None or found.step or not isinstance(found.first, int) or not isinstance(n, int):
        return None
    return [0 <= x + found.first < n for x in found.places]


def picked(
    home: NestEmitter, access: Access, scope: Scope, m: LLVMMachine, dtype: DType
) -> Value | None:
    """The elements of an access in all lanes, zero outside its limits; None where they are not
    picked."""
    lanes, native = scope.lanes, BITS // max(dtype.itemsize * 8, BITS // MOST)
    loose = home.groups[access][len(home.nest.order)]  # the part that differs between lanes
    found = pattern_of(home, loose, scope)
    if lanes is None or lanes.mask is not None or lanes.count % native:
        return None
    if found is None or not can_pick(home.home.target, native):
        return None
    held = [True] * found.period
    for e, n in access.limits:
        inside = None if (e, n) in home.assumed else inside_places(home, e, n, scope)
        if (e, n) not in home.assumed and (inside is None or found.period % len(inside)):
            return None
        held = [a and (inside is None or inside[x % len(inside)]) for x, a in enumerate(held)]
    parts = range(0, lanes.count, native)
    starts = [_firsts(found, lanes, at) for at in parts]
    if any(found.span(native, held, x) > 2 * native for x in starts):
        return None
    own = [_picked(home, access, found, held, scope, m, dtype, at, native) for at in parts]
    return m.load_convert(_joined(home.b, own), dtype)


def _picked(
    home: NestEmitter,
    access: Access,
    found: Pattern,
    held: list[bool],
    scope: Scope,
    m: LLVMMachine,
    dtype: DType,
    at: int,
    lanes: int,
) -> Value:
    """One register of picked elements: of so many lanes from `at` on."""
    b = home.b
    assert scope.lanes is not None
    firsts = _firsts(found, scope.lanes, at)
    base, rest = _start(home, found, scope, at)
    starts, wanted = found.windows(lanes, held, firsts)
    table = found.table(found.period + lanes - 1)
    picks = _row(b, table, rest, lanes)
    if len({starts[r] for r in firsts}) == 1:
        (start,) = {starts[r] for r in firsts}
        first: Value = number(start)
        picks = _row(b, tuple(x - start for x in table), rest, lanes)
    else:
        short = _entry(b, starts, rest, I32)
        picks = b.sub(picks, splat(b, short, lanes))
        first = b.sext(short, I64)
    raw = m.raw_type(dtype).element
    kind = ir.VectorType(raw, lanes)
    above = scope.offset(access)
    offset = b.add(base, first) if above is None else b.add(above, b.add(base, first))
    buffer = home.home.buffers[access.buffer]
    _ask(home, access, found, scope, dtype, at, offset)
    windows: list[Value] = []
    for w in range(1 if all(x < 1 << lanes for x in wanted) else 2):
        masks = [x >> w * lanes & ((1 << lanes) - 1) for x in wanted]
        address = element_address(b, buffer, b.add(offset, number(w * lanes)), dtype)
        few = _run(masks, firsts)
        if few:
            run = b.load(address, align=dtype.itemsize, typ=ir.VectorType(raw, few))
            order = [min(i, few - 1) for i in range(lanes)]
            windows.append(b.shuffle_vector(run, run, lane_numbers(order)))
            continue
        mask = b.bitcast(_entry(b, masks, rest, ir.IntType(lanes)), ir.VectorType(I1, lanes))
        windows.append(
            intrinsic(
                b,
                f"llvm.masked.load.{kind.intrinsic_name}.p0",
                kind,
                [address, I32(dtype.itemsize), unlike(m, mask), ir.Constant(kind, None)],
            )
        )
    own = permuted(b, windows, picks, lanes)
    if all(held):
        return own
    inside = [sum(held[(r + i) % len(held)] << i for i in range(lanes)) for r in range(len(held))]
    mask = b.bitcast(_entry(b, inside, rest, ir.IntType(lanes)), ir.VectorType(I1, lanes))
    return b.select(mask, own, ir.Constant(kind, None))


def _firsts(found: Pattern, lanes: Lanes, at: int) -> frozenset[int]:
    """The places in a period at which lane `at` can be."""
    if isinstance(lanes.base, ir.Constant):
        return frozenset(((lanes.base.constant + at) % found.period,))
    return found.firsts(at, lanes.apart)


def _run(masks: list[int], firsts: Collection[int]) -> int:
    """How many elements are wanted, if it is known which, and they lie together; else 0."""
    found = {masks[r] for r in firsts}
    (mask,) = found if len(found) == 1 else (0,)
    return mask.bit_length() if mask & (mask + 1) == 0 else 0


def _ask(
    home: NestEmitter,
    access: Access,
    found: Pattern,
    scope: Scope,
    dtype: DType,
    at: int,
    offset: Value,
) -> None:
    """Has the processor fetch what such registers read later, once for each that a body reads."""
    assert scope.lanes is not None
    whole = abs(found.step) * dtype.itemsize
    if not whole or (access.buffer, at) in scope.lanes.asked:
        return
    scope.lanes.asked.add((access.buffer, at))
    b, buffer = home.b, home.home.buffers[access.buffer]
    here = element_address(b, buffer, offset, dtype)
    for k in range(0, max(whole * MOST // found.period, 1), LINE):
        far = AHEAD + k if found.step > 0 else -AHEAD - k
        prefetch(b, b.gep(here, [number(far)], source_etype=ir.IntType(8)))


def permuted(b: ir.IRBuilder, windows: list[Value], picks: Value, lanes: int) -> Value:
    """Each lane's element of one register or two."""
    kind = windows[0].type
    width = BITS // lanes
    whole = ir.VectorType(ir.IntType(width), lanes)
    bits = ir.VectorType(ir.IntType(_width(kind.element)), lanes)
    wide = [
        b.zext(b.bitcast(w, bits), whole) if bits != whole else b.bitcast(w, whole) for w in windows
    ]
    at = picks if width == 32 else b.sext(picks, whole)
    if len(wide) == 1:
        found = intrinsic(b, f"llvm.x86.avx512.permvar.{KINDS[lanes]}.512", whole, [wide[0], at])
    else:
        name = f"llvm.x86.avx512.vpermi2var.{PAIRS[lanes]}.512"
        found = intrinsic(b, name, whole, [wide[0], at, wide[1]])
    return b.bitcast(b.trunc(found, bits) if bits != whole else found, kind)


def _width(element: ir.Type) -> int:
    if isinstance(element, ir.IntType):
        return element.width
    return 64 if isinstance(element, ir.DoubleType) else 32


def _joined(b: ir.IRBuilder, parts: list[Value]) -> Value:
    """Registers one after another as one vector."""
    while len(parts) > 1:
        count = parts[0].type.count
        order = ir.Constant(ir.VectorType(I32, 2 * count), list(range(2 * count)))
        parts = [
            b.shuffle_vector(x, y, order) for x, y in zip(parts[::2], parts[1::2], strict=True)
        ]
    return parts[0]


def _start(home: NestEmitter, found: Pattern, scope: Scope, at: int) -> tuple[Value, Value]:
    """What whole periods before lane `at` add up to, and where in a period this lane is."""
    assert scope.lanes is not None
    b, period = home.b, number(found.period)
    here = b.add(scope.axis(scope.lanes.axis), number(at)) if at else scope.axis(scope.lanes.axis)
    before = b.mul(b.udiv(here, period), number(found.step))
    firsts = _firsts(found, scope.lanes, at)
    rest = b.urem(here, period) if len(firsts) > 1 else number(min(firsts))
    return b.add(home.index(found.first, scope), before), rest


def _bits(home: NestEmitter, held: list[bool], scope: Scope) -> Value:
    """A truth that repeats, as a mask of all lanes."""
    assert scope.lanes is not None
    b, count, period, apart = home.b, scope.lanes.count, len(held), scope.lanes.apart
    words = [sum(held[(r + i) % period] << i for i in range(count)) for r in range(period)]
    firsts = {x % period for x in range(0, period * apart, apart)}
    here = number(0) if firsts == {0} else b.urem(scope.axis(scope.lanes.axis), number(period))
    return b.bitcast(_entry(b, words, here, ir.IntType(count)), ir.VectorType(I1, count))


def _entry(b: ir.IRBuilder, values: list[int], at: Value, kind: Any) -> Value:
    """One of some numbers."""
    if len({*values}) == 1:
        return kind(values[0])
    if isinstance(at, ir.Constant):
        return kind(values[at.constant])
    place = b.gep(table(b, tuple(values), kind), [at], source_etype=kind)
    return b.load(place, typ=kind, align=max(kind.width // 8, 1))


def _row(b: ir.IRBuilder, values: tuple[int, ...], at: Value, lanes: int) -> Value:
    """So many neighbours among some numbers."""
    if isinstance(at, ir.Constant):
        own = values[at.constant : at.constant + lanes]
        return ir.Constant(ir.VectorType(I32, lanes), list(own))
    place = b.gep(table(b, values, I32), [at], source_etype=I32)
    return b.load(place, typ=ir.VectorType(I32, lanes), align=4)


__all__ = ["can_pick", "lane_index", "lane_limits", "lane_test", "permuted", "picked"]
