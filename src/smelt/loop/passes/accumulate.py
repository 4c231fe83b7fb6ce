"""Replace folds by carries of loops in order, as sums and extremes are computed.

>>> from smelt.loop.text import parse, text
>>> module = parse('''
... func f(x: f32[n], y: out f32[1]; n)
...   each i in 0 .. n // 16 * 16 by 16 with s = sum:f64 splat(0.0, 16)
...     s <- x[i : 16]
...   y[0] = f32(across(sum, s))
... ''')
>>> print(text(Module("f", (accumulate(module.funcs[0]),))))
func f(x: f32[n], y: out f32[1]; n)
  for i in 0 .. (n//16)*16 by 16 with s = f64(splat(0.0, 16))
    s' = f64(x[i : 16]) + s
  y[0] = f32(across(sum, s))

The mode of a carry decides: `pairs` adds halves of a vector before they are widened, `two_sum`
carries the rounding errors (Knuth). Loops around a fold run in order from then on.
"""

from __future__ import annotations

from collections.abc import Iterable

from smelt.errors import LoopPassError
from smelt.loop import ir
from smelt.loop.env import Type, type_of, types_in
from smelt.loop.ir import Module
from smelt.loop.passes.remainder import halves
from smelt.loop.passes.thread_state import Key, ThreadState
from smelt.loop.steps import Pair, better, exact, join_sums, two_sum
from smelt.loop.walk import Body, Names, operands, statements, with_func_body
from smelt.ops.combine import COMBINES
from smelt.types.dtype import f64, i64

__all__ = ["Module", "accumulate"]


def accumulate(func: ir.Func) -> ir.Func:
    """Replace all folds of a function by carries with next values.

    Raises LoopPassError for a fold of fewer lanes than its carry has, apart from one.
    """
    return with_func_body(func, _Accumulate(func).body(func.body))


class _Accumulate(ThreadState):
    def __init__(self, func: ir.Func) -> None:
        super().__init__(Names(func))
        self.env = types_in(func)
        loops = (s for s in statements(func.body) if isinstance(s, ir.For))
        self.carries = {c.name: c for s in loops for c in s.carry if c.combine}
        self.pairs: dict[str, Pair] = {}
        """Vectors of sums, and of their errors, by the name of both."""

    def changes(self, body: Iterable[ir.Statement]) -> list[Key]:
        folded = [s.name for s in statements(body) if isinstance(s, ir.Fold)]
        return [key for name in dict.fromkeys(folded) for key in self._keys(self.carries[name])]

    def _keys(self, c: ir.Carry) -> list[Key]:
        pair = c.position != "" or c.mode == "two_sum"
        return [(c.name, 0), (c.name, 1)] if pair else [(c.name, 0)]

    def statement(self, s: ir.Statement) -> Body:
        match s:
            case ir.For():
                return self._loop(s)
            case ir.If():
                return (self.thread_branch(s),)
            case ir.Fold(name, value, position):
                return self._fold(self.carries[name], value, position)
            case ir.Let(name, ir.Across("sum", (arg,))) if self._is_pair(arg):
                return self._across(name, arg)
            case ir.Let(name, value) if self._is_pair(value):
                out: list[ir.Statement] = []
                self.pairs[name] = self._pair(value, out)
                return tuple(out)
            case _:
                return (self.rebuild(s),)

    # ---- vectors of sums with their errors -----------------------------------------------------

    def _is_pair(self, v: ir.Value) -> bool:
        is_sum = isinstance(v, ir.Apply) and v.op == "add"
        return (isinstance(v, ir.Ref) and v.name in self.pairs) or (
            (is_sum or isinstance(v, ir.Shuffle)) and all(map(self._is_pair, operands(v)))
        )

    def _pair(self, v: ir.Value, out: list[ir.Statement]) -> Pair:
        """Return sums and their errors; adds to `out` what computes them."""
        match v:
            case ir.Shuffle((arg,), pattern, table):
                total, error = (ir.Shuffle((x,), pattern, table) for x in self._pair(arg, out))
                return total, error
            case ir.Apply(_, (first, second)):
                pairs = self._pair(first, out), self._pair(second, out)
                return join_sums(*pairs, lambda v: self._bound(v, out))
            case _:
                assert isinstance(v, ir.Ref), v
                return self.pairs[v.name]

    def _across(self, name: str, vector: ir.Value) -> Body:
        """Return the sum of all lanes, halves with halves."""
        out: list[ir.Statement] = []
        lanes = type_of(vector, self.env).lanes
        while lanes > 1:
            lanes //= 2
            self.pairs[name] = self._pair(halves(vector, lanes, "sum"), out)
            vector = ir.Ref(name)
        return (*out, ir.Let(name, exact(*self.pairs.pop(name))))

    def _bound(self, value: ir.Value, out: list[ir.Statement]) -> ir.Value:
        out.append(ir.Let(name := self.new_names.new("t"), value))
        return ir.Ref(name)

    def _loop(self, s: ir.For) -> Body:
        named: dict[Key, str] = {}
        before: list[ir.Statement] = []
        after: list[ir.Statement] = []
        for c in (c for c in s.carry if c.combine):
            dtype, lanes = self.env.values[c.name]
            self.types[c.name, 0], self.types[c.name, 1] = Type(dtype, lanes), Type(dtype, lanes)
            init, same = self.value(c.init), type_of(c.init, self.env).dtype == dtype
            self.state[c.name, 0] = init if same else ir.cast(init, dtype)
            named[c.name, 0] = c.name
            if c.start is not None:
                self.types[c.name, 1] = Type(i64, lanes)
                self.state[c.name, 1] = self.value(c.start)
                named[c.name, 1] = c.position
            elif c.mode == "two_sum":
                total, error = (self.new_names.new(c.name) for _ in range(2))
                named |= {(c.name, 0): total, (c.name, 1): error}
                zero = ir.Const(0.0, f64)
                self.state[c.name, 1] = zero if lanes == 1 else ir.Splat(zero, lanes)
                if self._is_pair(c.init):
                    self.state[c.name, 0], self.state[c.name, 1] = self._pair(c.init, before)
                if lanes == 1:
                    after.append(ir.Let(c.name, exact(ir.Ref(total), ir.Ref(error))))
                else:
                    self.pairs[c.name] = ir.Ref(total), ir.Ref(error)
        free = tuple(c for c in s.carry if not c.combine)
        return (*before, self.thread_loop(s, named, free), *after)

    def _fold(self, c: ir.Carry, value: ir.Value, position: ir.Value | None) -> Body:
        lanes = self.env.values[c.name].lanes
        folded, key = type_of(value, self.env), (c.name, 0)
        out: list[ir.Statement] = []
        value = self.value(value)
        while c.mode == "pairs" and folded.lanes > lanes:
            name = self.new_names.new(c.name)
            out.append(ir.Let(name, value))
            folded = Type(folded.dtype, folded.lanes // 2)
            value = halves(ir.Ref(name), folded.lanes, c.combine)
        if c.mode != "own" and folded.dtype != f64:
            value = ir.cast(value, f64)
        if folded.lanes not in (1, lanes):
            raise LoopPassError(f"{folded.lanes} lanes are folded into {lanes} of {c.name}")
        partial = folded.lanes < lanes
        value = ir.Splat(value, lanes) if partial else value
        old = self.state[key]
        if c.mode == "two_sum" or position is not None:
            name = self.new_names.new(c.name)
            out.append(ir.Let(name, value))
            value = self.read(key, name)
        if position is not None:
            at = self.value(position)
            new = better(c.combine, (value, at), (old, self.state[c.name, 1]))
        elif c.mode == "two_sum":
            new = two_sum(value, old, self.state[c.name, 1], lambda v: self._bound(v, out))
        else:
            new = (ir.Apply(COMBINES[c.combine].scalar, (value, old)),)
        for k, v in enumerate(new):
            kept = ir.Apply("select", (ir.Prefix(1, lanes), v, self.state[c.name, k]))
            out += self.assign((c.name, k), kept if partial else v)
        return tuple(out)
