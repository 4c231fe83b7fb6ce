"""Products that a library computes: which, why, right for all programs, and never unasked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st
from tests.property.oracles import agree, interpret, kernels_agree, sizes_at, spread
from tests.strategies.effort import start
from tests.strategies.graphs import Program, graphs
from tests.strategies.products import products

import smelt as sm
from smelt import knobs
from smelt.compiler import driver
from smelt.errors import ExternError
from smelt.explain.report import report
from smelt.explain.text import page
from smelt.fusion.library_products import class_of
from smelt.graph.ir import Graph
from smelt.graph.text import parse, text
from smelt.journal.facts import Journal, LibraryProduct
from smelt.machine.target import Target
from smelt.ops.contract import Contract
from smelt.ops.library_product import (
    PROVIDERS,
    Library,
    add_provider,
    product_call,
    product_form,
    using,
)
from smelt.runtime import library_figures
from smelt.types.dtype import bf16, f32
from smelt.types.tensor import TensorType

TWO = parse("""graph f(x: f32[n,300], w: f32[200,300], u: f32[200,100], b: f32[100]) {
  v0 = contract(x, w) {spec="m,k; j,k -> m,j"}
  v1 = contract(v0, u) {spec="m,k; k,j -> m,j"}
  v2 = add(v1, b)
  v3 = exp(v2)
  return v0, v3
}""")
AVX2 = Target.for_isa("avx2")


def compiled(
    graph: Graph, hints: dict[str, int], target: Target | None = None, **wishes: Any
) -> driver.Compiled:
    with knobs.config(cache=False, probe="off", **wishes):
        return driver.compile(graph, hints=hints, journal=Journal(), target=target)


def decided(c: driver.Compiled) -> list[tuple[bool, str]]:
    return [(d.taken, d.reason) for d in c.journal.of(LibraryProduct)]


def figures(monkeypatch: pytest.MonkeyPatch, ratio: float, name: str = "large f32") -> None:
    """Let the library take `ratio` times as long as we do for products of a class."""

    def usable(_: Target) -> Library:
        return Library(PROVIDERS["numpy"], {name: ratio})

    monkeypatch.setattr(driver, "usable_library", usable)


def calls(c: driver.Compiled) -> int:
    return sum(cluster.is_extern for cluster in c.plan.clusters)


@pytest.fixture
def any_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the library take as many threads as it likes: this is about the plans."""

    def usable(target: Target) -> Library:
        return replace(library_figures.usable_library(target), may_run=True)

    monkeypatch.setattr(driver, "usable_library", usable)


# ---- which products, and why ---------------------------------------------------------------------


def test_without_figures_the_plan_is_ours() -> None:
    with_auto, never = (
        compiled(TWO, {"n": 500}, AVX2, library_products=wish) for wish in ("auto", "never")
    )
    assert decided(with_auto) == decided(never) == []
    assert with_auto.kernels == never.kernels


@pytest.mark.parametrize(
    ("ratio", "expected"),
    [
        (0.5, [(True, "faster"), (False, "fused")]),
        (0.99, [(False, "slower"), (False, "fused")]),
        (2.0, [(False, "slower"), (False, "fused")]),
    ],
)
def test_figures_decide_on_products_that_stand_alone(
    monkeypatch: pytest.MonkeyPatch, ratio: float, expected: list[tuple[bool, str]]
) -> None:
    figures(monkeypatch, ratio)
    result = compiled(TWO, {"n": 500}, AVX2)
    assert decided(result) == expected
    assert calls(result) == sum(taken for taken, _ in expected)
    first = result.journal.of(LibraryProduct)[0]
    assert first.shape == (1, 500, 200, 300) and first.own_ns is not None
    assert first.library_ns == pytest.approx(ratio * first.own_ns)


def test_a_class_that_was_not_measured_is_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    figures(monkeypatch, 0.5, "large f64")
    assert decided(compiled(TWO, {"n": 500}, AVX2)) == [(False, "unmeasured"), (False, "fused")]


@pytest.mark.parametrize(("wish", "count"), [("never", 0), ("plain", 1), ("always", 2)])
def test_the_setting_decides(any_threads: None, wish: str, count: int) -> None:
    assert calls(compiled(TWO, {"n": 500}, AVX2, library_products=wish)) == count


@pytest.mark.parametrize("settings", [{"rounding": "exact"}, {"strict": True}, {"fuse": False}])
def test_some_settings_forbid_a_library(any_threads: None, settings: dict[str, Any]) -> None:
    assert calls(compiled(TWO, {"n": 500}, AVX2, library_products="always", **settings)) == 0


def test_a_library_of_more_threads_than_a_call_may_take_is_not_called() -> None:
    greedy = PROVIDERS["numpy"]._replace(name="greedy", get_threads=lambda: 64)
    if greedy.name not in PROVIDERS:
        add_provider(greedy)
    with using(greedy):
        result = compiled(TWO, {"n": 500}, AVX2, library_products="always", threads=2)
    assert decided(result) == [(False, "threads")] * 2 and calls(result) == 0


def test_products_in_chunks_of_rows_stay_ours(any_threads: None) -> None:
    graph = parse("""graph f(x: f32[n,256], w: f32[256,4096]) {
      v0 = contract(x, w) {spec="m,k; k,j -> m,j"}
      v1 = exp(v0)
      v2 = contract(v1, x) {spec="m,j; m,k -> j,k"}
      v3 = contract(v1, w) {spec="m,j; k,j -> m,k"}
      return v2, v3
    }""")
    small = replace(AVX2, l3_bytes=8 << 20)
    unforced = compiled(graph, {"n": 1 << 17}, small, library_products="never")
    assert any(c.body is not None for c in unforced.plan.clusters), "the test needs chunks"
    result = compiled(graph, {"n": 1 << 17}, small, library_products="always")
    assert calls(result) == 0
    assert {reason for _, reason in decided(result)} == {"chunks"}


@pytest.mark.parametrize(
    ("shape", "name"),
    [
        ((512, 512, 512), "large"),
        ((4, 4096, 4096), "few rows"),
        ((1, 4096, 4096), "one row"),
        ((4096, 1, 4096), "one row"),
        ((4096, 64, 512), "skinny"),
        ((4096, 512, 64), "skinny"),
    ],
)
def test_classes_of_shapes(shape: tuple[int, int, int], name: str) -> None:
    assert class_of(*shape) == name


def test_the_report_says_who_computes_what(monkeypatch: pytest.MonkeyPatch) -> None:
    figures(monkeypatch, 0.5)
    c = compiled(TWO, {"n": 500}, AVX2)
    shown = " ".join(page(report(c, {"n": 500}).data, 1).split())
    assert "NumPy computes v0 (500x200x300): measured to be faster here" in shown
    assert "NumPy does not compute v1 (500x100x200): its kernel computes other" in shown


# ---- which contractions are products -------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "left", "right", "is_product"),
    [
        ("m,k; k,n -> m,n", (30, 80), (80, 90), True),
        ("m,k; n,k -> n,m", (30, 80), (90, 80), True),
        ("b,s,k; n,k -> b,s,n", (2, 30, 80), (90, 80), True),
        ("b,h,q,d; b,h,k,d -> b,h,q,k", (2, 3, 30, 80), (2, 3, 40, 80), True),
        ("k,m; k,n -> m,n", (80, 30), (80, 90), True),
        ("m,k; k,n -> m", (30, 80), (80, 90), False),
        ("b,m,k; b,k,n -> m,b,n", (2, 30, 80), (2, 80, 90), False),
        ("m,k,l; k,l,n -> m,n", (30, 8, 10), (8, 10, 90), False),
        ("m,m; m,n -> m,n", (30, 30), (30, 90), False),
        ("2*m+k; k,n -> m,n", (100,), (80, 90), False),
    ],
)
def test_forms(spec: str, left: Any, right: Any, is_product: bool) -> None:
    extents = (("m", 11),) if "2*m" in spec else ()
    op = Contract.parse(spec, extents=extents)
    types = TensorType(f32, left), TensorType(f32, right)
    assert (product_form(op, *types) is not None) is is_product
    halves = tuple(TensorType(bf16, t.shape) for t in types)
    assert product_form(op, *halves) is None


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_every_form_has_the_values_of_the_contraction(data: st.DataObject) -> None:
    batch = data.draw(st.sampled_from(["", "b", "bh"]))
    rows = data.draw(st.sampled_from(["m", "mr"]))
    sides = [*batch, *rows, "k"], [*batch, "n", "k"]
    left, right = (data.draw(st.permutations(side)) for side in sides)
    out = data.draw(st.sampled_from([f"{batch}{rows}n", f"{batch}n{rows}"]))
    if data.draw(st.booleans()):
        left, right = right, left
    lengths = st.sampled_from([0, 1, 2, 5])
    sizes = {c: data.draw(lengths) for c in "bhmrn"} | {"k": data.draw(st.sampled_from([0, 70]))}
    spec = f"{','.join(left)}; {','.join(right)} -> {','.join(out)}"
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal([sizes[c] for c in side]) for side in (left, right))
    op = Contract.parse(spec)
    form = product_form(op, *(TensorType(f32, a.shape) for a in (x, w)))
    together = "mr" in "".join(left) or "mr" in "".join(right) or rows == "m"
    if not together or (rows == "mr" and out.endswith(rows)):  # are not one axis of memory
        assert form is None
        return
    assert form is not None
    want = np.einsum(f"{''.join(left)},{''.join(right)}->{out}", x, w)
    call = product_call(form, PROVIDERS["numpy"])
    assert np.allclose(call.reference({}, x, w), want)
    strided = np.empty((*want.shape, 2))[..., 0]
    assert np.allclose(call.compute_into(strided, {}, x, w), want)


# ---- programs ------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", range(2))
def test_oracles_agree_on_random_programs(any_threads: None, part: int) -> None:
    @seed(start(500 + part))
    @settings(max_examples=40, deadline=None, database=None)
    @given(graphs(max_nodes=9))
    def judge(program: Program) -> None:
        graph, arrays = program
        sizes = sizes_at(graph, arrays)
        allowed = spread(graph, arrays, sizes)
        with knobs.config(library_products="always"):
            c = driver.compile(graph, hints=sizes)
            results = c.run(list(arrays), tuple(sizes[n] for n in c.size_names))
        for k, want in enumerate(interpret(graph, arrays, sizes)):
            problem = agree(want, results[k], allowed[k])
            assert not problem, f"output {k}: {problem}\n{text(graph)}"
        problem = kernels_agree(c, arrays, sizes, allowed)
        assert not problem, f"{problem}\n{text(graph)}"

    judge()


def test_programs_of_products_have_the_values_of_ours(any_threads: None) -> None:
    called = 0
    for number in range(8):
        program = products(number)
        if program.arrays[0].dtype.kind != "f" or program.arrays[0].itemsize < 4:
            continue
        with sm.config(library_products="never"):
            want = sm.jit(program)(*program.arrays)
        with sm.config(library_products="always"):
            f = sm.jit(program)
            results = [f(*program.arrays) for _ in range(3)]  # the last by a native call
            called += "library call" in str(sm.explain(f, *program.arrays))
        for a, b in zip(want, results[-1], strict=True):
            one, other = np.asarray(a, "f8"), np.asarray(b, "f8")
            finite = np.isfinite(one)
            assert np.array_equal(finite, np.isfinite(other)), program.text
            scale = np.abs(one[finite]).max(initial=1e-30)
            eps = np.finfo(np.asarray(a).dtype).eps
            # each of up to seven steps sums at most 520 terms of bounded values
            assert np.abs(one - other)[finite].max(initial=0.0) <= 4000 * eps * scale, program.text
    assert called > 1


def test_one_plan_serves_all_sizes(any_threads: None) -> None:
    c = compiled(TWO, {"n": 500}, library_products="always")
    rng = np.random.default_rng(0)
    w, u, b = (rng.standard_normal(s).astype("f4") for s in ((200, 300), (200, 100), (100,)))
    for n in (0, 1, 7, 500, 1000):
        x = rng.standard_normal((n, 300)).astype("f4") / 300
        first, last = c.run([x, w, u, b], (n,))
        wide = x.astype("f8") @ w.T
        assert np.allclose(first, wide, atol=1e-4)
        assert np.allclose(last, np.exp(wide @ u + b), rtol=1e-3)


def test_a_failing_library_is_an_error_of_ours(
    any_threads: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(out: Any, left: Any, right: Any) -> None:
        raise RuntimeError("no more threads")

    name = "broken"
    if name not in PROVIDERS:
        add_provider(PROVIDERS["numpy"]._replace(name=name, matmul=broken))
    with using(PROVIDERS[name]):
        c = compiled(TWO, {"n": 5}, library_products="always")
    arrays = [
        np.ones([d if isinstance(d, int) else 5 for d in x.type.shape], "f4") for x in TWO.inputs
    ]
    with pytest.raises(ExternError, match="no more threads"):
        c.run(arrays, (5,))
