"""Choose register tiles: how many sums a microkernel keeps in registers, by their number.

    register_tile(target, lanes)        the usual tile, for packed operands
    in_place_tile(target, lanes)        for operands in place, where each row takes an address
    short_row_tiles(target, lanes)      for rows of a few vectors

Source: Low et al., "Analytical Modeling Is Enough for High-Performance BLIS", 2016.
"""

from __future__ import annotations

from smelt.machine.blocks import ROW_MULTIPLE
from smelt.machine.target import Target
from smelt.python.dataclass import dataclass


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
