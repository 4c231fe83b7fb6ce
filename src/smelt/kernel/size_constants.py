"""Turn constant indices of kernels into sizes, and small sizes into constants.

Step 7 of a recurrence reads `x[i,7,k]` where step 8 reads `x[i,8,k]`. With the position passed as
a size of the call, both run the same machine code.

>>> from smelt.kernel.text import parse, text
>>> kernel = parse('''
... kernel step(x: f32[n,12,64], h: f32[n,64]) -> y: f32[n,64]
...   axis i in n, k in 64
...   grid i
...   y[i,k] = h[i,k] + x[i,7,k]
... ''')
>>> shared, numbers = parametrize(kernel)
>>> print(text(shared).splitlines()[-1], numbers)
  y[i,k] = h[i,k] + x[i,size(at_0),k] {'at_0': 7}

A kernel serves all sizes. Where rows are shorter than a few vectors, the content of one vector
depends on their length: `k//3` and `k%3` are three lane patterns, `k//n` is a division per lane.
So if sizes at the inner end of an array are small at a call, that call gets code with these sizes
as constants.

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

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from math import prod

from smelt.kernel import ir
from smelt.kernel.canonical import names_of
from smelt.kernel.walk import joined_axes, loads, map_values, visit_body
from smelt.python.dataclass import replace
from smelt.types.expr import (
    Atom,
    Index,
    add,
    axis,
    evaluate,
    map_variables,
    mul,
    size,
    sizes_of,
    symbol_of,
    value,
)
from smelt.types.tensor import Shape

_NUMBER = re.compile(r"\d+")

FixedIndex = tuple[str, int, int]
"""Constant index: parameter, dimension, position."""


def parametrize(kernel: ir.Kernel) -> tuple[ir.Kernel, Mapping[str, int]]:
    """Replace constant indices of parameters by sizes; return the kernel and their values.

    A bound that the kernel's loads rely on becomes a fact of its calls. Positions along a last
    dimension are kept if there are several, since code may load neighbours together.
    """
    every_load = [*loads(kernel)]
    fixed = _constant_indices(kernel, every_load)
    if not fixed:
        return kernel, {}
    kernel_names = set(names_of(kernel))
    unused = (name for k in count() if (name := f"at_{k}") not in kernel_names)
    names = dict(zip(fixed, unused, strict=False))

    def index_size(param: str, d: int, e: Index) -> Index:
        name = names.get((param, d, e)) if isinstance(e, int) else None
        return e if name is None else size(name)

    def change(value: ir.Value) -> ir.Value:
        if not isinstance(value, ir.Load):
            return value
        at = tuple(index_size(value.param, d, e) for d, e in enumerate(value.index))
        return replace(value, index=at)

    facts = tuple(
        add(add(kernel.param(param).shape[d], -1), mul(size(name), -1))
        for (param, d, number), name in names.items()
        if any(v.param == param and v.index[d] == number and v.other is None for v in every_load)
    )
    result = replace(map_values(kernel, change), facts=(*kernel.facts, *facts))
    return result, {name: number for (_, _, number), name in names.items()}


def erase_numbers(text: str) -> str:
    """Replace numbers by 0, so that kernels which `parametrize` may unify compare equal.

    >>> erase_numbers("a1[a0,7]") == erase_numbers("a1[a0,12]")
    True
    """
    return _NUMBER.sub("0", text)


def _constant_indices(kernel: ir.Kernel, loads: Sequence[ir.Load]) -> list[FixedIndex]:
    """List the constant indices in order of appearance."""
    places = {
        (v.param, d, e): None
        for v in loads
        for d, e in enumerate(v.index)
        if isinstance(e, int) and e >= 0 and kernel.param(v.param).shape[d] != 1
    }
    times = Counter((param, d) for param, d, _ in places)
    last = {p.name: len(p.shape) - 1 for p in kernel.inputs}
    return [(p, d, e) for p, d, e in places if d < last.get(p, 0) or times[p, d] == 1]


# ---- small sizes --------------------------------------------------------------------------------

MAX_SHORT_EXTENT = 64
"""Largest size treated as short: four AVX-512 vectors of single precision."""
MAX_SHORT_ELEMENTS = 256
"""Largest product of the dimensions from a short one inward, in elements."""


def short_sizes(kernel: ir.Kernel, sizes: Mapping[str, int]) -> dict[str, int]:
    """Return the sizes of a kernel that are short at a call.

    Candidates are an array's dimensions except the first, from the innermost outwards as long as
    all of them are short.
    """
    return _short_sizes_of(sizes, (*kernel.inputs, *kernel.outputs))


def innermost_sizes(kernel: ir.Kernel) -> set[str]:
    """Return the sizes that are the last dimension of some array."""
    ends = (p.shape[-1] for p in (*kernel.inputs, *kernel.outputs) if len(p.shape) > 1)
    return {name for name in map(symbol_of, ends) if name is not None}


def transposed_sizes(kernel: ir.Kernel, sizes: Mapping[str, int]) -> set[str]:
    """Return the short sizes that a kernel without reductions transposes.

    Such a kernel turns [3, n] to [n, 3] or back.
    """
    if any(map(joined_axes, visit_body(kernel))):
        return set()
    params = (*kernel.inputs, *kernel.outputs)
    return {*_short_sizes_of(sizes, params)} & row_counts((p.shape for p in params), sizes)


def _short_sizes_of(sizes: Mapping[str, int], params: Iterable[ir.Param]) -> dict[str, int]:
    short: dict[str, int] = {}
    for p in params:
        elements = 1
        for n in reversed(p.shape[1:]):
            name = symbol_of(n)
            length = sizes.get(name, 0) if name else n if isinstance(n, int) else 0
            elements *= length
            if not (0 < length <= MAX_SHORT_EXTENT and elements <= MAX_SHORT_ELEMENTS):
                break
            if name is not None and length > 1:
                short[name] = length
    return short


def row_counts(shapes: Iterable[Shape], sizes: Mapping[str, int]) -> set[str]:
    """Return the sizes that count longer rows in some array of a program.

    They are lengths that change from call to call, even if they are short in the first call.
    """
    counts: set[str] = set()
    for shape in shapes:
        for k, n in enumerate(shape):
            inner = [evaluate(m, sizes) for m in shape[k + 1 :] if {*sizes_of(m)} <= sizes.keys()]
            if max(inner, default=0) > MAX_SHORT_EXTENT or prod(inner) > MAX_SHORT_ELEMENTS:
                counts |= {*sizes_of(n)}
    return counts


def with_sizes(kernel: ir.Kernel, sizes: Mapping[str, int]) -> ir.Kernel:
    """Return the kernel with constants for some of its sizes."""

    def put(e: Index) -> Index:
        return map_variables(e, leaf)

    def leaf(atom: Atom) -> Index:
        if atom.kind == "size":
            return sizes.get(atom.name, size(atom.name))
        extent = put(atom.extent)
        return axis(atom.name, extent) if atom.kind == "axis" else value(atom.name, extent)

    def each(e: tuple[Index, ...]) -> tuple[Index, ...]:
        return tuple(map(put, e))

    def in_value(v: ir.Value) -> ir.Value:
        if isinstance(v, ir.Load):
            return replace(v, index=each(v.index))
        return replace(v, index=put(v.index)) if isinstance(v, ir.IndexValue) else v

    def in_statement(s: ir.Statement) -> ir.Statement:
        if isinstance(s, ir.Position):
            return replace(s, extent=put(s.extent))
        if isinstance(s, ir.Store):
            return replace(s, index=each(s.index))
        return replace(s, body=tuple(map(in_statement, s.body))) if isinstance(s, ir.Stream) else s

    def in_entry(g: ir.Block | ir.Split | ir.Each) -> ir.Block | ir.Split | ir.Each:
        return replace(g, parts=put(g.parts)) if isinstance(g, ir.Split) else g

    def param(p: ir.Param) -> ir.Param:
        return replace(p, shape=each(p.shape))

    result = map_values(kernel, in_value)
    return replace(
        result,
        inputs=tuple(map(param, kernel.inputs)),
        outputs=tuple(map(param, kernel.outputs)),
        axes=tuple(replace(a, extent=put(a.extent)) for a in kernel.axes),
        grid=tuple(map(in_entry, kernel.grid)),
        body=tuple(map(in_statement, result.body)),
        facts=each(kernel.facts),
    )
