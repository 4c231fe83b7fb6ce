"""Unrolled reductions over small windows, and rows inside of a larger array."""

from __future__ import annotations

import numpy as np
import pytest
from tests.codegen.llvm.guard_pages import run_guarded
from tests.codegen.llvm.single_kernel import RUNNABLE, fuse, one_cluster

from smelt import lower
from smelt.codegen.llvm.program import program
from smelt.codegen.llvm.schedule.build_nests import schedule
from smelt.codegen.llvm.schedule.unroll_small_reductions import unroll_short_dots
from smelt.graph.text import parse
from smelt.kernel.size_constants import with_sizes
from smelt.machine.target import Isa, Target
from smelt.types.expr import coefficient

POOL = """graph f(x: {t}[b,h,w]) {{
  v0 = pad(x) {{low=(0, {p}, {p}), high=(0, {p}, {p}), value={fill}}}
  v1 = window(v0) {{axis=1, extent={u}, step={s}}}
  v2 = window(v1) {{axis=2, extent={u}, step={s}}}
  v3 = reduce.{fold}(v2) {{axes=(3, 4)}}
  return v3
}}"""


def pool(fold: str = "max", u: int = 3, s: int = 2, p: int = 1, t: str = "f32") -> str:
    fill = "-inf" if t == "f32" else "-128" if t == "i8" else "false"
    return POOL.format(fold=fold, u=u, s=s, p=p, t=t, fill=fill)


def kinds(text: str) -> set[str]:
    """What kinds of values the code of a graph is made of."""
    (phase,) = program(
        lower.run(one_cluster(parse(text)), "eager", dict.fromkeys("bhwnc", 64))
    ).phases
    return {type(i).__name__.lower() for i in phase.items}


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize(("u", "s", "p"), [(2, 2, 0), (3, 2, 1), (3, 1, 1), (5, 3, 2), (3, 3, 0)])
def test_small_windows_are_elementwise(u: int, s: int, p: int, isa: Isa) -> None:
    text = pool(u=u, s=s, p=p)
    assert "reduce" not in kinds(text)
    kernel = fuse(text, isa)
    rng = np.random.default_rng(0)
    for h, w in ((5, 5), (7, 33), (18, 67), (6, 130)):
        x = rng.standard_normal((2, h, w)).astype(np.float32)
        x.flat[rng.integers(0, x.size, 2)] = np.nan
        for at_end in (False, True):
            (actual,) = run_guarded(kernel, [x], at_end=at_end)
            np.testing.assert_array_equal(actual, kernel.expected(x)[0])


@pytest.mark.parametrize(
    ("u", "s", "p", "written"), [(3, 2, 1, True), (2, 2, 0, True), (4, 4, 0, False)]
)
def test_windows_along_the_axis_of_results(u: int, s: int, p: int, written: bool) -> None:
    """Channels last: vectors run along them, and every step is a load or what is beyond."""
    text = pool(u=u, s=s, p=p).replace("[b,h,w]", "[b,h,w,c]")
    text = text.replace(f"(0, {p}, {p})", f"(0, {p}, {p}, 0)").replace("(3, 4)", "(4, 5)")
    assert ("reduce" not in kinds(text)) == written
    kernel = fuse(text)
    for c in (1, 5, 16, 67):
        x = np.random.default_rng(c).standard_normal((2, 7, 9, c)).astype(np.float32)
        x.flat[[0, -1]] = np.nan, np.inf
        (actual,) = run_guarded(kernel, [x], at_end=True)
        np.testing.assert_array_equal(actual, kernel.expected(x)[0])


@pytest.mark.parametrize(("u", "s", "fold"), [(2, 2, "max"), (3, 1, "max"), (2, 2, "sum")])
def test_vectors_run_along_the_results(u: int, s: int, fold: str) -> None:
    kernel = lower.run(one_cluster(parse(pool(fold, u=u, s=s, p=0))), "eager", {})
    (phase,) = program(kernel).phases
    (nest,) = schedule(phase, Target.for_isa("avx512")).nests
    assert nest.vector == nest.order[-1]
    assert coefficient(phase.stores[0].access.offset, nest.vector or "") == 1


@pytest.mark.parametrize(("fold", "t"), [("max", "i8"), ("any", "bool")])
def test_other_monoids(fold: str, t: str) -> None:
    text = pool(fold, t=t)
    assert "reduce" not in kinds(text)
    kernel = fuse(text)
    x = np.random.default_rng(1).integers(0, 2, (2, 9, 21)).astype("?" if t == "bool" else "b")
    np.testing.assert_array_equal(kernel(x)[0], kernel.expected(x)[0])


@pytest.mark.parametrize(
    "text",
    [
        pool("sum", s=1, p=0, t="f64"),  # a sum that carries its error along
        pool(u=6, s=1, p=0),  # too many steps
        "graph f(x: f32[n,20]) {\n y = reduce.max(x) {axes=(1,)}\n return y\n}",  # long rows
    ],
)
def test_what_is_looped_over(text: str) -> None:
    assert "reduce" in kinds(text)


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize("t", ["f32", "f64", "f16", "i8", "u32", "bool"])
@pytest.mark.parametrize("fold", ["argmax", "argmin"])
def test_argmax_of_short_rows_is_unrolled(isa: Isa, t: str, fold: str) -> None:
    """The first of equals, or the first NaN."""
    text = f"graph f(x: {t}[n,d]) {{\n y = reduce.{fold}(x) {{axes=(1,)}}\n return y\n}}"
    for d in (2, 7, 10):
        kernel = fuse(text, isa, n=200, d=d)
        (phase,) = program(with_sizes(kernel.kernel, {"k": d, "d": d})).phases
        assert "reduce" not in {type(i).__name__.lower() for i in phase.items}
        x = (
            np.random.default_rng(d)
            .integers(0, 4, (133, d))
            .astype(kernel.graph.inputs[0].type.dtype.numpy)
        )
        if x.dtype.kind == "f":
            x[np.random.default_rng(0).random(x.shape) < 0.1] = np.nan
            x[5] = -np.inf
        for at_end in (False, True):
            (actual,) = run_guarded(kernel, [x], at_end=at_end)
            np.testing.assert_array_equal(actual, kernel.expected(x)[0])


@pytest.mark.parametrize(
    ("spec", "left", "right"),
    [
        ("n,k; k -> n", "nk", "k"),
        ("k; n,k -> n", "k", "nk"),
        ("n,k; n,k -> n", "nk", "nk"),
        ("b,n,k; b,k -> b,n", "bnk", "bk"),
    ],
)
def test_long_rows_are_read_along_themselves(spec: str, left: str, right: str) -> None:
    """Long rows are read contiguously.

    If they were unrolled, each lane would gather from as many cache lines as a vector has lanes.
    """

    def text(k: int | str) -> str:
        x, y = (",".join(str(k) if a == "k" else a for a in side) for side in (left, right))
        return (
            f"graph f(x: f32[{x}], y: f32[{y}]) {{\n"
            f'  s = contract(x, y) {{spec="{spec}"}}\n  return s\n}}'
        )

    def left_of(k: int) -> set[str]:
        """What is left where the size is a number at a call."""
        (phase,) = program(with_sizes(kernel.kernel, {"k": k})).phases
        phase = unroll_short_dots(phase)
        return {type(i).__name__.lower() for i in phase.items}

    kernel = fuse(text("k"))
    assert "dot" not in kinds(text(8)) | left_of(8) | left_of(12)
    for k in (16, 48, 64):
        assert "dot" in kinds(text(k)) & left_of(k)
        x, y = (
            np.ones([{"n": 33, "b": 3, "k": k}[a] for a in side], "f4") for side in (left, right)
        )
        assert (kernel(x, y)[0] == k).all()


@pytest.mark.parametrize("fold", ["sum", "max"])
def test_what_all_rows_share_does_not_count(fold: str) -> None:
    """Short rows times weights are unrolled like rows alone."""
    text = (
        "graph f(x: f32[n,{k}], w: f32[{k}]) {{\n  a = expand(w) {{shape=(n, {k})}}\n"
        "  b = mul(x, a)\n  s = reduce.{fold}(b) {{axes=(1,)}}\n  return s\n}}"
    )
    assert "reduce" not in kinds(text.format(k=9, fold=fold))
    for k in (1, 2, 9, 10, 11):
        kernel = fuse(text.format(k=k, fold=fold))
        rng = np.random.default_rng(k)
        for n in (1, 17, 300):
            x, w = rng.standard_normal((n, k), "f4"), rng.standard_normal(k, "f4")
            for at_end in (False, True):
                (actual,) = run_guarded(kernel, [x, w], at_end=at_end)
                np.testing.assert_allclose(actual, kernel.expected(x, w)[0], rtol=1e-6, atol=1e-6)


COLOURS = """graph f(x: {t}[n,{k}], w: f32[{c},{k}]) {{
  a = cast(x) {{dtype=f32}}
  b = contract(a, w) {{spec="n,k; c,k -> n,c"}}
  d = {after}(b)
  return d
}}"""


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize(
    ("t", "after", "slim"),
    [
        ("u8", "abs", True),
        ("f16", "exp", True),
        ("f32", "tanh", True),
        ("f32", "abs", False),
    ],
)
def test_few_columns_of_computed_rows_are_written_out(
    t: str, after: str, slim: bool, isa: Isa
) -> None:
    """Few columns of computed rows are unrolled.

    Vectors run along the rows, and each column's functions are computed once; rows in place that
    nothing expensive reads have tiles of their own.
    """
    for c, k in ((3, 3), (4, 8), (2, 5), (5, 3)):
        kernel = fuse(COLOURS.format(t=t, c=c, k=k, after=after), isa, n=500)
        (phase,) = program(kernel.kernel).phases
        phase = unroll_short_dots(phase)
        assert ("dot" not in {type(i).__name__.lower() for i in phase.items}) == (slim and c <= 4)
        rng = np.random.default_rng(c)
        for n in (1, 17, 300):
            x = rng.integers(0, 3, (n, k)).astype(kernel.graph.inputs[0].type.dtype.numpy)
            w = rng.standard_normal((c, k), "f4")
            for at_end in (False, True):
                (actual,) = run_guarded(kernel, [x, w], at_end=at_end)
                np.testing.assert_allclose(actual, kernel.expected(x, w)[0], rtol=1e-5, atol=1e-5)


def test_functions_that_columns_share_are_computed_once() -> None:
    """Short rows do not become one run, whose lanes would compute them for each column."""
    text = """graph f(x: f32[n,3], s: f32[n,1]) {{
      e = {0}(s)
      w = expand(e) {{shape=(n, 3)}}
      y = mul(x, w)
      return y
    }}"""
    for function, columns in (("exp", 3), ("abs", 1)):
        kernel = lower.run(one_cluster(parse(text.format(function))), "eager", {})
        (phase,) = program(kernel).phases
        (nest,) = schedule(phase, Target.for_isa("avx512")).nests
        assert len(nest.stores) == columns


LAYERS = """graph f(x: f32[n,{k}], a: f32[{k},{c}], b: f32[{c},2]) {{
  u = contract(x, a) {{spec="n,k; k,c -> n,c"}}
  v = tanh(u)
  y = contract(v, b) {{spec="n,c; c,d -> n,d"}}
  return y
}}"""


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize(("k", "c", "written"), [(3, 8, True), (8, 8, True), (3, 9, False)])
def test_layers_of_small_networks_stay_in_registers(
    k: int, c: int, written: bool, isa: Isa
) -> None:
    """Columns that are summed again are not stored side by side: there may be eight of them."""
    kernel = fuse(LAYERS.format(k=k, c=c), isa, n=500)
    (phase,) = program(kernel.kernel).phases
    phase = unroll_short_dots(phase)
    assert ("dot" not in {type(i).__name__.lower() for i in phase.items}) == written
    rng = np.random.default_rng(c)
    for n in (1, 17, 300):
        inputs = [rng.standard_normal(s, "f4") for s in ((n, k), (k, c), (c, 2))]
        for at_end in (False, True):
            (actual,) = run_guarded(kernel, inputs, at_end=at_end)
            np.testing.assert_allclose(actual, kernel.expected(*inputs)[0], rtol=1e-5, atol=1e-5)
