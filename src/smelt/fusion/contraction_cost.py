"""Products that are walked rather than blocked, and what that costs.

The code generator blocks a product by two axes, one that each operand has alone, with a tile of
both in registers.  Other axes of its result may be of the grid, or be visited one position at a
time: they are fixed while a block is multiplied.  A product with more axes inside a task is a fold
like any other: every factor is read for every step, most of them across memory.

    S[h,m,n] = sum of Q[h,m,d] * K[h,n,d] over d      m, n
      with h of the grid                               blocked
      with h inside a task, as heads that are mixed    walked

Products of one kernel may be at odds as well.  Where one is blocked by an axis of the grid, tasks
take that axis in blocks, and a product that has it beside its own two is walked.

    B[h,m,n] = sum of Z[m,n,c] * W[c,h] over c         n, and h of the grid
    S[h,m,n] as above, with h of the grid              walked beside B: h is neither m nor n

So it is beside windows that reach shared places along axes of the grid: tasks take those in blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, TypeAlias

from smelt.blocks import THIN
from smelt.fusion.bitsets import bits
from smelt.fusion.region import Place, Region, axis_numbers
from smelt.fusion.trace import Term
from smelt.fusion.units import Edge, Unit, Units
from smelt.ops.contract import bare_axis
from smelt.types.affine import without_constant
from smelt.types.expr import Expr

Axes: TypeAlias = AbstractSet[Any]

WALKED_COST = 28.0
"""Row cost of a step of such a product: a cycle and a half for each element alone, not for a vector
(measured: 0.40 ns where a blocked product takes 0.007)."""

LONE = 1.6
"""What multiplying a lone vector takes, of half a tile of two (measured for 12 rows of single
precision: 16 columns take 1.6 to 1.75 times half of what 32 do, alone or beside whole tiles; as the
last vector of longer lines 1.4)."""

PACKED_NS = 300.0
"""Packing both operands of a product by code of their own, and calling its tiles, however few there
are (measured: 400 to 1000 ns for factors of 3 × 3 to 8 × 8, read as they lie 20)."""


def is_walked(left: Axes, right: Axes, fixed: Axes) -> bool:
    """Whether a product is walked, of operands that vary along these axes of the result, where some
    are fixed while a block of it is multiplied.

    >>> is_walked({"h", "m"}, {"h", "n"}, {"h"}), is_walked({"h", "m"}, {"h", "n"}, {"m"})
    (False, True)
    """
    one, other = left - fixed, right - fixed
    return not one.isdisjoint(other) or len(one - right) > 1 or len(other - left) > 1


def walked(
    products: Sequence[tuple[Axes, Axes]],
    grid: Axes,
    fixed: Axes,
    order: Sequence[Any],
    beside: Sequence[Axes] = (),
) -> set[int]:
    """Which products of one kernel are walked: each is told by the axes of its result that its two
    operands vary along.  `order` is that of the kernel's axes, `fixed` those of `is_walked`;
    `beside` has for each product the axes that tasks take in blocks anyway.

    >>> scores, bias = ({"h", "m"}, {"h", "n"}), ({"m", "n"}, {"h"})
    >>> (
    ...     walked([scores], {"h", "m"}, {"h", "m"}, "hmn"),
    ...     walked([bias], {"h", "m"}, {"h", "m"}, "hmn"),
    ... )
    (set(), set())
    >>> walked([scores, bias], {"h", "m"}, {"h", "m"}, "hmn")
    {0}
    >>> walked([scores], {"h", "m"}, {"h", "m"}, "hmn", [{"h"}])
    {0}
    """
    blocked: dict[int, set[Any]] = {}
    for k, (left, right) in enumerate(products):
        if not is_walked(left, right, fixed):
            sides = (left - right, right - left)
            blocked[k] = {_own(side - (fixed - grid), grid, order) for side in sides if side}
    while True:
        cut = {a for pair in blocked.values() for a in pair if a in grid}
        taken = [cut | axes for axes in beside or [set[Any]()] * len(products)]
        odd = [
            k
            for k, pair in blocked.items()
            if pair and (products[k][0] | products[k][1]) & taken[k] - pair
        ]
        if not odd:
            return {*range(len(products))} - {*blocked}
        del blocked[odd[0]]


def short_axes(units: Units, region: Region) -> int:
    """The axes that have few positions for all sizes: products are blocked by others."""
    extents = [units.extents[e] for e in region.axes]
    return sum(1 << a for a, n in enumerate(extents) if isinstance(n, int) and n <= THIN)


def _own(side: Axes, grid: Axes, order: Sequence[Any]) -> Any:
    """The axis of one operand alone by which a product is blocked: an inner one, the last in
    `order`."""
    own = [a for a in order if a in side]
    inner = [a for a in own if a not in grid]
    return (inner or own or [None])[-1]


def walked_units(units: Units, region: Region) -> set[int]:
    """The products of a region that are walked rather than blocked."""
    found: dict[int, tuple[set[int], set[int]]] = {}
    for unit in map(units.unit, sorted(region.ended)):
        if sides := sides_of(region, unit):
            # Windows that peek share the axis of places that a product has instead of theirs.
            taps = {w.tap for w in region.peeked.get(unit.number, ())}
            one, other = ({*bits(side)} - taps for side in sides)
            found[unit.number] = one, other
    grid, few = {*bits(region.grid)}, short_axes(units, region)
    order = sorted(range(len(region.axes)), key=lambda a: not few >> a & 1)
    reached = {w.axis for windows in region.peeked.values() for w in windows} & grid
    beside = [set[int]() if u in region.peeked else reached for u in found]
    slow = walked([*found.values()], grid, grid, order, beside)
    return {u for k, u in enumerate(found) if k in slow}


def packing(units: Units, region: Region, volume: Callable[[int], int]) -> float:
    """Nanoseconds of starting products whose operands are computed where they are packed: once for
    every position of the axes that both operands have, however small the product is."""
    found = 0.0
    for unit in map(units.unit, region.ended):
        made = any(region.members >> e.producer & 1 for e in unit.edges)
        if made and (sides := sides_of(region, unit)):
            found += PACKED_NS * volume(sides[0] & sides[1] & region.grid)
    return found


def sides_of(region: Region, unit: Unit) -> tuple[int, int] | None:
    """The axes of a product's result that either factor varies along, whatever it is put together
    from; None for what is no product of two values."""
    if len(unit.edges) < 2 or not unit.factors or not all(unit.factors):
        return None
    found = [0, 0]
    for k, edges in enumerate(unit.factors):
        for edge in edges:
            found[k] |= side_of(region, unit.number, edge)
    return found[0], found[1]


def in_lines(
    units: Units, region: Region, u: int, edge: Edge, own: int, sizes: Sequence[int]
) -> bool:
    """Whether two axes walk the columns of a product, of which the last one is that of its lines in
    memory: what is made for it is made line by line, as sums of neighbours are, and the code
    generator takes it as one over windows.  Not so where all lines are one run."""
    last, made = region.places[u][0][-1:], region.members >> edge.producer & 1
    axes = [a for a in bits(own & region.grid) if sizes[a] > 1]
    lines = bool(made) and len(axes) > 1 and bool(last) and last[0] == axes[-1]
    few = all(sizes[a] <= THIN for a in bits(region.masks[u][0] & ~own))  # read as they are made
    return lines and (few or not _is_one_run(units, region, *axes[-2:]))


def _is_one_run(units: Units, region: Region, a: int, b: int) -> bool:
    """Whether all that a region reads and stores along two axes lies as one run over them, but for
    margins: the code generator takes the places of all lines as one axis then
    (`smelt.codegen.llvm.loopir.collapse_spatial`, which this foresees)."""
    both = 1 << a | 1 << b
    for v, places in region.loads.items():
        for place, mask in zip(places, region.load_masks[v], strict=True):
            if mask & both and not _ends_in(units, region, v, place, (a, b)):
                return False
    return all(
        _ends_in(units, region, u, place, (a, b))
        for u in bits(region.stored)
        for place in region.places[u]
    )


def _ends_in(units: Units, region: Region, v: int, place: Place, axes: tuple[int, int]) -> bool:
    """Whether a value is read at two axes, or a number from them, in its last two dimensions alone,
    where its lines are as long as theirs."""
    line, both = units.values[v].type.shape[-1:], sum(1 << a for a in axes)
    found = [sum(1 << a for a in axis_numbers(t) if a >= 0) & both for t in place]
    if found != [0] * (len(place) - 2) + [1 << a for a in axes] or len(place) < 2:
        return False
    steps = (t if isinstance(t, int) else _from(t) for t in place[-2:])
    return tuple(steps) == axes and line == (units.extents[region.axes[axes[1]]],)


def _from(term: Expr) -> int | None:
    """The axis that an expression is a number from; None where it is more."""
    terms, _ = without_constant(term)
    name = bare_axis(Expr(terms)) if terms else None
    return None if name is None else int(name[1:])


def filled(line: int, lanes: int) -> float:
    """Columns that tiles of two vectors compute for each one of a line: of the last tile all, or a
    vector, which each element of the other operand is read for as for two.

    >>> filled(64, 16), filled(28, 16) < 1.2, filled(14, 16) > 1.5
    (1.0, True, True)
    >>> filled(0, 16)  # an empty image
    1.0
    """
    if line == 0:
        return 1.0
    over = line % (2 * lanes)
    last = 2 * lanes if over > lanes else LONE * lanes if over else 0
    return (line - over + last) / line


def unfilled(
    units: Units,
    region: Region,
    sizes: Sequence[int],
    vector: int,
    work: Callable[[int, int], float],
) -> float:
    """Nanoseconds of what products of lines multiply beside these, where `work(u, axes)` are those
    of all that a unit multiplies along its axes, and vectors have so many bytes: nothing fills a
    tile across the ends of lines."""
    found = 0.0
    for u, over in region.ended.items():
        unit, mask = units.unit(u), region.masks[u][0]
        if len(unit.edges) != 2 or not unit.trace.dots:
            continue
        sides = [side_of(region, u, edge) for edge in unit.edges]
        own = sides[0] & ~sides[1], sides[1] & ~sides[0]
        lines = (
            in_lines(units, region, u, e, o, sizes) for e, o in zip(unit.edges, own, strict=True)
        )
        if any(lines):
            line = region.places[u][0][-1]
            assert isinstance(line, int)
            size = units.values[u].type.dtype.compute.itemsize
            fill = filled(sizes[line], max(vector // size, 1))
            found += work(u, mask | over) * (fill - 1.0)
    return found


def side_of(region: Region, u: int, edge: Edge) -> int:
    """The axes of a contraction's result that one operand varies along."""
    place = region.places[u][0]
    found = 0
    for term in edge.terms:
        for k in axis_numbers(term):
            for a in axis_numbers(place[k]) if 0 <= k < len(place) else ():
                found |= 1 << a if a >= 0 else 0
    return found


def term_at(place: Place, term: Term) -> Term:
    """What an operand's term is where the result's place has another expression for its axis, which
    the operand may read from a number on; of any other expression, itself."""
    found = _from(term) if isinstance(term, Expr) else term
    axis = term if found is None else found
    return place[axis] if isinstance(axis, int) and 0 <= axis < len(place) else term
