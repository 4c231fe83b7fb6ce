"""What is repeated for a batch is repeated late: no other graph for a batch of one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from smelt.graph.generalize import generalize
from smelt.graph.interp import run as interpret
from smelt.graph.repeated import late
from smelt.graph.text import parse, text

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
    first, second = (next(generalize(g, fixed=g.inputs[1:])) for g in (one, other))
    graph = late(first.graph)[0]
    assert text(graph) == text(late(second.graph)[0])
    random = np.random.default_rng(0)
    arrays: list[Any] = [random.standard_normal((3, 9)).astype("f4"),
                         *random.integers(0, 2, (2, 1, 99)), np.array([1.5, -2], "f4")]  # fmt: skip
    (found,), (wanted,) = interpret(graph, arrays, {"n0": 3, "n1": 9}), interpret(other, arrays)
    assert np.array_equal(found, wanted)
