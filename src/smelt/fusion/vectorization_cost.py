"""Short rows: the axis that vectors run along where each lane takes a row of its own, the same
answer as `smelt.lower.assign_axes` gives, from a region instead of statements; few rows or columns
of results that are written out (`smelt.codegen.llvm.loops.unroll_columns`); and how
many parts an axis is split into.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from smelt.blocks import LEAST_LANES, SHORT_BLOCK, SHORT_ROW, WRITTEN_OUT, fold_parts, parts_of
from smelt.fusion.bitsets import bits
from smelt.fusion.region import Region
from smelt.fusion.trace import Term
from smelt.ops.contract import bare_axis
from smelt.types.expr import evaluate

if TYPE_CHECKING:
    from smelt.fusion.schedule_model import Sweeps


def lanes_axis(sweeps: Sweeps) -> int:
    """The grid axis along which vectors take a short row each, as a mask; 0 if rows are long, or
    few.  `schedule_model.vector` is the axis that vectors would run along otherwise."""
    region, sizes = sweeps.region, sweeps.sizes
    if not region.ended or region.scanned or not sweeps.vector & (region.folded | region.grid):
        return 0
    if sizes[sweeps.vector.bit_length() - 1] > SHORT_ROW:
        return 0
    place = region.places[region.stored.bit_length() - 1][0]
    free = [t for t in place if isinstance(t, int) and t >= 0 and region.grid >> t & 1]
    many = [t for t in free if sizes[t] >= LEAST_LANES]
    if not many or sweeps.vector >> many[-1] & 1:
        return 0
    folded = sweeps.vector & region.folded & ~region.grid
    far = folded and sweeps.volume(_inside_of(region, many[-1])) > SHORT_BLOCK
    return 0 if far else 1 << many[-1]


def parts_for(sweeps: Sweeps, axis: int) -> int:
    """Into how many parts an axis would be split."""
    region, size = sweeps.region, sweeps.sizes[axis]
    places = [p for found in region.loads.values() for p in found if p]
    runs = sum(1 << a for a in {fastest(p[-1]) for p in places} if a >= 0)
    rows = not runs >> axis & 1 and all(over == 1 << axis for over in region.ended.values())
    if rows or runs & region.grid:
        return int(evaluate(parts_of(size), {}))
    width = sweeps.volume(sweeps.local & ~(1 << axis))
    return int(evaluate(fold_parts(size, width), {}))


def written_out(sweeps: Sweeps) -> int:
    """The axes of all results, as a mask, that a map writes out beside the one that vectors run
    along: at most one."""
    region = sweeps.region
    if region.ended or region.scanned or region.grid != region.all_axes:
        return 0
    for a in bits(region.grid & ~sweeps.vector):
        n = sweeps.units.extents[region.axes[a]]
        if isinstance(n, int) and 1 < n <= WRITTEN_OUT:
            return 1 << a
    return 0


@lru_cache(maxsize=4096)
def fastest(term: Term) -> int:
    """The axis along which neighbours in a last dimension lie, -1 if there is none or several:
    also where the dimension is what is left of a longer axis."""
    if isinstance(term, int):
        return term
    while len(term.terms) == 1 and term.terms[0][1] == 1 and len(term.terms[0][0]) == 1:
        (atom,) = term.terms[0][0]
        if atom.kind != "%" or isinstance(atom.args[0], int):
            break
        term = atom.args[0]
    name = bare_axis(term)
    return -1 if name is None else int(name[1:])


def _inside_of(region: Region, axis: int) -> int:
    """The axes that arrays are walked along further in than along another one."""
    found = 0
    for place in (p for places in region.loads.values() for p in places):
        if axis in place:
            inner = place[place.index(axis) + 1 :]
            found |= sum(1 << t for t in {*inner} if isinstance(t, int) and t >= 0)
    return found


def vote(score: list[float], place: tuple[Term, ...], mask: int, weight: float) -> None:
    """Counts an access for the axis it walks in unit steps, against the others it walks."""
    last = fastest(place[-1]) if place else -1
    weight *= 64.0 ** mask.bit_count()
    for a in bits(mask):
        score[a] += 2 * weight if last == a else -weight


__all__ = ["lanes_axis", "vote", "written_out"]
