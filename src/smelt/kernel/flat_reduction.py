"""Recognise reductions of whole arrays of one shape: two launches may compute many of them.

The norms of all gradients are sums of squares of arrays of any shapes. `flat_kernels` makes such a
kernel two on arrays of one dimension, each the kernel of a family (`smelt.kernel.flat_map`): chunks
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

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from smelt.kernel.block_reduction import accumulated
from smelt.kernel.canonical import canonical_kernel, names_of, unused_name
from smelt.kernel.flat_map import flat_map, flat_statement, is_every_element, is_plain
from smelt.kernel.ir import (
    Axis,
    Block,
    IndexValue,
    Kernel,
    Let,
    Load,
    Merge,
    Param,
    Reduce,
    Ref,
    Split,
    Statement,
    Store,
    Stream,
)
from smelt.kernel.transform.stream_to_reduction import reductions_of
from smelt.kernel.walk import live, loads, refs, stores, visit_body
from smelt.ops.combine import COMBINES
from smelt.types.dtype import i64
from smelt.types.expr import Index, floordiv, minimum, product, size

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

    kernel: Kernel
    columns: tuple[int, ...]


def flat_kernels(kernel: Kernel) -> tuple[FlatKernel, ...]:
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

    kernel: Kernel
    early: tuple[Let, ...]
    stores: tuple[Store, ...]
    reductions: Mapping[str, Reduce]
    late: tuple[Let, ...]
    results: tuple[Store, ...]

    def kernels(self) -> tuple[FlatKernel, ...]:
        """Return the kernel of the chunks, and the one that merges their results."""
        taken = {*names_of(self.kernel)}
        elements, chunk = (unused_name(name, taken) for name in ("elements", "chunk"))
        whole = Axis(elements, size(elements))
        chunks = Axis(chunk, floordiv(whole.extent + (CHUNK - 1), CHUNK))
        parts = {
            name: Param(unused_name(f"{name}_chunks", taken), r.dtype.compute, (chunks.extent,))
            for name, r in self.reductions.items()
        }
        return self._chunks(whole, chunks, parts), self._merge(whole, chunks, parts)

    def _chunks(self, whole: Axis, chunks: Axis, parts: Mapping[str, Param]) -> FlatKernel:
        first = chunks.index * CHUNK
        stop = minimum(first + CHUNK, whole.extent)
        block = Block(whole.name, LOADED, IndexValue(stop, i64), None, IndexValue(first, i64))
        flat = ((n, replace(r, over=(whole.name,))) for n, r in self.reductions.items())
        states, updates = zip(*(accumulated(n, r) for n, r in flat), strict=True)
        body = [flat_statement(s, whole) for s in (*self.early, *self.stores, *updates)]
        stream = Stream((block,), states, tuple(live(body)))
        kept = [Store(p.name, (chunks.index,), Ref(n)) for n, p in parts.items()]
        axes, grid = (whole, chunks), (Block(chunks.name, 1),)
        kernel = Kernel(self.kernel.name, (), (*parts.values(),), axes, grid, (stream, *kept))
        return self._with_params(kernel, whole.extent, parts)

    def _merge(self, whole: Axis, chunks: Axis, parts: Mapping[str, Param]) -> FlatKernel:
        loaded = {n: Load(p.name, (chunks.index,)) for n, p in parts.items()}
        merged = (
            accumulated(n, replace(r, arg=loaded[n], over=(chunks.name,)))
            for n, r in self.reductions.items()
        )
        states, updates = zip(*merged, strict=True)
        stream = Stream((Block(chunks.name, MERGED),), states, updates)
        after = live([flat_statement(s, whole) for s in (*self.early, *self.late, *self.results)])
        inputs, body = tuple(parts.values()), (stream, *after)
        return self._with_params(
            Kernel(self.kernel.name, inputs, (), (chunks,), (), body), 1, parts
        )

    def _with_params(self, flat: Kernel, extent: Index, parts: Mapping[str, Param]) -> FlatKernel:
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


def _whole_reduction(kernel: Kernel) -> _WholeReduction | None:
    """Return the statements of a kernel that reduces all elements of its arrays."""
    body, params = _unsplit(kernel), (*kernel.inputs, *kernel.outputs)
    shapes = {p.shape for p in params if p.shape}
    if body is None or len(shapes) != 1 or any(p.strides is not None or p.each for p in params):
        return None
    if len({p.name for p in params}) < len(params):
        return None
    early: dict[str, Let] = {}
    late: dict[str, Let] = {}
    reductions: dict[str, Reduce] = {}
    stores: list[Store] = []
    results: list[Store] = []
    for s in body:
        waits = any(n in late or n in reductions for n in refs(s.value))
        if isinstance(s, Store):
            (results if waits or not s.index else stores).append(s)
        elif not isinstance(s.value, Reduce):
            (late if waits else early)[s.name] = s
        elif waits or not _is_whole(s.value, kernel):
            return None
        else:
            reductions[s.name] = s.value
    inside = [*early.values(), *stores, *(Let(n, r.arg) for n, r in reductions.items())]
    places = {v.index for s in inside for v in loads(s) if v.index} | {s.index for s in stores}
    grid = tuple(Block(a.name) for a in kernel.axes)
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


def _unsplit(kernel: Kernel) -> Sequence[Let | Store] | None:
    """Return the statements of a kernel without a grid, or without its split."""
    match kernel.grid, kernel.body:
        case (), _:
            body = [*kernel.body]
        case [Split()], [Stream(blocks=[Block(part=str()) as block]) as s, Merge(), *after]:
            inside = reductions_of(replace(s, blocks=(replace(block, part=None),)))
            body = [*dict.fromkeys([*inside, *after])] if inside else [s]
        case _:
            return None
    result = [s for s in body if isinstance(s, Let | Store)]
    return result if len(result) == len(body) else None


def _is_whole(r: Reduce, kernel: Kernel) -> bool:
    return {*r.over} == {a.name for a in kernel.axes} and not COMBINES[r.combine].positional


def _are_plain(body: Iterable[Statement], count: Index) -> bool:
    """Return whether statements compute with elements, without reductions and positions."""
    body = [*body]
    is_whole = all(s.where is None and not s.join for s in body if isinstance(s, Store))
    return is_whole and all(is_plain(v, count) for v in visit_body(body))
