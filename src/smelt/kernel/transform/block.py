"""Give axes of the grid blocks: states that vary along them are declared with them.

>>> from smelt.kernel.text import parse, text
>>> kernel = parse('''
... kernel sums(x: f32[r,c]) -> y: f32[c]
...   grid c
...   stream r/4 with s = 0
...     s' = s + sum(x[r,c] over r)
...   y[c] = s
... ''')
>>> print(text(in_blocks(kernel, {"c": 128})))
kernel sums(x: f32[r,c]) -> y: f32[c]
  grid c/128
  stream r/4 with s = 0 [c]
    s' = s + sum(x[r,c] over r)
  y[c] = s
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from smelt.kernel.ir import Block, Kernel, Statement, Stream
from smelt.kernel.walk import Axes, axes_of_body


def in_blocks(kernel: Kernel, sizes: Mapping[str, int]) -> Kernel:
    """Return the kernel with blocks of some sizes along axes of its grid."""
    if not sizes:
        return kernel
    grid = tuple(
        replace(b, size=sizes[b.axis]) if isinstance(b, Block) and b.axis in sizes else b
        for b in kernel.grid
    )
    body = with_state_axes(kernel.body, Axes(sizes), axes_of_body(kernel.body))
    return replace(kernel, grid=grid, body=tuple(body))


def with_state_axes(
    body: Iterable[Statement], axes: Axes, names: Mapping[str, Axes]
) -> Iterable[Statement]:
    """Yield statements whose states are declared with those of `axes` that they vary along."""
    for s in body:
        if not isinstance(s, Stream):
            yield s
            continue
        states = tuple(
            replace(t, axes=(*t.axes, *sorted((names[t.name] & axes) - set(t.axes))))
            for t in s.states
        )
        yield replace(s, states=states, body=tuple(with_state_axes(s.body, axes, names)))
