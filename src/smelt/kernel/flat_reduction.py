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

from smelt.kernel.canonical import canonical_kernel, names_of, unused_name
from smelt.kernel.flat_map import flat_map, flat_value, is_every_element, is_plain
from smelt.kernel.ir import (
    Apply,
    Axis,
    Block,
    Const,
    IndexValue,
    Kernel,
    Let,
    Load,
    Merge,
    Param,
    Reduce,
    Ref,
    Split,
    State,
    Statement,
    Store,
    Stream,
    Update,
)
from smelt.kernel.walk import loads, refs, transform, visit
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

    `place` is the index of the elements; `late` and `results` wait for `reductions`.
    """

    kernel: Kernel
    place: tuple[Index, ...]
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
        updates = [_update(n, replace(r, over=(whole.name,))) for n, r in self.reductions.items()]
        body = [_flat(s, whole) for s in (*self.early, *self.stores, *updates)]
        stream = Stream((block,), _states(self.reductions), tuple(_live(body)))
        kept = [Store(p.name, (chunks.index,), Ref(n)) for n, p in parts.items()]
        flat = Kernel(
            self.kernel.name,
            (),
            tuple(parts.values()),
            (whole, chunks),
            (Block(chunks.name, 1),),
            (stream, *kept),
        )
        return self._with_params(flat, whole.extent, parts)

    def _merge(self, whole: Axis, chunks: Axis, parts: Mapping[str, Param]) -> FlatKernel:
        body = [
            _update(
                n, Reduce(r.combine, Load(parts[n].name, (chunks.index,)), (chunks.name,), r.dtype)
            )
            for n, r in self.reductions.items()
        ]
        stream = Stream((Block(chunks.name, MERGED),), _states(self.reductions), tuple(body))
        after = _live([_flat(s, whole) for s in (*self.early, *self.late, *self.results)])
        flat = Kernel(
            self.kernel.name,
            tuple(parts.values()),
            (),
            (chunks,),
            (),
            (stream, *after),
        )
        return self._with_params(flat, 1, parts)

    def _with_params(self, flat: Kernel, extent: Index, parts: Mapping[str, Param]) -> FlatKernel:
        """Return a kernel with the parameters that it reads and writes, and canonical names."""
        used = {v.param for v in loads(flat)} | {s.param for s in _stores(flat.body)}
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


def _states(reductions: Mapping[str, Reduce]) -> tuple[State, ...]:
    return tuple(
        State(n, Const(COMBINES[r.combine].identity(r.dtype), r.dtype.compute), (), r.dtype.compute)
        for n, r in reductions.items()
    )


def _update(name: str, r: Reduce) -> Update:
    return Update(name, Apply(COMBINES[r.combine].scalar, (Ref(name), r)))


def _flat(s: Let | Store | Update, whole: Axis) -> Let | Store | Update:
    changed = replace(s, value=transform(s.value, lambda v: flat_value(v, whole)))
    is_array = isinstance(changed, Store) and changed.index
    return replace(changed, index=(whole.index,)) if is_array else changed


def _live(body: Iterable[Statement]) -> list[Statement]:
    """Return statements without bindings that no later one reads."""
    needed: set[str] = set()
    live: list[Statement] = []
    for s in reversed([*body]):
        if isinstance(s, Store | Update) or (isinstance(s, Let) and s.name in needed):
            live.append(s)
            needed |= {*refs(s.value)}
    return live[::-1]


def _stores(body: Iterable[Statement]) -> list[Store]:
    return [
        x for s in body for x in (s.body if isinstance(s, Stream) else (s,)) if isinstance(x, Store)
    ]


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
    if len(places) != 1 or not is_every_element(plain, place := places.pop(), shape):
        return None
    outside = _live([*early.values(), *late.values(), *results])
    if not reductions or not _are_plain([*inside, *outside], count):
        return None
    if any(s.index for s in results) or any(v.index for s in outside for v in loads(s)):
        return None
    return _WholeReduction(
        kernel, place, (*early.values(),), (*stores,), reductions, (*late.values(),), (*results,)
    )


def _unsplit(kernel: Kernel) -> Sequence[Let | Store] | None:
    """Return the statements of a kernel without a grid, or without its split."""
    match kernel.grid, kernel.body:
        case (), _:
            body: list[Statement | None] = [*kernel.body]
        case [Split()], [Stream(blocks=[Block(part=str())], where=None) as s, Merge(), *after]:
            inside = [_reduction(x, s.states) if isinstance(x, Update) else x for x in s.body]
            body = [*dict.fromkeys([*inside, *after])]
        case _:
            return None
    result = [s for s in body if isinstance(s, Let | Store)]
    return result if len(result) == len(body) else None


def _reduction(update: Update, states: Sequence[State]) -> Let | None:
    """Return the reduction that a stream's state has at the end; None for other states."""
    (state,) = (s for s in states if s.name == update.state)
    match update.value:
        case Apply(op=op, args=(Ref(name=name, next=False), Reduce(combine=combine) as r)) if (
            name == state.name and op == COMBINES[combine].scalar and not state.axes
        ):
            first = Const(COMBINES[combine].identity(r.dtype), r.dtype.compute)
            return Let(name, r) if state.init == first else None
        case _:
            return None


def _is_whole(r: Reduce, kernel: Kernel) -> bool:
    return {*r.over} == {a.name for a in kernel.axes} and not COMBINES[r.combine].positional


def _are_plain(body: Iterable[Statement], count: Index) -> bool:
    """Return whether statements compute with elements, without reductions and positions."""
    values = (v for s in body if isinstance(s, Let | Store) for v in visit(s.value))
    stores = (s for s in body if isinstance(s, Store))
    is_whole = all(s.where is None and not s.join for s in stores)
    return is_whole and all(is_plain(v, count) for v in values)
