"""Hold the plans of a phase's products.

products.blocked      plans of blocks along one axis of each operand, which may be in streams
products.packed       plans whose operands are packed by position: epilogues, windows
products[item]        the plan of a contraction
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from smelt.codegen.llvm.loopir.items import Item
from smelt.codegen.llvm.nests.contraction import Contraction
from smelt.codegen.llvm.nests.product_plan import PackedPlan, ProductPlan

__all__ = ["Products"]


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

    def __getitem__(self, item: Item) -> ProductPlan:
        return self._plans[item]

    def __iter__(self) -> Iterator[Item]:
        return iter(self._plans)

    def __len__(self) -> int:
        return len(self._plans)
