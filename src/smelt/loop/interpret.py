"""Interpret loops in NumPy: slow, with every access checked.

Tasks run in random parts and order, independent iterations in random order, scratch is poisoned,
and each element knows which iteration wrote it. Races, undefined reads and accesses outside of
arrays are errors with the statement's text. Folds follow lanes and `across` combines by halves, so
that sums have the bits of compiled code; transcendental operators are the references of their rows.

>>> from smelt.loop.text import parse
>>> module = parse('''
... func total(x: f32[r*c], y: out f32[r]; r, c)
...   chunk t in 0 .. r
...     each i in 0 .. c with s = sum:f64 0.0
...       s <- x[t*c + i]
...     y[t] = f32(s)
... ''')
>>> run(module, {"x": np.ones((2, 3), np.float32)}, {"r": 2, "c": 3})
{'y': array([3., 3.], dtype=float32)}
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from smelt.errors import VerifyError
from smelt.loop import ir
from smelt.loop.memory import Array, Memory, Path
from smelt.loop.text import statement_text
from smelt.ops.cast import cast_reference
from smelt.ops.combine import COMBINES
from smelt.ops.scalar import SCALARS
from smelt.types import expr
from smelt.types.dtype import DType
from smelt.types.expr import Index

__all__ = ["run"]

Values: TypeAlias = dict[str, Any]
_STEPS = 1 << 24
"""Maximum iterations of one loop; more are taken to be a mistake."""


def run(
    module: ir.Module, arrays: Mapping[str, Any], numbers: Mapping[str, int], *, seed: int = 0
) -> dict[str, Array]:
    """Run the entries of a module in order, and return the arrays that they write.

    `arrays` has the inputs by name; a result that is given is written in place of a copy, one that
    is not begins undefined. `numbers` has the sizes and numbers. `seed` decides every order.

    Raises VerifyError for what `smelt.loop.verify` cannot see.
    """
    shared: dict[str, Memory] = {}
    entries = [f for f in module.funcs if f.kind == "func"]
    for p in (p for f in entries for p in f.params):
        if p.name not in shared:
            shared[p.name] = _parameter(p, arrays.get(p.name), numbers)
    tiles = {f.name: f for f in module.funcs if f.kind == "tile"}
    random = np.random.default_rng(seed)
    for func in entries:
        _entry(func, tiles, random, shared, numbers)
        for memory in shared.values():
            memory.writer[...] = memory.reader[...] = -1
    written = [p.name for f in entries for p in f.params if p.written]
    return {
        name: shared[name].data.reshape(np.shape(arrays[name]))
        if name in arrays
        else shared[name].data
        for name in written
    }


def _parameter(p: ir.Param, array: Any, numbers: Mapping[str, int]) -> Memory:
    elements = int(expr.evaluate(p.elements or 0, numbers, numbers))
    if array is None:
        return Memory.scratch(p.name, p.dtype, elements, 0)
    data = np.array(array, p.dtype.numpy).reshape(-1)
    if data.size != elements:
        raise VerifyError(f"{p.name} has {data.size} elements, not {elements}")
    return Memory(p.name, data, elements, defined=True)


def _entry(
    func: ir.Func,
    tiles: Mapping[str, ir.Func],
    random: np.random.Generator,
    shared: Mapping[str, Memory],
    numbers: Mapping[str, int],
) -> None:
    """Run an entry once for each part of its chunks, as threads do."""
    chunk = next((s for s in func.body if isinstance(s, ir.For) and s.kind == "chunk"), None)
    arguments = {n: int(numbers[n]) for n in (*func.sizes, *func.numbers)}
    parts: list[Array | None] = [None]
    if chunk is not None:
        start = _Run(func, tiles, random, shared)
        ahead = func.body[: func.body.index(chunk)]
        lets = tuple(s for s in ahead if isinstance(s, ir.Let))
        env = dict(arguments)
        start.body(lets, env, dict(shared_windows(shared)), {})
        steps = start.range(chunk, env)
        cuts = np.sort(random.integers(0, len(steps) + 1, 2))
        parts = [p for p in np.split(steps, cuts) if len(p)]
        parts = [parts[k] for k in random.permutation(len(parts))]
    for number, part in enumerate(parts):
        running = _Run(func, tiles, random, shared, part)
        running.path = ((0, number),)
        running.body(func.body, dict(arguments), dict(shared_windows(shared)), {})


def shared_windows(shared: Mapping[str, Memory]) -> Iterable[tuple[str, _Window]]:
    """Return the windows of whole arrays."""
    return ((name, _Window(memory, 0)) for name, memory in shared.items())


class _Window(NamedTuple):
    memory: Memory
    base: int


class _State:
    """Running value of a carry: itself, and its position or rounding error."""

    def __init__(self, carry: ir.Carry, value: Array, second: Any) -> None:
        self.carry, self.value, self.second = carry, value, second

    def result(self) -> Values:
        carry = self.carry
        if carry.position:
            return {carry.name: _scalar(self.value), carry.position: _scalar(self.second)}
        if carry.mode == "two_sum":
            exact = np.where(np.isnan(self.second), self.value, self.value + self.second)
            return {carry.name: _scalar(exact)}
        return {carry.name: _scalar(self.value)}

    def fold(self, value: Array, position: Any) -> None:
        carry = self.carry
        while carry.mode == "pairs" and value.size > self.value.size:
            half = value.size // 2
            value = _combine(carry.combine, value[:half], value[half:])
        if carry.mode != "own" and not carry.position:
            value = value.astype(np.float64)
        if carry.position and value.size > self.value.size == 1:
            for x, at in zip(value, position, strict=True):
                self.fold(np.array([x]), np.array([at]))
            return
        part = slice(0, value.size)
        old = self.value[part]
        if carry.position:
            best, where = _better(carry.combine, value, position, old, self.second[part])
            self.value[part], self.second[part] = best, where
        elif carry.mode == "two_sum":
            with np.errstate(all="ignore"):
                total = old + value
                b = total - old
                error = (old - (total - b)) + (value - b)
                self.value[part] = total
                self.second[part] += error
        else:
            self.value[part] = _combine(carry.combine, value, old)


def _scalar(x: Any) -> Any:
    """Return a vector, or the number of an array of one element: i64 as int."""
    array = np.asarray(x)
    if array.size != 1:
        return array
    number = array.reshape(())[()]
    return int(number) if array.dtype == np.int64 else number


def _combine(combine: str, first: Array, second: Array) -> Array:
    with np.errstate(all="ignore"):
        return np.asarray(SCALARS[COMBINES[combine].scalar].numpy(first, second))


def _better(
    combine: str, value: Array, position: Any, old: Array, old_position: Array
) -> tuple[Array, Array]:
    """Return the better values and their positions: NaN wins, then the first of equals."""
    position = np.asarray(position)
    beats = _combine(combine, value, old) | (np.isnan(value) & ~np.isnan(old))
    ties = (value == old) | (np.isnan(value) & np.isnan(old))
    takes = (beats & ~np.isnan(old)) | (ties & (position < old_position))
    return np.where(takes, value, old), np.where(takes, position, old_position)


class _Run:
    """Execution of one function: of one part of its chunks, if it has any."""

    def __init__(
        self,
        func: ir.Func,
        tiles: Mapping[str, ir.Func],
        random: np.random.Generator,
        shared: Mapping[str, Memory],
        part: Array | None = None,
    ) -> None:
        self.func, self.tiles, self.random, self.part = func, tiles, random, part
        self.shared = shared
        self.path: Path = ()
        self.runs = itertools.count(1)
        """Numbers of the runs of parallel loops, shared with tiles that are called."""
        self.task_scratch: list[Memory] = []
        """Scratch that becomes undefined with each task."""
        self.thread_scratch: list[Memory] = []

    # ---- statements ----------------------------------------------------------------------------

    def body(
        self,
        body: Iterable[ir.Statement],
        env: Values,
        arrays: dict[str, _Window],
        states: Mapping[str, _State],
    ) -> Values:
        """Run statements and return the next values that they set."""
        nexts: Values = {}
        for s in body:
            try:
                self._statement(s, env, arrays, states, nexts)
            except VerifyError as error:
                if error.fields.get("func"):
                    raise
                where = f"{self.func.kind} {self.func.name}, `{statement_text(s)}`"
                raise VerifyError(f"{where}: {error.detail}", func=self.func.name) from None
        return nexts

    def _statement(
        self,
        s: ir.Statement,
        env: Values,
        arrays: dict[str, _Window],
        states: Mapping[str, _State],
        nexts: Values,
    ) -> None:
        match s:
            case ir.Let(name, value):
                env[name] = _scalar(self.value(value, env, arrays))
            case ir.Fold(name, value, position):
                at = None if position is None else self.value(position, env, arrays)
                operand = np.atleast_1d(self.value(value, env, arrays))
                states[name].fold(operand, None if at is None else np.atleast_1d(at))
            case ir.Next(name, value):
                nexts[name] = _scalar(self.value(value, env, arrays))
            case ir.Store():
                self._store(s, env, arrays)
            case ir.If(cond, then, other):
                side = then if self.value(cond, env, arrays) else other
                env.update(self.body(side, env, dict(arrays), states))
            case ir.For():
                self._for(s, env, arrays, states)
            case ir.Alloc(name, dtype, elements, space, pad):
                size = self.index(elements, env)
                memory = Memory.scratch(name, dtype, size, pad)
                if len(self.path) == 1:  # outside of the tasks
                    scratch = self.thread_scratch if space == "thread" else self.task_scratch
                    scratch.append(memory)
                arrays[name] = _Window(memory, 0)
            case ir.Prefetch() | ir.Poll():
                pass
            case ir.Call():
                self._call(s, env, arrays)

    def _store(self, s: ir.Store, env: Values, arrays: dict[str, _Window]) -> None:
        memory, at, on = self._place(s.place, env, arrays)
        value = np.asarray(self.value(s.value, env, arrays))
        value = np.broadcast_to(value, at.shape)[on]
        if s.join:
            old = memory.load(at[on], self.path)
            value = np.asarray(SCALARS[s.join].numpy(_computed(old), value))
        memory.store(at[on], _stored(value, memory.data.dtype), self.path)

    def _call(self, s: ir.Call, env: Values, arrays: dict[str, _Window]) -> None:
        tile = self.tiles[s.func]
        inner: dict[str, _Window] = {}
        for p, w in zip(tile.params, s.windows, strict=True):
            memory, base = arrays[w.buffer]
            assert isinstance(w.at, int | expr.Expr)
            inner[p.name] = _Window(memory, base + self.index(w.at, env))
        numbers = zip(tile.numbers, s.numbers, strict=True)
        running = _Run(tile, self.tiles, self.random, self.shared)
        running.path, running.runs = self.path, self.runs
        running.body(tile.body, {n: self.index(e, env) for n, e in numbers}, inner, {})

    # ---- loops ---------------------------------------------------------------------------------

    def range(self, loop: ir.For, env: Values) -> Array:
        """Return the values of a loop's variable."""
        low, high, step = (self.index(e, env) for e in (loop.low, loop.high, loop.step))
        if step < 1 or (high - low) // step > _STEPS:
            raise VerifyError(f"{low} .. {high} by {step} is not a range of a loop")
        return np.arange(low, high, step)

    def _for(
        self,
        s: ir.For,
        env: Values,
        arrays: dict[str, _Window],
        states: Mapping[str, _State],
    ) -> None:
        steps = self.range(s, env)
        if s.kind == "chunk" and self.part is not None:
            steps = self.part
        free = [c for c in s.carry if not c.combine]
        current = {c.name: _scalar(self.value(c.init, env, arrays)) for c in free}
        folded = {c.name: self._start(c, env, arrays) for c in s.carry if c.combine}
        outer, inner_states = self.path, {**states, **folded}
        parallel = s.kind in ("chunk", "each")
        run = next(self.runs)
        for k in self.random.permutation(steps) if parallel else steps:
            if parallel:
                self.path = (*outer, (run, int(k)))
            if s.kind == "chunk":
                self._begin_task()
            inner = {**env, **current, s.var: int(k)}
            nexts = self.body(s.body, inner, dict(arrays), inner_states)
            current = {name: nexts[name] for name in current}
        self.path = outer
        env.update(current)
        for state in folded.values():
            env.update(state.result())

    def _begin_task(self) -> None:
        for memory in self.task_scratch:
            memory.poison()
            memory.writer[...] = memory.reader[...] = -1
        for memory in self.thread_scratch:
            memory.writer[...] = memory.reader[...] = -1

    def _start(self, c: ir.Carry, env: Values, arrays: dict[str, _Window]) -> _State:
        value = np.atleast_1d(np.array(self.value(c.init, env, arrays)))
        if c.mode != "own" and not c.position:
            value = value.astype(np.float64)
        second: Any = np.zeros_like(value) if c.mode == "two_sum" else None
        if c.start is not None:
            second = np.atleast_1d(np.array(self.value(c.start, env, arrays)))
        return _State(c, value, second)

    # ---- values --------------------------------------------------------------------------------

    def index(self, e: Index, env: Values) -> int:
        """Evaluate an index expression."""
        return e if isinstance(e, int) else int(expr.evaluate(e, env, env))

    def value(self, v: ir.Value, env: Values, arrays: dict[str, _Window]) -> Any:
        """Evaluate a value: a number, or an array of its lanes."""

        def of(x: ir.Value) -> Any:
            return self.value(x, env, arrays)

        match v:
            case ir.Const(value, dtype):
                return np.array(value, dtype.compute.numpy)[()]
            case ir.IndexValue(index, dtype):
                wrapped = np.array(self.index(index, env) % 2**64, np.uint64).astype(np.int64)
                return wrapped.astype(dtype.numpy)[()]
            case ir.Ref(name):
                return env[name]
            case ir.Load(place, other):
                memory, at, on = self._place(place, env, arrays)
                out = np.full(at.shape, 0 if other is None else other.value, memory.data.dtype)
                out[on] = memory.load(at[on], self.path)
                return _computed(out)[()] if place.lanes > 1 else _computed(out)[0]
            case ir.Apply(op, args):
                operands = np.broadcast_arrays(*(np.asarray(of(a)) for a in args))
                with np.errstate(all="ignore"):
                    return np.asarray(SCALARS[op].numpy(*operands))[()]
            case ir.Cast(arg, dtype):
                return _cast(of(arg), dtype)
            case ir.Lane(lanes):
                return np.arange(lanes)
            case ir.LaneIndex(index, start, lanes, align):
                first = self.index(start, env)
                if first % align:
                    raise VerifyError(f"{first} is not a multiple of {align}")
                return np.array(
                    [self.index(index, {**env, ir.AT: first + k}) for k in range(lanes)]
                )
            case ir.Prefix(count, lanes):
                return np.arange(lanes) < self.index(count, env)
            case ir.Splat(arg, lanes):
                return np.full(lanes, of(arg))
            case ir.Across():
                return _across(v, [of(a) for a in v.args])
            case ir.Shuffle():
                return _shuffle(v, [of(a) for a in v.args])

    def _place(
        self, p: ir.Place, env: Values, arrays: dict[str, _Window]
    ) -> tuple[Memory, Array, Array]:
        """Return an array, positions in it, and which of them are accessed."""
        memory, base = arrays[p.buffer]
        if isinstance(p.at, int | expr.Expr):
            at = np.asarray(self.index(p.at, env))
        else:
            at = np.asarray(self.value(p.at, env, arrays))
        if at.ndim == 0:
            at = at + np.arange(p.lanes) * self.index(p.stride, env)
        mask = True if p.mask is None else self.value(p.mask, env, arrays)
        return memory, at + base, np.broadcast_to(np.asarray(mask), at.shape)


def _cast(x: Any, dtype: DType) -> Any:
    return _computed(np.asarray(cast_reference(np.asarray(x), dtype)))[()]


def _computed(x: Array) -> Array:
    """Return stored elements in the type of arithmetic: half types as float32."""
    return x.astype(np.float32) if x.dtype.kind in "fV" and x.dtype.itemsize == 2 else x


def _stored(x: Array, dtype: Any) -> Array:
    with np.errstate(all="ignore"):
        return x.astype(dtype)


def _across(v: ir.Across, args: list[Array]) -> Any:
    if COMBINES[v.combine].positional:
        rows = len(args) // 2
        pairs = zip(args[:rows], args[rows:], strict=True)
        return _scalar_or_lanes([_across_positions(v.combine, *pair) for pair in pairs])
    if v.scan:
        (lanes,) = args
        out = lanes.copy()
        distance = 1
        while distance < out.size:
            out[distance:] = _combine(v.combine, out[:-distance], out[distance:])
            distance *= 2
        return out
    return _scalar_or_lanes([_halves(a, lambda x, y: _combine(v.combine, x, y)) for a in args])


def _scalar_or_lanes(lanes: list[Array]) -> Any:
    return lanes[0] if len(lanes) == 1 else np.array(lanes)


def _halves(lanes: Array, combine: Callable[[Array, Array], Array]) -> Any:
    while lanes.size > 1:
        half = lanes.size // 2
        lanes = combine(lanes[:half], lanes[half:])
    return lanes[0]


def _across_positions(combine: str, lanes: Array, positions: Array) -> Any:
    while lanes.size > 1:
        half = lanes.size // 2
        sides = lanes[half:], positions[half:], lanes[:half], positions[:half]
        lanes, positions = _better(combine, *sides)
    return positions[0]


def _shuffle(v: ir.Shuffle, args: list[Array]) -> Any:
    if v.pattern == "halves":
        first, second = (np.asarray(x, np.float32).view(np.uint32) for x in args)
        return _scalar((first >> 16 | second & 0xFFFF0000).view(np.int32))
    rows = np.stack(args)
    if v.pattern in ("transpose", "interleave"):
        return rows.T.reshape(-1)
    if v.pattern == "deinterleave":
        return rows.reshape(-1).reshape(-1, len(args)).T.reshape(-1)
    return _scalar(rows.reshape(-1)[list(v.table)])
