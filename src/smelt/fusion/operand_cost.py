"""Predict what operands cost beyond their bytes: packing, and gathers element by element.

The code generator multiplies packed blocks, and every task packs its own. A contraction alone in a
kernel is cut into few tasks along either axis. Of several in one kernel, each task takes a narrow
block and packs full operands for it. Multiply-adds do not hide that, because a task packs first.
What blocks of the usual heights pack is part of the price of a multiply-add.

The sums of a single contraction are stored from registers. In a chain of contractions they are
stored in arrays of the task for the next nest, with columns padded to full tiles.

A row of a table at a data-dependent index is read contiguously along its own axis. Behind views
that split or merge rows otherwise, neighbouring positions may belong to different rows: then lanes
fetch them one by one, wherever the value is read again, packed or not.

    table[id[n], k]                  along k a row
    table[id[n, j // 16], j % 16]    along j parts of many rows, along n one row per element
    x[id[n]]                         no rows: every reader gathers it

If such a value is stored once where rows are read contiguously, its readers read it contiguously.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from math import prod

from smelt.fusion.bitsets import bits
from smelt.fusion.cascade.term import Term
from smelt.fusion.contraction_cost import contractions
from smelt.fusion.region import Region
from smelt.fusion.trace import STEP_COST, is_window_term
from smelt.fusion.units import AT_ZERO, Unit, Units
from smelt.kernel.artifact import BLOCK_SUMS, PACK, SCRATCH, UNITS
from smelt.machine.target import Target
from smelt.python.dataclass import dataclass
from smelt.types.expr import Expr, Index, atoms, axes_of, coefficient

# ---- gathers ------------------------------------------------------------------------------------

GATHERED_NS = 0.8
"""Nanoseconds per gathered element: its position, and the access of one lane."""


def is_gathered(position: Sequence[Index], picks: Mapping[str, int], axes: int) -> bool:
    """Return whether a read of data-dependent rows follows them along no axis.

    The read depends on `axes`; `data_positions` holds the axes of each data-dependent position.

    >>> from smelt.types.expr import axis, value
    >>> j, p = axis("a1", 416), value("p", 1000)
    >>> is_gathered((p, j % 16), {"p": 0b11}, 0b11), is_gathered((p, 1), {"p": 0b01}, 0b11)
    (True, False)
    >>> is_gathered((p,), {"p": 0b01}, 0b01), is_gathered((2, j % 16), {}, 0b110)
    (False, False)
    """
    last_term = position[-1] if position else AT_ZERO
    if not _varies(last_term) or _data_positions(last_term):
        return False
    data_axes = sum({1 << a for t in position for p in _data_positions(t) for a in bits(picks[p])})
    return data_axes > 0 and not any(_follows(last_term, a) for a in bits(axes & ~data_axes))


def _varies(last: Index) -> bool:
    """Return whether a dimension is read at more than one position."""
    return len(axes_of(last)) > 0 if isinstance(last, Expr) else last != AT_ZERO


def _data_positions(term: Index) -> list[str]:
    return [a.name for a in atoms(term) if a.kind == "value"] if isinstance(term, Expr) else []


def gathered_reads(region: Region) -> Iterator[frozenset[str]]:
    """Iterate over the axes, by name, of each gathered read of a region."""
    if not region.data_positions:
        return
    for v, positions in region.loads.items():
        for position, mask in zip(positions, region.load_masks[v], strict=True):
            if is_gathered(position, region.data_positions, mask):
                yield frozenset(f"a{a}" for a in bits(mask))


def _follows(last: Index, a: int) -> bool:
    """Return whether the last dimension follows an axis with step 1 or -1."""
    if isinstance(last, Expr):
        step: Index | None = coefficient(last, f"a{a}")
        return step in (1, -1)
    return last == a


# ---- packing ------------------------------------------------------------------------------------

NEAR_PACK = 32
"""As `smelt.kernel.artifact.PACK`, for an operand in L1: sixteenths of a cycle for each line."""
TILE_VECTORS, TILE = 2, 1 << 10
"""Vectors of columns per tile in a chain, and a column count that is full tiles on any machine.

Outside of chains the last tile may be a single vector wide.
"""
SHARING_ROWS = 128
"""Rows that share a packed block: a task packs it once for so many rows."""
SHARED_BYTES = 384
"""Minimum bytes of a column of the other operand that amortise packing.

Below, packing counts as part of the multiply-adds: blocks of the usual heights.
"""


@dataclass(frozen=True, slots=True)
class Operand:
    """Factor of a contraction.

    `own_positions`: positions in a task that the other factor lacks. `packed_elements`: elements
    that all tasks pack together. `is_contiguous`: whether it is an array contiguous along the
    summed axis. `is_computed`: whether it is computed from earlier reductions, and so stored where
    it is packed.
    """

    own_positions: int
    packed_elements: float
    is_contiguous: bool
    is_computed: bool = False


def packing_ns(
    target: Target,
    operands: tuple[Operand, Operand],
    depth: int,
    steps: float,
    itemsize: int,
    *,
    alone: bool = True,
) -> float:
    """Return the nanoseconds on one core of packing the operands of a contraction.

    The contraction has `steps` multiply-adds, each sum has `depth`. Only what exceeds packing for
    blocks of the usual heights, and packing each operand once, counts.

    Rows that are contiguous along the summed axis are multiplied in place. With few rows or columns
    the other operand stays unpacked, and so do both of a small contraction. What few rows multiply
    is packed on the way if the contraction is `alone` in its kernel; otherwise all of it counts.

    >>> machine = Target.for_isa("avx512")
    >>> usual, narrow = (
    ...     Operand(1024, 1e6, is_contiguous=False),
    ...     Operand(1024, 5e6, is_contiguous=False),
    ... )
    >>> packing_ns(machine, (usual, usual), 1024, 1e8, 4)
    0.0
    >>> packing_ns(machine, (usual, narrow), 1024, 1e8, 4) > 1e5
    True
    >>> few = Operand(64, 65536.0, is_contiguous=True)
    >>> packing_ns(machine, (few, usual), 1024, 64e6, 4)
    0.0
    >>> packing_ns(machine, (few, usual), 1024, 64e6, 4, alone=False) > 1e4
    True
    """
    if not target.tiling.packs_product([x.own_positions for x in operands], depth):
        return 0.0
    few_positions, _ = target.tiling.unpacked_product
    operand_ns = [
        0.0
        if x.is_computed
        else max(
            x.packed_elements
            - (
                steps / min(SHARED_BYTES / itemsize, other.own_positions)
                if alone or other.own_positions > few_positions
                else 0.0
            ),
            0.0,
        )
        * _element_ns(target, x.own_positions * depth * itemsize, itemsize)
        for x, other in (operands, operands[::-1])
    ]
    return sum(operand_ns) - max(
        (n for n, x in zip(operand_ns, operands, strict=True) if x.is_contiguous), default=0.0
    )


def prepacked_ns(target: Target, nbytes: int, rows: int) -> float:
    """Return the nanoseconds that a call saves if an operand is packed before all calls.

    The operand has `nbytes` and is multiplied with `rows`.
    """
    return -(-rows // SHARING_ROWS) * target.transfer_ns(nbytes, nbytes, "l3", 1)


def _element_ns(target: Target, nbytes: int, itemsize: int) -> float:
    """Return the nanoseconds of packing one element of an operand of so many bytes."""
    level = target.level(nbytes)
    rate = NEAR_PACK if level == "l1" else PACK
    return target.compute_ns(rate / UNITS, 1.0, itemsize) + itemsize / target.bandwidth(
        level, "read", 1
    )


def region_packing_ns(
    target: Target,
    units: Units,
    region: Region,
    sizes: list[int],
    fixed: int,
    evaluations: Callable[[int], float],
    depthwise: int = 0,
) -> float:
    """Return the packing nanoseconds of all contractions of a region.

    `evaluations` returns how often all tasks together compute something along axes; a task has one
    position of `fixed` axes. What `depthwise` contractions produce is stored where it is packed.
    """
    total_ns = 0.0
    after_reductions = {u for u, level in region.levels.items() if level > 0}
    products = contractions(units, region)
    is_chain = not depthwise and _is_chain(units, region, products)
    for u, sides in products.items():
        unit, reduced = units.unit(u), region.reduced_axes[u]
        shared, all_axes = sides[0] & sides[1], sides[0] | sides[1]
        if u in region.windows or any(is_window_term(t) for e in unit.edges for t in e.terms):
            continue  # pixels are packed only once
        left, right = (
            Operand(
                prod(sizes[a] for a in bits(side & ~shared & ~fixed)),
                evaluations(side | reduced),
                _is_contiguous_along(region, unit, k),
                any(e.producer in after_reductions for e in unit.factors[k]),
            )
            for k, side in enumerate(sides)
        )
        depth = prod(sizes[a] for a in bits(reduced))
        itemsize = unit.node.type.dtype.compute.itemsize
        steps = evaluations(all_axes | reduced)
        total_ns += packing_ns(
            target, (left, right), depth, steps, itemsize, alone=len(region.reduced_axes) == 1
        )
        if is_chain:
            columns = _columns(units, region, unit, sizes, target.tiling.thin)
            total_ns += staged_ns(target, steps / max(depth, 1), columns, depth, itemsize)
    return total_ns


def _is_chain(units: Units, region: Region, products: Collection[int]) -> bool:
    """Return whether a contraction of a region (`products`) depends on another one."""
    derived = 0
    for u in sorted(region.masks) if len(products) > 1 else ():
        depends = bool(units.operands[u] & derived)
        if depends and u in products:
            return True
        derived |= int(depends or u in products) << u
    return False


def _columns(units: Units, region: Region, unit: Unit, sizes: list[int], thin: int) -> int:
    """Return the positions of a contraction's last axis, to which its tiles are padded.

    Full tiles where the axis is short for all sizes: no tiles are used then.
    """
    position = region.positions[unit.number][0]
    last_term = position[-1] if position else AT_ZERO
    if not isinstance(last_term, int) or last_term < 0:
        return TILE
    extent = units.extents[region.axes[last_term]]
    return TILE if isinstance(extent, int) and extent <= thin else max(sizes[last_term], 1)


def staged_ns(target: Target, sums: float, columns: int, depth: int, itemsize: int) -> float:
    """Return the nanoseconds on one core of sums in a chain beyond their multiply-adds.

    For passing through an array, and for columns that fill no tile.

    >>> machine = Target.for_isa("avx512")
    >>> wide, narrow = (staged_ns(machine, 1e6, n, 64, 4) for n in (64, 8))
    >>> narrow > 2 * wide > 0
    True
    """
    staging_ns = target.compute_ns((SCRATCH + BLOCK_SUMS) / UNITS, sums, itemsize)
    lanes = max(target.vector_bytes // itemsize, 1)
    to_vectors, to_tiles = (-(-columns // n) * n for n in (lanes, TILE_VECTORS * lanes))
    padding_ns = target.compute_ns(
        STEP_COST, sums * depth * (to_tiles - to_vectors) / columns, itemsize
    )
    return staging_ns + padding_ns


def term_packing_ns(
    target: Target,
    t: Term,
    sizes: Mapping[str, int],
    fixed: frozenset[str],
    loads: Mapping[Term, tuple[int, tuple[Index, ...]]],
    evaluations: Callable[[frozenset[str]], float],
    constants: Collection[int] = (),
) -> float:
    """Return the packing nanoseconds of a stream's contraction, 0 for other terms.

    A stream packs its `constants` in each call; other kernels would do it once, before all calls.
    """
    if not (over := summed_axes(t)):
        return 0.0
    left, right = t.args
    ends, shared = {*over}, left.axes & right.axes
    left_operand, right_operand = (
        Operand(
            prod(sizes[n] for n in x.axes - shared - fixed),
            evaluations(x.axes),
            x in loads and not ends.isdisjoint(axes_of((loads[x][1] or (0,))[-1])),
        )
        for x in t.args
    )
    steps = evaluations(left.axes | right.axes)
    depth = prod(sizes[n] for n in ends)
    itemsize = t.dtype.compute.itemsize
    total_ns = packing_ns(target, (left_operand, right_operand), depth, steps, itemsize)
    sides = [prod(sizes[n] for n in x.axes - shared) for x in t.args]
    if target.tiling.packs_product(sides, depth):
        for x, rows in zip(t.args, reversed(sides), strict=True):
            if x in loads and loads[x][0] in constants:
                nbytes = prod(sizes[n] for n in x.axes) * itemsize
                total_ns += prepacked_ns(target, nbytes, rows)
    return total_ns


def _is_contiguous_along(region: Region, unit: Unit, k: int) -> bool:
    """Return whether a factor is an array that is contiguous along a summed axis."""
    if len(unit.factors[k]) != 1:
        return False
    (edge,) = unit.factors[k]
    last_term = edge.terms[-1] if edge.terms else AT_ZERO
    is_loaded = not region.members >> edge.producer & 1
    return is_loaded and isinstance(last_term, int) and last_term >= unit.rank


def summed_axes(t: Term) -> tuple[str, ...]:
    """Return the axes that a contraction sums over; empty for other terms."""
    if t.kind == "dot":
        return t.over
    is_product = t.kind == "opaque" and isinstance(t.value, tuple) and t.value[:2] == ("reduce", "")
    return t.value[2] if is_product else ()
