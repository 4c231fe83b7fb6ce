"""Random kernels around streams: carried gauges, products in blocks, streams in streams, parts.

    @given(streams())
    def test(kernel): ...

What a general random kernel rarely hits on is here in every one: states that others are rescaled
by, contractions whose rows, columns or sums are the streamed axis, and merges.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from tests.kernel.random_kernels import Generator

from smelt.kernel.ir import Block, Const, If, Kernel, Ref, Split, State, Value
from smelt.types.dtype import f32, f64, i64
from smelt.types.expr import size

Draw = Any
n, m = size("n"), size("m")
SIZES = (1, 2, 3, 16, 64, None)


class StreamGenerator(Generator):
    """Draws one kernel with a stream over `n` or `m` at its top."""

    def __init__(self, draw: Draw) -> None:
        super().__init__(draw)
        self.sizes: dict[str, int | None] = {}

    def kernel(self) -> Kernel:
        b = self.b
        for name in ("i", "n", "m", "j"):
            b.axis(name, {"i": n, "j": m}.get(name))
        b.input("x", f32, (n, m))
        b.input("a", f32, (n, m))
        b.input("w", f32, (m, n))
        b.input("v", f64 if self.chance(15) else f32, (n,))
        b.input("u", i64, (m,))
        cut = [name for name in ("i", "j") if self.chance(60)]
        axis = str(self.pick(("n", "m")))
        split = self.chance(30)
        b.grid(*(Block(name, self.pick((1, 2, 64))) for name in cut))
        if split:
            b.grid(Split("p", axis, 3))
        self.tiles = [name for name in ("i", "n", "m", "j") if name not in cut and name != axis]
        self.visible, self.needed = [*cut, *self.tiles], cut
        self.lets()
        names = self.carrying(axis, "p" if split else None)
        if split:
            b.merge("p", *names)
        elif self.chance(30):
            names += self.carrying(str(self.pick(("n", "m"))) if axis in self.tiles else axis, None)
        for name in names or [None]:
            self.result(None if name is None else Ref(name))
        return b.kernel(check=False)

    def carrying(self, axis: str, part: str | None) -> list[str]:
        """One stream; the names of its states."""
        b = self.b
        stop = self.upto_last() if self.chance(25) and part is None else None
        start = self.b.apply("sub", self.upto_last(), 3) if self.chance(25) else None
        block = Block(axis, self.sizes.setdefault(axis, self.pick(SIZES)), stop, part, start)
        axes = [a for a in self.visible if a != axis and self.chance(60)]
        gauge = b.state(self.fresh("g"), Const(float("-inf"), f32), *axes, dtype=f32)
        sums = [
            b.state(self.fresh("s"), Const(0.0, d), *axes, dtype=d)
            for d in (f32, f64, f32)[: self.upto(1, 3)]
        ]
        outer = self.visible, self.tiles, self.needed
        self.visible, self.needed = [*outer[0], axis], [*outer[2], axis]
        self.tiles = [*outer[1], axis]
        where = None
        if self.chance(30):
            where = b.apply("ge", self.edge(axis), self.edge(self.pick(self.visible)))
        with b.stream(block, states=[gauge, *sums], where=where):
            self.body(axis, axes, gauge, sums, plain=part is not None)
        self.visible, self.tiles, self.needed = outer
        return [gauge.name, *(s.name for s in sums)]

    def body(
        self, axis: str, axes: list[str], gauge: State, sums: list[State], *, plain: bool
    ) -> None:
        """The largest score so far, and sums of weights relative to it."""
        b = self.b
        score = b.let(self.fresh("t"), self.score())
        top = self.reduced("max", score, axis, axes)
        new = b.update(gauge.name, b.apply("max", Ref(gauge.name), top))
        weight = b.let(self.fresh("w"), b.apply("exp", b.apply("sub", score, new)))
        factor = b.apply("exp", b.apply("sub", Ref(gauge.name), new))
        for state in sums:
            built: Value = weight
            if self.chance(60):
                built = self.product(weight, axis, axes)
            result = self.reduced("sum", b.cast(built, state.dtype or f32), axis, axes)
            old = b.apply("mul", Ref(state.name), b.cast(factor, state.dtype or f32))
            if not plain and self.chance(20):
                old = b.apply("add", old, b.cast(Ref(gauge.name), state.dtype or f32))
            b.update(state.name, b.apply("add", old, result))
        if not plain and self.chance(30):
            self.result(score)

    def reduced(self, combine: str, v: Value, axis: str, axes: list[str]) -> Value:
        """The value with no axes but those of the states."""
        over = tuple(sorted(self.b.axes_of(v) - set(axes) - self.still()))
        return self.b.reduce(combine, v, *over) if over else v

    def still(self) -> set[str]:
        return {e.axis for e in self.b.entries if isinstance(e, Block) and e.size == 1}

    def at(self, *names: str) -> Value:
        """A load, mostly of a matrix, with the axes of these extents that are visible."""
        b = self.b
        variants = {"x": (n, m), "a": (n, m), "w": (m, n)}
        name = str(self.pick(names))
        index = tuple(
            b.axes[self.pick([v for v in self.visible if b.axes[v].extent == e] or ["n"])].index
            for e in variants[name]
        )
        return b.load(next(p for p in b.inputs if p.name == name), *index)

    def score(self) -> Value:
        """What is streamed: a product, a load, or both under a mask."""
        b = self.b
        if self.chance(60):
            left, right = self.at("x", "a"), self.at("w", "x")
            shared = [a for a in b.axes_of(left) & b.axes_of(right) if a in self.tiles]
            v = b.dot(left, right, self.pick(sorted(shared))) if shared else left
        else:
            v = self.at("x", "w")
        v = b.apply("mul", v, 0.125)
        if self.chance(30):
            first, second = (self.pick(self.visible) for _ in range(2))
            mask = b.apply(
                "le", b.as_value(b.axes[first].index, i64), b.as_value(b.axes[second].index, i64)
            )
            masked = b.apply("select", mask, v, -2.0)
            cut = b.apply("gt", self.edge(first), self.edge(second))
            v = If(cut, masked, v) if self.chance(60) else masked
        return v

    def product(self, weight: Value, axis: str, axes: list[str]) -> Value:
        """The weights times a matrix, over the streamed axis."""
        b = self.b
        other = self.at("x", "a", "w")
        if axis not in b.axes_of(other) or axis not in b.axes_of(weight):
            return weight
        return b.dot(weight, other, axis) if self.chance(70) else b.dot(other, weight, axis)

    def upto_last(self) -> Value:
        if self.chance(60) and self.needed:
            return self.b.apply("add", self.edge(self.pick(self.needed)), 1)
        return self.b.as_value(self.pick((n, n - 1, 2)), i64)

    def result(self, v: Value | None) -> None:
        """Stores a value over its axes."""
        b = self.b
        v = self.at("x") if v is None else v
        carried_axes = [a for a in self.visible if a in b.axes_of(v) | set(self.needed)]
        shape = tuple(b.axes[a].extent for a in carried_axes)
        index = tuple(b.axes[a].index for a in carried_axes)
        b.store(b.output(self.fresh("y"), b.dtype_of(v), shape), index, v)


@st.composite
def streams(draw: Draw) -> Kernel:
    """One random kernel with a stream."""
    return StreamGenerator(draw).kernel()
