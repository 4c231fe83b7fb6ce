"""What is left of a row behind its last whole wide vector: fewer lanes, masked where they are few.

Bands see whole groups of columns, of which one may be left; what lanes pick is best without masks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.instructions.indexing import number

if TYPE_CHECKING:
    from smelt.codegen.llvm.nest import NestEmitter

Value = ir.Value


def left_over(
    home: NestEmitter,
    rest: tuple[Value, Value],
    at: Callable[..., Callable[[Value], None]],
    singly: bool,
) -> None:
    """The positions of a row between two numbers, the whole vectors among them each for itself
    where `singly` says so.  Where they are taken at once, for the sake of a
    sum, half of a wide vector is enough for up to half of its lanes.

    `at` gives the body for so many lanes, with or without the mask of the row's end, at multiples
    of a number."""
    b, nest, lanes = home.b, home.nest, home.s.lanes
    middle, high = rest
    step, axis = home.folds.rest(), nest.vector or ""
    apart = home.apart(axis, lanes)

    def either(position: Value) -> None:
        few = b.icmp_signed("<=", b.sub(high, position), number(step // 2))
        with b.if_else(few) as (half, whole):
            with half:
                at(step // 2, True, apart)(position)
            with whole:
                at(step, True, apart)(position)

    one = step == lanes
    groups = [x.bands.group for x in home.bands if nest in x.bands.nests]
    groups += [step] * (one and (singly or any(home.step(x, axis) is None for x in home.accesses)))
    for group in (n for n in groups if n < lanes * nest.wide):
        whole = b.add(middle, b.and_(b.sub(high, middle), number(-group)))
        home.loop(middle, whole, group, at(group, False, apart))
        middle = whole
    home.loop(middle, high, step, at(step, True, apart) if one else either)


__all__ = ["left_over"]
