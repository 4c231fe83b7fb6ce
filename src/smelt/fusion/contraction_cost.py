"""Predict which contractions cannot be blocked, and the costs besides multiply-adds.

The code generator blocks a contraction by two axes, one of each operand alone, with a tile of both
in registers. Other axes of its result may belong to the grid, or be visited one position at a time:
they are fixed while a block is multiplied. A contraction with more axes inside a task is not
blocked: it runs as a plain reduction, which reads every factor in every step, most of them with a
stride.

    S[h,m,n] = sum of Q[h,m,d] * K[h,n,d] over d      m, n
      with h of the grid                               blocked
      with h inside a task, as heads that are mixed    not blocked

Contractions of one kernel may conflict as well. Where one is blocked by an axis of the grid, tasks
take blocks of that axis, and a contraction that has it in addition to its own two is not blocked.

    B[h,m,n] = sum of Z[m,n,c] * W[c,h] over c         n, and h of the grid
    S[h,m,n] as above, with h of the grid              not blocked with B: h is neither m nor n

The same holds with windows that overlap along axes of the grid: tasks take blocks of these axes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, TypeAlias

from smelt.fusion.bitsets import bits
from smelt.fusion.region import Position, Region, axes_mask
from smelt.fusion.trace import Term, is_window_term
from smelt.fusion.units import Edge, Unit, Units
from smelt.fusion.window_recompute import MAX_WINDOW_AXES, windows_of
from smelt.graph.bounds import dtype_range, fits, integer_range
from smelt.machine.target import Target
from smelt.machine.tiling import conflicting_product
from smelt.ops.contract import bare_axis
from smelt.types.dtype import DType, f32, f64, i8, i16, i32, u8
from smelt.types.expr import Expr, split_constant

Axes: TypeAlias = AbstractSet[Any]

UNBLOCKED_COST = 28.0
"""Cost of a step of an unblocked contraction, for each element instead of each vector."""

LONE_VECTOR_FACTOR = 1.6
"""Cost of a tile that is a single vector wide, in halves of a tile of two vectors."""

PATCHES_FACTOR = 2.0
"""Time of a convolution whose image is packed as patches, once for each tap, relative to one whose
pixels are packed once (`smelt.codegen.llvm.schedule.conv_plan`)."""

PACKED_NS = 300.0
"""Nanoseconds to start packing both operands of a contraction and its tiles, however few."""


def unblocked_contractions(
    products: Sequence[tuple[Axes, Axes]],
    grid: Axes,
    fixed: Axes,
    order: Sequence[Any],
    windows: Sequence[Axes] = (),
) -> set[int]:
    """Return which contractions of one kernel cannot be blocked.

    Each is given by the axes of its result that its two operands vary along. `order` is that of the
    kernel's axes; `fixed` ones have one position while a block is multiplied. `windows` holds for
    each contraction the axes of windows that read it, of which tasks take blocks in any case.

    >>> scores, bias = ({"h", "m"}, {"h", "n"}), ({"m", "n"}, {"h"})
    >>> (
    ...     unblocked_contractions([scores], {"h", "m"}, {"h", "m"}, "hmn"),
    ...     unblocked_contractions([scores], {"m"}, {"m"}, "hmn"),
    ... )
    (set(), {0})
    >>> unblocked_contractions([scores, bias], {"h", "m"}, {"h", "m"}, "hmn")
    {0}
    """
    blocked: dict[int, tuple[Axes, Axes]] = {}
    unblocked = set[int]()
    for k, (left, right) in enumerate(products):
        sides = (left - right, right - left)
        own_axes = {_blocking_axis(side - (fixed - grid), grid, order) for side in sides if side}
        if (left | right) - own_axes - fixed:
            unblocked.add(k)
        elif own_axes:
            blocked[k] = left | right, own_axes | (windows[k] if windows else set())
    cut = set[Any]().union(*windows)
    while (k := conflicting_product(blocked, grid, cut)) is not None:
        del blocked[k]
        unblocked.add(k)
    return unblocked


def short_axes(units: Units, region: Region, most: int) -> int:
    """Return the axes that have few positions (`most`) for all sizes.

    Contractions are blocked by others.
    """
    extents = [units.extents[e] for e in region.axes]
    return sum(1 << a for a, n in enumerate(extents) if isinstance(n, int) and n <= most)


def _blocking_axis(side: Axes, grid: Axes, order: Sequence[Any]) -> Any:
    """Return the axis of one operand alone by which a contraction is blocked.

    An inner one if possible, the last in `order`.
    """
    candidates = [a for a in order if a in side]
    inner = [a for a in candidates if a not in grid]
    return (inner or candidates or [None])[-1]


def unblocked_units(units: Units, region: Region, thin: int) -> set[int]:
    """Return the contractions of a region that cannot be blocked.

    Axes of at most `thin` positions are short.
    """
    result_axes: dict[int, tuple[set[int], set[int]]] = {}
    for u, sides in sorted(contractions(units, region).items()):
        # Windows that read a product share the axis of its positions: taps do not count.
        taps = {w.tap for w in region.windows.get(u, ())}
        left, right = ({*bits(side)} - taps for side in sides)
        result_axes[u] = left, right
    grid, short = {*bits(region.grid)}, short_axes(units, region, thin)
    order = sorted(range(len(region.axes)), key=lambda a: not short >> a & 1)
    windows = [{w.axis for w in region.windows.get(u, ())} for u in result_axes]
    unblocked = unblocked_contractions([*result_axes.values()], grid, grid, order, windows)
    return {u for k, u in enumerate(result_axes) if k in unblocked}


def contraction_start_ns(units: Units, region: Region, volume: Callable[[int], int]) -> float:
    """Return the nanoseconds of starting contractions whose operands are computed when packed.

    Once for every position of the axes that both operands have, however small the contraction is.
    """
    total_ns = 0.0
    for u, (left, right) in contractions(units, region).items():
        if units.operands[u] & region.members:
            total_ns += PACKED_NS * volume(left & right & region.grid)
    return total_ns


def contractions(units: Units, region: Region) -> dict[int, tuple[int, int]]:
    """Return the contractions of a region, with the axes of `operand_axes`."""
    candidates = {u: operand_axes(region, units.unit(u)) for u in region.reduced_axes}
    return {u: sides for u, sides in candidates.items() if sides}


def operand_axes(region: Region, unit: Unit) -> tuple[int, int] | None:
    """Return the axes of a contraction's result that each factor varies along.

    None for what is not a product of two values.
    """
    if len(unit.edges) < 2 or not unit.factors or not all(unit.factors):
        return None
    axes = [0, 0]
    for k, edges in enumerate(unit.factors):
        for edge in edges:
            axes[k] |= edge_axes(region, unit.number, edge)
    return axes[0], axes[1]


def is_row_by_row(
    units: Units, region: Region, u: int, edge: Edge, own_axes: int, sizes: Sequence[int], thin: int
) -> bool:
    """Return whether a contraction over two column axes is computed row by row.

    That is so if its operand is computed where it is packed and the last axis is that of the rows
    in memory. The code generator then treats it as a convolution. Not so where all rows are one
    contiguous run.
    """
    last_term, is_computed = region.positions[u][0][-1:], region.members >> edge.producer & 1
    axes = [a for a in bits(own_axes & region.grid) if sizes[a] > 1]
    is_by_rows = (
        bool(is_computed) and len(axes) > 1 and bool(last_term) and last_term[0] == axes[-1]
    )
    # read while they are computed
    is_short = all(sizes[a] <= thin for a in bits(region.masks[u][0] & ~own_axes))
    return is_by_rows and (is_short or not _is_one_run(units, region, *axes[-2:]))


def _is_one_run(units: Units, region: Region, a: int, b: int) -> bool:
    """Return whether everything along two axes is contiguous over both, apart from padding.

    The code generator then collapses them (`smelt.codegen.llvm.loopir.collapse_axes`, which this
    predicts).
    """
    both = 1 << a | 1 << b
    for v, positions in region.loads.items():
        for position, mask in zip(positions, region.load_masks[v], strict=True):
            if mask & both and not _has_rows_of(units, region, v, position, (a, b)):
                return False
    return all(
        _has_rows_of(units, region, u, position, (a, b))
        for u in bits(region.stored)
        for position in region.positions[u]
    )


def _has_rows_of(
    units: Units, region: Region, v: int, position: Position, axes: tuple[int, int]
) -> bool:
    """Return whether a value is read at two axes in its last two dimensions alone.

    Each may be shifted by a constant. Its rows must be as long as the second axis.
    """
    row_length, both = units.values[v].type.shape[-1:], sum(1 << a for a in axes)
    masks = [axes_mask(t) & both for t in position]
    if masks != [0] * (len(position) - 2) + [1 << a for a in axes] or len(position) < 2:
        return False
    last_axes = (t if isinstance(t, int) else _shifted_axis(t) for t in position[-2:])
    return tuple(last_axes) == axes and row_length == (units.extents[region.axes[axes[1]]],)


def _shifted_axis(term: Expr) -> int | None:
    """Return the axis in an expression of the form axis + constant, else None."""
    terms, _ = split_constant(term)
    name = bare_axis(Expr(terms)) if terms else None
    return None if name is None else int(name[1:])


def tile_overhead(line: int, lanes: int) -> float:
    """Return the computed columns per column of a row, with tiles of two vectors.

    In the last tile both vectors are computed, or one, for which each element of the other operand
    is loaded as for two.

    >>> tile_overhead(64, 16), tile_overhead(28, 16) < 1.2, tile_overhead(14, 16) > 1.5
    (1.0, True, True)
    >>> tile_overhead(0, 16)  # an empty image
    1.0
    """
    if line == 0:
        return 1.0
    remainder = line % (2 * lanes)
    last_columns = (
        2 * lanes if remainder > lanes else LONE_VECTOR_FACTOR * lanes if remainder else 0
    )
    return (line - remainder + last_columns) / line


def partial_tiles_ns(
    units: Units,
    region: Region,
    sizes: Sequence[int],
    vector: int,
    thin: int,
    work: Callable[[int, int], float],
) -> float:
    """Return the nanoseconds of partially filled tiles where contractions run row by row.

    No tile crosses the end of a row. `work(u, axes)` is the multiply-add time of unit u along axes,
    `vector` the vector size in bytes. Axes of at most `thin` positions are short.
    """
    total_ns = 0.0
    for u, over in region.reduced_axes.items():
        unit, mask = units.unit(u), region.masks[u][0]
        if len(unit.edges) != 2 or not unit.trace.dots:
            continue
        sides = [edge_axes(region, u, edge) for edge in unit.edges]
        own_axes = sides[0] & ~sides[1], sides[1] & ~sides[0]
        by_rows = (
            is_row_by_row(units, region, u, e, o, sizes, thin)
            for e, o in zip(unit.edges, own_axes, strict=True)
        )
        if any(by_rows):
            last_axis = region.positions[u][0][-1]
            assert isinstance(last_axis, int)
            size = units.values[u].type.dtype.compute.itemsize
            overhead = tile_overhead(sizes[last_axis], max(vector // size, 1))
            total_ns += work(u, mask | over) * (overhead - 1.0)
    return total_ns


def patches_ns(units: Units, region: Region, work: Callable[[int, int], float]) -> float:
    """Return the nanoseconds that convolutions lose beside products without rows or columns.

    Tasks take the blocks of both, and those of a vector's product have no room for windows. `work`
    is as in `partial_tiles_ns`.
    """
    sides = contractions(units, region)
    if all(left & ~right and right & ~left for left, right in sides.values()):
        return 0.0
    return (PATCHES_FACTOR - 1.0) * sum(
        work(u, region.masks[u][0] | region.reduced_axes[u])
        for u in sides
        if any(is_window_term(t) for e in units.unit(u).edges for t in e.terms)
    )


def edge_axes(region: Region, u: int, edge: Edge) -> int:
    """Return the axes of a contraction's result that one operand varies along."""
    position = region.positions[u][0]
    axes = 0
    for term in edge.terms:
        for k in bits(axes_mask(term)):
            axes |= axes_mask(position[k]) if k < len(position) else 0
    return axes


def term_at(position: Position, term: Term) -> Term:
    """Return an operand's term at the position of the contraction's result.

    A term that is an axis plus a constant becomes the result's term for that axis; other
    expressions stay.
    """
    shifted = _shifted_axis(term) if isinstance(term, Expr) else term
    target = term if shifted is None else shifted
    return position[target] if isinstance(target, int) and 0 <= target < len(position) else term


# ---- integers with dot-product instructions -----------------------------------------------------


def dot_factors(target: Target) -> tuple[DType, ...]:
    """Return the types of integers that dot-product instructions multiply."""
    if target.has_word_dot:
        return (i16,)
    return (i8, u8) if target.has_byte_dot else ()


def converting_units(units: Units, unit: Unit, factors: Sequence[DType]) -> int | None:
    """Return the units that make the factors of a contraction short.

    They have to be in its kernel, because the code generator sees that factors are short by how the
    kernel computes them (`smelt.codegen.llvm.instructions.dot_product`). None if the factors are
    never of one of the types `factors`.
    """
    if not unit.trace.dots or unit.node.type.dtype != i32 or len(unit.edges) < 2:
        return None
    needed = 0
    for edge in unit.edges:
        members = _short_at(units, edge.producer, factors)
        if members is None:
            return None
        needed |= members
    return needed


def _short_at(units: Units, v: int, factors: Sequence[DType]) -> int | None:
    """Return the units by which a value is short, None if it need not be."""
    node = units.values[v]
    if not node.type.dtype.is_integer:
        return None
    if any(fits(dtype_range(node.type.dtype), t) for t in factors):
        return 0
    bounds, nodes = integer_range(node)
    if not any(fits(bounds, t) for t in factors) or not nodes <= units.number.keys():
        return None
    return sum(1 << units.number[x] for x in nodes)


# ---- depthwise convolutions in the packer of a pointwise GEMM -----------------------------------


def fused_depthwise(units: Units, region: Region) -> tuple[int, int]:
    """Return the contraction that all others can be fused into, and these as a mask.

    -1 and 0 if there is none. The code generator computes rows of depthwise convolutions for the
    packer where images are stored channels last (`smelt.codegen.llvm.schedule.depthwise`).

        P[y,x,m] = sum of f(S[y,x,c]) * W[c,m] over c                 packs rows of f(S)
        S[y,x,c] = sum of X[y + u, x + v, c] * D[c,u,v] over u, v     computed row by row for it
    """
    no_fusion = -1, 0
    if len(region.reduced_axes) < 2 or region.windows or region.scanned:
        return no_fusion
    *inner, pointwise = sorted(region.reduced_axes)
    unit, over, depthwise = (
        units.unit(pointwise),
        region.reduced_axes[pointwise],
        sum(1 << u for u in inner),
    )
    derived, unmixed = _readers(units, region, depthwise, pointwise)
    operand_masks = operand_axes(region, unit)
    if operand_masks is None or unmixed & region.stored or over.bit_count() != 1:
        return no_fusion
    is_image = [any(derived >> e.producer & 1 for e in factor) for factor in unit.factors]
    if is_image.count(True) != 1:
        return no_fusion
    k = is_image.index(True)
    pixel_axes, columns = (
        operand_masks[k] & ~operand_masks[1 - k],
        operand_masks[1 - k] & ~operand_masks[k] & ~region.grid,
    )
    last_terms = [region.positions[u][0][-1:] for u in bits(region.stored)]
    types = [units.values[u].type.dtype for u in region.reduced_axes]
    is_wide = all(units.values[e.producer].type.dtype.itemsize >= f32.itemsize for e in unit.edges)
    if (
        is_wide
        and all(t in (f32, f64) for t in types)
        and all(last and axes_mask(last[0]) & columns for last in last_terms)
        and all(_is_stencil(units, region, u, over, pixel_axes) for u in inner)
    ):
        return pointwise, depthwise
    return no_fusion


def _readers(units: Units, region: Region, products: int, pointwise: int) -> tuple[int, int]:
    """Return the units that depend on some products.

    The second mask holds those that do so not through another product.
    """
    derived = unmixed = products
    for u in sorted(region.masks):
        derived |= bool(units.operands[u] & derived) << u
        unmixed |= bool(u != pointwise and units.operands[u] & unmixed) << u
    return derived, unmixed


def _is_stencil(units: Units, region: Region, u: int, channels: int, pixel_axes: int) -> bool:
    """Return whether a product is a depthwise convolution.

    Its windows slide over an array that is contiguous along `channels`, as are its weights, and it
    sums over these windows alone: along two other axes of an image, or all of `pixel_axes`.
    """
    unit, over = units.unit(u), region.reduced_axes[u]
    operand_masks = operand_axes(region, unit)
    if operand_masks is None or len(region.positions[u]) > 1:
        return False
    for k, factor in enumerate(unit.factors):
        is_loaded = len(factor) == 1 and not region.members >> factor[0].producer & 1
        if not is_loaded or operand_masks[1 - k] & ~region.grid != channels:
            continue
        for position in region.loads[factor[0].producer]:
            windows = windows_of(position, over, lambda a: units.extents[region.axes[a]]) or ()
            along = sum(1 << w.axis for w in windows)
            slides = sum(1 << w.tap for w in windows) == over
            is_image = along == pixel_axes or len(windows) == MAX_WINDOW_AXES
            if slides and is_image and axes_mask(position[-1]) == channels:
                return True
    return False
