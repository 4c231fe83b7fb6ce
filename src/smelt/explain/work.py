"""Arithmetic that a kernel does: operations counted from its text, as XLA counts them.

An operator on a value that varies along some axes runs once for each position of them; a fold does
one step an element, a dot two.  What depends on carried state runs again in every block of the
stream.  Conversions, positions and moves count nothing.

>>> from smelt.kernel.text import parse
>>> kernel = parse('''
... kernel soft(x: f32[r,c]) -> y: f32[r]
...   grid r
...   y[r] = log(sum(exp(x[r,c]) over c))
... ''')
>>> work(kernel, {"r": 10, "c": 100})
Work(flops=1000, transcendentals=1010)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from smelt.kernel.env import Axes, Bound, Env
from smelt.kernel.env import axes_of as value_axes
from smelt.kernel.ir import (
    Apply,
    Block,
    Dot,
    Kernel,
    Merge,
    Reduce,
    Scan,
    Split,
    Statement,
    Stream,
    Value,
)  # fmt: skip
from smelt.kernel.walk import states, values_of, visit
from smelt.ops import scalar_functions
from smelt.types.expr import evaluate

__all__ = ["Work", "work"]

TRANSCENDENTAL = frozenset(row.name for row in scalar_functions.ROWS)
"""Elementary functions beyond the four operations: counted apart, as in JAX's cost analysis."""


@dataclass(frozen=True, slots=True)
class Work:
    """Operations: plain ones (comparisons and choices among them), and elementary functions."""

    flops: int = 0
    transcendentals: int = 0

    def __add__(self, other: Work) -> Work:
        return Work(self.flops + other.flops, self.transcendentals + other.transcendentals)


def work(kernel: Kernel, sizes: Mapping[str, int]) -> Work:
    """The operations of one launch.  Raises KeyError for a size without a number."""
    return _Count(kernel, sizes).run()


class _Count:
    """Statements in order, with the axes of every name.

    Two kinds of pseudo-axes stand for repetition that a kernel's text leaves unsaid: the parts of
    a split axis, and the visits of a stream.
    """

    def __init__(self, kernel: Kernel, sizes: Mapping[str, int]) -> None:
        self.kernel = kernel
        self.extents = {a.name: int(evaluate(a.extent, sizes)) for a in kernel.axes}
        self.total = Work()
        blocks = [b for b in kernel.grid if isinstance(b, Block)]
        self.grid = frozenset(b.axis for b in blocks if b.size == 1)
        self.parts = [s for s in kernel.grid if isinstance(s, Split)]
        for s in self.parts:
            self.extents[s.name] = s.parts

    def run(self) -> Work:
        self._body(self.kernel.body, Env.of(self.kernel), frozenset())
        return self.total

    def _body(self, body: Iterable[Statement], env: Env, inside: Axes) -> None:
        for s in body:
            for value in values_of(s):
                for v in visit(value):
                    self.total += self._own(v, env)
            if isinstance(s, Merge):
                self._merge(s)
            env.bind(s)
            if isinstance(s, Stream):
                self._stream(s, env, inside)

    def _stream(self, s: Stream, env: Env, inside: Axes) -> None:
        visits = f"visits {len(self.extents)}"
        parts = frozenset(b.part for b in s.blocks if b.part is not None)
        share = math.prod(self.extents[p] for p in parts)
        self.extents[visits] = math.prod(self._visits(b, share) for b in s.blocks)
        outer = {state.name: env.names[state.name] for state in s.states}
        hidden = self.grid | inside | parts
        inner = env.child()
        for name, bound in outer.items():
            repeated = bound.axes | hidden | {visits}
            inner.names[name] = Bound(bound.dtype, repeated, bound.index)
        self._body(s.body, inner, inside | parts | {visits})
        for name, bound in outer.items():
            env.names[name] = Bound(bound.dtype, bound.axes | self.grid | inside, bound.index)

    def _visits(self, b: Block, parts: int) -> int:
        """Blocks of an axis that one part visits."""
        extent = -(-self.extents[b.axis] // (parts if b.part is not None else 1))
        return -(-extent // b.size) if b.size else min(extent, 1)

    def _merge(self, s: Merge) -> None:
        found = states(self.kernel)
        joins = max(self.extents[s.part] - 1, 0)
        for name in s.states:
            points = self._points(self.grid | frozenset(found[name].axes))
            self.total += Work(flops=joins * points)

    def _points(self, axes: Axes) -> int:
        return math.prod(self.extents[a] for a in axes)

    def _own(self, v: Value, env: Env) -> Work:
        match v:
            case Apply(op=op):
                points = self._points(value_axes(v, env))
                if op in TRANSCENDENTAL:
                    return Work(transcendentals=points)
                return Work(flops=points)
            case Reduce(arg=arg, over=over):
                return Work(flops=self._points(value_axes(arg, env) | frozenset(over)))
            case Scan():
                return Work(flops=self._points(value_axes(v, env)))
            case Dot(left=left, right=right, over=over):
                axes = value_axes(left, env) | value_axes(right, env) | frozenset(over)
                return Work(flops=2 * self._points(axes))
            case _:
                return Work()
