"""Sizes of short rows as numbers: code for rows of 3 knows how lanes meet their ends.

A kernel serves all sizes.  Where rows are shorter than a few vectors, what one vector holds depends
on their length: `k//3` and `k%3` are three patterns of lanes, `k//n` is a division for each lane.
So sizes at the inner end of an array are *short* where they are small numbers at a call, and that
call gets code in which they are those numbers.

>>> from smelt.kernel.text import parse, text
>>> kernel = parse('''
... kernel k(x: f32[r,c], b: f32[c]) -> y: f32[r,c]
...   grid r, c/4096
...   y[r,c] = x[r,c] + b[c]
... ''')
>>> short_sizes(kernel, {"r": 2, "c": 3}), short_sizes(kernel, {"r": 3, "c": 80})
({'c': 3}, {})
>>> print(text(with_sizes(kernel, {"c": 3})).splitlines()[0])
kernel k(x: f32[r,3], b: f32[3]) -> y: f32[r,3]
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import prod

from smelt.kernel.ir import (
    Block,
    Dot,
    Each,
    IndexValue,
    Kernel,
    Load,
    Param,
    Position,
    Reduce,
    Scan,
    Split,
    Statement,
    Store,
    Stream,
    Value,
)
from smelt.kernel.walk import map_values, statements, values_of, visit
from smelt.types.expr import (
    Atom,
    Expr,
    Index,
    axis,
    evaluate,
    rebuild,
    size,
    sizes_of,
    value,
)
from smelt.types.tensor import Shape

__all__ = ["innermost", "lengths", "short_sizes", "turned_sizes", "with_sizes"]

LONGEST = 64
"""What a size that is short may be: four vectors of single precision."""
MOST = 256
"""Elements that the dimensions from a short one inward may have together."""


def short_sizes(kernel: Kernel, sizes: Mapping[str, int]) -> dict[str, int]:
    """The sizes of a kernel that are short at a call: of an array's last dimensions but its first
    one, as long as those further in are short as well."""
    return _short(sizes, (*kernel.inputs, *kernel.outputs))


def innermost(kernel: Kernel) -> set[str]:
    """The sizes that are the last dimension of arrays: what a vector meets first."""
    ends = (p.shape[-1] for p in (*kernel.inputs, *kernel.outputs) if len(p.shape) > 1)
    return {name for name in map(_symbol, ends) if name is not None}


def turned_sizes(kernel: Kernel, sizes: Mapping[str, int]) -> set[str]:
    """The short sizes that a kernel without folds turns: from [3, n] to [n, 3], or back."""
    values = (v for s in statements(kernel) for root in values_of(s) for v in visit(root))
    if any(isinstance(v, Reduce | Dot | Scan) for v in values):
        return set()
    params = (*kernel.inputs, *kernel.outputs)
    return {*_short(sizes, params)} & lengths((p.shape for p in params), sizes)


def _short(sizes: Mapping[str, int], params: Iterable[Param]) -> dict[str, int]:
    found: dict[str, int] = {}
    for p in params:
        together = 1
        for n in reversed(p.shape[1:]):
            name = _symbol(n)
            length = sizes.get(name, 0) if name else n if isinstance(n, int) else 0
            together *= length
            if not (0 < length <= LONGEST and together <= MOST):
                break
            if name is not None and length > 1:
                found[name] = length
    return found


def lengths(shapes: Iterable[Shape], sizes: Mapping[str, int]) -> set[str]:
    """The sizes that count longer rows in some array of a program: they are lengths, which change
    from call to call, even where a first call's are short."""
    found: set[str] = set()
    for shape in shapes:
        for k, n in enumerate(shape):
            known = [evaluate(m, sizes) for m in shape[k + 1 :] if {*sizes_of(m)} <= sizes.keys()]
            if max(known, default=0) > LONGEST or prod(known) > MOST:
                found |= {*sizes_of(n)}
    return found


def _symbol(n: Index) -> str | None:
    """The name of a size that is nothing but a symbol."""
    if isinstance(n, Expr) and len(n.terms) == 1:
        (atoms, c), *_ = n.terms
        if c == 1 and len(atoms) == 1 and atoms[0].kind == "size":
            return atoms[0].name
    return None


def with_sizes(kernel: Kernel, sizes: Mapping[str, int]) -> Kernel:
    """The kernel with numbers for some of its sizes."""

    def put(e: Index) -> Index:
        return rebuild(e, leaf)

    def leaf(atom: Atom) -> Index:
        if atom.kind == "size":
            return sizes.get(atom.name, size(atom.name))
        extent = put(atom.extent)
        return axis(atom.name, extent) if atom.kind == "axis" else value(atom.name, extent)

    def each(e: tuple[Index, ...]) -> tuple[Index, ...]:
        return tuple(map(put, e))

    def in_value(v: Value) -> Value:
        if isinstance(v, Load):
            return replace(v, index=each(v.index))
        return replace(v, index=put(v.index)) if isinstance(v, IndexValue) else v

    def in_statement(s: Statement) -> Statement:
        if isinstance(s, Position):
            return replace(s, extent=put(s.extent))
        if isinstance(s, Store):
            return replace(s, index=each(s.index))
        return replace(s, body=tuple(map(in_statement, s.body))) if isinstance(s, Stream) else s

    def in_entry(g: Block | Split | Each) -> Block | Split | Each:
        return replace(g, parts=put(g.parts)) if isinstance(g, Split) else g

    def param(p: Param) -> Param:
        return replace(p, shape=each(p.shape))

    made = map_values(kernel, in_value)
    return replace(
        made,
        inputs=tuple(map(param, kernel.inputs)),
        outputs=tuple(map(param, kernel.outputs)),
        axes=tuple(replace(a, extent=put(a.extent)) for a in kernel.axes),
        grid=tuple(map(in_entry, kernel.grid)),
        body=tuple(map(in_statement, made.body)),
        facts=each(kernel.facts),
    )
