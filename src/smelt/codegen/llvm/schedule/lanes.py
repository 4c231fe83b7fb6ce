"""The vector axis of a contraction's result in scratch, whatever its plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smelt.codegen.llvm.schedule.conv_nhwc import NhwcConvPlan

if TYPE_CHECKING:
    from smelt.codegen.llvm.schedule.contract import Contraction
    from smelt.codegen.llvm.schedule.task_tiling import PackedPlan


def lane_axis(c: Contraction | PackedPlan) -> str:
    """Return the axis along which a contraction's result is contiguous."""
    return c.lane if isinstance(c, NhwcConvPlan) else c.n


__all__ = ["lane_axis"]
