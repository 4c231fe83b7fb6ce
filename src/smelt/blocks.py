"""How work is cut into pieces: numbers on which planner, lowering and code generation agree.

The planner foresees the schedule that a kernel will get, so both must cut alike.  Sizes are
positions of an axis unless they say otherwise.

>>> from smelt import blocks
>>> blocks.product_rows(256 * 256, 4), blocks.product_rows(4096 * 4096, 4)
(144, 504)
>>> blocks.whole_rows(4096, 256, 4), blocks.whole_rows(4096, 4096, 4)
(240, 48)
>>> blocks.beside_rows(4096, 4), blocks.beside_rows(512, 4)
(128, 64)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from math import prod
from typing import NamedTuple

from smelt.dataclass import dataclass
from smelt.types.expr import Index, add, evaluate, floordiv, maximum, minimum, mul, sub, terms_of

BLOCK = 2048
"""Positions of the vector axis that one task visits, when that axis is a grid axis."""
FOLD_COLUMNS, LEAST_COLUMNS = 512, 32
"""The same where each position is folded, at most and at least: rows are read in runs."""
SUM_BYTES = 8
"""What a sum takes while it is added up."""

SHORT_SUM = 64
"""Products of one sum that are written out rather than looped over, where none can be blocked."""
SHORT_TERMS = 12
"""The same where elements of an operand lie apart for neighbouring results: lanes would pick from
as many lines as there are lanes, and rows are read along themselves instead."""
FEW_TAPS = 9
"""Those where they are summed over several axes: more windows share what is packed once."""

SHORT_ROW = 8
"""Positions of a row that folds end up to which vectors run along many rows instead: the lanes that
a short row leaves empty, and joining the others, cost more than reading across rows."""
SHORT_BLOCK = 32
"""Elements of several short rows that lie together up to which that is so: each lane picks its own
from as many lines as there are lanes."""
FEW_COLUMNS = 4
"""Columns that are folded up to which vectors run along the rows: beyond, picking every lane from a
line of its own costs more than the lanes that stay empty."""
LEAST_LANES = 64
"""Rows below which there are too few for that."""
SHORT_ROWS = 256
"""Short rows of a split axis that are taken together: what they hold stays in the first cache."""

PARTS = 64
"""Parts of a split axis: enough for any thread count here, few enough to merge at once."""
PART_ROWS = 64
"""Positions of a split axis that each part has at least, while there are so many: what a part holds
is written and read again."""
PART_WORK = 1 << 10
"""Elements that a part folds at least, while there are so many: starting it takes as long as some
hundreds of them."""
PRODUCT_PARTS, LONG_SUM = 16, 1 << 15
"""The same of a product's summed axis, and how long that is at least: a part outweighs by far that
its results are stored and merged."""
CUT_SCORE = 0.5
"""What an axis of which a task has but a part counts as one to run vectors along."""
STREAM_VISITS = 16
"""Blocks of a streamed axis from which on each may be a part, which carries states of its own."""
STREAM_BYTES = 1 << 14
"""Bytes of a streamed row that are visited at once: the first cache of any machine holds them,
beside those that are asked for ahead."""
LEAST_TASKS = 8
"""Independent tasks below which a fold is split; products by instructions on
matrices, and those side by side, are cut into so many before they grow."""
SPLIT_ABOVE = 1 << 15
"""Elements of a fold below which one thread is faster than a split."""


def fold_columns(sums: int) -> int:
    """Neighbouring columns that a task folds, each into so many sums: all of them stay in the first
    cache, beside what is read.

    >>> fold_columns(1), fold_columns(8), fold_columns(50)
    (512, 256, 32)
    """
    fitting = STREAM_BYTES // (SUM_BYTES * max(sums, 1))
    return min(max(1 << fitting.bit_length() >> 1, LEAST_COLUMNS), FOLD_COLUMNS)


def parts_of(extent: Index, rows: int = PART_ROWS) -> Index:
    """Parts that an axis of so many positions is split into, each of `rows` at least.

    >>> [parts_of(n) for n in (10, 1000, 100_000)]
    [1, 15, 64]
    """
    return maximum(1, minimum(PARTS, floordiv(extent, rows)))


def fold_parts(extent: Index, width: Index) -> Index:
    """The same of an axis with `width` elements at each position, where a part has one result.

    >>> [fold_parts(n, 8) for n in (10, 1000, 100_000)]
    [1, 7, 64]
    """
    most = min(PARTS, extent) if isinstance(extent, int) else PARTS
    return maximum(1, minimum(most, floordiv(mul(extent, width), PART_WORK)))


def product_parts(extent: Index) -> Index:
    """The same of a product's summed axis."""
    return maximum(1, minimum(PRODUCT_PARTS, floordiv(extent, LONG_SUM // PRODUCT_PARTS)))


ROW_BLOCK = 8192
"""Elements of streamed rows that are visited at once: they stay in the first-level cache from fold
to fold."""
WRITTEN_OUT = 16
"""Positions at most of an axis of results that is written out: each has vectors of its own, and
what all of them have in common is computed once."""
STREAM_COLUMNS, COLUMN_BLOCK = 1024, 64
"""Neighbouring columns that one task of a stream folds, and the rows of each that it visits at
once."""
TAKEN, MADE = (64, 512), (192, 256)
"""Rows of a stream's task, and streamed elements for each, where a contraction takes the elements,
or makes them (ALGORITHMS 1.7)."""
SWATH = 192
"""Rows that are taken at once of all those that a block of a stream meets: whole register tiles and
vectors, and what is computed of them stays in the second cache."""
WIDE_TAKEN, LEAST_TAKEN = 1 << 18, 64
"""Elements of a value that a visit of a stream makes at most, where it makes whole rows, and how
many rows it takes at least: such values are worked on in the second cache or near it, and what a
visit packs serves all of its rows."""

HEIGHT = 24
"""Rows of a product that one task takes are a multiple of so many: register tiles' heights divide
it, and what is left over takes lower tiles."""
ROWS = 144
"""Rows of a product that one task takes at least."""
ROW_BYTES = 2048
"""Bytes of a column of a product's block at most: more rows share a packed panel."""
TASKS = 16
"""Tasks that many positions are cut into before each grows: enough for as many threads."""
MATRIX_ROWS, MATRIX_LEAST, MATRIX_HEIGHT = 512, 128, 32
"""Rows of a product at most and at least where it is computed by instructions on matrices, and what
they are a multiple of: tiles of other heights have to be told to the processor."""
MATRIX_STEP, MATRIX_DEPTH = 16, 384
"""Units of 32 bits that one of them multiplies in each row, and up to how many are one block: two
tiles of rows fill the first cache of such processors, which is better than sums in memory."""
WHOLE_ROWS = 48
"""Rows that one task takes at least where it takes all columns."""
WHOLE_BYTES = 1 << 18
"""Bytes of a panel of more whole rows: it stays in L2 beside what is packed, which serves all of
them."""
BESIDE_BYTES = 512
"""Bytes of a column at most of several products side by side whose rows nobody folds: these need
not stay in L2 whole, and every task packs all of their operands."""
STREAM_ROWS = 192
"""The same where the columns are streamed and their operands packed block by block."""
COLUMNS = 256
"""Columns of a product that are packed together (and that one task takes, where they may)."""
DEPTH = 256
"""Summed positions that are packed together: a block of each operand stays in L2."""
RUN = 256
"""Products that are added one to the sum of those before.  Sums of more are joined of the sums of
such runs: each addition rounds, and where products have one sign may do so in one direction."""
HELD_RUN = 384
"""The same where a tile holds its sums in registers over all positions: joining costs more there
than where blocks end anyway."""
LINES_RUN = 512
"""The same of few rows' products with lines along the columns: the sums of a run are an array of
their own, which is cleared and added to those before."""

WINDOW_ROWS = 192
"""Rows of a product over windows that one task takes."""
WINDOW_COLUMNS = 512
"""Columns of 4 bytes of a product over windows that one task takes, more or less: whole lines of an
image."""

HOSTED_TASKS, HOSTED_PLACES = 2, 64
"""Tasks at least whose lines are computed where they are packed, each of so many places or more."""

HALO = 8
"""Lines of a product that a task computes for each one that its neighbour computes as well, where
windows are folded over them."""

SMALL, SMALL_DEPTH = 192, 384
"""Rows and columns, and summed positions, up to which a product reads operands as they lie."""

NEAR = 40_000
"""Elements of the right operand up to which it stays near while all rows meet it as it lies: a
part of L2."""

THIN = 16
"""Rows up to which the larger operand of a product is read as it lies, never packed."""
THIN_MATRIX = 6
"""The same where instructions multiply matrices of what is packed."""
THIN_ROWS = 16
"""Rows of a thin product that one task takes: all of them."""
THIN_COLUMNS = 2080
"""Columns of a thin product that one task takes: long runs of each line.  Rows of sums that are no
power of two apart do not share the sets of a cache."""
THIN_LINES = 64
"""The same where the larger operand lies along the summed axis: long rows, a few at a time."""
THIN_DEPTH, THIN_LONG = 2048, 4096
"""Summed positions for which the thin operand is packed: they stay in L1 and L2; and those of a
single row, which meets longer runs of the other operand then."""

ROUND_ROWS = 48
"""Rounds take a multiple of so many rows where they take more: whole register tiles."""
WHOLE, FIRST_ROW = -1, -2
"""In place of the axis of a `Cut`: all of it in every round; the number of its first row."""


class Cut(NamedTuple):
    """What rounds read or make: of the operand or result at `place` a block along `axis`, or WHOLE.

    A whole result is joined with what there is so far by the scalar operator `combine`."""

    place: int
    axis: int
    combine: str = ""


def even_rows(rows: int) -> int:
    """Rows of a round, rounded up: whole register tiles, or as many as products pack of what they
    sum over rows.

    >>> even_rows(100), even_rows(250), even_rows(300)
    (144, 256, 512)
    """
    unit = ROUND_ROWS if -(-rows // ROUND_ROWS) * ROUND_ROWS < DEPTH else DEPTH
    return -(-rows // unit) * unit


@dataclass(frozen=True, slots=True)
class Rounds:
    """How a part of a program is run for a block of rows after the other.

    The body's inputs are `reads`, then for each whole result what there is so far; its results are
    `makes`.  The rows of a block are its size `rows`."""

    reads: tuple[Cut, ...]
    makes: tuple[Cut, ...]
    extent: Index
    rows: str
    block: int
    """Rows of one round at most."""

    def each(self, sizes: Mapping[str, int]) -> Iterator[tuple[int, int]]:
        """The first row of each round and the one behind its last: as many rounds as blocks are
        needed, all about as long but for the last one."""
        total = int(evaluate(self.extent, sizes))
        times = max(-(-total // self.block), 1)
        step = max(min(self.block, even_rows(-(-total // times))), 1)
        for low in range(0, total, step):
            yield low, min(low + step, total)


TALL_COLUMNS, TALL_DEPTH = 128, 256
"""Columns and summed positions up to which the rows of a product are so short that what surrounds
its multiply-adds costs more than they do."""
TALL_SINGLE = 32
"""The same depth where factors could be multiplied in groups, which takes packing."""
TALL_ROWS, TALL_BYTES = 2048, 1 << 17
"""Rows of such a product that one task takes at most, and bytes of its operand: they stay in L2."""
TALL_STAGED = 32
"""Rows of such a product that are stored together."""
WIDE_STAGED = 48
"""The same of a wide one: whole tiles."""

WIDE_DEPTH, WIDE_PANEL = 4096, 1 << 19
"""Summed positions of a wide product up to which one pass over all of them is best, and bytes of
its right operand that a task packs: they stay in L2, and are several lines of a cache across."""
WIDE_RUN = 1024
"""Columns of a wide product that one task takes at most where there are many results: where few
positions are summed, what else is read and written of them is what counts, and is in long runs."""
WIDE_COLUMNS = 64
"""Columns of a wide product at least: two panels share what is read of a row."""
WIDE_ACROSS = 160_000
"""Elements up to which a left operand that lies along its rows is multiplied as it lies: more do
not stay in L2."""
DEEP, LONG_DEEP, DEEP_PITCH, LONG_PITCH = 192, 256, 208, 272
"""Summed positions that a deep product takes at once, and where few instructions start in a cycle;
elements between packed rows of them: no power of two, which would share a cache's sets."""
FEW_DEEP, FEW_PITCH = 96, 112
"""The same of one of few rows, whose panels stay in the first cache beside a tile's rows."""
DEEP_ROWS, DEEP_COLUMNS, DEEP_EVEN = 288, 384, 48
"""Rows and columns of float32 that one task takes of such a product at most, and what its rows are
a multiple of: whole tiles, and whole vectors of packed rows.  What it packs and its sums take 1 MiB
together; with fewer rows and columns it would pack more often what comes from L3 or from memory."""
LONG_ROWS, LONG_COLUMNS = 1056, 512
"""The same where few instructions start in a cycle, and packing takes a fifth of them: what is
packed of the right operand, which each row of tiles reads again, takes half of 1 MiB of L2; sums,
which a tile reads once, may come from L3 (2048 cubed takes 0.98 of the time that 528 rows take)."""
ROOMY_DEPTH, ROOMY_ROWS, ROOMY_COLUMNS = 512, 672, 256
"""Summed positions, rows and columns of float32 where the left operand is multiplied as it lies and
L2 has room for what is packed and for the sums: larger blocks pack less often."""
PANEL_ROWS, PANEL_COLUMNS = 192, 256
"""Rows and columns where the right operand lies in panels already: nothing is packed that more rows
would share, and all stays in L2 beside the panels that are asked for."""
PREPACKED = 1 << 22
"""Elements of an operand that is packed for all tasks of a call at most: that much more memory, and
it is to stay in the last cache."""
WIDE_ROWS, WIDE_TASKS, WIDE_LEAST = 512, 4, 192
"""Rows for which a task packs that at least, unless this leaves fewer tasks than so many; and rows
even then."""

TURNED_COLUMNS, TURNED_PITCH = 48, 64
"""Columns of a product of few rows, with which these change places, that are read together: whole
tiles and whole vectors; and elements between rows of their sums, of which a tile's last vectors are
longer."""
FEW_ACROSS = 768
"""Columns that one task takes of a product of few rows at most: their sums stay in L2."""
TURNED_BYTES = 1 << 20
"""Bytes of the operand that every task of such a product packs, at most: it stays in L2."""


def rows_together(columns: Index) -> Index:
    """Rows of so many independent positions that one task takes: few where they are long."""
    least = 16
    if not isinstance(columns, int):  # an open size may be 0, which factors of 16 do not say
        sure = sum(c for m, c in terms_of(columns) if all(a.kind == "size" for a in m))
        least = max(least, sure + 1)
    return maximum(1, floordiv(BLOCK, maximum(columns, least)))


def window_columns(itemsize: int) -> int:
    """Columns of a product over windows that one task takes: as many bytes of every type."""
    return max(WINDOW_COLUMNS * 4 // max(itemsize, 1), 1)


def band_of_windows(windows: Index, step: int, length: int, width: Index, most: int) -> Index:
    """How many of so many windows, each `length` places, one task takes that holds about `most`
    places: along the innermost axis (a width of 0), or of lines of `width` places."""
    if width == 0:
        pieces = ceiling(add(mul(sub(windows, 1), step), length), most)
    else:
        least = max(-(-HALO * max(length - step, 0) // step), 1)
        pieces = ceiling(windows, maximum(floordiv(most, maximum(mul(width, step), 1)), least))
    return ceiling(windows, maximum(pieces, 1))


def ceiling(n: Index, by: Index) -> Index:
    """n / by, rounded up."""
    return floordiv(add(n, sub(by, 1)), by)


def product_rows(positions: Index, itemsize: int, products: int = 1) -> Index:
    """Rows that one task takes of a product whose result has so many independent positions; of
    several products that share a task, whose results share L2."""
    most = max(ROW_BYTES // (itemsize * products) // HEIGHT * HEIGHT, ROWS)
    found = mul(HEIGHT, ceiling(positions, HEIGHT * TASKS * COLUMNS))
    return maximum(ROWS, minimum(most, found))


def wide_blocks(
    rows: Index, columns: Index, depth: Index, positions: Index, itemsize: int, tile: int
) -> tuple[Index, Index]:
    """Rows and columns that one task takes of a product that is summed in one pass, whose result
    has so many independent positions: blocks of about the same size."""
    # A size counts as 1 or more in expressions, and there may be no summed positions: hence 16.
    fitting = floordiv(WIDE_PANEL // (itemsize * tile), maximum(depth, 16))
    run = maximum(TALL_COLUMNS, minimum(WIDE_RUN, floordiv(positions, TASKS * WIDE_LEAST)))
    most = minimum(mul(tile, maximum(fitting, 1)), run)
    across = mul(tile, maximum(ceiling(evenly(columns, ceiling(columns, most)), tile), 1))
    least = minimum(WIDE_ROWS, floordiv(positions, mul(WIDE_TASKS, across)))
    more = floordiv(positions, mul(TASKS, across))
    taken = minimum(maximum(maximum(more, least), WIDE_LEAST), TALL_ROWS)
    blocks = minimum(ceiling(rows, taken), floordiv(rows, WIDE_LEAST))
    return mul(HEIGHT, maximum(ceiling(evenly(rows, blocks), HEIGHT), 1)), across


def evenly(size: Index, blocks: Index) -> Index:
    """Positions of each of so many blocks, or of one."""
    return ceiling(size, maximum(blocks, 1))


def matrix_block(rows: Index, positions: Index) -> tuple[Index, Index]:
    """Rows and columns that one task takes of a product that instructions on matrices compute, so
    fast that packing counts, whose result has so many independent positions: whole pairs of tiles,
    and twice as many columns that share what is packed of rows where there are many.

    >>> matrix_block(256, 256 * 256), matrix_block(1024, 1024 * 1024)
    ((128, 256), (256, 512))
    """
    across = mul(COLUMNS, maximum(1, minimum(2, floordiv(positions, 1 << 19))))
    fair = minimum(floordiv(positions, mul(LEAST_TASKS, across)), MATRIX_ROWS)
    even = evenly(rows, ceiling(rows, maximum(fair, MATRIX_LEAST)))
    return mul(MATRIX_HEIGHT, ceiling(even, MATRIX_HEIGHT)), across


def grouped_block(
    rows: Index, positions: Index, tasks: int, *, in_place: bool
) -> tuple[Index, Index]:
    """Rows and columns that one task takes of a product whose factors are multiplied in groups, by
    instructions so fast that packing counts: as many tasks as there are to be, of about the same
    size.  Twice as many columns share what is packed of rows where sums are stored `in_place`
    rather than held beside it in L2.

    >>> grouped_block(1024, 1024 * 1024, 4, in_place=True)
    (528, 512)
    >>> grouped_block(1024, 1024 * 1024, 4, in_place=False)
    (360, 256)
    >>> grouped_block(256, 256 * 256, 4, in_place=True)
    (144, 256)
    """
    fair = floordiv(positions, tasks)
    wide = minimum(floordiv(fair, 2 * COLUMNS * MATRIX_ROWS), 1) if in_place else 0
    across = mul(COLUMNS, add(wide, 1))
    most = MATRIX_ROWS if in_place else ROW_BYTES // 4 // HEIGHT * HEIGHT
    least = maximum(minimum(floordiv(fair, across), most), ROWS)
    return mul(HEIGHT, ceiling(evenly(rows, ceiling(rows, least)), HEIGHT)), across


def whole_rows(rows: Index, columns: Index, itemsize: int, products: int = 1) -> Index:
    """The same where a task takes whole rows of `columns`, and there are `rows` in all."""
    # A size counts as 1 or more in expressions, and there may be no columns: hence 16, not 1.
    fit = floordiv(WHOLE_BYTES // (HEIGHT * itemsize * products), maximum(columns, 16))
    found = minimum(fit, ceiling(rows, HEIGHT * TASKS))
    return mul(HEIGHT, maximum(WHOLE_ROWS // HEIGHT, found))


def beside_rows(rows: Index, itemsize: int) -> Index:
    """The same of products side by side whose rows nobody folds."""
    most = floordiv(rows, 8 * LEAST_TASKS)
    return mul(8, maximum(WHOLE_ROWS // 8, minimum(BESIDE_BYTES // (8 * itemsize), most)))


def rows_taken(most: int, width: int) -> int:
    """Rows of so many elements that one visit of a stream takes, if not `most`: few steps from one
    number to the next, so that calls of about the same size share a kernel."""
    fit = WIDE_TAKEN // max(width, 1)
    return min(most, max(1 << fit.bit_length() - 1 if fit else 0, LEAST_TAKEN))


def rows_axis(
    sides: Iterable[AbstractSet[str]], grid: Sequence[str], sizes: Mapping[str, int]
) -> str | None:
    """The axis of rows that a stream's tasks take in blocks, where `sides` are the axes that one
    operand has alone in each product: of the side with the grid's last such axis the one that is
    longest at the first call's sizes, wherever a layout has it.

    >>> sizes = {"row": 1024, "group": 4, "column": 64}
    >>> rows_axis([{"row", "group"}, {"column"}], ["row", "group"], sizes)
    'row'
    """
    own = [found for side in sides if (found := [a for a in grid if a in side])]
    last = max((grid.index(side[-1]) for side in own), default=-1)
    taken = [a for a in grid if any(a in side and grid[last] in side for side in own)]
    return max(reversed(taken), key=lambda a: sizes[a], default=None)


def rows_visited(width: int) -> int:
    """Positions of a streamed axis that one visit takes, with so many elements at each, where no
    product makes them: a power of 2, so that calls of about the same size share a kernel."""
    return max(1 << (ROW_BLOCK // max(width, 1)).bit_length() >> 1, 1)


def has_parts(grid: Iterable[int], visits: int) -> bool:
    """Whether a stream of so many visits is split over the grid: where that has too few tasks."""
    return prod(grid) < LEAST_TASKS and visits >= STREAM_VISITS


# ---- values that are written at places which depend on data --------------------------------------

JOINED_WIDTH = 16
"""Elements of a row for each part that the rows of a result are taken in: looking at a place that
is another part's takes about as long as adding so many (measured)."""
JOINED_PARTS = 8
"""Parts that they are taken in at most."""
