"""Operations counted from a kernel's text: by hand, and against an interpreter that counts."""

from __future__ import annotations

import numpy as np
import pytest
from tests.kernel.goldens import GOLDENS
from tests.kernel.references import REFERENCES, extra_sizes

from smelt.explain.work import Work, work
from smelt.kernel import interp
from smelt.kernel.evaluate import Evaluator
from smelt.kernel.ir import Stream
from smelt.kernel.sizes import input_arrays, sizes_of_call
from smelt.kernel.text import parse
from smelt.kernel.walk import blocks, statements

# What each golden does by hand, in b=2, h=3, m=5, n=7, r=11, c=13, d=17, e=19, s=23, v=29.
SIZES = {"b": 2, "h": 3, "m": 5, "n": 7, "r": 11, "c": 13, "d": 17, "e": 19, "s": 23, "v": 29}


def test_a_map():
    assert work(parse(GOLDENS["log_relu"]), SIZES) == Work(2 * 11 * 13, 11 * 13)


def test_what_does_not_vary_is_counted_once():
    text = (
        "kernel k(x: f32[r,c], b: f32[c]) -> y: f32[r,c]\n  grid r\n"
        "  v = exp(b[c])\n  y[r,c] = x[r,c] * v"
    )
    assert work(parse(text), SIZES) == Work(11 * 13, 13)


def test_reductions_count_their_elements():
    text = (
        "kernel k(x: f32[r,c], w: f32[c,d]) -> y: f32[r,d]\n  axis r, c, d\n  grid r\n"
        "  y[r,d] = dot(x[r,c], w[c,d] over c) + max(x[r,c] over c)"
    )
    dot, fold, add = 2 * 11 * 13 * 17, 11 * 13, 11 * 17
    assert work(parse(text), SIZES) == Work(dot + fold + add)


def test_state_is_updated_in_every_block():
    """acc and the maximum of one row are touched once a block, the elements once each."""
    text = (
        "kernel k(x: f32[r,c]) -> y: f32[r]\n  axis r, c\n  grid r\n"
        "  stream c/4 with m = -inf\n    m' = max(m, max(x[r,c] over c))\n  y[r] = m"
    )
    blocks = -(-13 // 4)
    assert work(parse(text), SIZES) == Work(11 * 13 + 11 * blocks)


def test_parts_and_their_merge():
    text = (
        "kernel k(x: f32[c]) -> y: f32[]\n  axis c\n  grid p in split(c, 4)\n"
        "  stream c/all of p with m = 0\n    m' = m + sum(x[c] over c)\n  merge p: (m)\n  y[] = m"
    )
    parts, merges = 4, 3
    assert work(parse(text), SIZES) == Work(13 + parts + merges)


def test_scatters_are_counted_once():
    text = (
        "kernel k(x: f32[c], i: i64[c]) -> y: f32[r]\n  axis r, c\n  y[r] = 0\n  stream c\n"
        "    at = position(i[c], size(r))\n    y[at] add= x[c]"
    )
    assert work(parse(text), SIZES) == Work(13)
    assert work(parse(text.replace("add=", "put=")), SIZES) == Work()


def test_nothing_of_nothing():
    assert work(parse(GOLDENS["log_relu"]), {"r": 0, "c": 13}) == Work()


@pytest.mark.parametrize("name", GOLDENS)
def test_no_more_than_an_interpreter_does(name, monkeypatch):
    """It computes in every block what a block needs, so it may count more, and folds apart."""
    kernel = parse(GOLDENS[name])
    if any(p.each for p in kernel.inputs):
        pytest.skip("families have sizes of their own")
    if any(b.stop is not None for b in blocks(kernel)):
        pytest.skip("a stream that stops early does less than its text says")
    if any(isinstance(s, Stream) and s.where is not None for s in statements(kernel)):
        pytest.skip("a stream that passes over blocks does less than its text says")
    arrays = REFERENCES[name].inputs(np.random.default_rng(1), 2)
    inputs = {k: v[0] for k, v in input_arrays(kernel, arrays).items()}
    sizes = sizes_of_call(kernel, inputs, extra_sizes(name, arrays))
    done = [0]
    for method in ("apply", "_reduce", "_scan", "_dot"):
        monkeypatch.setattr(Evaluator, method, _counting(getattr(Evaluator, method), done))
    interp.run(kernel, arrays, sizes)
    counted = work(kernel, sizes)
    assert 0 < counted.flops + counted.transcendentals <= done[0]


def _counting(method, done):
    def call(self, *args):
        tile = method(self, *args)
        points = tile.data.size
        for over in (a for a in args if isinstance(a, tuple)):
            points *= 2 * int(np.prod([len(self.space.ranges[a]) for a in over]))
        done[0] += points
        return tile

    return call
