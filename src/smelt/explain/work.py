"""Count the arithmetic operations of a kernel from its text, as XLA counts them.

An operator on a value that varies along some axes runs once for each position of them; a reduction
takes one operation per element, a dot two. Values that depend on carried state run again in every
block of the stream. Conversions, indices and moves count nothing.

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

from smelt.kernel import ir
from smelt.kernel.walk import Axes, value_axes, visit, visit_statement
from smelt.ops import scalar_functions
from smelt.python.dataclass import dataclass
from smelt.types.expr import dependent_axes, evaluate

TRANSCENDENTAL = frozenset(row.name for row in scalar_functions.ROWS)
"""Elementary functions beyond the four operations, counted separately as in JAX's cost analysis."""


@dataclass(frozen=True, slots=True)
class Work:
    """Plain operations (including comparisons and selects) and elementary functions."""

    flops: int = 0
    transcendentals: int = 0

    def __add__(self, other: Work) -> Work:
        return Work(self.flops + other.flops, self.transcendentals + other.transcendentals)


def work(kernel: ir.Kernel, sizes: Mapping[str, int]) -> Work:
    """Return the operations of a launch; raise KeyError for a missing size."""
    return _Count(kernel, sizes).run()


class _Count:
    """Walks statements in order, with the axes of every name.

    Repetition that is implicit in a kernel's text has axes of its own: `visits:n` are the blocks of
    `n` that a stream visits (all parts together), and the name of a split's grid axis its parts.
    """

    def __init__(self, kernel: ir.Kernel, sizes: Mapping[str, int]) -> None:
        self.kernel = kernel
        self.extents = {a.name: int(evaluate(a.extent, sizes)) for a in kernel.axes}
        self.extents |= {
            s.name: int(evaluate(s.parts, sizes)) for s in kernel.grid if isinstance(s, ir.Split)
        }
        self.fixed = frozenset(
            b.axis for b in kernel.grid if isinstance(b, ir.Block) and b.size == 1
        )
        self.names: dict[str, Axes] = {}
        self.new: dict[str, Axes] = {}
        self.visited: Axes = frozenset()
        """Axes of the enclosing streams."""
        self.total = Work()

    def run(self) -> Work:
        grid = [b.axis for b in self.kernel.grid if isinstance(b, ir.Block)]
        if all(self.extents[a] for a in grid):
            self._body(self.kernel.body)
        return self.total

    def _body(self, body: Iterable[ir.Statement]) -> None:
        for s in body:
            for v in visit_statement(s):
                self.total += self._operations(v)
            match s:
                case ir.Let(name=name, value=value) | ir.Position(name=name, value=value):
                    self.names[name] = self.axes(value)
                case ir.Update(state=name, value=value):
                    self.new[name] = self.axes(value) | self.names[name]
                case ir.Merge():
                    self._merge(s)
                case ir.Stream():
                    self._stream(s)
                case ir.Store(index=index, value=value, join=join) if join and join != ir.PUT:
                    axes = dependent_axes(index, self.names.__getitem__) | self.axes(value)
                    self.total += Work(flops=self._points(axes))
                case _:
                    pass

    def _stream(self, s: ir.Stream) -> None:
        outer, self.visited = self.visited, self.visited | {b.axis for b in s.blocks}
        for b in s.blocks:
            self.extents[f"visits:{b.axis}"] = self._visits(b)
        around = self.fixed | {f"visits:{a}" for a in outer}
        inside = around | {f"visits:{b.axis}" for b in s.blocks}
        for state in s.states:
            self.names[state.name] = frozenset(state.axes) | inside
        if all(self.extents[b.axis] for b in s.blocks):
            self._body(s.body)
        parts = frozenset(b.part for b in s.blocks if b.part is not None)
        for state in s.states:
            self.names[state.name] = frozenset(state.axes) | around | parts
        self.visited = outer

    def _visits(self, b: ir.Block) -> int:
        """Return the number of blocks of an axis, over all parts."""
        parts = 1 if b.part is None else self.extents[b.part]
        extent = -(-self.extents[b.axis] // parts)
        return parts * (-(-extent // b.size) if b.size else min(extent, 1))

    def _merge(self, s: ir.Merge) -> None:
        joins = max(self.extents[s.part] - 1, 0)
        for name in s.states:
            self.names[name] -= {s.part}
            self.total += Work(flops=joins * self._points(self.names[name]))

    def _points(self, axes: Axes) -> int:
        """Return the number of positions of axes, which include the axes' visits."""
        implied = {f"visits:{a}" for a in axes}
        return math.prod(self.extents[a] for a in axes if a not in implied)

    def axes(self, v: ir.Value) -> Axes:
        """Return the axes that a value varies along, including implicit repetition."""
        axes = value_axes(v, lambda name, new: (self.new if new else self.names)[name])
        over = {a for x in visit(v) if isinstance(x, ir.Reduce | ir.Dot) for a in x.over}
        return axes | {f"visits:{a}" for a in over & self.visited}

    def _operations(self, v: ir.Value) -> Work:
        match v:
            case ir.Apply(op=op):
                points = self._points(self.axes(v))
                if op in TRANSCENDENTAL:
                    return Work(transcendentals=points)
                return Work(flops=points)
            case ir.Reduce(arg=arg, over=over):
                return Work(flops=self._points(self.axes(arg) | set(over)))
            case ir.Scan():
                return Work(flops=self._points(self.axes(v)))
            case ir.Dot(left=left, right=right, over=over):
                axes = self.axes(left) | self.axes(right) | set(over)
                return Work(flops=2 * self._points(axes))
            case _:
                return Work()
