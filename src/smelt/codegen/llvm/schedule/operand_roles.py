"""Choose which operand of a contraction is packed in rows (A), and which in panels (B).

Rows hold reduced positions contiguously, panels hold rows of the other axis.  A computed operand
comes in vectors along one of its axes, and packs well only where these stay whole.
"""

from __future__ import annotations

from collections.abc import Mapping

from smelt.codegen.llvm.loopir.items import Item

__all__ = ["is_computed_along", "packing_scatters"]


def packing_scatters(
    left: Item, right: Item, rows: str | None, lane_axes: Mapping[Item, str]
) -> bool:
    """Return whether packing the left operand in rows would scatter every vector of it.

    And the right one, a plain load, packs as easily on either side.  Such a left operand depends on
    an earlier contraction whose vectors run along `rows`; `lane_axes` maps each contraction to its
    vector axis.  Swapping the operands transposes the result instead, which is the smaller one
    where a stream keeps it.
    """
    plain = right.kind == "load" and left.kind != "load"
    return plain and is_computed_along(left, rows, lane_axes)


def is_computed_along(item: Item, axis: str | None, lane_axes: Mapping[Item, str]) -> bool:
    """Return whether a value is computed in vectors along an axis, as the contraction it depends
    on."""
    pending, seen = [item], {item}
    while pending:
        item = pending.pop()
        if item in lane_axes:
            return lane_axes[item] == axis
        new_args = [a for a in item.args if a not in seen]
        pending += new_args
        seen.update(new_args)
    return False
