"""Traverse and rebuild loops: names, substitution, copies with new names.

>>> from smelt.loop.text import parse, statement_text
>>> func = parse('''
... func f(x: f32[n], y: out f32[n]; n)
...   each i in 0 .. n
...     y[i] = x[i] + x[n - 1 - i]
... ''').funcs[0]
>>> (loop,) = func.body
>>> sorted(reads(loop)), list(bound(func.body))
(['i', 'n', 'x', 'y'], ['i'])
>>> statement_text(substitute(loop.body, {"i": 3})[0])
'y[3] = x[3] + x[n - 4]'
>>> [s.var for s in fresh(func.body, Names(func))]
['i_1']

A rebuilt node whose parts are unchanged is the same object, so that rewriting costs what changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from smelt.errors import LoopPassError
from smelt.loop import ir
from smelt.types import expr
from smelt.types.expr import Atom, Index

Body: TypeAlias = tuple[ir.Statement, ...]


_OPERANDS: Final[dict[type, Callable[[Any], tuple[ir.Value, ...]]]] = {
    **dict.fromkeys((ir.Apply, ir.Across, ir.Shuffle), lambda v: v.args),
    **dict.fromkeys((ir.Cast, ir.Splat), lambda v: (v.arg,)),
    ir.Load: lambda v: place_values(v.place),
}


def operands(v: ir.Value) -> tuple[ir.Value, ...]:
    """Return the direct operands of a value, those of a load's place included."""
    of = _OPERANDS.get(type(v))
    return of(v) if of else ()


def place_values(place: ir.Place) -> tuple[ir.Value, ...]:
    """Return the values of a place: a position without an index expression, and the mask."""
    at = () if isinstance(place.at, Index) else (place.at,)
    return at if place.mask is None else (*at, place.mask)


def places(s: ir.Statement) -> tuple[ir.Place, ...]:
    """Return the places that a statement itself names, apart from its loads."""
    match s:
        case ir.Store(place=place) | ir.Prefetch(place=place):
            return (place,)
        case ir.Call(windows=windows):
            return windows
        case _:
            return ()


def values(s: ir.Statement) -> tuple[ir.Value, ...]:
    """Return the values of a statement, without those of statements inside it."""
    match s:
        case ir.Let(value=value) | ir.Next(value=value):
            return (value,)
        case ir.Store(place=place, value=value):
            return (*place_values(place), value)
        case ir.Fold(value=value, position=position):
            return (value,) if position is None else (value, position)
        case ir.If(cond=cond):
            return (cond,)
        case ir.For(carry=carry):
            return tuple(v for c in carry for v in (c.init, c.start) if v is not None)
        case _:
            return tuple(v for p in places(s) for v in place_values(p))


def indices(s: ir.Statement) -> tuple[Index, ...]:
    """Return the index expressions of a statement, without those of its values."""
    inner = tuple(e for p in places(s) for e in place_indices(p))
    match s:
        case ir.For():
            return s.low, s.high, s.step
        case ir.Alloc(elements=elements):
            return (elements,)
        case ir.Call(numbers=numbers):
            return (*inner, *numbers)
        case _:
            return inner


def place_indices(place: ir.Place) -> tuple[Index, ...]:
    """Return the index expressions of a place."""
    at = place.at
    return (at, place.stride) if isinstance(at, Index) else (place.stride,)


def visit(v: ir.Value) -> Iterator[ir.Value]:
    """Yield a value and everything inside it."""
    left = [v]
    while left:
        v = left.pop()
        yield v
        left += operands(v)[::-1]


def inner_statements(s: ir.Statement) -> Body:
    """Return the statements of a loop, or of both sides of a branch."""
    if isinstance(s, ir.For):
        return s.body
    return (*s.then, *s.other) if isinstance(s, ir.If) else ()


def statements(body: Iterable[ir.Statement]) -> list[ir.Statement]:
    """Return statements and those inside them, in order."""
    out: list[ir.Statement] = []
    for s in body:
        out.append(s)
        if inner := inner_statements(s):
            out += statements(inner)
    return out


def loads(*roots: ir.Value) -> Iterator[ir.Load]:
    """Yield the loads inside values."""
    return (v for root in roots for v in visit(root) if isinstance(v, ir.Load))


def value_indices(v: ir.Value) -> tuple[Index, ...]:
    """Return the index expressions of a value, without those of its operands."""
    match v:
        case ir.Apply() | ir.Const() | ir.Ref():
            return ()
        case ir.IndexValue(index=index) | ir.Prefix(count=index):
            return (index,)
        case ir.LaneIndex(index, start):
            return index, start
        case ir.Load(place):
            return place_indices(place)
        case _:
            return ()


def names_in(v: ir.Value) -> set[str]:
    """Return the names that a value reads: bound values, variables, sizes and arrays."""
    out: set[str] = set()
    for x in visit(v):
        if isinstance(x, ir.Ref):
            out.add(x.name)
        elif isinstance(x, ir.Load):
            out.add(x.place.buffer)
        for e in value_indices(x):
            out.update(_index_names(e))
    out.discard(ir.AT)  # the lane that an element is in
    return out


def _index_names(e: Index) -> Iterator[str]:
    return (a.name for a in expr.atoms(e) if a.name)


def reads(*body: ir.Statement) -> set[str]:
    """Return every name that statements mention, arrays that they store to included."""
    out: set[str] = set()
    for s in statements(body):
        for v in values(s):
            out |= names_in(v)
        for e in indices(s):
            out.update(_index_names(e))
        out.update(p.buffer for p in places(s))
    return out


def bound(body: Iterable[ir.Statement]) -> Iterator[str]:
    """Yield the names that statements bind, arrays included."""
    for s in statements(body):
        match s:
            case ir.Let(name=name) | ir.Alloc(name=name):
                yield name
            case ir.For(var=var, carry=carry):
                yield var
                for c in carry:
                    yield c.name
                    if c.position:
                        yield c.position
            case ir.If(results=results):
                yield from results
            case _:
                pass


class Names:
    """Names of a function, to make new ones: `i`, `i_1`, `i_2`."""

    def __init__(self, func: ir.Func) -> None:
        self.taken = {*bound(func.body), *(p.name for p in func.params)}
        self.taken.update(func.sizes, func.numbers)
        self.counts: dict[str, int] = {}
        """The last number that a stem was given."""

    def new(self, name: str) -> str:
        """Return a name that nothing has, derived from `name`."""
        stem, _, last = name.rpartition("_")
        stem = stem if stem and last.isdigit() else name
        count = self.counts.get(stem, 0) + 1
        while (derived := f"{stem}_{count}") in self.taken:
            count += 1
        self.counts[stem] = count
        self.taken.add(derived)
        return derived


# ---- rebuilding ------------------------------------------------------------------------------


class Rewriter:
    """Rebuilds statements bottom up; subclasses or arguments say what changes.

    `leaf` replaces a variable of index expressions (None: it stays), `change` a rebuilt value,
    `names` the names of values, arrays, and of what statements bind.
    """

    def __init__(
        self,
        leaf: Callable[[Atom], Index | None] | None = None,
        change: Callable[[ir.Value], ir.Value] | None = None,
        names: Mapping[str, str] | None = None,
    ) -> None:
        self.leaf, self.change, self.names = leaf, change, names or {}
        self.known: dict[Index, Index] = {}
        """Results for index expressions, which statements share."""

    def index(self, e: Index) -> Index:
        """Rebuild an index expression."""
        if self.leaf is None or isinstance(e, int):
            return e
        new = self.known.get(e)
        if new is None:
            swap: dict[str, Index] = {}
            for a in expr.atoms(e):
                if a.name and (x := self.leaf(a)) is not None:
                    swap[a.name] = x
            new = expr.replace(e, swap) if swap else e
            self.known[e] = new
        return new

    def place(self, p: ir.Place) -> ir.Place:
        """Rebuild a place."""
        at = self.index(p.at) if isinstance(p.at, Index) else self.value(p.at)
        if not isinstance(at, Index) and (position := ir.as_index(at)) is not None:
            at = position
        stride = p.stride if p.stride == 1 else self.index(p.stride)
        mask = None if p.mask is None else self.value(p.mask)
        buffer = self.names.get(p.buffer, p.buffer)
        if at is p.at and stride is p.stride and mask is p.mask and buffer is p.buffer:
            return p
        return ir.Place(buffer, at, p.lanes, stride, mask, p.group)

    def value(self, v: ir.Value) -> ir.Value:
        """Rebuild a value."""
        v = self._operands(v)
        return v if self.change is None else self.change(v)

    def _operands(self, v: ir.Value) -> ir.Value:
        match v:
            case ir.Apply(op, args):
                new = self._tuple(args)
                return v if new is args else ir.Apply(op, new)
            case ir.IndexValue(index, dtype):
                e = self.index(index)
                return v if e is index else ir.cast(ir.position(e), dtype)
            case ir.Ref(name):
                return ir.Ref(self.names[name]) if name in self.names else v
            case ir.Load(place, other):
                p = self.place(place)
                return v if p is place else ir.Load(p, other)
            case ir.Cast(arg, dtype):
                new = self.value(arg)
                return v if new is arg else ir.cast(new, dtype)
            case ir.Splat(arg, lanes):
                new = self.value(arg)
                return v if new is arg else ir.Splat(new, lanes)
            case ir.Prefix(count, lanes):
                e = self.index(count)
                return v if e is count else ir.Prefix(e, lanes)
            case ir.LaneIndex(index, start, lanes, align):
                e, first = self.index(index), self.index(start)
                same = e is index and first is start
                return v if same else ir.LaneIndex(e, first, lanes, align)
            case ir.Across(combine, args, scan):
                new = self._tuple(args)
                return v if new is args else ir.Across(combine, new, scan)
            case ir.Shuffle(args, pattern, table):
                new = self._tuple(args)
                return v if new is args else ir.Shuffle(new, pattern, table)
            case _:
                return v

    def _tuple(self, args: tuple[ir.Value, ...]) -> tuple[ir.Value, ...]:
        new = tuple([self.value(a) for a in args])
        return args if all(map(_is, new, args)) else new

    def body(self, body: Body) -> Body:
        """Rebuild statements."""
        new = tuple([t for s in body for t in self.statement(s)])
        return body if len(new) == len(body) and all(map(_is, new, body)) else new

    def statement(self, s: ir.Statement) -> Body:
        """Rebuild a statement, as any number of statements."""
        return (self.rebuild(s),)

    def rebuild(self, s: ir.Statement) -> ir.Statement:
        """Rebuild the parts of a statement."""
        match s:
            case ir.Let(old, v):
                name, value = self._name(old), self.value(v)
                return s if value is v and name is old else ir.Let(name, value)
            case ir.Fold(old, v, position):
                at = None if position is None else self.value(position)
                name, value = self._name(old), self.value(v)
                same = value is v and at is position and name is old
                return s if same else ir.Fold(name, value, at)
            case ir.Next(old, v):
                name, value = self._name(old), self.value(v)
                return s if value is v and name is old else ir.Next(name, value)
            case ir.Store(p, v, join, nontemporal):
                place, value = self.place(p), self.value(v)
                same = place is p and value is v
                return s if same else ir.Store(place, value, join, nontemporal)
            case ir.For():
                return self._rebuilt_loop(s)
            case ir.Prefetch(p, level, write):
                place = self.place(p)
                return s if place is p else ir.Prefetch(place, level, write)
            case ir.Alloc(old, dtype, n, space, pad):
                name, elements = self._name(old), self.index(n)
                same = name is old and elements is n
                return s if same else ir.Alloc(name, dtype, elements, space, pad)
            case ir.If(v, then, other, results):
                names = tuple([self._name(r) for r in results])
                cond, first, second = self.value(v), self.body(then), self.body(other)
                same = cond is v and first is then and second is other and names == results
                return s if same else ir.If(cond, first, second, names)
            case ir.Poll():
                return s
            case ir.Call(func, windows, numbers):
                starts = tuple([self.place(w) for w in windows])
                return ir.Call(func, starts, tuple([self.index(n) for n in numbers]))

    def _rebuilt_loop(self, s: ir.For) -> ir.For:
        carry = tuple([self.carry(c) for c in s.carry]) if s.carry else ()
        low, high, step = self.index(s.low), self.index(s.high), self.index(s.step)
        body, var = self.body(s.body), self._name(s.var)
        same = body is s.body and low is s.low and high is s.high and step is s.step
        same = same and var is s.var and all(map(_is, carry, s.carry))
        return s if same else ir.For(s.kind, var, low, high, body, step, carry)

    def carry(self, c: ir.Carry) -> ir.Carry:
        """Rebuild a carry."""
        start = None if c.start is None else self.value(c.start)
        name, position, init = self._name(c.name), self._name(c.position), self.value(c.init)
        if init is c.init and start is c.start and name is c.name and position is c.position:
            return c
        return ir.Carry(name, init, c.combine, c.mode, position, start)

    def _name(self, name: str) -> str:
        return self.names.get(name, name)


def _is(a: object, b: object) -> bool:
    return a is b


def substitute(body: Iterable[ir.Statement], variables: Mapping[str, Index]) -> Body:
    """Replace variables of index expressions by name."""
    return Rewriter(lambda a: variables.get(a.name)).body(tuple(body))


def substitute_index(e: Index, variables: Mapping[str, Index]) -> Index:
    """Replace variables of an index expression by name."""
    return Rewriter(lambda a: variables.get(a.name)).index(e)


def atom_index(a: Atom) -> Index:
    """Return a variable as an index expression."""
    return expr.Expr((((a,), 1),))


def is_short(e: expr.Expr) -> bool:
    """Return whether an index is a variable, or its multiple by a number."""
    return len(e.terms) == 1 and len(e.terms[0][0]) == 1 and not e.terms[0][0][0].args


def rename(body: Iterable[ir.Statement], names: Mapping[str, str]) -> Body:
    """Rename values, arrays and variables where they are bound and where they are read."""
    if not names:
        return tuple(body)

    def leaf(a: Atom) -> Index | None:
        new = names.get(a.name)
        return None if new is None else atom_index(Atom(a.kind, new, a.extent))

    return Rewriter(leaf, names=names).body(tuple(body))


def fresh(
    body: Iterable[ir.Statement],
    names: Names,
    variables: Mapping[str, Index] | None = None,
    keep: Iterable[str] = (),
) -> Body:
    """Copy statements: what they bind gets new names except `keep`, and variables are replaced.

    The variable of an outermost loop gets the extent that follows from its range, if one does.
    """
    body = tuple(body)
    return copier(body, names, variables, keep).body(body)


def copier(
    body: Body,
    names: Names,
    variables: Mapping[str, Index] | None = None,
    keep: Iterable[str] = (),
    change: Callable[[ir.Value], ir.Value] | None = None,
) -> Rewriter:
    """Return what copies statements: `fresh` with a `change` of rebuilt values."""
    swap, kept = dict(variables or {}), set(keep)
    new = {n: names.new(n) for n in dict.fromkeys(bound(body)) if n not in kept}
    for s in body:
        if isinstance(s, ir.For) and s.var in new and expr.nonnegative(s.low):
            swap[s.var] = ir.variable(s, new[s.var])

    def leaf(a: Atom) -> Index | None:
        if a.name in new and a.name not in swap:
            extent = a.extent if a.extent == expr.UNKNOWN else rewriter.index(a.extent)
            swap[a.name] = atom_index(Atom(a.kind, new[a.name], extent))
        return swap.get(a.name)

    rewriter = Rewriter(leaf, change, new)
    return rewriter


def loop_around(body: Body, var: str) -> ir.For | None:
    """Return the innermost loop around the loop over a variable; None if there is none."""
    around = (s for s in statements(body) if isinstance(s, ir.For) and s.var != var)
    inside = [
        s for s in around if any(isinstance(t, ir.For) and t.var == var for t in statements(s.body))
    ]
    return inside[-1] if inside else None


def loop_over(body: Body, var: str) -> ir.For:
    """Return the loop over a variable, which is there."""
    return next(s for s in statements(body) if isinstance(s, ir.For) and s.var == var)


def replace_loop(func: ir.Func, var: str, change: Callable[[ir.For], Body]) -> ir.Func:
    """Replace the loop over a variable by other statements.

    Raises LoopPassError if the function has no such loop.
    """
    done = False

    def inside(body: Body) -> Body:
        nonlocal done
        out: list[ir.Statement] = []
        for s in body:
            if done:
                out.append(s)
            elif isinstance(s, ir.For) and s.var == var:
                done = True
                out += change(s)
            elif isinstance(s, ir.For):
                new = inside(s.body)
                out.append(with_body(s, new) if done else s)
            elif isinstance(s, ir.If):
                then, other = inside(s.then), inside(s.other)
                out.append(ir.If(s.cond, then, other, s.results) if done else s)
            else:
                out.append(s)
        return tuple(out)

    body = inside(func.body)
    if not done:
        raise LoopPassError(f"{func.name} has no loop over {var}")
    return with_func_body(func, body)


def with_body(loop: ir.For, body: Body) -> ir.For:
    """Return a loop with another body."""
    return ir.For(loop.kind, loop.var, loop.low, loop.high, body, loop.step, loop.carry)


def with_func_body(func: ir.Func, body: Body) -> ir.Func:
    """Return a function with another body."""
    return ir.Func(func.kind, func.name, func.params, func.sizes, func.numbers, body)
