"""What every plan of a product answers, whatever its operands; its register tile.

A product has an axis of vectors (n), one of rows (m) unless rows are positions along several axes,
and reduced ones (k, outer).  Its plan says which loops pack each operand, what a task takes, which
arrays it needs in scratch, how tiles may store results, and what it costs.  Everything outside of
a plan's own driver asks these questions, and never which kind of plan it is.

Sizes of tiles: Low et al., "Analytical Modeling Is Enough for High-Performance BLIS", 2016.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, Protocol

from smelt.codegen.llvm.instructions.dot_product import DotInstruction
from smelt.codegen.llvm.loopir.items import Item, Phase
from smelt.kernel.artifact import SizeLimits, Variant
from smelt.machine.blocks import ROW_MULTIPLE
from smelt.machine.target import Target
from smelt.python.dataclass import dataclass
from smelt.types.dtype import DType
from smelt.types.expr import Index, floordiv


@dataclass(frozen=True, slots=True)
class Tile:
    """The register tile of a microkernel: `rows` by `vectors` of `lanes` columns."""

    rows: int
    vectors: int
    lanes: int

    @property
    def columns(self) -> int:
        return self.vectors * self.lanes


def register_tile(target: Target, lanes: int) -> Tile:
    """Return the usual register tile.

    Two vectors wide, and as high as the registers allow besides two vectors and a broadcast: blocks
    of rows are whole tiles.

    >>> [register_tile(Target.for_isa(isa), 8).rows for isa in ("avx512", "avx2", "neon")]
    [12, 6, 12]
    """
    free = target.registers - 3
    rows = next(h for h in range(free // 2, 0, -1) if ROW_MULTIPLE % h == 0)
    return Tile(rows, 2, lanes)


def in_place_tile(target: Target, lanes: int) -> Tile:
    """Return the tile for operands in place, where each row takes an address register.

    As high as hides the latency of multiply-adds (two pipes of four cycles), or twice that if there
    are registers.
    """
    return Tile(8 if target.registers >= 32 else 4 if target.registers >= 16 else 2, 2, lanes)


def short_row_tiles(target: Target, lanes: int) -> tuple[Tile, ...]:
    """Return tiles for a GEMV with short rows, the narrower first.

    They are as wide as rows of the right operand.  Their accumulators take half of the registers.
    """
    sums = target.registers // 2
    return tuple(Tile(sums // vectors, vectors, lanes) for vectors in (sums // 4, sums // 2))


def tile_heights(full: int) -> tuple[int, ...]:
    """Return tile heights, largest first, which together cover any number of rows."""
    return (full, *(h for h in (4, 2, 1) if 2 * h <= full))


LEFT_PART, RIGHT_PART, TABLE_PART, SUMS_PART, RUNS_PART = 300, 301, 302, 303, 304
"""Arrays in scratch: packed operands, tables of offsets, sums, and runs."""
OUTPUT_STAGE_PART = 400
"""The first array of rows that wait for their output."""

Driver = Literal[
    "blocked",
    "fused",
    "small_m_swapped",
    "nchw",
    "nhwc",
    "depthwise",
    "depthwise_fused",
]
"""The loops around register tiles (`smelt.codegen.llvm.nest`)."""


Variants = Iterator[tuple[Variant, SizeLimits]]
"""Variants of a kernel's code, best first, with the limits on sizes of each."""


@dataclass(frozen=True, slots=True)
class ScratchArray:
    """An array that a plan needs in a thread's scratch memory."""

    part: int
    elements: Index
    dtype: DType
    is_read_past_end: bool = True
    """Whether tiles may read an operand's elements behind those that were packed."""


@dataclass(frozen=True, slots=True)
class PanelOperand:
    """An operand that the inner loop reads in panels, which may be stored so beforehand."""

    item: Item
    row_axes: tuple[str, ...]
    """The axes of the rows that are multiplied with it."""
    group: DotInstruction | None = None
    """The dot-product instruction for which it is packed in groups, if any."""
    is_small: bool = False
    """Whether a short operand is read in place, since packing would not pay."""
    is_transposed: bool = False
    """Whether tasks pack it quickly, by transposes of what is contiguous along the reduction."""
    is_prepacked: bool = False
    """Whether it is stored in panels already."""
    packs: bool = True
    """Whether tasks pack it otherwise."""


@dataclass(frozen=True, slots=True)
class TileStores:
    """When tiles may store a task's results in the output rather than in scratch."""

    rounds: bool = True
    """Whether results may be rounded to the output's type."""
    in_ranges: bool = True
    """Whether ranges of the columns may be separate outputs."""
    columns: Literal["masked", "full", "full or one vector"] = "full"
    """Which remainder of columns register tiles store exactly."""
    at_least: tuple[str, int] | None = None
    """An axis along which a task must have so many positions."""
    exactly: tuple[str, int] | None = None
    """An axis along which a task must have exactly so many positions."""
    summed: str = ""
    """An axis that must have a position, since nothing else clears the sums."""


class PlanDefaults(Protocol):
    """The answers of a plan that packs as nests do, and stores nothing directly."""

    __slots__ = ()

    @property
    def unit(self: ProductPlan) -> DType:
        """The element type of packed operands in scratch: of their elements, or of pairs."""
        return self.item.args[0].dtype

    @property
    def row_axes(self: ProductPlan) -> tuple[str, ...]:
        """The axes of the result's rows: all but the last one."""
        return self.axes[:-1]

    @property
    def result_axis(self: ProductPlan) -> str:
        """The axis along which results are contiguous: that of columns."""
        return self.n

    def cycles(self: ProductPlan, points: Index, rows: Index) -> Index:
        """Return the cycles of so many multiply-adds, for a result of so many rows."""
        return tile_cycles(points, self.tile)

    @property
    def reads_past_end(self) -> bool:
        """Whether tiles read packed operands past what was packed: that must be numbers."""
        return True

    @property
    def unroll_of_packing(self) -> int:
        """Vectors that a nest packs at once."""
        return 2

    @property
    def transposes_packing(self) -> bool:
        """Whether nests may pack the right operand by transposed tiles."""
        return True

    @property
    def transposes_sums(self) -> bool:
        """Whether results are transposed when all sums are done."""
        return False

    def tile_stores(self, local: Mapping[str, Index]) -> TileStores | None:
        """Return how tiles may store results directly; None if an epilogue stores them."""
        return None

    @property
    def has_plain_columns(self) -> bool:
        """Whether columns are along several axes, but without windows."""
        return False

    def variants(self, phase: Phase, plans: Sequence[PackedPlan]) -> Variants:
        """Yield variants that serve a phase better whose products have these plans."""
        yield from ()

    def panel_operand(self) -> PanelOperand | None:
        """Return the operand that the inner loop reads in panels, or None."""
        return None


class ProductPlan(PlanDefaults, Protocol):
    """Plan of a product: its operands in order, its axes, and its register tile."""

    @property
    def item(self) -> Item:
        """The contraction."""
        ...

    @property
    def left(self) -> Item:
        """The operand whose elements are broadcast."""
        ...

    @property
    def right(self) -> Item:
        """The operand whose rows are vectors."""
        ...

    @property
    def tile(self) -> Tile:
        """The register tile."""
        ...

    @property
    def m(self) -> str | None:
        """The axis of rows; None if there is none, or several."""
        ...

    @property
    def n(self) -> str:
        """The axis of columns."""
        ...

    @property
    def k(self) -> str:
        """The reduced axis that is packed by itself, if any."""
        ...

    @property
    def outer(self) -> tuple[str, ...]:
        """The other reduced axes."""
        ...

    @property
    def axes(self) -> tuple[str, ...]:
        """The result's axes in scratch, outer to inner."""
        ...

    @property
    def unit(self) -> DType:
        """The element type of packed operands in scratch."""
        ...

    @property
    def row_axes(self) -> tuple[str, ...]:
        """The axes of the result's rows in scratch, outermost first."""
        ...

    @property
    def driver(self) -> Driver:
        """The loops around its register tiles."""
        ...

    @property
    def result_axis(self) -> str:
        """The axis along which its result is contiguous where others read it."""
        ...

    def notes(self) -> PlanNotes:
        """Return the policies of this plan in words."""
        ...

    def left_order(self) -> tuple[str, ...]:
        """Return the loops of the nest that packs the left operand."""
        ...

    def right_order(self) -> tuple[str, ...]:
        """Return the loops of the nest that packs the right operand."""
        ...

    def cycles(self, points: Index, rows: Index) -> Index:
        """Return the cycles of so many multiply-adds, for a result of so many rows."""
        ...


class PackedPlan(ProductPlan, Protocol):
    """Plan of a product whose operands are packed by position; it stands outside of streams."""

    def blocks(self, phase: Phase) -> dict[str, Index]:
        """Return the task blocks: grid axis -> positions."""
        ...

    def arrays(self, phase: Phase, local: Mapping[str, Index]) -> Iterator[ScratchArray]:
        """Yield the arrays that a task of the extents `local` needs in scratch."""
        ...

    def scratch_extent(self, axis: str, local: Mapping[str, Index]) -> Index:
        """Return the scratch extent along an axis of the result."""
        ...


def tile_cycles(points: Index, tile: Tile, together: int = 1) -> Index:
    """Return the cycles of multiply-adds: two vectors a cycle, `together` in each lane."""
    return floordiv(points, 2 * tile.lanes * together)


IN_PLACE = "in place"


@dataclass(frozen=True, slots=True)
class PlanNotes:
    """The policies of one product, in words."""

    axes: str
    """Axes of rows and columns, and the reduced ones: `m x n over k`."""
    left: str
    """How the operand is read whose elements are broadcast."""
    right: str
    """How the operand is read whose rows are vectors."""
    sums: str
    """Where sums wait, and from where the epilogue takes them."""


def packed_panels(columns: int, *, transposed: bool = False) -> str:
    """Return the words for an operand that is packed in panels.

    >>> packed_panels(32, transposed=True)
    'packed in panels of 32 columns, by transposes'
    """
    return f"packed in panels of {columns} columns" + ", by transposes" * transposed
