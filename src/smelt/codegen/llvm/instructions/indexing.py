"""Index expressions as LLVM values: scalars, or vectors where a lane axis is involved."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from math import gcd, prod
from typing import Any

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.instructions.registers import TextConstant
from smelt.dataclass import dataclass
from smelt.ops.contract import bare_axis
from smelt.types.affine import coefficient
from smelt.types.expr import Atom, Expr, Index, add, axes_of, mul, nonnegative, size, sub

I64 = ir.IntType(64)
Value = ir.Value
Leaf = Callable[[Atom], Value]


@lru_cache(maxsize=4096)
def number(value: int) -> Value:
    """An i64 constant, made once: the same few stand at thousands of places."""
    return ir.Constant(I64, value)


def splat(b: ir.IRBuilder, value: Value, lanes: int) -> Value:
    """A scalar in every lane, known numbers as such; vectors pass."""
    if isinstance(value.type, ir.VectorType):
        return value
    if isinstance(value, TextConstant):
        return value.splat(lanes)
    none, zero, zeros = _spread(value.type, lanes)
    return b.shuffle_vector(b.insert_element(none, value, zero), none, zeros)


@lru_cache(maxsize=256)
def _spread(element: Any, lanes: int) -> tuple[ir.Constant, ir.Constant, ir.Constant]:
    """Of a vector: one without values, its first place, and that place for every lane."""
    index = ir.IntType(32)
    none = ir.Constant(ir.VectorType(element, lanes), ir.Undefined)
    return none, index(0), ir.Constant(ir.VectorType(index, lanes), None)


def iota(lanes: int) -> Value:
    """<0, 1, 2, ..>"""
    return ir.Constant(ir.VectorType(I64, lanes), list(range(lanes)))


def first_lanes(b: ir.IRBuilder, count: Value, lanes: int) -> Value:
    """The mask of so many first lanes; all of them where there are more.  One comparison of short
    numbers, for vectors that LLVM would otherwise compare in halves."""
    kind = ir.IntType(32)
    most = b.select(b.icmp_signed("<", count, number(lanes)), count, number(lanes))
    numbers = ir.Constant(ir.VectorType(kind, lanes), list(range(lanes)))
    return b.icmp_signed("<", numbers, splat(b, b.trunc(most, kind), lanes))


def opaque(b: ir.IRBuilder, value: Value) -> Value:
    """An i64 about which LLVM can know nothing, at no cost.

    Where LLVM 22 sees that one lane of a masked store is left, and the elements have just been
    narrowed, it stores a whole wide lane (llvm-project #179489, x86 with AVX-512).
    """
    return b.asm(ir.FunctionType(I64, [I64]), "", "=r,0", [value], False)


@dataclass(frozen=True, slots=True)
class Along:
    """The axis that lanes run along, and how many there are."""

    axis: str
    lanes: int


class IndexEmitter:
    """Emits index arithmetic at the builder's position; `leaf` gives the variables' values, those
    of the first lane where lanes run `along` an axis.

    Quotients and extrema are written once: what one emitter is asked for stands in the order of
    asking, and `above` has the values of those that stand before all of it.  Long expressions have
    the same part at many places, and LLVM would take seconds to find that out.
    """

    def __init__(
        self,
        builder: ir.IRBuilder,
        leaf: Leaf,
        above: Mapping[Atom, Value] | None = None,
        along: Along | None = None,
    ) -> None:
        self.b, self.leaf, self.along = builder, leaf, along
        self.above = above or {}
        self.found: dict[Atom, Value] = {}

    def emit(self, e: Index) -> Value:
        """`e` as i64, or a vector of i64 if one of its variables is one."""
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
            found, along = self.leaf(atom), self.along
            if along is None or (atom.kind, atom.name) != ("axis", along.axis):
                return found
            return self.b.add(splat(self.b, found, along.lanes), iota(along.lanes))
        found = self.above.get(atom)
        if found is None and (found := self.found.get(atom)) is None:
            found = self.found[atom] = self._compound(atom)
        return found

    def _compound(self, atom: Atom) -> Value:
        if self.along is not None and self._counts_up(atom, self.along):
            return self._counted(atom, self.along)
        a, b = (self.emit(x) for x in atom.args)
        if atom.kind in ("min", "max"):
            return self._pair(lambda x, y: self._extreme(atom.kind == "min", x, y), a, b)
        plain = nonnegative(atom.args[0])
        if atom.kind == "//":
            return self._pair(self.b.udiv if plain else self._floor_div, a, b)
        return self._pair(self.b.urem if plain else self._floor_mod, a, b)

    def _counts_up(self, atom: Atom, along: Along) -> bool:
        """Whether it is a quotient or remainder of what is one more from lane to lane."""
        if atom.kind not in ("//", "%") or not nonnegative(atom.args[0]):
            return False
        above, below = atom.args
        return coefficient(above, along.axis) == 1 and along.axis not in axes_of(below)

    def _counted(self, atom: Atom, along: Along) -> Value:
        """The same in all lanes from that of the first one, without dividing numbers of 64 bits
        lane by lane: how often a remainder that counts up has begun anew by then is a quotient of
        numbers no larger than there are lanes, or as good as that, which single precision tells."""
        b, lanes = self.b, along.lanes
        first, by = (IndexEmitter(b, self.leaf, self.above).emit(x) for x in atom.args)
        rest, most = b.urem(first, by), number(lanes)
        left, step = b.sub(by, rest), b.select(b.icmp_signed("<", by, most), by, most)
        left = b.select(b.icmp_signed("<", left, most), left, most)
        single = ir.FloatType()
        begun = b.uitofp(b.sub(step, left), single)
        nth = ir.Constant(ir.VectorType(single, lanes), [n + 0.5 for n in range(lanes)])
        often = b.fdiv(b.fadd(splat(b, begun, lanes), nth), splat(b, b.uitofp(step, single), lanes))
        often = b.fptosi(often, ir.VectorType(ir.IntType(32), lanes))
        often = b.zext(often, ir.VectorType(I64, lanes))
        if atom.kind == "//":
            return b.add(splat(b, b.udiv(first, by), lanes), often)
        counted = b.add(splat(b, rest, lanes), iota(lanes))
        return b.sub(counted, b.mul(often, splat(b, by, lanes)))

    def _extreme(self, least: bool, a: Value, b: Value) -> Value:
        smaller = self.b.icmp_signed("<", a, b)
        return self.b.select(smaller, a, b) if least else self.b.select(smaller, b, a)

    def _floor_mod(self, a: Value, b: Value) -> Value:
        """Remainder with the sign of a positive divisor."""
        r: Value = self.b.srem(a, b)
        zero: Value = ir.Constant(a.type, None)
        return self.b.select(self.b.icmp_signed("<", r, zero), self.b.add(r, b), r)

    def _floor_div(self, a: Value, b: Value) -> Value:
        return self.b.sdiv(self.b.sub(a, self._floor_mod(a, b)), b)


def depth_terms(e: Index, depth_of: Callable[[Atom], int], count: int) -> list[Index]:
    """The terms of `e` grouped by the deepest loop that they depend on (0 .. count-1)."""
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


def steady(e: Index, axis: str, lanes: int) -> Index:
    """`e` with quotients that are equal in all lanes held fixed, for reading off its step.

    Vectors start at multiples of their width, so i//s is one number for all lanes when s is a
    multiple of it, and i%s counts up with i.
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
    """Whether an offset is the same for neighbours along an axis, in pairs at least."""
    return row in axes_of(offset) and row not in axes_of(steady(offset, row, 2))


def multiple_of(e: Index) -> int:
    """A number that `e` is a multiple of, whatever sizes are; 0 for zero itself.

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
    own = Expr((((atom,), 1),))
    if atom.kind not in ("//", "%") or axis not in axes_of(own):
        return own
    numerator, divisor = atom.args
    if axis not in axes_of(divisor) and axis not in axes_of(steady(numerator, axis, lanes)):
        return size(f"({own})")  # of what is one number for all lanes: so is this
    if not isinstance(divisor, int) or divisor % lanes or bare_axis(numerator) != axis:
        return own
    quotient = size(f"{axis}//{divisor}")
    return quotient if atom.kind == "//" else sub(numerator, mul(quotient, divisor))
