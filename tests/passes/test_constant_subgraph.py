"""Constant subgraphs: what is cut off, and that both halves make the whole."""

from __future__ import annotations

import numpy as np
import pytest

from smelt.compiler import driver
from smelt.errors import GraphTextError
from smelt.graph.interp import run
from smelt.graph.text import parse, text
from smelt.machine.target import Target
from smelt.passes.constant_subgraph import split_constant_subgraph
from smelt.runtime.host import unsupported_reason

RNG = np.random.default_rng(2)


def halves(lines: str, inputs: str):
    body = "\n".join(lines.strip().splitlines())
    return split_constant_subgraph(parse(f"graph f({inputs}) {{\n{body}\n}}"))


def parts(lines: str, inputs: str) -> list[str]:
    """The operators of each part."""
    result = halves(lines, inputs).parts
    return [" ".join(n.op.name for n in g.nodes() if n.inputs) for g in result]


W = "x: f32[n,80,80], w: f32[80,80] constant"


def test_work_on_constants_is_cut_off():
    assert parts("a = exp(w)\nb = add(x, a)\nreturn b", W) == ["exp"]
    assert parts("a = exp(w)\nc = sin(a)\nb = add(x, c)\nreturn b", W) == ["exp sin"]


def test_views_and_inputs_as_they_are_stay():
    assert parts("a = permute(w) {perm=(1, 0)}\nb = add(x, a)\nreturn b", W) == []
    actual = halves("a = exp(w)\nt = permute(a) {perm=(1, 0)}\nb = add(x, t)\nreturn b", W)
    assert text(actual.graph).count("permute") == 1 and "exp" not in text(actual.graph)


def test_views_that_a_loop_reads_are_arrays():
    step = (
        "{carries=1, slices=0, length=(3,), reverse=false, which=0, names=(), sizes=(), "
        "body=graph step(c: f32[80,80], k: f32[80,80]) {\nd = sub(c, k)\nreturn d\n}}"
    )
    view = "a = permute(w) {perm=(1, 0)}\n"
    inputs = "x: f32[80,80], w: f32[80,80] constant"
    assert parts(f"{view}b = loop(x, a) {step}\nreturn b", inputs) == ["permute"]
    assert parts(f"{view}b = sub(x, a)\nreturn b", inputs) == []


def test_interleaving_views_are_kept():
    """Rows 0, 40, 1, 41, .. have no step; halves one after another have."""
    split_ = "a = reshape(w) {shape=(2,40,80)}\nb = permute(a) {perm=(1,0,2)}\n"
    dealt = split_ + "c = reshape(b) {shape=(80,80)}\nd = add(x, c)\nreturn d"
    assert parts(dealt, W) == ["reshape permute reshape"]
    whole = (
        "a = reshape(w) {shape=(2,40,80)}\nc = reshape(a) {shape=(80,80)}\nd = add(x, c)\nreturn d"
    )
    assert parts(whole, W) == []


def test_views_that_fill_up_stay():
    lines = "a = shear(w) {shape=(82,80), axis=0, dilation=1}\nb = add(x, a)\nreturn b"
    assert parts(lines, "x: f32[n,82,80], w: f32[80,80] constant") == []


def test_what_comes_from_an_argument_stays():
    assert parts("a = exp(x)\nb = add(a, w)\nreturn b", W) == []
    assert parts("a = exp(w)\nb = add(x, a)\nreturn b", W.replace(" constant", "")) == []


def test_results_are_computed_in_every_call():
    assert parts("a = exp(w)\nreturn a", W) == []
    assert parts("a = exp(w)\nb = sin(a)\nc = add(x, b)\nreturn a, c", W) == []


def test_what_grows_stays_but_what_it_comes_from_does_not():
    """Bytes that are read as bytes because memory is what they save."""
    inputs = "x: f32[n,300,300], w: i8[300,300] constant, s: f32[300] constant"
    lines = "a = cast(w) {dtype=f32}\nb = mul(a, s)\nc = add(x, b)\nreturn c"
    assert parts(lines, inputs) == []
    lines = "e = neg(w)\na = cast(e) {dtype=f32}\nc = add(x, a)\nreturn c"
    assert parts(lines, inputs) == ["neg"]
    rounded = "a = cast(w) {dtype=bf16}\nb = cast(a) {dtype=f32}\nc = add(x, b)\nreturn c"
    assert parts(rounded, W.replace("80", "300")) == ["cast cast"]


def test_what_is_next_to_no_work_stays():
    assert parts("a = exp(w)\nb = add(x, a)\nreturn b", W.replace("80,80", "80")) == []


def test_values_that_depend_on_sizes_stay_in_the_call():
    lines = "e = expand(w) {shape=(n, 80, 80)}\na = exp(e)\nreturn a"
    assert parts(lines, W) == []


def test_two_readers_one_part():
    lines = "a = exp(w)\nb = add(x, a)\nc = mul(b, a)\nreturn c"
    assert parts(lines, W) == ["exp"]


def test_the_text_reads_back():
    source = "graph f(x: f32[n,4], w: f32[4] constant, v: f32[2,4] constant strides(?,1)) {\n"
    whole = source + "  v0 = add(x, w) : f32[n,4]\n  return v0, v\n}"
    assert text(parse(whole)) == whole
    with pytest.raises(GraphTextError):
        parse(whole.replace("constant", "constan"))


GRAPHS = {
    "scaled": """
      e = mul(w, s)
      t = permute(e) {perm=(1, 0)}
      c = contract(x, t) {spec="m,k; k,j -> m,j"}
      return c
    """,
    "sum of a constant": """
      r = reduce.sum(w) {axes=(1,)}
      d = contract(x, w) {spec="m,k; j,k -> m,j"}
      c = add(d, r)
      return c
    """,
    "two uses": """
      a = contract(x, w) {spec="m,k; j,k -> m,j"}
      e = exp(w)
      b = contract(x, e) {spec="m,k; j,k -> m,j"}
      c = mul(a, b)
      return c, b
    """,
    "joined": """
      j = concat(w, s2) {axis=0}
      c = contract(x, j) {spec="m,k; j,k -> m,j"}
      return c
    """,
}


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("target", ["avx512", "avx2", "portable"])
def test_the_halves_give_what_the_whole_gives(name, target):
    head = "x: f32[n,60], w: f32[230,60] constant, s: f32[230,1] constant"
    if "s2" in GRAPHS[name]:
        head = head.replace("s: f32[230,1]", "s2: f32[50,60]")
    elif "s)" not in GRAPHS[name]:
        head = head.rpartition(",")[0].rpartition(",")[0]
    graph = parse(f"graph f({head}) {{{GRAPHS[name]}}}")
    compiled = driver.compile(graph, hints={"n": 100}, target=Target.for_isa(target))
    assert compiled.executable.prelude is not None
    if reason := unsupported_reason(compiled.target):
        pytest.skip(f"compiled for {target}, not run: {reason}")
    shapes = [tuple(d for d in n.type.shape) for n in graph.inputs]
    for rows in (1, 5, 16, 17, 100):
        arrays = [
            RNG.standard_normal([rows if not isinstance(d, int) else d for d in s], np.float32)
            for s in shapes
        ]
        result = compiled.run(arrays, (rows,))
        for a, b in zip(result, run(graph, arrays), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-3)


def test_short_integers_stay_short():
    """What widens them says no more, and products of short ones are faster."""
    for cast in ("i8[80,80]", "u8[80,80]", "i16[80,80]"):
        inputs = f"x: i32[n,80,80], w: {cast} constant"
        assert parts("a = cast(w) {dtype=i32}\nb = add(x, a)\nreturn b", inputs) == []
    inputs = "x: f32[n,80,80], w: i8[80,80] constant"
    assert parts("a = cast(w) {dtype=f32}\nb = add(x, a)\nreturn b", inputs) == ["cast"]
