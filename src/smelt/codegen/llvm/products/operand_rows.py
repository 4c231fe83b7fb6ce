"""Lines of a product's right operand side by side, and the way along them: for whoever packs such
lines (`smelt.codegen.llvm.products.pack_vnni`) or multiplies them at once
(`smelt.codegen.llvm.products.gemv`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.instructions.indexing import iota, number, splat
from smelt.codegen.llvm.instructions.scope import Scope

if TYPE_CHECKING:
    from smelt.codegen.llvm.nest import NestEmitter

Value = ir.Value


def lines_from(
    home: NestEmitter, top: Scope, axis: str, at: Value, count: int, last: Value | None
) -> list[Scope]:
    """The places of `count` lines from a position on; those beyond the `last` one, if there may be
    such, are again the last one."""
    b, found = home.b, list[Scope]()
    for r in range(count):
        line = b.add(at, number(r)) if r else at
        if last is not None and r:
            line = b.select(b.icmp_signed("<", line, last), line, last)
        found.append(Scope(top, {axis: line}))
        home.enter(found[-1], 1)
    return found


def along(
    home: NestEmitter,
    span: tuple[Value, Value],
    wide: int,
    put: Callable[[Value, Value | None], None],
) -> None:
    """Whole steps of `wide` elements, then a masked one: position and mask."""
    b, (low, high) = home.b, span
    middle = b.add(low, b.and_(b.sub(high, low), number(-wide)))
    home.loop(low, middle, wide, lambda at: put(at, None))
    masked_along(home, (middle, high), wide, put)


def masked_along(
    home: NestEmitter, span: tuple[Value, Value], wide: int, put: Callable[[Value, Value], None]
) -> None:
    """Steps of `wide` elements, all of them masked."""
    b, (low, high) = home.b, span

    def masked(at: Value) -> None:
        put(at, b.icmp_signed("<", iota(wide), splat(b, b.sub(high, at), wide)))

    home.loop(low, high, wide, masked)


__all__ = ["along", "lines_from", "masked_along"]
