"""Read rows of an operand side by side, and pack them in groups (VNNI).

Where a right operand's rows are contiguous along the columns of the result, the rows of a group are
read side by side and interleaved (VNNI, bf16, AMX).  If they are contiguous along the reduction
axis, a group is contiguous already, and tiles of units are transposed in registers.  The operand
may be computed as it is read.  GEMV multiplies such rows in place
(`smelt.codegen.llvm.products.gemv`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import element_address, store_vector
from smelt.codegen.llvm.instructions.dot_product import as_units, interleave_rows, to_packed_bits
from smelt.codegen.llvm.instructions.indexing import lanes_before_end, number
from smelt.codegen.llvm.instructions.machine import LLVMMachine
from smelt.codegen.llvm.instructions.transpose import transpose
from smelt.codegen.llvm.nest_loops import NestBody, Row
from smelt.codegen.llvm.nests.contraction import Contraction
from smelt.codegen.llvm.nests.environment import Environment, Scope
from smelt.codegen.llvm.nests.nest import Nest
from smelt.codegen.llvm.nests.product_plan import RIGHT_PART
from smelt.codegen.llvm.products.packing import panel_offset
from smelt.types.dtype import i32

Value = ir.Value


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


def panel_units(env: Environment, c: Contraction) -> Value:
    """Return units along k from one panel in scratch to the next.

    That is the capacity of a panel; for matrix instructions the units of the current block, so that
    panels are one contiguous run.
    """
    if c.group is None or not c.group.matrix:
        return number(c.packed_units)
    low, high = env.ranges[c.k]
    more = env.b.add(env.b.sub(high, low), number(c.group_size - 1))
    return env.b.udiv(more, number(c.group_size))


def factors(
    env: Environment, c: Contraction, body: NestBody, row: Row, at: Value, mask: Value | None
) -> Value:
    """Return a vector of a right operand's row, ready to multiply; 0 outside the mask."""
    value = body.packed(row, at, mask)
    if c.group is not None:
        m = LLVMMachine(env.b, body.lanes, env.frame.target)
        value = to_packed_bits(m, value, c.right, c.group)
    return value if mask is None else env.b.select(mask, value, ir.Constant(value.type, None))


def existing(b: ir.IRBuilder, vectors: Sequence[Value], k: Value, end: Value | None) -> list[Value]:
    """Return the vectors of rows from k on; those from `end` on are 0."""
    if end is None:
        return [*vectors]
    exists = [b.icmp_signed("<", b.add(k, number(r)), end) for r in range(len(vectors))]
    zero = ir.Constant(vectors[0].type, None)
    return [
        b.select(x, v, zero) if r else v
        for r, (x, v) in enumerate(zip(exists, vectors, strict=True))
    ]


class VnniPacker:
    """Packs one block of a right operand into panels of 32-bit units."""

    def __init__(self, env: Environment, c: Contraction, right: Nest, scope: Scope) -> None:
        assert c.group is not None
        self.env, self.b, self.c, self.group = env, env.b, c, c.group
        self.lanes = c.tile.lanes
        self.wide = self.lanes * self.group.count
        self.body = NestBody(env, right, self.wide, scope=scope)
        self._bits = partial(factors, env, c, self.body)
        self.machine = LLVMMachine(self.b, self.lanes, env.frame.target)
        self.base = env.storage.at[c.item, RIGHT_PART]
        self.k, self.n = env.ranges[c.k], env.ranges[c.n]
        self.units = panel_units(env, c)

    def run(self) -> None:
        """Emit the packing of complete groups; 0 past the last position of the reduction."""
        if self.c.vector_axis == self.c.k:
            self.env.loop(*self.n, self.lanes, self._columns)
            return
        b, (low, high), count = self.b, self.k, self.group.count
        middle = b.add(low, b.and_(b.sub(high, low), number(-count)))
        self.env.loop(low, middle, count, lambda k: self._rows(k, False))
        self.env.loop(middle, high, count, lambda k: self._rows(k, True))

    def _store(self, k: Value, column: Value, value: Value) -> None:
        """Store one vector of units at the absolute position of its first factor and column."""
        b, columns = self.b, self.c.tile.columns
        row = b.udiv(b.sub(k, self.k[0]), number(self.group.count))
        at = panel_offset(b, columns, self.units, row, b.sub(column, self.n[0]))
        store_vector(self.machine, element_address(b, self.base, at, i32), value, i32, None)

    def _rows(self, k: Value, ends: bool) -> None:
        """Emit a group of rows along n; with `ends` there may be fewer."""
        b, end = self.b, self.k[1] if ends else None
        rows = self.body.rows(k, count=self.group.count, end=end)

        def put(at: Value, mask: Value | None) -> None:
            vectors = existing(b, [self._bits(row, at, mask) for row in rows], k, end)
            for j, units_at in enumerate(interleave_rows(b, vectors)):
                self._store(k, b.add(at, number(j * self.lanes)), units_at)

        loop = masked_vector_loop if ends else vector_loop
        loop(self.env, self.n, self.wide, put)

    def _columns(self, n: Value) -> None:
        """Emit as many rows along k as a vector has units, transposed."""
        b = self.b
        right_rows = self.body.rows(n, count=self.lanes, end=self.n[1])

        def put(at: Value, mask: Value | None) -> None:
            rows = [as_units(b, self._bits(row, at, mask)) for row in right_rows]
            for t, column in enumerate(transpose(b, rows)):
                self._store(b.add(at, number(t * self.group.count)), n, column)

        vector_loop(self.env, self.k, self.wide, put)
