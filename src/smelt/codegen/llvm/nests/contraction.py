"""The plan of a contraction in blocks, and all plans of a phase.

It says along which axes operands are contiguous, or have fixed strides, and so what is packed.

`smelt.codegen.llvm.schedule.contract` chooses it, and describes which contractions have one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal, TypeVar, cast

from smelt.codegen.llvm.instructions.dot_product import DotInstruction
from smelt.codegen.llvm.loopir.items import Dot, Item, Load
from smelt.codegen.llvm.loopir.periodic_index import find_period
from smelt.codegen.llvm.nests.product_plan import (
    IN_PLACE,
    Driver,
    PackedPlan,
    PanelOperand,
    PlanDefaults,
    PlanNotes,
    ProductPlan,
    Tile,
    TileStores,
    packed_panels,
    tile_cycles,
)
from smelt.machine.blocks import DEPTH, GEMV, MATRIX_DEPTH, UNPACKED
from smelt.python.dataclass import dataclass
from smelt.types.dtype import DType, i32
from smelt.types.expr import Index, axes_of, coefficient, floordiv, maximum, mul


def contiguous_axis(x: Item, axes: tuple[str, ...]) -> str:
    """Return the axis along which most of a value's loads have stride 1.

    It is one of `axes`.
    """
    votes = dict.fromkeys(axes, 0)
    pending, seen = [x], {x}
    while pending:
        item = pending.pop()
        new_args = [a for a in item.args if a not in seen]
        pending += new_args
        seen.update(new_args)
        if isinstance(item, Load):
            for a in axes:
                if _is_unit_stride(item.access.offset, a):
                    votes[a] += 64 ** len(item.axes)
    return max(axes, key=lambda a: votes[a])


def _is_unit_stride(offset: Index, axis: str) -> bool:
    """Return whether neighbours along an axis are neighbours in memory.

    Or the same element several times, as two numbers of a byte.
    """
    step = coefficient(offset, axis)
    if step is not None:
        return step == 1
    period = find_period(offset, axis)
    return period is not None and 0 < period.step <= period.period


def is_strided_load(item: Item, dtype: DType, axes: tuple[str, str], unit: tuple[str, ...]) -> bool:
    """Return whether an operand is a plain load with fixed strides along `axes`.

    One of `unit` must have stride 1.
    """
    if not isinstance(item, Load) or item.access.limits or item.args or item.dtype != dtype:
        return False
    steps = {a: coefficient(item.access.offset, a) for a in axes}
    has_fixed_strides = all(s is not None and not axes_of(s) for s in steps.values())
    return has_fixed_strides and any(steps[a] == 1 for a in unit)


# ---- plans ---------------------------------------------------------------------------------------


SKEW = 16
"""Elements between packed rows of the left operand beyond its depth, against cache set
conflicts."""

GEMV_SKEW = 528
"""The skew of a GEMV, in elements.  All its rows are multiplied piece by piece: 256
positions of 16 rows fall on different sets of an L1 cache with 64 sets."""

Kind = Literal["packed", "small", "gemv"]


@dataclass(frozen=True, slots=True)
class Contraction(PlanDefaults):
    """The plan of a contraction: its operands in order, its axes, and its tile."""

    item: Dot
    left: Item
    right: Item
    m: str | None
    """None if the left operand has no axis of its own: only GEMV contractions and groups in panels
    allow that."""
    n: str
    outer: tuple[str, ...]
    k: str
    tile: Tile
    kind: Kind = "packed"
    vector_axis: str = ""
    """Of a thin or grouped contraction: the axis that vectors of the right operand run along."""
    direct: int = 0
    """If others read the left operand too: it is materialised in scratch with this row pitch, and
    multiplied there."""
    m_contiguous: bool = False
    """Whether such an operand is contiguous along m rather than along k."""
    stored_pitch: int = 0
    """As `direct`, if factors are grouped: it is materialised with this row pitch, and packed from
    there."""
    prepacked: bool = False
    """Whether the right operand is stored in panels as wide as the tile already: at [n//w, k,
    n%w]."""
    group: DotInstruction | None = None
    """The dot-product instruction for which factors are packed in groups, if any."""
    converts: bool = False
    """Whether the left operand is stored in another type, which not every tile is to convert
    again."""
    units: bool = False
    """Whether the left operand's rows hold such groups as they are stored, but for an incomplete
    last one."""

    @property
    def unit(self) -> DType:
        """The element type of packed operands in scratch."""
        return self.item.dtype if self.group is None else i32

    @property
    def group_size(self) -> int:
        """Reduced positions of one step of a tile."""
        return 1 if self.group is None else self.group.count

    @property
    def is_gemv(self) -> bool:
        """Whether the right operand is read once, in its own order (GEMV)."""
        return self.kind == "gemv"

    @property
    def depth(self) -> int:
        """Reduced positions for which the left operand is packed at once."""
        if self.is_gemv and self.m is None:
            return GEMV.row_depth * self.group_size
        return (
            GEMV.depth if self.is_gemv or self.by_panels else self.packed_units
        ) * self.group_size

    @property
    def packed_units(self) -> int:
        """Groups along the reduction that panels in scratch have room for."""
        return MATRIX_DEPTH if self.group is not None and self.group.matrix else DEPTH

    @property
    def pitch(self) -> int:
        """Groups between packed rows of the left operand."""
        skew = GEMV_SKEW if self.is_gemv else SKEW
        return self.direct or self.depth // self.group_size + skew

    @property
    def steps(self) -> tuple[int, int]:
        """Groups between rows of the left operand in scratch, and between positions along k."""
        return (1, self.pitch) if self.m_contiguous else (self.pitch, 1)

    @property
    def left_axes(self) -> tuple[str, ...]:
        """The left operand's axes in scratch, if it is multiplied in place there."""
        axes = (self.k,) if self.m is None else (self.m, self.k)
        return axes[::-1] if self.m_contiguous else axes

    @property
    def axes(self) -> tuple[str, ...]:
        """The result's axes in scratch, outer to inner."""
        return (self.n,) if self.m is None else (self.m, self.n)

    def reads_left_in_place(self) -> bool:
        """Return whether the left operand is read in place.

        It is contiguous along k, or small.
        """
        axes = (self.m or "", self.k)
        plain = not self.is_gemv and self.group is None and not self.converts
        return plain and is_strided_load(
            self.left, self.item.dtype, axes, axes[self.kind != "small" :]
        )

    def reads_right_rows(self) -> bool:
        """Return whether the right operand of a GEMV has contiguous rows along n."""
        open_ = is_strided_load(self.right, self.item.dtype, (self.k, self.n), (self.n,))
        return self.is_gemv and self.vector_axis == self.n and self.group is None and open_

    def reads_right_in_place(self) -> bool:
        """Return whether tiles read the right operand in place."""
        axes = (self.k, self.n)
        plain = self.kind == "small" and self.group is None
        in_place = plain and is_strided_load(self.right, self.item.dtype, axes, axes[1:])
        return self.prepacked or in_place

    def masks_columns(self) -> bool:
        """Return whether tiles mask columns past the end."""
        return self.reads_right_in_place() and not self.prepacked

    def is_single_block(self, positions: Index) -> bool:
        """Return whether so many reduced positions are a single block of which nothing is
        packed."""
        is_short = not isinstance(positions, int) or positions <= UNPACKED.kc
        return (
            is_short
            and self.kind == "small"
            and self.masks_columns()
            and self.reads_left_in_place()
        )

    def is_right_in_rows(self) -> bool:
        """Return whether the right operand has contiguous rows, which are not packed if short."""
        plain = (
            self.kind == "packed"
            and self.group is None
            and not (self.prepacked or self.m_contiguous)
        )
        return plain and is_strided_load(self.right, self.item.dtype, (self.k, self.n), (self.n,))

    @property
    def driver(self) -> Driver:
        """The loops around its register tiles."""
        return "blocked"

    def notes(self) -> PlanNotes:
        """Return the policies of this plan in words."""
        transposed = contiguous_axis(self.right, (self.n, self.k)) == self.k
        left, right = "packed in rows", packed_panels(self.tile.columns, transposed=transposed)
        if self.reads_left_in_place() or self.units:
            left = IN_PLACE
        elif self.direct:
            left = "stored once, multiplied there"
        if self.is_gemv:
            right = f"{IN_PLACE}, once, along {self.vector_axis}"
        elif self.reads_right_in_place():
            right = "in panels already" if self.prepacked else IN_PLACE
        if self.group is not None:
            right += f", {self.group_size} positions at a time"
        axes = f"{self.m or 1} x {self.n} over {', '.join((*self.outer, self.k))}"
        return PlanNotes(axes, left, right, f"in scratch, {self.depth} positions at a time")

    @property
    def reads_past_end(self) -> bool:
        """Whether packed rows of a GEMV are read past the last one: several at once, or tiles."""
        return self.is_gemv and (self.m is not None or self.reads_right_rows())

    @property
    def unroll_of_packing(self) -> int:
        """Vectors that a nest packs at once: those of a group are interleaved."""
        return self.group_size if self.group else 2

    @property
    def transposes_packing(self) -> bool:
        """Whether the right operand is packed by a nest that may transpose it."""
        return not self.is_gemv and self.group is None

    def left_order(self) -> tuple[str, ...]:
        """Return the loops of the nest that packs the left operand."""
        return (self.k,) if self.m is None else (self.m, self.k)

    def right_order(self) -> tuple[str, ...]:
        """Return the loops of the nest that packs the right operand."""
        return (self.k, self.n) if self.vector_axis != self.k else (self.n, self.k)

    def cycles(self, points: Index, rows: Index) -> Index:
        """Return the cycles of so many multiply-adds.

        A GEMV waits for the bytes of its right operand instead.
        """
        if not self.is_gemv:
            return tile_cycles(points, self.tile, self.group_size)
        rows = maximum(rows, 1 if isinstance(rows, int) else 2)  # a symbolic size may be 0
        return floordiv(mul(4, points), mul(rows, self.tile.lanes))

    def tile_stores(self, local: Mapping[str, Index]) -> TileStores | None:
        """Return how tiles may store results directly: if each sees whole rows of blocks."""
        if self.is_gemv or self.m is None or self.outer:
            return None
        return TileStores(
            rounds=self.group is None or not self.group.matrix,
            columns="masked" if self.masks_columns() else "full",
            summed=self.k,
        )

    def panel_operand(self) -> PanelOperand | None:
        """Return the right operand, which tiles read in panels if it is packed."""
        rows = tuple(a for a in (self.m, *self.outer) if a is not None)
        return PanelOperand(
            self.right,
            rows,
            self.group,
            is_small=self.group is None,
            is_prepacked=self.prepacked,
            packs=self.kind == "packed" or self.interleaves_rows,
        )

    @property
    def interleaves_rows(self) -> bool:
        """Whether a GEMV of a single row interleaves rows of its right operand in registers."""
        is_single_row = self.is_gemv and self.m is None
        return is_single_row and self.vector_axis == self.n and self.group is not None

    @property
    def by_panels(self) -> bool:
        """Whether few rows are multiplied panel by panel, each panel read to its end."""
        return self.prepacked and self.kind == "small"


Plan = TypeVar("Plan", bound=ProductPlan)


def renewed(plan: Plan, latest: Callable[[Item], Item]) -> Plan:
    """Return a plan after a rewrite, which tells what each item has become."""
    changed = {name: latest(getattr(plan, name)) for name in ("item", "left", "right")}
    if all(item is getattr(plan, name) for name, item in changed.items()):
        return plan
    return replace(cast(Any, plan), **changed)


class Products(Mapping[Item, ProductPlan]):
    """The plans of a phase's products: all `blocked`, or all `packed`."""

    def __init__(
        self,
        blocked: Mapping[Item, Contraction] | None = None,
        packed: Mapping[Item, PackedPlan] | None = None,
    ) -> None:
        self.blocked = list((blocked or {}).values())
        """Plans of blocks along one axis of each operand, which may be in streams."""
        self.packed = list((packed or {}).values())
        """Plans whose operands are packed by position."""
        self._plans: dict[Item, ProductPlan] = {**(blocked or {}), **(packed or {})}

    def renewed(self, latest: Callable[[Item], Item]) -> Products:
        """Return the same plans after a rewrite, which tells what each item has become."""
        blocked = {latest(c.item): renewed(c, latest) for c in self.blocked}
        return Products(blocked, {latest(c.item): renewed(c, latest) for c in self.packed})

    def __getitem__(self, item: Item) -> ProductPlan:
        return self._plans[item]

    def __iter__(self) -> Iterator[Item]:
        return iter(self._plans)

    def __len__(self) -> int:
        return len(self._plans)
