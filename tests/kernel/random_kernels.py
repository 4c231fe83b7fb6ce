"""Random kernels: well-typed, in every form of the language, many of them even right.

    @given(kernels())
    def test(kernel): ...

Indices are sometimes off, stores sometimes race: what the verifier lets pass has to run.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

from hypothesis import strategies as st
from tests.kernel.builder import Builder

from smelt.errors import DTypeError, SmeltError
from smelt.kernel.ir import (
    NO_EXPONENT,
    Block,
    Const,
    Extreme,
    If,
    IndexValue,
    Kernel,
    Param,
    Partial,
    Ref,
    Value,
)
from smelt.ops.combine import COMBINES
from smelt.ops.scalar import SCALARS
from smelt.types.dtype import DType, bf16, bool_, f16, f32, f64, i8, i32, i64, u32, u64
from smelt.types.expr import Index, maximum, minimum, mod, size, value

Draw = Any
MEMORY = (f32, f64, i32, i64, bool_, u32, i8, f16, bf16)
REGISTERS = (f32, f64, i32, i64, bool_, u32, u64, i8)
n, m = size("n"), size("m")
DIMS: tuple[Index, ...] = (n, m, 3, n * m, n + m, n * 2, 1, m + 1)
NUMBERS = (0, 1, -1, 2, 0.5, -0.0, float("inf"), float("-inf"), float("nan"), 1e-5, 1e20, 0.1, 7)


@cache
def operators() -> dict[DType, list[tuple[str, tuple[DType, ...]]]]:
    """Rows by what they give: (name, operand types)."""
    results: dict[DType, list[tuple[str, tuple[DType, ...]]]] = {d: [] for d in REGISTERS}
    for row in SCALARS.values():
        for dtypes in product(REGISTERS, repeat=row.arity):
            if row.name in ("pow", "philox") and u64 not in dtypes:
                continue
            try:
                result = row.result(*dtypes)
            except DTypeError:
                continue
            if result in results:
                results[result].append((row.name, dtypes))
    return results


class Generator:
    """Draws one kernel."""

    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        self.b = Builder("k")
        self.tiles: list[str] = []
        self.visible: list[str] = []
        self.needed: list[str] = []
        self.count = 0

    def pick(self, options: Iterable[Any]) -> Any:
        return self.draw(st.sampled_from(list(options)))

    def upto(self, low: int, high: int) -> int:
        return int(self.draw(st.integers(low, high)))

    def chance(self, percent: int) -> bool:
        return self.upto(0, 99) >= 100 - percent

    def fresh(self, stem: str) -> str:
        self.count += 1
        return f"{stem}{self.count}"

    # ---- header --------------------------------------------------------------------------------

    def kernel(self) -> Kernel:
        b = self.b
        names = ("n", "m", "i", "j")[: self.upto(1, 4)]
        for name in names:
            usual = name in ("n", "m") and self.chance(80)
            b.axis(name, None if usual else self.pick(DIMS))
        for k in range(self.upto(1, 3)):
            b.input(f"x{k}", self.pick(MEMORY), self.shape(2))
        b.input("a", f32, (n, m))
        cut = [name for name in names if self.chance(50)]
        b.grid(*(Block(name, self.pick((1, 2, 64, None))) for name in cut))
        if self.chance(20):
            b.require(n - 2)
        streamed = [name for name in names if name not in cut and self.chance(40)]
        self.tiles = [name for name in names if name not in cut and name not in streamed]
        self.visible, self.needed = [*cut, *self.tiles], cut
        self.lets()
        if streamed:
            self.stream(streamed)
        self.lets()
        for _ in range(self.upto(1, 2)):
            self.store(self.visible)
        return b.kernel(check=False)

    def shape(self, most: int) -> tuple[Index, ...]:
        rank = int(self.draw(st.integers(0, most)))
        return tuple(self.pick(DIMS) for _ in range(rank))

    # ---- statements ----------------------------------------------------------------------------

    def lets(self) -> None:
        for _ in range(self.upto(0, 3)):
            if self.chance(20):
                self.b.position(self.fresh("p"), self.value(i64, 1), self.pick((n, m, 3)))
                continue
            dtype = self.pick(REGISTERS)
            ref = self.b.let(self.fresh("v"), self.value(dtype, 2))
            if dtype == f32 and self.chance(10):
                kept = If(Partial(self.value(bool_, 1)), self.value(f32, 1), ref)
                self.b.let(ref.name, kept)

    def stream(self, streamed: list[str]) -> None:
        b = self.b
        blocks = [Block(name, self.pick((1, 2, 64, None))) for name in streamed]
        if self.chance(30):
            blocks[0] = Block(blocks[0].axis, blocks[0].size, self.stop())
        if self.chance(20):
            blocks[0] = replace(blocks[0], start=self.stop())
        axes = [a for a in self.visible if self.chance(70)]
        states = [
            b.state(self.fresh("s"), self.number(d), *axes, dtype=d)
            for d in (f32, i64, f32)[: self.upto(0, 3)]
        ]
        outer = self.visible, self.tiles, self.needed
        self.visible, self.needed = [*outer[0], *streamed], [*outer[2], *streamed]
        self.tiles = [*outer[1], *streamed]
        with b.stream(*blocks, states=states, where=self.useful()):
            self.lets()
            for state in states:
                fold = self.value(state.dtype or f32, 2)
                loose = tuple(b.axes_of(fold) - set(axes))
                if loose and state.dtype is not None:
                    fold = b.reduce("max", fold, *loose)
                ref = b.update(state.name, b.apply("add", Ref(state.name), fold))
                if self.chance(30):
                    b.let(self.fresh("v"), b.apply("mul", ref, 2))
            if not states or self.chance(50):
                self.store(self.visible)
        self.visible, self.tiles, self.needed = outer

    def stop(self) -> Value:
        if self.chance(50) and self.visible:
            return self.b.apply("add", self.edge(self.pick(self.visible)), 1)
        return self.b.as_value(self.pick((n, n - 1, 2, n * m)), i64)

    def useful(self) -> Value | None:
        """What a stream may ask of every block."""
        if self.chance(75):
            return None
        return self.b.apply("gt", self.edge(self.pick(self.visible)), self.pick((0, 1, 2)))

    def edge(self, name: str) -> Value:
        return Extreme(IndexValue(self.b.axes[name].index, i64), bool(self.pick((False, True))))

    def store(self, axes: list[str]) -> None:
        b = self.b
        dtype: DType = self.pick(MEMORY)
        v = self.value(dtype.compute, 2)
        wanted = b.axes_of(v) | set(self.needed)
        stored_axes = [a for a in axes if (a in wanted and not self.chance(3)) or self.chance(15)]
        shape = tuple(b.axes[a].extent for a in stored_axes)
        index: tuple[Index, ...] = tuple(b.axes[a].index for a in stored_axes)
        if self.chance(8) and stored_axes:
            index = (index[0] + 1, *index[1:])
        elif self.chance(5):
            shape, index = (self.pick(DIMS),), (self.position_in(n),)
        elif self.chance(10) and len(stored_axes) == 2:
            shape, index = (shape[0] * shape[1],), (index[0] * shape[1] + index[1],)
        where = self.value(bool_, 1) if self.chance(15) else None
        b.store(b.output(self.fresh("y"), dtype, shape), index, v, where)

    # ---- indices and values --------------------------------------------------------------------

    def position_in(self, extent: Index) -> Index:
        """An index that is mostly inside an extent."""
        b = self.b
        same = [b.axes[a].index for a in self.visible if b.axes[a].extent == extent]
        bound = [k for k in b.env.names.values() if k.index is not None and k.index == extent]
        if same and self.chance(70):
            e: Index = self.pick(same)
            form = self.upto(0, 7)
            late: tuple[Index, ...] = (e, e, e, e, extent - 1 - e, e + 1, e - 1, e // 2)
            return late[form]
        if bound and self.chance(50):
            name = next(x for x, k in b.env.names.items() if k.index == extent)
            return value(name, extent)
        if not self.visible:
            return 0
        other = b.axes[str(self.pick(self.visible))].index
        forms: tuple[Index, ...] = (
            0,
            mod(other, extent),
            minimum(other, extent - 1),
            other // 2,
            other * 2 - 1,
            mod(maximum(other - 1, 0), extent),
            other,
            extent - 1,
        )
        return self.pick(forms)

    def number(self, dtype: DType) -> Value:
        if dtype == bool_:
            return Const(self.chance(50), bool_)
        if not dtype.is_float:
            if dtype == i32 and self.chance(10):
                return Const(NO_EXPONENT, i32)
            return Const(self.upto(0, 9), dtype)
        return Const(self.pick(NUMBERS), dtype)

    def load(self, param: Param) -> Value:
        index = tuple(self.position_in(d) for d in param.shape)
        other = 0 if self.chance(40) and param.shape else None
        return self.b.load(param, *index, other=other)

    def value(self, dtype: DType, depth: int) -> Value:
        b = self.b
        form = self.upto(0, 9) if depth else 0
        if form <= 1:
            return self.leaf(dtype)
        if form <= 4:
            op, dtypes = self.pick(operators()[dtype])
            return b.apply(op, *(self.value(d, depth - 1) for d in dtypes))
        if form == 5 and self.tiles:
            return self.fold(dtype, depth)
        if form == 6:
            condition = self.value(bool_, depth - 1)
            return If(condition, self.value(dtype, depth - 1), self.value(dtype, depth - 1))
        if form == 7 and dtype.is_float:
            return b.cast(self.value(self.pick(REGISTERS), depth - 1), dtype)
        if form == 8 and self.visible and dtype in (i64, f32, i32):
            return b.as_value(self.position_in(n) if self.chance(50) else n * 2, dtype)
        if form == 9 and dtype == f32:
            return b.cast(self.load(self.pick(b.inputs)), f32)
        return self.leaf(dtype)

    def fold(self, dtype: DType, depth: int) -> Value:
        b = self.b
        over = str(self.pick(self.tiles))
        inner = self.value(dtype, depth - 1)
        name = str(self.pick(COMBINES))
        row = COMBINES[name]
        if self.chance(15) and dtype in (f32, f64, i64):
            return b.dot(inner, self.value(dtype, depth - 1), over, dtype=dtype)
        try:
            if row.result(dtype) != dtype:
                return inner
        except SmeltError:
            return inner
        if row.prefix is not None and self.chance(20):
            return b.scan(name, inner, over, dtype=dtype)
        return b.reduce(name, inner, over, dtype=dtype)

    def leaf(self, dtype: DType) -> Value:
        b = self.b
        names = [x for x, k in b.env.names.items() if k.dtype == dtype and k.index is None]
        if names and self.chance(40):
            return Ref(str(self.pick(names)))
        params = [p for p in b.inputs if p.dtype.compute == dtype]
        if params and self.chance(70):
            return self.load(self.pick(params))
        return self.number(dtype)


@st.composite
def kernels(draw: Draw) -> Kernel:
    """One random kernel."""
    return Generator(draw).kernel()
