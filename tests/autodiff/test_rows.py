"""Every row's derivative: against differences in float64, every other float type against that."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pytest
from tests.autodiff.differences import check, gradients, graph_of, seeds_for
from tests.ops.test_scalar_derivative import DOMAIN

from smelt.errors import GradientError
from smelt.graph.ir import Graph
from smelt.ops.combine import COMBINES
from smelt.ops.create import Input
from smelt.ops.scalar import SCALARS
from smelt.types.dtype import bf16, f16, f32

STEPS = {"floordiv", "mod", "floor", "ceil", "round", "trunc", "sign", "nextafter", "tan"}
"""Rows that jump somewhere, or nearly so: differences may straddle it."""
SMOOTH = [n for n, r in SCALARS.items() if r.derivative and n not in STEPS]


def scalar_graph(name: str, dtype: str, wide: bool) -> Graph:
    """A row on operands [3,4], or on [3,1], [4] and so on, which broadcast."""
    row = SCALARS[name]
    letters = "xyz"[: row.arity]
    shapes = ["3,1", "4", "3,4"] if wide else ["3,4"] * 3
    types = {"select": ("bool", "T", "T"), "ldexp": ("T", "i32")}.get(name, ("T",) * 3)
    inputs = ", ".join(f"{c}: {t}[{s}]" for c, t, s in zip(letters, types, shapes))
    call = f"{name}({', '.join(letters)})"
    return graph_of(f"graph f({inputs}) {{\n  v0 = {call}\n  return v0\n}}", dtype)


def scalar_arrays(name: str, graph: Graph) -> list[Any]:
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    inputs = DOMAIN.get(name)
    results: list[Any] = []
    for k, x in enumerate(graph.inputs):
        assert isinstance(x.op, Input)
        shape = tuple(int(n) for n in x.type.shape)  # type: ignore[arg-type]
        if inputs is not None:
            values = rng.choice(np.asarray(inputs[k]), shape, replace=False)
        else:
            values = rng.uniform(0.3, 3.0, shape) * rng.choice([-1, 1], shape)
        results.append(np.asarray(values).astype(x.type.dtype.numpy))
    return results


@pytest.mark.parametrize("wide", [False, True], ids=["same", "broadcast"])
@pytest.mark.parametrize("name", SMOOTH)
def test_scalar_row(name: str, wide: bool) -> None:
    graph = scalar_graph(name, "f64", wide)
    check(graph, scalar_arrays(name, graph), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [f32, f16, bf16], ids=str)
@pytest.mark.parametrize("name", SMOOTH)
def test_scalar_row_in_other_types(name: str, dtype: Any) -> None:
    """Round each step of the formula, on exactly representable arguments."""
    short = scalar_graph(name, dtype.name, wide=False)
    rounded = scalar_arrays(name, short)
    wide = scalar_graph(name, "f64", wide=False)
    exact = [a.astype(np.float64) if a.dtype == dtype.numpy else a for a in rounded]
    seeds = [s.astype(dtype.numpy) for s in seeds_for(wide, exact)]
    wanted = gradients(wide, exact, [s.astype(np.float64) for s in seeds])
    unit = 2.0 ** -{"f32": 23, "f16": 10, "bf16": 7}[dtype.name]
    for a, b in zip(gradients(short, rounded, seeds), wanted, strict=True):
        assert a.dtype == dtype.numpy
        worst = unit * 16 * np.maximum(1, np.abs(b))
        assert (np.abs(a.astype(np.float64) - b) <= worst).all(), (a, b)


FOLDS = {
    f"reduce.{name} {axes}": f"""graph f(x: T[3,2,4]) {{
  v0 = reduce.{name}(x) {{axes={axes}}}
  return v0
}}"""
    for name in ("sum", "prod", "max", "min")
    for axes in ("(0,)", "(2,)", "(0, 2)", "(0, 1, 2)", "()")
}
SCANS = {
    f"scan.{name} {axis}": f"""graph f(x: T[3,5]) {{
  v0 = scan.{name}(x) {{axis={axis}}}
  return v0
}}"""
    for name in ("sum", "prod", "max", "min")
    for axis in (0, 1)
}
VIEWS = {
    "permute": ("T[2,3,4]", "permute(x) {perm=(2, 0, 1)}"),
    "reshape": ("T[2,3,4]", "reshape(x) {shape=(6, 2, 2)}"),
    "expand": ("T[3,1]", "expand(x) {shape=(2, 3, 4)}"),
    "slice": ("T[5,6]", "slice(x) {starts=(1, 2), sizes=(3, 4), steps=(1, 1)}"),
    "slice by steps": ("T[5,7]", "slice(x) {starts=(1, 0), sizes=(2, 3), steps=(3, 2)}"),
    "slice backwards": ("T[5,7]", "slice(x) {starts=(4, 6), sizes=(5, 3), steps=(-1, -3)}"),
    "slice of nothing": ("T[5,7]", "slice(x) {starts=(2, 3), sizes=(0, 4), steps=(2, 1)}"),
    "flip": ("T[2,3]", "flip(x) {axes=(1,)}"),
    "pad": ("T[2,3]", "pad(x) {low=(1, 0), high=(2, 1), value=3.0}"),
    "window": ("T[2,7]", "window(x) {axis=1, extent=3, step=1, dilation=1}"),
    "window by steps": ("T[9,2]", "window(x) {axis=0, extent=2, step=3, dilation=2}"),
    "shear": ("T[2,5,3]", "shear(x) {shape=(2, 9, 3), axis=1, dilation=2}"),
    "shear back": ("T[9,2,3]", "shear(x) {shape=(4, 2, 3), axis=0, dilation=-2}"),
    "cast": ("T[2,3]", "cast(x) {dtype=f64}"),
}
CASES = {
    **FOLDS,
    **SCANS,
    **{
        name: f"graph f(x: {kind}) {{\n  v0 = {call}\n  v1 = mul(v0, v0)\n  return v1\n}}"
        for name, (kind, call) in VIEWS.items()
    },
    "concat": """graph f(x: T[2,3], y: T[1,3], z: T[2,3]) {
  v0 = concat(x, y, x, z) {axis=0}
  v1 = exp(v0)
  return v1
}""",
    "matmul": """graph f(x: T[3,4], y: T[4,2]) {
  v0 = contract(x, y) {spec="m,k; k,n -> m,n"}
  return v0
}""",
    "batched": """graph f(x: T[2,3,4], y: T[2,5,4]) {
  v0 = contract(x, y) {spec="b,m,k; b,n,k -> n,b,m"}
  return v0
}""",
    "axes that end alone": """graph f(x: T[2,3,4], y: T[4,5]) {
  v0 = contract(x, y) {spec="a,b,k; k,c -> a"}
  return v0
}""",
    "dot": """graph f(x: T[7], y: T[7]) {
  v0 = contract(x, y) {spec="k; k -> "}
  return v0
}""",
    "convolution": """graph f(x: T[2,3,8], w: T[4,3,3]) {
  v0 = contract(x, w) {spec="b,c,p + r; o,c,r -> b,o,p", extents=(("p", 6),)}
  return v0
}""",
    "convolution with steps": """graph f(x: T[2,9], w: T[4,3]) {
  v0 = contract(x, w) {spec="b,p*2 + r*3 - 2; o,r -> b,o,p", extents=(("p", 4),), padded=true}
  return v0
}""",
    "gather": """graph f(x: T[4,3,2], i: i64[5]) {
  v0 = gather(x, i) {first=1}
  return v0
}""",
    "gather by two": """graph f(x: T[4,3,2], i: i64[5,1], j: i64[6]) {
  v0 = gather(x, i, j) {first=0}
  return v0
}""",
    "gather of a label": """graph f(x: T[4,3], j: i64[4,1]) {
  v0 = iota() {shape=(4, 1), axis=0, dtype=i64}
  v1 = gather(x, v0, j) {first=0}
  return v1
}""",
    "scatter.add": """graph f(x: T[3,2], u: T[5,2], i: i64[5]) {
  v0 = scatter.add(x, u, i)
  v1 = mul(v0, v0)
  return v1
}""",
    "scatter.mul": """graph f(x: T[3,2], u: T[5,2], i: i64[5]) {
  v0 = scatter.mul(x, u, i)
  v1 = mul(v0, v0)
  return v1
}""",
    "scatter.max": """graph f(x: T[3,2], u: T[5,1], i: i64[5]) {
  v0 = mul(u, 0.75:T)
  v1 = scatter.max(x, v0, i)
  v2 = mul(v1, v1)
  return v2
}""",
    "scatter.min": """graph f(x: T[3,2], u: T[5,2], i: i64[5]) {
  v0 = mul(u, 0.75:T)
  v1 = scatter.min(x, v0, i)
  v2 = mul(v1, v1)
  return v2
}""",
    "scatter.put": """graph f(x: T[3,2], u: T[5,1], i: i64[5]) {
  v0 = scatter.put(x, u, i)
  v1 = mul(v0, v0)
  return v1
}""",
}


def draw(graph: Graph) -> list[Any]:
    rng = np.random.default_rng(11)
    results: list[Any] = []
    for x in graph.inputs:
        shape = tuple(int(n) for n in x.type.shape)  # type: ignore[arg-type]
        if x.type.dtype.is_integer:
            results.append(rng.integers(0, 2, shape))
        else:
            values = np.linspace(-1.9, 2.1, int(np.prod(shape)))
            results.append(rng.permutation(values).reshape(shape))
    return results


@pytest.mark.parametrize("name", CASES)
def test_tensor_row(name: str) -> None:
    graph = graph_of(CASES[name])
    check(graph, draw(graph))


@pytest.mark.parametrize("dtype", [f32, f16, bf16], ids=str)
@pytest.mark.parametrize("name", [n for n in CASES if n != "cast"])
def test_tensor_row_in_other_types(name: str, dtype: Any) -> None:
    short, wide = graph_of(CASES[name], dtype.name), graph_of(CASES[name])
    rounded = [a.astype(dtype.numpy) if a.dtype.kind == "f" else a for a in draw(wide)]
    exact = [a.astype(np.float64) if a.dtype == dtype.numpy else a for a in rounded]
    seeds = [s.astype(dtype.numpy) for s in seeds_for(wide, exact)]
    wanted = gradients(wide, exact, [s.astype(np.float64) for s in seeds])
    unit = 2.0 ** -{"f32": 23, "f16": 10, "bf16": 7}[dtype.name]
    for a, b in zip(gradients(short, rounded, seeds), wanted, strict=True):
        assert a.dtype == dtype.numpy
        # at most a dozen rounded factors and sums of at most 24 terms of the largest size
        worst = unit * 12 * max(1.0, float(np.abs(b).max(initial=0)))
        assert (np.abs(a.astype(np.float64) - b) <= worst).all(), (a, b)


def test_every_float_reduction_has_a_derivative() -> None:
    for row in COMBINES.values():
        same = row.grow in ("same", "integer") and "float" in row.kinds
        assert (row.pullback is not None) == same
        assert (row.scan_pullback is not None) == (same and row.prefix is not None)


@pytest.mark.parametrize("name", ["floordiv", "floor", "ceil", "round", "trunc", "sign"])
def test_steps_have_derivative_zero(name: str) -> None:
    graph = scalar_graph(name, "f64", wide=False)
    arrays = scalar_arrays(name, graph)
    for actual in gradients(graph, arrays, seeds_for(graph, arrays)):
        np.testing.assert_array_equal(actual, 0)


def test_remainder() -> None:
    graph = scalar_graph("mod", "f64", wide=False)
    x, y = np.full((3, 4), 7.5), np.full((3, 4), -2.0)
    by_x, by_y = gradients(graph, [x, y], [np.ones((3, 4))])
    np.testing.assert_array_equal(by_x, 1)
    np.testing.assert_array_equal(by_y, 4)  # -floor(7.5 / -2)


# ---- values at the edge ------------------------------------------------------------------------


def run(source: str, *arrays: Any) -> list[Any]:
    graph = graph_of(source)
    inputs = [np.asarray(a) for a in arrays]
    outs = seeds_for(graph, inputs)
    return gradients(graph, inputs, [np.ones_like(s) for s in outs])


def test_ties_share_evenly() -> None:
    (actual,) = run(FOLDS["reduce.max (0,)"].replace("3,2,4", "4"), [1.0, 3.0, 2.0, 3.0])
    np.testing.assert_array_equal(actual, [0, 0.5, 0, 0.5])
    one, other = run(
        "graph f(x: T[2], y: T[2]) {\n v0 = max(x, y)\n return v0\n}", [1.0, 2.0], [1.0, 1.0]
    )
    np.testing.assert_array_equal([one, other], [[0.5, 1.0], [0.5, 0.0]])


def test_nan_has_no_derivative() -> None:
    (actual,) = run(FOLDS["reduce.max (0,)"].replace("3,2,4", "3"), [1.0, np.nan, 2.0])
    assert np.isnan(actual).all()


@pytest.mark.parametrize("zeros", [0, 1, 2])
def test_products_with_zeros(zeros: int) -> None:
    x = np.array([2.0, 0.5, 3.0, -1.5, 1.25])
    x[1 : 1 + zeros] = 0
    graph = graph_of(FOLDS["reduce.prod (0,)"].replace("3,2,4", "5"))
    check(graph, [x])
    check(graph_of(SCANS["scan.prod 0"].replace("3,5", "5")), [x])


def test_running_extremes_of_equals_go_to_the_last() -> None:
    (actual,) = run(SCANS["scan.max 0"].replace("3,5", "5"), [1.0, 1.0, 0.0, 2.0, 1.0])
    np.testing.assert_array_equal(actual, [1, 2, 0, 2, 0])


def test_what_was_not_chosen_does_no_harm() -> None:
    """The derivative of log at 0 is infinite, and 0 · inf is NaN."""
    source = """graph f(x: T[3]) {
  v0 = gt(x, 0.0:T)
  v1 = log(x)
  v2 = mul(v1, v1)
  v3 = select(v0, v2, 0.0:T)
  return v3
}"""
    x = np.array([0.0, -1.0, 2.0])
    (actual,) = run(source, x)
    np.testing.assert_allclose(actual, [0, 0, np.log(2)])


def test_a_choice_behind_a_sum_does_no_harm() -> None:
    source = """graph f(x: T[2,3]) {
  v0 = reciprocal(x)
  v1 = reduce.sum(v0) {axes=(1,)}
  v2 = isinf(v1)
  v3 = select(v2, 0.0:T, v1)
  return v3
}"""
    (actual,) = run(source, np.array([[0.0, 1.0, 2.0], [1.0, 2.0, 4.0]]))
    np.testing.assert_allclose(actual, [[0, 0, 0], [-1, -0.25, -0.0625]])


def test_scatter_forgets_what_was_overwritten() -> None:
    source = "graph f(x: T[3], u: T[3], i: i64[3]) {\n v0 = scatter.put(x, u, i)\n return v0\n}"
    graph = graph_of(source)
    inputs = [np.zeros(3), np.ones(3), np.array([2, 0, 2])]
    by_x, by_u = gradients(graph, inputs, [np.array([1.0, 2.0, 3.0])])
    np.testing.assert_array_equal(by_x, [0, 2, 0])
    np.testing.assert_array_equal(by_u, [0, 1, 3])


def test_gradients_of_scattered_extremes_are_shared_evenly() -> None:
    source = "graph f(x: T[3], u: T[4], i: i64[4]) {\n v0 = scatter.max(x, u, i)\n return v0\n}"
    inputs = [[1.0, 5.0, 0.0], [1.0, 1.0, 3.0, np.nan], [0, 0, 1, 2]]
    graph = graph_of(source)
    arrays = [np.asarray(a) for a in inputs]
    by_x, by_u = gradients(graph, arrays, [np.array([3.0, 1.0, 1.0])])
    np.testing.assert_array_equal(by_x, [1, 1, np.nan])
    np.testing.assert_array_equal(by_u, [1, 1, 0, np.nan])


@pytest.mark.parametrize("zeros", [0, 1, 2, 3])
def test_gradients_of_scattered_products_with_zeros(zeros: int) -> None:
    source = "graph f(x: T[2], u: T[5], i: i64[5]) {\n v0 = scatter.mul(x, u, i)\n return v0\n}"
    u = np.array([2.0, 0.5, 3.0, -1.5, 1.25])
    u[:zeros] = 0
    check(graph_of(source), [np.array([0.5, 2.0]), u, np.array([0, 0, 1, 0, 1])])
    check(graph_of(source), [np.array([0.0, 2.0]), u, np.array([0, 0, 1, 0, 1])])


def test_what_is_stopped_has_no_derivative() -> None:
    source = "graph f(x: T[2]) {\n v0 = stop(x)\n v1 = mul(x, v0)\n return v1\n}"
    (actual,) = run(source, [3.0, 4.0])
    np.testing.assert_array_equal(actual, [3, 4])


def test_an_axis_twice_in_one_operand_is_refused() -> None:
    source = """graph f(x: T[3,3], y: T[3]) {
  v0 = contract(x, y) {spec="i,i; i -> i"}
  return v0
}"""
    with pytest.raises(GradientError, match="axis i twice"):
        run(source, np.ones((3, 3)), np.ones(3))
