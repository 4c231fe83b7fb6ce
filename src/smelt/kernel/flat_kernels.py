"""Recognise kernels on whole arrays of one shape, of which a launch may compute many.

An optimiser updates each parameter by the same formula, whatever its shape. As a map of arrays of
one dimension the kernels are equal, and `over_arrays` makes one of them the kernel of a family.

>>> from smelt.kernel.text import parse, text
>>> kernel = parse('''
... kernel step(w, g: f32[n,m], rate: f32[]) -> y: f32[n,m]
...   grid n, m/4096
...   y[n,m] = w[n,m] - g[n,m] * rate[]
... ''')
>>> print(text(over_arrays(flat_map(kernel), 8)))
kernel k(a0, a2: f32[a1] for each of 8, a3: f32[] for each of 8) -> a4: f32[a1] for each of 8
  grid each, a1/4096
  a4[a1] = a0[a1] - a2[a1] * a3[]
<BLANKLINE>

The norms of all gradients are sums of squares of arrays of any shapes. `flat_kernels` makes such a
kernel two on arrays of one dimension, each the kernel of a family: chunks
of the elements are reduced apart, and their results merged in order of the chunks.

>>> from smelt.kernel.text import parse, text
>>> kernel = parse('''
... kernel norm(x: f32[n,m]) -> y: f32[]
...   v0 = sum(square(x[n,m]) over n, m)
...   y[] = sqrt(v0)
... ''')
>>> for flat in flat_kernels(kernel):
...     print(text(flat.kernel), flat.columns)
kernel k(a0: f32[a1]) -> a2: f32[(a1 + 16383)//16384]
  axis a1, a3 in (a1 + 16383)//16384
  grid a3
  stream a1/4096 from index(a3*16384) to index(min(size(a1), a3*16384 + 16384)) with a4 = 0
    a4' = a4 + sum(square(a0[a1]) over a1)
  a2[a3] = a4 (0, -1)
kernel k(a0: f32[(a1 + 16383)//16384]) -> a2: f32[]
  stream a3 in ((a1 + 16383)//16384)/256 with a4 = 0
    a4' = a4 + sum(a0[a3] over a3)
  a2[] = sqrt(a4) (-1, 1)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from smelt.kernel import ir
from smelt.kernel.block_reduction import accumulated
from smelt.kernel.canonical import canonical_kernel, names_of, unused_name
from smelt.kernel.transform.stream_to_reduction import reductions_of
from smelt.kernel.walk import live, loads, refs, stores, transform, visit_body, visit_statement
from smelt.ops.combine import COMBINES
from smelt.types.dtype import i64
from smelt.types.expr import Index, floordiv, minimum, product, size

PlainStatement = ir.Let | ir.Store | ir.Update
_BLOCK = 4096
_AXIS = "elements"
_POINTWISE = (ir.Const, ir.Ref, ir.Load, ir.Apply, ir.Cast)


def flat_map(kernel: ir.Kernel) -> ir.Kernel | None:
    """Return an elementwise kernel as one on arrays of one dimension, with canonical names.

    All arrays have one shape and one element of each is used at a time; scalars are read beside
    them, and the number of elements. None for other kernels. Parameters keep their order.
    """
    params = (*kernel.inputs, *kernel.outputs)
    shapes = {p.shape for p in params if p.shape}
    is_plain = all(isinstance(s, ir.Let | ir.Store) for s in kernel.body) and len(shapes) == 1
    if not is_plain or any(p.strides is not None or p.each for p in params):
        return None
    names = {*names_of(kernel)}
    if _AXIS in names or len({p.name for p in params}) < len(params):
        return None
    count = product(shape := shapes.pop())
    places = {place for s in kernel.body for place in _places(s, count)}
    if len(places) != 1 or not is_every_element(kernel, places.pop(), shape):
        return None
    axis = ir.Axis(_AXIS, size(_AXIS))

    def flat(p: ir.Param) -> ir.Param:
        return replace(p, shape=(axis.extent,)) if p.shape else p

    body = (flat_statement(s, axis) for s in kernel.body if isinstance(s, ir.Let | ir.Store))
    plain = ir.Kernel(
        kernel.name,
        tuple(map(flat, kernel.inputs)),
        tuple(map(flat, kernel.outputs)),
        (axis,),
        (ir.Block(_AXIS, _BLOCK),),
        tuple(body),
    )
    return canonical_kernel(plain)[0].kernel


def over_arrays(flat: ir.Kernel, count: int) -> ir.Kernel:
    """Return a kernel on flat arrays over families of `count` arrays."""
    inputs, outputs = (
        tuple(replace(p, each=count) for p in side) for side in (flat.inputs, flat.outputs)
    )
    return replace(flat, inputs=inputs, outputs=outputs, grid=(ir.Each(count), *flat.grid))


def is_plain(v: ir.Value, count: Index) -> bool:
    """Return whether a value takes elements of arrays one by one; `count` is their number."""
    if isinstance(v, ir.IndexValue):
        return v.index == count
    return isinstance(v, _POINTWISE) and not (isinstance(v, ir.Load) and v.other is not None)


def _flat_value(v: ir.Value, axis: ir.Axis) -> ir.Value:
    """Return a plain value along the axis of all elements."""
    match v:
        case ir.Load(index=index) if index:
            return replace(v, index=(axis.index,))
        case ir.IndexValue():
            return replace(v, index=axis.extent)
        case _:
            return v


def _places(s: ir.Statement, count: Index) -> Iterator[tuple[Index, ...] | None]:
    """Yield the indices of the arrays' elements; None for what is not a plain map."""
    if isinstance(s, ir.Store):
        yield s.index if s.where is None and not s.join else None
    for v in visit_statement(s):
        if not is_plain(v, count):
            yield None
        elif isinstance(v, ir.Load) and v.index:
            yield v.index


def is_every_element(
    kernel: ir.Kernel, place: tuple[Index, ...] | None, shape: tuple[Index, ...]
) -> bool:
    """Return whether the grid visits every element of such arrays once, at `place`."""
    if place is None:
        return False
    whole = [replace(b, size=None) for b in kernel.grid if isinstance(b, ir.Block)]
    axes = [(a.index, a.extent) for a in kernel.axes if ir.Block(a.name) in whole]
    pairs = [(e, n) for e, n in zip(place, shape, strict=True) if (e, n) != (0, 1)]
    is_grid = len(axes) == len(kernel.axes) == len(kernel.grid)
    return is_grid and len(pairs) == len(axes) and all(p in axes for p in pairs)


def flat_statement(s: PlainStatement, axis: ir.Axis) -> PlainStatement:
    """Return a plain statement along the axis of all elements."""
    changed = replace(s, value=transform(s.value, lambda v: _flat_value(v, axis)))
    is_array = isinstance(changed, ir.Store) and changed.index
    return replace(changed, index=(axis.index,)) if is_array else changed


# ---- reductions ---------------------------------------------------------------------------------

CHUNK: Final = 1 << 14
"""Elements that a program reduces."""
LOADED: Final = 1 << 12
"""Elements that it has in registers at a time."""
MERGED: Final = 256
"""Results of chunks that are merged at a time."""


class FlatKernel(NamedTuple):
    """A kernel on arrays of one dimension, and what its parameters are.

    A column is a parameter of the original kernel, inputs first, or -1, -2, .. for results of
    chunks, which are the same in both kernels.
    """

    kernel: ir.Kernel
    columns: tuple[int, ...]


def flat_kernels(kernel: ir.Kernel) -> tuple[FlatKernel, ...]:
    """Return the kernels on flat arrays that compute a kernel one after another.

    One for an elementwise kernel, two for reductions of whole arrays, none for other kernels.
    """
    one = flat_map(kernel)
    if one is not None:
        return (FlatKernel(one, tuple(range(len(one.inputs) + len(one.outputs)))),)
    whole = _whole_reduction(kernel)
    return () if whole is None else whole.kernels()


class _WholeReduction(NamedTuple):
    """Statements of a kernel by what they wait for.

    `late` and `results` wait for `reductions`.
    """

    kernel: ir.Kernel
    early: tuple[ir.Let, ...]
    stores: tuple[ir.Store, ...]
    reductions: Mapping[str, ir.Reduce]
    late: tuple[ir.Let, ...]
    results: tuple[ir.Store, ...]

    def kernels(self) -> tuple[FlatKernel, ...]:
        """Return the kernel of the chunks, and the one that merges their results."""
        taken = {*names_of(self.kernel)}
        elements, chunk = (unused_name(name, taken) for name in ("elements", "chunk"))
        whole = ir.Axis(elements, size(elements))
        chunks = ir.Axis(chunk, floordiv(whole.extent + (CHUNK - 1), CHUNK))
        parts = {
            name: ir.Param(unused_name(f"{name}_chunks", taken), r.dtype.compute, (chunks.extent,))
            for name, r in self.reductions.items()
        }
        return self._chunks(whole, chunks, parts), self._merge(whole, chunks, parts)

    def _chunks(self, whole: ir.Axis, chunks: ir.Axis, parts: Mapping[str, ir.Param]) -> FlatKernel:
        first = chunks.index * CHUNK
        stop = minimum(first + CHUNK, whole.extent)
        block = ir.Block(
            whole.name, LOADED, ir.IndexValue(stop, i64), None, ir.IndexValue(first, i64)
        )
        flat = ((n, replace(r, over=(whole.name,))) for n, r in self.reductions.items())
        states, updates = zip(*(accumulated(n, r) for n, r in flat), strict=True)
        body = [flat_statement(s, whole) for s in (*self.early, *self.stores, *updates)]
        stream = ir.Stream((block,), states, tuple(live(body)))
        kept = [ir.Store(p.name, (chunks.index,), ir.Ref(n)) for n, p in parts.items()]
        axes, grid = (whole, chunks), (ir.Block(chunks.name, 1),)
        kernel = ir.Kernel(self.kernel.name, (), (*parts.values(),), axes, grid, (stream, *kept))
        return self._with_params(kernel, whole.extent, parts)

    def _merge(self, whole: ir.Axis, chunks: ir.Axis, parts: Mapping[str, ir.Param]) -> FlatKernel:
        loaded = {n: ir.Load(p.name, (chunks.index,)) for n, p in parts.items()}
        merged = (
            accumulated(n, replace(r, arg=loaded[n], over=(chunks.name,)))
            for n, r in self.reductions.items()
        )
        states, updates = zip(*merged, strict=True)
        stream = ir.Stream((ir.Block(chunks.name, MERGED),), states, updates)
        after = live([flat_statement(s, whole) for s in (*self.early, *self.late, *self.results)])
        inputs, body = tuple(parts.values()), (stream, *after)
        return self._with_params(
            ir.Kernel(self.kernel.name, inputs, (), (chunks,), (), body), 1, parts
        )

    def _with_params(
        self, flat: ir.Kernel, extent: Index, parts: Mapping[str, ir.Param]
    ) -> FlatKernel:
        """Return a kernel with the parameters that it reads and writes, and canonical names."""
        used = {v.param for v in loads(flat)} | {s.param for s in stores(flat)}
        numbers = {p.name: -1 - k for k, p in enumerate(parts.values())}
        params = self.kernel.inputs, self.kernel.outputs
        numbers |= {p.name: k for k, p in enumerate((*params[0], *params[1]))}
        inputs, outputs = (
            (
                *(replace(p, shape=(extent,)) if p.shape else p for p in side if p.name in used),
                *parts_of_side,
            )
            for side, parts_of_side in zip(params, (flat.inputs, flat.outputs), strict=True)
        )
        whole = replace(flat, inputs=inputs, outputs=outputs)
        columns = tuple(numbers[p.name] for p in (*inputs, *outputs))
        return FlatKernel(canonical_kernel(whole)[0].kernel, columns)


# ---- recognition ---------------------------------------------------------------------------------


def _whole_reduction(kernel: ir.Kernel) -> _WholeReduction | None:
    """Return the statements of a kernel that reduces all elements of its arrays."""
    body, params = _unsplit(kernel), (*kernel.inputs, *kernel.outputs)
    shapes = {p.shape for p in params if p.shape}
    if body is None or len(shapes) != 1 or any(p.strides is not None or p.each for p in params):
        return None
    if len({p.name for p in params}) < len(params):
        return None
    early: dict[str, ir.Let] = {}
    late: dict[str, ir.Let] = {}
    reductions: dict[str, ir.Reduce] = {}
    stores: list[ir.Store] = []
    results: list[ir.Store] = []
    for s in body:
        waits = any(n in late or n in reductions for n in refs(s.value))
        if isinstance(s, ir.Store):
            (results if waits or not s.index else stores).append(s)
        elif not isinstance(s.value, ir.Reduce):
            (late if waits else early)[s.name] = s
        elif waits or not _is_whole(s.value, kernel):
            return None
        else:
            reductions[s.name] = s.value
    inside = [*early.values(), *stores, *(ir.Let(n, r.arg) for n, r in reductions.items())]
    places = {v.index for s in inside for v in loads(s) if v.index} | {s.index for s in stores}
    grid = tuple(ir.Block(a.name) for a in kernel.axes)
    plain = replace(kernel, grid=grid)
    count = product(shape := shapes.pop())
    if len(places) != 1 or not is_every_element(plain, places.pop(), shape):
        return None
    outside = live([*early.values(), *late.values(), *results])
    if not reductions or not _are_plain([*inside, *outside], count):
        return None
    if any(s.index for s in results) or any(v.index for s in outside for v in loads(s)):
        return None
    return _WholeReduction(
        kernel, (*early.values(),), (*stores,), reductions, (*late.values(),), (*results,)
    )


def _unsplit(kernel: ir.Kernel) -> Sequence[ir.Let | ir.Store] | None:
    """Return the statements of a kernel without a grid, or without its split."""
    match kernel.grid, kernel.body:
        case (), _:
            body = [*kernel.body]
        case [ir.Split()], [
            ir.Stream(blocks=[ir.Block(part=str()) as block]) as s,
            ir.Merge(),
            *after,
        ]:
            inside = reductions_of(replace(s, blocks=(replace(block, part=None),)))
            body = [*dict.fromkeys([*inside, *after])] if inside else [s]
        case _:
            return None
    result = [s for s in body if isinstance(s, ir.Let | ir.Store)]
    return result if len(result) == len(body) else None


def _is_whole(r: ir.Reduce, kernel: ir.Kernel) -> bool:
    return {*r.over} == {a.name for a in kernel.axes} and not COMBINES[r.combine].positional


def _are_plain(body: Iterable[ir.Statement], count: Index) -> bool:
    """Return whether statements compute with elements, without reductions and positions."""
    body = [*body]
    is_whole = all(s.where is None and not s.join for s in body if isinstance(s, ir.Store))
    return is_whole and all(is_plain(v, count) for v in visit_body(body))
