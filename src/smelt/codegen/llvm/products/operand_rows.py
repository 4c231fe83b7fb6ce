"""Walk several rows of a right operand side by side.

Used for packing rows (`smelt.codegen.llvm.products.pack_vnni`) and for multiplying them in place
(`smelt.codegen.llvm.products.gemv`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.instructions.indexing import lanes_before_end, number
from smelt.codegen.llvm.instructions.scope import Lanes, Scope
from smelt.codegen.llvm.loopir.items import Item
from smelt.codegen.llvm.nests.environment import Environment

Value = ir.Value


def row_scopes(
    env: Environment,
    top: Scope,
    axis: str,
    at: Value,
    count: int,
    last: Value | None,
    depth: int = 1,
) -> list[Scope]:
    """Return scopes of `count` consecutive rows; rows past `last`, if given, repeat the last.

    In them `depth` loops are open.
    """
    b, scopes = env.b, list[Scope]()
    for r in range(count):
        row = b.add(at, number(r)) if r else at
        if last is not None and r:
            row = b.minimum(row, last)
        scopes.append(Scope(top, {axis: row}))
        env.enter(scopes[-1], depth)
    return scopes


def load_rows(
    env: Environment, item: Item, scopes: Sequence[Scope], lanes: Lanes, depth: int = 2
) -> list[Value]:
    """Return a vector of an operand in each of some rows, inside `depth` loops."""
    rows: list[Value] = []
    for scope in scopes:
        inner = Scope(scope, {lanes.axis: lanes.base}, lanes=lanes)
        env.enter(inner, depth)
        rows.append(env.get(item, inner, True))
    return rows


def vector_loop(
    env: Environment,
    span: tuple[Value, Value],
    wide: int,
    put: Callable[[Value, Value | None], None],
) -> None:
    """Emit `put(position, mask)` for full vectors of `wide` elements, then a masked one."""
    b, (low, high) = env.b, span
    middle = b.add(low, b.and_(b.sub(high, low), number(-wide)))
    env.loop(low, middle, wide, lambda at: put(at, None))
    masked_vector_loop(env, (middle, high), wide, put)


def masked_vector_loop(
    env: Environment, span: tuple[Value, Value], wide: int, put: Callable[[Value, Value], None]
) -> None:
    """Emit `put(position, mask)` for vectors of `wide` elements, all of them masked."""
    b, (low, high) = env.b, span

    def masked(at: Value) -> None:
        put(at, lanes_before_end(b, b.sub(high, at), wide))

    env.loop(low, high, wide, masked)
