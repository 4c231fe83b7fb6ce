"""Values that statements change one after another: none of the changes is lost."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from smelt.loop.interpret import run
from smelt.loop.passes.accumulate import accumulate
from smelt.loop.text import parse
from smelt.loop.verify import verify

FOLDS = """
func f(x: i32[n], y: out i32[1]; n)
  each i in 0 .. n with s = {combine} i32(0)
    s <- i32(1)
    s <- i32(2)
    s <- i32(0)
  y[0] = s
"""


@pytest.mark.parametrize(("combine", "expected"), [("sum", 15), ("max", 2), ("min", 0)])
def test_folds_of_constants_are_all_kept(combine, expected):
    # Each of the values reads nothing but the name before, as the value of the carry itself does.
    before = parse(FOLDS.format(combine=combine))
    after = verify(replace(before, funcs=tuple(map(accumulate, before.funcs))))
    for module in (before, after):
        x = np.arange(5, dtype=np.int32)
        assert run(module, {"x": x}, {"n": 5})["y"] == [expected]
