"""Places: what windows slide over, packed once for each element that is reached.

An operand read at y*s + u*d, along an axis y of the result and a summed axis u, has one value for
many pairs of y and u.  Packed for code that multiplies it, it has one axis of *places* y*s + u*d
instead.  Where s > 1 places are numbered by quotient and remainder, so that what neighbouring
results read always lies side by side.

    x[y*2 + u] for u < 3    is    x[at*2 + by], read at (at, by) = (y, 0), (y, 1), (y + 1, 0)

The test for a pair looks at index expressions alone: nothing changes when y moves by d while u
moves back by s.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from math import gcd

from smelt.codegen.llvm.loopir.clone import FOLDS, Cloner, indices, reached
from smelt.codegen.llvm.loopir.items import Access, Item, Phase
from smelt.dataclass import dataclass
from smelt.types.affine import coefficient
from smelt.types.expr import (
    Index,
    add,
    axes_of,
    axis,
    extents,
    floordiv,
    mod,
    mul,
    product,
    sub,
    substitute,
)
from smelt.windows import WINDOW_STEPS

NO_AXIS = ""


@dataclass(frozen=True, slots=True)
class Slid:
    """An axis of columns, and what it becomes while the right operand is packed."""

    axis: str
    place: str
    """The axis of places (their quotients by `step`); `axis` itself where no window slides."""
    tap: str = NO_AXIS
    """The summed axis that slides along."""
    step: int = 1
    dilation: int = 1
    rest: str = NO_AXIS
    """The axis of the places' remainders, where `step` > 1."""
    taps: int = 1

    @property
    def margin(self) -> int:
        """Packed places beyond the task's own."""
        return (self.taps - 1) * self.dilation // self.step

    def quotient(self, tap: int) -> int:
        """Packed places from a column to what it reads for a tap."""
        return tap * self.dilation // self.step

    def remainder(self, tap: int) -> int:
        """The remainder of the places that a tap reads."""
        return tap * self.dilation % self.step


def packed_order(columns: Sequence[Slid], summed: Sequence[str]) -> tuple[str, ...]:
    """The axes of an operand that is packed place by place, outer to inner, places innermost."""
    taps = {c.tap for c in columns}
    rests = [c.rest for c in columns if c.rest]
    return (*(a for a in summed if a not in taps), *rests, *(c.place for c in columns))


def place_extents(columns: Sequence[Slid], local: Mapping[str, Index]) -> dict[str, Index]:
    """Extents of the axes that columns become, for the task's own extents."""
    found: dict[str, Index] = {}
    for c in columns:
        found |= {c.rest: c.step, c.place: add(local[c.axis], c.margin)}
    return found


def block_of(taps: int, most: int) -> int:
    """How many positions are packed together where each has so many taps: a power of two with at
    most so many summed positions."""
    return 1 << max((most // taps).bit_length() - 1, 0)


def sliding(a: str, right: Item, over: list[str], phase: Phase) -> Slid:
    """An axis of columns with the summed axis that slides along it, if one does."""
    for tap in over:
        taps = phase.axes[tap]
        if not isinstance(taps, int):
            continue
        touched = list(reached(right, {a, tap}))
        if any(i.kind in FOLDS for i in touched):
            continue
        strides = [
            (e, coefficient(e, a), coefficient(e, tap)) for i in touched for e in indices(i.payload)
        ]
        for step, dilation in _pairs(taps, phase.axes[a]):
            by = {a: dilation, tap: -step}
            if all(_is_still(e, along, across, by, phase) for e, along, across in strides):
                return Slid(a, a, tap, step, dilation, NO_AXIS, taps)
    return Slid(a, a)


def _pairs(taps: int, columns: Index) -> Iterator[tuple[int, int]]:
    """Steps and dilations whose windows overlap, and whose places can be told apart.  Strides that
    are multiples of each other look like windows too: heads of 160 in rows of 3 of them."""
    for step in range(1, WINDOW_STEPS + 1):
        for dilation in range(1, WINDOW_STEPS + 1):
            whole = step == 1 or dilation == 1
            if isinstance(columns, int) and columns <= dilation:
                continue
            if whole and gcd(step, dilation) == 1 and taps * dilation > step:
                yield step, dilation


def _is_still(
    e: Index, along: Index | None, across: Index | None, moves: Mapping[str, int], phase: Phase
) -> bool:
    """Whether an index stays when its two axes move by these numbers, given its strides along
    them; where it has none, by moving them."""
    if along is not None and across is not None:
        one, other = moves.values()
        return add(mul(along, one), mul(across, other)) == 0
    return _stays(e, extents(e), tuple([(a, phase.axes[a], n) for a, n in moves.items()]))


@lru_cache(maxsize=1024)
def _stays(e: Index, _: tuple[Index, ...], moves: tuple[tuple[str, Index, int], ...]) -> bool:
    """Whether an index, whose axes have these extents, is the same after moving some by numbers:
    each form of a kernel asks again."""
    return substitute(e, {a: add(axis(a, extent), n) for a, extent, n in moves}) == e


def placed(phase: Phase, user: Item, operand: Item, columns: list[Slid]) -> Item:
    """The operand with axes of places instead of columns and taps, which `columns` get to know."""
    at: dict[str, Index] = {}
    limits: dict[str, tuple[Index, Index]] = {}
    for k, c in enumerate(columns):
        if not c.tap:
            continue
        extent = phase.axes[c.axis]
        place = fresh(phase, f"{c.axis}.at", add(extent, c.margin))
        at[c.axis] = axis(place, add(extent, c.margin))
        at[c.tap] = 0
        rest = NO_AXIS
        if c.step > 1:
            rest = fresh(phase, f"{c.axis}.by", c.step)
            at[c.tap] = axis(rest, c.step)
            last = add(mul(sub(extent, 1), c.step), (c.taps - 1) * c.dilation + 1)
            here = add(mul(at[c.axis], c.step), at[c.tap])
            limits[c.axis] = (here, last)
        columns[k] = Slid(c.axis, place, c.tap, c.step, c.dilation, rest, c.taps)
    if not at:
        return operand
    return Cloner(phase, user, at, limits).of(operand)


def in_lines(
    phase: Phase, user: Item, operand: Item, c: Slid, depth: str, few: int
) -> tuple[Item, str, Slid]:
    """The operand with one axis for all that it has along a line: `few` numbers for each place.

        x[y,at - 1,d], inside 0 <= at - 1 < w    is    x[y,q//3 - 1,q%3], inside 0 <= q - 3 < w*3

    Also that axis, and what the column becomes: its own axis counts places.
    """
    wide = mul(add(phase.axes[c.axis], c.margin), c.step * few)
    name = fresh(phase, f"{c.axis}.in", wide)
    q = axis(name, wide)
    place = floordiv(q, few)
    at: dict[str, Index] = {depth: mod(q, few), c.axis: 0}
    if c.tap:
        at[c.tap] = 0
    at[c.tap if c.step > 1 else c.axis] = place
    limits: dict[str, tuple[Index, Index]] = {}
    if c.step > 1:
        last = add(mul(sub(phase.axes[c.axis], 1), c.step), (c.taps - 1) * c.dilation + 1)
        limits[c.axis] = (place, last)
    cloner = Cloner(phase, user, at, limits)
    found = cloner.of(operand)
    for item in cloner.known.values():
        if isinstance(item.payload, Access):
            told = tuple(_of_lines(pair, q, name, few) for pair in item.payload.limits)
            item.payload = replace(item.payload, limits=told)
    rest = f"{c.axis}.by" if c.step > 1 else NO_AXIS
    return found, name, Slid(c.axis, c.axis, c.tap, c.step, c.dilation, rest, c.taps)


def along_lines(phase: Phase, user: Item, operand: Item, c: Slid) -> tuple[Item, str, Slid]:
    """The operand with one axis for all places of a line, also where windows step over some; that
    axis, and what the column becomes: its own axis counts places."""
    wide = mul(add(phase.axes[c.axis], c.margin), c.step)
    name = fresh(phase, f"{c.axis}.in", wide)
    at: dict[str, Index] = {c.axis: 0, **({c.tap: 0} if c.tap else {})}
    at[c.tap if c.step > 1 else c.axis] = axis(name, wide)
    limits: dict[str, tuple[Index, Index]] = {}
    if c.step > 1:
        last = add(mul(sub(phase.axes[c.axis], 1), c.step), (c.taps - 1) * c.dilation + 1)
        limits[c.axis] = (axis(name, wide), last)
    found = Cloner(phase, user, at, limits).of(operand)
    rest = f"{c.axis}.by" if c.step > 1 else NO_AXIS
    return found, name, Slid(c.axis, c.axis, c.tap, c.step, c.dilation, rest, c.taps)


def _of_lines(pair: tuple[Index, Index], q: Index, name: str, few: int) -> tuple[Index, Index]:
    """A test of places, 0 <= q//few + c < n, as one of what lies along a line."""
    e, n = pair
    if name not in axes_of(e):
        return pair
    whole = axis(name, 1 << 40)
    c = sub(substitute(e, {name: mul(few, whole)}), whole)
    if name in axes_of(c) or add(floordiv(q, few), c) != e:
        return pair
    return add(q, mul(c, few)), mul(n, few)


def flattened(phase: Phase, user: Item, operand: Item, summed: Sequence[str]) -> tuple[Item, str]:
    """The operand along one axis over all of `summed`, of which all but the first have a known
    extent, and that axis."""
    if len(summed) == 1:
        return operand, summed[0]
    whole = product(phase.axes[a] for a in summed)
    name = fresh(phase, "k", whole)
    at: dict[str, Index] = {}
    rest: Index = axis(name, whole)
    for a in summed[:0:-1]:
        at[a], rest = mod(rest, phase.axes[a]), floordiv(rest, phase.axes[a])
    at[summed[0]] = rest
    return Cloner(phase, user, at).of(operand), name


def fresh(phase: Phase, wanted: str, extent: Index) -> str:
    """A new axis inside every task."""
    name, k = wanted, 1
    while name in phase.axes:
        name, k = f"{wanted}{k}", k + 1
    phase.axes[name] = extent
    return name
