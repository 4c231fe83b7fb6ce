"""Graphs traced with numbers, generalised: the same program for other numbers."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.graph.substitute_sizes import substitute_sizes

from smelt.graph.generalize_shapes import Generalized, generalize
from smelt.graph.interp import run as interpret
from smelt.graph.ir import Graph
from smelt.graph.is_instance import match_instance
from smelt.graph.sink_expand import sink_expands
from smelt.graph.text import parse, text
from smelt.graph.verify import verify
from smelt.graph.walk import input_size_names
from smelt.types.expr import Index, evaluate

Draw = Any
FIXED = ("w", "t")


def generalized(graph: Graph, **message: Any) -> Generalized:
    """The graph made general, its parameters fixed."""
    fixed = [x for x in graph.inputs if x.op.label in FIXED]  # type: ignore[attr-defined]
    actual = next(generalize(graph, fixed=fixed, **message), None)
    assert actual is not None
    return actual


LAYER = """graph f(x: f32[{b},{n},6], w: f32[6,6], t: f32[99,6]) {{
  p = slice(t) {{starts=(0, 0), sizes=({n}, 6), steps=(1, 1)}}
  e = add(x, p)
  r = reshape(e) {{shape=({b}*{n}, 6)}}
  c = contract(r, w) {{spec="m,k; n,k -> m,n"}}
  h = reshape(c) {{shape=({b}, {n}, 2, 3)}}
  q = permute(h) {{perm=(0, 2, 1, 3)}}
  s = contract(q, q) {{spec="b,h,m,d; b,h,n,d -> b,h,m,n"}}
  i = iota() {{shape=({n}, 1), axis=0, dtype=i64}}
  j = iota() {{shape=(1, {n}), axis=1, dtype=i64}}
  l = le(j, i)
  a = select(l, s, 0.0:f32)
  o = contract(a, q) {{spec="b,h,m,n; b,h,n,d -> b,h,m,d"}}
  k = permute(o) {{perm=(0, 2, 1, 3)}}
  y = reshape(k) {{shape=({b}, {n}, 6)}}
  u = slice(y) {{starts=(0, 1, 0), sizes=({b}, {n} - 1, 6), steps=(1, 1, 1)}}
  v = reshape(u) {{shape=({b}*{n} - {b}, 6)}}
  z = reduce.sum(v) {{axes=(0,)}}
  g = div(z, {count})
  d = slice(y) {{starts=(0, {n} - 1, 0), sizes=({b}, 1, 6), steps=(1, 1, 1)}}
  return y, g, d
}}"""


def layer(b: int, n: int) -> Graph:
    return parse(LAYER.format(b=b, n=n, count=f"{b * (n - 1)}.0:f32"))


def test_other_numbers_give_the_same_graph() -> None:
    one, other = generalized(layer(4, 5)), generalized(layer(7, 11))
    assert text(one.graph) == text(other.graph)
    assert (one.sizes, other.sizes) == ({"n0": 4, "n1": 5}, {"n0": 7, "n1": 11})


def test_any_size_varies_weights_and_splits_sizes() -> None:
    graph = parse("""graph f(x: f32[2, 768], w: f32[768, 2304] constant) {
      v0 = contract(x, w) {spec="m,k; k,n -> m,n"}
      v1 = reshape(v0) {shape=(2, 3, 12, 64)}
      v2 = permute(v1) {perm=(0, 2, 1, 3)}
      return v2
    }""")
    (usual, free) = (next(generalize(graph, any_size=x)) for x in (False, True))
    assert dict(usual.sizes) == {"n0": 2}
    assert sorted(free.sizes.values()) == [2, 3, 12, 64, 768]
    verify(free.graph)
    (shape,) = (x.type.shape for x in free.graph.outputs)
    assert [evaluate(d, free.sizes) for d in shape] == [2, 12, 3, 64]


def test_a_batch_of_one_varies() -> None:
    """What is made of it serves every other batch, and gives its numbers."""
    one, other = generalized(layer(1, 5)), layer(3, 7)
    assert one.sizes == {"n0": 1, "n1": 5}
    reported = match_instance(one.graph, generalized(other).graph)
    assert reported is not None
    random = np.random.default_rng(0)
    arrays = [random.standard_normal(x.type.shape).astype("f4") for x in other.inputs]
    result = interpret(one.graph, arrays, {"n0": 3, "n1": 7})
    for a, b in zip(result, interpret(other, arrays), strict=True):
        assert np.array_equal(a, b)


TOKEN = """graph f(x: f32[{b},5], w: f32[5], t: f32[1,5]) {{
  e = expand(t) {{shape=({b}, 5)}}
  a = mul(x, w)
  c = concat(a, e) {{axis=1}}
  z = expand(0.5:f32) {{shape=({b}, 5)}}
  y = concat(c, z) {{axis=1}}
  return y
}}"""


def test_what_is_repeated_for_a_batch_of_one_is_so_for_every_other() -> None:
    one, other = (generalized(parse(TOKEN.format(b=b))) for b in (1, 4))
    assert text(one.graph) == text(other.graph)


@pytest.mark.parametrize(
    "body",
    [
        "v = add(x, y)\n  return v",
        "v = add(y, x)\n  return v",
        "v = expand(x) {shape=(4, 5)}\n  return v",
        (
            "r = reshape(x) {shape=(1, 5)}\n  e = expand(r) {shape=(4, 5)}\n"
            "  v = add(e, y)\n  return v"
        ),
        "v = expand(x) {shape=(3, 1, 5)}\n  u = add(v, y)\n  return u",
        "v = concat(x, y) {axis=1}\n  return v",
        "r = permute(x) {perm=(1, 0)}\n  v = gather(x, i) {first=0}\n  u = add(v, y)\n  return u",
    ],
)
def test_a_one_that_is_repeated_is_always_one(body: str) -> None:
    """A broadcast dimension of 1 varies only if it meets a batch of one."""
    shape = "1" if "concat" in body else "4"
    graph = parse(f"graph f(x: f32[1,5], y: f32[{shape},5], i: i64[4]) {{\n  {body}\n}}")
    result = generalized(graph)
    first, second = (x.type.shape[0] for x in result.graph.inputs[:2])
    assert first == second if shape == "1" else first == 1 or "gather" in body
    sizes = {n: 3 if e == 1 else 4 if e == 4 else 5 for n, e in result.sizes.items()}
    substitute_sizes(result.graph, sizes)  # raises where dimensions do not meet


@pytest.mark.parametrize(
    "body",
    [
        "y = concat(a, z) {axis=0}",
        "y = concat(z, a) {axis=0}",
        "y = scatter.add(w, t, i)",
    ],
)
def test_a_batch_of_one_beside_what_repeats_nothing_is_one(body: str) -> None:
    """Parts that are joined, and what updates go to."""
    graph = parse(f"""graph f(x: f32[1,5], w: f32[3,1], i: i64[5]) {{
      t = permute(x) {{perm=(1, 0)}}
      a = expand(x) {{shape=(2, 1, 5)}}
      z = expand(0.5:f32) {{shape=(1, 1, 5)}}
      {body}
      return y, a, z, t
    }}""")
    actual = generalized(graph)
    assert actual.graph.inputs[0].type.shape[0] == 1


def test_sizes_that_are_symbols_already_give_the_same_graph() -> None:
    """A tracer that has learnt that one of them varies names that one, or both."""
    wanted = text(generalized(layer(4, 5)).graph)
    body = LAYER.replace("  g = ", "  count = size() {{expr={rows}, dtype=f32}}\n  g = ")
    half = parse(body.format(b=4, n="n3", rows="4*n3 - 4", count="count"))
    actual = generalized(half, hints={"n3": 5})
    assert text(actual.graph) == wanted
    assert actual.sizes == {"n0": 4, "n1": half.inputs[0].type.shape[1]}
    both = parse(body.format(b="n9", n="n3", rows="n9*n3 - n9", count="count"))
    assert text(generalized(both, hints={"n9": 4, "n3": 5}).graph) == wanted


def test_the_same_numbers_come_out() -> None:
    graph = layer(4, 5)
    random = np.random.default_rng(0)
    arrays = [random.standard_normal(x.type.shape).astype("f4") for x in graph.inputs]
    result = generalized(graph)
    wanted = interpret(graph, arrays)
    for a, b in zip(interpret(result.graph, arrays, result.sizes), wanted, strict=True):  # type: ignore[arg-type]
        assert np.array_equal(a, b)


def test_what_a_parameter_says_is_a_number() -> None:
    """A feature that happens to be as many as the batch is not a batch."""
    graph = parse("""graph f(x: f32[4,4], w: f32[4,3]) {
  c = contract(x, w) {spec="m,k; k,n -> m,n"}
  return c
}""")
    assert generalized(graph).sizes == {"n0": 4}
    assert generalized(graph).graph.inputs[0].type.shape[1] == 4
    graph = parse("""graph f(x: f32[5,4], w: f32[4,3]) {
  c = contract(x, w) {spec="m,k; k,n -> m,n"}
  return c
}""")
    assert generalized(graph).sizes == {"n0": 5}


@pytest.mark.parametrize(
    "body",
    [
        "r = reshape(x) {shape=(2, 10, 6)}\n  return r",  # splits what may vary
        "r = window(x) {axis=1, extent=3, step=2, dilation=1}\n  return r",
        "r = slice(x) {starts=(0, 0, 0), sizes=(4, 3, 6), steps=(1, 2, 1)}\n  return r",
    ],
)
def test_sizes_that_are_needed_as_numbers(body: str) -> None:
    graph = parse(f"graph f(x: f32[4,5,6], w: f32[6]) {{\n  {body}\n}}")
    assert 5 not in generalized(graph).sizes.values()


@pytest.mark.parametrize(
    "body",
    [
        "r = reduce.sum(x) {axes=(1,)}\n  y = div(r, 5.0:f32)\n  return y",
        "y = slice(x) {starts=(0, 0, 0), sizes=(4, 4, 6), steps=(1, 1, 1)}\n  return y",
        "y = slice(x) {starts=(0, 4, 0), sizes=(4, 1, 6), steps=(1, 1, 1)}\n  return y",
        "y = pad(x) {low=(0, 8, 0), high=(0, 0, 0), value=0.0}\n  return y",
        (
            "r = permute(x) {perm=(1, 0, 2)}\n  i = iota() {shape=(5,), axis=0, dtype=i64}\n"
            "  y = gather(r, i) {first=0}\n  return y"
        ),
        (
            "r = permute(x) {perm=(1, 0, 2)}\n  i = iota() {shape=(3,), axis=0, dtype=i64}\n"
            "  t = lt(i, 0:i64)\n  a = add(i, 5:i64)\n  s = select(t, a, i)\n"
            "  y = gather(r, s) {first=0}\n  return y"
        ),
        (
            "e = slice(q) {starts=(0, 0), sizes=(n, 5), steps=(1, 1)}\n"
            "  y = reshape(e) {shape=(5, n)}\n  return y"
        ),
    ],
)
def test_a_number_is_not_a_size_that_has_it_for_a_hint(body: str) -> None:
    """Which is 5 in the call that was traced, and another number in the next."""
    graph = parse(f"graph f(x: f32[4,n,6], q: f32[n,5]) {{\n  {body}\n}}")
    actual = generalized(graph, hints={"n": 5})
    new = next(k for k, e in actual.sizes.items() if e == graph.inputs[0].type.shape[1])
    sizes = {k: 7 if k == new else e for k, e in actual.sizes.items()}
    assert text(substitute_sizes(actual.graph, sizes)) == text(substitute_sizes(graph, {"n": 7}))


def test_no_elements_and_many_sizes_stay_numbers() -> None:
    graph = parse("graph f(x: f32[4,0]) {\n  y = exp(x)\n  return y\n}")
    assert next(generalize(graph), None) is None
    graph = parse("graph f(x: f32[2,3,4,5,6,7,8,9,10]) {\n  y = exp(x)\n  return y\n}")
    assert next(generalize(graph), None) is None
    actual = next(generalize(graph, among=(3, 5)))
    assert actual.sizes == {"n0": 3, "n1": 5}


def test_only_numbers_among_those_that_vary() -> None:
    """A gradient lies as the value does that the forward graph kept: other dimensions are what
    they meet."""
    graph = parse("""graph f(x: f32[4,5,8], w: f32[8,3], g: f32[20,3]) {
  r = reshape(x) {shape=(20, 8)}
  c = contract(r, g) {spec="m,k; m,n -> k,n"}
  d = add(c, w)
  return d
}""")
    actual = generalized(graph, among=(4, 5))
    assert [x.type.shape for x in actual.graph.inputs][2][0] == actual.graph.inputs[0].type.shape[
        0
    ] * (actual.graph.inputs[0].type.shape[1])


def test_what_counts_by_its_meaning_is_a_number() -> None:
    """Both parts of complex numbers are two in every call, also where a batch is two now."""
    graph = parse("""graph f(x: f32[2,5,2]) {
  a = slice(x) {starts=(0, 0, 0), sizes=(2, 5, 1), steps=(1, 1, 1)}
  y = reshape(a) {shape=(2, 5)}
  return y
}""")
    actual = generalized(graph, counts={graph.inputs[0]: (2,)})
    n0, n1, two = actual.graph.inputs[0].type.shape
    assert two == 2
    assert actual.graph.outputs[0].type.shape == (n0, n1)
    assert actual.sizes == {"n0": 2, "n1": 5}


def _meet(one: list[int], other: list[int]) -> bool:
    return all(m == n or 1 in (m, n) for m, n in zip(one[::-1], other[::-1]))


def _largest(k: int, name: str, inputs: list[int], axis: int) -> list[str]:
    """Lines that make rk: the largest elements along an axis, which is kept."""
    kept = tuple(1 if d == axis else m for d, m in enumerate(inputs))
    return [
        f"s{k} = reduce.max({name}) {{axes=({axis},)}}",
        f"r{k} = reshape(s{k}) {{shape={kept}}}",
    ]


def _places(k: int, inputs: list[int], axis: int) -> list[str]:
    """Lines that make ck: how far each element is along an axis."""
    return [
        f"i{k} = iota() {{shape={tuple(inputs)}, axis={axis}, dtype=i64}}",
        f"c{k} = cast(i{k}) {{dtype=f32}}",
    ]


def _padded(name: str, rank: int, axis: int, low: int, high: int) -> str:
    lows, highs = (tuple(m if d == axis else 0 for d in range(rank)) for m in (low, high))
    return f"pad({name}) {{low={lows}, high={highs}, value=0.5}}"


def _program(shape: list[int], lines: list[str], result: str) -> Graph:
    body = "".join(f"  {line}\n" for line in lines)
    dims = ",".join(map(str, shape))
    return parse(f"graph f(x: f32[{dims}], w: f32[3]) {{\n{body}  return {result}, w\n}}")


@st.composite
def programs(draw: Draw) -> Graph:
    """Views and sums of one operand in any order, beside positions and a row of parameters."""
    shape = draw(st.lists(st.sampled_from((1, 2, 3, 4, 6)), min_size=1, max_size=4))
    lines: list[str] = []
    name, inputs = "x", list(shape)
    for k in range(draw(st.integers(1, 7))):
        kind = draw(st.sampled_from(("reshape", "permute", "slice", "pad", "concat", "add", "sum",
                                     "mean", "expand", "own", "gather", "stretch", "less",
                                     "beside")))  # fmt: skip
        a = draw(st.integers(0, len(inputs) - 1)) if inputs else 0
        n = inputs[a] if inputs else 1
        new, out, line = f"v{k}", list(inputs), ""
        if kind == "reshape":
            flat = int(np.prod(inputs, dtype=int))
            first = draw(st.sampled_from([d for d in range(1, flat + 1) if flat % d == 0]))
            out = draw(st.sampled_from(([first, flat // first], [flat], [1, *inputs])))
            line = f"reshape({name}) {{shape={tuple(out)}}}"
        elif kind == "permute" and inputs:
            perm = draw(st.permutations(range(len(inputs))))
            out, line = [inputs[p] for p in perm], f"permute({name}) {{perm={tuple(perm)}}}"
        elif kind == "slice" and inputs:
            start = draw(st.integers(0, n - 1))
            out[a] = draw(st.integers(1, n - start))
            starts = tuple(start if d == a else 0 for d in range(len(inputs)))
            line = f"slice({name}) {{starts={starts}, sizes={tuple(out)}, steps={(1,) * len(out)}}}"
        elif kind == "pad" and inputs:
            low, high = draw(st.integers(0, 9)), draw(st.integers(0, 9))
            out[a] += low + high
            line = _padded(name, len(inputs), a, low, high)
        elif kind == "concat" and inputs:
            out[a] *= 2
            line = f"concat({name}, {name}) {{axis={a}}}"
        elif kind == "add":
            line = f"add({name}, {name})"
        elif kind in ("sum", "mean") and inputs:
            del out[a]
            lines.append(f"s{k} = reduce.sum({name}) {{axes=({a},)}}")
            line = f"div(s{k}, {float(n)}:f32)" if kind == "mean" else f"neg(s{k})"
        elif kind == "expand":
            out = [draw(st.sampled_from((2, 3, 4))), *inputs]
            line = f"expand({name}) {{shape={tuple(out)}}}"
        elif kind == "own" and inputs:
            lines += _places(k, inputs, a)
            line = f"mul({name}, c{k})"
        elif kind == "gather" and inputs:
            lines.append(f"j{k} = iota() {{shape=({n},), axis=0, dtype=i64}}")
            line = f"gather({name}, j{k}) {{first={a}}}"
        elif kind == "stretch" and 1 in inputs:
            a = inputs.index(1)
            out[a] = draw(st.sampled_from((1, 2, 3)))
            line = f"expand({name}) {{shape={tuple(out)}}}"
        elif kind == "less" and inputs:
            lines += _largest(k, name, inputs, a)
            line = f"sub({name}, r{k})"
        elif kind == "beside" and len(inputs) <= len(shape) and _meet(inputs, shape):
            out = [max(m, n) for m, n in zip_longest(inputs[::-1], shape[::-1], fillvalue=1)][::-1]
            line = f"add({name}, x)"
        if line and int(np.prod(out, dtype=int)) < 5000 and len(out) < 7:
            lines.append(f"{new} = {line}")
            name, inputs = new, out
    return _program(shape, lines, name)


def test_positions_are_counted_through_what_turns_them() -> None:
    """A dimension of 1 is added behind the others, and moved to its place."""
    one, other = (
        generalized(
            parse(f"""graph f(x: f32[{n},3], w: f32[3]) {{
  i = iota() {{shape=({n},), axis=0, dtype=i64}}
  r = reshape(i) {{shape=({n}, 1)}}
  p = permute(r) {{perm=(1, 0)}}
  l = lt(p, 0:i64)
  a = add(p, {n}:i64)
  s = select(l, a, p)
  g = gather(x, s) {{first=0}}
  y = mul(g, w)
  return y
}}""")
        )
        for n in (5, 7)
    )
    assert text(one.graph) == text(other.graph)


@settings(max_examples=400, deadline=None)
@given(programs())
def test_with_its_sizes_put_in_it_is_the_graph_that_was_given(graph: Graph) -> None:
    for result in generalize(graph, fixed=graph.inputs[1:]):
        _compare(result, graph)


def _compare(actual: Generalized, graph: Graph) -> None:
    values: dict[str, Index] = dict(actual.sizes)
    assert {*values} == {*input_size_names(actual.graph)}
    back = substitute_sizes(actual.graph, values)
    random = np.random.default_rng(1)
    arrays = [random.standard_normal(x.type.shape).astype("f4") for x in graph.inputs]
    for a, b in zip(interpret(back, arrays), interpret(graph, arrays), strict=True):
        assert np.array_equal(a, b)
    assert [n.type for n in back.outputs] == [n.type for n in graph.outputs]
    for a, b in zip(
        interpret(verify(sink_expands(back)[0]), arrays), interpret(back, arrays), strict=True
    ):
        assert a.shape == b.shape
        assert np.allclose(a, b, rtol=1e-5, atol=1e-5)


def test_many_sizes_are_one_for_each_number() -> None:
    """Of many inputs that no operator compares: told apart they would be too many."""
    names = [f"x{k}" for k in range(5)]
    graph = parse(f"""graph f({", ".join(f"{n}: f32[4,7]" for n in names)}) {{
  a = exp(x0)
  b = exp(x1)
  c = exp(x2)
  d = exp(x3)
  e = exp(x4)
  return a, b, c, d, e
}}""")
    assert generalized(graph).sizes == {"n0": 4, "n1": 7}


def test_one_of_two_elements_is_one() -> None:
    """What a slice takes is as long as what it leaves out, and its axis is dropped: it is two."""
    graph = parse("""graph f(x: f32[5,3,2]) {
  r = reshape(x) {shape=(15, 2)}
  t = reduce.sum(r) {axes=(0,)}
  s = slice(t) {starts=(0,), sizes=(1,), steps=(1,)}
  y = reshape(s) {shape=()}
  return y
}""")
    x = np.arange(30, dtype=np.float32).reshape(5, 3, 2)
    actual = generalized(graph)
    assert actual.sizes == {"n0": 5, "n1": 3}
    np.testing.assert_array_equal(interpret(actual.graph, [x]), interpret(graph, [x]))


def test_what_is_unknown_and_split_fixes_no_size_beside_it() -> None:
    """Heads of a width that nothing has told yet are merged with a batch."""
    graph = parse("""graph f(x: f32[5,4], w: f32[3]) {
  r = reshape(x) {shape=(5, 4, 1)}
  e = expand(0.5:f32) {shape=(5, 4, 6)}
  a = mul(r, e)
  h = reshape(a) {shape=(5, 8, 3)}
  y = mul(h, w)
  return y
}""")
    actual = generalized(graph)
    assert actual.sizes == {"n0": 5, "n1": 4}
    assert [str(d) for d in actual.graph.outputs[0].type.shape] == ["n0", "n1*2", "3"]


def test_multiples_are_equal_where_what_they_are_multiples_of_is() -> None:
    """Heads of a batch, and as many slopes repeated for each of its texts."""
    graph = parse("""graph f(x: f32[2,4,5], w: f32[4]) {
  r = reshape(x) {shape=(8, 5)}
  e = expand(w) {shape=(2, 4)}
  s = reshape(e) {shape=(8, 1)}
  y = mul(r, s)
  return y
}""")
    actual = generalized(graph, among=(2, 5))
    assert actual.sizes == {"n0": 2, "n1": 5}
    assert [str(d) for d in actual.graph.outputs[0].type.shape] == ["n0*4", "n1"]


RELATIVE = """graph f(x: f32[{b},{n},6], w: f32[6,6]) {{
  i = iota() {{shape=({count},), axis=0, dtype=i64}}
  m = mul(i, -1:i64)
  a = add(m, {first}:i64)
  c = cast(a) {{dtype=f32}}
  r = reshape(c) {{shape=({count}, 1)}}
  e = expand(r) {{shape=({count}, 6)}}
  p = contract(e, w) {{spec="m,k; n,k -> m,n"}}
  s = contract(x, p) {{spec="b,m,k; n,k -> b,m,n"}}
  y = reduce.sum(s) {{axes=(2,)}}
  return y
}}"""


@pytest.mark.parametrize(
    ("count", "first"),
    [
        ("2*n", "n"),
        ("2*n - 1", "n - 1"),
        ("2*n + 1", "n"),
        ("2*n - 1", "1 - n"),
        ("2*n", "-n"),
    ],
)
def test_positions_from_a_length_to_the_other_side(count: str, first: str) -> None:
    """Distances between words: only numbers say that there are about twice as many."""
    one, other = (
        generalized(parse(RELATIVE.format(b=b, n=n, count=eval(count), first=eval(first))))
        for b, n in ((3, 16), (5, 40))
    )
    assert text(one.graph) == text(other.graph)
    assert (one.sizes, other.sizes) == ({"n0": 3, "n1": 16}, {"n0": 5, "n1": 40})


def test_positions_of_a_table_are_no_distances() -> None:
    actual = generalized(parse(RELATIVE.format(b=3, n=16, count=64, first=63)))
    assert actual.sizes == {"n0": 3, "n1": 16}
    assert "shape=(64,)" in text(actual.graph)


LAST = """graph f(x: f32[{b},{n}], w: f32[64]) {{
  i = iota() {{shape=(64,), axis=0, dtype=f32}}
  a = mul(i, w)
  s = slice({whole}) {{starts=({start},), sizes=({n},), steps=(1,)}}
  y = add(x, s)
  return y, a
}}"""


@pytest.mark.parametrize("whole", ["a", "w", "i"])
@pytest.mark.parametrize("n", [5, 16, 31, 32])
def test_the_last_of_a_table_are_as_many_as_they_meet(whole: str, n: int) -> None:
    one, other = (
        generalized(parse(LAST.format(b=3, n=k, whole=whole, start=64 - k))) for k in (n, 17)
    )
    assert text(one.graph) == text(other.graph)
    assert one.sizes == {"n0": 3, "n1": n}


def test_parts_of_a_product_are_as_wide_as_they_were() -> None:
    """Heads of queries and of kept keys are not as wide as the caller likes."""
    actual = generalized(
        parse("""graph f(x: f32[2,6], k: f32[2,5,3], w: f32[6,6]) {
  p = contract(x, w) {spec="m,k; k,n -> m,n"}
  a = slice(p) {starts=(0, 0), sizes=(2, 3), steps=(1, 1)}
  q = reshape(a) {shape=(2, 1, 3)}
  s = contract(q, k) {spec="b,m,d; b,n,d -> b,m,n"}
  return s
}""")
    )
    assert [str(d) for d in actual.graph.inputs[1].type.shape] == ["n0", "n1", "3"]


LABELS = """graph f(x: f32[{n},8], w: f32[8,50], y: i64[{n}]) {{
  z = contract(x, w) {{spec="n,k; k,c -> n,c"}}
  i = iota() {{shape=({n}, 1), axis=0, dtype=i64}}
  j = reshape(y) {{shape=({n}, 1)}}
  p = gather(z, i, j) {{first=0}}
  return p
}}"""


def test_a_label_for_each_row_makes_rows_and_labels_equally_many():
    """Sizes of their own would keep the gather from becoming a reduction over the row."""
    actual = generalized(parse(LABELS.format(n=7)))
    x, _, y = actual.graph.inputs
    assert x.type.shape[0] == y.type.shape[0]
    assert list(actual.sizes.values()) == [7]
