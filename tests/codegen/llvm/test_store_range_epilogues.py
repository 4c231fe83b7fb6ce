"""Results computed from column ranges of a product are stored by it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.codegen.llvm.guard_pages import run_guarded
from tests.codegen.llvm.single_kernel import RUNNABLE, SingleKernel, fuse, fuse_graph
from tests.codegen.llvm.test_store_ranges import SHAPES, random

import smelt as sm
from smelt.fusion.range_outputs import range_of
from smelt.graph.interp import run as run_graph
from smelt.graph.text import parse
from smelt.graph.text import text as graph_text
from smelt.kernel.interp import run as interpret
from smelt.kernel.text_print import text
from smelt.passes.sink_slices import sink_slices
from smelt.types.expr import evaluate, product

HALVES = """graph f(x: {t}[m,k], w: {t}[k,2*n]) {{
  h = contract(x, w) {{spec="m,k; k,n -> m,n"}}
  p = slice(h) {{starts=(0, 0), sizes=(m, n), steps=(1, 1)}}
  q = slice(h) {{starts=(0, n), sizes=(m, n), steps=(1, 1)}}
  y = tanh(p)
  return y, q
}}"""
BESIDE = """graph f(x: f32[m,k], w: f32[k,n + 21], c: f32[n], d: f32[m,20], e: f32[m,1]) {
  h = contract(x, w) {spec="m,k; k,n -> m,n"}
  p = slice(h) {starts=(0, 0), sizes=(m, n), steps=(1, 1)}
  q = slice(h) {starts=(0, n), sizes=(m, 20), steps=(1, 1)}
  r = slice(h) {starts=(0, n + 20), sizes=(m, 1), steps=(1, 1)}
  v0 = mul(p, c)
  v1 = sub(q, d)
  v2 = mul(v1, e)
  v3 = add(r, e)
  return v0, v2, v3, h
}"""
"""What has numbers for each column, each element and each row beside it."""
OVERLAP = """graph f(x: f32[m,k], w: f32[k,n + 5]) {
  h = contract(x, w) {spec="m,k; k,n -> m,n"}
  p = slice(h) {starts=(0, 3), sizes=(m, n), steps=(1, 1)}
  q = slice(h) {starts=(0, 1), sizes=(m, n), steps=(1, 1)}
  s = sigmoid(p)
  t = exp(p)
  u = add(s, t)
  v = sigmoid(q)
  return u, s, v
}"""
"""Ranges that share elements; results that others are made of."""
ROWS = """graph f(x: f32[m + 7,k], w: f32[k,n + 9], c: f32[n]) {
  h = contract(x, w) {spec="m,k; k,n -> m,n"}
  p = slice(h) {starts=(0, 0), sizes=(7, n), steps=(1, 1)}
  q = slice(h) {starts=(7, 9), sizes=(m, n), steps=(1, 1)}
  r = slice(h) {starts=(7, 0), sizes=(m, n), steps=(1, 1)}
  s = abs(p)
  t = add(q, c)
  return s, t, r
}"""
CASTED = """graph f(x: f32[m,k], w: f32[k,2*n]) {
  h = contract(x, w) {spec="m,k; k,n -> m,n"}
  p = slice(h) {starts=(0, 0), sizes=(m, n), steps=(1, 1)}
  q = slice(h) {starts=(0, n), sizes=(m, n), steps=(1, 1)}
  s = cast(p) {dtype=bf16}
  t = gt(q, 0.5:f32)
  return s, t, q
}"""
HEADS = """graph f(x: f32[m,k], w: f32[k,12*n]) {
  h = contract(x, w) {spec="m,k; k,n -> m,n"}
  p = slice(h) {starts=(0, 0), sizes=(m, 6*n), steps=(1, 1)}
  q = slice(h) {starts=(0, 6*n), sizes=(m, 4*n), steps=(1, 1)}
  r = slice(h) {starts=(0, 10*n), sizes=(m, 2*n), steps=(1, 1)}
  s = reshape(p) {shape=(m, 2, 3, n)}
  t = mul(s, 0.125:f32)
  u = reshape(q) {shape=(m, 1, 4, n)}
  v = tanh(r)
  w0 = reshape(v) {shape=(m, 2, n, 1)}
  return t, u, w0
}"""
"""Ranges under other shapes, made into something before or after."""
SOURCES = {
    "halves": HALVES.format(t="f32"),
    "f64": HALVES.format(t="f64"),
    "beside": BESIDE,
    "heads": HEADS,
    "overlap": OVERLAP,
    "rows": ROWS,
    "casted": CASTED,
}


def fused_kernel(source: str, isa: str | None = None) -> SingleKernel:
    """One kernel of what the pass makes of a graph."""
    actual = sink_slices(parse(source))
    assert graph_text(actual) != graph_text(parse(source))
    return fuse(graph_text(actual), isa)


def inputs(kernel: SingleKernel, m: int, k: int, n: int) -> list[Any]:
    sizes = {"m": m, "k": k, "n": n}
    shapes = [
        tuple(d if isinstance(d, int) else int(evaluate(d, sizes)) for d in p.shape)
        for p in kernel.kernel.inputs
    ]
    kinds = [p.dtype.numpy for p in kernel.kernel.inputs]
    return [random(s, seed=j).astype(t) for j, (s, t) in enumerate(zip(shapes, kinds))]


def check(kernel: SingleKernel, source: str, arrays: list[Any]) -> None:
    """What all judges say of some arrays: the graph as it was first of all."""
    with np.errstate(all="ignore"):
        wanted = run_graph(parse(source), arrays)
        collected = {
            "graph": kernel.expected(*arrays),
            "code": kernel(*arrays),
            "first": run_guarded(kernel, arrays, at_end=False),
            "guarded": run_guarded(kernel, arrays, at_end=True, one_by_one=True),
        }
    apart = (1e-5 if arrays[0].dtype == np.float32 else 1e-12) * max(arrays[0].shape[-1], 1)
    for how, results in collected.items():
        for one, other in zip(results, wanted, strict=True):
            assert one.shape == other.shape or how in ("first", "guarded"), how
            one = one.reshape(other.shape)  # a kernel's results have the shape of the range
            limit = 0.01 if other.dtype.itemsize == 2 else apart
            np.testing.assert_allclose(
                one.astype("f8"), other.astype("f8"), atol=limit, rtol=limit, err_msg=how
            )


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize("name", SOURCES)
def test_epilogues_of_ranges_are_stored_in_place_of_them(name: str, isa: str) -> None:
    kernel = fused_kernel(SOURCES[name], isa)
    assert any("where" in line for line in text(kernel.kernel).splitlines())
    shapes = SHAPES if isa == RUNNABLE[0] else SHAPES[:5]
    for m, k, n in shapes:
        check(kernel, SOURCES[name], inputs(kernel, m, k, n))


@pytest.mark.parametrize("name", ["c", "target0"])
def test_arrays_may_be_called_as_targets_are(name: str) -> None:
    source = """graph f(x: f32[m,k], w: f32[k,4*n], c: f32[m,1]) {
  h = contract(x, w) {spec="m,k; k,n -> m,n"}
  g = add(h, c)
  p = slice(g) {starts=(0, 0), sizes=(m, n), steps=(1, 1)}
  q = slice(g) {starts=(0, n), sizes=(m, 3*n), steps=(1, 1)}
  return p, q
}""".replace("c:", f"{name}:").replace("h, c", f"h, {name}")
    kernel = fuse_graph(parse(source), RUNNABLE[0], hint=256)
    check(kernel, source, inputs(kernel, 40, 7, 16))


@pytest.mark.parametrize("name", SOURCES)
def test_the_interpreter_sees_each_element_stored_once(name: str) -> None:
    kernel = fused_kernel(SOURCES[name])
    arrays = inputs(kernel, 5, 6, 7)
    arrays[0][3] = np.nan
    with np.errstate(all="ignore"):
        result = interpret(kernel.kernel, arrays, {"m": 5, "k": 6, "n": 7})
        wanted = run_graph(parse(SOURCES[name]), arrays)
    for one, other in zip(result.values(), wanted, strict=True):
        assert one.dtype == other.dtype
        one = one.reshape(other.shape)  # a kernel's results have the shape of the range
        np.testing.assert_allclose(one.astype("f8"), other.astype("f8"), rtol=0.01, atol=0.01)


@pytest.mark.parametrize("name", ["halves", "beside", "overlap"])
def test_what_is_no_number_stays_where_it_is(name: str) -> None:
    kernel = fused_kernel(SOURCES[name])
    for m, k, n in ((40, 30, 33), (9, 300, 5), (130, 33, 33)):
        arrays = inputs(kernel, m, k, n)
        arrays[0][3], arrays[0][7, 2], arrays[1][0, 1] = np.nan, np.inf, -np.inf
        for beside in arrays[2:]:
            beside.flat[0], beside.flat[-1] = np.nan, np.inf
        check(kernel, SOURCES[name], arrays)


def _scaled(x: Any, w: Any, b: Any) -> Any:
    h = x @ w + b
    n = h.shape[-1] // 3
    return h[..., :n] * 0.125, h[..., n : 2 * n], h[..., 2 * n :]


def _shifted(x: Any, w: Any, b: Any) -> Any:
    h = x @ w + b
    n = h.shape[-1] // 3
    return h[..., :n] * b[:n], h[..., n : 2 * n] - b[n : 2 * n], h[..., 2 * n :]


def _heads(x: Any, w: Any, b: Any) -> Any:
    h = x @ w + b
    n = h.shape[-1] // 3
    q, k, v = (
        sm.reshape(h[..., j * n : (j + 1) * n], (*h.shape[:-1], 4, n // 4)) for j in range(3)
    )
    return q * 0.125, k, v


def _odd(x: Any, w: Any, b: Any) -> Any:
    h = x @ w + b
    return sm.exp(h[:, 2:9]), sm.exp(h[:, 2:9]), -h[:, 9:9], abs(h[:, 0]), abs(h), h[3:] > 0


@pytest.mark.parametrize("f", [_scaled, _shifted, _heads])
@pytest.mark.parametrize("shape", [(512, 256, 1536), (256, 512, 768)])
def test_projections_that_are_scaled_are_one_kernel(f: Any, shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    arrays = [random((m, k)), random((k, n), seed=1), random((n,), seed=2)]
    assert len(sm.explain(f, *arrays).kernels) == 1
    for one, other in zip(sm.jit(f)(*arrays), f(*arrays), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-3)


@pytest.mark.parametrize("n", [10, 16, 63])
@pytest.mark.parametrize("dtype", ["f4", "f8", "i4"])
def test_empty_single_and_repeated_ranges(n: int, dtype: str) -> None:
    arrays = [
        (4 * random((20, 30))).astype(dtype),
        random((30, n), seed=1).astype(dtype),
        random((n,), seed=2).astype(dtype),
    ]
    call = _odd if dtype != "i4" else _of_integers
    wanted = _odd_with(np, *arrays) if dtype != "i4" else _of_integers(*arrays)
    for one, other in zip(sm.jit(call)(*arrays), wanted, strict=True):
        assert one.shape == other.shape
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-3)


def _odd_with(xp: Any, x: Any, w: Any, b: Any) -> Any:
    h = x @ w + b
    e = xp.exp(h[:, 2:9])
    return e, e, -h[:, 9:9], abs(h[:, 0]), abs(h), h[3:] > 0


def _of_integers(x: Any, w: Any, b: Any) -> Any:
    """Numbers beside a range that nobody may divide by where it does not lie."""
    h = x @ w + b
    return h[:, :5] // (b[:5] + 7), h[:, 5:] * 3, h


def test_ranges_of_batches_have_heads() -> None:
    arrays = [random((4, 100, 96)), random((96, 240), seed=1), random((240,), seed=2)]
    for one, other in zip(sm.jit(_heads)(*arrays), _heads(*arrays), strict=True):
        assert one.shape == other.shape == (4, 100, 4, 20)
        np.testing.assert_allclose(one, other, atol=1e-3)


@pytest.mark.parametrize(
    ("shape", "walked"),
    [
        ("(m, 2, 3, 4)", (0, 1)),
        ("(m, 24, 1)", (0, 1, 2)),
        ("(1, m, 24)", (0, 1, 2)),
        ("(2*m, 12)", None),
        ("(24*m,)", None),
        ("(m, 4, 1, 6)", (0, 1, 2)),
    ],
)
def test_ranges_are_recognised_under_contiguous_reshapes(
    shape: str, walked: tuple[int, ...] | None
) -> None:
    graph = parse(f"""graph f(x: f32[m,k], w: f32[k,40]) {{
      h = contract(x, w) {{spec="m,k; k,n -> m,n"}}
      p = slice(h) {{starts=(0, 5), sizes=(m, 24), steps=(1, 1)}}
      q = reshape(p) {{shape={shape}}}
      return q, h
    }}""")
    actual = range_of(graph.outputs[0])
    assert (actual is None) == (walked is None)
    if actual is not None:
        assert actual.dims[1][1:] == (5, 24)
        assert product(actual.shape) == graph.outputs[0].type.elements


def test_transposed_ranges_are_no_reshapes() -> None:
    graph = parse("""graph f(x: f32[m,k], w: f32[k,40]) {
      h = contract(x, w) {spec="m,k; k,n -> m,n"}
      p = slice(h) {starts=(0, 5), sizes=(m, 24), steps=(1, 1)}
      q = reshape(p) {shape=(m, 4, 6)}
      r = permute(q) {perm=(1, 0, 2)}
      s = permute(q) {perm=(0, 2, 1)}
      return r, s, h
    }""")
    assert range_of(graph.outputs[0]) is None and range_of(graph.outputs[1]) is None


def test_no_kernel_computes_ranges_where_each_row_of_them_is_too_short_to_pay() -> None:
    def gates(x: Any, w: Any) -> Any:
        h = x @ w
        return sm.sigmoid(h[:, :64]), sm.tanh(h[:, 64:128]), sm.tanh(h[:, 128:])

    report = sm.explain(gates, random((4096, 32)), random((32, 192), seed=1))
    assert len(report.kernels) > 1


@st.composite
def programs(draw: st.DrawFn) -> tuple[str, int]:
    """Results that are made of ranges of a product of 40 columns, which may share elements."""
    lines, results = list[str](), list[str]()
    for j in range(draw(st.integers(2, 5))):
        first = draw(st.integers(0, 39))
        width = draw(st.integers(1, 40 - first))
        whole = draw(st.booleans()) and j == 0
        first, width = (0, 40) if whole else (first, width)
        name = "h" if whole else f"p{j}"
        if not whole:
            lines.append(
                f" {name} = slice(h) {{starts=(0, {first}), sizes=(m, {width}), steps=(1, 1)}}"
            )
        for i in range(draw(st.integers(0, 3))):
            kind = draw(
                st.sampled_from(
                    [
                        "tanh({0})",
                        "mul({0}, {0})",
                        "mul({0}, e)",
                        "add({0}, c{1})",
                        "max({0}, 0.25:f32)",
                    ]
                )
            )
            if "{1}" in kind:
                lines.append(
                    f" c{j}{i} = slice(c) {{starts=({first},), sizes=({width},), steps=(1,)}}"
                )
            lines.append(f" v{j}{i} = " + kind.format(name, f"{j}{i}"))
            name = f"v{j}{i}"
            if draw(st.booleans()):
                results.append(name)
        if not whole and draw(st.booleans()):
            shape = (width // 3, 3) if width % 3 == 0 else (1, width)
            lines.append(f" r{j} = reshape({name}) {{shape=(m, {shape[0]}, {shape[1]})}}")
            lines.append(f" t{j} = sub(r{j}, 0.5:f32)")
            results.append(name)
            name = f"t{j}"
        results.append(name)
    body = "\n".join(lines)
    return (
        f"""graph f(x: f32[m,k], w: f32[k,40], c: f32[40], e: f32[m,1]) {{
 h = contract(x, w) {{spec="m,k; k,n -> m,n"}}
{body}
 return {", ".join(results)}
}}""",
        draw(st.integers(0, 99)),
    )


@given(programs())
@settings(max_examples=25, deadline=None)
def test_random_ranges(program: tuple[str, int]) -> None:
    source, seed = program
    result = sink_slices(parse(source))
    kernel = fuse_graph(result, RUNNABLE[0])
    for m, k in ((1, 3), (seed % 7 + 2, 17), (33 + seed, 40)):
        shapes = ((m, k), (k, 40), (40,), (m, 1))
        arrays = [random(s, seed=seed + j) for j, s in enumerate(shapes)]
        wanted = run_graph(parse(source), arrays)
        for one, other in zip(run_graph(result, arrays), wanted, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-4)
        for one, other in zip(kernel(*arrays), wanted, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-3)
