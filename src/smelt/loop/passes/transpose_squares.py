"""Read an array along another loop than its vectors run: in squares that registers transpose.

>>> from smelt.loop.text import parse, text
>>> module = parse('''
... tile f(x: f32[], t: out f32[]; n, a, b, c, d)
...   each i in a .. b
...     each j in c .. d
...       t[i*64 + j] = x[j*n + i]
... ''')
>>> print(text(Module("f", (transpose_squares(module.funcs[0], "i", "j", 2, run=2),))))
tile f(x: f32[], t: out f32[]; n, a, b, c, d)
  each i_1 in a .. b by 2
    each j_1 in c .. d by 2
      start_1 = i_1 + j_1*n
      start_2 = n + start_1
      if (i_1 + 2 <= b) & (j_1 + 2 <= d) with row_1, row_2
        row_1' = x[start_1 : 2]
        row_2' = x[start_2 : 2]
      else
        rows_1 = -i_1 + b
        left_1 = -j_1*2 + d*2
        at_1 = select(left_1 > 0, start_1, 0)
        row_1' = x[at_1 : 2 | prefix(min(left_1, rows_1), 2)]
        at_2 = select(left_1 > 2, start_2, 0)
        row_2' = x[at_2 : 2 | prefix(min(left_1 - 2, rows_1), 2)]
      tile_1 = shuffle(transpose, row_1, row_2)
      column_1 = shuffle(permute, tile_1; 0, 1)
      t[i_1*64 + j_1 : 2] = column_1
      column_2 = shuffle(permute, tile_1; 2, 3)
      t[i_1*64 + j_1 + 64 : 2] = column_2

Squares at the ends are stored whole: elements past the loops' ranges are 0. So one loop over them
may overwrite what another one's ends wrote, and goes in order.

A nest that does more than move elements reads them from a tile, which `stage_tiles` fills before:

>>> module = parse('''
... tile f(x: f32[], y: out f32[], t: out f32[]; n, a, b, c, d)
...   each i in a .. b
...     each j in c .. d
...       y[i*n + j] = x[j*n + i] + y[i*n + j]
... ''')
>>> func = module.funcs[0]
>>> (load, _) = func.body[0].body[0].body[0].value.args
>>> func, loops = stage_tiles(func, "i", "j", {("x", load.place.at): ("t", 64)})
>>> print(text(Module("f", (func,))), loops)
tile f(x: f32[], y: out f32[], t: out f32[]; n, a, b, c, d)
  each i_1 in a .. b
    each j_1 in c .. d
      t[i_1*64 + j_1 - a*64 - c] = x[i_1 + j_1*n]
  each i in a .. b
    each j in c .. d
      y[i*n + j] = t[i*64 + j - a*64 - c] + y[i*n + j] {'t': ('i_1', 'j_1')}

Rows of a tile that share what they read at a stride find it in scratch too, once for all of them:

>>> module = parse('''
... tile f(s: f32[], y: out f32[]; n, a, b, c, d)
...   each i in a .. b
...     each j in c .. d
...       y[i*64 + j] = s[j*n + i//16]
... ''')
>>> print(text(Module("f", (stage_shared(module.funcs[0], "i", "j", 64)[0],))))
tile f(s: f32[], y: out f32[]; n, a, b, c, d)
  alloc s_1: f32[320] in registers
  each q_1 in a//16 .. (b + 15)//16
    each j_1 in c .. d
      s_1[j_1 + q_1*64 - (a//16)*64 - c] = s[j_1*n + q_1]
  each i in a .. b
    each j in c .. d
      y[i*64 + j] = s_1[j - (a//16)*64 - c + (i//16)*64]
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import reduce

from smelt.errors import LoopPassError
from smelt.loop import ir
from smelt.loop.env import Env, types_in
from smelt.loop.ir import CACHE_LINE, Module
from smelt.loop.passes.decide import gap_of
from smelt.loop.passes.vectorize import Widen
from smelt.loop.walk import (
    Body,
    Names,
    Rewriter,
    atom_index,
    bound,
    fresh,
    loads,
    loop_over,
    replace_loop,
    statements,
    substitute_index,
    values,
    with_body,
)
from smelt.ops.combine import BOTH
from smelt.python.dataclass import replace
from smelt.types.expr import (
    Atom,
    Expr,
    Index,
    add,
    atoms,
    build,
    coefficient,
    floordiv,
    maximum,
    minimum,
    mod,
    mul,
    sub,
)

__all__ = ["Module", "stage_shared", "stage_tiles", "transpose_squares"]

Tiles = Mapping[tuple[str, Index], tuple[str, Index]]
"""Arrays that loads are staged in, and the elements between their rows, by array and index."""


def stage_tiles(
    func: ir.Func, row: str, column: str, tiles: Tiles
) -> tuple[ir.Func, dict[str, tuple[str, str]]]:
    """Copy what some loads read into tiles, row by row, before loops that read these.

    Returns the variables of the loops that copy, by tile.
    """
    names, copies = Names(func), dict[str, tuple[str, str]]()

    def change(outer: ir.For) -> Body:
        inner = loop_over(outer.body, column)
        fills: dict[str, ir.For] = {}

        def read(v: ir.Value) -> ir.Value:
            if not isinstance(v, ir.Load) or isinstance(v.place.at, ir.Value):
                return v
            if (key := (v.place.buffer, v.place.at)) not in tiles:
                return v
            name, pitch = tiles[key]
            at = mul(sub(ir.variable(outer), outer.low), pitch)
            place = ir.Place(name, add(at, sub(ir.variable(inner), inner.low)))
            copy = ir.For("each", column, inner.low, inner.high, (ir.Store(place, v),))
            fills[name] = ir.For("each", row, outer.low, outer.high, (copy,))
            return ir.Load(place)

        body = Rewriter(change=read).body(outer.body)
        copied = fresh(fills.values(), names)
        for name, s in zip(fills, copied, strict=True):
            first, second = bound((s,))
            copies[name] = first, second
        return (*copied, with_body(outer, body))

    return replace_loop(func, row, change), copies


def stage_shared(func: ir.Func, row: str, column: str, side: int) -> tuple[ir.Func, list[str]]:
    """Copy strided elements that neighbouring rows of a tile share.

    Tiles have at most `side` rows and columns. Returns the variables of the loops over columns.
    """
    names, env, walks = Names(func), types_in(func), list[str]()

    def change(outer: ir.For) -> Body:
        inner, inside = loop_over(outer.body, column), {*bound(outer.body)}
        before: list[ir.Statement] = []
        staged: dict[ir.Place, ir.Load] = {}

        def read(v: ir.Value) -> ir.Value:
            if (
                not isinstance(v, ir.Load)
                or (group := _group(v.place, outer, inner, inside)) is None
            ):
                return v
            if v.place not in staged:
                stride, rest, number, size = group
                first = substitute_index(number, {row: outer.low})
                last = substitute_index(number, {row: sub(outer.high, 1)})
                groups = ir.For("each", names.new("q"), first, add(last, 1), ())
                walk = ir.For("each", names.new(column), inner.low, inner.high, ())
                q, k = ir.variable(groups), ir.variable(walk)
                name, array = names.new(v.place.buffer), env.arrays[v.place.buffer]
                rows = 1 if size == 0 else (side + size - 1) // size + 1
                at = substitute_index(add(rest, mul(stride, q)), {column: k})
                copied = ir.Load(ir.Place(v.place.buffer, at))
                place = ir.Place(name, add(mul(sub(q, first), side), sub(k, inner.low)))
                walk = with_body(walk, (ir.Store(place, copied),))
                before.append(ir.Alloc(name, array.dtype.compute, rows * side, "registers"))
                before.append(with_body(groups, (walk,)))
                walks.append(walk.var)
                at = add(mul(sub(number, first), side), sub(ir.variable(inner), inner.low))
                staged[v.place] = ir.Load(ir.Place(name, at))
            return staged[v.place]

        body = Rewriter(change=read).body(outer.body)
        return (*before, with_body(outer, body))

    return replace_loop(func, row, change), walks


def _group(
    place: ir.Place, outer: ir.For, inner: ir.For, inside: Collection[str]
) -> tuple[Index, Index, Index, int] | None:
    """Return how a strided load's index depends on the number of a group of rows.

    That is its stride, the rest of the index, the number, and the rows of a group: 0 if all rows
    read the same. None if each row reads elements of its own, or at positions `inside` of them.
    """
    at = place.at
    if not isinstance(at, Expr) or place.mask is not None:
        return None
    if coefficient(at, inner.var) in (None, 0, 1):
        return None
    if any(a.name != inner.var and a.name in inside for a in atoms(at)):
        return None
    varying = {a for m, _ in at.terms for a in m if _reads(a, outer.var)}
    if not varying:
        return 0, at, 0, 0
    (number, *others) = varying
    if others or number.kind != "//" or not isinstance(size := number.args[1], int):
        return None
    if coefficient(number.args[0], outer.var) != 1 or _reads(number, inner.var):
        return None
    e = atom_index(number)
    stride = _multiplier(at, number)
    return stride, sub(at, mul(stride, e)), e, size


def _reads(a: Atom, var: str) -> bool:
    return var in {x.name for x in atoms(atom_index(a))}


def _multiplier(e: Expr, atom: Atom) -> Index:
    """Return what an atom is multiplied by in an index expression."""
    total: Index = 0
    for monomial, c in e.terms:
        if atom in monomial:
            total = add(total, build({tuple(a for a in monomial if a != atom): c}))
    return total


def transpose_squares(
    func: ir.Func,
    row: str,
    column: str,
    side: int,
    *,
    run: int = 0,
    ahead: int = 0,
    tile: int = 0,
    whole: bool = False,
) -> ir.Func:
    """Run loops over rows and columns in squares, whose one strided load is transposed.

    It is contiguous along the rows from each multiple of `side` after their beginning on. `run`
    elements of all columns are read one after the other, or if it is 0 those of all rows. A
    prefetch is `ahead` squares along the columns, or of a next tile, `tile` rows further on. If
    all squares are `whole`, nothing is masked. Raises LoopPassError if there is not one such load.
    """
    names, env = Names(func), types_in(func)

    def change(outer: ir.For) -> Body:
        squares = _Squares(outer, _inside(outer, column), side, names, env, whole=whole)
        u, v, body = squares.row, squares.column, squares.body()
        if not run:
            hints = squares.prefetch_later(ahead) if ahead else ()
            return (replace(v, body=(replace(u, body=(*hints, *body)),)),)
        if run > side:
            first = names.new(row)
            end = minimum(add(ir.number(first), run), outer.high)
            body = (replace(u, low=ir.variable(outer, first), high=end, body=body),)
            u = replace(u, var=first)
        hints = squares.prefetch_next(ir.variable(u), run, tile) if tile else ()
        each = replace(v, kind="each", body=(*hints, *body))
        return (replace(u, kind="each", step=run, body=(each,)),)

    return replace_loop(func, row, change)


def _inside(outer: ir.For, column: str) -> ir.For:
    """Return the loop over columns, which is all that a loop over rows has."""
    inner, *others = outer.body or (None,)
    if others or not isinstance(inner, ir.For) or inner.var != column:
        raise LoopPassError(f"the loop over {outer.var} has more than one over columns")
    return inner


class _Squares:
    """Squares of a nest: loops over them, and what is done with one of them."""

    def __init__(
        self, outer: ir.For, inner: ir.For, side: int, names: Names, env: Env, *, whole: bool
    ) -> None:
        self.outer, self.inner, self.side, self.names, self.env = outer, inner, side, names, env
        self.whole = whole
        self.row, self.column = (
            replace(s, kind="for", var=names.new(s.var), step=side) for s in (outer, inner)
        )
        self.load = self._strided()

    def _strided(self) -> ir.Load:
        """Return the load whose columns are not contiguous."""
        strided: dict[ir.Load, None] = {}
        for x in loads(*(v for s in statements(self.inner.body) for v in values(s))):
            at = x.place.at
            if isinstance(at, Expr) and coefficient(at, self.inner.var) not in (0, 1):
                if self.outer.var in {a.name for a in atoms(at)}:
                    strided[x] = None
        if len(strided) != 1:
            raise LoopPassError(f"{len(strided)} loads are strided along {self.inner.var}")
        return next(iter(strided))

    def _at(self, e: Index, u: Index, v: Index) -> Index:
        return substitute_index(e, {self.outer.var: u, self.inner.var: v})

    def body(self) -> Body:
        """Return the statements for one square."""
        side, names, env = self.side, self.names, self.env
        u, v = ir.variable(self.row), ir.variable(self.column)
        rows = [names.new("row") for _ in range(side)]
        tile, column = names.new("tile"), "column"
        shuffle = ir.Shuffle(tuple(map(ir.Ref, rows)), "transpose")
        reads = Rewriter(change=lambda x: ir.Ref(column) if x == self.load else x)
        widen = Widen(self.inner, side, env)
        widen.varying.add(column)
        inner = widen.body(reads.body(self.inner.body))
        out: list[ir.Statement] = [*self._rows(rows), ir.Let(tile, shuffle)]
        for k in range(side):
            table = tuple(range(k * side, (k + 1) * side))
            lanes = ir.Let(column, ir.Shuffle((ir.Ref(tile),), "permute", table))
            places = {self.outer.var: add(u, k), self.inner.var: v}
            out += fresh((lanes, *inner), names, places)
        return tuple(out)

    def _rows(self, rows: list[str]) -> Body:
        """Return what loads the rows of a square; lanes past the ranges are 0."""
        inside = [
            _test("le", add(ir.variable(s), self.side), s.high) for s in (self.row, self.column)
        ]
        mask, starts = self.load.place.mask, [self.names.new("start") for _ in rows]
        lets, full = tuple(self._starts(starts)), self._full(rows, starts)
        if mask is None and self.whole:
            return (*lets, *_bound(full))
        if mask is None:
            return (*lets, ir.If(_all(inside), full, self._masked(rows, starts), tuple(rows)))
        gaps = [self._extremes(gap) for x in _terms(mask) if (gap := gap_of(x)) is not None]
        if len(gaps) < len(_terms(mask)):  # the program's numbers may be any integers
            return (*lets, *_bound(self._masked(rows, starts)))
        inside += [_test("le", 0, low) for low, _ in gaps]
        some = _all([_test("le", 0, high) for _, high in gaps])
        parts = [self.names.new(x) for x in rows]
        dtype = self.env.arrays[self.load.place.buffer].dtype.compute
        other = ir.Splat(self.load.other or ir.Const(0, dtype), self.side)
        outside = tuple(ir.Next(x, other) for x in parts)
        either = ir.If(some, self._masked(parts, starts), outside, tuple(parts))
        read = (ir.Next(x, ir.Ref(part)) for x, part in zip(rows, parts, strict=True))
        return (*lets, ir.If(_all(inside), full, (either, *read), tuple(rows)))

    def _extremes(self, gap: Index) -> tuple[Index, Index]:
        """Return the smallest and largest gap of a linear test: at corners of a square."""
        ends = [
            (ir.variable(s), add(ir.variable(s), self.side - 1)) for s in (self.row, self.column)
        ]
        corners = [self._at(gap, u, v) for u in ends[0] for v in ends[1]]
        return reduce(minimum, corners), reduce(maximum, corners)

    def _full(self, rows: list[str], starts: list[str]) -> Body:
        """Return the loads of a square inside the ranges and the array."""
        buffer = self.load.place.buffer
        places = (ir.Place(buffer, ir.number(start), self.side) for start in starts)
        return tuple(ir.Next(x, ir.Load(p)) for x, p in zip(rows, places, strict=True))

    def _masked(self, rows: list[str], starts: list[str]) -> Body:
        """Return the loads of any square; rows past the range have the array's first address.

        A masked vector of no lanes takes hundreds of cycles where nothing is mapped.
        """
        u, v, buffer = self.row, self.column, self.load.place.buffer
        test, other = self.load.place.mask, self.load.other
        wide = None if test is None else Widen(self.outer, self.side, self.env).value(test)
        count, left = self.names.new("rows"), self.names.new("left")
        lanes = mul(sub(v.high, ir.variable(v)), self.side)
        out: list[ir.Statement] = [
            ir.Let(count, ir.position(sub(u.high, ir.variable(u)))),
            ir.Let(left, ir.position(lanes)),
        ]
        for k, name in enumerate(rows):
            start = ir.position(ir.number(starts[k]))
            exists = _test("gt", ir.number(left), k * self.side)
            start = ir.Apply("select", (exists, start, ir.position(0)))
            out.append(ir.Let(at := self.names.new("at"), start))
            most = minimum(ir.number(count), sub(ir.number(left), k * self.side))
            on: ir.Value = ir.Prefix(most, self.side)
            inside = None
            if wide is not None:
                places = {self.outer.var: ir.variable(u), self.inner.var: add(ir.variable(v), k)}
                inside = Rewriter(lambda a, places=places: places.get(a.name)).value(wide)
                on = ir.Apply(BOTH, (on, inside))
            value: ir.Value = ir.Load(ir.Place(buffer, ir.number(at), self.side, 1, on))
            if inside is not None and other is not None:
                value = ir.Apply("select", (inside, value, other))
            out.append(ir.Next(name, value))
        return tuple(out)

    def _starts(self, starts: list[str]) -> Iterator[ir.Let]:
        """Bind where rows begin, each from the one before: there are no registers for multiples."""
        at, u, v = self.load.place.at, ir.variable(self.row), ir.variable(self.column)
        assert isinstance(at, Expr)
        step = coefficient(at, self.inner.var)
        for k, name in enumerate(starts):
            if k == 0 or step is None:
                start = self._at(at, u, add(v, k))
            else:
                start = add(ir.number(starts[k - 1]), step)
            yield ir.Let(name, ir.position(start))

    # ---- prefetches ----------------------------------------------------------------------------

    def prefetch_later(self, count: int) -> Iterator[ir.Prefetch]:
        """Yield prefetches of the square `count` squares along the columns from one."""
        at, first = self.load.place.at, add(ir.variable(self.column), count * self.side)
        if isinstance(at, Expr) and coefficient(at, self.inner.var) is not None:
            for k in range(self.side):
                place = self._at(at, ir.variable(self.row), add(first, k))
                yield ir.Prefetch(ir.Place(self.load.place.buffer, place))

    def prefetch_next(self, u: Index, run: int, tile: int) -> Iterator[ir.Statement]:
        """Yield prefetches of the next tile's share: as many lines as are read at a position.

        The tile follows along the rows. Its lines are numbered column by column.
        """
        at, v = self.load.place.at, self.column
        steps = [coefficient(at, s.var) if isinstance(at, Expr) else None for s in self._loops()]
        if None in steps or not isinstance(at, Expr):
            return
        size = self.env.arrays[self.load.place.buffer].dtype.itemsize
        lines, share = tile * size // CACHE_LINE, self.side * run * size // CACHE_LINE
        squares = floordiv(add(sub(v.high, v.low), self.side - 1), self.side)
        nth = mul(floordiv(sub(u, self.outer.low), run), squares)
        nth = add(nth, floordiv(sub(ir.variable(v), v.low), self.side))
        length = min(share, lines)  # of one column
        for first in range(0, share, length):
            line = add(mul(nth, share), first)
            start = add(mul(mod(line, lines), CACHE_LINE // size), add(self.outer.low, tile))
            begin = self._at(at, start, add(v.low, floordiv(line, lines)))
            yield ir.Let(next_row := self.names.new("next"), ir.position(begin))
            for k in range(length):
                near = add(ir.number(next_row), k * CACHE_LINE // size)
                yield ir.Prefetch(ir.Place(self.load.place.buffer, near), 2)

    def _loops(self) -> tuple[ir.For, ir.For]:
        return self.outer, self.inner


def _bound(body: Body) -> Body:
    """Return what one side of a branch sets as values."""
    return tuple(ir.Let(s.name, s.value) if isinstance(s, ir.Next) else s for s in body)


def _terms(mask: ir.Value) -> list[ir.Value]:
    """Return the tests that a mask joins."""
    if isinstance(mask, ir.Apply) and mask.op == BOTH:
        return [x for arg in mask.args for x in _terms(arg)]
    return [mask]


def _test(op: str, left: Index, right: Index) -> ir.Value:
    return ir.Apply(op, (ir.position(left), ir.position(right)))


def _all(tests: list[ir.Value]) -> ir.Value:
    return reduce(lambda a, b: ir.Apply(BOTH, (a, b)), tests)
