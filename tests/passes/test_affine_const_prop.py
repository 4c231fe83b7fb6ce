"""Propagated index facts keep integers and booleans, for all sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smelt.graph.interp import run as interpret
from smelt.graph.text import parse, text
from smelt.passes.affine_const_prop import propagate_affine
from smelt.passes.dce import dce

Draw = Any
TESTS = ("lt", "le", "gt", "ge", "eq", "ne")
LENGTHS = ("n", "n + 1", "n*2", "m", "3", "1")


@st.composite
def programs(draw: Draw) -> str:
    """Rows of integers made of positions, sizes and numbers, in every way that moves them."""
    lines: list[str] = []
    rows: list[tuple[str, str]] = []
    flags: list[tuple[str, str]] = []

    def add(line: str, actual: list[tuple[str, str]], length: str) -> None:
        name = f"a{len(lines)}"
        lines.append(f"{name} = {line}")
        actual.append((name, length))

    for _ in range(draw(st.integers(1, 3))):
        length = draw(st.sampled_from(LENGTHS))
        add(f"iota() {{shape=({length},), axis=0, dtype=i64}}", rows, length)
    for _ in range(draw(st.integers(1, 9))):
        x, n = draw(st.sampled_from(rows))
        y, m = draw(st.sampled_from(rows))
        kind = draw(
            st.sampled_from(
                (
                    "number",
                    "size",
                    "both",
                    "part",
                    "joined",
                    "moved",
                    "count",
                    "test",
                    "choice",
                    "read",
                    "sum",
                )
            )
        )
        number = draw(st.integers(-3, 3))
        if kind == "number":
            add(f"{draw(st.sampled_from(('add', 'sub', 'mul')))}({x}, {number}:i64)", rows, n)
        elif kind == "size":
            lines.append(
                f"s{len(lines)} = size() {{expr={draw(st.sampled_from(LENGTHS))}, dtype=i64}}"
            )
            add(f"sub({x}, {lines[-1].split()[0]})", rows, n)
        elif kind == "both" and n == m:
            add(f"{draw(st.sampled_from(('add', 'sub')))}({x}, {y})", rows, n)
        elif kind == "part" and n != "1":
            start, size = draw(st.sampled_from((("0", "1"), ("1", f"{n} - 1"), ("0", f"{n} - 1"))))
            add(f"slice({x}) {{starts=({start},), sizes=({size},), steps=(1,)}}", rows, size)
        elif kind == "joined":
            add(f"concat({x}, {y}) {{axis=0}}", rows, f"{n} + {m}")
        elif kind == "moved":
            add(f"flip({x}) {{axes=(0,)}}", rows, n)
        elif kind == "count" and flags:
            flag, many = draw(st.sampled_from(flags))
            lines.append(f"c{len(lines)} = cast({flag}) {{dtype=i64}}")
            add(f"scan.sum({lines[-1].split()[0]}) {{axis=0}}", rows, many)
        elif kind == "test":
            other = y if n == m else f"{number}:i64"
            add(f"{draw(st.sampled_from(TESTS))}({x}, {other})", flags, n)
        elif kind == "choice" and flags and n == m:
            flag, many = draw(st.sampled_from(flags))
            if many == n:
                add(f"select({flag}, {x}, {y})", rows, n)
        elif kind == "sum":
            lines.append(f"t{len(lines)} = reduce.sum({x}) {{axes=(0,)}}")
            add(f"sub({y}, {lines[-1].split()[0]})", rows, m)
        elif kind == "read":
            lines.append(f"p{len(lines)} = max({y}, 0:i64)")
            lines.append(
                f"q{len(lines)} = sub({n}:i64, 1:i64)"
                if n.isdigit()
                else f"q{len(lines)} = size() {{expr={n} - 1, dtype=i64}}"
            )
            lines.append(f"r{len(lines)} = min({lines[-2].split()[0]}, {lines[-1].split()[0]})")
            add(f"gather({x}, {lines[-1].split()[0]}) {{first=0}}", rows, m)
    results = ", ".join(name for name, _ in (*rows, *flags))
    body = "".join(f"  {line}\n" for line in lines)
    return f"graph f(x: f32[n], y: f32[m]) {{\n{body}  return {results}\n}}"


@settings(max_examples=300, deadline=None)
@given(programs(), st.integers(1, 7), st.integers(1, 7))
def test_the_same_numbers(source: str, n: int, m: int) -> None:
    graph = parse(source)
    new = propagate_affine(graph)
    sizes = {"n": n, "m": m}
    inputs = [np.zeros(n, np.float32), np.zeros(m, np.float32)]
    wanted, result = (interpret(g, inputs, sizes) for g in (graph, new))
    for a, b in zip(result, wanted, strict=True):
        assert a.dtype == b.dtype and np.array_equal(a, b), text(new)


@pytest.mark.parametrize("n", [0, 1, 5])
@pytest.mark.parametrize("test", ["ge(s, 1:i64)", "gt(s, 0:i64)", "ne(s, 0:i64)", "lt(t, s)"])
def test_sizes_may_be_zero(test: str, n: int) -> None:
    """A number that says how long an array is exists where the array has no elements."""
    graph = parse(f"""graph f(x: f32[n], y: f32[3]) {{
  s = size() {{expr=n, dtype=i64}}
  t = sub(s, 1:i64)
  m = {test}
  z = select(m, y, 2.0:f32)
  return z
}}""")
    y = np.ones(3, np.float32)
    (wanted,), (actual,) = (
        interpret(g, [np.zeros(n, np.float32), y], {"n": n})
        for g in (graph, propagate_affine(graph))
    )
    assert np.array_equal(actual, wanted)


@pytest.mark.parametrize("fold", ["any", "all", "sum", "max"])
@pytest.mark.parametrize("flag", ["ge(i, 0:i64)", "lt(i, 0:i64)"])
def test_empty_reductions(fold: str, flag: str) -> None:
    """What holds for every element says nothing of a fold of none."""
    cast = "  c = cast(m) {dtype=i64}\n" if fold in ("sum", "max") else ""
    graph = parse(f"""graph f(x: f32[n], y: f32[3]) {{
  i = iota() {{shape=(n,), axis=0, dtype=i64}}
  m = {flag}
{cast}  r = reduce.{fold}({"c" if cast else "m"}) {{axes=(0,)}}
  return r
}}""")
    for n in (0, 1, 4)[fold == "max" :]:
        (wanted,), (actual,) = (
            interpret(g, [np.zeros(n, np.float32), np.ones(3, np.float32)], {"n": n})
            for g in (graph, propagate_affine(graph))
        )
        assert np.array_equal(actual, wanted), n


@pytest.mark.parametrize("number", [1 << 12, 1 << 40, 1 << 62])
def test_what_may_overflow_is_left_alone(number: int) -> None:
    graph = parse(f"""graph f(x: f32[n]) {{
  i = iota() {{shape=(n,), axis=0, dtype=i64}}
  a = mul(i, {number}:i64)
  b = mul(a, {number}:i64)
  m = ge(b, 0:i64)
  return m
}}""")
    inputs = [np.zeros(9, np.float32)]
    (wanted,), (actual,) = (
        interpret(g, inputs, {"n": 9}) for g in (graph, propagate_affine(graph))
    )
    assert np.array_equal(actual, wanted)


def test_documents_of_one_document_are_a_causal_mask() -> None:
    """Without positions the document mask becomes a causal one.

    Models look for document ends where positions do not grow by one; without positions only the
    comparison is left that skips half of the products.
    """
    graph = parse("""graph f(x: f32[b,n,n]) {
  r = iota() {shape=(n, 1), axis=0, dtype=i64}
  c = iota() {shape=(1, n), axis=1, dtype=i64}
  p = expand(c) {shape=(b, n)}
  a = slice(p) {starts=(0, 0), sizes=(b, 1), steps=(1, 1)}
  f = sub(a, 1:i64)
  j = concat(f, p) {axis=1}
  u = slice(j) {starts=(0, 1), sizes=(b, n), steps=(1, 1)}
  v = slice(j) {starts=(0, 0), sizes=(b, n), steps=(1, 1)}
  d = sub(u, v)
  e = ne(d, 1:i64)
  k = cast(e) {dtype=i64}
  s = scan.sum(k) {axis=1}
  q = reshape(s) {shape=(b, n, 1)}
  t = reshape(s) {shape=(b, 1, n)}
  g = eq(q, t)
  l = le(c, r)
  m = and(l, g)
  y = select(m, x, 0.0:f32)
  return y
}""")
    actual = dce(propagate_affine(graph))
    assert "scan" not in text(actual) and "concat" not in text(actual)
