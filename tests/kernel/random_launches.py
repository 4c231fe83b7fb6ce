"""Random kernels of the forms that a GPU runs as several launches, in tiles or persistent loops.

    @given(divided_kernels())
    def test(kernel): ...

Results do not depend on the blocks that a stream or a grid is cut into, but for rounding. Values
are those of `random_kernels`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st
from tests.kernel.random_kernels import MEMORY, Generator, operators

from smelt.kernel.ir import NO_EXPONENT, Block, Kernel, Let, Param, Ref, Split, Store, Value
from smelt.ops.combine import COMBINES
from smelt.types.dtype import DType, bf16, bool_, f16, f32, f64, i8, i32, i64
from smelt.types.expr import Index, minimum, mod, size

Draw = Any
n, m, k = size("n"), size("m"), size("k")
SUMMED = {
    f32: ("sum", "max", "min"),
    f64: ("sum", "max"),
    i64: ("sum", "max", "min"),
    bool_: ("any", "all"),
}
PARTS = (2, 3, 5, 18)
"""Parts of an axis: few are merged one after another, more by a reduction."""
OPERANDS = (bf16, f16, i8, f32, bf16, f16)


class DividedGenerator(Generator):
    """Draws one kernel of a form; methods are named after their forms."""

    hidden: Sequence[str] = ()
    """States that no value and no result may read."""
    FORMS = ("parts", "scans", "product", "split_product", "carried", "map", "scatter", "whole")

    def form(self, name: str) -> Kernel:
        self.b.input("a", f32, (n, m))
        getattr(self, name)()
        return self.b.kernel(check=False)

    def axes(self, *names: str) -> None:
        for name in names:
            self.b.axis(name)

    def operand(self, name: str, dtype: DType, *axes: str) -> Param:
        """Add an input along axes in any order."""
        order = self.draw(st.permutations(axes))
        return self.b.input(name, dtype, tuple(self.b.axes[a].extent for a in order))

    def element(self, param: Param, *axes: str) -> Value:
        """Load the element of an input at the axes of its dimensions."""
        by_extent = {self.b.axes[a].extent: self.b.axes[a].index for a in axes}
        return self.b.load(param, *(by_extent[d] for d in param.shape))

    def hide(self, *axes: str) -> None:
        """Compute no value over axes: it would depend on how they are cut."""
        self.tiles = [a for a in self.tiles if a not in axes]

    # ---- values ----------------------------------------------------------------------------------

    def lets(self) -> None:
        """Bind values of types that there are elements of."""
        for _ in range(self.upto(0, 2)):
            self.b.let(self.fresh("v"), self.value(self.type_at_hand(), 2))

    def type_at_hand(self) -> DType:
        """A type that a parameter or a name has."""
        names = (x.dtype for x in self.b.env.names.values() if x.index is None)
        every = [*(p.dtype.compute for p in self.b.inputs), *names]
        return self.pick([d for d in every if d in operators()])

    def leaf(self, dtype: DType) -> Value:
        """A name, an element or a number; no state where parts join."""
        if not self.hidden:
            return super().leaf(dtype)
        env = self.b.env
        self.b.env = env.child()
        try:
            self.b.env.names = {x: v for x, v in env.names.items() if x not in self.hidden}
            return super().leaf(dtype)
        finally:
            self.b.env = env

    def load(self, param: Param) -> Value:
        """Load an element; some are outside of the array and have another value."""
        if self.chance(30) and param.shape:
            index = tuple(self.index_near(d) for d in param.shape)
            return self.b.load(param, *index, other=self.pick((0, 1)))
        return self.b.load(param, *map(self.index_of, param.shape))

    def index_near(self, extent: Index) -> Index:
        """An index of which some positions are outside of an extent, which may be 0."""
        if not self.visible:
            return 0
        same = [self.b.axes[a].index for a in self.visible if self.b.axes[a].extent == extent]
        e: Index = self.pick(same or [self.b.axes[a].index for a in self.visible])
        return self.pick((e, e, extent - 1 - e, e + 1, e - 1, e // 2, e * 2 - 1))

    def index_of(self, extent: Index) -> Index:
        """An index inside of an extent."""
        same = [self.b.axes[a].index for a in self.visible if self.b.axes[a].extent == extent]
        other = self.b.axes[str(self.pick(self.visible))].index if self.visible else 0
        if same and self.chance(80):
            e: Index = self.pick(same)
            return self.pick((e, e, e, extent - 1 - e))
        return self.pick((mod(other, extent), minimum(other, extent - 1)))

    def results(self, values: Sequence[Value] = ()) -> None:
        """Store one or two results of the visible axes; some compute with `values`."""
        for _ in range(self.upto(1, 3)):
            v = self.pick(values) if values and self.chance(70) else None
            rows = [] if v is None else sorted(self.b.axes_of(v).intersection(self.tiles))
            if rows and self.chance(50):
                least = "any" if self.b.dtype_of(v) == bool_ else "max"
                v = self.b.reduce(least, v, self.pick(rows), dtype=self.b.dtype_of(v))
            if v is not None and self.chance(50):
                dtype = self.b.dtype_of(v)
                op = self.pick(("or", "and") if dtype == bool_ else ("add", "mul", "max", "sub"))
                v = self.b.apply(op, v, self.value(dtype, 2))
            self.store(self.visible, v)

    def store(self, axes: list[str], v: Value | None = None) -> None:
        """Store a value along its axes, in any order."""
        b = self.b
        dtype: DType = self.type_at_hand() if v is None else b.dtype_of(v)
        v = self.value(dtype.compute, 2) if v is None else v
        if dtype not in MEMORY:
            v, dtype = b.cast(v, f32), f32
        if dtype == f32 and self.chance(30):
            dtype = self.pick((bf16, f16))
        wanted = b.axes_of(v) | set(self.needed)
        stored = self.draw(st.permutations([a for a in axes if a in wanted or self.chance(10)]))
        if self.chance(60):
            stored = [a for a in axes if a in stored]
        shape = tuple(b.axes[a].extent for a in stored)
        b.store(b.output(self.fresh("y"), dtype, shape), [b.axes[a].index for a in stored], v)

    # ---- reductions in parts, and streams that carry rows ----------------------------------------

    def parts(self) -> None:
        """Draw a stream in parts, its merge, and what is computed from the merged states."""
        parts = self.pick((*PARTS, None))
        rows = self.rows(("n", "m")[: self.upto(0, 2)], "k")
        split = [] if parts is None else [Split("p", "k", parts)]
        self.b.grid(*(Block(a, self.pick((1, 1, 2, 64))) for a in self.needed), *split)
        self.lets()
        start, stop = (self.pick((None, None, None, *e)) for e in ((1, n), (k - 1, n, 2)))
        ends = [None if e is None else self.b.as_value(e, i64) for e in (start, stop)]
        block = Block("k", self.pick((1, 2, 64)), ends[1], None if parts is None else "p", ends[0])
        states = self.carry(block, rows)
        if parts is not None:
            self.b.merge("p", *states)
        self.lets()
        self.results([Ref(s) for s in states if s not in self.hidden])

    def rows(self, names: Sequence[str], *others: str) -> list[str]:
        """Add axes of rows, some of the grid, and inputs along them and others."""
        self.axes(*names, *others)
        for x in range(self.upto(1, 2)):
            kept = [a for a in names if self.chance(70)]
            self.operand(f"x{x}", self.pick(MEMORY), *kept, *others)
        self.needed = [a for a in names if self.chance(35)]
        self.tiles = [a for a in names if a not in self.needed]
        self.visible = [*self.needed, *self.tiles]
        return [*names]

    def carry(self, block: Block, rows: Sequence[str]) -> list[str]:
        """Add a stream with states that parts can join; return their names."""
        b, axis = self.b, block.axis
        kinds = [self.pick(list(SUMMED)) for _ in range(self.upto(1, 3))]
        folds = [(self.fresh("s"), d, self.pick(SUMMED[d]), self.some(rows)) for d in kinds]
        states = [b.state(s, COMBINES[c].identity(d), *axes, dtype=d) for s, d, c, axes in folds]
        online = self.some(rows) if self.chance(30) else None
        if online is not None:
            states += [
                b.state("r", NO_EXPONENT, *online, dtype=i32),
                b.state("l", 0.0, *online, dtype=f32),
            ]
        outer = self.visible, self.needed
        self.visible, self.needed = [*outer[0], axis], [*outer[1], axis]
        self.hidden = () if block.size == 1 and not block.part else [s.name for s in states]
        with b.stream(block, states=states):
            self.lets()
            for s, d, c, axes in folds:
                b.update(s, b.apply(COMBINES[c].scalar, Ref(s), self.folded(c, d, axis, axes)))
            if online is not None:
                self.rescale(axis, online)
            if block.start is None and block.stop is None and self.chance(50):
                self.store(self.visible)
        self.visible, self.needed = outer
        self.hidden = ("r",)  # beside NaN, whose exponent is any, it depends on the blocks
        return [s.name for s in states]

    def some(self, axes: Sequence[str]) -> list[str]:
        return [a for a in axes if self.chance(60)]

    def folded(self, combine: str, dtype: DType, axis: str, axes: Sequence[str]) -> Value:
        """A reduction along an axis, of values along others."""
        b = self.b
        v = self.value(dtype, 2)
        loose = b.axes_of(v) - {axis, *axes, *self.needed}
        if loose:
            least = "max" if dtype != bool_ else "any"
            v = b.reduce(least, v, *sorted(loose), dtype=dtype)
        return b.reduce(combine, v, axis, dtype=dtype)

    def rescale(self, axis: str, axes: Sequence[str]) -> None:
        """Update a sum of powers of two that is kept relative to the largest exponent."""
        b = self.b
        v = self.value(f32, 1)
        loose = b.axes_of(v) - {axis, *axes, *self.needed}
        v = b.reduce("max", v, *sorted(loose)) if loose else v
        v = b.let(self.fresh("v"), b.apply("min", b.apply("max", v, -50.0), 50.0))
        largest = b.cast(b.apply("ceil", b.reduce("max", v, axis)), i32)
        r = b.update("r", b.apply("max", Ref("r"), largest))
        w = b.apply("exp2", b.apply("sub", v, b.cast(r, f32)))
        scaled = b.apply("ldexp", Ref("l"), b.apply("sub", Ref("r"), r))
        b.update("l", b.apply("add", scaled, b.reduce("sum", w, axis)))

    def carried(self) -> None:
        """Draw a stream that carries whole rows, and stores some of its own."""
        rows = self.rows(("m", "j"), "n")
        self.b.grid(*(Block(a, 1) for a in self.needed))
        self.lets()
        states = self.carry(Block("n", self.pick((1, 2, None))), rows)
        self.results([Ref(s) for s in states if s not in self.hidden])

    # ---- scans -----------------------------------------------------------------------------------

    def scans(self) -> None:
        """Draw scans of rows, and what is computed from them."""
        self.rows(("n", "m")[: self.upto(0, 2)], "k")
        b = self.b
        self.needed, self.tiles = [*self.visible], []
        b.grid(*(Block(a, 1) for a in self.needed))
        self.visible = [*self.needed, "k"]
        self.lets()
        scans: list[Value] = []
        for _ in range(self.upto(1, 2)):
            dtype = self.pick((f32, f64, i64))
            combine = self.pick(("sum", "max", "min", "prod") if dtype != i64 else ("sum", "max"))
            scan = b.scan(combine, self.value(dtype, 2), "k", dtype=dtype)
            scans.append(b.let(self.fresh("v"), scan))
        self.lets()
        self.needed = [*self.needed, "k"]
        self.results(scans)

    # ---- products --------------------------------------------------------------------------------

    def product(self) -> None:
        """Draw products, of batches some, with what is computed from them."""
        b = self.b
        batch = ["j"] if self.chance(15) else []
        self.axes(*batch, "m", "n", "k")
        b.grid(*(Block(a, self.pick((1, 1, 64))) for a in (*batch, "m")), Block("n", 1))
        self.needed = self.visible = [*batch, "m", "n"]
        for _ in range(self.upto(1, 2)):
            b.let(self.fresh("v"), self.contraction(batch, self.pick(OPERANDS)))
        self.hide("k")
        self.lets()
        names = [Ref(x.name) for x in b.body if isinstance(x, Let)]
        self.results(names)

    def contraction(self, batch: Sequence[str], dtype: DType) -> Value:
        """A product of two inputs of a type, which may be computed first."""
        b = self.b
        number = len(b.inputs)
        left, right = (
            self.operand(f"{x}{number}", dtype, *self.some(batch), axis, "k")
            for x, axis in (("x", "m"), ("w", "n"))
        )
        sides = [
            b.cast(self.element(p, *batch, axis, "k"), i32 if dtype == i8 else f32)
            for p, axis in ((left, "m"), (right, "n"))
        ]
        if self.chance(20):
            sides[0] = b.apply("add", sides[0], 1)
        if self.chance(15):
            sides.reverse()
        return b.dot(*sides, "k", dtype=i32 if dtype == i8 else f32)

    def split_product(self) -> None:
        """Draw a product whose sums are in parts."""
        b, parts = self.b, self.pick(PARTS)
        self.axes("m", "n", "k")
        b.grid(*(Block(a, self.pick((1, 64))) for a in ("m", "n")), Split("p", "k", parts))
        self.needed = self.visible = ["m", "n"]
        dtype = self.pick(OPERANDS)
        total = i32 if dtype == i8 else f32
        with b.stream(
            Block("k", self.pick((16, 64)), None, "p"),
            states=[b.state("s", 0, "m", "n", dtype=total)],
        ):
            b.update("s", b.apply("add", Ref("s"), self.contraction((), dtype)))
        b.merge("p", "s")
        self.lets()
        self.results([Ref("s")])

    # ---- maps and scatters -----------------------------------------------------------------------

    def map(self) -> None:
        """Draw an elementwise kernel of several axes, whose arrays have them in any order."""
        axes = self.draw(st.permutations(["n", "m", "j"]))[: self.upto(2, 3)]
        self.axes(*axes)
        b = self.b
        for x in range(self.upto(1, 3)):
            p = self.operand(f"x{x}", self.pick(MEMORY), *(self.some(axes) if x else axes))
            self.visible = [*axes]
            b.let(self.fresh("v"), self.element(p, *axes))
        b.grid(*(Block(a, 1) for a in axes[:-1]), Block(axes[-1], self.pick((1, 64, 1024))))
        self.needed = [*axes]
        self.lets()
        self.results()

    def scatter(self) -> None:
        """Draw values that are combined at computed places, some under a condition."""
        b = self.b
        self.axes("n", "k")
        ids = b.input("ids", self.pick((i32, i64)), (k,))
        dtype = self.pick((i32, i64, f32, f64))
        columns = ["m"] if self.chance(60) else []
        self.axes(*columns)
        p = self.operand("x", dtype, *columns, "k")
        y = b.output("y", dtype, (n, *(m for _ in columns)))
        index = [b.axes[a].index for a in columns]
        first = (
            self.load(b.inputs[0])
            if dtype == f32 and self.chance(30)
            else b.as_value(self.upto(0, 2), dtype)
        )
        b.store(y, [b.axes["n"].index, *index], first)
        self.visible = self.needed = [*columns, "k"]
        place = b.load(ids, b.axes["k"].index)
        inside = b.apply("lt", b.cast(place, i64), b.as_value(n, i64))
        where = b.apply("and", inside, b.apply("ge", b.cast(place, i64), b.as_value(0, i64)))
        with b.stream(Block("k", 1), where=where):
            at = b.position("at", b.cast(place, i64), n)
            v = self.element(p, *columns, "k")
            join = self.pick(("add", "add", "max", "min"))
            b.body.append(Store("y", (at, *index), v, None, join))

    # ---- whole arrays ----------------------------------------------------------------------------

    def whole(self) -> None:
        """Draw a reduction of whole arrays, or a map of them, as those of many arrays are."""
        b = self.b
        self.axes("n", "m")
        at = b.axes["n"].index, b.axes["m"].index
        for x in range(self.upto(1, 2)):
            p = b.input(f"x{x}", self.pick(MEMORY), (n, m))
            b.let(f"v{x}", b.load(p, *at))
        b.let("va", b.load(b.inputs[0], *at))
        self.visible = []
        b.let("w", self.pointwise(f32))
        if self.chance(30):
            b.grid(Block("n", 1), Block("m", 1024))
            b.store(b.output("y", f32, (n, m)), at, Ref("w"))
            return
        late = [self.reduction(x) for x in range(self.upto(1, 2))]
        for x, v in enumerate(late):
            b.store(b.output(f"y{x}", b.dtype_of(v), ()), (), v)

    def pointwise(self, dtype: DType) -> Value:
        """A value of the names that are bound, without loads of its own."""
        b = self.b
        names = [Ref(x) for x, of in b.env.names.items() if of.index is None]
        v = b.cast(self.pick(names), dtype)
        for _ in range(self.upto(0, 2)):
            other = b.cast(self.pick(names), dtype)
            v = b.apply(self.pick(("add", "mul", "max", "min", "sub")), v, other)
        return v

    def reduction(self, number: int) -> Value:
        b = self.b
        combine = self.pick(("sum", "max", "min", "prod", "any", "all"))
        v = self.pointwise(f32)
        if combine in ("any", "all"):
            v = b.apply("gt", v, 0.0)
        total = b.let(f"t{number}", b.reduce(combine, v, "n", "m"))
        return (
            b.apply("sqrt", total) if combine not in ("any", "all") and self.chance(50) else total
        )


@st.composite
def divided_kernels(draw: Draw, form: str | None = None) -> Kernel:
    """One random kernel, of a form if that is said."""
    generator = DividedGenerator(draw)
    return generator.form(form or generator.pick(DividedGenerator.FORMS))
