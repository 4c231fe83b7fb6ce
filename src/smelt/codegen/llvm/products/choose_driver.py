"""Choose the driver which emits a packed product, by its plan.

    choose_driver(home, nest, nest.product).run()

Blocked contractions have a driver of their own (`smelt.codegen.llvm.products.blocked_gemm`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from smelt.codegen.llvm.products.depthwise_inplace import DepthwiseInPlace
from smelt.codegen.llvm.products.depthwise_packed import DepthwisePacked
from smelt.codegen.llvm.products.depthwise_transposed import DepthwiseTransposed
from smelt.codegen.llvm.products.implicit_gemm_nchw import ImplicitGemmNchw
from smelt.codegen.llvm.products.implicit_gemm_nhwc import ImplicitGemmNhwc
from smelt.codegen.llvm.products.k_blocked import KBlockedGemm
from smelt.codegen.llvm.products.small_m import SmallMGemm
from smelt.codegen.llvm.products.small_m_swapped import SmallMSwappedGemm
from smelt.codegen.llvm.products.tall_skinny import TallSkinnyGemm
from smelt.codegen.llvm.schedule.build_nests import Nest
from smelt.codegen.llvm.schedule.conv_plan import ConvPlan
from smelt.codegen.llvm.schedule.depthwise import DepthwisePlan
from smelt.codegen.llvm.schedule.tall_skinny import TallSkinnyPlan
from smelt.codegen.llvm.schedule.task_tiling import PackedPlan

if TYPE_CHECKING:
    from smelt.codegen.llvm.nest import NestEmitter

Driver = ImplicitGemmNchw | DepthwisePacked | ImplicitGemmNhwc | TallSkinnyGemm


def choose_driver(home: NestEmitter, nest: Nest, c: PackedPlan) -> Driver:
    """Return the emitter of a product in the task that `home` is emitting."""
    if isinstance(c, ConvPlan):
        return ImplicitGemmNchw(home, nest, c)
    if isinstance(c, TallSkinnyPlan):
        if c.small_m:
            return (SmallMSwappedGemm if c.swapped else SmallMGemm)(home, nest, c)
        return (KBlockedGemm if c.k_blocked else TallSkinnyGemm)(home, nest, c)
    if isinstance(c, DepthwisePlan):
        if c.rows_in_place is not None:
            return DepthwiseInPlace(home, nest, c)
        return (DepthwisePacked if c.transposed_rows is None else DepthwiseTransposed)(
            home, nest, c
        )
    return ImplicitGemmNhwc(home, nest, c)


__all__ = ["Driver", "choose_driver"]
