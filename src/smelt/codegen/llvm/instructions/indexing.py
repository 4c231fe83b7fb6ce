"""Emit index expressions as LLVM values: scalars, or vectors along a lane axis."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from math import gcd, prod
from typing import Any, TypeGuard

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.instructions.registers import TextConstant
from smelt.ops.contract import bare_axis
from smelt.python.dataclass import dataclass
from smelt.types.expr import (
    Atom,
    Expr,
    Index,
    add,
    axes_of,
    coefficient,
    mul,
    nonnegative,
    size,
    sub,
)

I64 = ir.IntType(64)
Value = ir.Value
Leaf = Callable[[Atom], Value]


@lru_cache(maxsize=4096)
def number(value: int) -> Value:
    """Return an i64 constant, cached since few values occur thousands of times."""
    return ir.Constant(I64, value)


def splat(b: ir.IRBuilder, value: Value, lanes: int) -> Value:
    """Broadcast a scalar to every lane, constants as constants; vectors pass unchanged."""
    if isinstance(value.type, ir.VectorType):
        return value
    if isinstance(value, TextConstant):
        return value.splat(lanes)
    undefined, zero, zeros = _spread(value.type, lanes)
    return b.shuffle_vector(b.insert_element(undefined, value, zero), undefined, zeros)


@lru_cache(maxsize=256)
def _spread(element: Any, lanes: int) -> tuple[ir.Constant, ir.Constant, ir.Constant]:
    """Return what `splat` needs: an undefined vector, lane index 0, and a mask of zeros."""
    index = ir.IntType(32)
    undefined = ir.Constant(ir.VectorType(element, lanes), ir.Undefined)
    return undefined, index(0), ir.Constant(ir.VectorType(index, lanes), None)


def iota(lanes: int) -> Value:
    """Return <0, 1, 2, ..>."""
    return ir.Constant(ir.VectorType(I64, lanes), list(range(lanes)))


def first_lanes(b: ir.IRBuilder, count: Value, lanes: int) -> Value:
    """Return the mask of the first `count` lanes, all lanes if there are fewer.

    It compares 32-bit numbers, once; LLVM would compare 64-bit ones in halves.
    """
    kind = ir.IntType(32)
    limit = b.select(b.icmp_signed("<", count, number(lanes)), count, number(lanes))
    numbers = ir.Constant(ir.VectorType(kind, lanes), list(range(lanes)))
    mask = b.icmp_signed("<", numbers, splat(b, b.trunc(limit, kind), lanes))
    return ir.PrefixMask(mask, limit)


def opaque(b: ir.IRBuilder, value: Value) -> Value:
    """Return an i64 about which LLVM knows nothing, at no cost.

    Where LLVM 22 sees that one lane of a masked store is left, and the elements have just been
    narrowed, it stores a whole wide lane (llvm-project #179489, x86 with AVX-512).
    """
    return b.asm(ir.FunctionType(I64, [I64]), "", "=r,0", [value], False)


def lanes_before_end(b: ir.IRBuilder, left: Value, lanes: int) -> ir.PrefixMask:
    """Return the mask of the first `left` lanes."""
    return ir.PrefixMask(b.icmp_signed("<", iota(lanes), splat(b, left, lanes)), left)


def short_lanes_before_end(b: ir.IRBuilder, left: Value, lanes: int) -> ir.PrefixMask:
    """Return that mask by comparing short numbers: half as many registers, if there are several."""
    end = left
    for sign, limit in (("<", 0), (">", lanes)):
        end = b.select(b.icmp_signed(sign, end, number(limit)), number(limit), end)
    kind = ir.IntType(32)
    numbers = ir.Constant(ir.VectorType(kind, lanes), list(range(lanes)))
    return ir.PrefixMask(b.icmp_signed("<", numbers, splat(b, b.trunc(end, kind), lanes)), left)


@dataclass(frozen=True, slots=True)
class LaneAxis:
    """The axis which lanes run along, and their number."""

    axis: str
    lanes: int


class IndexEmitter:
    """Emits index arithmetic at the builder's position.

    `leaf` returns the value of a variable: its value in the first lane where lanes run `along` an
    axis.

    Quotients and extrema are emitted once (common subexpressions): an emitter is used in program
    order, and `above` has the values of an enclosing emitter.  Long expressions repeat parts in
    many places, and LLVM would take seconds to find them.
    """

    def __init__(
        self,
        builder: ir.IRBuilder,
        leaf: Leaf,
        above: Mapping[Atom, Value] | None = None,
        along: LaneAxis | None = None,
    ) -> None:
        self.b, self.leaf, self.along = builder, leaf, along
        self.above = above or {}
        self.found: dict[Atom, Value] = {}

    def emit(self, e: Index) -> Value:
        """Return `e` as i64, or as a vector if a variable is one."""
        if isinstance(e, int):
            return number(e)
        total: Any = None
        for monomial, c in e.terms:
            part: Any = None
            for atom in monomial:
                value = self._atom(atom)
                part = value if part is None else self._pair(self.b.mul, part, value)
            if part is None:
                part = number(c)
            elif c != 1:
                part = self._pair(self.b.mul, part, number(c))
            total = part if total is None else self._pair(self.b.add, total, part)
        return total

    def _pair(self, op: Callable[..., Value], a: Value, b: Value) -> Value:
        for x, y in ((a, b), (b, a)):
            if isinstance(x.type, ir.VectorType) and not isinstance(y.type, ir.VectorType):
                lanes = x.type.count
                return op(splat(self.b, a, lanes), splat(self.b, b, lanes))
        return op(a, b)

    def _atom(self, atom: Atom) -> Value:
        if atom.kind in ("size", "axis", "value"):
            value, along = self.leaf(atom), self.along
            if along is None or (atom.kind, atom.name) != ("axis", along.axis):
                return value
            return self.b.add(splat(self.b, value, along.lanes), iota(along.lanes))
        value = self.above.get(atom)
        if value is None and (value := self.found.get(atom)) is None:
            value = self.found[atom] = self._compound(atom)
        return value

    def _compound(self, atom: Atom) -> Value:
        if self.along is not None and self._counts_up(atom, self.along):
            return self._count_per_lane(atom, self.along)
        a, b = (self.emit(x) for x in atom.args)
        if atom.kind in ("min", "max"):
            return self._pair(lambda x, y: self._extreme(atom.kind == "min", x, y), a, b)
        plain = nonnegative(atom.args[0])
        if atom.kind == "//":
            return self._pair(self.b.udiv if plain else self._floor_div, a, b)
        return self._pair(self.b.urem if plain else self._floor_mod, a, b)

    def _counts_up(self, atom: Atom, along: LaneAxis) -> bool:
        """Return whether an atom divides what grows by one per lane."""
        if atom.kind not in ("//", "%") or not nonnegative(atom.args[0]):
            return False
        above, below = atom.args
        return coefficient(above, along.axis) == 1 and along.axis not in axes_of(below)

    def _count_per_lane(self, atom: Atom, along: LaneAxis) -> Value:
        """Return such a quotient or remainder in all lanes, without 64-bit divisions per lane.

        How often a remainder has wrapped around by a lane is a quotient of numbers no larger than
        the number of lanes, which single precision computes exactly.
        """
        b, lanes = self.b, along.lanes
        first, by = (IndexEmitter(b, self.leaf, self.above).emit(x) for x in atom.args)
        remainder, lane_count = b.urem(first, by), number(lanes)
        until_wrap, step = (
            b.sub(by, remainder),
            b.select(b.icmp_signed("<", by, lane_count), by, lane_count),
        )
        until_wrap = b.select(b.icmp_signed("<", until_wrap, lane_count), until_wrap, lane_count)
        single = ir.FloatType()
        start = b.uitofp(b.sub(step, until_wrap), single)
        nth = ir.Constant(ir.VectorType(single, lanes), [n + 0.5 for n in range(lanes)])
        wraps = b.fdiv(b.fadd(splat(b, start, lanes), nth), splat(b, b.uitofp(step, single), lanes))
        wraps = b.fptosi(wraps, ir.VectorType(ir.IntType(32), lanes))
        wraps = b.zext(wraps, ir.VectorType(I64, lanes))
        if atom.kind == "//":
            return b.add(splat(b, b.udiv(first, by), lanes), wraps)
        counted = b.add(splat(b, remainder, lanes), iota(lanes))
        return b.sub(counted, b.mul(wraps, splat(b, by, lanes)))

    def _extreme(self, least: bool, a: Value, b: Value) -> Value:
        smaller = self.b.icmp_signed("<", a, b)
        return self.b.select(smaller, a, b) if least else self.b.select(smaller, b, a)

    def _floor_mod(self, a: Value, b: Value) -> Value:
        """Return the remainder, with the sign of a positive divisor."""
        if _power_of_two(b):
            return self.b.and_(a, number(int(b.constant) - 1))
        r: Value = self.b.srem(a, b)
        zero: Value = ir.Constant(a.type, None)
        return self.b.select(self.b.icmp_signed("<", r, zero), self.b.add(r, b), r)

    def _floor_div(self, a: Value, b: Value) -> Value:
        if _power_of_two(b):
            return self.b.ashr(a, number(int(b.constant).bit_length() - 1))
        return self.b.sdiv(self.b.sub(a, self._floor_mod(a, b)), b)


def _power_of_two(a: Value) -> TypeGuard[ir.Constant]:
    """Return whether a divisor is a constant power of two."""
    if not isinstance(a, ir.Constant) or isinstance(a.type, ir.VectorType):
        return False
    n = int(a.constant)
    return n > 0 and n & (n - 1) == 0


def depth_terms(e: Index, depth_of: Callable[[Atom], int], count: int) -> list[Index]:
    """Group the terms of `e` by the deepest loop they depend on (0 .. count-1)."""
    groups: list[dict[Any, int]] = [{} for _ in range(count)]
    terms = e.terms if isinstance(e, Expr) else (((), e),) if e else ()
    for monomial, c in terms:
        groups[max((_depth(a, depth_of) for a in monomial), default=0)][monomial] = c
    return [Expr(tuple(g.items())) if g else 0 for g in groups]


def _depth(atom: Atom, depth_of: Callable[[Atom], int]) -> int:
    if atom.kind in ("size", "axis", "value"):
        return depth_of(atom)
    inner = [
        _depth(a, depth_of) for e in atom.args if isinstance(e, Expr) for m, _ in e.terms for a in m
    ]
    return max(inner, default=0)


def lane_invariant(e: Index, axis: str, lanes: int) -> Index:
    """Replace quotients which are equal in all lanes by symbols, to read off the stride.

    Vectors start at multiples of their width, so i//s is the same in all lanes when s is a multiple
    of it, and i%s counts up with i.
    """
    if not isinstance(e, Expr):
        return e
    total: Index = 0
    for monomial, c in e.terms:
        part: Index = c
        for atom in monomial:
            part = mul(part, _steady_atom(atom, axis, lanes))
        total = add(total, part)
    return total


def is_repeated(offset: Index, row: str) -> bool:
    """Return whether an offset is the same for pairs of neighbours along an axis."""
    return row in axes_of(offset) and row not in axes_of(lane_invariant(offset, row, 2))


def multiple_of(e: Index) -> int:
    """Return a number which divides `e` for all sizes; 0 for zero.

    >>> from smelt.types.expr import axis, maximum, mul
    >>> multiple_of(mul(48, axis("i", 9))), multiple_of(maximum(size("n"), 16))
    (48, 1)
    """
    if not isinstance(e, Expr):
        return e
    return gcd(*(c * prod(map(_atom_multiple, monomial)) for monomial, c in e.terms))


def _atom_multiple(atom: Atom) -> int:
    return gcd(*map(multiple_of, atom.args)) if atom.kind in ("min", "max") else 1


def _steady_atom(atom: Atom, axis: str, lanes: int) -> Index:
    expr = Expr((((atom,), 1),))
    if atom.kind not in ("//", "%") or axis not in axes_of(expr):
        return expr
    numerator, divisor = atom.args
    if axis not in axes_of(divisor) and axis not in axes_of(lane_invariant(numerator, axis, lanes)):
        return size(f"({expr})")  # equal in all lanes, as its operands are
    if not isinstance(divisor, int) or divisor % lanes or bare_axis(numerator) != axis:
        return expr
    quotient = size(f"{axis}//{divisor}")
    return quotient if atom.kind == "//" else sub(numerator, mul(quotient, divisor))
