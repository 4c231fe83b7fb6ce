"""What packing the operands of products costs: each element as often as tasks need it; and what
becomes of their sums.

The code generator multiplies blocks that have been packed, and every task packs its own.  A
product alone in a kernel is cut into few tasks along either axis; of several in one kernel each
task takes a narrow block, and packs whole operands for it.  Multiply-adds do not hide that: a task
packs first.  What blocks of the usual heights pack is part of the price of a multiply-add.

The sums of a product that is alone are stored from registers.  In a chain of products they lie in
arrays of the task's that the next nest reads, and their columns are padded to whole tiles.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod

from smelt.blocks import SMALL, SMALL_DEPTH, THIN
from smelt.dataclass import dataclass
from smelt.fusion.bitsets import bits
from smelt.fusion.cascade.term import Term
from smelt.fusion.contraction_cost import sides_of
from smelt.fusion.region import Region
from smelt.fusion.trace import STEP_COST
from smelt.fusion.units import STILL, Unit, Units
from smelt.target import Target
from smelt.types.expr import Index, axes_of

PACK_COST, NEAR_COST = 6.0, 2.0
"""Row cost of packing an element of an operand, beside what bringing it from its cache takes:
cycles for each vector of them (measured: 0.09 ns an element that is in L2); and of one that stays
in L1."""
STAGED_COST = 6.0
"""Cycles for each vector of sums that pass through such an array (measured for chains of 32 to 128
columns: 0.1 to 0.2 ns a sum, beside 0.4 to 1.5 ns of multiply-adds)."""
TILE_VECTORS, TILE = 2, 1 << 10
"""Vectors of columns that a tile has there, where elsewhere the last one may have a single vector;
and columns that are whole tiles on any machine."""
SHARED_BYTES = 384
"""Bytes of a column of the other operand that share what is packed, of which packing counts as a
part of the multiply-adds: blocks of the usual heights."""


@dataclass(frozen=True, slots=True)
class Operand:
    """One factor of a product: `own` positions in a task that the other one lacks, elements that
    all tasks together take of it, whether it is an array that lies along the summed axis, and
    whether it is made of what was folded before: then it is stored where it is packed."""

    own: int
    taken: float
    lies: bool
    made: bool = False


def packing_ns(
    target: Target,
    operands: tuple[Operand, Operand],
    depth: int,
    steps: float,
    itemsize: int,
    *,
    alone: bool = True,
) -> float:
    """Nanoseconds on one core of packing the operands of a product of so many steps, each the sum
    of `depth` of them, beyond what blocks of the usual heights take, and beyond packing all of an
    operand once.

    Rows that lie along the summed axis are multiplied where they lie.  Few rows or columns leave
    the other operand unpacked, and so does a product that is small altogether.  What few rows
    multiply is packed on the way where the product is `alone`; beside others all of it counts.

    >>> machine = Target.for_isa("avx512")
    >>> usual, narrow = Operand(1024, 1e6, lies=False), Operand(1024, 5e6, lies=False)
    >>> packing_ns(machine, (usual, usual), 1024, 1e8, 4)
    0.0
    >>> packing_ns(machine, (usual, narrow), 1024, 1e8, 4) > 1e5
    True
    >>> few = Operand(64, 65536.0, lies=True)
    >>> packing_ns(machine, (few, usual), 1024, 64e6, 4)
    0.0
    >>> packing_ns(machine, (few, usual), 1024, 64e6, 4, alone=False) > 1e4
    True
    """
    least, most = sorted(x.own for x in operands)
    if least <= THIN or (most <= SMALL and depth <= SMALL_DEPTH):
        return 0.0
    each = [
        0.0
        if x.made
        else max(
            x.taken
            - (
                steps / min(SHARED_BYTES / itemsize, other.own)
                if alone or other.own > SMALL
                else 0.0
            ),
            0.0,
        )
        * _element_ns(target, x.own * depth * itemsize, itemsize)
        for x, other in (operands, operands[::-1])
    ]
    return sum(each) - max((n for n, x in zip(each, operands, strict=True) if x.lies), default=0.0)


def _element_ns(target: Target, nbytes: int, itemsize: int) -> float:
    """Nanoseconds of packing one element of an operand of so many bytes."""
    level = target.level(nbytes)
    cost = NEAR_COST if level == "l1" else PACK_COST
    return target.compute_ns(cost, 1.0, itemsize) + itemsize / target.bandwidth(level, "read", 1)


def region_packing_ns(
    target: Target,
    units: Units,
    region: Region,
    sizes: list[int],
    fixed: int,
    evaluations: Callable[[int], float],
    hosted: int = 0,
) -> float:
    """The same of all products of a region; `evaluations` tells how often all tasks together
    compute something along axes, of which a task has one position of those that are `fixed`.  What
    is made of `hosted` products is stored where it is packed."""
    found = 0.0
    late = {u for u, level in region.levels.items() if level > 0}
    chained = not hosted and _is_chain(units, region)
    for unit in map(units.unit, region.ended):
        if (sides := sides_of(region, unit)) is None or _slides(region, unit):
            continue
        over, shared, every = region.ended[unit.number], sides[0] & sides[1], sides[0] | sides[1]
        one, other = (
            Operand(
                prod(sizes[a] for a in bits(side & ~shared & ~fixed)),
                evaluations(side | over),
                _lies_along(region, unit, k),
                any(e.producer in late for e in unit.factors[k]),
            )
            for k, side in enumerate(sides)
        )
        depth = prod(sizes[a] for a in bits(over))
        itemsize = unit.node.type.dtype.compute.itemsize
        steps = evaluations(every | over)
        found += packing_ns(
            target, (one, other), depth, steps, itemsize, alone=len(region.ended) == 1
        )
        if chained:
            columns = _columns(units, region, unit, sizes)
            found += staged_ns(target, steps / max(depth, 1), columns, depth, itemsize)
    return found


def _is_chain(units: Units, region: Region) -> bool:
    """Whether a product of a region is made of another one."""
    if len(region.ended) < 2:
        return False
    made, products = 0, 0
    for u in sorted(region.masks):
        reached = bool(units.operands[u] & (made | products))
        if u in region.ended and sides_of(region, units.unit(u)) is not None:
            if reached:
                return True
            products |= 1 << u
        made |= int(reached) << u
    return False


def _columns(units: Units, region: Region, unit: Unit, sizes: list[int]) -> int:
    """Positions of a product's last axis, which its tiles are padded along; whole tiles of them
    where these are few for all sizes, and no tiles are taken."""
    place = region.places[unit.number][0]
    last = place[-1] if place else STILL
    if not isinstance(last, int) or last < 0:
        return TILE
    extent = units.extents[region.axes[last]]
    return TILE if isinstance(extent, int) and extent <= THIN else max(sizes[last], 1)


def staged_ns(target: Target, sums: float, columns: int, depth: int, itemsize: int) -> float:
    """Nanoseconds on one core that so many sums take beyond their multiply-adds in a chain of
    products: for passing through an array, and for columns that fill no tile.

    >>> machine = Target.for_isa("avx512")
    >>> wide, narrow = (staged_ns(machine, 1e6, n, 64, 4) for n in (64, 8))
    >>> narrow > 2 * wide > 0
    True
    """
    passed = target.compute_ns(STAGED_COST, sums, itemsize)
    lanes = max(target.vector_bytes // itemsize, 1)
    one, tile = (-(-columns // n) * n for n in (lanes, TILE_VECTORS * lanes))
    padded = target.compute_ns(STEP_COST, sums * depth * (tile - one) / columns, itemsize)
    return passed + padded


def term_packing_ns(
    target: Target,
    t: Term,
    sizes: Mapping[str, int],
    fixed: frozenset[str],
    loads: Mapping[Term, tuple[int, tuple[Index, ...]]],
    evaluations: Callable[[frozenset[str]], float],
) -> float:
    """The same of the product `t` of a stream; 0 for what is none."""
    if not (over := summed(t)):
        return 0.0
    left, right = t.args
    ends, shared = {*over}, left.axes & right.axes
    one, other = (
        Operand(
            prod(sizes[n] for n in x.axes - shared - fixed),
            evaluations(x.axes),
            x in loads and not ends.isdisjoint(axes_of((loads[x][1] or (0,))[-1])),
            _is_late(x),
        )
        for x in t.args
    )
    steps = evaluations(left.axes | right.axes)
    depth = prod(sizes[n] for n in ends)
    return packing_ns(target, (one, other), depth, steps, t.dtype.compute.itemsize)


def _slides(region: Region, unit: Unit) -> bool:
    """Whether a product is over windows, whose places are packed once for all that they reach."""
    terms = (t for e in unit.edges for t in e.terms if not isinstance(t, int))
    return unit.number in region.peeked or any(len(axes_of(t)) > 1 for t in terms)


def _lies_along(region: Region, unit: Unit, k: int) -> bool:
    """Whether a factor of a product is an array whose rows lie along a summed axis."""
    if len(unit.factors[k]) != 1:
        return False
    (edge,) = unit.factors[k]
    last = edge.terms[-1] if edge.terms else STILL
    loaded = not region.members >> edge.producer & 1
    return loaded and isinstance(last, int) and last >= unit.rank


def summed(t: Term) -> tuple[str, ...]:
    """The axes that a product sums over, of a stream or others; none of what is no product."""
    if t.kind == "dot":
        return t.over
    is_product = t.kind == "opaque" and isinstance(t.value, tuple) and t.value[:2] == ("fold", "")
    return t.value[2] if is_product else ()


def _is_late(t: Term) -> bool:
    """Whether a term is made of what was folded, in this block or before."""
    pending, seen = [t], {t}
    while pending:
        one = pending.pop()
        folded = isinstance(one.value, tuple) and one.value[:1] == ("fold",)
        if one.is_fold or folded or one.kind in ("old", "new"):
            return True
        pending += [x for x in one.args if x not in seen]
        seen.update(one.args)
    return False
