"""Emit one loop nest, each value at the outermost loop where it is invariant.

The loops of a nest are printed from the language of loops (`nest_loops.py`); products are emitted
by drivers, which are the loops around register tiles:

| driver | blocks and operands |
|---|---|
| `blocked` | blocks of both operands, packed or in place; also in streams, in groups, GEMV |
| `fused` | all of k in registers, or blocks of k with sums in scratch between them |
| `small_m_swapped` | few rows, and a right operand stored along k, which is broadcast in place |
| `nchw`, `nhwc` | a window of an image instead of rows, found by a table of positions |
| `depthwise` | a window and no sum over channels: packed, in place, or transposed |
| `depthwise_fused` | the same, row by row for the product that reads its results |
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.instructions.indexing import IndexEmitter
from smelt.codegen.llvm.loopir.items import Item
from smelt.codegen.llvm.loops.split_store_ranges import run_in_place, run_in_range
from smelt.codegen.llvm.nest_loops import print_scalar, run_as_loops
from smelt.codegen.llvm.nests.environment import (
    AxisRanges,
    Environment,
    Frame,
    Scope,
    Storage,
    VectorPacker,
)
from smelt.codegen.llvm.nests.nest import Nest
from smelt.codegen.llvm.nests.product_plan import Driver, ProductPlan
from smelt.codegen.llvm.products.blocked_gemm import BlockedGemm
from smelt.codegen.llvm.products.depthwise import Depthwise
from smelt.codegen.llvm.products.direct_store import find_direct_stores, run_unless_stored
from smelt.codegen.llvm.products.fused_gemm import FusedGemm
from smelt.codegen.llvm.products.implicit_gemm_nchw import ImplicitGemmNchw
from smelt.codegen.llvm.products.implicit_gemm_nhwc import ImplicitGemmNhwc
from smelt.codegen.llvm.products.small_m_swapped import SmallMSwappedGemm
from smelt.codegen.llvm.schedule.in_place_updates import find_in_place_update
from smelt.codegen.llvm.schedule.mask_ranges import (
    allocate_ranges,
    find_row_groups,
    for_each_row_group,
)
from smelt.codegen.llvm.schedule.transposed_strip import for_each_strip
from smelt.types.expr import Atom, Index

Value = ir.Value


class NestEmitter(Environment):
    """Emits the nests of one task in order; loop-free values are shared between them."""

    def __init__(self, frame: Frame, ranges: AxisRanges, top: Scope, storage: Storage) -> None:
        super().__init__(frame, ranges, top, storage)
        row_groups = find_row_groups(self.s) if self.s.phase.regions() else []
        self.row_groups = [allocate_ranges(self, groups) for groups in row_groups]
        self.direct = find_direct_stores(self)

    # ---- loops -----------------------------------------------------------------------------------

    def run(self, nest: Nest, scope: Scope | None = None) -> None:
        """Emit one nest, inside the loops of `scope`."""
        if nest.product is not None:
            self.products = driver = driver_of(self, nest, nest.product)
            driver.run()
            return
        if nest.store_range is not None:
            emit_range = partial(
                run_in_range, self, nest.store_range, lambda: self._run_loops(nest, scope)
            )
            run_unless_stored(self, nest, emit_range)
            return
        run = partial(self._run_loops, nest, scope)
        if self.row_groups:
            run = partial(for_each_row_group, self, nest, run)
        update = None if self.s.products else find_in_place_update(nest, self.s)
        if update is None:
            run_unless_stored(self, nest, run)
        else:
            run_in_place(self, update, run)

    def _run_loops(self, nest: Nest, scope: Scope | None) -> None:
        """Emit the loops of a nest, perhaps strip by strip."""
        run = partial(run_as_loops, self, nest, scope or self.top)
        if nest.strips:
            for_each_strip(self, nest, run)
        else:
            run()

    # ---- scalars ---------------------------------------------------------------------------------

    def index(self, e: Index, scope: Scope) -> Value:
        """Emit an index expression."""

        def leaf(atom: Atom) -> Value:
            if atom.kind == "size":
                return self.frame.sizes[atom.name]
            if atom.kind == "value":
                return self._scalar(self.s.phase.positions[atom.name], scope)
            return scope.axis(atom.name)

        return IndexEmitter(self.b, leaf, self.frame.entry.found).emit(e)

    def _scalar(self, item: Item, scope: Scope) -> Value:
        """Return the register of an item: available, or computed here."""
        register = scope.value(item)
        return scope.define(item, print_scalar(self, item, scope)) if register is None else register


# ---- drivers of products -------------------------------------------------------------------------


class ProductDriver(VectorPacker, Protocol):
    """Emits one product of a task."""

    def run(self) -> None:
        """Emit the product: pack, multiply, and store sums or what an epilogue makes of them."""
        ...


DRIVERS: Final[dict[Driver, Callable[[Environment, Nest, Any], ProductDriver]]] = {
    "blocked": BlockedGemm,
    "fused": FusedGemm,
    "small_m_swapped": SmallMSwappedGemm,
    "nchw": ImplicitGemmNchw,
    "nhwc": ImplicitGemmNhwc,
    "depthwise": Depthwise,
    "depthwise_fused": Depthwise,
}


def driver_of(env: Environment, nest: Nest, c: ProductPlan) -> ProductDriver:
    """Return the emitter of a product in the task that `env` is emitting."""
    return DRIVERS[c.driver](env, nest, c)
