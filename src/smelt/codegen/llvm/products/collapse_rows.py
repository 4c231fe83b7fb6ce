"""Lines that follow one another are one run.

Results whose lines are turned lie in scratch line behind line, without gaps, and so do
most arrays that are read or written beside them.  A loop over lines of 7 would fill half a vector
for each; where everything goes on from one line to the next as it does inside of a line, the axis
of lines stays at its first position, and the one along them goes through all of them:

    for y: for x in 0..w:  f(y*w + x)      is      for x in 0..h*w:  f(x)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from smelt.codegen.llvm.instructions.indexing import number
from smelt.codegen.llvm.loopir.items import Item, accesses_of
from smelt.codegen.llvm.loops.full_unroll import is_straight
from smelt.codegen.llvm.schedule.conv_nhwc import NhwcConvPlan
from smelt.codegen.llvm.schedule.depthwise import DepthwisePlan
from smelt.types.affine import coefficient
from smelt.types.expr import Index, mul, product

if TYPE_CHECKING:
    from smelt.codegen.llvm.nest import NestEmitter
    from smelt.codegen.llvm.schedule.build_nests import Nest

KINDS = ("const", "load", "apply", "cast")
"""What a run may be made of: nothing asks where a line ends."""


def run_on(home: NestEmitter, nest: Nest, run: Callable[[], None]) -> None:
    """Emits a nest by `run`, over ranges in which lines that follow one another are one."""
    b, kept = home.b, dict(home.ranges)
    for outer in _joined(home, nest):
        (first, last), (low, high) = kept[outer], home.ranges[nest.vector or ""]
        length = b.mul(b.sub(high, low), b.sub(last, first))
        home.ranges[nest.vector or ""] = low, b.add(low, length)
        home.ranges[outer] = first, b.add(first, number(1))
    run()
    home.ranges = kept


def _joined(home: NestEmitter, nest: Nest) -> Iterator[str]:
    """The axes that go on where the one that vectors run along ends, inner to outer."""
    plans = home.s.products.values()
    ours = [
        c
        for c in plans
        if (isinstance(c, DepthwisePlan) and c.lines is not None)
        or (isinstance(c, NhwcConvPlan) and c.across)
    ]
    if not ours or nest.product is not None or nest.packed or not _is_plain(home, nest):
        return
    line, axes = nest.vector or "", ours[0].axes
    inner = [line]
    for outer in reversed(axes[1:-1] if axes[-1] == line else ()):
        whole = product(home.s.phase.axes[a] for a in inner)
        if any(_is_part(home, a) for a in inner) or outer not in nest.order:
            return
        if not all(_goes_on(e, line, outer, whole) for e in _offsets(home, nest)):
            return
        if any(not _is_dense(home, i, (outer, *inner)) for i in _reloaded(home, nest)):
            return
        yield outer
        inner.insert(0, outer)


def _is_plain(home: NestEmitter, nest: Nest) -> bool:
    others = nest.folds or nest.settings or nest.fixed or nest.turned or nest.stages or nest.within
    kinds = all(i.kind in KINDS for i in nest.items)
    tested = any(a.limits or a.positions for a in accesses_of(nest.items))
    masked = any(s.where is not None or s.access.positions for s in nest.stores)
    return (
        not (others or tested or masked or home.bands) and kinds and not is_straight(home.s, nest)
    )


def _is_part(home: NestEmitter, axis: str) -> bool:
    """Whether a task may have a part of an axis alone."""
    s = home.s
    return axis in s.phase.grid and s.block.get(axis, 1) != s.phase.axes[axis]


def _offsets(home: NestEmitter, nest: Nest) -> list[Index]:
    loads = [a.offset for a in accesses_of(nest.items)]
    return [*loads, *(s.access.offset for s in nest.stores)]


def _goes_on(e: Index, line: str, outer: str, whole: Index) -> bool:
    """Whether an index moves along an outer axis as it would by all of a line."""
    along, across = coefficient(e, line), coefficient(e, outer)
    return along is not None and across is not None and across == mul(along, whole)


def _reloaded(home: NestEmitter, nest: Nest) -> list[Item]:
    """The items in scratch that a nest reads or writes."""
    used = {a for i in nest.items for a in i.args} | {s.value for s in nest.stores}
    return [i for i in home.s.kept if i in used | {*nest.saves}]


def _is_dense(home: NestEmitter, item: Item, axes: tuple[str, ...]) -> bool:
    """Whether an array in scratch has these axes last and without gaps, or none of them."""
    own = home.s.kept[item]
    if not {*axes} & {*own}:
        return True
    outer, *inner = axes
    even = all(home.storage.extent(item, a) == home.s.phase.axes[a] for a in inner)
    return own[-len(axes) :] == (outer, *inner) and even


__all__ = ["run_on"]
