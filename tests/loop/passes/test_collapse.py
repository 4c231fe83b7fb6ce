"""Rows become one loop where they continue one another in every array."""

from __future__ import annotations

import numpy as np
import pytest

from smelt.loop.interpret import run
from smelt.loop.ir import For, Module
from smelt.loop.passes.collapse import join_rows
from smelt.loop.text import parse
from smelt.loop.verify import verify
from smelt.loop.walk import statements

SOURCE = """func f(x: f32[n*h*w], b: f32[{length}], y: out f32[n*h*w]; n, h, w)
  each c in 0 .. n
    each i in 0 .. h
      each j in 0 .. w
        y[h*w*c + w*i + j] = x[h*w*c + w*i + j] + b[{at}]"""


@pytest.mark.parametrize(
    ("length", "at", "loops"), [("n*h*w", "h*w*c + w*i + j", 1), ("n", "c", 2), ("w", "j", 3)]
)
def test_rows_that_continue_one_another_are_joined(length: str, at: str, loops: int) -> None:
    (func,) = parse(SOURCE.format(length=length, at=at)).funcs
    joined, var = join_rows(func, "j")
    walks = [s.var for s in statements(joined.body) if isinstance(s, For)]
    assert len(walks) == loops
    assert walks[-1] == var
    sizes = {"n": 2, "h": 3, "w": 5}
    x = np.arange(30, dtype="f4")
    b = np.arange({"n": 2, "w": 5}.get(length, 30), dtype="f4")
    first, second = (
        run(verify(Module("f", (f,)), bounds=False), {"x": x, "b": b}, sizes)["y"]
        for f in (func, joined)
    )
    assert np.array_equal(first, second)
