"""Wrong kernels made from right ones: one index, mask, extent or role is changed.

Every mutant has a name that says what was done to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from smelt.kernel.ir import Block, Kernel, Load, Merge, Statement, Store, Stream, Value
from smelt.kernel.walk import map_values, statements
from smelt.types.expr import Expr, Index, add, atoms, axes_of, mul, sub, substitute

Mutant = tuple[str, Kernel]


def bent(e: Index, extent: Index) -> Iterator[tuple[str, Index]]:
    """Other indices for a dimension: off by one, too far, wrong strides."""
    yield "+1", add(e, 1)
    yield "-1", sub(e, 1)
    yield "+extent", add(e, extent)
    if isinstance(e, Expr):
        yield "*2", mul(e, 2)
        yield "extent-", sub(extent, e)
        for a in axes_of(e):
            yield f"{a}*3", substitute(e, {a: mul(axis_of(e, a), 3)})


def axis_of(e: Expr, name: str) -> Index:
    result = next(a for a in atoms(e) if a.kind == "axis" and a.name == name)
    return Expr((((result,), 1),))


def mutants(kernel: Kernel) -> Iterator[Mutant]:
    """Every mutant of a kernel."""
    yield from loads(kernel)
    yield from stores(kernel)
    yield from shapes(kernel)
    yield from roles(kernel)


def loads(kernel: Kernel) -> Iterator[Mutant]:
    seen: list[Load] = []
    map_values(kernel, lambda v: _note(v, seen))
    for load in dict.fromkeys(seen):
        if load.other is not None:
            yield f"{load.param}: no else", _swap(kernel, load, replace(load, other=None))
            continue
        shape = kernel.param(load.param).shape
        for d, (e, extent) in enumerate(zip(load.index, shape, strict=True)):
            for what, other in bent(e, extent):
                index = (*load.index[:d], other, *load.index[d + 1 :])
                yield f"{load.param}[{d}] {what}", _swap(kernel, load, replace(load, index=index))
        if len(set(map(str, shape))) > 1:
            transposed = replace(load, index=load.index[::-1])
            yield f"{load.param} transposed", _swap(kernel, load, transposed)


def _note(v: Value, seen: list[Load]) -> Value:
    if isinstance(v, Load):
        seen.append(v)
    return v


def _swap(kernel: Kernel, old: Load, new: Load) -> Kernel:
    return map_values(kernel, lambda v: new if v == old else v)


def stores(kernel: Kernel) -> Iterator[Mutant]:
    for s in [s for s in statements(kernel) if isinstance(s, Store)]:
        if s.where is not None:
            yield f"{s.param}: no where", _change(kernel, s, replace(s, where=None))
        for d, e in enumerate(s.index):
            extent = kernel.param(s.param).shape[d]
            for what, other in (*bent(e, extent), ("fixed", 0), ("halved", e // 2)):
                index = (*s.index[:d], other, *s.index[d + 1 :])
                yield f"{s.param}[{d}] {what} (store)", _change(kernel, s, replace(s, index=index))
        yield f"{s.param} stored twice", _change(kernel, s, s, s)


def _change(kernel: Kernel, old: Statement, *new: Statement) -> Kernel:
    return replace(kernel, body=tuple(_changed(kernel.body, old, new)))


def _changed(
    body: tuple[Statement, ...], old: Statement, new: tuple[Statement, ...]
) -> Iterator[Statement]:
    for s in body:
        if s is old:
            yield from new
        elif isinstance(s, Stream):
            yield replace(s, body=tuple(_changed(s.body, old, new)))
        else:
            yield s


def shapes(kernel: Kernel) -> Iterator[Mutant]:
    """Parameters one shorter, axes one longer, than the indices think."""
    for p in kernel.outputs:
        for d, extent in enumerate(p.shape):
            shape = (*p.shape[:d], sub(extent, 1), *p.shape[d + 1 :])
            outputs = tuple(replace(q, shape=shape) if q == p else q for q in kernel.outputs)
            if p not in kernel.inputs:
                yield f"{p.name} one shorter in {d}", replace(kernel, outputs=outputs)


def roles(kernel: Kernel) -> Iterator[Mutant]:
    """Carried states with missing axes, merges left out, states that start elsewhere."""
    for s in [s for s in statements(kernel) if isinstance(s, Stream)]:
        for k, state in enumerate(s.states):
            for a in state.axes:
                poorer = replace(state, axes=tuple(x for x in state.axes if x != a))
                states = (*s.states[:k], poorer, *s.states[k + 1 :])
                yield f"{state.name} without {a}", _change(kernel, s, replace(s, states=states))
        for k, block in enumerate(s.blocks):
            if block.size is None or block.size == 1:
                wider = (*s.blocks[:k], Block(block.axis, 2, block.stop, block.part))
                wider += s.blocks[k + 1 :]
                yield f"{block.axis} in pairs", _change(kernel, s, replace(s, blocks=wider))
    for s in kernel.body:
        if isinstance(s, Merge):
            yield "no merge", _change(kernel, s)
