"""The axis along which a product's results lie in scratch, whatever its form."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smelt.codegen.llvm.schedule.upright import Upright

if TYPE_CHECKING:
    from smelt.codegen.llvm.schedule.contract import Contraction
    from smelt.codegen.llvm.schedule.tasks import Placed


def lane_of(c: Contraction | Placed) -> str:
    """The axis that vectors of a product's results run along."""
    return c.lane if isinstance(c, Upright) else c.n


__all__ = ["lane_of"]
