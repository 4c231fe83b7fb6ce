"""Find the driver of a product: the loops around its register tiles, by what its plan says.

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
from typing import Any, Final, Protocol

from smelt.codegen.llvm.nests.environment import Environment, VectorPacker
from smelt.codegen.llvm.nests.nest import Nest
from smelt.codegen.llvm.nests.product_plan import Driver, ProductPlan
from smelt.codegen.llvm.products.blocked_gemm import BlockedGemm
from smelt.codegen.llvm.products.depthwise import Depthwise
from smelt.codegen.llvm.products.fused_gemm import FusedGemm
from smelt.codegen.llvm.products.implicit_gemm_nchw import ImplicitGemmNchw
from smelt.codegen.llvm.products.implicit_gemm_nhwc import ImplicitGemmNhwc
from smelt.codegen.llvm.products.small_m_swapped import SmallMSwappedGemm


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
