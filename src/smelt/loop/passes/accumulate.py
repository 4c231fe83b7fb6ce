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

Sums that wait in arrays have their errors in others. Where lanes of vectors are folded into one
lane of `argmax` or `argmin`, positions ascend: few
vectors have an element above the best one so far, and only these look for it.

>>> module = parse('''
... func f(x: i32[n], y: out i64[1]; n)
...   each i in 0 .. n // 4 * 4 by 4 with b @ p = argmax i32(0) from 0
...     b <- x[i : 4] @ i + lane(4)
...   y[0] = p
... ''')
>>> print(text(Module("f", (accumulate(module.funcs[0]),))))
func f(x: i32[n], y: out i64[1]; n)
  for i in 0 .. (n//4)*4 by 4 with b = i32(0), p = 0, b_1 = i32(0)
    t_1 = x[i : 4]
    if across(any, t_1 > b_1) with b_2, b_3, b_4
      t_2 = shuffle(permute, t_1; 0, 1)
      t_3 = shuffle(permute, t_1; 2, 3)
      t_4 = select(t_3 > t_2, t_3, t_2)
      t_5 = shuffle(permute, t_4; 0)
      t_6 = shuffle(permute, t_4; 1)
      t_7 = select(t_6 > t_5, t_6, t_5)
      b_2' = t_7
      b_3' = across(argmax, t_1 == t_7, i + lane(4))
      b_4' = t_7
    else
      b_2' = b
      b_3' = p
      b_4' = b_1
    b' = b_2
    p' = b_3
    b_1' = b_4
  y[0] = p
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from smelt.errors import LoopPassError
from smelt.loop import ir
from smelt.loop.env import Type, type_of, types_in
from smelt.loop.ir import Module
from smelt.loop.passes.remainder import halves
from smelt.loop.passes.thread_state import Key, ThreadState
from smelt.loop.reduce_rows import reduce_rows
from smelt.loop.steps import Pair, better, exact, join_sums, no_gain, two_sum
from smelt.loop.walk import Body, Names, fresh, operands, statements, with_func_body
from smelt.ops.combine import COMBINES
from smelt.python.dataclass import replace
from smelt.types.dtype import f64

__all__ = ["Module", "accumulate"]


MAX_COPIED_VECTORS = 8
"""Maximum vectors of rows whose first one is copied."""


def accumulate(func: ir.Func) -> ir.Func:
    """Replace all folds of a function by carries with next values.

    Raises LoopPassError for a fold of lanes that do not divide those of its carry.
    """
    loops = (s for s in statements(func.body) if isinstance(s, ir.For))
    if not any(c.combine for s in loops for c in s.carry):
        return func
    return with_func_body(func, _Accumulate(func).body(func.body))


class _Accumulate(ThreadState):
    def __init__(self, func: ir.Func) -> None:
        super().__init__(Names(func))
        self.env = types_in(func)
        loops = (s for s in statements(func.body) if isinstance(s, ir.For))
        self.carries = {c.name: c for s in loops for c in s.carry if c.combine}
        folds = (s for s in statements(func.body) if isinstance(s, ir.Fold) and s.position)
        self.barred = {
            s.name
            for s in folds
            if type_of(s.value, self.env).lanes > self.env.values[s.name].lanes
        }
        """Carries whose lane takes those of vectors: they have a bar that few of them pass."""
        self.bars: dict[ir.Value, ir.Value] = {}
        """The bars of values that loops carry."""
        self.pairs: dict[str, Pair] = {}
        """Vectors of sums, and of their errors, by the name of both."""
        wide = (c for c in self.carries.values() if self.env.values[c.name].lanes > 1)
        self.sums = {c.name for c in wide if c.mode == "two_sum"}
        """Names of vectors of sums that have errors."""
        self.errors: dict[str, str] = {}
        self.errors = self._pair_arrays(func)
        """Arrays for errors, by the name of that for sums."""
        self.unfolded: set[str] = set()
        """Carries that have no element yet."""
        self.best: dict[tuple[str, tuple[ir.Value, ...]], ir.Value] = {}
        """The best values of vectors whose positions are joined, by operator and vectors."""

    def changes(self, body: Iterable[ir.Statement]) -> list[Key]:
        folded = [s.name for s in statements(body) if isinstance(s, ir.Fold)]
        return [key for name in dict.fromkeys(folded) for key in self._keys(self.carries[name])]

    def _keys(self, c: ir.Carry) -> list[Key]:
        pair = c.position != "" or c.mode == "two_sum"
        bar = [(c.name, 2)] if c.name in self.barred else []
        return [(c.name, 0), (c.name, 1), *bar] if pair else [(c.name, 0)]

    def statement(self, s: ir.Statement) -> Body:
        match s:
            case ir.For():
                return self._loop(s)
            case ir.If():
                return (self.thread_branch(s),)
            case ir.Fold(name, value, position):
                return self._fold(self.carries[name], value, position)
            case ir.Let(name, ir.Across("sum", args) as v) if all(map(self._is_pair, args)):
                return self._across(name, v)
            case ir.Let(name, ir.Across("argmax" | "argmin") as v):
                return self._across(name, v)
            case ir.Let(name, ir.Across(combine, args)) if (combine, args) in self.best:
                return (ir.Let(name, self.best[combine, args]),)
            case ir.Alloc(name) if name in self.errors:
                return s, replace(s, name=self.errors[name])
            case ir.Store(place) if place.buffer in self.errors:
                return self._pair_stores(s)
            case ir.Let(name, value) if self._is_pair(value):
                out: list[ir.Statement] = []
                self.pairs[name] = self._pair(value, out)
                return tuple(out)
            case _:
                return (self.rebuild(s),)

    # ---- lanes of pairs ------------------------------------------------------------------------

    def _pair_arrays(self, func: ir.Func) -> dict[str, str]:
        """Return the names of arrays for the errors of sums that wait in arrays."""
        arrays: dict[str, str] = {}
        for s in statements(func.body):
            match s:
                case ir.Let(name, value) if self._is_pair(value):
                    self.sums.add(name)
                case ir.Store(place, value) if self._is_pair(value):
                    arrays.setdefault(place.buffer, self.new_names.new(place.buffer))
                case _:
                    pass
        return arrays

    def _is_pair(self, v: ir.Value) -> bool:
        """Return whether a value is a vector of sums with their errors."""
        match v:
            case ir.Ref(name):
                return name in self.sums
            case ir.Load(place):
                return place.buffer in self.errors
            case ir.Shuffle() | ir.Apply("add"):
                return all(map(self._is_pair, operands(v)))
            case _:
                return False

    def _pair(self, v: ir.Value, out: list[ir.Statement]) -> Pair:
        """Return sums and their errors; adds to `out` what computes them."""
        match v:
            case ir.Shuffle((arg,), pattern, table):
                total, error = (ir.Shuffle((x,), pattern, table) for x in self._pair(arg, out))
                return total, error
            case ir.Apply(_, (first, second)):
                pairs = self._pair(first, out), self._pair(second, out)
                return join_sums(*pairs, lambda v: self._bound(v, out))
            case ir.Load(place):
                load = self.value(v)
                assert isinstance(load, ir.Load)
                error = replace(load.place, buffer=self.errors[place.buffer])
                return self._bound(load, out), self._bound(ir.Load(error), out)
            case _:
                assert isinstance(v, ir.Ref), v
                return self.pairs[v.name]

    def _pair_stores(self, s: ir.Store) -> Body:
        """Return the stores of sums and of their errors, or of zeros."""
        out: list[ir.Statement] = []
        plain = self.rebuild(s)
        assert isinstance(plain, ir.Store)
        error = replace(plain.place, buffer=self.errors[s.place.buffer])
        pair = self._pair(s.value, out) if self._is_pair(s.value) else (plain.value, plain.value)
        places = plain.place, error
        return *out, *(ir.Store(p, v) for p, v in zip(places, pair, strict=True))

    def _across(self, name: str, v: ir.Across) -> Body:
        """Return the sum of all lanes, or the best one's position, row by row."""
        out: list[ir.Statement] = []
        if v.combine == "sum":
            rows = [self._pair(x, out) for x in v.args]
        else:
            count = len(v.args) // 2
            args = [self._bound(self.value(x), out) for x in v.args]
            rows = [*zip(args[:count], args[count:], strict=True)]

        def join(low: Pair, high: Pair) -> Pair:
            if v.combine == "sum":
                return join_sums(low, high, lambda x: self._bound(x, out))
            value, at = better(v.combine, high, low)
            assert isinstance(value, ir.Apply) and isinstance(at, ir.Apply)
            takes = self._bound(value.args[0], out)  # of both
            first, second = (ir.Apply("select", (takes, *x.args[1:])) for x in (value, at))
            return self._bound(first, out), self._bound(second, out)

        lanes = type_of(v.args[0], self.env).lanes
        nbytes = max(type_of(x, self.env).dtype.itemsize for x in v.args)
        value, at = self._joined(rows, (lanes, nbytes), join, out)
        if v.combine == "sum":
            return (*out, ir.Let(name, exact(value, at)))
        self.best[COMBINES[v.combine].winner, v.args[: len(rows)]] = value
        return (*out, ir.Let(name, at))

    def _joined(
        self,
        rows: list[Pair],
        size: tuple[int, int],
        join: Callable[[Pair, Pair], Pair],
        out: list[ir.Statement],
    ) -> Pair:
        """Join the lanes of each row, halves with halves: as many rows as lanes, or one.

        `size` is the lanes, and the bytes of the widest element.
        """
        lanes, nbytes = size

        def part(v: ir.Value, k: int, count: int) -> ir.Value:
            return ir.Shuffle((v,), "permute", tuple(range(k * count, (k + 1) * count)))

        def shuffle(first: Pair, second: Pair, table: list[int]) -> Pair:
            both = zip(first, second, strict=True)
            total, other = (ir.Shuffle(x, "permute", tuple(table)) for x in both)
            return self._bound(total, out), self._bound(other, out)

        first, second = rows[0] if len(rows) == 1 else reduce_rows(rows, nbytes, shuffle, join)
        while len(rows) == 1 and lanes > 1:
            lanes //= 2
            low, high = ((part(first, k, lanes), part(second, k, lanes)) for k in (0, 1))
            first, second = join(low, high)
        return first, second

    def _bound(self, value: ir.Value, out: list[ir.Statement]) -> ir.Value:
        out.append(ir.Let(name := self.new_names.new("t"), value))
        return ir.Ref(name)

    def _loop(self, s: ir.For) -> Body:
        named: dict[Key, str] = {}
        before: list[ir.Statement] = []
        first = self._first(s)
        after: list[ir.Statement] = []
        for c in (c for c in s.carry if c.combine):
            dtype, lanes = self.env.values[c.name]
            self.types[c.name, 0], self.types[c.name, 1] = Type(dtype, lanes), Type(dtype, lanes)
            init, same = self.value(c.init), type_of(c.init, self.env).dtype == dtype
            self.state[c.name, 0] = init if same else ir.cast(init, dtype)
            named[c.name, 0] = c.name
            if c.start is not None:
                self.types[c.name, 1] = self.env.values[c.position]
                self.state[c.name, 1] = self.value(c.start)
                named[c.name, 1] = c.position
                if c.name in self.barred:
                    self.types[c.name, 2] = Type(dtype, lanes)
                    self.state[c.name, 2] = self.bars.get(init, init)
                    named[c.name, 2] = bar = self.new_names.new(c.name)
                    self.bars[ir.Ref(c.name)] = ir.Ref(bar)
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
        if first:
            self.unfolded = {c.name for c in s.carry}
            before += self.body(first)
            assert isinstance(s.low, int) and isinstance(s.step, int)
            s = replace(s, low=s.low + s.step)
        return (*before, self.thread_loop(s, named, free), *after)

    def _first(self, s: ir.For) -> Body:
        """Return a copy of the body for the first of few vectors: all its elements are best."""
        if not (isinstance(s.low, int) and isinstance(s.high, int) and isinstance(s.step, int)):
            return ()
        few = s.step > 1 and s.low < s.high <= s.low + MAX_COPIED_VECTORS * s.step
        if not few or not s.carry or any(c.mode not in ("lanes", "places") for c in s.carry):
            return ()
        if not all(isinstance(c.init, ir.Splat) and c.init.lanes == s.step for c in s.carry):
            return ()
        first = tuple(fresh(s.body, self.new_names, {s.var: s.low}))
        for x in statements(first):
            if isinstance(x, ir.Let):
                self.env.values[x.name] = type_of(x.value, self.env)
        return first

    def _fold(self, c: ir.Carry, value: ir.Value, position: ir.Value | None) -> Body:
        lanes = self.env.values[c.name].lanes
        folded, key = type_of(value, self.env), (c.name, 0)
        if position is not None and folded.lanes > lanes:
            return self._best(c, self.value(value), folded, self.value(position))
        out: list[ir.Statement] = []
        value = self.value(value)
        while c.mode == "pairs" and folded.lanes > lanes:
            name = self.new_names.new(c.name)
            out.append(ir.Let(name, value))
            folded = Type(folded.dtype, folded.lanes // 2)
            value = halves(ir.Ref(name), folded.lanes, c.combine)
        if c.mode in ("f64", "pairs", "two_sum") and folded.dtype != f64:
            value = ir.cast(value, f64)
        if lanes % folded.lanes:
            raise LoopPassError(f"{folded.lanes} lanes are folded into {lanes} of {c.name}")
        partial = folded.lanes < lanes
        if partial:  # other lanes of the carry stay
            value = _repeated(value, folded.lanes, lanes)
        old = self.state[key]
        if c.mode == "two_sum" or position is not None:
            name = self.new_names.new(c.name)
            out.append(ir.Let(name, value))
            value = self.read(key, name)
        if position is not None:
            at = _repeated(self.value(position), folded.lanes, lanes)
            pair, best = (value, at), (old, self.state[c.name, 1])
            new = better(c.combine, pair, best, in_order=c.mode == "lanes")
            new = pair if c.name in self.unfolded else new
            self.unfolded.discard(c.name)
        elif c.mode == "two_sum":
            new = two_sum(value, old, self.state[c.name, 1], lambda v: self._bound(v, out))
        else:
            new = (ir.Apply(COMBINES[c.combine].scalar, (value, old)),)
        for k, v in enumerate(new):
            first = ir.Prefix(folded.lanes, lanes)
            kept = ir.Apply("select", (first, v, self.state[c.name, k]))
            out += self.assign((c.name, k), kept if partial else v)
        return tuple(out)

    def _best(self, c: ir.Carry, value: ir.Value, kind: Type, positions: ir.Value) -> Body:
        """Return what a vector changes if some of its lanes pass the bar."""
        out: list[ir.Statement] = []
        keys, x = self._keys(c), self._bound(value, out)
        old, at, bar = (self.state[key] for key in keys)
        then: list[ir.Statement] = []
        best, lanes = x, kind.lanes
        while lanes > 1:
            lanes //= 2
            low, high = (
                self._bound(ir.Shuffle((best,), "permute", tuple(range(k, k + lanes))), then)
                for k in (0, lanes)
            )
            is_high = ir.Apply(COMBINES[c.combine].scalar, (high, low))
            best = self._bound(ir.Apply("select", (is_high, high, low)), then)
        is_best, end = ir.Apply("eq", (x, best)), best
        if kind.dtype.is_float:  # the first NaN stays, and its bar is above all numbers
            nan = self._bound(ir.Apply("ne", (x, x)), then)
            has_nan = self._bound(ir.Across(ir.ANY, (nan,)), then)
            above = ir.Const(-ir.identity(c.combine, kind.dtype).value, kind.dtype)
            end = ir.Apply("select", (has_nan, above, best))
            a_nan = ir.Const(float("nan"), kind.dtype)
            best = self._bound(ir.Apply("select", (has_nan, a_nan, best)), then)
            is_best = ir.Apply("or", (ir.Apply("eq", (x, best)), nan))
        place: ir.Value = ir.Across(c.combine, (is_best, positions))
        if kind.dtype.is_float:
            is_final = self._bound(ir.Apply("ne", (old, old)), then)
            best, place = (ir.Apply("select", (is_final, *x)) for x in ((old, best), (at, place)))
        new = best, place, end
        passes = ir.Apply(COMBINES[c.combine].scalar, (x, bar))
        if kind.dtype.is_float:
            passes = ir.Apply("not", (no_gain(c.combine, x, bar),))
        results = [self.new_names.new(c.name) for _ in keys]
        then += [ir.Next(r, v) for r, v in zip(results, new, strict=True)]
        other = tuple(ir.Next(r, self.state[key]) for r, key in zip(results, keys, strict=True))
        for key, name in zip(keys, results, strict=True):
            self.state[key] = self.read(key, name)
        return *out, ir.If(ir.Across(ir.ANY, (passes,)), tuple(then), other, tuple(results))


def _repeated(value: ir.Value, count: int, lanes: int) -> ir.Value:
    """Return a vector of more lanes that repeats one of `count` lanes."""
    if count == 1 or count == lanes:
        return value if count == lanes else ir.Splat(value, lanes)
    return ir.Shuffle((value,), "permute", tuple(k % count for k in range(lanes)))
