"""Cheap values have a copy for each reader, unless that is for each of many paths."""

from __future__ import annotations

import pytest

from smelt.fusion.sets import Hints
from smelt.fusion.untangled import MOST_COPIES, untangled
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
    found = untangled(graph, Hints(n=100), 1000)
    assert (found is not graph) == copied
    assert len(found.nodes()) <= (1 + MOST_COPIES) * len(graph.nodes())
