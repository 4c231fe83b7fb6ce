"""Run several independent iterations at once, in the lanes of vectors.

>>> from smelt.loop.text import parse, text
>>> module = parse('''
... func f(x: f32[n*m], y: out f32[n]; n, m)
...   each i in 0 .. n
...     each j in 0 .. m with s = sum 0.0
...       s <- x[i*m + j]
...     y[i] = s
... ''')
>>> print(text(Module("f", (vectorize(module.funcs[0], "j", 16, "mask"),))))
func f(x: f32[m*n], y: out f32[n]; n, m)
  each i in 0 .. n
    each j_1 in 0 .. (m//16)*16 by 16 with s_1 = sum splat(0.0, 16)
      s_1 <- x[m*i + j_1 : 16]
    each j_2 in (m//16)*16 .. m by 16 with s_2 = sum s_1
      on_2 = prefix(m - j_2, 16)
      s_2 <- select(on_2, x[m*i + j_2 : 16 | on_2], 0.0)
    s = across(sum, s_2)
    y[i] = s

Vectorizing `i` instead reads 16 rows at once, m elements apart. What does not vary stays a scalar.
A fold of a loop around `j` takes vectors too, those of the tail apart if they are shorter.
`argmax` and `argmin` keep one lane, which takes each lane of a vector, or all of them.
Vectors that fill no cache lines are not stored past the caches.
A scan combines the prefixes of each vector's lanes with the last lane before it:

>>> module = parse('''
... func f(x: f32[n], y: out f32[n]; n)
...   for i in 0 .. n with s = 0.0
...     v = s + x[i]
...     y[i] = v
...     s' = v
... ''')
>>> print(text(Module("f", (vectorize(module.funcs[0], "i", 4, "scalar"),))))
func f(x: f32[n], y: out f32[n]; n)
  for i_1 in 0 .. (n//4)*4 by 4 with s_1 = 0.0
    v_1 = s_1 + scan(sum, x[i_1 : 4])
    y[i_1 : 4] = v_1
    s_1' = shuffle(permute, v_1; 3)
  for i in (n//4)*4 .. n with s = s_1
    v = s + x[i]
    y[i] = v
    s' = v

Panels are filled in vectors, as wide as them or a part of them, from where a loop starts:

>>> module = parse('''
... tile f(x: f32[], p: out f32[]; low, n)
...   each i in low .. n
...     p[(i - low)//8*800 + (i - low)%8] = x[i]
... ''')
>>> print(text(Module("f", (vectorize(module.funcs[0], "i", 4, "scalar"),))))
tile f(x: f32[], p: out f32[]; low, n)
  each i_1 in low .. low + (max(-low + n, 0)//4)*4 by 4
    p[(i_1 - low)%8 + ((i_1 - low)//8)*800 : 4] = x[i_1 : 4]
  each i in low + (max(-low + n, 0)//4)*4 .. n
    p[(i - low)%8 + ((i - low)//8)*800] = x[i]

Vectors of a `group` of lanes fold into the first ones:

>>> module = parse('''
... func f(x: f32[n], y: out f32[1]; n)
...   each i in 0 .. n with s = sum 0.0
...     s <- x[i]
...   y[0] = s
... ''')
>>> print(text(Module("f", (vectorize(module.funcs[0], "i", 8, "mask", group=4),))))
func f(x: f32[n], y: out f32[1]; n)
  each i_1 in 0 .. (n//8)*8 by 8 with s_1 = sum splat(0.0, 8)
    s_1 <- x[i_1 : 8]
  each i_2 in (n//8)*8 .. (n//4)*4 by 4 with s_2 = sum s_1
    s_2 <- x[i_2 : 4]
  each i_3 in (n//4)*4 .. n by 4 with s_3 = sum s_2
    on_2 = prefix(n - i_3, 4)
    s_3 <- select(on_2, x[i_3 : 4 | on_2], 0.0)
  s = across(sum, s_3)
  y[0] = s

Quotients along the vectors are one index expression for all lanes, whose `@` counts from the first
lane's position; vectors begin at multiples of their lanes if the loop does:

>>> module = parse('''
... tile f(x: f32[], y: out f32[]; o, n)
...   each i in 0 .. n
...     y[i] = x[i//3 + o] + x[i//8]
... ''')
>>> print(text(Module("f", (vectorize(module.funcs[0], "i", 4, "whole"),))))
tile f(x: f32[], y: out f32[]; o, n)
  each i_1 in 0 .. n by 4
    y[i_1 : 4] = x[lanes(i_1, 4 align 4; @//3 + o) : 4] + x[i_1//8 : 4 * 0]

A map has no loops that are empty whatever the sizes:

>>> module = parse('''
... func f(x: f32[8], y: out f32[8])
...   each i in 0 .. 8
...     y[i] = x[i]
... ''')
>>> print(text(Module("f", (vectorize(module.funcs[0], "i", 4, "mask"),))))
func f(x: f32[8], y: out f32[8])
  each i_1 in 0 .. 8 by 4
    y[i_1 : 4] = x[i_1 : 4]

Tails: `mask` (one masked vector), `scalar` (the loop as it was), `none` (a constant length without
a remainder), `whole` (the length is a multiple), `masked` (all vectors are masked: what is left is
short).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import gcd
from typing import Literal, NoReturn, TypeAlias

from smelt.errors import LoopPassError
from smelt.loop import ir
from smelt.loop.env import Env, read, type_of, types_in
from smelt.loop.ir import Module
from smelt.loop.passes.decide import gap_of
from smelt.loop.passes.remainder import continued, copy_loop, halves, whole_groups
from smelt.loop.passes.scans import Scan, scans
from smelt.loop.steps import join_sums, two_sum
from smelt.loop.walk import (
    Body,
    Names,
    Rewriter,
    atom_index,
    loads,
    operands,
    place_indices,
    places,
    rename,
    replace_loop,
    statements,
    values,
)
from smelt.ops.combine import COMBINES
from smelt.python.dataclass import replace
from smelt.types import expr
from smelt.types.dtype import f64, i64
from smelt.types.expr import Atom, Index, coefficient

__all__ = ["Module", "Tail", "Widen", "vectorize"]

Tail = Literal["mask", "scalar", "none", "whole", "masked"]
_OPERATORS = {"//": "floordiv", "%": "mod", "min": "min", "max": "max"}


Carries: TypeAlias = Mapping[str, ir.Carry]


def vectorize(
    func: ir.Func, var: str, lanes: int, tail: Tail, rest: int = 0, group: int = 0, align: int = 1
) -> ir.Func:
    """Run `lanes` iterations of the loop over `var` at once.

    Masked vectors have `rest` lanes, if that is less; folds then have as many from there on, and
    `pairs` have no more of them before. Before a `mask`, vectors of `group` lanes are whole, if
    that is not 0, and masked ones have no more; both may fold into the first lanes only. The loop
    begins at a multiple of `align`. Raises
    LoopPassError if iterations are not independent, or hold what has no vector form.
    """
    env, names = types_in(func), Names(func)
    loops = [s for s in statements(func.body) if isinstance(s, ir.For)]
    inside = [x for s in loops if s.var == var for x in statements(s.body)]
    folds = [x.name for x in inside if isinstance(x, ir.Fold)]
    folded = {*folds}
    owners = [s for s in loops if s.var != var and folded & {c.name for c in s.carry}]
    owners = [s for s in owners if inside and inside[0] in statements(s.body)]
    outer = tuple(c for s in owners for c in s.carry if c.name in folded and not _is_single(c))
    every = [x.name for s in owners[:1] for x in statements(s.body) if isinstance(x, ir.Fold)]
    if any(every.count(c.name) > folds.count(c.name) for c in outer):
        _refuse(f"what the loop over {var} folds is folded outside of it too")
    firsts = {c.name: _renamed(_vector_carry(c, lanes, rest, env), names) for c in outer}
    lasts = {c.name: _tail_carry(c, lanes, rest, env) for c in outer}
    lasts = {
        n: firsts[n] if _lanes(c) == _lanes(firsts[n]) else _renamed(c, names)
        for n, c in lasts.items()
    }

    def change(loop: ir.For) -> Body:
        best = tuple(c for s in owners for c in s.carry if c.name in folded and _is_single(c))
        _check(loop, env, {c.name for c in outer if tail == "mask"} | {c.name for c in best})
        start = gcd(loop.low if isinstance(loop.low, int) else align, lanes)
        mid = loop.low if tail == "masked" else loop.high
        mid = mid if tail in ("masked", "whole") else whole_groups(loop, lanes)
        if tail == "none" and mid != loop.high:
            _refuse(f"{expr.text(loop.high)} is not a number of whole vectors")
        body = _inline_indices(loop.body)
        if loop.kind == "for":
            scan = replace(loop, body=body)

            def widen(step: int, on: str) -> Body:
                widened = Widen(scan, step, env, on, outer + best, names, start).body(body)
                return _to(lasts if on else firsts, widened)

            return _in_order(scan, mid, lanes, tail, rest, env, names, widen)
        vector_carry = tuple(_vector_carry(c, lanes, rest, env) for c in loop.carry)
        head = replace(loop, kind="each", high=mid, step=lanes, carry=vector_carry, body=())
        out: list[ir.For] = []
        if tail != "masked" and not (tail == "mask" and mid == loop.low):
            widened = Widen(loop, lanes, env, align=start).body(body)
            main = replace(head, body=_to(firsts, widened))
            out.append(copy_loop(main, names))
        last = out[:]
        is_map = not (loop.carry or outer or best)  # folds have lanes of their own for what is left
        if group and out and not (is_map and whole_groups(loop, group) == mid):
            vectors = _to(firsts, Widen(loop, group, env, align=start).body(body))
            carry = tuple(map(_continued, vector_carry, out[0].carry))
            part = replace(head, low=mid, step=group, carry=carry, body=vectors)
            part = replace(part, high=(mid := whole_groups(loop, group)))
            out.append(copy_loop(part, names))
            starts = zip(out[-1].carry, vector_carry, strict=True)
            last = [replace(part, carry=tuple(replace(c, init=x.init) for c, x in starts))]
        if tail in ("mask", "masked") and not (out and is_map and mid == loop.high):
            on, count = names.new("on"), rest or lanes
            carry = tuple(_tail_carry(c, lanes, rest, env) for c in loop.carry)
            if last:
                carry = tuple(map(_continued, carry, last[0].carry))
            count = min(count, group or count)
            mask = ir.Let(on, ir.Prefix(expr.sub(loop.high, ir.variable(loop)), count))
            widened = Widen(loop, count, env, on, outer + best, align=start).body(body)
            masked = (mask, *_to(lasts, widened))
            end = replace(head, low=mid, high=loop.high, step=count, carry=carry, body=masked)
            out.append(copy_loop(end, names))
            last.append(out[-1])
        lets, ends = _ends(loop, last, env, names)
        if tail == "scalar":
            return (*out, *lets, replace(loop, low=mid, carry=_resumed(loop, out[-1], ends)))
        return *out, *lets, *_published(loop, out[-1], ends)

    func = replace_loop(func, var, change)
    for owner in owners:
        func = replace_loop(func, owner.var, lambda s: _widened(s, firsts, lasts, env, names))
    return func


def _widened(
    owner: ir.For, firsts: Carries, lasts: Carries, env: Env, names: Names
) -> tuple[ir.Statement, ...]:
    """Return a loop that folds vectors of a loop inside, and what joins lanes."""
    carry: dict[ir.Carry, None] = {}
    lets: list[ir.Statement] = []
    for c in owner.carry:
        ends = [firsts[c.name], lasts[c.name]] if c.name in firsts else []
        carry |= dict.fromkeys(ends or [c])
        if ends:
            loops = [replace(owner, carry=(end,)) for end in dict.fromkeys(ends)]
            some, (total,) = _ends(replace(owner, carry=(c,)), loops, env, names)
            lets += [*some, ir.Let(c.name, total)]
    return replace(owner, carry=tuple(carry)), *lets


def _to(carries: Carries, body: Body) -> Body:
    return rename(body, {name: c.name for name, c in carries.items()})


def _renamed(c: ir.Carry, names: Names) -> ir.Carry:
    position = names.new(c.position) if c.position else ""
    return replace(c, name=names.new(c.name), position=position)


def _in_order(
    loop: ir.For,
    mid: Index,
    lanes: int,
    tail: Tail,
    rest: int,
    env: Env,
    names: Names,
    widen: Callable[[int, str], Body],
) -> Body:
    """Return the loops of scans, of which each continues the one before.

    `widen` returns the body for so many lanes under a mask.
    """
    out: list[ir.Statement] = []
    loops: list[ir.For] = []
    states, folds = _with_carries(loop, folds=False), _with_carries(loop, folds=True)
    masked, count = tail in ("mask", "masked"), rest or lanes
    parts = [(loop.low, mid, lanes, "")] * (tail != "masked")
    parts += [(mid, loop.high, count, names.new("on"))] * masked
    for low, high, step, on in parts:
        body = widen(step, on)
        if on:
            left = expr.sub(loop.high, ir.variable(loop))
            body = (ir.Let(on, ir.Prefix(left, step)), *body)
        carry = states.carry
        folded = [_vector_carry(c, step, rest, env) for c in folds.carry]
        if loops:
            carry = continued(states, _with_carries(loops[-1], folds=False), env)
            before = _with_carries(loops[-1], folds=True).carry
            folded = [_continued(c, b) for c, b in zip(folded, before, strict=True)]
        part = ir.For("for", loop.var, low, high, body, step, (*carry, *folded))
        ends_here = tail != "scalar" and (low, on) == parts[-1][::3]
        loops.append(copy_loop(part, names, last=ends_here and not folds.carry))
    out += loops
    lets, ends = _ends(folds, [_with_carries(x, folds=True) for x in loops], env, names)
    out += lets
    if tail == "scalar":
        carry = continued(states, _with_carries(loops[-1], folds=False), env)
        resumed = _resumed(folds, _with_carries(loops[-1], folds=True), ends)
        return (*out, replace(loop, low=mid, carry=(*carry, *resumed)))
    return *out, *_published(folds, _with_carries(loops[-1], folds=True), ends)


def _resumed(loop: ir.For, last: ir.For, ends: Sequence[ir.Value]) -> tuple[ir.Carry, ...]:
    """Return the carries of a loop that continues vectors, of which `last` had the last."""
    carries = zip(loop.carry, last.carry, ends, strict=True)
    if any(c.position and not _is_single(c) for c in loop.carry):
        _refuse("positions of lanes continue in no scalar")
    return tuple(_continued(c, x) if c.position else replace(c, init=end) for c, x, end in carries)


def _published(loop: ir.For, last: ir.For, ends: Sequence[ir.Value]) -> Iterator[ir.Let]:
    """Name the folds of a loop, and their positions, after the loops over vectors."""
    yield from (ir.Let(c.name, end) for c, end in zip(loop.carry, ends, strict=True))
    for c, x in zip(loop.carry, last.carry, strict=True):
        if _is_single(c):
            yield ir.Let(c.position, ir.position(ir.number(x.position)))


def _with_carries(loop: ir.For, *, folds: bool) -> ir.For:
    """Return a loop with its folds only, or without them."""
    return replace(loop, carry=tuple(c for c in loop.carry if bool(c.combine) == folds))


def _refuse(reason: str) -> NoReturn:
    raise LoopPassError(reason)


def _check(loop: ir.For, env: Env, outer: set[str]) -> None:
    is_each = loop.kind == "each" or (loop.kind == "for" and _only_runs(loop))
    if not is_each or loop.step != 1:
        _refuse(f"the loop over {loop.var} is not `each` in steps of 1")
    inner = {c.name for c in loop.carry} | outer
    for s in statements(loop.body):
        if isinstance(s, ir.For):
            inner |= {c.name for c in s.carry}
        if isinstance(s, ir.Alloc | ir.Call) or (isinstance(s, ir.If) and s.results):
            _refuse("scratch, calls and branches with results have no vector form")
        if isinstance(s, ir.Fold) and s.name not in inner:
            _refuse(f"{s.name} is folded by a loop around the vectors")
        if any(type_of(v, env).lanes > 1 for v in values(s)):
            _refuse(f"the loop over {loop.var} has vectors already")


def _only_runs(loop: ir.For) -> bool:
    """Return whether only what a loop carries makes it run in order."""
    stored = {p.buffer for s in statements(loop.body) for p in places(s)}
    read = {x.place.buffer for s in statements(loop.body) for x in loads(*values(s))}
    return bool(loop.carry) and not stored & read


def _is_single(c: ir.Carry) -> bool:
    """Return whether one lane takes those of all vectors, with their positions."""
    return c.position != "" and c.mode == "own"


def _vector_carry(c: ir.Carry, lanes: int, rest: int, env: Env) -> ir.Carry:
    if _is_single(c):
        return c
    start = ir.identity(c.combine, type_of(c.init, env).dtype)
    if c.mode == "pairs":
        lanes = min(lanes, rest or lanes // 2)
    places = c.start if c.start is None else ir.Splat(c.start, lanes)
    return replace(c, init=ir.Splat(start, lanes), start=places)


def _tail_carry(c: ir.Carry, lanes: int, rest: int, env: Env) -> ir.Carry:
    """Return the carry of masked vectors: positions have as many lanes as before."""
    return _vector_carry(c, lanes if c.position else rest or lanes, rest, env)


def _lanes(c: ir.Carry) -> int:
    assert isinstance(c.init, ir.Splat)
    return c.init.lanes


def _continued(c: ir.Carry, before: ir.Carry) -> ir.Carry:
    """Return a carry that continues another one, if it has as many lanes."""
    if _is_single(c):
        return replace(c, init=ir.Ref(before.name), start=ir.position(ir.number(before.position)))
    if _lanes(c) != _lanes(before):
        return c
    start = c.start if c.start is None else ir.Ref(before.position)
    return replace(c, init=ir.Ref(before.name), start=start)


def _ends(
    loop: ir.For, out: list[ir.For], env: Env, names: Names
) -> tuple[list[ir.Statement], list[ir.Value]]:
    """Return statements that join the lanes of the loops' folds, and their values."""
    lets: list[ir.Statement] = []
    ends: list[ir.Value] = []
    for k, c in enumerate(loop.carry):
        first, last = out[0].carry[k], out[-1].carry[k]
        total: ir.Value = ir.Ref(last.name)
        if c.position:
            if not _is_single(c):
                best = ir.Across(c.combine, (total, ir.Ref(last.position)))
                lets.append(ir.Let(c.position, best))
                total = ir.Across(COMBINES[c.combine].winner, (total,))
            ends.append(total)
            continue
        if first is not last and isinstance(last.init, ir.Splat):  # of its own lanes
            wide, lanes = ir.Ref(first.name), _lanes(first)
            while lanes > last.init.lanes:
                lanes //= 2
                lets.append(ir.Let(name := names.new(c.name), halves(wide, lanes, c.combine)))
                wide = ir.Ref(name)
            total = ir.Apply(COMBINES[c.combine].scalar, (wide, total))
            lets.append(ir.Let(name := names.new(c.name), total))
            total = ir.Ref(name)
        ends.append(_joined(c, total, env))
    return lets, ends


def _joined(c: ir.Carry, total: ir.Value, env: Env) -> ir.Value:
    """Return the value of a fold from that of its lanes."""
    across = ir.Across(c.combine, (total,))
    if c.init == ir.identity(c.combine, type_of(c.init, env).dtype):
        return across
    is_wide = c.mode == "own" or type_of(c.init, env).dtype == f64
    init = c.init if is_wide else ir.cast(c.init, f64)
    return ir.Apply(COMBINES[c.combine].scalar, (across, init))


def _inline_indices(body: Body) -> Body:
    """Replace names of index expressions by these: their lanes then have strides."""
    definitions: dict[str, Index] = {}
    rewriter = _Inline(lambda a: definitions.get(a.name))
    rewriter.definitions = definitions
    return rewriter.body(body)


class _Inline(Rewriter):
    definitions: dict[str, Index]

    def statement(self, s: ir.Statement) -> Body:
        new = self.rebuild(s)
        if isinstance(new, ir.Let) and (index := ir.as_index(new.value)) is not None:
            self.definitions[new.name] = index
            self.known.clear()
            return ()
        return (new,)


class Widen(Rewriter):
    """Rewrites the body of a loop for `lanes` neighbouring positions, under the mask `on`."""

    def __init__(
        self,
        loop: ir.For,
        lanes: int,
        env: Env,
        on: str = "",
        outer: tuple[ir.Carry, ...] = (),
        names: Names | None = None,
        align: int = 1,
    ) -> None:
        super().__init__()
        self.loop, self.lanes, self.env = loop, lanes, env
        self.align = gcd(align, lanes)
        """A number that divides the positions at which vectors begin."""
        self.on: ir.Value | None = ir.Ref(on) if on else None
        self.varying = {loop.var}
        self.verdicts: dict[int, bool] = {}
        """Whether values of the body vary, by identity: operators ask for their operands again."""
        self.carries = {c.name: c for c in (*loop.carry, *outer)}
        self.new_names = names
        states = scans(loop) if loop.kind == "for" else []
        self.scans = {name: r for r in states for name in r.lets}
        self.last = {c: end for r in states for c, end in zip(r.carries, r.ends, strict=True)}

    def _varies(self, v: ir.Value) -> bool:
        varies = self.verdicts.get(id(v))
        if varies is None:
            match v:
                case ir.Ref(name):
                    varies = name in self.varying
                case ir.IndexValue(index=index) | ir.Prefix(count=index):
                    varies = self._index_varies(index)
                case _:
                    at = place_indices(v.place) if isinstance(v, ir.Load) else ()
                    varies = any(map(self._index_varies, at)) or any(map(self._varies, operands(v)))
            self.verdicts[id(v)] = varies
        return varies

    def _index_varies(self, e: Index) -> bool:
        return any(a.name in self.varying for a in expr.atoms(e))

    def _full(self, v: ir.Value) -> ir.Value:
        """Return a vector, of a scalar too."""
        return self.value(v) if self._varies(v) else ir.Splat(v, self.lanes)

    # ---- values --------------------------------------------------------------------------------

    def value(self, v: ir.Value) -> ir.Value:
        if not self._varies(v):
            return v
        match v:
            case ir.IndexValue(index, dtype):
                positions = self._lanes_of(index)
                return positions if dtype == i64 else ir.cast(positions, dtype)
            case ir.Load(place, other):
                return ir.Load(self.place(place), other)
            case ir.Apply() if (mask := self._compared(v)) is not None:
                return mask
            case ir.Apply(op, args):
                return ir.Apply(op, tuple([self.value(a) for a in args]))
            case ir.Cast(arg, dtype):
                return ir.Cast(self.value(arg), dtype)
            case ir.Shuffle(args, "halves"):
                return ir.Shuffle(tuple([self._full(a) for a in args]), "halves")
            case ir.Ref():
                return v
            case _:
                _refuse(f"the loop over {self.loop.var} has vectors already")

    def _compared(self, v: ir.Apply) -> ir.Value | None:
        """Return the lanes of a comparison that flips at one of them, or has quotients."""
        gap = gap_of(v)
        if gap is None:
            return None
        slope = self._slope(gap)
        if slope is None and self._only_loop_varies(gap):
            return ir.Apply("le", (ir.position(0), self._lane_index(gap)))
        if slope not in (1, -1):
            return None
        if slope == -1:
            return ir.Prefix(expr.add(gap, 1), self.lanes)
        return ir.Apply("not", (ir.Prefix(expr.mul(gap, -1), self.lanes),))

    def _lanes_of(self, e: Index) -> ir.Value:
        """Return an index expression as a vector, if it varies."""
        if not self._index_varies(e):
            return ir.position(e)
        slope = self._slope(e)
        if slope is not None:
            step: ir.Value = ir.Lane(self.lanes)
            if slope != 1:
                step = ir.Apply("mul", (step, ir.position(slope)))
            return ir.Apply("add", (ir.position(e), step))
        if self._only_loop_varies(e):
            return self._lane_index(e)
        total: ir.Value | None = None
        for monomial, c in expr.terms_of(e):
            term: ir.Value = ir.position(
                expr.build({tuple(a for a in monomial if not self._atom_varies(a)): c})
            )
            for a in monomial:
                if self._atom_varies(a):
                    term = self._times(term, self._atom(a))
            total = term if total is None else ir.Apply("add", (total, term))
        assert total is not None
        return total

    def _times(self, term: ir.Value, factor: ir.Value) -> ir.Value:
        return factor if ir.as_index(term) == 1 else ir.Apply("mul", (term, factor))

    def _atom_varies(self, a: Atom) -> bool:
        return self._index_varies(atom_index(a))

    def _atom(self, a: Atom) -> ir.Value:
        if not a.args:
            variable = a.name == self.loop.var
            return self._lanes_of(atom_index(a)) if variable else ir.Ref(a.name)
        return ir.Apply(_OPERATORS[a.kind], tuple([self._lanes_of(x) for x in a.args]))

    def _slope(self, e: Index) -> Index | None:
        """Return the stride of the loop's variable, if nothing else in `e` varies."""
        slope = coefficient(self._first_lanes(e), self.loop.var)
        if slope is None or self._index_varies(slope):
            return None
        return slope if self._only_loop_varies(e) else None

    def _only_loop_varies(self, e: Index) -> bool:
        return all(a.name not in self.varying or a.name == self.loop.var for a in expr.atoms(e))

    def _lane_index(self, e: Index) -> ir.Value:
        start = next(atom_index(a) for a in expr.atoms(e) if a.name == self.loop.var)
        moved = expr.replace(e, {self.loop.var: ir.lane_variable(start)})
        return ir.LaneIndex(moved, start, self.lanes, self.align)

    def _first_lanes(self, e: Index) -> Index:
        """Return an index without quotients that are equal in all lanes: vectors are whole groups.

        Remainders of such groups count up with the loop.
        """
        if not any(a.args for a in expr.atoms(e)):
            return e
        total: Index = 0
        for monomial, c in expr.terms_of(e):
            varying = [a for a in monomial if self._atom_varies(a)]
            step = self._step(varying[0]) if len(varying) == 1 else None
            if step is None:
                total = expr.add(total, expr.build({monomial: c}))
            else:
                fixed = expr.build({tuple(a for a in monomial if a != varying[0]): c})
                total = expr.add(total, expr.mul(fixed, step))
        return total

    def _step(self, a: Atom) -> Index | None:
        """Return 0 for what is equal in all lanes, the variable for what counts up.

        A position is divided by whole vectors, or its distance from the loop's start, if vectors
        begin there and not at their multiples; or all lanes divide the same number.
        """
        if a.kind not in ("//", "%") or self._index_varies(a.args[1]):
            return None
        distance, divisor = a.args
        position = ir.variable(self.loop)
        starts = {expr.sub(position, self.loop.low)}
        starts |= {position} if self.align == self.lanes else set()
        if distance in starts and isinstance(divisor, int) and divisor % self.lanes == 0:
            return 0 if a.kind == "//" else position
        return None if self._index_varies(self._first_lanes(distance)) else 0

    def place(self, p: ir.Place) -> ir.Place:
        mask = None if p.mask is None else self.value(p.mask)
        at, stride = p.at, 0
        if not isinstance(at, int | expr.Expr):
            at, stride = self.value(at), int(self._varies(at))
        elif self._index_varies(at):
            slope = self._slope(at)
            at, stride = (at, slope) if slope is not None else (self._lanes_of(at), 1)
        if self.on is not None and (stride != 0 or not isinstance(at, int | expr.Expr)):
            mask = self.on if mask is None else ir.apply("and", self.on, mask)
        return ir.Place(p.buffer, at, self.lanes, stride, mask)

    # ---- statements ----------------------------------------------------------------------------

    def statement(self, s: ir.Statement) -> Body:
        match s:
            case ir.Let(name) if name in self.scans:
                self.varying.add(name)
                r = self.scans[name]
                if name != r.lets[-1]:
                    return ()
                return self._prefixes(r) if len(r.ends) == 1 else self._sums_with_errors(r)
            case ir.Next(name) if name in self.last:
                vector = ir.Ref(self.last[name])
                return (ir.Next(name, ir.Shuffle((vector,), "permute", (self.lanes - 1,))),)
            case ir.Let(name, value):
                new = ir.Let(name, self.value(value))
                if self._varies(value):
                    self.varying.add(name)
                return (new,)
            case ir.Fold(name, value, position):
                at = None if position is None else self._full(position)
                carry = self.carries.get(name)
                if at is not None and self.on is not None and carry and not _is_single(carry):
                    assert carry.start is not None
                    at = ir.Apply("select", (self.on, at, carry.start))
                return (ir.Fold(name, self._folded(name, value), at),)
            case ir.Next(name, value):
                return (ir.Next(name, self._full(value)),)
            case ir.Store():
                return (self._store(s),)
            case ir.For():
                return (self._inner(s),)
            case ir.If(cond, then, other):
                if self._varies(cond):
                    _refuse(f"a branch varies along {self.loop.var}")
                return (ir.If(cond, self.body(then), self.body(other)),)
            case _:
                return (s,)

    def _prefixes(self, r: Scan) -> Body:
        """Return what gives a carry its value with each lane."""
        value, dtype = self._full(r.element), type_of(r.element, self.env).dtype
        if self.on is not None:
            value = ir.Apply("select", (self.on, value, ir.identity(r.combine, dtype)))
        carried = read(r.carries[0], self.env)
        prefixes = ir.Across(r.combine, (value,), scan=True)
        new = ir.Apply(COMBINES[r.combine].scalar, (carried, prefixes))
        return (ir.Let(r.ends[0], new),)

    def _sums_with_errors(self, r: Scan) -> Body:
        """Return what adds up lanes and their errors, each with those 1, 2, 4, .. before it."""
        out: list[ir.Statement] = []
        zero, lanes, names = ir.Splat(ir.Const(0.0, f64), self.lanes), self.lanes, self.new_names
        assert names is not None

        def bound(value: ir.Value) -> ir.Value:
            out.append(ir.Let(name := names.new("t"), value))
            return ir.Ref(name)

        first, second = two_sum(bound(self._full(r.element)), zero, zero, bound)
        if self.on is not None:
            first, second = (bound(ir.Apply("select", (self.on, x, zero))) for x in (first, second))
        distance = 1
        while distance < lanes:
            table = tuple(k if k < distance else lanes + k - distance for k in range(lanes))
            moved = [ir.Shuffle((zero, x), "permute", table) for x in (first, second)]
            before = bound(moved[0]), bound(moved[1])
            first, second = join_sums(before, (first, second), bound)
            distance *= 2
        total, error = (bound(ir.Splat(read(c, self.env), lanes)) for c in r.carries)
        ends = join_sums((total, error), (first, second), bound)
        return (*out, *map(ir.Let, r.ends, ends))

    def _folded(self, name: str, value: ir.Value) -> ir.Value:
        full = self._full(value)
        carry = self.carries.get(name)
        if self.on is None or carry is None:
            return full
        neutral = ir.identity(carry.combine, type_of(value, self.env).dtype)
        return ir.Apply("select", (self.on, full, neutral))

    def _store(self, s: ir.Store) -> ir.Store:
        place = self.place(s.place)
        is_index = isinstance(place.at, int | expr.Expr)
        if place.stride == 0 and is_index:
            _refuse(f"every iteration over {self.loop.var} stores to {s.place.buffer}")
        if s.join and not is_index:
            _refuse("lanes that are combined with stored elements may meet")
        nbytes = self.env.arrays[place.buffer].dtype.itemsize * self.lanes
        fills_lines = place.mask is None and nbytes % ir.CACHE_LINE == 0
        past = s.nontemporal if fills_lines else 0
        return ir.Store(place, self.value(s.value), s.join, past)

    def _inner(self, s: ir.For) -> ir.For:
        if any(map(self._index_varies, (s.low, s.high, s.step))):
            _refuse(f"the range of {s.var} varies along {self.loop.var}")
        carry: list[ir.Carry] = []
        for c in s.carry:
            start = None if c.start is None else self._full(c.start)
            carry.append(replace(c, init=self._full(c.init), start=start))
            self.varying |= {c.name, c.position} - {""}
        return replace(s, carry=tuple(carry), body=self.body(s.body))
