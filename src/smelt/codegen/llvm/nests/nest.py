"""The schedule of a phase: loop nests in order, what stays in scratch, and task blocks.

`smelt.codegen.llvm.schedule.build_nests` builds it; `smelt.codegen.llvm.nest` emits it.  Nests may
take row groups of a stream's blocks, each with its own range of columns
(`smelt.codegen.llvm.schedule.mask_ranges`).
"""

from __future__ import annotations

from collections.abc import Mapping

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.loopir.items import (
    Item,
    Load,
    Phase,
    Reduction,
    Region,
    StateUpdate,
    StoreItem,
    Visit,
    enclosing_regions,
)
from smelt.codegen.llvm.loopir.store_ranges import Range
from smelt.codegen.llvm.nests.contraction import Contraction, Products
from smelt.codegen.llvm.nests.product_plan import ProductPlan
from smelt.kernel.bounds import Facts
from smelt.python.dataclass import dataclass
from smelt.types.expr import Index

Limit = tuple[Index, Index]
"""A bounds check: an index, and the extent that it must be below."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a partitioned axis, and the facts that hold in it.

    It begins where the previous piece ends.
    """

    last: Index | None
    """Position at which it ends; None: the end of the axis."""
    facts: Facts
    taken: dict[Item, bool]
    """Conditions with one answer."""
    limits: frozenset[Limit]
    """Bounds checks that hold."""


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """A loop of a distributed body: what it computes, reads from strips and leaves there.

    `saves` are those of the nest's saves that it computes; later stages reload them from their own
    memory.
    """

    items: tuple[Item, ...]
    reads: tuple[Item, ...]
    keeps: tuple[Item, ...]
    saves: tuple[Item, ...]


@dataclass(frozen=True, eq=False)
class Nest:
    """Loops over `order`, outer to inner, and the reductions and stores they compute.

    `vector` is the innermost axis, or None without vectors.
    """

    level: int
    order: tuple[str, ...]
    vector: str | None
    reductions: tuple[Reduction, ...] = ()
    saves: tuple[Item, ...] = ()
    stores: tuple[StoreItem, ...] = ()
    items: tuple[Item, ...] = ()
    unroll: int = 1
    """Unroll factor: vectors handled at once in the main loop."""
    pairs: bool = False
    """Sums may add some elements in their own type first, since no stream cuts their axes into
    blocks."""
    transposed: tuple[Load, ...] = ()
    """Loads that are contiguous along the axis before the vector axis: each is transposed tile by
    tile."""
    product: ProductPlan | None = None
    """A contraction instead of loops, with `packs` for its operands."""
    packs: tuple[Nest, ...] = ()
    packed: str = ""
    """The operand that this nest packs, "left" or "right": its one save."""
    single_use: bool = False
    """Nearly every element is packed once, so that nothing is worth materialising."""
    state_updates: tuple[StateUpdate, ...] = ()
    """Updates of states, after all else that the segment reads of them."""
    scalars: tuple[Item, ...] = ()
    """Loop-free values that later segments need: conditions and bounds of streams."""
    time: int = 0
    """The segment that the nest runs in."""
    stages: tuple[Stage, ...] = ()
    """Loops one after another over strips of the innermost one, if a single body is too long."""
    strips: bool = False
    """Rows are taken in strips; all columns of a strip of `transposed` loads are transposed at
    once."""
    store_range: Range | None = None
    """The only range of an axis that is walked, so that its stores need no test."""

    def in_registers(self, reduction: Reduction) -> bool:
        """Return whether a reduction's result axes are all outside of its reduced axes."""
        reduced_depths = [self.order.index(a) for a in reduction.over if a in self.order]
        result_depths = [self.order.index(a) for a in reduction.axes if a in self.order]
        return not reduced_depths or not result_depths or max(result_depths) < min(reduced_depths)


@dataclass(frozen=True, eq=False)
class Schedule:
    """The loop nests of a phase in order, materialised values and task blocks."""

    phase: Phase
    lanes: int
    products: Products
    block: Mapping[str, Index]
    """Grid axes that tasks take in blocks, with the number of positions."""
    local: Mapping[str, Index]
    nests: tuple[Nest, ...]
    materialised: Mapping[Item, tuple[str, ...]]
    """Items in scratch memory with their axes, outer to inner."""

    @property
    def blocked(self) -> list[Contraction]:
        """The contractions that are blocked along one axis of each operand."""
        return self.products.blocked

    def span(self, region: Region | None, axis: str) -> Index:
        """Return how many positions of a local axis a region's values span at most."""
        visits = [v for r in enclosing_regions(region) for v in r.visits if v.axis == axis]
        return visits[-1].size or self.local[axis] if visits else self.local[axis]

    def region(self, item: Item) -> Region | None:
        """Return the region in which an item is computed."""
        return self.phase.segments[item.time]


@dataclass(frozen=True, eq=False)
class RowGroups:
    """The row groups of a region, and the nests that run for each of them.

    `guides` are the nests that recompute the bounds for fewer rows.
    """

    region: Region
    rows: str
    columns: str
    group: int
    """Columns to whose multiples the range of a row group is rounded."""
    size: int
    """Rows of a row group."""
    fine: int
    """Rows whose range is exact, for sums over the columns."""
    most: int
    """Most row groups of a task."""
    nests: frozenset[Nest]
    products: tuple[Contraction, ...]
    guides: tuple[Nest, ...]

    @property
    def visit(self) -> Visit:
        """The region's walk along the columns."""
        return self.region.visits[-1]

    def takes(self, c: Contraction) -> bool:
        """Return whether a contraction has these rows and columns, or sums over these columns."""
        return c in self.products

    def sums(self, c: Contraction) -> bool:
        """Return whether a contraction sums over these columns."""
        return c in self.products and c.k == self.columns


@dataclass(frozen=True, slots=True, eq=False)
class RowGroupRanges:
    """Row groups, and the tables of their column ranges in the current block.

    `tables` has an address for each number of rows, and whether ranges are exact.
    """

    groups: RowGroups
    tables: Mapping[tuple[int, bool], ir.Value]
