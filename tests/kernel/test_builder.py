"""Builder, types and axes of values, and the ways through a kernel."""

from __future__ import annotations

import pytest
from tests.kernel.builder import Builder
from tests.kernel.goldens import GOLDENS

from smelt.errors import DTypeError, VerifyError
from smelt.kernel import walk
from smelt.kernel.env import Env, axes_of, dtype_of
from smelt.kernel.ir import (
    Apply,
    Block,
    Each,
    Extreme,
    IndexValue,
    Let,
    Load,
    Partial,
    Ref,
    Split,
    Store,
    Stream,
)
from smelt.kernel.text import parse, text
from smelt.types.dtype import bf16, bool_, f32, f64, i32, i64
from smelt.types.expr import axis, size

r, c, n = size("r"), size("c"), size("n")


def build_softmax() -> Builder:
    b = Builder("softmax_long")
    i, j = b.axis("r"), b.axis("c")
    x, y = b.input("x", f32, (r, c)), b.output("y", f32, (r, c))
    b.grid(Block("r", 1))
    with b.stream(Block("c", 8192), states=[b.state("m", float("-inf")), b.state("l", 0)]):
        t = b.let("t", b.load(x, i, j))
        new = b.update("m", b.apply("max", Ref("m"), b.reduce("max", t, "c")))
        scale = b.apply("exp", b.apply("sub", Ref("m"), new))
        terms = b.reduce("sum", b.apply("exp", b.apply("sub", t, new)), "c")
        b.update("l", b.apply("add", b.apply("mul", Ref("l"), scale), terms))
    with b.stream(Block("c", 8192)):
        top = b.apply("exp", b.apply("sub", b.load(x, i, j), Ref("m")))
        b.store(y, (i, j), b.apply("div", top, Ref("l")))
    return b


def test_a_built_kernel_is_the_parsed_one():
    assert text(build_softmax().kernel()) == GOLDENS["softmax_long"]
    assert build_softmax().kernel() == parse(GOLDENS["softmax_long"])


def test_every_kind_of_statement_can_be_built():
    b = Builder("k")
    i, d = b.axis("n"), b.axis("d", size("v") * 2)
    ids = b.input("ids", i32, (n,))
    table = b.input("table", bf16, (n, size("v") * 2), (None, 1))
    y, z = b.output("y", f64, (n,)), b.output("z", i64, (n,))
    acc = b.in_place(b.input("acc", f32, (n,)))
    b.grid(Block("n", 1))
    b.require(n - 2)
    at = b.position("at", b.load(ids, i), n)
    h = b.let("h", b.scan("sum", b.load(table, at, d, other=0), "d"), origin=4)
    low = b.choose(b.apply("lt", i, 3), b.reduce("min", h, "d"), 0)
    b.store(y, (i,), b.cast(low, f64))
    b.store(z, (i,), b.apply("add", b.reduce("argmax", h, "d"), i), b.apply("gt", i, 0))
    b.store(acc, (i,), b.apply("mul", b.load(acc, i), b.dot(h, h, "d")))
    kernel = b.kernel()
    assert parse(text(kernel)) == kernel
    assert "origin" not in text(kernel)
    assert kernel.body[1] == Let("h", kernel.body[1].value)  # its origin is not compared


def test_a_builder_reports_mistakes_at_their_call():
    b = Builder("k")
    i = b.axis("n")
    x = b.input("x", f32, (n,))
    with pytest.raises(DTypeError):
        b.apply("add", b.load(x, i), b.load(b.input("w", f64, (n,)), i))
    with pytest.raises(DTypeError, match="does not take 1"):
        b.apply("add", 1)
    with pytest.raises(VerifyError, match="no value yet"):
        b.let("h", Ref("g"))
    with pytest.raises(VerifyError, match="1 dimensions"):
        b.load(x)
    b.store(b.output("y", f32, (n,)), (i + 1,), 0)
    with pytest.raises(VerifyError, match="can leave"):
        b.kernel()
    assert b.kernel(check=False).name == "k"


def test_types_and_axes_follow_from_operands():
    env = Env.after(parse(GOLDENS["causal_attention"]))
    assert env.names["s"].dtype == env.names["w"].dtype == f32
    assert env.names["r"].dtype == i32
    assert env.names["s"].axes == frozenset("bhmn")
    assert env.names["acc"].axes == frozenset("me")
    assert env.new["acc"].axes == frozenset("me")
    assert dtype_of(Extreme(IndexValue(axis("m", 4), i64), True), env) == i64
    assert dtype_of(Partial(Ref("s")), env) == bool_
    assert axes_of(Partial(Ref("s")), env) == frozenset()
    kernel = parse(GOLDENS["embed"])
    assert axes_of(Load("table", (axis("at", n),)), kernel) == {"at"}
    assert axes_of(Ref("h"), kernel) == {"t", "d"}
    assert dtype_of(Ref("h"), kernel) == f32
    assert dtype_of(Ref("at"), kernel) == i64


def test_names_of_a_stream_end_with_it():
    kernel = parse(GOLDENS["columns"])
    env = Env.of(kernel)
    for s in kernel.body[:1]:
        env.bind(s)
    assert env.lookup("s").axes == {"c"}
    with pytest.raises(VerifyError, match="d is read where it has no value yet"):
        env.lookup("d")


def test_walking_finds_everything():
    kernel = parse(GOLDENS["decode"])
    assert [x.param for x in walk.loads(kernel)] == ["q", "k", "v"]
    assert [x.param for x in walk.stores(kernel)] == ["o"]
    assert list(walk.states(kernel)) == ["r", "l", "acc"]
    assert walk.splits(kernel) == (Split("p", "n", 8),)
    assert [x.axis for x in walk.blocks(kernel)] == ["b", "n"]
    assert sum(isinstance(s, Stream) for s in walk.statements(kernel)) == 1
    assert walk.axes_used(kernel) == set("bgdne")
    assert walk.refs(kernel.body[0])[:2] == ["r", "s"]
    assert parse(GOLDENS["adamw"]).grid[0] == Each(148)


def test_rebuilding_keeps_what_does_not_change():
    kernel = parse(GOLDENS["add_layernorm"])
    assert walk.map_values(kernel, lambda v: v) == kernel
    let = kernel.body[0]
    assert isinstance(let, Let)
    assert walk.transform(let.value, lambda v: v) is let.value


def test_substitution_moves_indices_and_names():
    kernel = parse(GOLDENS["log_relu"])
    store = kernel.body[0]
    assert isinstance(store, Store)
    moved = walk.substitute(store.value, axes={"r": axis("r", r) + 1})
    assert [str(x.index[0]) for x in walk.loads(moved)] == ["r + 1", "c"]
    both = Apply("add", (Ref("a"), Ref("a", next=True)))
    assert walk.substitute(both, names={"a": Ref("b")}) == Apply(
        "add", (Ref("b"), Ref("a", next=True))
    )
