"""The text form: what is written reads back, and mistakes are shown in their place."""

from __future__ import annotations

import numpy as np
import pytest

from smelt.errors import GraphTextError, ShapeError
from smelt.graph import build
from smelt.graph.ir import Graph
from smelt.graph.names import FAMILIES, PLAIN, make_operator, operators
from smelt.graph.text import name_values, parse, text
from smelt.ops.view import Flip, Permute
from smelt.python.origin import Origin
from smelt.types.dtype import f32
from smelt.types.expr import size
from smelt.types.tensor import TensorType

EVERYTHING = """graph everything(x: f32[n,m*4] strides(?,1), b: f16[m*4], i: i64[k], s: c64[]) {
  require n <= m*4
  require 1 <= n
  require n%2 == 0
  require k != 3
  v0 = scan.prod(x) {axis=1} : f32[n,m*4]
  v1 = pad(v0) {low=(0, 1), high=(n, 0), value=-0.0} : f32[n*2,m*4 + 1]
  v2 = concat(x, v0) {axis=0} : f32[n*2,m*4]
  v3 = slice(v2) {starts=(n, 0), sizes=(n, m*4), steps=(1, 1)} : f32[n,m*4]
  v4 = flip(v3) {axes=(0, 1)} : f32[n,m*4]
  v5 = permute(v4) {perm=(1, 0)} : f32[m*4,n]
  v6 = reshape(v5) {shape=(m*n*4,)} : f32[m*n*4]
  v7 = reduce.sum(x) {axes=(0,)} : f32[m*4]
  v8 = expand(v7) {shape=(2, n, m*4)} : f32[2,n,m*4]
  v9 = iota() {shape=(n, 3), axis=1, dtype=i32} : i32[n,3]
  v10 = size() {expr=n*4 + min(m, n)//2, dtype=f32} : f32[]
  v11 = gather(x, i) {first=0} : f32[k,m*4]
  v12 = cast(b) {dtype=f32} : f32[m*4]
  v13 = contract(x, v12) {spec="i,j; j -> i", dtype=f32} : f32[n]
  v14 = contract(v7, b) {spec="o + w; w -> o", extents=(("o", m), ("w", m*4)), padded=true} : f32[m]
  v15 = scatter.put(v7, 1.5:f32, i) : f32[m*4]
  v16 = select(true:bool, nan:f32, -inf:f32) : f32[]
  v17 = add(-5:i8, 7:i8) : i8[]
  v18 = pad(b) {low=(1,), high=(0,), value=-nan} : f16[m*4 + 1]
  v19 = add(-nan:f32, nan:f32) : f32[]
  return v1, v6, v8, v9, v10, v11, v13, v14, v15, v16, v17, v18, v19, x, 1e-30:f64, 2:u8
}"""


def test_everything_reads_back() -> None:
    assert text(parse(EVERYTHING)) == EVERYTHING


def test_every_operator_has_a_name_that_reads_back() -> None:
    assert set(PLAIN) <= set(operators())
    assert {f"{f}.{m}" for f, (_, _, members) in FAMILIES.items() for m in members} <= set(
        operators()
    )
    assert make_operator("flip", {"axes": (0,)}) == Flip((0,))


def test_one_line_and_comments() -> None:
    graph = parse("graph f(x: f32[4]) { # a comment\n a = exp(x) : f32[4] return a, x } # the end")
    assert text(graph) == ("graph f(x: f32[4]) {\n  v0 = exp(x) : f32[4]\n  return v0, x\n}")


def test_values_avoid_the_names_of_inputs() -> None:
    graph = parse("graph f(v0: f32[4], v2: f32[4]) { a = exp(v0) b = exp(v2) return a, b }")
    assert "  v1 = exp(v0)" in text(graph)
    assert "  v3 = exp(v2)" in text(graph)
    assert text(parse(text(graph))) == text(graph)


def test_long_heads_are_broken() -> None:
    inputs = ", ".join(f"a_long_name_{k}: f32[n,m]" for k in range(8))
    printed = text(parse(f"graph f({inputs}) {{ return a_long_name_0 }}"))
    assert "\n    a_long_name_3: f32[n,m],\n" in printed
    assert max(map(len, printed.split("\n"))) < 100
    assert text(parse(printed)) == printed


def test_no_inputs_no_outputs() -> None:
    assert text(parse("graph f() { return }")) == "graph f() {\n  return\n}"


def test_origins_are_comments() -> None:
    x = build.input("x", TensorType(f32, (size("n"),)))
    y = build.map("exp", x, origin=Origin("user.py", 12))
    graph = Graph("f", (x,), (y,))
    assert "  v0 = exp(x) : f32[n]  # user.py:12\n" in text(graph, origins=True)
    assert text(parse(text(graph, origins=True))) == text(graph)


def test_numbers_of_numpy_are_numbers() -> None:
    x = build.input("x", TensorType(f32, (2, 3)))
    y = build.apply(Permute((np.int64(1), np.int64(0))), x)  # type: ignore[arg-type]
    assert "{perm=(1, 0)}" in text(Graph("f", (x,), (y,)))


def test_names_of_values() -> None:
    graph = parse("graph f(x: f32[4]) { a = mul(x, 0.5:f32) return a }")
    (a,) = graph.outputs
    names = name_values(graph)
    assert [names[node] for node in (a, *a.inputs)] == ["v0", "x", "0.5:f32"]


@pytest.mark.parametrize(
    ("source", "line", "column", "expected"),
    [
        ("", 1, 1, "`graph` expected, found the end"),
        ("graph f(x: f32[4]) {\n  v = exp(x : f32[4]\n return v }", 2, 13, "`,`"),
        ("graph f(x: f31[4]) { return x }", 1, 12, "an element type"),
        ("graph f(x: f32[n/2]) { return x }", 1, 16, "an index expression"),
        ("graph f(x: f32[n//0]) { return x }", 1, 16, "an index expression"),
        ("graph f(x: f32[4]) {\n  v = expp(x)\n return v }", 2, 7, "an operator"),
        ("graph f(x: f32[4]) {\n  v = exp(y)\n return v }", 2, 11, "a value defined above"),
        ("graph f(x: f32[4]) {\n  x = exp(x)\n return x }", 2, 3, "a new name"),
        ("graph f(x: f32[4], x: f32[4]) { return x }", 1, 20, "a new name"),
        ("graph f(x: f32[4]) {\n  v = flip(x) {axis=0}\n return v }", 2, 7, "attributes of flip"),
        ("graph f(x: f32[4]) {\n  v = add(x, 1.0:f31)\n return v }", 2, 14, "a constant with"),
        ("graph f(x: f32[4]) {\n  require n ~ 4\n return x }", 2, 11, "a relation"),
        ("graph f(x: f32[4]) { return x } more", 1, 33, "the end"),
        ('graph f(x: f32[4]) { v = contract(x, x) {spec="i; i -> ', 1, 47, "a closed string"),
    ],
)
def test_mistakes_are_shown_in_place(source: str, line: int, column: int, expected: str) -> None:
    with pytest.raises(GraphTextError) as caught:
        parse(source)
    assert expected in caught.value.message
    assert (caught.value.line, caught.value.column) == (line, column)
    assert "E401" in str(caught.value)


def test_operands_that_do_not_fit() -> None:
    with pytest.raises(ShapeError, match="do not broadcast"):
        parse("graph f(x: f32[3], y: f32[4]) { a = add(x, y) return a }")


def test_what_has_no_text_is_refused() -> None:
    x = build.input("x", TensorType(f32, (2,)))
    y = build.apply(Flip({0}), x)  # type: ignore[arg-type]
    with pytest.raises(GraphTextError, match="no text form"):
        text(Graph("f", (x,), (y,)))
