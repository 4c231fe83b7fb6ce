"""The loop operator: its text, its type rule, what its verifier refuses, and steps in steps."""

from __future__ import annotations

import numpy as np
import pytest

from smelt.errors import SmeltError
from smelt.graph import interp
from smelt.graph.batch import batch_graph
from smelt.graph.loop import Loop, loop_key
from smelt.graph.text import parse, text
from smelt.graph.verify import verify

STEP = "graph step(c: f32[s], x: f32[s]) {\n v0 = add(c, x)\n return v0, c\n}"
WHILE = (
    "graph step(go: bool[], c: f32[s]) {\n v0 = add(c, c)\n v1 = reduce.sum(v0) {axes=(0,)}\n"
    " v2 = lt(v1, 100.0:f32)\n return v2, v0\n}"
)


def loop(body: str = STEP, operands: str = "c, x", **other: object) -> str:
    attributes = {
        "carries": 1,
        "slices": 1,
        "length": "(t,)",
        "reverse": "false",
        "which": 0,
        "names": '("s",)',
        "sizes": "(n,)",
        **other,
    }
    listed = ", ".join(f"{name}={value}" for name, value in attributes.items())
    return (
        "graph f(g: bool[], c: f32[n], x: f32[t,n]) {\n"
        f" v0 = loop({operands}) {{{listed}, body={body}}}\n return v0\n}}"
    )


def test_text_reads_back_with_loops_in_loops() -> None:
    inner = STEP.replace("v0 = add(c, x)", "y = add(c, x)\n v0 = add(y, c)")
    outer = (
        "graph outer(c: f32[a], x: f32[b,a]) {\n"
        ' v0 = loop(c, x) {carries=1, slices=1, length=(b,), reverse=true, which=0, names=("s",),'
        f" sizes=(a,), body={inner}}}\n return v0\n}}"
    )
    source = (
        "graph f(c: f32[n], x: f32[t,u,n]) {\n"
        " v0 = loop(c, x) {carries=1, slices=1, length=(t,), reverse=false, which=0,"
        f' names=("a", "b"), sizes=(n, u), body={outer}}}\n return v0\n}}'
    )
    graph = verify(parse(source))
    assert text(parse(text(graph))) == text(graph)
    c, x = np.ones(2, np.float32), np.ones((2, 3, 2), np.float32)
    (result,) = interp.run(graph, [c, x])
    for _ in range(6):
        c = c + 1 + c
    np.testing.assert_array_equal(result, c)


def test_results_of_one_run_have_one_key() -> None:
    graph = parse(loop())
    (node,) = graph.outputs
    assert isinstance(node.op, Loop)
    other = parse(loop(which=2)).outputs[0]
    assert isinstance(other.op, Loop) and other.op.which == 2
    assert other.op.body == node.op.body
    assert loop_key(node) != loop_key(other)  # other inputs
    assert loop_key(node.inputs[0]) is None
    assert node.op.body != parse(loop(STEP.replace("add", "mul"))).outputs[0].op.body  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "source",
    [
        loop(which=-1),
        loop(which=3),
        loop(carries=3),
        loop(slices=2),
        loop(length="()"),
        loop(length="(t, t)"),
        loop(length="(n,)"),
        loop(names="()"),
        loop(sizes="(t,)"),
        loop(operands="c"),
        loop(operands="x, c"),
        loop(body='"step"'),
        loop(body=STEP.replace("v0 = add(c, x)", "v0 = reduce.sum(x) {axes=(0,)}")),
        loop(body=STEP.replace("v0 = add(c, x)", "v0 = add(c, x) : f64[s]")),
        loop(WHILE, "g, c", carries=2, slices=0, length="()", which=2),
    ],
)
def test_malformed_loops_are_refused(source: str) -> None:
    verify(parse(loop()))
    with pytest.raises(SmeltError):
        verify(parse(source))


def test_a_batch_of_while_loops_masks_elements_that_have_stopped() -> None:
    source = loop(WHILE, "g, c", carries=2, slices=0, length="()", which=1)
    graph = verify(parse(source))
    batch = verify(batch_graph(graph, (True, True, False), 4))
    go = np.array([True, True, False, True])
    c = np.array([[1, 2], [30, 30], [1, 1], [0.1, 0.1]], np.float32)
    x = np.zeros((1, 2), np.float32)
    (together,) = interp.run(batch, [go, c, x])
    alone = [interp.run(graph, [np.asarray(g), row, x])[0] for g, row in zip(go, c, strict=True)]
    np.testing.assert_array_equal(together, alone)
