"""How the operands of products lie in memory: along which axes, in panels, in units.

Whether it is packed, and how, follows from that.

    Dealt(..)                     steps from one element to the next along each axis
    load_of(x)                    the array that a value is, or that it converts
    lies_open(x, ..)              whether it walks two axes at fixed steps
    lies_in_panels(x, ..)         whether it lies in panels as wide as a tile already
    runs_along(x, axes)           the axis along which most of what it reads lies
    runs_across(x, v, other)      whether it is contiguous along another axis than `v`
    shares_lines(steps, ..)       whether neighbours share lines of a cache while they are read
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from smelt.codegen.llvm.access.vector_axis import is_turnable
from smelt.codegen.llvm.instructions.dot_product import Group
from smelt.codegen.llvm.instructions.indexing import steady
from smelt.codegen.llvm.loopir.items import Access, Item, Phase
from smelt.codegen.llvm.loopir.periodic_index import pattern
from smelt.dataclass import dataclass
from smelt.types.affine import coefficient
from smelt.types.dtype import DType
from smelt.types.expr import Expr, Index, axes_of, axis, mul, substitute

SETS = 64
"""Sets of a first cache: its lines at the same place of a page share one."""
WAYS = 8
"""Lines of one set, at least."""


def runs_along(x: Item, axes: tuple[str, ...]) -> str:
    """The one of these axes along which most of what a value reads lies in unit steps."""
    votes = dict.fromkeys(axes, 0)
    pending, seen = [x], {x}
    while pending:
        item = pending.pop()
        fresh = [a for a in item.args if a not in seen]
        pending += fresh
        seen.update(fresh)
        if isinstance(item.payload, Access):
            for a in axes:
                if _goes_along(item.payload.offset, a):
                    votes[a] += 64 ** len(item.axes)
    return max(axes, key=lambda a: votes[a])


def _goes_along(offset: Index, axis: str) -> bool:
    """Whether neighbours along an axis are neighbours in memory, or the same element several times
    (two numbers of a byte)."""
    step = coefficient(offset, axis)
    if step is not None:
        return step == 1
    found = pattern(offset, axis)
    return found is not None and 0 < found.step <= found.period


def lies_open(item: Item, dtype: DType, axes: tuple[str, str], unit: tuple[str, ...]) -> bool:
    """Whether an operand is a plain load that walks `axes` at fixed steps, one of `unit` by one."""
    access = item.payload
    if not isinstance(access, Access) or access.limits or item.args or item.dtype != dtype:
        return False
    steps = {a: coefficient(access.offset, a) for a in axes}
    fixed = all(s is not None and not axes_of(s) for s in steps.values())
    return fixed and any(steps[a] == 1 for a in unit)


@dataclass(frozen=True, slots=True)
class Dealt:
    """Elements of a left operand that lie at `start` plus a step for each position along each axis:
    a table says how far apart summed positions are, whatever the row."""

    buffer: str
    start: Index
    row: Index
    steps: tuple[Index, ...]
    """Along `depth`, if there is one, and the other summed axes."""


def load_of(item: Item) -> Access | None:
    """The load that a value is, or that it converts: a plain one, of elements that are there."""
    while item.kind == "cast":
        (item,) = item.args
    access = item.payload
    return access if isinstance(access, Access) and not (access.limits or item.args) else None


def shares_lines(steps: Sequence[Index | None], counts: Sequence[Index], line: int) -> bool:
    """Whether neighbours along one of some axes, walked outer to inner but for the first, share
    lines of so many elements that stay in the first cache: each axis has a step and a count.

    Steps of powers of two put the lines of what is walked meanwhile into few of its sets."""
    near = [k for k, n in enumerate(steps) if isinstance(n, int) and 0 < abs(n) < line]
    if not near or near[0] == 0:
        return bool(near)
    found = [0]
    for k in (0, *range(near[0] + 1, len(steps))):
        step, count = steps[k], counts[k]
        if not isinstance(step, int) or not isinstance(count, int):
            return True
        found = [at + step * i for at in found for i in range(count)]
    sets = Counter(n % SETS for n in {at // line for at in found})
    return max(sets.values()) <= WAYS


def packs_as_it_is(right: Item, item: Item, group: Group | None, stored: DType) -> bool:
    """Whether what a product packs of an operand are the bits that its array holds."""
    if group is not None:
        return stored.itemsize == group.dtype.itemsize
    return right.kind == "load" and right.dtype == item.dtype == stored


def lies_in_panels(
    right: Item, item: Item, group: Group | None, axes: tuple[str, str], width: int, phase: Phase
) -> bool:
    """Whether an operand is a plain load at [n//w, k, n%w] of an array, w a multiple of `width`,
    or of groups at [n//w, k//g, n%w, k%g]: from each multiple of `width` on, so many elements or
    groups along n follow one another."""
    access, (k, n) = load_of(right), axes
    if access is None or not packs_as_it_is(right, item, group, phase.dtypes[access.buffer]):
        return False
    cut = {*phase.cut, *(v.axis for r in phase.regions() for v in r.cuts)}
    count = 1 if group is None else group.count
    if n in cut or (count > 1 and k in cut) or panel_step(access, k, count) is None:
        return False
    if coefficient(access.offset, n) is not None:
        return False
    return coefficient(steady(access.offset, n, width), n) == count


def lies_in_units(
    left: Item, item: Item, group: Group, axes: tuple[str, str], phase: Phase
) -> bool:
    """Whether each row of an array holds the units of a left operand side by side."""
    access, (m, k) = load_of(left), axes
    if access is None or group.moved:
        return False
    if not packs_as_it_is(left, item, group, phase.dtypes[access.buffer]):
        return False
    apart = coefficient(access.offset, m)
    return apart is not None and not axes_of(apart) and coefficient(access.offset, k) == 1


def panel_step(access: Access, k: str, count: int) -> Index | None:
    """Elements from one position of k to the next in a panel, or from a group of `count` to the
    next where its members lie side by side; None if it is no such thing."""
    step = coefficient(access.offset, k)
    if count > 1:
        together = coefficient(steady(access.offset, k, count), k) == 1
        groups = substitute(access.offset, {k: mul(count, axis(k, 1 << 40))})
        step = coefficient(groups, k) if together and step is None else None
    return None if step is None or axes_of(step) else step


def runs_across(item: Item, vector: str, other: str, whole: int = 0) -> bool:
    """Whether a load is contiguous along `other` while it jumps along `vector`; with `whole`, that
    may be so in runs of so many elements at least, which begin at its multiples."""
    access = item.payload
    if not isinstance(access, Access) or item.args or not is_turnable(access, (vector, other)):
        return False
    steps = [coefficient(access.offset, a) for a in (vector, other)]
    if steps[1] is None and whole:
        steps[1] = coefficient(steady(access.offset, other, whole), other)
    far = steps[0] not in (None, 0, 1) or (whole and _jumps(access.offset, vector))
    return vector in item.axes and bool(far) and steps[1] == 1


def _jumps(offset: Index, axis: str) -> bool:
    """Whether all parts of an offset that depend on an axis are taken several times."""
    terms = offset.terms if isinstance(offset, Expr) else ()
    own = [c for monomial, c in terms if axis in axes_of(Expr(((monomial, 1),)))]
    return bool(own) and all(abs(c) > 1 for c in own)
