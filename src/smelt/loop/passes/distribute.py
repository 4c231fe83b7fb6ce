"""Split a loop in several, strip by strip: values wait in scratch for the loops that read them.

>>> from smelt.loop.text import parse, text
>>> module = parse('''
... func f(x: f32[n], y: out f32[n]; n)
...   each i in 0 .. n
...     a = exp(x[i])
...     y[i] = a / erf(x[i])
... ''')
>>> print(text(Module("f", (distribute(module.funcs[0], "i", (1,), 512),))))
func f(x: f32[n], y: out f32[n]; n)
  each i_1 in 0 .. n by 512
    alloc a_1: f32[512] in task
    each i_2 in i_1 .. min(i_1 + 512, n)
      a_2 = exp(x[i_2])
      a_1[-i_1 + i_2] = a_2
    each i_3 in i_1 .. min(i_1 + 512, n)
      y[i_3] = a_1[-i_1 + i_3] / erf(x[i_3])

Loops of few live values need no spills. Positions and loads are computed again, and what is stored
anyway is read from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from smelt.errors import LoopPassError
from smelt.loop import ir
from smelt.loop.env import INDEX, Env, type_of, types_in
from smelt.loop.ir import Module
from smelt.loop.passes.remainder import copy_loop
from smelt.loop.walk import (
    Body,
    Names,
    Rewriter,
    bound,
    loads,
    reads,
    replace_loop,
    statements,
)
from smelt.python.dataclass import replace
from smelt.types import expr
from smelt.types.expr import Expr

__all__ = ["Module", "distribute"]


def distribute(func: ir.Func, var: str, cuts: Sequence[int], strip: int) -> ir.Func:
    """Run the statements of a loop between cuts one after another, strip by strip.

    Raises LoopPassError if iterations are not independent, or an array, a wide vector or a position
    that is loaded from a written array would have to wait.
    """
    env, names = types_in(func), Names(func)

    def change(loop: ir.For) -> Body:
        ends = [0, *cuts, len(loop.body)]
        if loop.kind != "each" or not isinstance(loop.step, int) or strip % loop.step:
            raise LoopPassError(f"the loop over {var} is not `each` in steps that divide {strip}")
        if ends != sorted({*ends}):
            raise LoopPassError(f"the loop over {var} has no more than {cuts[-1]} statements")
        head = replace(loop, var=names.new(var), step=strip, body=())
        start = ir.variable(head)
        end = expr.minimum(expr.add(start, strip), loop.high)
        part = replace(loop, low=start, high=end, carry=())
        split = _Split(part, env, names, strip)
        bodies = [loop.body[a:b] for a, b in pairwise(ends)]
        loops: list[ir.For] = []
        for k, body in enumerate(bodies):
            later = [s for b in bodies[k + 1 :] for s in b]
            done = (*split.repeated(body), *body, *split.stores(body, later))
            new = Rewriter(change=split.waiting).body(done)
            loops.append(copy_loop(replace(part, body=new), names))
            split.held |= split.found
        return (replace(head, body=(*split.allocs, *loops)),)

    return replace_loop(func, var, change)


class _Split:
    """What waits between the parts of a strip, found part by part."""

    def __init__(self, part: ir.For, env: Env, names: Names, strip: int) -> None:
        assert isinstance(part.step, int)
        self.part, self.step, self.strip = part, part.step, strip
        self.env, self.names = env, names
        self.allocs: list[ir.Statement] = []
        self.again: list[ir.Let] = []
        """Statements of earlier parts that later ones may repeat, in their order."""
        self.held: dict[str, ir.Value] = {}
        """What waits in arrays, for later parts."""
        self.found: dict[str, ir.Value] = {}

    def waiting(self, v: ir.Value) -> ir.Value:
        """Return where a value waits, if it is one of an earlier part."""
        return self.held.get(v.name, v) if isinstance(v, ir.Ref) else v

    def repeated(self, body: Body) -> Body:
        """Return the statements of earlier parts that a part repeats."""
        needed, out = reads(*body), list[ir.Statement]()
        for s in reversed(self.again):
            if s.name in needed:
                needed |= reads(s)
                out.insert(0, s)
        return tuple(out)

    def stores(self, body: Body, later: Sequence[ir.Statement]) -> Body:
        """Return the stores of what later parts read of one, with their scratch."""
        out, again = list[ir.Statement](), list[ir.Let]()
        crossing = set(bound(body)) & reads(*later)
        kept = {
            s.value.name: s.place
            for s in body
            if isinstance(s, ir.Store) and isinstance(s.value, ir.Ref) and _is_plain(s)
        }
        written = {s.place.buffer for s in statements((*body, *later)) if isinstance(s, ir.Store)}
        for s in reversed(body):
            if not isinstance(s, ir.Let) or s.name not in crossing:
                continue
            crossing.discard(s.name)
            dtype, lanes = type_of(s.value, self.env)
            if self._is_repeatable(s, written):
                again.insert(0, s)
                crossing |= set(bound(body)) & reads(s)
            elif s.name in kept and self.env.arrays[kept[s.name].buffer].dtype == dtype:
                self.found[s.name] = ir.Load(kept[s.name])
            elif lanes > self.step or self.env.values[s.name] == INDEX:
                raise LoopPassError(f"{s.name} would have to wait as a vector or a position")
            else:
                offset = expr.sub(ir.variable(self.part), self.part.low)
                place = ir.Place(self.names.new(s.name), offset, lanes)
                self.allocs.append(ir.Alloc(place.buffer, dtype, self.strip, "task"))
                out.append(ir.Store(place, ir.Ref(s.name)))
                self.found[s.name] = ir.Load(place)
        if crossing:
            raise LoopPassError(f"{', '.join(sorted(crossing))} would have to wait")
        self.again += again
        return tuple(out)

    def _is_repeatable(self, s: ir.Let, written: set[str]) -> bool:
        """Return whether a value is a position, or a plain load, from no written array."""
        v = s.value
        if isinstance(v, ir.Load):
            plain = v.place.mask is None and not isinstance(v.place.at, ir.Value)
        else:  # indices name positions, which therefore cannot wait in arrays
            plain = self.env.values[s.name] == INDEX
        return plain and all(x.place.buffer not in written for x in loads(v))


def _is_plain(s: ir.Store) -> bool:
    return (
        not s.join and s.place.mask is None and isinstance(s.place.at, Expr) and s.place.stride == 1
    )
