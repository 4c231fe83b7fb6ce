"""Which axis vectors run along where one of two is a few positions long, and which of them are
numbers."""

from __future__ import annotations

import pytest

from smelt.codegen.build import forms
from smelt.codegen.llvm.program import program
from smelt.codegen.llvm.vectors import candidates, vector_axis
from smelt.kernel.text import parse
from smelt.target import Target

PICKED = """
kernel k(x: f32[n,3], at: i64[3]) -> y: f32[n,3]
  grid n, j in 3/4096
  v0 = at[j]
  p1 = position(v0, 3)
  v1 = x[n,p1]
  y[n,j] = v1
"""
SHARED = """
kernel k(x: f32[n,3], w: f32[n]) -> y: f32[3]
  grid j in 3
  stream n/512 with s = 0 [j]
    v0 = w[n]
    v1 = exp(v0)
    v2 = x[n,j]
    v3 = v1 * v2
    s' = s + sum(v3 over n)
  y[j] = s
"""
PLAIN = """
kernel k(x: f32[n,3]) -> y: f32[n,3]
  grid n, j in 3/4096
  v0 = x[n,j]
  v1 = exp(v0)
  y[n,j] = v1
"""


@pytest.mark.parametrize(("code", "axis"), [(PICKED, "n"), (SHARED, "n"), (PLAIN, "j")])
def test_vectors_run_along_the_long_axis_where_a_short_one_wastes_them(
    code: str, axis: str
) -> None:
    """Where elements of a short row are picked, and where what is shared by a row would be computed
    in a vector of its own; plain rows are the same either way."""
    (phase,) = program(parse(code)).phases
    assert vector_axis(phase, candidates(phase)) == axis


WEIGHTED = """
kernel k(x: f32[r,c], z: f32[m,c], v: f32[m,d]) -> y: f32[r,d]
  axis r, d, m, c
  grid r/64
  v0 = x[r,c]
  stream m/512 with s = 0 [r,d]
    v1 = z[m,c]
    v2 = v0 - v1
    v3 = square(v2)
    v4 = sum(v3 over c)
    v5 = v[m,d]
    s' = s + dot(v4, v5 over m)
  y[r,d] = s
"""


def test_short_sizes_of_no_product_are_numbers_beside_products() -> None:
    """A fold over three positions is written out; the product keeps to the code for all sizes."""
    target = Target.for_isa("avx512", cores=2)
    found = forms(parse(WEIGHTED), target, {"r": 512, "c": 3, "m": 2048, "d": 16})
    told = {form.partition("@")[2] for form, _ in found}
    assert told - {""} == {"c=3"}
    assert not any("@" in form for form, _ in forms(parse(WEIGHTED), target, {"c": 300, "d": 16}))
