"""Store full cache lines past the caches, from the first one of a row on.

>>> from smelt.loop.text import parse, text
>>> module = parse('''
... func f(x: f32[n], y: out f32[n]; n)
...   each j in 0 .. n
...     y[j] = x[j]
... ''')
>>> func, loops = align_stores(module.funcs[0], "j", {"y"}, (64, 16), 8)
>>> loops
AlignedLoops(head='j_1', lines='j_2', singles='j_3', other='j_4', tail='j_5')
>>> print(text(Module("f", (func,))))
func f(x: f32[n], y: out f32[n]; n; y_skew)
  lead_1 = (-y_skew)%64
  if (n >= min(1, lead_1)*512) & (y_skew%4 == 0) with end_1
    start_1 = min(lead_1//4, n)
    each j_1 in 0 .. start_1
      y[j_1] = x[j_1]
    mid_1 = ((n - start_1)//64)*64 + start_1
    each j_2 in start_1 .. mid_1
      y[j_2] nt = x[j_2]
    last_1 = ((n - mid_1)//16)*16 + mid_1
    each j_3 in mid_1 .. last_1
      y[j_3] nt = x[j_3]
    end_1' = last_1
  else
    mid_2 = (n//64)*64
    each j_4 in 0 .. mid_2
      y[j_4] = x[j_4]
    end_1' = mid_2
  each j_5 in end_1 .. n
    y[j_5] = x[j_5]

`y_skew` is the address of the array, modulo a cache line. A short row that does not begin at a line
is stored as usual, since getting there costs an iteration of vectors. Arrays that begin at
different distances from a line are never aligned together; pieces of 16 bytes may be
(`store_if_aligned`), and write-combining buffers, one for each array, join them to lines.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import reduce

from smelt.errors import LoopPassError
from smelt.loop import ir
from smelt.loop.env import types_in
from smelt.loop.ir import Module
from smelt.loop.passes.remainder import continued, whole_groups
from smelt.loop.walk import (
    Body,
    Names,
    Rewriter,
    bound,
    fresh,
    rename,
    replace_loop,
    statements,
    substitute,
    substitute_index,
)
from smelt.ops.combine import BOTH
from smelt.python.dataclass import dataclass, replace
from smelt.types.expr import Expr, Index, add, axis, floordiv, minimum, mod, mul, sub

__all__ = [
    "PIECE",
    "AlignedLoops",
    "Module",
    "align_stores",
    "cut_tail",
    "skew_of",
    "store_if_aligned",
    "store_past",
    "store_tile_if_aligned",
]

PIECE = 16
"""Bytes of the smallest vectors that are stored past the caches."""


@dataclass(frozen=True, slots=True)
class AlignedLoops:
    """Variables of loops: to the first cache line, in steps from there on, and without one.

    The last one is what remains of either.
    """

    head: str
    lines: str
    singles: str
    other: str
    tail: str


def skew_of(buffer: str) -> str:
    """Return the name of an array's address modulo a cache line."""
    return f"{buffer}_skew"


def align_stores(
    func: ir.Func, var: str, arrays: Collection[str], steps: tuple[int, int], min_steps: int = 1
) -> tuple[ir.Func, AlignedLoops]:
    """Cut the loop over `var` where its stores to `arrays` reach cache lines.

    Rows that do not begin at one are cut from `min_steps` times the first one of `steps` on, of
    which loops have whole numbers. Raises LoopPassError if the loop does not store elements of one
    size at indices.
    """
    names, stores = Names(func), _Stores(func, arrays)
    loops = AlignedLoops(*(names.new(var) for _ in range(5)))
    lead, start, mid, last, end = map(names.new, ("lead", "start", "mid", "last", "end"))
    usual = names.new("mid")

    def change(s: ir.For) -> Body:
        first, *others = stores.addresses(s)
        size, *different = {stores.sizes[p.buffer] for p in stores.places(s)}
        if different:
            raise LoopPassError(f"the loop over {s.var} stores elements of several sizes")
        begin = add(s.low, floordiv(ir.number(lead), size))
        needed = mul(min_steps * steps[0], minimum(ir.number(lead), 1))
        tests = [_test("ge", sub(s.high, s.low), needed), _is_multiple(first, size)]
        tests += [_is_multiple(sub(other, first), ir.CACHE_LINE) for other in others]

        def part(name: str, low: Index, high: Index) -> ir.For:
            return _copy(s, name, low, high, names)

        def whole(low: Index, step: int) -> Index:
            return add(low, mul(floordiv(sub(s.high, low), step), step))

        aligned = (
            _let(start, minimum(begin, s.high)),
            part(loops.head, s.low, ir.number(start)),
            _let(mid, whole(ir.number(start), steps[0])),
            *store_past((part(loops.lines, ir.number(start), ir.number(mid)),), arrays),
            _let(last, whole(ir.number(mid), steps[1])),
            *store_past((part(loops.singles, ir.number(mid), ir.number(last)),), arrays),
            ir.Next(end, ir.position(ir.number(last))),
        )
        other = (
            _let(usual, whole_groups(s, steps[0])),
            part(loops.other, s.low, ir.number(usual)),
            ir.Next(end, ir.position(ir.number(usual))),
        )
        return (
            _let(lead, mod(mul(first, -1), ir.CACHE_LINE)),
            ir.If(_all(tests), aligned, other, (end,)),
            part(loops.tail, ir.number(end), s.high),
        )

    return stores.with_skews(replace_loop(func, var, change)), loops


def cut_tail(func: ir.Func, var: str, step: int) -> tuple[ir.Func, str]:
    """Cut the loop over `var` where whole steps end; return the variable of what remains."""
    names, env = Names(func), types_in(func)
    tail, mid = names.new(var), names.new("mid")

    def change(s: ir.For) -> Body:
        main = replace(s, high=ir.number(mid))
        main = _with_own_carry(main, names)
        rest = _copy(s, tail, ir.number(mid), s.high, names)
        rest = replace(rest, carry=continued(s, main, env))
        return (_let(mid, whole_groups(s, step)), main, rest)

    return replace_loop(func, var, change), tail


def store_if_aligned(
    func: ir.Func, var: str, arrays: Collection[str], alignment: int
) -> tuple[ir.Func, tuple[str, str]]:
    """Store past the caches where `arrays` are aligned as the loop begins.

    Returns the variables of this loop and the other one. Raises LoopPassError if the loop does not
    store at indices.
    """
    names, stores, env = Names(func), _Stores(func, arrays), types_in(func)
    aligned, other = names.new(var), names.new(var)

    def change(s: ir.For) -> Body:
        def side(var: str) -> Body:
            copy = _with_own_carry(_copy(s, var, s.low, s.high, names), names)
            ends = zip(s.carry, continued(s, copy, env), strict=True)
            return (copy, *(ir.Next(c.name, end.init) for c, end in ends))

        test = _all([_is_multiple(a, alignment) for a in stores.addresses(s)])
        past = store_past(side(aligned), arrays, alignment)
        return (ir.If(test, past, side(other), tuple(c.name for c in s.carry)),)

    return stores.with_skews(replace_loop(func, var, change)), (aligned, other)


def store_tile_if_aligned(
    func: ir.Func, row: str, column: str, side: int, arrays: Collection[str]
) -> tuple[ir.Func, tuple[str, str]]:
    """Store past the caches a tile of whole squares whose rows begin at cache lines.

    Returns the variables of the loops that do. Raises LoopPassError if the inner loop does not
    store at indices.
    """
    names, stores = Names(func), _Stores(func, arrays)
    aligned = row, column

    def change(outer: ir.For) -> Body:
        nonlocal aligned
        (inner,) = outer.body
        assert isinstance(inner, ir.For)
        # The beginnings of two rows say where all of them begin.
        firsts = (
            substitute_index(a, {row: at})
            for a in stores.addresses(inner)
            for at in (outer.low, add(outer.low, 1))
        )
        tests = [_is_multiple(sub(s.high, s.low), side) for s in (outer, inner)]
        tests += [_is_multiple(a, ir.CACHE_LINE) for a in firsts]
        past = store_past(fresh((outer,), names), arrays)
        first, second = (s.var for s in statements(past) if isinstance(s, ir.For))
        aligned = first, second
        return (ir.If(_all(tests), past, (outer,)),)

    return stores.with_skews(replace_loop(func, row, change)), aligned


def store_past(body: Body, arrays: Collection[str], alignment: int = ir.CACHE_LINE) -> Body:
    """Store past the caches what is stored to some arrays, at multiples of an alignment."""
    return _Past(arrays, alignment).body(body)


class _Past(Rewriter):
    def __init__(self, arrays: Collection[str], alignment: int) -> None:
        super().__init__()
        self.arrays, self.alignment = arrays, alignment

    def statement(self, s: ir.Statement) -> Body:
        if isinstance(s, ir.Store) and s.place.buffer in self.arrays:
            return (replace(s, nontemporal=self.alignment),)
        return (self.rebuild(s),)


class _Stores:
    """The stores of loops to some arrays."""

    def __init__(self, func: ir.Func, arrays: Collection[str]) -> None:
        self.arrays, self.sizes = arrays, {p.name: p.dtype.itemsize for p in func.params}

    def places(self, s: ir.For) -> list[ir.Place]:
        """Return the places to which a loop stores."""
        stored = [t.place for t in s.body if isinstance(t, ir.Store)]
        stored = [p for p in stored if p.buffer in self.arrays]
        if not stored or any(not isinstance(p.at, int | Expr) for p in stored):
            raise LoopPassError(f"the loop over {s.var} stores nothing at an index")
        return stored

    def addresses(self, s: ir.For) -> list[Index]:
        """Return the first address of each store, modulo a cache line."""
        addresses: list[Index] = []
        for place in self.places(s):
            assert isinstance(place.at, int | Expr)
            first = mul(substitute_index(place.at, {s.var: s.low}), self.sizes[place.buffer])
            addresses.append(add(ir.number(skew_of(place.buffer)), first))
        return addresses

    def with_skews(self, func: ir.Func) -> ir.Func:
        """Return a function whose numbers are also the skews of the arrays."""
        skews = map(skew_of, self.arrays)
        return replace(func, numbers=tuple(dict.fromkeys((*func.numbers, *skews))))


def _let(name: str, index: Index) -> ir.Let:
    return ir.Let(name, ir.position(index))


def _is_multiple(address: Index, of: int) -> ir.Value:
    return _test("eq", mod(address, of), 0)


def _test(op: str, left: Index, right: Index) -> ir.Value:
    return ir.Apply(op, (ir.position(left), ir.position(right)))


def _all(tests: Sequence[ir.Value]) -> ir.Value:
    return reduce(lambda a, b: ir.Apply(BOTH, (a, b)), tests)


def _copy(s: ir.For, var: str, low: Index, high: Index, names: Names) -> ir.For:
    """Return a copy of a loop over another range, which carries what it does."""
    body = rename(s.body, {n: names.new(n) for n in bound(s.body)})
    body = substitute(body, {s.var: axis(var, s.high)})
    return ir.For(s.kind, var, low, high, body, s.step, s.carry)


def _with_own_carry(s: ir.For, names: Names) -> ir.For:
    """Return a loop with new names for what it carries."""
    new = {c.name: names.new(c.name) for c in s.carry}
    (loop,) = rename((s,), new) if new else (s,)
    assert isinstance(loop, ir.For)
    return loop
