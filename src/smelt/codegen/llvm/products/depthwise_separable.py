"""Stencils that a product has line by line, while it packs what is made of them.

Where that is made of a sum and of what has one value for each channel (a norm, an activation), the
register tiles compute it before they store anything, and store it where the product packs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import element_address, load_scalar, load_vector
from smelt.codegen.llvm.instructions.indexing import splat
from smelt.codegen.llvm.instructions.machine import emit
from smelt.codegen.llvm.loopir.items import Access, Item
from smelt.codegen.llvm.products.depthwise_inplace import DepthwiseInPlace, LyingTile
from smelt.codegen.llvm.products.depthwise_microkernel import PTR
from smelt.codegen.llvm.products.tile_loops import in_blocks
from smelt.codegen.llvm.schedule.build_nests import Nest, Schedule
from smelt.codegen.llvm.schedule.depthwise import DepthwisePlan
from smelt.codegen.llvm.scratch.workspace import RIGHT_PART
from smelt.dataclass import dataclass
from smelt.ops.scalar import SCALARS
from smelt.types.affine import coefficient
from smelt.types.dtype import DType
from smelt.types.expr import axes_of, substitute

if TYPE_CHECKING:
    from smelt.codegen.llvm.nest import NestEmitter
    from smelt.codegen.llvm.products.implicit_gemm_nhwc import ImplicitGemmNhwc

Value = ir.Value


@dataclass(frozen=True, slots=True)
class After:
    """What is made of a stencil's sums: scalar operators in order, and what they read for each
    channel, with its types in memory."""

    sums: Item
    made: tuple[Item, ...]
    reads: tuple[Item, ...]
    dtypes: tuple[DType, ...]


def after(s: Schedule, c: DepthwisePlan, image: Item, dtypes: dict[str, DType]) -> After | None:
    """What the image of a product is made of, if that is but a stencil's sums and values that every
    line has again; None where it is more, or of other types."""
    made, reads = list[Item](), list[Item]()
    wanted = {*_needed(image, c.item)}
    for item in (i for i in s.phase.items if i in wanted):
        if item.kind == "load":
            if not _is_fixed(item, c):
                return None
            reads.append(item)
        elif item.kind not in ("apply", "const"):
            return None
        else:
            made.append(item)
        if item.dtype != c.item.dtype:
            return None
    stored = tuple(dtypes[i.payload.buffer] for i in reads if isinstance(i.payload, Access))
    return After(c.item, tuple(made), tuple(reads), stored) if image in wanted else None


def _needed(image: Item, sums: Item) -> list[Item]:
    """What an image is made of, up to the sums."""
    pending, found = [image], dict[Item, None]()
    while pending:
        item = pending.pop()
        if item is not sums and item not in found:
            found[item] = None
            pending += item.args
    return [*found]


def _is_fixed(item: Item, c: DepthwisePlan) -> bool:
    """Whether a load has one value for each channel, those of neighbours side by side, or one."""
    access, lines = item.payload, {k.axis for k in c.columns[:-1]}
    if not isinstance(access, Access) or access.limits or access.positions or item.args:
        return False
    along = coefficient(access.offset, c.lane)
    return lines.isdisjoint(axes_of(access.offset)) and along in (0, 1)


class DepthwiseSeparable(DepthwiseInPlace):
    """One such stencil in the task that `home` is emitting."""

    def __init__(self, home: NestEmitter, nest: Nest, c: DepthwisePlan, image: Item) -> None:
        super().__init__(home, nest, c)
        self.after = after(home.s, c, image, home.home.dtypes)

    def more(self, lane: Value) -> list[Value]:
        b, home, found = self.b, self.home, list[Value]()
        for item in self.after.reads if self.after else ():
            access = item.payload
            assert isinstance(access, Access)
            at = home.index(substitute(access.offset, {self.c.lane: 0}), home.top)
            if self.c.lane in axes_of(access.offset):
                at = b.add(at, b.add(home.ranges[self.c.lane][0], lane))
            dtype = home.home.dtypes[access.buffer]
            found.append(element_address(b, home.home.buffers[access.buffer], at, dtype))
        return found

    def tile_kind(self) -> tuple[type[LyingTile], list[str]]:
        kind, names = super().tile_kind()
        if self.after is None:
            return kind, names
        operands = (*kind.operands, *[PTR] * len(self.after.reads))
        more = {"after": self.after, "operands": operands}
        return type("HostedTile", (HostedTile, kind), more), [*names, f"of{self.c.item.number}"]


class HostedTile(LyingTile):
    """A tile that stores what is made of its sums."""

    after: ClassVar[After]

    def made(self, sums: list[Value]) -> list[Value]:
        m, found = self.m, list[Value]()
        where = self.given[len(self.given) - len(self.after.reads) :]
        fixed: dict[Item, Value] = {}
        for item, address, dtype in zip(self.after.reads, where, self.after.dtypes, strict=True):
            if self.c.lane in item.axes:
                fixed[item] = load_vector(m, address, dtype, self.mask())
            else:
                one = load_scalar(self.scalar, address, dtype, None)
                fixed[item] = splat(self.b, one, self.c.tile.lanes)
        for total in sums:
            known = {**fixed, self.after.sums: total}
            for item in self.after.made:
                if isinstance(item.payload, str):
                    args = [known[a] for a in item.args]
                    dtypes = [a.dtype for a in item.args]
                    known[item] = emit(SCALARS[item.payload], m, dtypes, args)
                else:
                    assert isinstance(item.payload, (int, float, bool))
                    known[item] = m.const(item.dtype, item.payload)
            found.append(known[self.after.made[-1]] if self.after.made else total)
        return found


def hosted(home: NestEmitter, image: Item) -> list[DepthwiseSeparable]:
    """The stencils that the product of an image has."""
    inner = [n for n in home.s.nests if isinstance(n.product, DepthwisePlan) and n.product.within]
    return [
        DepthwiseSeparable(home, n, n.product, image)
        for n in inner
        if isinstance(n.product, DepthwisePlan)
    ]


def pack_by_lines(
    packer: ImplicitGemmNhwc, nest: Nest, inner: Sequence[DepthwiseSeparable], outer: Sequence[str]
) -> None:
    """Packs an image line by line: what the stencils do not store there is made of their results,
    of which scratch has those of one line."""
    home, starts = packer.home, {a: packer.home.ranges[a][0] for a in nest.order}
    for stencil in inner:
        home.products = stencil
        stencil.open()
        home.starts[None, stencil.c.lane] = home.ranges[stencil.c.lane][0]

    def line(axes: Sequence[str]) -> None:
        if axes:
            in_blocks(home, axes[0], 1, lambda: line(axes[1:]))
            return
        home.starts |= {(None, a): home.ranges[a][0] for a in outer}
        for stencil in inner:
            if stencil.after is not None:
                stencil.results = {k.axis: packer.strides[k.axis] for k in stencil.c.columns[:-1]}
                stencil.to = packer.at(RIGHT_PART, far_of(packer, starts, outer))
            stencil.tiles()
        if any(stencil.after is None for stencil in inner):
            home.products = packer
            packer.pack(nest, starts=starts)

    kept = dict(home.starts)
    line(outer)
    home.products, home.starts = packer, kept


def far_of(packer: ImplicitGemmNhwc, starts: dict[str, Value], outer: Sequence[str]) -> Value:
    """How far the line at hand lies from the first one that is packed."""
    b, found = packer.b, ir.Constant(ir.IntType(64), 0)
    for a in outer:
        here = b.sub(packer.home.ranges[a][0], starts[a])
        found = b.add(found, b.mul(here, packer.strides[a]))
    return found


__all__ = ["DepthwiseSeparable", "hosted", "pack_by_lines"]
