"""Which operand of a product had better be packed in rows, and which in panels.

Rows hold what is summed side by side, panels hold lines of what is not.  An operand that is
computed comes in vectors along one of its axes, and is packed well only where they stay whole.
"""

from __future__ import annotations

from collections.abc import Mapping

from smelt.codegen.llvm.loopir.items import Item

__all__ = ["lies_along", "scatters"]


def scatters(left: Item, right: Item, rows: str | None, across: Mapping[Item, str]) -> bool:
    """Whether packing the left operand in rows would scatter every vector of it, and the right one,
    an array as it lies, is packed as easily on either side.

    Such an operand follows from the sums of an earlier product whose vectors lie along `rows`;
    `across` says for each product along which axis its vectors lie.  Changing sides turns the
    result instead, which is the smaller one where a stream keeps it.
    """
    plain = right.kind == "load" and left.kind != "load"
    return plain and lies_along(left, rows, across)


def lies_along(item: Item, axis: str | None, across: Mapping[Item, str]) -> bool:
    """Whether a value is computed in vectors along an axis, as the product that it follows from."""
    pending, seen = [item], {item}
    while pending:
        item = pending.pop()
        if item in across:
            return across[item] == axis
        fresh = [a for a in item.args if a not in seen]
        pending += fresh
        seen.update(fresh)
    return False
