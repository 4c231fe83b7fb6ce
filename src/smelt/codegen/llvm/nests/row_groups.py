"""The row groups of a stream's blocks, each with its own range of columns.

`smelt.codegen.llvm.schedule.mask_ranges` finds them, and explains what they are for.
"""

from __future__ import annotations

from collections.abc import Mapping

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.loopir.items import Region, Visit
from smelt.codegen.llvm.nests.contraction import Contraction
from smelt.codegen.llvm.nests.nest import Nest
from smelt.python.dataclass import dataclass


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
