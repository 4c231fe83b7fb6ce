"""The memory layout of contraction operands, and which operand is packed in rows or panels.

The layout decides whether an operand is packed and how:

    plain_load(x)                      the load that a value is, or that it converts
    is_prepacked(right, x, ..)         whether it is prepacked in panels as wide as a tile
    is_transposed_load(x, v, other, n) whether it is contiguous along another axis than `v`
    shares_cache_lines(steps, ..)      whether neighbours share cache lines that stay in L1
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from smelt.codegen.llvm.access.vector_axis import is_transposable
from smelt.codegen.llvm.instructions.dot_product import DotInstruction
from smelt.codegen.llvm.instructions.indexing import lane_invariant
from smelt.codegen.llvm.loopir.items import Access, Cast, Item, Load, Phase
from smelt.python.dataclass import dataclass
from smelt.types.dtype import DType
from smelt.types.expr import Expr, Index, axes_of, axis, coefficient, mul, substitute

CACHE_SETS = 64
"""Sets of an L1 cache; lines at the same offset within a page share one."""
CACHE_WAYS = 8
"""Minimum ways of an L1 cache."""


@dataclass(frozen=True, slots=True)
class StridedOperand:
    """Strides of a left operand: its elements are at `start` plus a stride per position.

    A table has the distances between reduced positions, which do not depend on the row.
    """

    buffer: str
    start: Index
    row: Index
    steps: tuple[Index, ...]
    """Strides along `depth`, if there is one, and the other reduced axes."""


def plain_load(item: Item) -> Access | None:
    """Return the load that a value is, or that it converts: a plain one without bounds checks."""
    while isinstance(item, Cast):
        (item,) = item.args
    if not isinstance(item, Load) or item.access.limits or item.args:
        return None
    return item.access


def conversions(item: Item) -> tuple[DType, ...]:
    """Return the types to which a loaded element is converted until it is `item`."""
    return (*conversions(item.args[0]), item.dtype) if isinstance(item, Cast) else ()


def shares_cache_lines(steps: Sequence[Index | None], counts: Sequence[Index], line: int) -> bool:
    """Return whether neighbours along an axis share cache lines while these stay in L1.

    `steps` and `counts` have the stride and extent of each axis, walked outer to inner but for the
    first; `line` is in elements.  Strides of powers of two map what is walked meanwhile to few
    cache sets.
    """
    near_axes = [k for k, n in enumerate(steps) if isinstance(n, int) and 0 < abs(n) < line]
    if not near_axes or near_axes[0] == 0:
        return bool(near_axes)
    offsets = [0]
    for k in (0, *range(near_axes[0] + 1, len(steps))):
        step, count = steps[k], counts[k]
        if not isinstance(step, int) or not isinstance(count, int):
            return True
        offsets = [at + step * i for at in offsets for i in range(count)]
    sets = Counter(n % CACHE_SETS for n in {at // line for at in offsets})
    return max(sets.values()) <= CACHE_WAYS


def packs_stored_bits(right: Item, item: Item, group: DotInstruction | None, stored: DType) -> bool:
    """Return whether packing an operand copies the bits of its array."""
    if group is not None:
        return stored.itemsize == group.dtype.itemsize
    return isinstance(right, Load) and right.dtype == item.dtype == stored


def is_prepacked(
    right: Item,
    item: Item,
    group: DotInstruction | None,
    axes: tuple[str, str],
    width: int,
    phase: Phase,
) -> bool:
    """Return whether an operand is a plain load from panels.

    At [n//w, k, n%w] of an array, w a multiple of `width`, or with groups at [n//w, k//g, n%w,
    k%g]: from each multiple of `width` on, so many elements or groups along n are contiguous.
    """
    access, (k, n) = plain_load(right), axes
    if access is None or not packs_stored_bits(right, item, group, phase.dtypes[access.buffer]):
        return False
    cut = {*phase.cut, *(v.axis for r in phase.regions() for v in r.cuts)}
    count = 1 if group is None else group.count
    if n in cut or (count > 1 and k in cut) or panel_step(access, k, count) is None:
        return False
    if coefficient(access.offset, n) is not None:
        return False
    return coefficient(lane_invariant(access.offset, n, width), n) == count


def is_grouped_by_row(
    left: Item, item: Item, group: DotInstruction, axes: tuple[str, str], phase: Phase
) -> bool:
    """Return whether each row of a left operand holds its groups contiguously."""
    access, (m, k) = plain_load(left), axes
    if access is None or group.left_offset:
        return False
    if not packs_stored_bits(left, item, group, phase.dtypes[access.buffer]):
        return False
    row_stride = coefficient(access.offset, m)
    return row_stride is not None and not axes_of(row_stride) and coefficient(access.offset, k) == 1


def panel_step(access: Access, k: str, count: int) -> Index | None:
    """Return the elements between positions of k in a panel, or between groups of `count`.

    None if that is not a number, or a group's members are not contiguous.
    """
    step = coefficient(access.offset, k)
    if count > 1:
        together = coefficient(lane_invariant(access.offset, k, count), k) == 1
        groups = substitute(access.offset, {k: mul(count, axis(k, 1 << 40))})
        step = coefficient(groups, k) if together and step is None else None
    return None if step is None or axes_of(step) else step


def is_transposed_load(item: Item, vector: str, other: str, run_elements: int = 0) -> bool:
    """Return whether a load is contiguous along `other` and strided along `vector`.

    With `run_elements`, also if it is contiguous in runs of at least so many elements, which begin
    at its multiples.
    """
    if not isinstance(item, Load) or item.args:
        return False
    access = item.access
    if not is_transposable(access, (vector, other)):
        return False
    steps = [coefficient(access.offset, a) for a in (vector, other)]
    if steps[1] is None and run_elements:
        steps[1] = coefficient(lane_invariant(access.offset, other, run_elements), other)
    strided = steps[0] not in (None, 0, 1) or (run_elements and _is_strided(access.offset, vector))
    return vector in item.axes and bool(strided) and steps[1] == 1


def _is_strided(offset: Index, axis: str) -> bool:
    """Return whether all coefficients of an axis in an offset exceed 1.

    They are absolute values.  False if the offset does not depend on the axis.
    """
    terms = offset.terms if isinstance(offset, Expr) else ()
    coefficients = [c for monomial, c in terms if axis in axes_of(Expr(((monomial, 1),)))]
    return bool(coefficients) and all(abs(c) > 1 for c in coefficients)


def packing_scatters(
    left: Item, right: Item, rows: str | None, lane_axes: Mapping[Item, str]
) -> bool:
    """Return whether packing the left operand in rows would scatter every vector of it.

    And the right one, a plain load, packs as easily on either side.  Such a left operand depends on
    an earlier contraction whose vectors run along `rows`; `lane_axes` maps each contraction to its
    vector axis.  Swapping the operands transposes the result instead, which is the smaller one
    where a stream keeps it.
    """
    plain = isinstance(right, Load) and not isinstance(left, Load)
    return plain and is_computed_along(left, rows, lane_axes)


def is_computed_along(item: Item, axis: str | None, lane_axes: Mapping[Item, str]) -> bool:
    """Return whether a value is computed in vectors along an axis.

    It is if the contraction it depends on has this vector axis in `lane_axes`.
    """
    pending, seen = [item], {item}
    while pending:
        item = pending.pop()
        if item in lane_axes:
            return lane_axes[item] == axis
        new_args = [a for a in item.args if a not in seen]
        pending += new_args
        seen.update(new_args)
    return False
