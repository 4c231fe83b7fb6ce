"""Kernels over short rows that lie side by side become several, done in turn over long ones.

Where groups of a few channels lie last, a kernel with a position of its grid for each group reads a
few elements of each row.  Two things are done apart then, for rows of all groups at once:

    s[n,g] = sum(x[n,r,g*8 + c] over r, c)       p[n,k] = sum(x[n,r,k] over r)
                                           is    s[n,g] = sum(p[n,g*8 + c] over c)

    m[n,g] = ...folds...                         m[n,g] = ...folds...
    y[n,r,g,c] = x[n,r,g,c] - m[n,g]       is    y[n,r,g,c] = x[n,r,g,c] - m[n,g]    a map

The first of each stores what the second reads, in memory that the caller provides; a map's short
rows are joined in their turn (`smelt.codegen.llvm.loops.collapse_short_rows`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from smelt.blocks import BLOCK, LEAST_LANES, PART_ROWS, PARTS, SHORT_ROW
from smelt.dataclass import dataclass
from smelt.kernel import ir as k
from smelt.kernel.env import Bound, Env
from smelt.kernel.walk import (
    axes_used,
    blocks,
    refs,
    splits,
    statements,
    substitute,
    values_of,
    visit,
)
from smelt.ops.combine import COMBINES
from smelt.types.affine import coefficient
from smelt.types.dtype import DType, f64
from smelt.types.expr import (
    Index,
    add,
    axes_of,
    axis,
    floordiv,
    maximum,
    minimum,
    mod,
    mul,
    product,
)

__all__ = ["in_turn"]

PLAIN = (k.Const, k.Ref, k.IndexValue, k.Load, k.Apply, k.Cast)
"""What values are made of that are the same wherever they are computed."""
LEAST_ROWS = 32
"""Fewer folded rows are a window, and are written out."""
Lets = dict[str, k.Let]


def in_turn(kernel: k.Kernel) -> list[k.Kernel]:
    """The kernels that a kernel is done as, in order; what one stores for another is no parameter
    of the kernel's own."""
    if not _is_plain(kernel):
        return [kernel]
    found = _rows_first(kernel) or _maps_apart(kernel)
    return [kernel] if found is None else [piece for own in found for piece in in_turn(own)]


def _is_plain(kernel: k.Kernel) -> bool:
    """Whether a kernel is scalar operators and folds, on the whole or over parts of an axis, and
    writes over nothing that it reads: what is done later would find it changed."""
    if {p.name for p in kernel.inputs} & {p.name for p in kernel.outputs}:
        return False
    allowed = (k.Let, k.Store, k.Update, k.Merge, k.Stream)
    for s in statements(kernel):
        if not isinstance(s, allowed):
            return False
        if isinstance(s, k.Stream) and (s.where is not None or s.sees or not _is_whole(s)):
            return False
        if not all(isinstance(v, (*PLAIN, k.Reduce)) for x in values_of(s) for v in visit(x)):
            return False
    return not any(isinstance(e, k.Each) for e in kernel.grid)


def _is_whole(s: k.Stream) -> bool:
    """Whether each part is visited at once."""
    return all(b.part and b.size is None and not (b.start or b.stop) for b in s.blocks)


def _lets(kernel: k.Kernel) -> Lets:
    return {s.name: s for s in statements(kernel) if isinstance(s, k.Let)}


def _closure(values: Iterable[k.Value], lets: Lets, ends: Iterable[str] = ()) -> list[k.Let]:
    """The named values that some are made of, in order, as far as those at which to end."""
    found, left = set[str](), set(ends)
    pending = [n for v in values for n in refs(v)]
    while pending:
        name = pending.pop()
        if name in lets and name not in found | left:
            found.add(name)
            pending += refs(lets[name])
    return [s for name, s in lets.items() if name in found]


def _holds_fold(values: Iterable[k.Value]) -> bool:
    return any(isinstance(v, k.Reduce) for x in values for v in visit(x))


def _live(kernel: k.Kernel) -> k.Kernel:
    """The kernel without what nobody reads any more."""
    wanted = {
        n
        for s in statements(kernel)
        if not isinstance(s, (k.Let, k.Stream))
        for v in values_of(s)
        for n in refs(v)
    }
    lets = _lets(kernel)
    wanted |= {s.name for s in _closure([k.Ref(n) for n in wanted], lets)}

    def kept(body: Iterable[k.Statement]) -> tuple[k.Statement, ...]:
        return tuple(
            replace(s, body=kept(s.body)) if isinstance(s, k.Stream) else s
            for s in body
            if not isinstance(s, k.Let) or s.name in wanted
        )

    kernel = replace(kernel, body=kept(kernel.body))
    used, loaded = (
        axes_used(kernel),
        {
            v.param
            for s in statements(kernel)
            for x in values_of(s)
            for v in visit(x)
            if isinstance(v, k.Load)
        },
    )
    written = {s.param for s in statements(kernel) if isinstance(s, k.Store)}
    return replace(
        kernel,
        axes=tuple(a for a in kernel.axes if a.name in used),
        inputs=tuple(p for p in kernel.inputs if p.name in loaded),
        outputs=tuple(p for p in kernel.outputs if p.name in written),
    )


# ---- folds: rows first ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Group:
    """An axis of the grid, one of `each` positions inside it, and the folded rows around both."""

    outer: str
    inner: str
    each: int
    rows: tuple[str, ...]


def _rows_first(kernel: k.Kernel) -> list[k.Kernel] | None:
    """Folds over rows for all columns, then over the columns of each group."""
    if splits(kernel) or any(isinstance(s, k.Stream) for s in kernel.body):
        return None
    lets = _lets(kernel)
    folds = {n: s.value for n, s in lets.items() if isinstance(s.value, k.Reduce)}
    group = next(_groups(kernel, folds.values(), lets), None)
    if group is None:
        return None
    long = {n: f for n, f in folds.items() if {*group.rows} & {*f.over}}
    if any(
        {*f.over} != {group.inner, *group.rows}
        or COMBINES[f.combine].positional
        or _holds_fold([f.arg])
        for f in long.values()
    ):
        return None
    env, grid = Env.after(kernel), {b.axis for b in kernel.grid if isinstance(b, k.Block)}
    if any(not env.names[n].axes <= grid for n in long):
        return None
    first = {
        n: f for n, f in long.items() if not _holds_fold(s.value for s in _closure([f.arg], lets))
    }
    if not first:
        return _known_before(kernel, group, long.values(), lets)
    others = [b for b in kernel.grid if isinstance(b, k.Block) and b.axis != group.outer]
    extents = {a.name: a.extent for a in kernel.axes}
    columns = mul(extents[group.outer], group.each)
    shape = (*(extents[b.axis] for b in others), columns)
    held = {n: k.Param(f"{kernel.name}.{n}.rows", _wide(f), shape) for n, f in first.items()}
    return [_sums(kernel, group, first, held), _rest(kernel, group, held)]


def _wide(f: k.Reduce) -> DType:
    """What partial results are stored as: sums in double precision."""
    return f64 if COMBINES[f.combine].wide and f.dtype.is_float else f.dtype.compute


def _groups(kernel: k.Kernel, folds: Iterable[k.Reduce], lets: Lets) -> Iterator[_Group]:
    """Short folded axes inside of one of the grid, as arrays lie, with folded rows around both."""
    extents = {a.name: a.extent for a in kernel.axes}
    grid = [b.axis for b in kernel.grid if isinstance(b, k.Block)]
    for f in folds:
        values = [f.arg, *(s.value for s in _closure([f.arg], lets))]
        for load in (v for x in values for v in visit(x) if isinstance(v, k.Load) and v.index):
            *around, last = load.index
            inner = [a for a in f.over if coefficient(last, a) == 1]
            rows = [a for e in around for a in axes_of(e) if a in f.over]
            each = extents[inner[0]] if len(inner) == 1 else None
            if not isinstance(each, int) or not 1 < each < LEAST_LANES:
                continue
            many = product(extents[a] for a in dict.fromkeys(rows))
            if isinstance(many, int) and many < LEAST_ROWS:
                continue
            outer = [a for a in grid if coefficient(last, a) == each and extents[a] != 1]
            if len(outer) == 1 and {*axes_of(last)} == {outer[0], inner[0]}:
                yield _Group(outer[0], inner[0], each, tuple(dict.fromkeys(rows)))


def _known_before(
    kernel: k.Kernel, group: _Group, folds: Iterable[k.Reduce], lets: Lets
) -> list[k.Kernel] | None:
    """What folds over rows wait for, a kernel of its own: the means about which squares are summed,
    say, of each group."""
    env, grid = Env.after(kernel), {b.axis for b in kernel.grid if isinstance(b, k.Block)}
    found: dict[str, Bound] = {}
    pending, seen = [f.arg for f in folds], set[str]()
    while pending:
        for name in (n for n in refs(pending.pop()) if n not in seen):
            seen.add(name)
            value = lets[name].value
            if not _holds_fold([value, *(s.value for s in _closure([value], lets))]):
                continue
            if env.names[name].axes == grid:
                found[name] = env.names[name]
            elif _holds_fold([value]):
                return None
            else:
                pending.append(value)
    made = [s for n in found for s in _closure([k.Ref(n)], lets)]
    if (
        any(
            {*v.over} & {*group.rows}
            for s in made
            for v in visit(s.value)
            if isinstance(v, k.Reduce)
        )
        or not found
    ):
        return None
    held, before, after = _between(kernel, found)
    names = {s.name for s in after}
    body = (*_closure([k.Ref(n) for n in found], lets), *before)
    means = replace(
        kernel, name=f"{kernel.name}.{next(iter(found))}", outputs=tuple(held), body=body
    )
    rest = replace(
        kernel,
        inputs=(*kernel.inputs, *held),
        body=(*after, *(s for s in kernel.body if not isinstance(s, k.Let) or s.name not in names)),
    )
    return [_live(means), _live(rest)]


def _between(
    kernel: k.Kernel, values: Mapping[str, Bound]
) -> tuple[list[k.Param], list[k.Store], list[k.Let]]:
    """Arrays for named values, how they are stored, and how they are read again."""
    held, before, after = list[k.Param](), list[k.Store](), list[k.Let]()
    for name, bound in values.items():
        along = [a for a in kernel.axes if a.name in bound.axes]
        p = k.Param(f"{kernel.name}.{name}", bound.dtype, tuple(a.extent for a in along))
        at = tuple(a.index for a in along)
        held.append(p)
        before.append(k.Store(p.name, at, k.Ref(name)))
        after.append(k.Let(name, k.Load(p.name, at)))
    return held, before, after


def _sums(
    kernel: k.Kernel, group: _Group, folds: Mapping[str, k.Reduce], held: Mapping[str, k.Param]
) -> k.Kernel:
    """The kernel that folds the rows, in parts of the outermost of their axes."""
    extents = {a.name: a.extent for a in kernel.axes}
    columns = mul(extents[group.outer], group.each)
    here = axis(group.outer, columns)
    put = {group.outer: floordiv(here, group.each), group.inner: mod(here, group.each)}
    lets, row, part = _lets(kernel), group.rows[0], f"{group.rows[0]}.part"
    inside: list[k.Statement] = [
        replace(s, value=substitute(s.value, put))
        for s in _closure([f.arg for f in folds.values()], lets)
    ]
    states: list[k.State] = []
    for name, f in folds.items():
        combine, dtype = COMBINES[f.combine], held[name].dtype
        fold = k.Reduce(f.combine, substitute(f.arg, put), group.rows, dtype)
        states.append(k.State(name, k.Const(combine.identity(f.dtype), dtype), (), dtype))
        inside.append(k.Update(name, k.Apply(combine.scalar, (k.Ref(name), fold))))
    others = [b.axis for b in kernel.grid if isinstance(b, k.Block) and b.axis != group.outer]
    at = (*(axis(a, extents[a]) for a in others), here)
    stores = [k.Store(p.name, at, k.Ref(name)) for name, p in held.items()]
    rows = floordiv(product(extents[a] for a in group.rows), 4 * PART_ROWS)
    parts = maximum(1, minimum(PARTS, minimum(extents[row], rows)))
    stream = k.Stream((k.Block(row, None, None, part),), tuple(states), tuple(inside))
    axes = (
        *(a for a in kernel.axes if a.name in others),
        k.Axis(group.outer, columns),
        *(k.Axis(a, extents[a]) for a in group.rows),
    )
    grid = (*(k.Block(a, 1) for a in others), k.Block(group.outer, 1), k.Split(part, row, parts))
    name = f"{kernel.name}.{next(iter(folds))}"
    made = replace(
        kernel,
        name=name,
        outputs=tuple(held.values()),
        axes=axes,
        grid=grid,
        body=(stream, k.Merge(part, tuple(folds)), *stores),
    )
    return _live(made)


def _rest(kernel: k.Kernel, group: _Group, held: Mapping[str, k.Param]) -> k.Kernel:
    """The kernel that folds the columns of each group, and all that follows."""
    extents = {a.name: a.extent for a in kernel.axes}
    inner = axis(group.inner, group.each)
    column = add(mul(axis(group.outer, extents[group.outer]), group.each), inner)
    others = [b.axis for b in kernel.grid if isinstance(b, k.Block) and b.axis != group.outer]
    at = (*(axis(a, extents[a]) for a in others), column)
    body: list[k.Statement] = []
    for s in kernel.body:
        if isinstance(s, k.Let) and s.name in held and isinstance(f := s.value, k.Reduce):
            p = held[s.name]
            fold = k.Reduce(f.combine, k.Load(p.name, at), (group.inner,), p.dtype)
            value = fold if p.dtype == f.dtype.compute else k.Cast(fold, f.dtype.compute)
            body.append(replace(s, value=value))
        else:
            body.append(s)
    inputs = (*kernel.inputs, *held.values())
    return _live(replace(kernel, inputs=inputs, body=tuple(body)))


# ---- maps: apart from the folds that they read ---------------------------------------------------


def _maps_apart(kernel: k.Kernel) -> list[k.Kernel] | None:
    """A map over short rows that lie side by side, after the folds that it reads."""
    lets, env = _lets(kernel), Env.after(kernel)
    for s in (s for s in statements(kernel) if isinstance(s, k.Store)):
        ends = _held(kernel, s, lets, env)
        if ends:
            return _apart(kernel, s, lets, {n: env.names[n] for n in ends})
    return None


def _held(kernel: k.Kernel, s: k.Store, lets: Lets, env: Env) -> list[str]:
    """What a map reads that depends on folds and not on where its rows are; nothing if it is none,
    or its rows are long."""
    extents = {a.name: a.extent for a in kernel.axes}
    own = frozenset(a for e in s.index for a in axes_of(e))
    if not _has_short_rows(kernel, s, extents) or s.where is not None or s.join:
        return []
    states = {x.name for st in statements(kernel) if isinstance(st, k.Stream) for x in st.states}
    tasks = {b.axis for b in blocks(kernel)}
    found: dict[str, None] = {}
    pending, seen = [s.value], set[str]()
    while pending:
        reader = pending.pop()
        if _holds_fold([reader]):
            return []
        for name in (n for n in refs(reader) if n not in seen):
            seen.add(name)
            if name in states or name not in lets:
                return []
            missing = own - env.names[name].axes
            value = lets[name].value
            made = [value, *(x.value for x in _closure([value], lets))]
            if not _holds_fold(made):
                if any(n in states for x in made for n in refs(x)):
                    return []
                continue
            if missing & tasks:
                return []
            if any(not isinstance(n := extents[a], int) or n >= LEAST_LANES for a in missing):
                found[name] = None
            else:
                pending.append(value)
    return [*found]


def _has_short_rows(kernel: k.Kernel, s: k.Store, extents: Mapping[str, Index]) -> bool:
    """Whether a store's innermost axis is short, and another one follows it."""
    offset: Index = 0
    for e, n in zip(s.index, kernel.param(s.param).shape, strict=True):
        offset = add(mul(offset, n), e)
    steps = {a: coefficient(offset, a) for a in axes_of(offset)}
    inner = [a for a, n in steps.items() if n == 1]
    each = extents[inner[0]] if len(inner) == 1 else None
    short = isinstance(each, int) and 1 < each <= SHORT_ROW
    return short and any(n == each and extents[a] != 1 for a, n in steps.items())


def _apart(kernel: k.Kernel, s: k.Store, lets: Lets, ends: Mapping[str, Bound]) -> list[k.Kernel]:
    held, before, loads = _between(kernel, ends)
    own = {a for e in s.index for a in axes_of(e)}
    after = (*loads, *_closure([s.value], lets, ends), s)
    axes = tuple(a for a in kernel.axes if a.name in own)
    grid = tuple(k.Block(a.name, 2 * BLOCK if a is axes[-1] else 1) for a in axes)
    made = k.Kernel(
        kernel.name,
        (*kernel.inputs, *held),
        (kernel.param(s.param),),
        axes,
        grid,
        after,
        facts=kernel.facts,
    )

    def put(body: Iterable[k.Statement]) -> tuple[k.Statement, ...]:
        found: list[k.Statement] = []
        for x in body:
            found += (
                before
                if x is s
                else [replace(x, body=put(x.body)) if isinstance(x, k.Stream) else x]
            )
        return tuple(found)

    name, outputs = f"{kernel.name}.{next(iter(ends))}", (*kernel.outputs, *held)
    first = replace(kernel, name=name, outputs=outputs, body=put(kernel.body))
    return [_live(first), _live(made)]
