"""Give the parts of a loop in which tests have one answer their own loops.

>>> from smelt.loop.text import parse, text
>>> module = parse('''
... func f(a: f32[n], b: f32[m*n], y: out f32[m*n]; n, m; k)
...   each i in 0 .. m
...     each j in 0 .. n
...       y[i*n + j] = select(j < k, a[j], b[i*n + j - 1 | 1 <= j])
... ''')
>>> func, loops = split_tests(module.funcs[0], "j")
>>> loops
{'j_1': 1, 'j_2': None, 'j_3': None}
>>> print(text(Module("f", (func,))))
func f(a: f32[n], b: f32[m*n], y: out f32[m*n]; n, m; k)
  each i in 0 .. m
    end_1 = 1
    each j_1 in 0 .. end_1
      y[n*i + j_1] = select(j_1 < k, a[j_1], 0.0)
    end_2 = min(max(end_1, min(4611686018427387904, max(-4611686018427387904, k))), n)
    each j_2 in end_1 .. end_2
      y[n*i + j_2] = a[j_2]
    each j_3 in end_2 .. n
      y[n*i + j_3] = b[n*i + j_3 - 1]

A test that does not vary along the loop becomes a branch around it. Positions at which tests flip
need no known order: a part may be empty, and what is not known in it is tested there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce

from smelt.errors import LoopPassError
from smelt.kernel.bounds import Facts, nonnegative
from smelt.loop import ir
from smelt.loop.env import Env, types_in
from smelt.loop.ir import Module
from smelt.loop.passes.decide import (
    Flip,
    conditions,
    decide_all,
    flip_of,
    gap_of,
    without_unread,
)
from smelt.loop.passes.remainder import continued, copy_loop
from smelt.loop.walk import (
    Body,
    Names,
    Rewriter,
    bound,
    loads,
    replace_loop,
    statements,
    substitute_index,
    values,
    visit,
    with_body,
)
from smelt.ops.combine import BOTH
from smelt.ops.scalar import SCALARS
from smelt.types import expr
from smelt.types.dtype import bool_
from smelt.types.expr import Index, add, coefficient, floordiv, maximum, minimum, mul, sub

__all__ = ["Module", "extent_of", "split_tests", "split_vectors"]

MAX_CUTS = 3
"""Maximum positions at which a loop is cut: each adds a copy of what is computed on both sides."""
MAX_EDGE = 64
"""Maximum positions at an end of a loop that are tested, so that there are fewer loops."""
MAX_GROWTH = 3
"""Maximum size of what is added to a loop, as a multiple of its own."""
MIN_SAVED = 2
"""Minimum loads, tested ones twice, that a loop without its usual tests must save for a branch."""
COSTLY_CYCLES = 4.0
"""Cycles for one vector of an operator that is worth leaving out."""


def split_tests(func: ir.Func, var: str) -> tuple[ir.Func, dict[str, int | None]]:
    """Return a function whose loop is split, and the maximum lengths of its parts.

    A loop that seldom runs has 0. Raises LoopPassError for a loop that carries something.
    """
    func = ir.Func(
        func.kind, func.name, func.params, func.sizes, func.numbers, _inline_tests(func.body)
    )
    splitter = _Splitter(types_in(func), Names(func))

    def change(loop: ir.For) -> Body:
        if loop.kind == "chunk" or loop.carry or loop.step != 1:
            raise LoopPassError(f"the loop over {var} carries something, or has steps")
        splitter.room = MAX_GROWTH * _size(loop.body)
        return splitter.split(loop, ())

    return replace_loop(func, var, change), splitter.loops


def _inline_tests(body: Body) -> Body:
    """Replace names of what only compares positions by that."""
    definitions: dict[str, ir.Value] = {}

    class Inline(Rewriter):
        def statement(self, s: ir.Statement) -> Body:
            new = self.rebuild(s)
            if isinstance(new, ir.Let) and _is_test(new.value):
                definitions[new.name] = new.value
                return ()
            return (new,)

    def known(v: ir.Value) -> ir.Value:
        return definitions.get(v.name, v) if isinstance(v, ir.Ref) else v

    return Inline(change=known).body(body)


def _is_test(v: ir.Value) -> bool:
    if not isinstance(v, ir.Apply):
        return isinstance(v, ir.Const) and v.dtype == bool_
    return gap_of(v) is not None or (v.op in ("and", "or", "not") and all(map(_is_test, v.args)))


def split_vectors(func: ir.Func, var: str, extent: Index) -> ir.Func:
    """Cut a loop over vectors next to its ends: tests that flip only there have one answer between.

    `extent` is the end of the positions along the loop. They keep their lanes, and what is folded
    its order.
    """
    env, names = types_in(func), Names(func)

    def change(loop: ir.For) -> Body:
        answers, edges = dict[ir.Value, bool](), {"start": 0, "end": 0}
        for v in _values(loop.body):
            if not isinstance(v, ir.Prefix) or v.lanes != loop.step:
                continue
            if coefficient(v.count, loop.var) == -1:
                at = substitute_index(v.count, {loop.var: 0})
                side, length = _edge(at, extent)
                if side and at != loop.high:  # not the mask of a remainder, of one vector
                    answers[v] = side == "end"
                    edges[side] = max(edges[side], length)
        if not answers:
            return (loop,)
        groups = [sub(edges["start"], loop.low), sub(sub(extent, edges["end"]), loop.low)]
        whole = [
            mul(floordiv(n, loop.step), loop.step)
            for n in (add(groups[0], sub(loop.step, 1)), groups[1])
        ]
        first, last = (minimum(maximum(add(loop.low, n), loop.low), loop.high) for n in whole)
        lets = [ir.Let(names.new("end"), ir.position(e)) for e in (first, maximum(first, last))]
        ends = [loop.low, *(ir.number(t.name) for t in lets), loop.high]
        out: list[ir.Statement] = [*lets]
        carry = loop.carry
        for k, body in enumerate((loop.body, decide_all(loop.body, answers, env), loop.body)):
            low, high = ends[k], ends[k + 1]
            part = ir.For(loop.kind, loop.var, low, high, body, loop.step, carry)
            part = copy_loop(part, names, last=k == 2)
            out.append(part)
            carry = continued(loop, part, env)
        return tuple(out)

    return replace_loop(func, var, change)


class _Splitter:
    def __init__(self, env: Env, names: Names) -> None:
        self.env, self.names = env, names
        self.loops: dict[str, int | None] = {}
        """Maximum length of each loop that was made; None if it is not known."""
        self.room = 0
        """What loops may still grow."""
        self.before: dict[tuple[Index, Index, Facts], bool] = {}

    def split(self, loop: ir.For, facts: Facts) -> Body:
        """Return a loop's parts, where facts hold."""
        fixed = self._fixed(loop)
        answers = {v: a for v, gap in fixed.items() if (a := _answer(gap, facts)) is not None}
        if answers:
            loop = self._decided(loop, answers)
            fixed = self._fixed(loop)
        masks = {v for x in _loads(loop.body) if x.place.mask for v in visit(x.place.mask)}
        usual = {v: a for v, gap in fixed.items() if (a := _usual(gap)) is not None}
        usual |= {v: True for v in fixed if v in masks and v not in usual}
        for test, gap in fixed.items():
            sides = [self._decided(loop, {test: side}) for side in (True, False)]
            if test not in usual and self._pays(loop, sides):
                then, other = sides
                then = self.split(then, (*facts, gap))
                return (ir.If(test, then, self.split(other, (*facts, _not(gap)))),)
        if not usual:
            return self._cut(loop, facts)
        inside = self._decided(loop, usual)
        saved = _cost(loop.body)[0] - _cost(inside.body)[0]
        if saved < MIN_SAVED or not self._pays(loop, [inside, loop]):
            return self._cut(loop, facts)
        tests = {
            fixed[v] if a else _not(fixed[v]): v if a else ir.Apply("not", (v,))
            for v, a in usual.items()
        }
        every = reduce(lambda a, b: ir.Apply(BOTH, (a, b)), tests.values())
        return (ir.If(every, self._cut(inside, (*facts, *tests)), self._leaf(loop, 0)),)

    def _fixed(self, loop: ir.For) -> dict[ir.Value, Index]:
        """Return the tests that do not vary along a loop, with their gaps."""
        varying = {loop.var, *bound(loop.body)}
        gaps = {v: gap for v in conditions(loop) if (gap := gap_of(v)) is not None}
        return {v: e for v, e in gaps.items() if not any(a.name in varying for a in expr.atoms(e))}

    def _decided(self, loop: ir.For, answers: Mapping[ir.Value, bool]) -> ir.For:
        return with_body(loop, without_unread(decide_all(loop.body, answers, self.env)))

    def _pays(self, loop: ir.For, parts: Sequence[ir.For]) -> bool:
        """Return whether some part costs less than the loop, and all are not too long."""
        growth = sum(_size(p.body) for p in parts) - _size(loop.body)
        if growth > self.room or all(_cost(p.body) >= _cost(loop.body) for p in parts):
            return False
        self.room -= max(growth, 0)
        return True

    def _leaf(self, loop: ir.For, most: int | None) -> Body:
        copy = copy_loop(loop, self.names)
        self.loops[copy.var] = most
        return (copy,)

    # ---- tests that flip along the loop --------------------------------------------------------

    def _cut(self, loop: ir.For, facts: Facts) -> Body:
        """Return loops between the positions at which tests flip."""
        flips = _flips(loop)
        extent = extent_of(loop)
        cuts = self._order(_chosen(flips.values(), extent), extent, facts)
        if not cuts:
            return self._leaf(loop, None)
        parts: list[ir.For] = []
        for k in range(len(cuts) + 1):
            ends = [0, *cuts[:k]], [*cuts[k : k + 1], extent]
            verdicts = {v: self._known(f, *ends, facts) for v, f in flips.items()}
            answers = {v: a for v, a in verdicts.items() if a is not None}
            parts.append(self._decided(loop, answers))
        if not self._pays(loop, parts):
            return self._leaf(loop, None)
        out: list[ir.Statement] = []
        low = loop.low
        for k, part in enumerate(parts):
            high = loop.high
            if k < len(cuts):
                end = minimum(maximum(cuts[k], low), loop.high)
                out.append(ir.Let(name := self.names.new("end"), ir.position(end)))
                high = ir.number(name)
            most = cuts[0] if k == 0 else sub(extent, cuts[-1]) if k == len(cuts) else None
            piece = ir.For(part.kind, part.var, low, high, part.body, part.step, part.carry)
            out += self._leaf(piece, most if isinstance(most, int) else None)
            low = high
        return tuple(out)

    def _order(self, cuts: Iterable[Index], extent: Index, facts: Facts) -> list[Index]:
        """Return the cuts before `extent` in their order, as far as that is known."""
        out: list[Index] = []
        for at in cuts:
            if self._is_before(at, 0, facts) or self._is_before(extent, at, facts):
                continue
            after = (k for k, c in enumerate(out) if self._is_before(at, c, facts))
            out.insert(next(after, len(out)), at)
        return out[:MAX_CUTS]

    def _is_before(self, a: Index, b: Index, facts: Facts) -> bool:
        key = a, b, facts
        if key not in self.before:
            self.before[key] = nonnegative(sub(b, a), facts)
        return self.before[key]

    def _known(
        self, f: Flip, after: Sequence[Index], before: Sequence[Index], facts: Facts
    ) -> bool | None:
        """Return whether a test holds from `after` on and before `before`; None if it varies."""
        if any(self._is_before(f.at, at, facts) for at in after):
            return f.rising
        return not f.rising if any(self._is_before(at, f.at, facts) for at in before) else None


def _flips(loop: ir.For) -> dict[ir.Value, Flip]:
    """Return the tests whose answer changes once along a loop, and where."""
    inside, out = {*bound(loop.body)}, dict[ir.Value, Flip]()
    for v in conditions(loop):
        gap = gap_of(v)
        if gap is not None and not any(a.name in inside for a in expr.atoms(gap)):
            if (flip := flip_of(gap, loop.var)) is not None:
                out[v] = flip
    return out


def extent_of(loop: ir.For) -> Index:
    """Return an end of the loop's positions that its body knows: the loop may run over a part."""
    gaps = (gap for v in conditions(loop) if (gap := gap_of(v)) is not None)
    extents = (a.extent for gap in gaps for a in expr.atoms(gap) if a.name == loop.var)
    return next(extents, loop.high)


def _usual(gap: Index) -> bool | None:
    """Return whether a test holds except next to an end, or there only."""
    for a in expr.atoms(gap):
        flip = flip_of(gap, a.name) if a.kind == "axis" else None
        if flip is not None and (side := _edge(flip.at, a.extent)[0]):
            return flip.rising == (side == "start")
    return None


def _edge(at: Index, extent: Index) -> tuple[str, int]:
    """Return near which end of a loop a position is, and how far from it."""
    most = min(extent // 4, MAX_EDGE) if isinstance(extent, int) else MAX_EDGE
    left = sub(extent, at)
    if isinstance(at, int) and at <= most:
        return "start", at
    return ("end", left) if isinstance(left, int) and left <= most else ("", 0)


def _chosen(flips: Iterable[Flip], high: Index) -> list[Index]:
    """Return the positions to cut at: of some next to an end the farthest from it.

    Where the order is unknown, what begins to hold comes before what ends to.
    """
    starts: list[int] = []
    ends: dict[int, Index] = {}
    others: dict[Index, bool] = {}
    for f in flips:
        match _edge(f.at, high):
            case "start", at:
                starts.append(at)
            case "end", left:
                ends[left] = f.at
            case _:
                others.setdefault(f.at, f.rising)
    middle = sorted(others, key=lambda at: not others[at])
    first: list[Index] = [max(starts)] if starts and max(starts) > 0 else []
    return [*first, *middle, *([ends[max(ends)]] if ends and max(ends) > 0 else [])]


def _answer(gap: Index, facts: Facts) -> bool | None:
    if nonnegative(gap, facts):
        return True
    return False if nonnegative(_not(gap), facts) else None


def _not(gap: Index) -> Index:
    return sub(mul(gap, -1), 1)


# ---- bodies ----------------------------------------------------------------------------------


def _values(body: Body) -> Iterator[ir.Value]:
    return (v for s in statements(body) for root in values(s) for v in visit(root))


def _loads(body: Body) -> Iterator[ir.Load]:
    return (x for s in statements(body) for x in loads(*values(s)))


def _size(body: Body) -> int:
    return sum(isinstance(v, ir.Load | ir.Apply) for v in _values(body))


def _cost(body: Body) -> tuple[float, int]:
    """Return what a body costs: loads, tested ones twice, and costly functions; then its size."""
    total = 0.0
    for v in _values(body):
        if isinstance(v, ir.Load):
            total += 1 + (v.place.mask is not None)
        elif isinstance(v, ir.Apply):
            total += SCALARS[v.op].cost // COSTLY_CYCLES
    return total, _size(body)
