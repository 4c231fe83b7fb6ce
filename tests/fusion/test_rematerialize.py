"""Cheap values are copied for each reader, unless there are many paths."""

from __future__ import annotations

import pytest

from smelt.fusion.bitsets import Hints
from smelt.fusion.split_graph import MAX_COPIES_PER_NODE, rematerialize_cheap
from smelt.graph.text import parse


@pytest.mark.parametrize(("lines", "copied"), [(2, True), (40, False)])
def test_lines_that_read_the_one_before_twice(lines: int, copied: bool) -> None:
    each = (f"s{k} = square(m{k})\nm{k + 1} = add(s{k}, m{k})\n" for k in range(lines))
    graph = parse(f"""graph f(p: f32[n,n]) {{
      m0 = iota() {{shape=(n, n), axis=0, dtype=f32}}
      {"".join(each)}
      here = sub(p, m{lines})
      turned = permute(m{lines}) {{perm=(1, 0)}}
      there = add(turned, p)
      return here, there
    }}""")
    actual = rematerialize_cheap(graph, Hints(n=100), 1000)
    assert (actual is not graph) == copied
    assert len(actual.nodes()) <= (1 + MAX_COPIES_PER_NODE) * len(graph.nodes())


def test_views_of_expensive_values_are_copied_without_them() -> None:
    """A part of an input, and of a product, that two read: there is one of either still."""
    graph = parse("""graph f(x: f32[n,n], w: f32[n,n], p: f32[n,n]) {
      z = contract(x, w) {spec="i,k; k,j -> i,j"}
      a = slice(x) {starts=(0, 0), sizes=(1, n), steps=(1, 1)}
      b = slice(z) {starts=(0, 0), sizes=(1, n), steps=(1, 1)}
      c = add(p, a) d = sub(p, a) e = add(p, b) f = sub(p, b)
      return c, d, e, f
    }""")
    actual = rematerialize_cheap(graph, Hints(n=100), 1000)
    inputs = [x for x in actual.nodes() if x.op.name == "input"]
    assert actual is not graph and {*inputs} == {*actual.inputs}
    assert [x.op.name for x in actual.nodes()].count("contract") == 1
