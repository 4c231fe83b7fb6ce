"""Batch broadcasts are sunk: a batch of one has no other graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from smelt.graph.generalize_shapes import Generalized, generalize
from smelt.graph.interp import run as interpret
from smelt.graph.ir import Graph
from smelt.graph.sink_expand import sink_expands
from smelt.graph.text import parse, text


def _general(graph: Graph) -> Generalized:
    return next(generalize(graph, fixed=graph.inputs[1:]))


REPEATED = {
    "kinds": """
      s = slice(t) {{starts=(0, 0), sizes=(1, {n}), steps=(1, 1)}}
      e = expand(s) {{shape=({b}, {n})}}
      y = gather(w, e) {{first=0}}""",
    "kinds at positions": """
      e = expand(t) {{shape=({b}, 99)}}
      i = iota() {{shape=({b}, {n}), axis=0, dtype=i64}}
      p = slice(q) {{starts=(0, 0), sizes=(1, {n}), steps=(1, 1)}}
      g = gather(e, i, p) {{first=0}}
      y = gather(w, g) {{first=0}}""",
    "a table that is turned": """
      g = gather(w, t) {{first=0}}
      e = expand(g) {{shape=({b}, 99)}}
      p = permute(e) {{perm=(1, 0)}}
      r = reshape(p) {{shape=(33, 3, {b})}}
      m = reduce.max(r) {{axes=(1,)}}
      c = concat(m, m) {{axis=0}}
      a = pad(c) {{low=(1, 0), high=(0, 0), value=0.5}}
      k = flip(a) {{axes=(0,)}}
      j = slice(k) {{starts=(3, 0), sizes=({n}, {b}), steps=(1, 1)}}
      y = permute(j) {{perm=(1, 0)}}""",
    "a mask": """
      i = iota() {{shape=({n},), axis=0, dtype=i64}}
      l = le(i, 3:i64)
      e = expand(l) {{shape=({b}, {n})}}
      z = expand(0.0:f32) {{shape=({b}, {n})}}
      o = expand(1.0:f32) {{shape=({b}, {n})}}
      k = gt(x, 0.5:f32)
      a = and(e, k)
      y = select(a, o, z)""",
}


@pytest.mark.parametrize("name", REPEATED)
def test_what_is_repeated_for_a_batch_may_be_one_row_for_a_batch_of_one(name: str) -> None:
    """Whether a program repeats for its batch cannot be seen in a batch of one."""
    head = "graph f(x: f32[{b},{n}], t: i64[1,99], q: i64[1,99], w: f32[2]) {{"
    body = head + REPEATED[name] + "\n  v = add(x, y)\n  return v\n}}"
    one, other = (parse(body.format(b=b, n=n)) for b, n in ((1, 7), (3, 9)))
    first, second = _general(one), _general(other)
    graph = sink_expands(first.graph)[0]
    assert text(graph) == text(sink_expands(second.graph)[0])
    random = np.random.default_rng(0)
    arrays: list[Any] = [
        random.standard_normal((3, 9)).astype("f4"),
        *random.integers(0, 2, (2, 1, 99)),
        np.array([1.5, -2], "f4"),
    ]
    (actual,), (wanted,) = interpret(graph, arrays, {"n0": 3, "n1": 9}), interpret(other, arrays)
    assert np.array_equal(actual, wanted)


def test_a_repeated_row_that_positions_of_a_batch_read_is_repeated_for_that() -> None:
    """Kinds of words that a model repeats for its batch, before it picks them by positions."""
    one, other = (
        _general(
            parse(f"""graph f(x: i64[{b},{n}], t: i64[1,99], w: f32[2]) {{
  e = expand(t) {{shape=({b}, 99)}}
  i = iota() {{shape=({b}, {n}), axis=0, dtype=i64}}
  g = gather(e, i, x) {{first=0}}
  k = add(g, x)
  y = gather(w, k) {{first=0}}
  return y
}}""")
        )
        for b, n in ((2, 16), (3, 24))
    )
    assert text(one.graph) == text(other.graph)


def test_what_a_batch_of_one_may_have_been_taken_for_comes_behind() -> None:
    """Rows that are counted for a table of one row: one always, or as many as the batch."""
    body = """graph f(x: f32[{b},{n}], t: f32[1,99], w: f32[3]) {{
  i = iota() {{shape=(1, {n}), axis=0, dtype=i64}}
  j = iota() {{shape=(1, {n}), axis=1, dtype=i64}}
  g = gather(t, i, j) {{first=0}}
  y = add(x, g)
  return y, w
}}"""
    wanted = text(_general(parse(body.format(b=4, n=7))).graph)
    graph = parse(body.format(b=1, n=9))
    actual = [*generalize(graph, fixed=graph.inputs[1:])]
    assert wanted in [text(built.graph) for built in actual]
    assert all(built.sizes["n0"] == 1 for built in actual if len(built.sizes) > 1)
