"""Split kernels over short contiguous groups into a sequence of kernels over long rows.

If groups of a few channels are innermost (a group norm in NHWC), a kernel with a grid position for
each group would read a few elements of each row.  Two things are separated instead, for rows of all
groups at once (kernel fission):

    s[n,g] = sum(x[n,r,g*8 + c] over r, c)       p[n,k] = sum(x[n,r,k] over r)
                                           is    s[n,g] = sum(p[n,g*8 + c] over c)

    m[n,g] = ...reductions...                    m[n,g] = ...reductions...
    y[n,r,g,c] = x[n,r,g,c] - m[n,g]       is    y[n,r,g,c] = x[n,r,g,c] - m[n,g]    a map

The first of each pair stores what the second reads, in memory that the caller provides; short rows
of a map are collapsed later (`smelt.codegen.llvm.loops.collapse_short_rows`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from smelt.kernel import ir as k
from smelt.kernel import walk
from smelt.kernel.block_reduction import accumulated
from smelt.kernel.env import Bound, Env
from smelt.kernel.transform.part import part_of
from smelt.kernel.walk import bindings_of, blocks, refs, splits, statements, substitute, visit
from smelt.machine.blocks import ACROSS_ROWS, BLOCK, PART_ROWS, PARTS
from smelt.ops.combine import COMBINES
from smelt.python.dataclass import dataclass
from smelt.types.dtype import DType, f64
from smelt.types.expr import (
    Index,
    add,
    axes_of,
    axis,
    coefficient,
    floordiv,
    maximum,
    minimum,
    mod,
    mul,
    product,
)

POINTWISE_VALUES = (k.Const, k.Ref, k.IndexValue, k.Load, k.Apply, k.Cast)
"""Values that may be computed in any of the kernels."""
MIN_REDUCED_ROWS = 32
"""Minimum reduced rows for a split: fewer are a window, which is unrolled."""
Lets = dict[str, k.Let]


def split_grouped_kernel(kernel: k.Kernel) -> list[k.Kernel]:
    """Split a kernel into kernels to run in order, or return it alone.

    Outputs by which they communicate are not among the kernel's own parameters.
    """
    if not _is_plain(kernel):
        return [kernel]
    pieces = _split_rows_first(kernel) or _split_map(kernel)
    return (
        [kernel]
        if pieces is None
        else [piece for kernel_piece in pieces for piece in split_grouped_kernel(kernel_piece)]
    )


def _is_plain(kernel: k.Kernel) -> bool:
    """Return whether a kernel consists of scalar operators and reductions only.

    Reductions run over all or parts of an axis.  The kernel overwrites none of its inputs, which a
    later kernel would read.
    """
    if {p.name for p in kernel.inputs} & {p.name for p in kernel.outputs}:
        return False
    allowed = (k.Let, k.Store, k.Update, k.Merge, k.Stream)
    for s in statements(kernel):
        if not isinstance(s, allowed):
            return False
        if isinstance(s, k.Stream) and (s.where is not None or s.bounds or not _visits_at_once(s)):
            return False
    if not all(isinstance(v, (*POINTWISE_VALUES, k.Reduce)) for v in walk.visit_body(kernel)):
        return False
    return not any(isinstance(e, k.Each) for e in kernel.grid)


def _visits_at_once(s: k.Stream) -> bool:
    """Return whether each part is visited at once."""
    return all(b.part and b.size is None and not (b.start or b.stop) for b in s.blocks)


def _lets(kernel: k.Kernel) -> Lets:
    return {s.name: s for s in statements(kernel) if isinstance(s, k.Let)}


def _closure(values: Iterable[k.Value], lets: Lets, ends: Collection[str] = ()) -> list[k.Let]:
    """Return the bindings that some values depend on, in order, stopping at `ends`."""
    before = [s for n, s in lets.items() if n not in ends]
    return [s for s in bindings_of(before, values) if isinstance(s, k.Let)]


def _has_reduction(values: Iterable[k.Value]) -> bool:
    return any(isinstance(v, k.Reduce) for x in values for v in visit(x))


def _remove_dead(kernel: k.Kernel) -> k.Kernel:
    """Remove dead bindings, axes and parameters from a kernel."""
    live = part_of(kernel, [*walk.stores(kernel)])
    loaded = {v.param for v in walk.loads(live)}
    return replace(live, inputs=tuple(p for p in live.inputs if p.name in loaded))


# ---- reductions: rows first ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Group:
    """A short reduced axis inside of a grid axis, with reduced rows around both."""

    outer: str
    """The grid axis: the groups."""
    inner: str
    """The reduced axis inside of it: the channels of a group."""
    each: int
    """Channels of a group."""
    rows: tuple[str, ...]


def _split_rows_first(kernel: k.Kernel) -> list[k.Kernel] | None:
    """Split reductions over rows and channels: all rows first, then the channels of each group."""
    if splits(kernel) or any(isinstance(s, k.Stream) for s in kernel.body):
        return None
    lets = _lets(kernel)
    reductions = {n: s.value for n, s in lets.items() if isinstance(s.value, k.Reduce)}
    group = next(_find_groups(kernel, reductions.values(), lets), None)
    if group is None:
        return None
    long = {n: f for n, f in reductions.items() if {*group.rows} & {*f.over}}
    if any(
        {*f.over} != {group.inner, *group.rows}
        or COMBINES[f.combine].positional
        or _has_reduction([f.arg])
        for f in long.values()
    ):
        return None
    env, grid = Env.after(kernel), {b.axis for b in kernel.grid if isinstance(b, k.Block)}
    if any(not env.names[n].axes <= grid for n in long):
        return None
    first = {
        n: f
        for n, f in long.items()
        if not _has_reduction(s.value for s in _closure([f.arg], lets))
    }
    if not first:
        return _split_prerequisites(kernel, group, long.values(), lets)
    others = [b for b in kernel.grid if isinstance(b, k.Block) and b.axis != group.outer]
    extents = {a.name: a.extent for a in kernel.axes}
    columns = mul(extents[group.outer], group.each)
    shape = (*(extents[b.axis] for b in others), columns)
    partial_sums = {
        n: k.Param(f"{kernel.name}.{n}.rows", _partial_dtype(f), shape) for n, f in first.items()
    }
    return [
        _row_sums_kernel(kernel, group, first, partial_sums),
        _remaining_kernel(kernel, group, partial_sums),
    ]


def _partial_dtype(f: k.Reduce) -> DType:
    """Return the type that partial results are stored as: float64 for sums of floats."""
    return f64 if COMBINES[f.combine].wide and f.dtype.is_float else f.dtype.compute


def _find_groups(kernel: k.Kernel, reductions: Iterable[k.Reduce], lets: Lets) -> Iterator[_Group]:
    """Find short reduced axes inside a grid axis, with reduced rows around both."""
    extents = {a.name: a.extent for a in kernel.axes}
    grid = [b.axis for b in kernel.grid if isinstance(b, k.Block)]
    for f in reductions:
        values = [f.arg, *(s.value for s in _closure([f.arg], lets))]
        for load in (v for x in values for v in visit(x) if isinstance(v, k.Load) and v.index):
            *outer_indices, last = load.index
            inner = [a for a in f.over if coefficient(last, a) == 1]
            rows = [a for e in outer_indices for a in axes_of(e) if a in f.over]
            each = extents[inner[0]] if len(inner) == 1 else None
            if not isinstance(each, int) or not 1 < each < ACROSS_ROWS.min_rows:
                continue
            row_count = product(extents[a] for a in dict.fromkeys(rows))
            if isinstance(row_count, int) and row_count < MIN_REDUCED_ROWS:
                continue
            outer = [a for a in grid if coefficient(last, a) == each and extents[a] != 1]
            if len(outer) == 1 and {*axes_of(last)} == {outer[0], inner[0]}:
                yield _Group(outer[0], inner[0], each, tuple(dict.fromkeys(rows)))


def _split_prerequisites(
    kernel: k.Kernel, group: _Group, reductions: Iterable[k.Reduce], lets: Lets
) -> list[k.Kernel] | None:
    """Split off what the reductions over rows depend on, as a kernel of its own.

    The means about which squares are summed, say, of each group.
    """
    env, grid = Env.after(kernel), {b.axis for b in kernel.grid if isinstance(b, k.Block)}
    results: dict[str, Bound] = {}
    pending, seen = [f.arg for f in reductions], set[str]()
    while pending:
        for name in (n for n in refs(pending.pop()) if n not in seen):
            seen.add(name)
            value = lets[name].value
            if not _has_reduction([value, *(s.value for s in _closure([value], lets))]):
                continue
            if env.names[name].axes == grid:
                results[name] = env.names[name]
            elif _has_reduction([value]):
                return None
            else:
                pending.append(value)
    bindings = [s for n in results for s in _closure([k.Ref(n)], lets)]
    if (
        any(
            {*v.over} & {*group.rows}
            for s in bindings
            for v in visit(s.value)
            if isinstance(v, k.Reduce)
        )
        or not results
    ):
        return None
    params, before, after = _transfers(kernel, results)
    names = {s.name for s in after}
    body = (*_closure([k.Ref(n) for n in results], lets), *before)
    means = replace(
        kernel, name=f"{kernel.name}.{next(iter(results))}", outputs=tuple(params), body=body
    )
    remainder = replace(
        kernel,
        inputs=(*kernel.inputs, *params),
        body=(*after, *(s for s in kernel.body if not isinstance(s, k.Let) or s.name not in names)),
    )
    return [_remove_dead(means), _remove_dead(remainder)]


def _transfers(
    kernel: k.Kernel, values: Mapping[str, Bound]
) -> tuple[list[k.Param], list[k.Store], list[k.Let]]:
    """Return the arrays that pass values between kernels, with the stores and loads of them."""
    params, stores, loads = list[k.Param](), list[k.Store](), list[k.Let]()
    for name, bound in values.items():
        axes = [a for a in kernel.axes if a.name in bound.axes]
        p = k.Param(f"{kernel.name}.{name}", bound.dtype, tuple(a.extent for a in axes))
        index = tuple(a.index for a in axes)
        params.append(p)
        stores.append(k.Store(p.name, index, k.Ref(name)))
        loads.append(k.Let(name, k.Load(p.name, index)))
    return params, stores, loads


def _row_sums_kernel(
    kernel: k.Kernel,
    group: _Group,
    reductions: Mapping[str, k.Reduce],
    params: Mapping[str, k.Param],
) -> k.Kernel:
    """Build the kernel that reduces the rows, in parts of the outermost of their axes."""
    extents = {a.name: a.extent for a in kernel.axes}
    columns = mul(extents[group.outer], group.each)
    column = axis(group.outer, columns)
    put = {group.outer: floordiv(column, group.each), group.inner: mod(column, group.each)}
    lets, row, part = _lets(kernel), group.rows[0], f"{group.rows[0]}.part"
    inside: list[k.Statement] = [
        replace(s, value=substitute(s.value, put))
        for s in _closure([f.arg for f in reductions.values()], lets)
    ]
    states: list[k.State] = []
    for name, f in reductions.items():
        rows_of = k.Reduce(f.combine, substitute(f.arg, put), group.rows, params[name].dtype)
        state, update = accumulated(name, rows_of)
        states.append(state)
        inside.append(update)
    others = [b.axis for b in kernel.grid if isinstance(b, k.Block) and b.axis != group.outer]
    at = (*(axis(a, extents[a]) for a in others), column)
    stores = [k.Store(p.name, at, k.Ref(name)) for name, p in params.items()]
    rows = floordiv(product(extents[a] for a in group.rows), 4 * PART_ROWS)
    parts = maximum(1, minimum(PARTS, minimum(extents[row], rows)))
    stream = k.Stream((k.Block(row, None, None, part),), tuple(states), tuple(inside))
    axes = (
        *(a for a in kernel.axes if a.name in others),
        k.Axis(group.outer, columns),
        *(k.Axis(a, extents[a]) for a in group.rows),
    )
    grid = (*(k.Block(a, 1) for a in others), k.Block(group.outer, 1), k.Split(part, row, parts))
    name = f"{kernel.name}.{next(iter(reductions))}"
    sums = replace(
        kernel,
        name=name,
        outputs=tuple(params.values()),
        axes=axes,
        grid=grid,
        body=(stream, k.Merge(part, tuple(reductions)), *stores),
    )
    return _remove_dead(sums)


def _remaining_kernel(kernel: k.Kernel, group: _Group, params: Mapping[str, k.Param]) -> k.Kernel:
    """Build the kernel that reduces the channels of each group, and does all that follows."""
    extents = {a.name: a.extent for a in kernel.axes}
    inner = axis(group.inner, group.each)
    column = add(mul(axis(group.outer, extents[group.outer]), group.each), inner)
    others = [b.axis for b in kernel.grid if isinstance(b, k.Block) and b.axis != group.outer]
    at = (*(axis(a, extents[a]) for a in others), column)
    body: list[k.Statement] = []
    for s in kernel.body:
        if isinstance(s, k.Let) and s.name in params and isinstance(f := s.value, k.Reduce):
            p = params[s.name]
            reduction = k.Reduce(f.combine, k.Load(p.name, at), (group.inner,), p.dtype)
            value = reduction if p.dtype == f.dtype.compute else k.Cast(reduction, f.dtype.compute)
            body.append(replace(s, value=value))
        else:
            body.append(s)
    inputs = (*kernel.inputs, *params.values())
    return _remove_dead(replace(kernel, inputs=inputs, body=tuple(body)))


# ---- maps: split from the reductions that they read ----------------------------------------------


def _split_map(kernel: k.Kernel) -> list[k.Kernel] | None:
    """Split off a map over short contiguous rows into a kernel of its own.

    It runs after the reductions that it reads.  None if there is no such map.
    """
    lets, env = _lets(kernel), Env.after(kernel)
    for s in (s for s in statements(kernel) if isinstance(s, k.Store)):
        ends = _map_inputs(kernel, s, lets, env)
        if ends:
            return _split_at_store(kernel, s, lets, {n: env.names[n] for n in ends})
    return None


def _map_inputs(kernel: k.Kernel, s: k.Store, lets: Lets, env: Env) -> list[str]:
    """Return a map's inputs that depend on reductions but not on its rows.

    Empty if the store is not a map, or if its rows are long.
    """
    extents = {a.name: a.extent for a in kernel.axes}
    store_axes = frozenset(a for e in s.index for a in axes_of(e))
    if not _has_short_rows(kernel, s, extents) or s.where is not None or s.join:
        return []
    states = {x.name for st in statements(kernel) if isinstance(st, k.Stream) for x in st.states}
    tasks = {b.axis for b in blocks(kernel)}
    names: dict[str, None] = {}
    pending, seen = [s.value], set[str]()
    while pending:
        reader = pending.pop()
        if _has_reduction([reader]):
            return []
        for name in (n for n in refs(reader) if n not in seen):
            seen.add(name)
            if name in states or name not in lets:
                return []
            missing = store_axes - env.names[name].axes
            value = lets[name].value
            computed_from = [value, *(x.value for x in _closure([value], lets))]
            if not _has_reduction(computed_from):
                if any(n in states for x in computed_from for n in refs(x)):
                    return []
                continue
            if missing & tasks:
                return []
            if any(
                not isinstance(n := extents[a], int) or n >= ACROSS_ROWS.min_rows for a in missing
            ):
                names[name] = None
            else:
                pending.append(value)
    return [*names]


def _has_short_rows(kernel: k.Kernel, s: k.Store, extents: Mapping[str, Index]) -> bool:
    """Return whether a store's innermost axis is short, and another one follows it contiguously."""
    offset: Index = 0
    for e, n in zip(s.index, kernel.param(s.param).shape, strict=True):
        offset = add(mul(offset, n), e)
    steps = {a: coefficient(offset, a) for a in axes_of(offset)}
    inner = [a for a, n in steps.items() if n == 1]
    each = extents[inner[0]] if len(inner) == 1 else None
    short = isinstance(each, int) and 1 < each <= ACROSS_ROWS.row_elements
    return short and any(n == each and extents[a] != 1 for a, n in steps.items())


def _split_at_store(
    kernel: k.Kernel, s: k.Store, lets: Lets, ends: Mapping[str, Bound]
) -> list[k.Kernel]:
    """Split a kernel before a store: the map that it stores becomes a kernel of its own."""
    params, stores, loads = _transfers(kernel, ends)
    store_axes = {a for e in s.index for a in axes_of(e)}
    after = (*loads, *_closure([s.value], lets, ends), s)
    axes = tuple(a for a in kernel.axes if a.name in store_axes)
    grid = tuple(k.Block(a.name, 2 * BLOCK if a is axes[-1] else 1) for a in axes)
    map_kernel = k.Kernel(
        kernel.name,
        (*kernel.inputs, *params),
        (kernel.param(s.param),),
        axes,
        grid,
        after,
        facts=kernel.facts,
    )

    def put(body: Iterable[k.Statement]) -> tuple[k.Statement, ...]:
        copies: list[k.Statement] = []
        for x in body:
            copies += (
                stores
                if x is s
                else [replace(x, body=put(x.body)) if isinstance(x, k.Stream) else x]
            )
        return tuple(copies)

    name, outputs = f"{kernel.name}.{next(iter(ends))}", (*kernel.outputs, *params)
    first = replace(kernel, name=name, outputs=outputs, body=put(kernel.body))
    return [_remove_dead(first), _remove_dead(map_kernel)]
