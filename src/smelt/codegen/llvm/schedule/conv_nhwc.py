"""Products over windows whose results lie along the weights' own axis: channels last.

out[y, x, m] = sum over u, v, c of image[y*s + u*d, x*s + v*d, c] * weights[u, v, c, m].  Vectors
run along m, so the image gives one number for all lanes, and the rows of a register tile are places
of the image (`smelt.codegen.llvm.loopir.input_tile`), side by side in scratch memory with their
channels as they lie in the array: both operands and the results are read and written in long runs.

Tiles end where lines do: each is cut into as few parts as fit a tile, as even as may be; one of
unknown length into parts of an even number of places, with an odd one before them if need be, so
that there are not tiles of all heights.  Where lines are known to be very short, or have no
margins, rows y, x are numbered y*pitch + x with the packed lines' pitch; those between lines are
computed in vain and never read.

Colours and other few channels have no loop of their own: each line is packed as one run of places
and what each has, the weights as one of all that is summed, and a table says where each of that is.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from smelt.blocks import HOSTED_PLACES, HOSTED_TASKS, ceiling, window_columns
from smelt.codegen.llvm.loopir.input_tile import Slid, block_of, packed_order, place_extents
from smelt.codegen.llvm.loopir.items import Access, Item, Phase
from smelt.codegen.llvm.loopir.pack_k_pairs import lying_pair
from smelt.codegen.llvm.schedule.contract import SKEW, Tile
from smelt.codegen.llvm.schedule.depthwise import HEIGHTS
from smelt.codegen.llvm.schedule.operands import lies_in_panels, load_of
from smelt.dataclass import dataclass
from smelt.target import Target
from smelt.types.affine import coefficient
from smelt.types.dtype import DType, bf16
from smelt.types.expr import (
    Index,
    add,
    atoms,
    axes_of,
    axis,
    floordiv,
    maximum,
    minimum,
    mul,
    product,
    substitute,
)

DEPTH = 400
"""Summed positions of one block at most."""
HOSTED_DEPTH = 128
"""The same of what stencils make: panels, and the lines that these leave, stay in the first
cache."""
FEW = 4
"""Positions along `depth` for which a loop of their own costs more than it multiplies."""
LINE = 4
"""Places of a line of known length, at least, for tiles to end with it: fewer sums than two vectors
for each would wait for each other."""
IMAGES = 2
"""Times as many places of a task where it has several images, for which it packs weights once."""
TASKS = 4
"""Tasks that a batch is cut into at least where one could take more of its images."""
CHANNELS = 128
"""Results of one place that a task takes: its weights stay in L2."""


def ends_lines(line: Index, c: Slid) -> bool:
    """Whether tiles end where lines of so many places do; those of unknown length that no window
    slides along have nothing between them."""
    return line >= LINE if isinstance(line, int) else c.margin > 0


def upright_tile(target: Target, lanes: int, *, odd: bool) -> Tile:
    """Two vectors wide and as high as the registers allow beside two vectors and a broadcast, and
    a mask where pairs may end with `odd` numbers."""
    free = target.registers - (6 if odd else 3)
    return Tile(max(free // 4 * 2, 2), 2, lanes)


@dataclass(frozen=True, slots=True)
class Lines:
    """Where lines of an image are: 0 <= y*step + u*dilation + start < count for a line y of results
    and a tap u.  Beyond there is nothing but zeros."""

    start: Index
    count: Index


def lines_of(image: Item, c: Slid, others: tuple[str, ...]) -> Lines | None:
    """Where the lines of an image are that the windows of an axis reach, if it is 0 around them and
    the taps of a line follow each other among all."""
    while image.kind == "cast":
        (image,) = image.args
    access = image.payload
    if others[:1] != (c.tap,) or image.args or not isinstance(access, Access):
        return None
    for e, n in access.limits if access.gives_zero else ():
        start = substitute(e, {c.axis: 0, c.tap: 0})
        steps = coefficient(e, c.axis), coefficient(e, c.tap)
        known = all(a.kind == "size" for x in (start, n) for a in atoms(x))
        if steps == (c.step, c.dilation) and known:
            return Lines(start, n)
    return None


def in_panels(
    weights: Item, item: Item, over: tuple[str, tuple[str, ...]], m: str, width: int, phase: Phase
) -> bool:
    """Whether weights lie in panels of `width`, a line of which belongs to one position along the
    first of the summed axes `over`, so that numbers say how far taps lie apart."""
    depth, others = over
    if not lies_in_panels(weights, item, None, (depth, m), width, phase):
        return False
    access = load_of(weights)
    assert access is not None
    apart = [coefficient(access.offset, a) for a in others]
    return (
        coefficient(access.offset, depth) == width
        and panel_pitch(access, m, width) is not None
        and not any(a is None or axes_of(a) for a in apart)
    )


def panel_pitch(access: Access, m: str, width: int) -> Index | None:
    """Elements from one panel of so many positions along `m` to the next, if a number says that."""
    pitch = coefficient(substitute(access.offset, {m: mul(width, axis(m, 1 << 40))}), m)
    return None if pitch is None or axes_of(pitch) else pitch


@dataclass(frozen=True, slots=True)
class NhwcConvPlan:
    """A product over windows with rows of places: its operands as they are packed, and its axes."""

    item: Item
    left: Item
    """The weights."""
    right: Item
    n: str
    """The weights' own axis, which vectors run along."""
    columns: tuple[Slid, ...]
    """One or two axes of places, outer to inner."""
    depth: str
    """The summed axis along which the image lies; it is cut into blocks."""
    others: tuple[str, ...]
    """The other summed axes, all of them of a known extent."""
    extents: tuple[int, ...]
    tile: Tile
    panels: bool = False
    """Whether the weights lie in panels as wide as the tile already: at [.., m//w, c, m%w]."""
    few: int = 0
    """Positions along `depth` where that is a known number of at most `FEW` (colours): all summed
    positions are one loop then, and places lie side by side."""
    line: str = ""
    """The axis along a line of such an image, over its places and what each has."""
    flat: str = ""
    """The axis over all summed positions of such an image, along which its weights are packed."""
    lines: Lines | None = None
    """Where lines of the image are, if the taps that reach none need not be multiplied."""
    pairs: int = 0
    """Pairs of short numbers that a window has of a line, where these begin with any of them: the
    image is packed as it is, and its taps along the line are none of `others`."""
    hosts: bool = False
    """Whether its image is made of stencils, line by line (`depthwise_separable`)."""
    image_across: bool = False
    """Whether the image lies along its lines, so that squares of it are turned on the way."""
    across: bool = False
    """Whether the results do, so that squares of the sums are turned when all are there."""

    @property
    def unit(self) -> DType:
        """The type as which packed operands lie in scratch: that of their elements, or of pairs."""
        return self.item.args[0].dtype

    @property
    def image(self) -> DType:
        """The type as which the image does."""
        return bf16 if self.pairs else self.unit

    @property
    def ends(self) -> bool:
        """Whether the last pair of a window's line is one number, and something else."""
        return bool(self.pairs) and self.few * self.columns[-1].taps % 2 == 1

    @property
    def m(self) -> None:
        """Rows are places, along several axes."""

    @property
    def k(self) -> str:
        """The summed axis that is packed by itself."""
        return self.depth

    @property
    def outer(self) -> tuple[str, ...]:
        """The other axes that end here."""
        return (*self.others, self.columns[-1].tap) if self.pairs else self.others

    @property
    def taps(self) -> int:
        """Summed positions for each one along `depth`."""
        return prod(self.extents)

    @property
    def block(self) -> int:
        """Positions along `depth` that are packed together."""
        most = HOSTED_DEPTH if self.hosts else DEPTH
        return self.pairs or self.few or block_of(self.taps, most)

    @property
    def pitch(self) -> int:
        """Elements between neighbouring places in scratch."""
        return self.few * self.columns[-1].step if self.few else self.block + SKEW

    @property
    def steps(self) -> int:
        """Turns of a tile's outer loop, for each of which a table says where it reads."""
        return self.taps * (self.pairs or self.few or 1)

    def weights(self) -> tuple[Access, Index]:
        """Where weights that lie in panels do, and elements from one panel to the next."""
        access = load_of(self.left)
        assert access is not None
        return access, panel_pitch(access, self.n, self.tile.columns) or 0

    @property
    def asks(self) -> bool:
        """Whether tiles ask memory for the panel of weights that follows."""
        return self.panels and not self.few

    @property
    def fewer(self) -> int:
        """Rows of the tile for what whole ones leave."""
        return max(2 * self.tile.rows // 3, 1)

    def ends_lines(self, line: Index) -> bool:
        """Whether tiles end where a line of so many places does."""
        return ends_lines(line, self.columns[-1])

    def heights(self, line: Index) -> tuple[int, ...]:
        """Rows of the tiles that end where a line of so many places does, the higher ones first;
        none where it is not known, or tiles go on from line to line."""
        if not isinstance(line, int) or not self.ends_lines(line):
            return ()
        count = -(-line // self.tile.rows)
        low, more = divmod(line, count)
        return (low + 1,) * more + (low,) * (count - more)

    @property
    def odd(self) -> int:
        """Rows of the tile that makes the rest of a line of unknown length even."""
        return self.tile.rows // 2 | 1

    @property
    def all_heights(self) -> tuple[int, ...]:
        """Rows of all tiles for lines of unknown length, the lower ones first."""
        return tuple(sorted({1, self.odd, *range(2, self.tile.rows + 1, 2)}))

    @property
    def axes(self) -> tuple[str, ...]:
        """The result's axes in scratch, outer to inner."""
        columns = tuple(c.axis for c in self.columns)
        return (self.n, *columns) if self.across else (*columns, self.n)

    @property
    def lane(self) -> str:
        """The last of them, which vectors run along."""
        return self.axes[-1]

    @property
    def turned(self) -> bool:
        """Whether pairs of weights lie along the sum, so that squares of them are turned."""
        pair = lying_pair(self.left)
        along = pair is not None and coefficient(pair[0].offset, self.depth) == 2
        return along and not self.flat

    def left_order(self) -> tuple[str, ...]:
        """Loops of the nest that packs the weights of one tap, or of few channels of all."""
        order = (self.flat or self.depth, self.n)
        return order[::-1] if self.turned else order

    def right_order(self) -> tuple[str, ...]:
        """Loops of the nest that packs the image."""
        found = self.packed_axes()
        if not self.image_across:
            return found
        *outer, last = found if self.few else found[:-1]
        return (*outer, self.depth, last)

    def packed_axes(self) -> tuple[str, ...]:
        """The packed image's axes in scratch, outer to inner."""
        if self.few:
            others = [a for a in self.others if a != self.columns[-1].tap]
            return (*packed_order(self.columns[:-1], others), self.line)
        return (*packed_order(self.columns, self.others), self.depth)

    def packed(self, local: dict[str, Index]) -> list[Index]:
        """Extents of the packed image along `packed_axes`."""
        sizes: dict[str, Index] = dict(zip(self.others, self.extents, strict=True))
        sizes |= {self.depth: self.pitch, **place_extents(self.columns, local)}
        if self.few:
            last = self.columns[-1]
            sizes[self.line] = mul(add(local[last.axis], last.margin), self.pitch)
        return [sizes[a] for a in self.packed_axes()]

    def room(self, local: dict[str, Index]) -> tuple[Index, Index]:
        """Elements of the packed weights, and of the packed image: rows that are computed in vain
        reach beyond it."""
        wide = self.extent(self.n, local[self.n], 1)
        vain = not self.ends_lines(local[self.columns[-1].axis])
        beyond = HEIGHTS[-1] if self.hosts else 0  # lowest tiles of stencils go beyond a line
        more = mul(self.tile.rows if vain else beyond, self.pitch)
        more = add(more, 1 if self.ends else self.tile.lanes * self.pitch * self.image_across)
        weights = 0 if self.panels else mul(self.taps * self.block, wide)
        return weights, add(product(self.packed(local)), more)

    def extent(self, axis: str, local: Index, inner: Index) -> Index:
        """Positions in scratch along an axis of the result: room for whole register tiles.

        `local` is a task's extent along it, `inner` that along the innermost axis of places."""
        if axis == self.n:
            return mul(ceiling(local, self.tile.columns), self.tile.columns)
        if self.ends_lines(inner):
            return local
        pitch = add(inner, self.columns[-1].margin)
        if len(self.columns) == 1:
            return add(pitch, self.tile.rows)
        return (
            pitch if axis == self.columns[-1].axis else add(local, ceiling(self.tile.rows, pitch))
        )

    def blocks(self, phase: Phase) -> dict[str, Index]:
        """How the grid is cut into tasks."""
        most = window_columns(self.item.dtype.itemsize)
        found: dict[str, Index] = {self.n: minimum(phase.axes[self.n], CHANNELS)}
        taken: Index = 1
        for c in self.columns[:-3:-1]:
            rows = maximum(floordiv(most, maximum(taken, 1)), 1)
            whole = phase.axes[c.axis]
            pieces = maximum(ceiling(whole, rows), 1)
            if self.hosts and c is not self.columns[-1]:
                few = floordiv(mul(whole, maximum(taken, 1)), HOSTED_PLACES)
                pieces = maximum(pieces, minimum(few, HOSTED_TASKS))
            found[c.axis] = ceiling(whole, pieces)
            taken = mul(taken, add(found[c.axis], c.margin))
        for c in self.columns[:-2]:
            found[c.axis] = self._images(phase.axes, c.axis, IMAGES * most)
        return {a: n for a, n in found.items() if a in phase.grid}

    def _images(self, sizes: Mapping[str, Index], batch: str, most: int) -> Index:
        """Images of a batch that a task takes: as many as have so many places, where that leaves
        enough tasks."""
        each = product(add(sizes[c.axis], c.margin) for c in self.columns[1:])
        width, tasks = sizes[self.n], TASKS
        if isinstance(width, int) and width > 0:
            tasks = ceiling(TASKS, ceiling(width, CHANNELS))
        fitting = minimum(floordiv(most, maximum(each, 1)), ceiling(sizes[batch], tasks))
        return maximum(fitting, 1)


__all__ = ["Lines", "NhwcConvPlan", "ends_lines", "in_panels", "lines_of", "upright_tile"]
