"""The axis along which a product's results lie in scratch, whatever its form."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smelt.codegen.llvm.schedule.conv_nhwc import NhwcConvPlan

if TYPE_CHECKING:
    from smelt.codegen.llvm.schedule.contract import Contraction
    from smelt.codegen.llvm.schedule.task_tiling import Placed


def lane_of(c: Contraction | Placed) -> str:
    """The axis that vectors of a product's results run along."""
    return c.lane if isinstance(c, NhwcConvPlan) else c.n


__all__ = ["lane_of"]
