"""Scatter-reductions at computed positions have the bits of one loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fusion.formulas import MACHINE

from smelt import knobs
from smelt.compiler import driver
from smelt.fusion import plan
from smelt.graph.interp import run as interpret
from smelt.graph.text import parse
from smelt.kernel.text_print import text
from smelt.lower.interp import run as run_kernels
from smelt.types.dtype import parse as element_type

Array = np.ndarray[Any, Any]
Draw = Any
MODES = ("put", "add", "mul", "max", "min")
TYPES = ("f32", "f64", "f16", "bf16", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "bool")
POSITIONS = ("i64", "i32", "u8")
ODD = (np.nan, np.inf, -np.inf, -0.0)


def numbers(random: np.random.Generator, name: str, shape: tuple[int, ...]) -> Array:
    """Values of a type, some of them such that every mistake shows."""
    dtype = element_type(name)
    if name == "bool":
        return random.integers(0, 2, shape).astype(bool)
    if not dtype.is_float:
        info = np.iinfo(dtype.numpy)
        return random.integers(info.min, info.max, shape, dtype.numpy, endpoint=True)
    result = random.standard_normal(shape).astype(dtype.numpy)
    if result.size and random.random() < 0.3:
        result.reshape(-1)[random.integers(0, result.size)] = random.choice(ODD)
    return result


@st.composite
def programs(draw: Draw) -> tuple[str, list[Array], dict[str, int]]:
    """A program that writes at places, its operands and its sizes."""
    random = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    sizes: dict[str, int] = {}

    def shape(name: str, lengths: list[int]) -> list[str]:
        symbols = draw(st.lists(st.booleans(), min_size=len(lengths), max_size=len(lengths)))
        sizes.update({f"{name}{k}": n for k, n in enumerate(lengths) if symbols[k]})
        return [f"{name}{k}" if symbols[k] else str(n) for k, n in enumerate(lengths)]

    how, kind = draw(st.sampled_from(MODES)), draw(st.sampled_from(TYPES))
    how = "put" if kind == "bool" else how
    lead = draw(st.lists(st.integers(1, 5), min_size=1, max_size=2))
    middle = draw(st.lists(st.sampled_from((0, 1, 2, 7)), min_size=1, max_size=2))
    rest = draw(st.lists(st.sampled_from((1, 2, 5, 17, 40)), max_size=2))
    a, m, r = shape("a", lead), shape("m", middle), shape("r", rest)
    arrays = [
        numbers(random, kind, (*lead, *rest)),
        numbers(random, kind, (*middle, *rest)),
        numbers(random, kind, (*middle, *[1] * len(rest))),
    ]
    inputs = [
        f"x: {kind}[{','.join(a + r)}]",
        f"u: {kind}[{','.join(m + r)}]",
        f"w: {kind}[{','.join([*m, *['1'] * len(rest)])}]",
    ]
    index = draw(st.sampled_from(POSITIONS))
    for k, extent in enumerate(lead):
        short = [k > 0 and draw(st.booleans()) for _ in middle]
        own_axes = [1 if s else n for s, n in zip(short, middle, strict=True)]
        arrays.append(random.integers(0, extent, own_axes).astype(element_type(index).numpy))
        inputs.append(f"i{k}: {index}[{','.join('1' if s else n for s, n in zip(short, m))}]")
    built = kind != "bool" and draw(st.sampled_from(("", "add", "mul")))
    body = [f"v = {built}(u, w)"] if built else []
    places = ", ".join(f"i{k}" for k in range(len(lead)))
    body.append(f"s = scatter.{how}(x, {'v' if built else 'u'}, {places})")
    after = kind != "bool" and draw(st.booleans())
    body += ["t = max(s, x)", "return s, t"] if after else ["return s"]
    lines = "".join(f"  {line}\n" for line in body)
    return f"graph f({', '.join(inputs)}) {{\n{lines}}}", arrays, sizes


def same(a: Array, b: Array) -> bool:
    return a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind in "fV")


@settings(max_examples=60, deadline=None)
@given(programs())
def test_all_interpreters_and_threads_agree_bit_for_bit(
    program: tuple[str, list[Array], dict[str, int]],
) -> None:
    source, arrays, sizes = program
    graph = parse(source)
    wanted = interpret(graph, arrays, sizes)
    for threads in (1, 2, 4):
        with knobs.config(threads=threads):
            c = driver.compile(graph, hints=sizes)
            actual = c.run(arrays, tuple(sizes[n] for n in c.size_names))
        assert all(map(same, actual, wanted)), (threads, actual, wanted)
    assert all(c.kernels)
    kernels = run_kernels(c.plan, c.kernels, arrays, sizes)
    assert all(map(same, kernels, wanted)), (kernels, wanted)


MESSAGES = """graph f(h: f32[n,d], w: f32[m,1], source: i64[m], target: i64[m]) {
  a = gather(h, source) {first=0}
  b = tanh(a)
  c = mul(b, w)
  z = expand(0.0:f32) {shape=(n,d)}
  y = scatter.add(z, c, target)
  return y
}"""


def edges(n: int, d: int, m: int) -> list[Array]:
    random = np.random.default_rng(n)
    h, w = (random.standard_normal(s).astype("f4") for s in ((n, d), (m, 1)))
    return [h, w, *(random.integers(0, n, m) for _ in range(2))]


def test_messages_are_one_kernel() -> None:
    """What is added is computed where it is added, and no sum depends on the threads."""
    sizes = {"n": 300, "d": 130, "m": 2000}
    c = driver.compile(parse(MESSAGES), hints=sizes)
    assert len(c.kernels) == 1 and c.kernels[0] is not None
    assert "add=" in text(c.kernels[0]) and "grid q in split(n" in text(c.kernels[0])
    for n, d, m in ((300, 130, 2000), (300, 130, 0), (1, 130, 50), (7, 1, 50), (2, 1000, 9)):
        arrays, size_values = edges(n, d, m), {"n": n, "d": d, "m": m}
        actual: list[bytes] = []
        for threads in (1, 2, 3, 8):
            with knobs.config(threads=threads):
                (y,) = c.run(arrays, tuple(size_values[s] for s in c.size_names))
            actual.append(y.tobytes())
        assert len(set(actual)) == 1
        h, w, source, target = arrays
        wanted = np.zeros((n, d))
        np.add.at(wanted, target, np.tanh(h[source].astype("f8")) * w)
        terms = np.zeros((n, 1))
        np.add.at(terms, target, np.abs(w))
        count = np.bincount(target, minlength=n)[:, None]
        assert (np.abs(y - wanted) <= 2.0**-23 * (count + 4) * terms).all()


@pytest.mark.parametrize("far", [-1, 5, 1 << 40, -(1 << 63)])
def test_positions_out_of_bounds_touch_nothing(far: int) -> None:
    """Front ends keep places inside; kernels write nowhere else if they do not."""
    source = "graph f(x: f32[5], u: f32[m], i: i64[m]) {\n y = scatter.add(x, u, i)\n return y\n}"
    c = driver.compile(parse(source), hints={"m": 3})
    x, u = np.arange(5, dtype="f4"), np.ones(3, "f4")
    (y,) = c.run([x, u, np.array([1, far, 1])], (3,))
    assert y.tolist() == [0, 3, 2, 3, 4]


ENDS = {
    "what reads the result": """graph f(x: f32[n,4], u: f32[m,4], i: i64[m]) {
      a = scatter.add(x, u, i)
      b = exp(a)
      return b
    }""",
    "a second one": """graph f(x: f32[n,4], u: f32[m,4], i: i64[m]) {
      a = scatter.add(x, u, i)
      b = scatter.max(x, u, i)
      return a, b
    }""",
    "a sum of what is added": """graph f(x: f32[n,4], u: f32[m,4], i: i64[m]) {
      a = exp(u)
      b = scatter.add(x, a, i)
      c = reduce.sum(a) {axes=(1,)}
      return b, c
    }""",
}


@pytest.mark.parametrize("name", ENDS)
def test_it_ends_its_kernel(name: str) -> None:
    graph = parse(ENDS[name])
    fused_plan = plan(graph, MACHINE, None, {"n": 5000, "m": 100_000})
    for cluster in fused_plan.clusters:
        joined = [n for n in cluster.nodes if n.op.name.startswith("scatter")]
        assert not joined or cluster.outputs == tuple(joined)


ALONG = {
    "in front": (
        "m0,a0",
        "m0,p",
        "f32[m0,a0]",
        "v = iota() {shape=(m0,1), axis=0, dtype=i64}",
        "v, i",
    ),
    "behind": (
        "a0,m0",
        "p,m0",
        "f32[a0,m0]",
        "v = iota() {shape=(1,m0), axis=1, dtype=i64}",
        "i, v",
    ),
}


@pytest.mark.parametrize("how", MODES)
@pytest.mark.parametrize("name", ALONG)
def test_positions_that_count_an_axis_are_that_axis(name: str, how: str) -> None:
    """Nothing is looked for along it: its positions are blocks, or lanes of vectors."""
    whole, updates, kind, counted, places = ALONG[name]
    source = (
        f"graph f(x: {kind}, u: f32[{updates}], i: i64[{updates}]) {{\n  {counted}\n"
        f"  y = scatter.{how}(x, u, {places})\n  return y\n}}"
    )
    graph = parse(source)
    c = driver.compile(graph, hints={"m0": 40, "a0": 9, "p": 30})
    shown = text(c.kernels[0]) if c.kernels[0] is not None else ""
    assert ("grid m0" in shown) == (name == "in front") and "split" not in shown
    random = np.random.default_rng(3)
    for m, a, p in ((40, 9, 30), (1, 1, 1), (3, 2, 0), (130, 4, 7)):
        sizes = {"m0": m, "a0": a, "p": p}
        x, u = (
            numbers(random, "f32", tuple(sizes[n] for n in s.split(","))) for s in (whole, updates)
        )
        i = random.integers(0, a, u.shape)
        (wanted,) = interpret(graph, [x, u, i], sizes)
        (actual,) = c.run([x, u, i], tuple(sizes[n] for n in c.size_names))
        (kernel,) = run_kernels(c.plan, c.kernels, [x, u, i], sizes)
        assert same(actual, wanted) and same(kernel, wanted)


def test_what_nobody_else_needs_is_written_into() -> None:
    """A second write goes into the memory of the first, and copies nothing."""
    source = """graph f(x: f32[n,64], u: f32[m,64], i: i64[m], j: i64[m]) {
      a = scatter.add(x, u, i)
      b = scatter.add(a, u, j)
      c = exp(b)
      return c
    }"""
    graph = parse(source)
    c = driver.compile(graph, hints={"n": 5000, "m": 3000})
    places = [(slot.offset, slot.within) for slot in c.plan.slots if slot.node.op.name != "exp"]
    assert len(places) == 2 and len(set(places)) == 1
    random = np.random.default_rng(0)
    arrays = [
        random.standard_normal((70, 64)).astype("f4"),
        random.standard_normal((90, 64)).astype("f4"),
        *(random.integers(0, 70, 90) for _ in range(2)),
    ]
    (actual,) = c.run(arrays, tuple({"n": 70, "m": 90}[n] for n in c.size_names))
    (wanted,) = interpret(graph, arrays, {"n": 70, "m": 90})
    assert np.allclose(actual, wanted, rtol=1e-6)


@pytest.mark.parametrize("how", ["add", "mul", "max", "min", "put"])
def test_updates_of_fewer_dimensions_than_their_positions(how: str) -> None:
    """NumPy's own `at` reads beyond such updates: the judge has to spread them."""
    code = (
        f"graph f(x: f32[n], i: i64[m,8], u: f32[8]) {{\n v0 = scatter.{how}(x, u, i)\n"
        " return v0\n}"
    )
    x, u = np.array([3.0, -1.0], np.float32), np.arange(1, 9, dtype=np.float32) / 4
    i = np.arange(800).reshape(100, 8) % 2
    join = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}.get(how)
    wanted = x.copy()
    with np.errstate(over="ignore"):
        for place, value in zip(i.flat, np.tile(u, 100), strict=True):
            wanted[place] = value if join is None else join(wanted[place], value)
    graph = parse(code)
    (judged,) = interpret(graph, [x, i, u])
    assert np.array_equal(judged, wanted)
    compiled = driver.compile(graph)
    sizes = {"n": 2, "m": 100}
    inputs = tuple(sizes[s] for s in compiled.size_names)
    (actual,) = compiled.executable.run([x, i, u], inputs)
    assert np.array_equal(np.asarray(actual), wanted)


@pytest.mark.parametrize("rows", ["1", "n"])
@pytest.mark.parametrize("count", [1, 3])
def test_what_is_written_reads_an_operand_of_one_row_before_it_is_written_over(
    rows: str, count: int
) -> None:
    """An operand of one row is read before it is overwritten.

    The first value may be computed from it.
    """
    code = (
        f"graph f(x: f32[{rows},4], i: i64[m], k: i64[m]) {{\n v0 = mul(x, x)\n"
        " v1 = gather(v0, k) {first=0}\n v2 = scatter.add(v0, v1, i)\n"
        " return v2\n}"
    )
    x, at = np.arange(1, 5, dtype=np.float32)[None], np.zeros(count, np.int64)
    compiled = driver.compile(parse(code), donate=(0,))
    inputs = tuple({"n": 1, "m": count}[s] for s in compiled.size_names)
    (actual,) = compiled.executable.run([x.copy(), at, at], inputs)
    assert np.array_equal(np.asarray(actual), x * x * (1 + count))


@pytest.mark.parametrize("how", ["add", "put", "max"])
def test_positions_that_only_count_meet_each_element_once(how: str) -> None:
    """There is no stream then between first values and what joins them."""
    code = (
        f"graph f(x: f32[n,m]) {{\n v0 = mul(x, 2.0:f32)\n v1 = flip(x) {{axes=(0,)}}\n"
        f" i = iota() {{shape=(n,), axis=0, dtype=i64}} : i64[n]\n"
        f" v2 = scatter.{how}(v0, v1, i)\n return v2\n}}"
    )
    join = {"add": np.add, "max": np.maximum, "put": lambda _, b: b}[how]
    compiled = driver.compile(parse(code))
    for shape in ((80, 8), (1, 1), (5, 70)):
        x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        sizes = {"n": shape[0], "m": shape[1]}
        inputs = tuple(sizes[s] for s in compiled.size_names)
        (actual,) = compiled.executable.run([x], inputs)
        assert np.array_equal(np.asarray(actual), join(x * 2, x[::-1]))


@pytest.mark.parametrize("how", ["add", "put", "max"])
def test_positions_gathered_at_gathered_positions(how: str) -> None:
    """Each is known once the one before is: no stream can be told beforehand what to visit."""
    code = (
        f"graph f(x: f32[n,8], t: i64[p], s: i64[m], u: f32[m,8]) {{\n"
        " v0 = gather(t, s) {first=0}\n v1 = mul(u, 2.0:f32)\n"
        f" v2 = scatter.{how}(x, v1, v0)\n return v2\n}}"
    )
    random = np.random.default_rng(1)
    x, u = (random.standard_normal((n, 8)).astype(np.float32) for n in (90, 200))
    t, s = random.integers(0, 90, 50), random.integers(0, 50, 200)
    graph, sizes = parse(code), {"n": 90, "p": 50, "m": 200}
    (wanted,) = interpret(graph, [x, t, s, u], sizes)
    compiled = driver.compile(graph)
    inputs = tuple(sizes[name] for name in compiled.size_names)
    (actual,) = compiled.executable.run([x, t, s, u], inputs)
    assert np.array_equal(np.asarray(actual), wanted)
    kernels = run_kernels(compiled.plan, compiled.kernels, [x, t, s, u], sizes)
    assert np.array_equal(kernels[0], wanted)
