"""A value read along another axis: text, rules, and what the interpreter computes."""

from __future__ import annotations

import numpy as np
import pytest

from smelt.errors import VerifyError
from smelt.kernel.interp import run
from smelt.kernel.text import parse, text
from smelt.kernel.verify import verify

POWERS = """\
kernel powers(w: f32[n,n], h: f32[b,n]) -> y: f32[t,b,n]
  axis b, n, k in n, t
  grid b
  stream t with s = h[b,n]
    next = dot(rename(s, n to k), w[k,n] over k)
    y[t,b,n] = next
    s' = next
"""


def test_text_is_read_again():
    kernel = verify(parse(POWERS))
    assert "dot(rename(s, n to k), w[k,n] over k)" in text(kernel)
    assert parse(text(kernel)) == kernel


def test_each_step_reads_what_the_one_before_it_wrote():
    random = np.random.default_rng(0)
    w, h = (random.uniform(-1, 1, s).astype(np.float32) for s in ((5, 5), (3, 5)))
    y = run(parse(POWERS), {"w": w, "h": h}, {"t": 4})["y"]
    for result in y:
        h = h @ w
        np.testing.assert_allclose(result, h, 1e-5, 1e-6)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("k in n, t", "k in b, t", "other positions or is there"),
        ("grid b\n", "grid b, k\n", "one block of it only"),
        ("s, n to k)", "s, n to n)", "other positions or is there"),
        ("s, n to k)", "s, n to t)", "one block of it only"),
    ],
)
def test_both_axes_are_whole_and_of_one_extent(old, new, reason):
    with pytest.raises(VerifyError, match=reason):
        verify(parse(POWERS.replace(old, new)))
