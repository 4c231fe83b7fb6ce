"""Copy the bodies of `unroll` loops, and make values of arrays in registers.

>>> from smelt.loop.text import parse, text
>>> module = parse('''
... tile micro(a: f32[], b: f32[], s: out f32[]; k)
...   alloc c: f32[2 * 16] in registers
...   unroll i in 0 .. 2
...     c[i * 16 : 16] = s[i * 16 : 16]
...   for p in 0 .. k
...     unroll j in 0 .. 2
...       c[j * 16 : 16] = fma(splat(a[j*k + p], 16), b[p * 16 : 16], c[j * 16 : 16])
...   unroll h in 0 .. 2
...     s[h * 16 : 16] = c[h * 16 : 16]
... ''')
>>> print(text(Module("micro", (promote(unroll(module.funcs[0])),))))
tile micro(a: f32[], b: f32[], s: out f32[]; k)
  c_1 = s[0 : 16]
  c_2 = s[16 : 16]
  for p in 0 .. k with c_3 = c_1, c_4 = c_2
    c_3' = fma(splat(a[p], 16), b[p*16 : 16], c_3)
    c_4' = fma(splat(a[p + k], 16), b[p*16 : 16], c_4)
  s[0 : 16] = c_3
  s[16 : 16] = c_4
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NoReturn

from smelt.errors import LoopPassError
from smelt.loop import ir
from smelt.loop.env import Type, type_of, types_in
from smelt.loop.ir import Module
from smelt.loop.passes.thread_state import Key, ThreadState
from smelt.loop.walk import (
    Body,
    Names,
    Rewriter,
    fresh,
    loads,
    places,
    rename,
    statements,
    values,
    with_func_body,
)

__all__ = ["Module", "promote", "unroll"]


def unroll(func: ir.Func) -> ir.Func:
    """Copy the body of every `unroll` loop for each of its iterations.

    Raises LoopPassError if a range is not constant, or if the loop itself folds.
    """
    return with_func_body(func, _Unroll(func).body(func.body))


class _Unroll(Rewriter):
    def __init__(self, func: ir.Func) -> None:
        super().__init__()
        self.new_names = Names(func)

    def statement(self, s: ir.Statement) -> Body:
        if not isinstance(s, ir.For) or s.kind != "unroll":
            return (self.rebuild(s),) if isinstance(s, ir.For | ir.If) else (s,)
        low, high, step = s.low, s.high, s.step
        if not (isinstance(low, int) and isinstance(high, int) and isinstance(step, int)):
            raise LoopPassError(f"the range of {s.var} is not constant")
        if any(c.combine for c in s.carry):
            raise LoopPassError(f"accumulate what {s.var} folds before it is unrolled")
        out: list[ir.Statement] = []
        current = {c.name: c.init for c in s.carry}
        for k in range(low, high, step):
            out += self._copy(s, k, current)
        return (*out, *(ir.Let(name, value) for name, value in current.items()))

    def _copy(self, s: ir.For, k: int, current: dict[str, ir.Value]) -> Body:
        """Return the body for one iteration, and set the next values of its carries."""
        names = {name: self.new_names.new(name) for name in current}
        lets = [ir.Let(names[name], value) for name, value in current.items()]
        body = rename(fresh(s.body, self.new_names, {s.var: k}), names)
        inner = [t for t in body if not isinstance(t, ir.Next)]
        # `rename` also renamed the carries that `Next` sets.
        back = {new: name for name, new in names.items()}
        current.update({back[t.name]: t.value for t in body if isinstance(t, ir.Next)})
        return self.body((*lets, *inner))


def promote(func: ir.Func) -> ir.Func:
    """Replace arrays in registers by values that loops carry.

    Raises LoopPassError if a subscript is not constant, or lanes of accesses overlap in part.
    """
    return with_func_body(func, _Promote(func).body(func.body))


def _refuse(reason: str) -> NoReturn:
    raise LoopPassError(reason)


class _Promote(ThreadState):
    def __init__(self, func: ir.Func) -> None:
        super().__init__(Names(func))
        self.env = types_in(func)
        self.registers = {n: a for n, a in self.env.arrays.items() if a.space == "registers"}
        self.lanes: dict[str, int] = {}
        for s in statements(func.body):
            self._check(s)

    def _check(self, s: ir.Statement) -> None:
        stored = () if isinstance(s, ir.Prefetch) else places(s)
        for place in (*stored, *(load.place for load in loads(*values(s)))):
            if place.buffer not in self.registers:
                continue
            lanes = self.lanes.setdefault(place.buffer, place.lanes)
            is_plain = place.mask is None and place.stride == 1 and not isinstance(s, ir.Call)
            if not isinstance(place.at, int) or not is_plain:
                _refuse(f"{place.buffer} is not accessed at a constant place; unroll loops first")
            if lanes != place.lanes or place.at % lanes:
                _refuse(f"accesses of {place.buffer} overlap in part")

    def changes(self, body: Iterable[ir.Statement]) -> list[Key]:
        stores = (s for s in statements(body) if isinstance(s, ir.Store))
        return [self._key(s.place) for s in stores if s.place.buffer in self.registers]

    def _key(self, place: ir.Place) -> Key:
        assert isinstance(place.at, int)
        return place.buffer, place.at

    def value(self, v: ir.Value) -> ir.Value:
        if not isinstance(v, ir.Load) or v.place.buffer not in self.registers:
            return super().value(v)
        key = self._key(v.place)
        if key not in self.state:
            _refuse(f"{v.place.buffer}[{v.place.at}] is read before it is written")
        return self.state[key]

    def statement(self, s: ir.Statement) -> Body:
        match s:
            case ir.Alloc(name) if name in self.registers:
                return ()
            case ir.Store(place, value, join) if place.buffer in self.registers:
                return self._store(place, value, join)
            case ir.For():
                return self._loop(s)
            case ir.If():
                self._define(self.changes((*s.then, *s.other)))
                return (self.thread_branch(s),)
            case _:
                return (self.rebuild(s),)

    def _loop(self, s: ir.For) -> Body:
        keys = self.changes(s.body)
        inner = {t.name for t in statements(s.body) if isinstance(t, ir.Alloc)}
        outer = [key for key in keys if key[0] not in inner]
        if outer and s.kind in ("each", "chunk"):
            _refuse(f"independent iterations over {s.var} share {outer[0][0]}")
        self._define(outer)
        return (self.thread_loop(s, {}, s.carry),)

    def _define(self, keys: list[Key]) -> None:
        """Let loops and branches carry what was not yet written: zeros, which nothing reads."""
        for key in keys:
            if key not in self.state:
                lanes, array = self.lanes[key[0]], self.registers[key[0]]
                self.types[key] = Type(array.dtype.compute, lanes)
                zero = ir.Const(0, array.dtype.compute)
                self.state[key] = zero if lanes == 1 else ir.Splat(zero, lanes)

    def _store(self, place: ir.Place, value: ir.Value, join: str) -> Body:
        key, array = self._key(place), self.registers[place.buffer]
        scalar = type_of(value, self.env).lanes < place.lanes
        value = ir.Splat(self.value(value), place.lanes) if scalar else self.value(value)
        if array.dtype.compute != array.dtype:
            value = ir.Cast(value, array.dtype)
        self.types[key] = Type(array.dtype.compute, place.lanes)
        if join:
            value = ir.apply(join, self.state[key], value)
        return self.assign(key, value)
