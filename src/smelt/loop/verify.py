"""Verify loops: reject modules whose names, types, kinds of loops, stores or bounds are wrong.

>>> from smelt.loop.text import parse
>>> module = parse('''
... func shift(x: f32[n], y: out f32[n]; n)
...   each i in 0 .. n
...     y[i] = x[i + 1]
... ''')
>>> verify(module)
Traceback (most recent call last):
    ...
smelt.errors.VerifyError: E405 not well formed: func shift, `y[i] = x[i + 1]`: x[i + 1] can leave
    the n elements of x
...

Every rule has an error of its own, which names the statement.
"""

from __future__ import annotations

from collections.abc import Container
from typing import NoReturn

from smelt.errors import VerifyError
from smelt.loop import ir
from smelt.loop.bounds import Known
from smelt.loop.env import INDEX, Array, Env, Type, check_index, place_type, type_of
from smelt.loop.text import place_text, statement_text, text
from smelt.loop.walk import Body, bound, loads, names_in, statements, values
from smelt.ops.combine import COMBINES, SCALAR_IDENTITIES
from smelt.types import expr
from smelt.types.dtype import bool_, f64, i32, i64


def verify(module: ir.Module, *, bounds: bool = True) -> ir.Module:
    """Check a module and return it; `bounds` False: not whether accesses stay in their arrays.

    Raises VerifyError with the statement, the reason and the module's text.
    """
    tiles: dict[str, ir.Func] = {}
    names = [f.name for f in module.funcs]
    for func in module.funcs:
        checker = _Verifier(func, tiles, module.facts, bounds=bounds)
        try:
            if names.count(func.name) > 1:
                _refuse(f"two functions are called {func.name}")
            checker.run()
        except VerifyError as error:
            where = f"{func.kind} {func.name}"
            if checker.statement is not None:
                where += f", `{statement_text(checker.statement)}`"
            raise VerifyError(
                f"{where}: {error.message}\n{text(module)}",
                what=where,
                reason=error.message,
                context=text(module),
            ) from None
        if func.kind == "tile":
            tiles[func.name] = func
    return module


def _refuse(reason: str) -> NoReturn:
    raise VerifyError(reason)


class _Verifier:
    def __init__(
        self,
        func: ir.Func,
        tiles: dict[str, ir.Func],
        facts: tuple[expr.Index, ...],
        *,
        bounds: bool,
    ) -> None:
        self.func, self.tiles, self.bounds = func, tiles, bounds
        self.statement: ir.Statement | None = None
        self.known = Known(facts=tuple(f for f in facts if not isinstance(f, int)))
        self.taken = {*func.sizes, *func.numbers, *(p.name for p in func.params)}
        self.folds: dict[str, ir.Carry] = {}
        """Carries that a `Fold` may change here."""
        self.unreadable: set[str] = set()
        """Carries that are folded around the statement."""
        self.loops: list[tuple[ir.For, frozenset[str]]] = []
        """Loops around the statement, and the arrays in scope before each."""
        self.chunks = 0

    def run(self) -> None:
        func, env = self.func, Env.of(self.func)
        count = len(func.sizes) + len(func.numbers) + len(func.params)
        if len(self.taken) < count:
            _refuse("two parameters have one name")
        if func.kind == "tile" and func.sizes:
            _refuse("a tile has numbers, no sizes")
        for p in func.params:
            if p.elements is not None:
                check_index(p.elements, env)
            elif func.kind != "tile":
                _refuse(f"{p.name} has no length, which only windows of tiles may lack")
            if p.alignment < 1 or p.alignment & (p.alignment - 1):
                _refuse(f"{p.name} is aligned to {p.alignment}, not to a power of 2")
        self._body(func.body, env, frozenset())

    # ---- statements ----------------------------------------------------------------------------

    def _body(self, body: Body, env: Env, nexts: Container[str]) -> None:
        """Check a block in which the carries `nexts` may get their next values."""
        before = self.known
        for s in body:
            self.statement = s
            for v in values(s):
                self._reads(v)
                for load in loads(v) if self.bounds else ():
                    type_of(load, env)
                    self._inside(load.place, env)
            self._statement(s, env, nexts)
        self.known, self.statement = before, None

    def _statement(self, s: ir.Statement, env: Env, nexts: Container[str]) -> None:
        match s:
            case ir.Let(name, value):
                self._bind(name)
                env.values[name] = type_of(value, env)
                self.known = self.known.let(s)
            case ir.Fold():
                self._fold(s, env)
            case ir.Next(name, value):
                if name not in nexts:
                    _refuse(f"{name} has no next value here: only at the top of its loop or branch")
                wanted, actual = env.values.get(name), type_of(value, env)
                if wanted is not None and wanted != actual:
                    _refuse(f"{name} carries {wanted}, not {actual}")
            case ir.Store():
                self._store(s, env)
            case ir.If():
                self._if(s, env)
            case ir.For():
                self._for(s, env)
            case ir.Alloc(name, dtype, elements, space, pad):
                self._bind(name)
                check_index(elements, env)
                if self.func.kind == "tile" and space != "registers":
                    _refuse("a tile has scratch in registers only")
                if space == "registers" and not isinstance(elements, int):
                    _refuse(f"{elements} elements are not a constant number of registers")
                env.arrays[name] = Array(dtype, elements, True, space, pad)
            case ir.Prefetch(place):
                place_type(place, env)
            case ir.Poll():
                pass
            case ir.Call():
                self._call(s, env)

    def _bind(self, name: str) -> None:
        if name in self.taken:
            _refuse(f"{name} is bound twice")
        self.taken.add(name)

    def _reads(self, v: ir.Value) -> None:
        if not self.unreadable:
            return
        for name in names_in(v) & self.unreadable:
            _refuse(f"{name} is folded here, and can be read after its loop only")

    def _fold(self, s: ir.Fold, env: Env) -> None:
        carry = self.folds.get(s.name)
        if carry is None:
            _refuse(f"{s.name} is not folded by a loop around this")
        wanted, actual = env.values[s.name], type_of(s.value, env)
        is_own = carry.mode == "own" or carry.position != ""
        dtype = wanted.dtype if is_own else type_of(carry.init, env).dtype
        fits = actual.dtype in (dtype, wanted.dtype) or (not is_own and actual.dtype.is_float)
        if not fits:
            _refuse(f"{s.name} folds {wanted.dtype.name}, not {actual.dtype.name}")
        lanes = wanted.lanes * (4 if carry.mode == "pairs" else 1)
        if actual.lanes > lanes and not (carry.position and lanes == 1):
            _refuse(f"{s.name} folds at most {lanes} lanes, not {actual.lanes}")
        if (s.position is None) != (carry.position == ""):
            _refuse(f"a fold has a position exactly if its carry has one, as {s.name}")
        if s.position is not None:
            wanted = Type(env.values[carry.position].dtype, actual.lanes)
            if type_of(s.position, env) != wanted:
                _refuse(f"positions of {wanted} expected")

    def _store(self, s: ir.Store, env: Env) -> None:
        array = env.arrays.get(s.place.buffer)
        wanted, actual = place_type(s.place, env), type_of(s.value, env)
        assert array is not None
        if not array.written:
            _refuse(f"{s.place.buffer} is read only")
        if actual.dtype != wanted.dtype:
            _refuse(f"{s.place.buffer} holds {wanted.dtype.name}, not {actual.dtype.name}")
        if actual.lanes not in (1, wanted.lanes):
            _refuse(f"{wanted.lanes} lanes are stored, not {actual.lanes}")
        if s.join and s.join not in SCALAR_IDENTITIES:
            _refuse(f"{s.join!r} does not combine what is stored with what was")
        if self.bounds:
            self._inside(s.place, env)
        self._race(s)

    def _race(self, s: ir.Store) -> None:
        """Refuse a store of every iteration of a parallel loop to one element."""
        used = {a.name for e in (s.place.at,) if isinstance(e, expr.Expr) for a in expr.atoms(e)}
        used |= {n for v in values(s) if v is not s.value for n in names_in(v)}
        for depth, (loop, arrays) in enumerate(self.loops):
            inner = {x.var for x, _ in self.loops[depth:]} | set(bound(loop.body))
            if loop.kind not in ("chunk", "each") or s.place.buffer not in arrays or used & inner:
                continue
            if not s.join and not self._guarded(loop, inner):
                _refuse(f"every iteration over {loop.var} stores to {place_text(s.place)}")

    def _guarded(self, loop: ir.For, inner: set[str]) -> bool:
        """Whether a branch around the statement depends on what the loop binds."""
        branches = (b for b in statements(loop.body) if isinstance(b, ir.If))
        return any(
            names_in(b.cond) & inner
            for b in branches
            if any(x is self.statement for x in statements((*b.then, *b.other)))
        )

    def _if(self, s: ir.If, env: Env) -> None:
        if type_of(s.cond, env) != Type(bool_, 1):
            _refuse(f"a branch depends on one bool, not on {type_of(s.cond, env)}")
        before, results = self.known, list[dict[str, Type]]()
        for name in s.results:
            self._bind(name)
        for side, holds in ((s.then, True), (s.other, False)):
            self.known = before.where(s.cond, holds=holds)
            inner = env.child()
            self._body(side, inner, s.results)
            self.statement = s
            nexts = [x for x in side if isinstance(x, ir.Next)]
            if sorted(x.name for x in nexts) != sorted(s.results):
                _refuse(f"each side sets {', '.join(s.results) or 'nothing'} once, at its top")
            results.append({x.name: type_of(x.value, inner) for x in nexts})
        if results[0] != results[1]:
            _refuse("the sides set results of different types")
        self.known = before
        env.values.update(results[0])

    def _call(self, s: ir.Call, env: Env) -> None:
        tile = self.tiles.get(s.func)
        if tile is None or self.func.kind == "tile":
            _refuse(f"{s.func} is not a tile before this function; a tile calls nothing")
        if len(s.windows) != len(tile.params) or len(s.numbers) != len(tile.numbers):
            counts = f"{len(tile.params)} windows and {len(tile.numbers)} numbers"
            _refuse(f"{s.func} takes {counts}")
        for window, param in zip(s.windows, tile.params, strict=True):
            place_type(window, env)
            array = env.arrays[window.buffer]
            if array.dtype != param.dtype or array.written < param.written:
                _refuse(f"{window.buffer} does not fit {param.name} of {s.func}")
        for n in s.numbers:
            check_index(n, env)

    # ---- loops ---------------------------------------------------------------------------------

    def _for(self, s: ir.For, env: Env) -> None:
        for e in (s.low, s.high, s.step):
            check_index(e, env)
        if isinstance(s.step, int) and s.step < 1:
            _refuse(f"a step of {s.step}; steps are at least 1")
        self._kind(s)
        self._carries(s, env)
        carried = env.carries(s)
        for name in (s.var, *carried):
            self._bind(name)
        inner = env.child()
        inner.values |= {s.var: INDEX, **carried}
        free = frozenset(c.name for c in s.carry if not c.combine)
        nexts = [x.name for x in s.body if isinstance(x, ir.Next)]
        outer = self.folds, self.unreadable, self.known
        self.folds = self.folds | {c.name: c for c in s.carry if c.combine}
        self.unreadable = self.unreadable | (carried.keys() - free)
        self.known = self.known.loop(s)
        self.loops.append((s, frozenset(env.arrays)))
        self._body(s.body, inner, free)
        self.loops.pop()
        self.folds, self.unreadable, self.known = outer
        self.statement = s
        if sorted(nexts) != sorted(free):
            _refuse(f"each of {', '.join(free) or 'no carries'} has one next value in the loop")
        env.values |= carried

    def _kind(self, s: ir.For) -> None:
        if s.kind == "chunk":
            self.chunks += 1
            if self.loops or self.func.kind == "tile" or not any(x is s for x in self.func.body):
                _refuse("a loop over chunks is outermost, in a func")
            if s.carry:
                _refuse("a loop over chunks carries nothing")
            if self.chunks > 1:
                _refuse("a func has one loop over chunks")
        if s.kind == "each" and any(not c.combine for c in s.carry):
            _refuse("independent iterations only fold: a carry needs a combine")

    def _carries(self, s: ir.For, env: Env) -> None:
        for c in s.carry:
            init = type_of(c.init, env)
            if c.combine and c.combine not in COMBINES:
                _refuse(f"{c.combine!r} does not combine values")
            positional = c.combine != "" and COMBINES[c.combine].positional
            if positional != (c.position != "") or positional != (c.start is not None):
                _refuse(f"a position and its start go with argmax and argmin, as {c.name}")
            is_own = c.mode == "own" or positional
            if positional and not self._is_start(c, init, env):
                _refuse(f"{c.position} starts from {init.lanes} lanes of i64")
            if not is_own and (not c.combine or not COMBINES[c.combine].wide):
                _refuse(f"only sums and products round by a mode such as {c.mode}")
            if not is_own and not init.dtype.is_float:
                _refuse(f"{c.name} sums in {f64.name}, not {init.dtype.name}")

    def _is_start(self, c: ir.Carry, init: Type, env: Env) -> bool:
        """Return whether positions start from as many lanes, of i64 where one lane has vectors'."""
        assert c.start is not None
        start = type_of(c.start, env)
        kinds = (i64,) if c.mode == "own" else (i32, i64)
        return c.mode in ("own", "lanes", "places") and start in [
            Type(d, init.lanes) for d in kinds
        ]

    # ---- bounds --------------------------------------------------------------------------------

    def _inside(self, place: ir.Place, env: Env) -> None:
        array = env.arrays[place.buffer]
        if array.elements is None or not isinstance(place.at, int | expr.Expr):
            return
        elements = expr.add(array.elements, array.pad)
        if not self.known.proves_inside(place, self.known.expand(elements)):
            shown = expr.text(elements)
            _refuse(f"{place_text(place)} can leave the {shown} elements of {place.buffer}")
