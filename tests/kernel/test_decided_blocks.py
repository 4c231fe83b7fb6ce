"""Ranges of blocks in which a condition is said to fail: it fails at every position of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smelt.kernel.decided_blocks import decided_blocks
from smelt.kernel.interp import run
from smelt.kernel.ir import Apply, Const, Extreme, Stream
from smelt.kernel.text import parse
from smelt.types.expr import evaluate

KERNEL = """
kernel masked(x: f32[m,n]) -> y: f32[m]
  grid m/4
  stream n/4 with s = 0 [m]
    t = (1 if {condition} else 0)
    s' = s + sum(x[m,n] * f32(t) over n)
  y[m] = s
"""
COMPARISONS = st.sampled_from(["<=", "<", ">=", ">"])
OFFSETS = st.integers(-9, 9)
SIDES = st.sampled_from(
    ["last(n)", "first(n)", "last(m)", "first(m)", "first(m) + last(m)", "size(n) - 3"]
)


def stream_of(condition: str) -> Stream:
    (stream,) = (
        s for s in parse(KERNEL.format(condition=condition).strip()).body if isinstance(s, Stream)
    )
    return stream


@st.composite
def comparisons(draw) -> str:
    offset = draw(OFFSETS)
    plus = f"{'+-'[offset < 0]} {abs(offset)}"
    return f"({draw(SIDES)} {draw(COMPARISONS)} {draw(SIDES)} {plus})"


@st.composite
def conditions(draw) -> str:
    parts = [draw(comparisons()) for _ in range(draw(st.integers(1, 3)))]
    text = draw(st.sampled_from([" | ", " & "])).join(parts)
    return f"not({text})" if draw(st.booleans()) else text


def ends(values, m: range, size: int) -> list[int]:
    """Ends of a range as numbers, for a block of rows."""
    names = {"first(m)": m[0], "last(m)": m[-1], "size": size}
    return [evaluated(v, names) for v in values]


def evaluated(v, names) -> int:
    match v:
        case Const(value=number):
            return int(number)
        case Extreme(largest=largest):
            return names["last(m)" if largest else "first(m)"]
        case Apply(op=op, args=args):
            left, right = (evaluated(a, names) for a in args)
            return left + right if op == "add" else left * right
        case _:
            return int(evaluate(v.index, {"n": names["size"]}))


@given(conditions())
def test_a_condition_fails_in_every_block_of_its_range(condition):
    full = decided_blocks(stream_of(condition))
    if full is None:
        return
    size, text = 24, condition.replace("|", " or ").replace("&", " and ")
    text = text.replace("(n)", "_n").replace("(m)", "_m").replace("size_n", str(size))
    for m in (range(4), range(8, 12), range(20, 22)):
        start = max(ends(full.starts, m, size), default=0)
        stop = min(ends(full.stops, m, size), default=size)
        for first in range(max(start, 0), min(stop, size)):
            for last in range(first, min(stop, size)):
                names = {"first_n": first, "last_n": last, "first_m": m[0], "last_m": m[-1]}
                assert not eval(text, names), (names, start, stop)


def both(condition: str, m: range, size: int = 24) -> tuple[list[int], list[int]]:
    full = decided_blocks(stream_of(condition))
    assert full is not None
    return ends(full.starts, m, size), ends(full.stops, m, size)


def test_ranges_of_usual_masks():
    assert both("last(n) > first(m)", range(8, 12)) == ([], [9])
    assert both("partial(n <= m)", range(8, 12)) == ([], [9])
    assert both("partial((n <= m) & (m - n < 5))", range(8, 12)) == ([7], [9])
    assert both("(last(n) > first(m)) | (last(m) >= first(n) + 5)", range(8, 12)) == ([7], [9])
    assert both("(last(n) > first(m)) & (first(m) > 3)", range(8, 12)) == ([], [9])
    assert both("last(n) >= size(n) - 3", range(8, 12)) == ([], [21])


@pytest.mark.parametrize(
    "condition",
    [
        "partial(x[m,n] > 0)",
        "last(n) == first(m)",
        "first(m) > 3",
        "(last(n) > first(m)) | (first(m) > 3)",
        "last(n) + last(n) > first(m)",
    ],
)
def test_other_conditions_have_no_range(condition):
    assert decided_blocks(stream_of(condition)) is None


def test_the_kernels_are_kernels():
    kernel = parse(KERNEL.format(condition="last(n) > first(m)").strip())
    assert run(kernel, [np.ones((8, 8), np.float32)])["y"].tolist() == [8] * 4 + [4] * 4
