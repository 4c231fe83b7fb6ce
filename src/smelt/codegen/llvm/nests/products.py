"""Hold the plans of a phase's products.

products.blocked      plans of blocks along one axis of each operand, which may be in streams
products.packed       plans whose operands are packed by position: epilogues, windows
products[item]        the plan of a contraction
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar, cast

from smelt.codegen.llvm.loopir.items import Item
from smelt.codegen.llvm.nests.contraction import Contraction
from smelt.codegen.llvm.nests.product_plan import PackedPlan, ProductPlan

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
