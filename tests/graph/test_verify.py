"""Graphs that are not well formed, and what the verifier says about them."""

from __future__ import annotations

import pytest

from smelt.errors import VerifyError
from smelt.graph import build
from smelt.graph.ir import Fact, Graph, Node
from smelt.graph.text import parse
from smelt.graph.verify import verify, verify_same_signature
from smelt.ops.create import Constant, Input
from smelt.ops.elementwise import Map
from smelt.types.dtype import f32
from smelt.types.expr import size
from smelt.types.tensor import TensorType

F4 = TensorType(f32, (4,))


def complaint(graph: Graph) -> str:
    with pytest.raises(VerifyError) as caught:
        verify(graph)
    return str(caught.value)


def test_a_wrong_type_with_its_neighbourhood() -> None:
    lines = [f"  v{k} = exp({'x' if k == 0 else f'v{k - 1}'}) : f32[n]" for k in range(12)]
    lines[6] = "  v6 = exp(v5) : f32[4]"
    lines[7] = "  v7 = exp(v6) : f32[4]"
    source = "graph f(x: f32[n]) {\n" + "\n".join(lines[:8]) + "\n  return v7\n}"
    message = complaint(parse(source))
    assert "v6 is f32[4], but exp(f32[n]) gives f32[n]" in message
    assert "   8 >   v6 = exp(v5) : f32[4]" in message
    assert "   5     v3 = exp(v2)" in message
    assert "v0 =" not in message


def test_operands_that_do_not_fit() -> None:
    message = complaint(parse("graph f(x: f32[3], y: f32[4]) { a = add(x, y) : f32[4] return a }"))
    assert "do not broadcast" in message
    assert "2 >   v0 = add(x, y)" in message
    assert "is not defined for" in complaint(
        parse("graph f(x: f32[3]) { a = not(x) : f32[3] return a }")
    )


def test_products_of_half_types_have_float32_sums() -> None:
    message = complaint(
        parse("""graph f(x: f64[2,3], y: f64[3,4]) {
  c = contract(x, y) {spec="m,k; k,n -> m,n", factors=bf16} : f64[2,4]
  return c
}""")
    )
    assert "factors of bfloat16 have float32 sums, not float64" in message


def test_a_wrong_number_of_operands() -> None:
    message = complaint(
        parse("graph f(x: f32[3]) { a = reduce.sum(x, x) {axes=(0,)} : f32[] return a }")
    )
    assert "reduce.sum does not take (f32[3], f32[3])" in message


def test_a_cycle_is_found_before_anything_walks_it() -> None:
    x = build.input("x", F4)
    a = build.map("add", x, x)
    b = build.map("exp", a)
    a.inputs = (x, b)
    assert "depends on itself" in complaint(Graph("f", (x,), (b,)))


def test_inputs_are_declared_once_under_one_name() -> None:
    x, y, z = (build.input(name, F4) for name in ("x", "x", "z"))
    both = build.map("add", x, y)
    assert "two inputs are called x" in complaint(Graph("f", (x, y), (both,)))
    assert "declared twice" in complaint(Graph("f", (x, x), (x,)))
    assert "z is read but is not an input" in complaint(Graph("f", (x,), (build.map("exp", z),)))
    with pytest.raises(VerifyError, match="is not an input"):
        Graph("f", (both,), (both,))


def test_inputs_are_used_as_declared() -> None:
    x = Node(Input("x", F4), (), TensorType(f32, (5,)))
    assert "declared f32[4] and used as f32[5]" in complaint(Graph("f", (x,), (x,)))
    for strides in ((1, 1), (4,)):
        y = build.input("y", F4, strides)  # type: ignore[arg-type]
        assert "do not describe y" in complaint(Graph("f", (y,), (y,)))


@pytest.mark.parametrize("label", ["", "a b", "0x", "return", "x:y"])
def test_labels_can_be_read_back(label: str) -> None:
    x = build.input(label, F4)
    assert "cannot name an input" in complaint(Graph("f", (x,), (x,)))


@pytest.mark.parametrize("name", ["f32", "true", "min", "a b"])
def test_sizes_can_be_read_back(name: str) -> None:
    x = build.input("x", TensorType(f32, (size(name),)))
    assert "cannot name a size" in complaint(Graph("f", (x,), (x,)))


def test_names_of_graphs_and_relations() -> None:
    x = build.input("x", F4)
    assert verify(Graph("<lambda>", (x,), (x,))).name == "<lambda>"
    assert "cannot name a graph" in complaint(Graph("a b", (x,), (x,)))
    assert "is not a relation" in complaint(Graph("f", (x,), (x,), (Fact(1, ">", 0),)))


def test_constants_are_numbers() -> None:
    c = Node(Constant("one", f32), (), TensorType(f32))  # type: ignore[arg-type]
    y = Node(Map("exp"), (c,), TensorType(f32))
    with pytest.raises(VerifyError, match="is not f32"):
        verify(Graph("f", (), (y,)))


def test_passes_keep_the_signature() -> None:
    before = parse("graph f(x: f32[n]) { a = exp(x) return a }")
    (x,) = before.inputs
    verify_same_signature(before, before)
    for outputs, reported in (
        ((x, x), "1 outputs became 2"),
        ((build.map("eq", x, x),), "output 0"),
    ):
        with pytest.raises(VerifyError, match=reported):
            verify_same_signature(before, Graph("f", (x,), outputs))
    other = build.input("y", x.type)
    with pytest.raises(VerifyError, match="the inputs are not those"):
        verify_same_signature(before, Graph("f", (other,), (other,)))
